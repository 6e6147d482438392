"""A follower of three commits what is durable at its leader and at home, and nobody is served less for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from routekeeper.nameserver.raft.consensus.messages import Append, AppendReply, Message, Stale, encode

TIMEOUT_S = 0.3  # N of the simulated members
SOON_S = 0.12  # two heartbeats have said by then what is durable at the leader

Make = Callable[..., Any]


def _elect(w: Any) -> Any:
    """The leader ``a``, which says what is durable there: with a disk none does by itself."""
    leader = w.elect("a")
    leader.engine.leading.states_durable = True
    return leader


def _deaf_leader(w: Any) -> None:
    """Members' answers do not reach the leader, so that it cannot know of a commit."""
    w.drop_filter = lambda _a, _b, m: isinstance(m, AppendReply)


@pytest.mark.parametrize("volatile", [False, True], ids=["journal", "memory"])
def test_followers_commit_without_the_leader(world: Make, volatile: bool) -> None:
    w = world(volatile=volatile)
    leader = _elect(w).engine
    w.settle()
    _deaf_leader(w)
    index = w.submit("a")
    w.run(SOON_S)
    assert leader.commit_index < index == leader.leading.read_index
    assert [w.engine(name).applied_index for name in "bc"] == [index, index]


@pytest.mark.parametrize("stalled", ["a", "b"])
def test_both_must_have_it_on_their_disks(world: Make, stalled: str) -> None:
    w = world()
    _elect(w)
    w.settle()
    _deaf_leader(w)
    w[stalled].write_delay = math.inf
    index = w.submit("a")
    w.run(SOON_S)
    assert w.engine("b")._log.last_index == index
    assert w.engine("b").commit_index < index
    w[stalled].resume_disk()
    w.run(SOON_S)
    assert w.engine("b").commit_index == index


def test_a_leader_with_a_disk_waits_to_be_told(world: Make) -> None:
    """While the disks of both followers hang nothing is answered, and reads go on."""
    w = world()
    leader = w.elect("a").engine
    w.settle()
    w.run(1.0)
    for name in "bc":
        w[name].write_delay = math.inf
    index = w.submit("a")
    w.run(2 * TIMEOUT_S)
    assert leader._log.durable_index == index
    assert leader.leading.read_index == leader.commit_index < index
    assert all(w.engine(name).in_contact() for name in "abc")


def test_two_of_five_are_no_majority(world: Make) -> None:
    w = world(members=5)
    leader = _elect(w).engine
    w.settle()
    _deaf_leader(w)
    index = w.submit("a")
    w.run(SOON_S)
    assert max(w.engine(name).commit_index for name in "bcde") < index
    assert leader.leading.read_index == leader.commit_index < index


def test_an_entry_of_an_earlier_term_is_not_committed_by_being_stored(world: Make) -> None:
    w = world()
    leader = _elect(w)
    w.settle()
    w.drop_filter = lambda _a, _b, _m: True
    follower = w.engine("b")
    term, last = follower.term, follower._log.last_index

    def append(entry_term: int, at: int) -> None:
        message = Append(
            term=term,
            seq=10**6 + at,
            commit=0,
            prev_index=at - 1,
            prev_term=follower._log.term_at(at - 1),
            entries=[(entry_term, b"\x00entry")],
            last=at,
            beat=False,
            clock=0.0,
            echo=None,
            age=None,
            durable=at,
        )
        follower.receive(leader.name, encode(message))
        w.run(0.02)

    append(term - 1, last + 1)
    assert follower._log.durable_index == last + 1
    assert follower.commit_index == last
    append(term, last + 2)
    assert follower.commit_index == last + 2


def test_what_a_leader_said_in_another_term_does_not_count(world: Make) -> None:
    w = world(volatile=True)
    w.elect("a")
    w.settle()
    engine = w.engine("b")
    following = engine.following
    w.submit("a")
    w.settle()
    assert following._leader_durable > 0
    w.elect("c")
    assert following._leader_durable <= w.engine("c").leading.read_index
    w.drop_filter = lambda _a, _b, _m: True
    engine.elections.on_stale("c:1", Stale(engine.shared.library.term + 1))
    assert following._leader_durable == 0


def test_a_change_of_the_members_is_committed_by_the_leader_alone(world: Make) -> None:
    w = world()
    leader = _elect(w).engine
    w.settle()
    _deaf_leader(w)
    index = leader.membership.add_member("d:1")
    w.run(SOON_S)
    assert w.engine("b")._log.configuration_index == index
    assert w.engine("b").commit_index < index
    assert leader.leading.read_index == leader.commit_index


def test_three_that_are_left_commit_their_change_by_the_leader_alone(world: Make) -> None:
    w = world(members=4)
    leader = _elect(w).engine
    w.settle()
    _deaf_leader(w)
    index = leader.membership.remove_member("d:1")
    w.run(SOON_S)
    assert len(w.engine("b").voters) == 3
    assert w.engine("b").commit_index < index
    assert leader.leading.read_index == leader.commit_index


def test_a_leader_says_nothing_that_a_member_does_not_read(world: Make) -> None:
    w = world()
    leader = _elect(w).engine
    w.settle()
    formats = {**leader.shared.standing.formats, "c:1": 2}
    leader.shared.become(replace(leader.shared.standing, formats=formats))
    before = leader.leading._stated
    _deaf_leader(w)
    index = w.submit("a")
    w.run(SOON_S)
    assert leader.leading._stated == before < index
    assert w.engine("b").commit_index < index


def test_nobody_in_contact_lacks_what_a_follower_has_answered(world: Make) -> None:
    """``b`` commits and is not heard any more; ``c`` hears the leader, is heard, and never gets the entry."""
    w = world()
    leader = _elect(w).engine
    w.settle()
    w.run(1.0)
    index = leader._log.last_index + 1

    def drop(a: str, b: str, m: Message) -> bool:
        if (a, b) == ("a:1", "c:1"):
            return isinstance(m, Append) and bool(m.entries)
        return a == "b:1"

    w.drop_filter = drop
    assert w.submit("a") == index
    w.run(SOON_S)
    assert w.engine("b").applied_index == index
    assert leader.in_contact()
    w.run(TIMEOUT_S)
    assert leader.commit_index < index
    assert leader.leads
    assert leader.member_age("c:1") < TIMEOUT_S / 2
    assert not leader.in_contact()
    assert not w.engine("c").in_contact()
    w.drop_filter = None
    w.heal()
    w.settle()
    w.run(TIMEOUT_S)
    assert leader.in_contact()
    assert w.engine("c").in_contact()


def test_a_follower_that_finds_out_is_not_told(world: Make) -> None:
    """In memory an entry is durable when it leaves: the commit index travels with what comes later."""
    w = world(volatile=True)
    w.elect("a")
    w.settle()
    w.run(0.5)
    w.logging = True
    index = w.submit("a")
    w.settle()
    told = [m for a, b, m in w.log if (a, b) == ("a:1", "b:1") and isinstance(m, Append) and not m.beat]
    assert [(len(m.entries), m.durable) for m in told] == [(1, index)]
