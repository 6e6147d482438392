"""One scenario for each closed defect of the library, played on the real one through in-memory links."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from nameserver.raft import hardening, library
from nameserver.raft.messages import (
    FORMAT_MAX,
    MATCH,
    RESET,
    Append,
    AppendReply,
    Hello,
    MessageError,
    PreVote,
    PreVoteReply,
    RequestVote,
    SnapshotPart,
    SnapshotReply,
    Stale,
    VoteReply,
    encode,
)
from nameserver.raft.replication import WINDOW_BYTES, Progress, quorum_index
from nameserver.raft.types import RaftStartError, Role, StopMember

TIMEOUT_S = 0.3  # N of the simulated members

Make = Callable[..., Any]


def _append(engine: Any, prev: int, entries: list[tuple[int, bytes]], **changes: Any) -> Append:
    """A message of the leader that ``engine`` follows, with the truth as defaults."""
    log = engine._log
    values: dict[str, Any] = {
        "term": engine.term,
        "seq": 10**6,
        "commit": 0,
        "prev_index": prev,
        "prev_term": log.term_at(prev) or 0,
        "entries": entries,
        "last": prev + len(entries),
        "beat": True,
        "clock": 0.0,
        "echo": None,
        "age": None,
    }
    return Append(**(values | changes))


def _sent(world: Any, kind: type, *, to: str | None = None) -> list[Any]:
    return [m for _, b, m in world.log if isinstance(m, kind) and (to is None or b == f"{to}:1")]


def _payload(log: Any, first: int) -> list[tuple[int, bytes]]:
    entries: list[tuple[int, bytes]] = log.read(first, bytes_max=1 << 20)
    return entries


def test_d1_entries_sent_again_do_not_truncate_what_was_acknowledged(world: Make) -> None:
    w = world()
    leader = w.elect("a")
    for _ in range(5):
        w.submit()
    w.settle()
    follower = w.engine("b")
    last = follower._log.last_index
    older = _payload(follower._log, last - 3)[:1]
    w.logging = True
    follower.receive(leader.name, encode(_append(follower, last - 4, older)))
    assert follower._log.last_index == last
    assert [m.index for m in _sent(w, AppendReply) if m.state == MATCH][-1] >= last - 3


def test_d1_a_conflicting_tail_is_replaced_from_the_first_difference(world: Make) -> None:
    w = world()
    w.elect("a")
    w.settle()
    w.isolate("a")
    for _ in range(3):
        w.submit("a")
    w.run(0.01)
    old = w.engine("a")
    tail = old._log.last_index
    assert w.run(3, lambda: w.leader is not None and w.leader.name != "a:1" and not old.leads)
    for _ in range(2):
        w.submit()
    w.heal()
    w.settle()
    assert old._log.term_at(tail) != 1
    assert w["a"].machine.applied == w["b"].machine.applied
    assert len(w["a"].machine.applied) == 2


def test_d1_committed_entries_are_never_truncated(world: Make) -> None:
    w = world()
    leader = w.elect("a")
    for _ in range(3):
        w.submit()
    w.settle()
    follower = w.engine("b")
    last = follower._log.last_index
    follower.receive(
        leader.name, encode(_append(follower, last - 2, [(follower.term + 1, b"\x00other")], last=last - 1))
    )
    assert follower._log.last_index == last
    assert follower.status()["refused_truncations"] == 1


def test_d2_a_piece_of_a_snapshot_does_not_commit_the_tail(world: Make) -> None:
    w = world()
    leader = w.elect("a")
    follower = w.engine("b")
    commit, last = follower.commit_index, follower._log.last_index
    follower.receive(leader.name, encode(_append(follower, last, [(follower.term, b"\x00tail")])))
    assert follower._log.last_index == last + 1
    part = SnapshotPart(follower.term, 1, last + 50, follower.term, 1000, 0, b"x" * 10, last + 60, 0.0, None)
    follower.receive(leader.name, encode(part))
    follower.step()
    assert follower.commit_index == commit
    assert b"tail" not in [payload for _, payload in w["b"].machine.applied]


def test_d3_acknowledgements_of_another_term_do_not_count(world: Make) -> None:
    w = world()
    w.elect("a")
    leader = w.engine("a")
    w.isolate("a")
    w.submit("a")
    progress = leader._core.progress["b:1"]
    before = progress.match
    for term in (leader.term - 1, leader.term + 1):
        reply = AppendReply(term, 10**6, MATCH, leader._log.last_index, False, 0.0, leader._clock())
        leader.receive("b:1", encode(reply))
    assert progress.match == before
    leader.receive(
        "b:1",
        encode(AppendReply(leader.term, 10**6, MATCH, leader._log.last_index, False, 0.0, leader._clock())),
    )
    assert progress.match == leader._log.last_index  # the same answer in the right term does


@pytest.mark.parametrize("how", ["isolated", "deaf", "paused"])
def test_d4_a_member_that_was_away_does_not_depose_a_working_leader(world: Make, how: str) -> None:
    w = world()
    leader = w.elect("a")
    term = leader.engine.term
    match how:
        case "isolated":
            w.isolate("c")
        case "deaf":
            w.block(("a", "c"))
        case "paused":
            w["c"].paused_until = w.now + 4.0
    w.run(4.0)
    w.heal()
    w.run(2.0)
    assert w.leader is leader
    assert leader.engine.term == term
    assert w.engine("c").term == term


def test_d4_a_vote_request_is_ignored_while_a_leader_is_heard(world: Make) -> None:
    w = world()
    leader = w.elect("a")
    follower = w.engine("b")
    term, last = follower.term, follower._log.last_index
    follower.receive("c:1", encode(RequestVote(term + 5, last + 9, term, False)))
    assert follower.term == term
    follower.receive("c:1", encode(RequestVote(term + 5, last + 9, term, True)))  # a handover asks for it
    assert follower.term == term + 5
    assert leader.name == "a:1"


def test_d5_a_vote_counts_once_for_each_voter(world: Make) -> None:
    w = world(members=5)
    w.elect("a")
    w.isolate("c")
    candidate = w.engine("c")
    assert w.run(3, lambda: candidate.role is not Role.LEADER and candidate.leader is None)
    core = candidate._core
    core._SyncObj__setCurrentTerm(candidate.term + 1, "c:1")
    core._SyncObj__setState(hardening.CANDIDATE)
    core._SyncObj__votesCount = 1
    for _ in range(4):
        candidate.receive("d:1", encode(VoteReply(candidate.term)))
    assert candidate.role is Role.CANDIDATE
    candidate.receive("e:1", encode(VoteReply(candidate.term)))
    assert str(candidate.role) == "leader"


@pytest.mark.parametrize("stale", ["append", "request_vote", "pre_vote", "snapshot"])
def test_d6_whoever_is_in_an_older_term_is_told(world: Make, stale: str) -> None:
    w = world()
    w.elect("a")
    follower = w.engine("b")
    follower._core.on_stale(follower.term + 3)
    old = follower.term - 1
    message: Any = {
        "append": _append(follower, 1, [], term=old),
        "request_vote": RequestVote(old, 10**6, old, False),
        "pre_vote": PreVote(old, 10**6, old),
        "snapshot": SnapshotPart(old, 1, 10**6, old, 10, 0, b"x", 1, 0.0, None),
    }[stale]
    w.logging = True
    follower.receive("c:1", encode(message))
    assert [m.term for m in _sent(w, Stale, to="c")] == [follower.term]
    w.engine("c").receive("b:1", encode(Stale(follower.term)))
    assert w.engine("c").term == follower.term


def test_d7_nothing_is_acknowledged_before_it_is_durable(world: Make) -> None:
    w = world()
    w.elect("a")
    w.settle()
    for name in "ab":
        w[name].write_delay = float("inf")
    w.isolate("c")
    index = w.submit()
    w.run(0.5)
    assert index is not None
    assert w.engine("b")._log.last_index >= index  # it has arrived
    assert w.engine("a")._core.progress["b:1"].match < index
    assert w.engine("a").commit_index < index
    w["b"].resume_disk()
    w.run(0.1)
    assert w.engine("a").commit_index < index  # the follower alone is no majority: the leader counts itself
    w["a"].resume_disk()
    assert w.run(0.2, lambda: w.engine("a").commit_index >= index)


def test_d7_two_durable_followers_commit_without_the_leaders_own_disk(world: Make) -> None:
    w = world()
    w.elect("a")
    w.settle()
    w["a"].write_delay = float("inf")
    index = w.submit()
    assert w.run(0.2, lambda: w.engine("a").commit_index >= index)


def test_d7_a_single_member_commits_after_its_own_write(world: Make) -> None:
    w = world(members=1)
    w["a"].write_delay = float("inf")
    index = w.submit()
    w.run(0.2)
    assert w.engine("a").commit_index < index
    w["a"].resume_disk()
    assert w.run(0.2, lambda: w.engine("a").commit_index >= index)


@pytest.mark.parametrize(
    ("members", "durable", "matches", "expected"),
    [
        (1, 7, [], 7),
        (3, 9, [5, 0], 5),
        (3, 3, [5, 6], 5),
        (3, 9, [0, 0], 0),
        (5, 9, [8, 7, 1, 1], 7),
        (5, 9, [8], 0),
        (2, 9, [4], 4),
    ],
)
def test_quorum_index(members: int, durable: int, matches: list[int], expected: int) -> None:
    assert quorum_index(members, durable, matches) == expected


def test_d8_a_leader_without_a_majority_steps_down_within_two_timeouts(world: Make) -> None:
    w = world()
    leader = w.elect("a")
    w.isolate("a")
    assert w.run(2 * TIMEOUT_S + 0.1, lambda: leader.engine.role is not Role.LEADER)
    assert leader.engine.contact_age() >= TIMEOUT_S


def test_d10_messages_of_strangers_and_before_the_hello_change_nothing(world: Make) -> None:
    w = world()
    w.elect("a")
    follower = w.engine("b")
    term = follower.term
    follower.receive("z:1", encode(_append(follower, 1, [], term=term + 1000)))
    follower.link_up("z:1")
    for cluster in ("", "another"):
        hello = Hello("i", True, False, 300, {}, 0, FORMAT_MAX, cluster)
        with pytest.raises(MessageError, match=r"no member|another cluster"):
            follower.receive("z:1", encode(hello))
    with pytest.raises(MessageError, match="before a hello"):
        follower.receive("z:1", encode(_append(follower, 1, [], term=term + 1000)))
    follower._core.receive("z:1", _append(follower, 1, [], term=term + 1000))
    assert follower.term == term


def test_d11_an_apply_that_raises_is_counted_and_not_repeated(world: Make) -> None:
    w = world()
    w.elect("a")
    machine = w["b"].machine
    calls = []
    original = machine.apply

    def apply(payload: bytes, **keywords: Any) -> None:
        calls.append(keywords["index"])
        if len(calls) == 1:
            raise ValueError("a defect of the state machine")
        original(payload, **keywords)

    machine.apply = apply
    first, second = w.submit(), w.submit()
    assert w.run(1, lambda: w.engine("b").applied_index >= second)
    assert calls == [first, second]
    assert w.engine("b").status()["apply_errors"] == 1


def test_an_entry_that_cannot_be_read_stops_the_member_and_is_not_applied(world: Make) -> None:
    w = world()
    w.elect("a")

    def apply(payload: bytes, **_: Any) -> None:
        raise StopMember("command format 9")

    w["b"].machine.apply = apply
    index = w.submit()
    w.run(0.5)
    assert "command format 9" in w["b"].stopped
    assert w.engine("b").applied_index < index
    assert w.engine("a").applied_index >= index


@pytest.mark.parametrize("kind", [3, 4, 200])
def test_d31_version_and_unknown_entries_stop_the_member_and_lose_nothing(world: Make, kind: int) -> None:
    w = world()
    w.elect("a")
    w.settle()
    leader = w.engine("a")
    leader._log.add(bytes((kind,)) + pickle.dumps(["add", "x:1"]), leader._log.last_index + 1, leader.term)
    w["a"].wake()
    w.run(0.5)
    stopped = [member for member in w.members.values() if "kind" in member.stopped]
    assert len(stopped) >= 2  # the leader, and whoever learnt that it is committed
    assert all(member.engine.applied_index == w.engine("a")._log.last_index - 1 for member in stopped)


def test_d12_d13_d23_d27_commands_are_not_forwarded(world: Make) -> None:
    w = world()
    w.elect("a")
    with pytest.raises(AssertionError, match="not forwarded"):
        w.engine("b")._core._applyCommand(b"x", None)
    assert w.engine("b").append(b"x", term=w.engine("b").term) is None
    assert w.engine("a").append(b"x", term=w.engine("a").term - 1) is None


def test_d16_a_snapshot_older_than_the_state_is_not_installed(world: Make) -> None:
    w = world()
    leader = w.elect("a")
    for _ in range(5):
        w.submit()
    w.settle()
    follower = w.engine("b")
    state, applied = list(w["b"].machine.applied), follower.applied_index
    image = msgspec.msgpack.encode([])
    w.logging = True
    part = SnapshotPart(follower.term, 1, applied - 2, 1, len(image), 0, image, applied, 0.0, None)
    follower.receive(leader.name, encode(part))
    w.run(0.5)
    assert w["b"].machine.applied == state
    assert min(m.index for m in _sent(w, AppendReply, to="a") if m.state == MATCH) >= applied


def test_d17_a_peer_counts_anew_after_each_connection(world: Make) -> None:
    w = world()
    w.elect("a")
    w.submit()
    w.settle()
    leader = w.engine("a")
    assert leader._core.progress["b:1"].match > 1
    leader.link_down("b:1")
    leader.link_up("b:1")
    leader.receive("b:1", encode(Hello("other", True, False, 300, {}, 0)))
    assert leader._core.progress["b:1"].match == 0
    assert leader._core._SyncObj__raftMatchIndex[leader._core.node("b:1")] == 0


def test_d18_a_long_conflicting_tail_is_replaced_in_a_few_messages(world: Make) -> None:
    w = world()
    w.elect("a")
    w.settle()
    w.isolate("a")
    for _ in range(700):
        w.submit("a")
    w.run(0.01)
    assert w.run(3, lambda: w.leader is not None and w.leader.name != "a:1")
    for _ in range(900):
        w.submit()
    for other in "bc":
        w.cut("a", other)  # nothing of the old connections arrives: the new leader begins at its own end
    w.run(1)
    w.logging = True
    w.heal()
    assert w.run(2, lambda: w.engine("a").leader is not None)
    w.settle(2)
    resets = [m for a, _, m in w.log if a == "a:1" and isinstance(m, AppendReply) and m.state == RESET]
    assert 1 <= len(resets) <= 4


def test_d19_a_reset_beyond_the_leaders_log_is_clamped(world: Make) -> None:
    w = world()
    w.elect("a")
    leader = w.engine("a")
    progress = leader._core.progress["b:1"]
    leader.receive(
        "b:1",
        encode(
            AppendReply(leader.term, 10**6, RESET, leader._log.last_index + 50, False, 0.0, leader._clock())
        ),
    )
    assert progress.next == leader._log.last_index + 1
    w.submit()
    w.settle()


def test_d20_no_flood_while_a_peer_needs_an_image_that_is_not_there(world: Make) -> None:
    w = world()
    w.elect("a")
    for _ in range(20):
        w.submit()
    w.settle()
    leader = w.engine("a")
    leader._log.trim(leader.applied_index - 2)
    progress = leader._core.progress["b:1"]
    progress.next = 2
    progress.match = 0
    w.logging = True
    leader.step()
    leader.step()
    assert len([1 for _, b, _ in w.log if b == "b:1"]) <= 2


def test_d22_an_acknowledgement_does_not_rewind_what_is_under_way() -> None:
    progress = Progress(next=10)
    progress.sent(12, 300)
    progress.sent(15, 300)
    progress.acknowledged(12)
    assert (progress.next, progress.match, progress.unacknowledged) == (16, 12, 300)
    progress.acknowledged(11)
    assert (progress.next, progress.match) == (16, 12)


def test_d22_each_entry_is_sent_once_to_each_follower(world: Make) -> None:
    w = world()
    w.elect("a")
    w.settle()
    w.logging = True
    for _ in range(50):
        w.submit(size=100)
        w.run(0.0005)
    w.settle()
    assert sum(len(m.entries) for m in _sent(w, Append, to="b")) == 50


def test_d25_an_emptied_member_neither_votes_nor_counts_until_it_has_caught_up(world: Make) -> None:
    w = world()
    w.elect("a")
    for _ in range(5):
        w.submit()
    w.settle()
    w.crash(w["c"], wipe=True)
    w.run(0.5)
    w.logging = True
    w.drop_filter = lambda a, b, m: isinstance(m, Append) and b == "c:1"  # it hears of nothing
    w.start("c")
    w.run(0.2)
    learner = w.engine("c")
    assert learner.role is Role.LEARNER
    last = w.engine("a")._log.last_index
    learner.receive("b:1", encode(PreVote(99, last + 100, 98)))
    learner.receive("b:1", encode(RequestVote(99, last + 100, 98, True)))
    assert not [m for a, _, m in w.log if a == "c:1" and isinstance(m, PreVoteReply | VoteReply)]
    # Leader and learner are no majority.
    w.crash(w["b"])
    w.drop_filter = None
    commit = w.engine("a").commit_index
    index = w.submit("a")
    w.run(0.25)
    assert learner._log.last_index >= (index or 0)
    assert w.engine("a").commit_index == commit
    w.start("b")
    w.run(5, lambda: w.leader is not None)
    w.submit()
    assert w.run(3, lambda: learner.role is not Role.LEARNER)
    w.settle()
    assert w["c"].machine.applied == w["a"].machine.applied
    assert w["c"].disk.vote[1] is not None


def test_d25_an_idle_cluster_lets_a_learner_become_a_voter(world: Make) -> None:
    w = world()
    w.elect("a")
    w.settle()
    w.crash(w["c"], wipe=True)
    w.run(0.3)
    w.start("c")
    assert w.run(3, lambda: w["c"].up and w.engine("c").role is Role.FOLLOWER)


def test_d25_a_memory_only_member_is_a_learner_after_a_restart(world: Make) -> None:
    w = world(volatile=True)
    w.elect("a")
    w.submit()
    w.settle()
    w.crash(w["b"])
    w.run(0.3)
    w["b"].start()
    assert w.engine("b").role is Role.LEARNER
    for other in ("a:1", "c:1"):
        w._dial("b:1", other)
    assert w.run(3, lambda: w.engine("b").role is Role.FOLLOWER)
    w.settle()
    assert w["b"].machine.applied == w["a"].machine.applied


def test_first_start_needs_every_member_once_and_names_whom_it_waits_for(world: Make) -> None:
    w = world(started=False)
    w.start("a", "b")
    w.run(3)
    assert w.leader is None
    assert w.engine("a").waiting_for == ("c:1",)
    assert w.engine("a").role is Role.LEARNER
    w.start("c")
    w.settle()
    assert w.engine("a").waiting_for == ()
    # Afterwards a majority is enough.
    for member in list(w.members.values()):
        w.crash(member)
    w.run(0.5)
    w.start("a", "c")
    assert w.run(3, lambda: w.leader is not None)


def test_two_emptied_members_do_not_found_a_second_cluster(world: Make) -> None:
    w = world()
    w.elect("a")
    w.submit()
    w.settle()
    for member in list(w.members.values()):
        w.crash(member, wipe=member.name != "a:1")
    w.run(1)
    w.start()
    w.run(5)
    assert w.leader is None
    assert {w.engine(name).role for name in "bc"} == {Role.LEARNER}
    assert w.engine("b").waiting_for == ()


def test_d26_a_large_binary_entry_travels_in_one_message(world: Make) -> None:
    w = world()
    w.elect("a")
    w.settle()
    w.logging = True
    payload = os.urandom(500_000)
    index = w.engine("a").append(payload, term=w.engine("a").term)
    assert w.run(1, lambda: all(w.engine(n).applied_index >= index for n in "abc"))
    assert w["c"].machine.applied[-1] == (index, payload)
    assert len([m for m in _sent(w, Append, to="b") if m.entries]) == 1


def test_an_entry_above_the_limit_is_refused(world: Make) -> None:
    w = world()
    w.elect("a")
    with pytest.raises(ValueError, match="1048577 bytes, at most 1048576"):
        w.engine("a").append(bytes((1 << 20) + 1), term=w.engine("a").term)


def test_d28_a_failing_snapshot_is_tried_again_with_a_growing_pause(world: Make) -> None:
    w = world(compact_bytes=1000)
    w.elect("a")
    attempts = []
    member = w["a"]

    def fail(index: int, term: int, configuration: bytes, encode: Callable[[], bytes]) -> None:
        attempts.append(w.now)
        w.at(0.01, member.engine.image_failed, "no room")

    member.make_image = fail
    for _ in range(400):
        w.submit(size=100)
        w.run(0.1)
    assert 3 <= len(attempts) <= 5
    assert attempts[2] - attempts[1] > 1.5 * (attempts[1] - attempts[0])


def test_d14_snapshots_shorten_the_log_and_bring_a_late_member_up(world: Make) -> None:
    w = world(compact_bytes=20_000)
    w.elect("a")
    w.crash(w["c"])
    for _ in range(3000):
        w.submit(size=1000)
        if w.rng.random() < 0.1:
            w.run(0.01)
    assert w.run(5, lambda: w.engine("a")._log.base_index > 100)
    w.start("c")
    w.settle(10)
    assert w.stat["installs"] >= 1
    assert w["c"].machine.applied == w["a"].machine.applied


def test_a_snapshot_reply_of_another_image_moves_nothing(world: Make) -> None:
    w = world()
    w.elect("a")
    leader = w.engine("a")
    reply = SnapshotReply(leader.term, 77, 10, False, 0.0, leader._clock())
    leader.receive("b:1", encode(reply))
    assert leader._core.progress["b:1"].transfer is None


def test_d34_what_is_under_way_to_a_stopped_peer_is_bounded(world: Make) -> None:
    w = world()
    w.elect("a")
    w.settle()
    w["b"].write_delay = float("inf")
    for _ in range(60):
        w.submit(size=500_000)
        w.run(0.005)
    assert w.engine("a")._core.progress["b:1"].unacknowledged <= WINDOW_BYTES + (1 << 20)
    w["b"].resume_disk()
    w.settle()


def test_a_leader_whose_disk_hangs_steps_down_and_does_not_stand_again(world: Make) -> None:
    w = world()
    leader = w.elect("a")
    w.settle()
    leader.write_delay = float("inf")
    w.submit()
    assert w.run(3, lambda: w.leader is not None and w.leader is not leader)
    assert leader.engine.status()["storage_stalled"]
    w.crash(w["b"])
    w.crash(w["c"])
    w.run(3)
    assert leader.engine.role is Role.FOLLOWER
    leader.resume_disk()
    w.start()
    w.settle()
    assert not leader.engine.status()["storage_stalled"]


def test_a_disk_that_works_again_is_trusted_even_under_constant_load(world: Make) -> None:
    w = world()
    w.elect("a")
    follower = w["b"]
    follower.write_delay = float("inf")
    w.submit()
    w.run(1.5)
    assert follower.engine.status()["storage_stalled"]
    follower.resume_disk()
    follower.write_delay = 0.05  # there is always something under way
    for _ in range(60):
        w.submit()
        w.run(0.01)
    assert len(follower.engine._writes) > 0
    assert not follower.engine.status()["storage_stalled"]


def test_a_closing_leader_hands_over_without_an_election_timeout(world: Make) -> None:
    w = world()
    leader = w.elect("a")
    w.submit()
    w.settle()
    assert leader.engine.hand_over()
    assert leader.engine.append(b"late", term=leader.engine.term) is None
    assert w.run(0.1, lambda: w.leader is not None and w.leader is not leader)
    assert not leader.engine.hand_over()


def test_a_killed_leader_is_replaced_in_less_than_a_timeout(world: Make) -> None:
    took = []
    for seed in range(1, 16):
        w = world(seed)
        w.crash(w.leader)
        at = w.now
        assert w.run(3, lambda w=w: w.leader is not None)
        took.append(w.now - at)
    assert sorted(took)[7] < TIMEOUT_S


def test_a_change_of_contact_is_told_even_if_nothing_else_changes(world: Make) -> None:
    w = world()
    w.elect("a")
    w.settle()
    w.run(0.5)
    told: list[bool] = []
    follower = w["b"]
    follower.changed = lambda: told.append(follower.engine.contact_age() < follower.engine.contact_limit)
    w.run(0.3)
    assert told == []
    follower.paused_until = w.now + 0.35  # it comes back to the same leader
    w.run(1.0)
    assert False in told
    assert told[-1] is True
    assert follower.engine.term == w.engine("a").term == 1


def test_the_library_is_checked_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    library.check_library()
    monkeypatch.delattr(library.module.SyncObj, "_SyncObj__sendNextNodeIdx")
    with pytest.raises(RaftStartError, match=r"0\.3\.17.*without _SyncObj__sendNextNodeIdx"):
        library.check_library()
    monkeypatch.undo()
    monkeypatch.setattr(library.module, "VERSION", "0.3.18")
    with pytest.raises(RaftStartError, match=r"found 0\.3\.18"):
        library.check_library()


def test_the_installed_library_is_left_as_it_is() -> None:
    import pysyncobj.syncobj as stock

    assert stock is not library.module
    assert stock.SyncObj is not library.module.SyncObj
    assert stock.pickle.loads(stock.pickle.dumps((1, "x"))) == (1, "x")
    with pytest.raises(AssertionError, match="pickle"):
        library.module.pickle.loads(b"")
