"""What members say to each other all day long takes a short way, all else the whole way; nobody can tell."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from routekeeper.nameserver.raft.consensus.engine import Engine
from routekeeper.nameserver.raft.consensus.following import Following
from routekeeper.nameserver.raft.consensus.log import CONFIGURATION, REGULAR, Entry
from routekeeper.nameserver.raft.consensus.members import Configuration, encode_configuration
from routekeeper.nameserver.raft.consensus.messages import (
    ALIVE,
    MATCH,
    RESET,
    Append,
    AppendReply,
    Message,
    MessageError,
    RequestVote,
    Stale,
    TimeoutNow,
    encode,
)
from routekeeper.nameserver.raft.consensus.replication import Transfer
from routekeeper.nameserver.raft.library import Library

TIMEOUT_S = 0.3  # N of the simulated members

Make = Callable[..., Any]


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    """What was taken the whole way."""
    taken: list[Message] = []
    real = Engine._on_message

    def on_message(engine: Engine, peer: str, message: Message) -> None:
        taken.append(message)
        real(engine, peer, message)

    monkeypatch.setattr(Engine, "_on_message", on_message)
    return taken


def _settled(make: Make, **settings: Any) -> Any:
    """Three members that ``a`` leads and that have had some heartbeats."""
    w = make(**settings)
    w.elect("a")
    w.settle()
    w.run(2 * TIMEOUT_S)
    return w


def _follower(w: Any) -> Engine:
    """A follower to which only the test speaks."""
    w.drop_filter = lambda *_: True
    engine: Engine = w.engine("b")
    return engine


def _next(follower: Engine, entries: Sequence[tuple[int, bytes]] = (), **changes: Any) -> Append:
    """What the leader says next, with entries of its own term."""
    log = follower._log
    values: dict[str, Any] = {
        "term": follower.term,
        "seq": 10**6,
        "commit": follower.commit_index,
        "prev_index": log.last_index,
        "prev_term": log.last_term,
        "entries": list(entries),
        "last": log.last_index + len(entries),
        "beat": True,
        "clock": 0.0,
        "echo": None,
        "age": None,
    }
    return Append(**(values | changes))


def _says(leader: Engine, **changes: Any) -> AppendReply:
    """What a voter answers that has all."""
    values: dict[str, Any] = {
        "term": leader.term,
        "seq": 10**6,
        "state": MATCH,
        "index": leader._log.last_index,
        "learner": False,
        "clock": 0.0,
        "echo": leader._clock(),
    }
    return AppendReply(**(values | changes))


# ---- what is expected


@pytest.mark.parametrize("volatile", [False, True], ids=["journal", "memory"])
def test_a_write_among_settled_members_takes_the_short_way_everywhere(
    world: Make, whole: list[Message], monkeypatch: pytest.MonkeyPatch, volatile: bool
) -> None:
    w = _settled(world, volatile=volatile)
    library_took: list[object] = []
    monkeypatch.setattr(Library, "append_entries", lambda *taken, **_: library_took.append(taken))
    whole.clear()
    w.logging = True
    index = w.submit("a")
    w.settle()
    w.run(TIMEOUT_S)  # heartbeats, too
    assert [w.engine(name).applied_index for name in "abc"] == [index] * 3
    assert {type(message) for _, _, message in w.log} == {Append, AppendReply}
    assert (whole, library_took) == ([], [])


def _play(w: Any) -> list[tuple[str, str, Message]]:
    """Everything that is said while members come, go, pause and are cut off, and one more is added."""
    w.logging = True
    w.start()
    rng = w.rng
    for round_ in range(24):
        name = rng.choice(w.names)
        match round_ % 8:
            case 1:
                w.isolate(name)
            case 2:
                w[name].paused_until = w.now + rng.uniform(0.1, 1.0)
            case 3:
                w.heal()
            case 4:
                w.cut(*rng.sample(w.names, 2))
            case 5:
                w.settle(20.0)
                w.crash(w[name], wipe=rng.random() < 0.3)
            case 6:
                w.start()
            case 7 if w.leader is not None:
                w.leader.engine.membership.hand_over()
        if round_ == 14 and w.leader is not None and "e:1" not in w.names:
            w.add("e")
            w.leader.engine.membership.add_member("e:1")
        for _ in range(rng.randint(0, 12)):
            w.submit()
            w.run(rng.uniform(0.0, 0.03))
        w.run(rng.uniform(0.0, 0.5))
    w.heal()
    w.start()
    w.settle(20.0)
    said: list[tuple[str, str, Message]] = w.log
    return said


@pytest.mark.slow
@pytest.mark.parametrize("volatile", [False, True], ids=["journal", "memory"])
@pytest.mark.parametrize("seed", range(3))
def test_the_short_way_and_the_whole_one_come_to_the_same(
    world: Make, whole: list[Message], monkeypatch: pytest.MonkeyPatch, seed: int, volatile: bool
) -> None:
    """By every message, with every number and instant in it, of a run full of faults."""

    def made() -> Any:
        return world(seed, started=False, members=3 + seed % 2, volatile=volatile, compact_bytes=3000)

    short = _play(made())
    few = len(whole)

    def follow(
        following: Following, leader: str, term: int, commit: int = 0, entries: Sequence[Entry] = ()
    ) -> None:
        if following._library.leader != leader:
            following.leader_changes += 1
        following.shared.hear()
        now = following._clock()
        following._library.append_entries(now, leader, term=term, commit=commit, entries=entries)

    monkeypatch.setattr(Following, "follow", follow)
    monkeypatch.setattr(Engine, "_is_expected", lambda *_: False)
    whole.clear()
    assert _play(made()) == short
    assert few < len(whole) / 2


# ---- a follower: what is not


@pytest.mark.parametrize(
    "changes",
    [
        {"prev_index": 1, "prev_term": 0},
        {"term": 10**6},
        {"prev_term": 0},
    ],
    ids=["from the beginning", "newer term", "other entry before"],
)
def test_entries_that_do_not_fit_go_the_whole_way(
    world: Make, whole: list[Message], changes: dict[str, Any]
) -> None:
    follower = _follower(_settled(world))
    whole.clear()
    last = follower._log.last_index
    said = _next(follower, **changes)
    follower.receive("a:1", encode(said))
    assert whole == [said]
    assert (follower._log.last_index, follower.term) == (last, said.term)


def test_entries_behind_a_gap_are_asked_for_from_its_beginning(world: Make, whole: list[Message]) -> None:
    w = _settled(world)
    follower = _follower(w)
    whole.clear()
    last, term = follower._log.last_index, follower.term
    w.log.clear()
    follower.receive("a:1", encode(_next(follower, [(term, REGULAR)], prev_index=last + 1, prev_term=term)))
    assert len(whole) == 1
    assert follower._log.last_index == last
    assert [(m.state, m.index) for _, _, m in w.log] == [(RESET, last + 1)]


def test_entries_that_come_again_are_kept_once(world: Make, whole: list[Message]) -> None:
    follower = _follower(_settled(world))
    term = follower.term
    twice = _next(follower, [(term, REGULAR + b"1")])
    whole.clear()
    for _ in range(2):
        follower.receive("a:1", encode(twice))
    assert whole == [twice]
    assert follower._log.last_index == twice.prev_index + 1


def test_a_tail_that_differs_is_replaced(world: Make) -> None:
    follower = _follower(_settled(world))
    term, last = follower.term, follower._log.last_index
    follower.receive("a:1", encode(_next(follower, [(term, REGULAR + b"1"), (term, REGULAR + b"2")])))
    other = _next(follower, [(term + 1, REGULAR + b"3")], term=term + 1, prev_index=last, prev_term=term)
    for said in (msgspec.structs.replace(other, entries=[]), other, other):
        follower.receive("c:1", encode(said))
    assert follower._log.read(last + 1, bytes_max=1000) == [(term + 1, REGULAR + b"3")]


def test_whoever_is_not_followed_goes_the_whole_way(world: Make, whole: list[Message]) -> None:
    follower = _follower(_settled(world))
    before = follower.following.leader_changes
    whole.clear()
    follower.receive("c:1", encode(_next(follower)))
    assert len(whole) == 1
    assert (follower.leader, follower.following.leader_changes) == ("c:1", before + 1)


@pytest.mark.parametrize("say", ["old leader", "leader that is new in this term"])
def test_only_whoever_is_followed_in_this_term_is_believed_at_once(
    world: Make, whole: list[Message], say: str
) -> None:
    w = _settled(world)
    follower = _follower(w)
    old = follower.term
    follower.elections.on_stale("c:1", Stale(old + 1))
    whole.clear()
    w.log.clear()
    last = follower._log.last_index
    if say == "old leader":
        follower.receive("a:1", encode(_next(follower, [(old, REGULAR)], term=old)))
        assert follower._log.last_index == last
        assert [m for _, _, m in w.log] == [Stale(old + 1)]
    else:
        follower.receive("c:1", encode(_next(follower, [(old + 1, REGULAR)])))
        assert (follower._log.last_index, follower.leader) == (last + 1, "c:1")
        assert follower.following.leader_changes > 0
    assert len(whole) == 1


def test_a_configuration_among_the_entries_is_in_force_at_once(world: Make, whole: list[Message]) -> None:
    follower = _follower(_settled(world))
    whole.clear()
    changed = Configuration(follower.voters, ("d:1",))
    configuration = CONFIGURATION + encode_configuration(changed)
    term = follower.term
    follower.receive("a:1", encode(_next(follower, [(term, REGULAR), (term, configuration)])))
    assert len(whole) == 1
    assert follower.shared.configuration == changed
    follower.receive("a:1", encode(_next(follower)))  # with a learner there is more to do
    assert len(whole) == 2


def test_a_follower_that_was_asked_to_stand_does_not_wait_for_its_leader(
    world: Make, whole: list[Message]
) -> None:
    w = _settled(world)
    follower = _follower(w)
    follower.receive("a:1", encode(TimeoutNow(follower.term)))
    whole.clear()
    w.log.clear()
    follower.receive("a:1", encode(_next(follower)))
    assert len(whole) == 1
    assert [m.transfer for _, _, m in w.log if isinstance(m, RequestVote)] == [True, True]


def test_nothing_is_added_while_an_image_is_being_installed(world: Make, whole: list[Message]) -> None:
    w = _settled(world)
    follower = _follower(w)
    follower.images.installing = last = follower._log.last_index
    whole.clear()
    w.log.clear()
    follower.receive("a:1", encode(_next(follower, [(follower.term, REGULAR)])))
    assert len(whole) == 1
    assert follower._log.last_index == last
    assert [m.state for _, _, m in w.log] == [ALIVE]


def test_a_voter_that_is_none_yet_becomes_one(world: Make) -> None:
    w = _settled(world)
    follower = _follower(w)
    follower.shared.standing = replace(follower.shared.standing, voter=False)
    follower.receive("a:1", encode(_next(follower)))
    follower.receive("a:1", encode(_next(follower, [(follower.term, REGULAR)])))
    w.run(0.1)
    assert not follower.shared.standing.voter
    follower.receive("a:1", encode(_next(follower, commit=follower._log.last_index)))
    w.run(0.1)
    follower.receive("a:1", encode(_next(follower, commit=follower._log.last_index)))
    assert follower.shared.standing.voter


# ---- a leader: what is not


def _unanswered(w: Any) -> tuple[Engine, int]:
    """The leader with an entry that nobody has answered for."""
    w.drop_filter = lambda *_: True
    index = w.submit("a")
    w.run(0.02)
    leader = w.engine("a")
    assert leader._log.durable_index == index > leader.commit_index
    return leader, index


def test_an_answer_commits_and_a_repeated_or_older_one_takes_nothing_back(
    world: Make, whole: list[Message]
) -> None:
    leader, index = _unanswered(_settled(world))
    whole.clear()
    for said in (index, index, index - 1):
        leader.receive("b:1", encode(_says(leader, index=said)))
        assert leader.commit_index == leader.leading.progress["b:1"].match == index
    assert not whole


@pytest.mark.parametrize(
    "changes",
    [{"state": RESET}, {"state": ALIVE}, {"learner": True}, {"term": 0}, {"term": 10**6}],
    ids=["reset", "alive", "learner", "older term", "newer term"],
)
def test_an_answer_that_says_more_goes_the_whole_way_and_commits_nothing(
    world: Make, whole: list[Message], changes: dict[str, Any]
) -> None:
    leader, index = _unanswered(_settled(world))
    whole.clear()
    leader.receive("b:1", encode(_says(leader, **changes)))
    assert len(whole) == 1
    assert leader.commit_index < index


def test_whoever_is_no_member_or_has_not_greeted_commits_nothing(world: Make, whole: list[Message]) -> None:
    leader, index = _unanswered(_settled(world))
    whole.clear()
    greeting = leader._effects.greeted.pop("b:1")
    with pytest.raises(MessageError, match="before a greeting"):
        leader.receive("b:1", encode(_says(leader)))
    leader._effects.links.add("z:1")
    leader._effects.greeted["z:1"] = greeting
    leader.receive("z:1", encode(_says(leader)))
    assert len(whole) == 1
    assert leader.commit_index < index


def test_with_a_learner_answers_go_the_whole_way(world: Make, whole: list[Message]) -> None:
    w = _settled(world)
    w.engine("a").membership.add_member("d:1")
    w.settle()
    leader, index = _unanswered(w)
    whole.clear()
    leader.receive("d:1", encode(_says(leader)))  # it has no link
    assert leader.commit_index < index
    leader.receive("b:1", encode(_says(leader)))
    w.run(0.01)
    assert len(whole) == 1
    assert leader.commit_index == index


def test_an_answer_during_a_hand_over_commits_and_nothing_is_appended(world: Make) -> None:
    w = _settled(world)
    leader, index = _unanswered(w)
    leader.membership.hand_over()
    leader.receive("b:1", encode(_says(leader)))
    assert leader.commit_index == leader.applied_index == index
    assert w.submit("a") is None


def test_an_answer_that_ends_the_transfer_of_an_image_has_the_rest_sent(world: Make) -> None:
    w = _settled(world)
    leader, index = _unanswered(w)
    progress = leader.leading.progress["b:1"]
    progress.transfer, progress.next = (
        Transfer(index - 1, leader.term, 10, b"", moved_at=leader._clock()),
        index,
    )
    w.log.clear()
    leader.receive("b:1", encode(_says(leader, index=index - 1)))
    assert progress.transfer is None
    assert [len(m.entries) for _, b, m in w.log if b == "b:1" and isinstance(m, Append)] == [1]


# ---- contact is told


@pytest.mark.parametrize("name", ["a", "b"])
def test_whoever_is_in_contact_again_by_what_is_expected_says_so(
    world: Make, whole: list[Message], name: str
) -> None:
    w = _settled(world)
    w.drop_filter = lambda *_: True
    engine = w.engine(name)
    engine.shared.library.election_deadline = math.inf
    assert w.run(2 * TIMEOUT_S, lambda: not engine.in_contact())
    w.run(0.05)
    assert engine._seen[:1] == (False,)
    whole.clear()
    told: list[bool] = []
    w[name].changed = lambda: told.append(engine.in_contact())
    now = engine._clock()
    if name == "a":
        engine.receive("b:1", encode(_says(engine, echo=now)))
    else:
        engine.receive("a:1", encode(_next(engine, echo=now, age=0.0)))
    assert told == [True]
    assert not whole
