"""Tests of changes of a group's members, with a virtual clock.

A group makes only one change at a time, and each change concerns one member. The change takes effect when its
entry is appended (rule 11 of docs/raft-rules.md). Some tests check that PySyncObj's defects D35 to D37 stay
fixed (docs/pysyncobj-defects.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from routekeeper.nameserver.raft.consensus.log import CONFIGURATION
from routekeeper.nameserver.raft.consensus.members import (
    Configuration,
    decode_configuration,
    encode_configuration,
    founding,
)
from routekeeper.nameserver.raft.consensus.messages import (
    MATCH,
    Append,
    AppendReply,
    Greeting,
    Removed,
    encode,
)
from routekeeper.nameserver.raft.types import ChangeRefused, NotLeader, Role, StopMember

Make = Callable[..., Any]


def _add(w: Any, name: str) -> Any:
    """Start a new member, add it, and wait until every member knows it as a voter."""
    member = w.add(name)
    w.leader.engine.membership.add_member(member.name)
    _until_voter(w, member.name)
    return member


def _until_voter(w: Any, name: str) -> None:
    def done() -> bool:
        leader = w.leader
        if leader is None or name not in leader.engine.voters:
            return False
        engines = [w.engine(member) for member in leader.engine.members]
        return all(name in e.voters and e.shared.committed for e in engines)

    assert w.run(10, done), {n: m.engine.status() for n, m in w.members.items() if m.engine}


def _remove(w: Any, name: str) -> None:
    w.leader.engine.membership.remove_member(w[name].name)
    assert w.run(10, lambda: w[name].was_removed != ""), w[name].engine.status()


def test_a_configuration_is_read_back_and_a_newer_one_is_refused() -> None:
    configuration = founding(("b:1", "a:1")).with_learner("c:1")
    assert configuration == Configuration(("a:1", "b:1"), ("c:1",))
    assert decode_configuration(encode_configuration(configuration)) == configuration
    assert configuration.promoting("c:1") == Configuration(("a:1", "b:1", "c:1"))
    assert configuration.without("a:1").members == ("b:1", "c:1")
    for bad in (b"", b"\x93\x02\x90\x90", b"\x93\x01\x90", b"\xff"):
        with pytest.raises(StopMember):
            decode_configuration(bad)


# ---- adding a member


def test_a_newcomer_is_a_learner_first_and_a_voter_once_it_has_caught_up(world: Make) -> None:
    w = world(compact_bytes=3000)
    w.elect("a")
    for _ in range(80):
        w.submit(size=100)
    w.settle()
    leader = w.engine("a")
    newcomer = w.add("d")
    w.run(1)
    assert newcomer.engine.shared.empty
    assert newcomer.engine.term == 0
    assert newcomer.engine.role == "learner"
    assert leader.membership.add_member("d:1") is not None
    assert (leader.shared.configuration.learners, leader.voters) == (
        ("d:1",),
        ("a:1", "b:1", "c:1"),
    )
    assert leader.membership.add_member("d:1") is None  # the addition of this member is already in progress
    seen: set[Role] = set()

    def voter() -> bool:
        seen.add(newcomer.engine.role)
        return "d:1" in leader.voters

    assert w.run(10, voter)
    assert seen == {Role.LEARNER}
    _until_voter(w, "d:1")
    w.submit()
    w.settle()
    assert newcomer.machine.applied == w["a"].machine.applied
    assert newcomer.engine.role == "follower"
    assert {e.members for e in (w.engine(n) for n in "abcd")} == {("a:1", "b:1", "c:1", "d:1")}
    assert w.elect("d").name == "d:1"


def test_the_cluster_keeps_the_name_of_its_founders(world: Make) -> None:
    w = world()
    w.elect("a")
    before = w.engine("a").status()["cluster"]
    _add(w, "d")
    _remove(w, "b")
    assert {w.engine(n).status()["cluster"] for n in "acd"} == {before}


def test_a_learner_does_not_count(world: Make) -> None:
    w = world(members=2)
    w.elect("a")
    w.add("c")
    leader = w.engine("a")
    w.drop_filter = lambda a, b, m: isinstance(m, Append) and b == "c:1" and leader.commit_index < 0
    leader.membership.add_member("c:1")
    w.drop_filter = None
    assert w.run(5, lambda: w.engine("c").commit_index > 1)
    if leader.shared.configuration.learners:
        w.isolate("b")
        index = w.submit("a")
        w.run(0.3)
        assert index is not None
        assert leader.commit_index < index
    w.heal()
    _until_voter(w, "c:1")


def test_a_learner_that_hears_only_the_leader_is_no_majority_with_it(world: Make) -> None:
    w = world()
    w.elect("a")
    w.add("d")
    w.engine("a").membership.add_member("d:1")
    # Block all messages from b and c to the leader, so that only the learner can answer it.
    w.block(("b", "a"), ("c", "a"))
    w.run(0.9)
    leader = w.engine("a")
    assert "d:1" in leader.shared.configuration.learners
    assert leader.role is not Role.LEADER
    assert leader.contact_age() >= 0.3


def test_a_learner_never_stands_and_is_promoted_by_the_next_leader(world: Make) -> None:
    w = world()
    w.elect("a")
    newcomer = w.add("d")
    w.drop_filter = lambda a, b, m: "d:1" in (a, b) and not isinstance(m, Greeting)
    w.engine("a").membership.add_member("d:1")
    w.run(2)
    assert "d:1" in w.engine("b").shared.configuration.learners
    w.crash(w["a"])
    w.drop_filter = None
    assert w.run(5, lambda: w.leader is not None)
    assert w.leader.name != "d:1"
    w.start("a")
    _until_voter(w, "d:1")
    assert newcomer.engine.role is not Role.LEARNER


def test_a_newcomer_of_an_unfounded_cluster_founds_nothing(world: Make) -> None:
    w = world()
    newcomer = w.add("d", "a:1", "b:1", "c:1")
    w.run(5)
    assert newcomer.engine.shared.empty
    assert newcomer.engine.term == 0
    w.crash(w["b"])
    w.crash(w["c"])
    w.run(5)
    assert newcomer.engine.shared.empty  # the new member must not create a cluster of its own


def test_nobody_is_linked_before_the_leader_adds_it_with_votes_or_entries(world: Make) -> None:
    w = world()
    w.elect("a")
    term = w.engine("a").term
    newcomer = w.add("d")
    w.run(3)
    assert w.engine("a").term == term
    assert newcomer.engine.commit_index == 1
    assert w.engine("a").greetings.linked == frozenset({"b:1", "c:1"})


# ---- configurations in logs and snapshots


def test_d36_a_configuration_comes_back_from_a_snapshot(world: Make) -> None:
    w = world(compact_bytes=2000)
    w.elect("a")
    _add(w, "d")
    for _ in range(60):
        w.submit(size=100)
        w.run(0.02)
    w.settle()
    for name in "abcd":
        assert w[name].disk.images
        w.crash(w[name])
    w.start()
    assert all(w.engine(name).shared.log.base_index > 20 for name in "abcd")
    assert {w.engine(name).voters for name in "abcd"} == {("a:1", "b:1", "c:1", "d:1")}
    w.crash(w["a"])
    w.crash(w["b"])
    w.run(3)
    assert w.leader is None  # two of four voters are no majority


def test_d36_a_member_that_was_down_learns_the_configuration_from_an_image(world: Make) -> None:
    w = world(compact_bytes=2000)
    w.elect("a")
    w.crash(w["b"])
    _add_while_one_is_down(w, "d", besides="b:1")
    for _ in range(60):
        w.submit(size=100)
        w.run(0.02)
    w.start("b")
    w.settle()
    assert w.stat["installs"] >= 1
    assert w.engine("b").voters == ("a:1", "b:1", "c:1", "d:1")


def _add_while_one_is_down(w: Any, name: str, *, besides: str) -> None:
    w.add(name)
    w.leader.engine.membership.add_member(w[name].name)
    assert besides in w.leader.engine.members
    done = lambda: w[name].name in w.leader.engine.voters and w.leader.engine.shared.committed  # noqa: E731
    assert w.run(10, done)


def test_a_configuration_that_is_truncated_gives_way_to_the_former_one(world: Make) -> None:
    w = world()
    w.elect("a")
    w.isolate("a")
    old = w.engine("a")
    index = old.membership.add_member("d:1")
    w.run(0.05)
    assert w.run(5, lambda: w.leader is not None and w.leader.name != "a:1")
    w.submit()
    w.heal()
    w.settle()
    assert old.shared.log.term_at(index) == old.term
    assert {w.engine(n).members for n in "abc"} == {("a:1", "b:1", "c:1")}
    w.crash(w["a"])
    w.start("a")
    w.settle()
    assert w.engine("a").members == ("a:1", "b:1", "c:1")


# ---- removing a member


def test_a_removed_member_is_told_stops_and_stays_stopped(world: Make) -> None:
    w = world()
    w.elect("a")
    _remove(w, "c")
    assert "leads term" in w["c"].was_removed
    assert w["c"].disk.standing.removed
    w.submit()
    w.settle()
    assert {w.engine(n).members for n in "ab"} == {("a:1", "b:1")}
    w.crash(w["b"])
    w.run(3)
    assert w.leader is None  # one of two voters is no majority


def test_a_member_removed_while_it_was_down_is_told_when_it_comes_back(world: Make) -> None:
    w = world()
    w.elect("a")
    w.crash(w["c"])
    w.run(2)
    leader = w.engine("a")
    term = leader.term
    leader.membership.remove_member("c:1")
    assert w.run(3, lambda: leader.shared.committed)
    w.start("c")
    assert w.run(5, lambda: w["c"].was_removed != "")
    assert leader.term == term


def test_who_was_removed_comes_back_with_an_empty_disk(world: Make) -> None:
    w = world()
    w.elect("a")
    _remove(w, "c")
    for _ in range(5):
        w.submit()
    newcomer = _add(w, "c")
    w.settle()
    assert newcomer.machine.applied == w["a"].machine.applied


@pytest.mark.parametrize("volatile", [False, True])
def test_a_founder_that_was_emptied_and_caught_up_is_told_that_it_is_removed(
    world: Make, volatile: bool
) -> None:
    w = world(volatile=volatile)
    w.elect("a")
    w.crash(w["c"], wipe=True)
    w.start("c")
    assert w.run(5, lambda: not w.engine("c").shared.empty)
    w.submit()
    assert w.run(5, lambda: w.engine("c").shared.may_vote)
    # Member c must find the members in the log, because it has no snapshot.
    assert w.engine("c").status()["snapshot_index"] == 0
    _remove(w, "c")


def test_who_was_removed_while_it_took_an_image_is_told_when_it_holds_one(world: Make) -> None:
    """A member that is removed while it waits for a snapshot gets notified after it has the snapshot.

    Until then it has no data, and a leader does not notify a member without data.
    """
    w = world(compact_bytes=2000)
    w.elect("a")
    newcomer = _add(w, "d")
    for _ in range(60):
        w.submit(size=100)
        w.run(0.02)
    w.crash(newcomer, wipe=True)
    waiting: list[tuple[Any, ...]] = []
    install, newcomer.install_image = newcomer.install_image, lambda *image: waiting.append(image)
    w.start("d")
    assert w.run(10, lambda: bool(waiting))
    w.leader.engine.membership.remove_member(newcomer.name)
    assert w.run(5, lambda: w.leader.engine.shared.committed)
    w.run(0.5)
    assert newcomer.engine.shared.empty
    install(*waiting[0])
    assert w.run(5, lambda: newcomer.was_removed != ""), newcomer.engine.status()


def test_a_new_link_is_told_apart_and_does_not_make_a_member_absent(world: Make) -> None:
    """A leader distinguishes a new link to a member from the former link, but still counts earlier answers.

    So the member does not seem absent, although no answer has arrived over the new link yet.
    """
    w = world()
    leader = w.elect("a").engine
    w.run(0.5)
    hello, number = leader.greetings.said["b:1"], leader.greetings.link_number("b:1")
    age = leader.member_age("b:1")
    assert age < 0.5
    leader.link_down("b:1")
    assert leader.greetings.link_number("b:1") == 0
    leader.link_up("b:1")
    assert leader.greetings.link_number("b:1") == 0  # no greeting has arrived on the new link yet
    leader.receive("b:1", encode(hello))
    assert leader.greetings.link_number("b:1") == number + 1
    assert leader.member_age("b:1") == age


def test_a_leader_of_an_older_term_removes_nobody(world: Make) -> None:
    w = world()
    w.elect("a")
    follower = w.engine("b")
    follower.receive("a:1", encode(Removed(follower.term - 1, 10**6)))
    w.run(0.5)
    assert w["b"].was_removed == ""


def test_who_was_only_about_to_be_added_was_not_removed(world: Make) -> None:
    w = world()
    w.elect("a")
    newcomer = w.add("d")
    w.run(0.5)
    w.block(*((x, y) for x in "ad" for y in "bc"), *((y, x) for x in "ad" for y in "bc"))
    w.engine("a").membership.add_member("d:1")
    assert w.run(3, lambda: w.leader is not None and w.leader.name in ("b:1", "c:1"))
    assert not newcomer.engine.shared.empty  # the new member has entries of the former leader
    w.heal()
    w.settle()
    w.run(2)
    assert newcomer.was_removed == ""
    assert "d:1" not in w.leader.engine.members
    w.leader.engine.membership.add_member("d:1")
    _until_voter(w, "d:1")
    w.settle()
    assert newcomer.machine.applied == w["a"].machine.applied


def test_a_learner_that_is_removed_stops(world: Make) -> None:
    w = world()
    w.elect("a")
    w.submit()
    newcomer = w.add("d")
    # Drop the learner's successful answers, so that the leader never learns that the learner has caught up.
    w.drop_filter = lambda a, b, m: a == "d:1" and isinstance(m, AppendReply) and m.state == MATCH
    w.engine("a").membership.add_member("d:1")
    assert w.run(5, lambda: newcomer.engine.commit_index > 3)
    _remove(w, "d")


def test_a_removal_that_would_leave_no_majority_in_reach_is_refused(world: Make) -> None:
    w = world()
    w.elect("a")
    w.crash(w["c"])
    w.run(3)
    leader = w.engine("a")
    with pytest.raises(ChangeRefused, match="remove those that are down first"):
        leader.membership.remove_member("b:1")
    assert leader.members == ("a:1", "b:1", "c:1")
    leader.membership.remove_member("c:1")
    assert w.run(3, lambda: leader.shared.committed)
    assert leader.voters == ("a:1", "b:1")


def test_a_removal_that_leaves_it_to_an_emptied_member_is_refused(world: Make) -> None:
    w = world()
    w.elect("a")
    w.crash(w["b"], wipe=True)
    w.run(2)
    leader = w.engine("a")
    with pytest.raises(ChangeRefused, match="no majority"):
        leader.membership.remove_member("c:1")
    w.drop_filter = lambda a, b, m: isinstance(m, Append) and b == "b:1" and bool(m.entries)
    w.start("b")
    w.run(1)
    assert w.engine("b").role is Role.LEARNER
    with pytest.raises(ChangeRefused, match="no majority"):
        leader.membership.remove_member("c:1")
    w.drop_filter = None
    assert w.run(5, lambda: w.engine("b").role is Role.FOLLOWER)
    w.run(0.2)  # wait until b has answered a heartbeat, so that it counts for the majority
    assert leader.membership.remove_member("c:1") is not None


def test_only_a_leader_changes_members_and_only_to_addresses(world: Make) -> None:
    w = world()
    w.elect("a")
    with pytest.raises(NotLeader) as refused:
        w.engine("b").membership.add_member("d:1")
    assert refused.value.leader == "a:1"
    with pytest.raises(NotLeader):
        w.engine("b").membership.remove_member("c:1")
    with pytest.raises(ChangeRefused, match="HOST:PORT"):
        w.engine("a").membership.add_member("nonsense")
    assert w.engine("a").membership.remove_member("z:1") is None
    assert w.engine("a").membership.add_member("b:1") is None


def test_a_cluster_shrinks_to_one_and_grows_again(world: Make) -> None:
    w = world()
    w.elect("a")
    _remove(w, "b")
    _remove(w, "c")
    assert w.submit() is not None
    w.settle()
    _add(w, "b")
    _add(w, "c")
    w.crash(w["a"])
    assert w.run(3, lambda: w.leader is not None)
    w.submit()
    w.settle()


def test_a_member_that_was_away_follows_a_leader_that_it_does_not_know(world: Make) -> None:
    w = world()
    w.elect("a")
    w.crash(w["c"])
    _add_while_one_is_down(w, "d", besides="c:1")
    w.elect("d")
    w.start("c")
    w.settle()
    assert w.engine("c").leader == "d:1"
    assert "d:1" in w.engine("c").voters


# ---- newer formats (rule 7 of docs/raft-rules.md)


def test_rule_7_a_configuration_of_a_newer_format_stops_the_member_and_loses_nothing(world: Make) -> None:
    w = world()
    leader = w.elect("a")
    w.submit()
    w.settle()
    follower = w.engine("b")
    last = follower.shared.log.last_index
    state = list(w["b"].machine.applied)
    entry = (follower.term, CONFIGURATION + b"\x93\x09\x90\x90")
    log = follower.shared.log
    message = Append(
        follower.term, 10**6, 0, last, log.term_at(last), [entry], last + 1, True, 0.0, None, None
    )
    follower.receive(leader.name, encode(message))
    assert "configuration of format 9" in w["b"].stopped
    assert follower.shared.log.last_index == last
    w.crash(w["b"])
    w.start("b")
    w.settle()
    assert w["b"].machine.applied == state


def _to_force(w: Any, *survivors: str) -> str:
    """Return the survivor that docs/operations.md selects for --force-new-cluster after a lost majority."""
    for name in w.names:
        w.crash(w[name])
    w.heal()
    w.start(*survivors)
    w.run(1.0)
    status = {name: w.engine(name).status() for name in survivors}
    return max(survivors, key=lambda name: (status[name]["last_term"], status[name]["last_index"]))


def test_after_a_lost_majority_the_status_shows_who_holds_an_entry_that_only_its_leader_applied(
    world: Make,
) -> None:
    w = world(members=5)
    leader = w.elect("a")
    w.settle()
    w.block(("a", "c"), ("a", "e"))
    index = w.submit("a")
    assert w.run(1.0, lambda: leader.engine.applied_index == index)
    assert w.engine("d").applied_index == w.engine("e").applied_index < index
    assert _to_force(w, "e", "d") == "d"
    assert w.engine("d").shared.log.last_index == index


def test_after_a_lost_majority_the_status_shows_that_a_long_log_is_older(world: Make) -> None:
    w = world(members=5)
    former = w.elect("a")
    w.settle()
    w.isolate("a")
    for _ in range(5):
        w.submit("a")
    assert w.run(5.0, lambda: w.leader not in (None, former))
    index, leader = w.submit(), w.leader
    assert w.run(1.0, lambda: leader.engine.applied_index == index)
    w.run(1.0)
    assert former.engine.shared.log.last_index > index
    assert _to_force(w, "a", "b") == "b"
    assert w.engine("b").shared.log.last_index >= index
