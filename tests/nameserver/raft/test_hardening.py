"""Tests of fixed defects of the raft library (PySyncObj) that no script in ``testdata`` shows.

The last test switches off one fix at a time, and then the scenario or script of this fix must fail. Scripts
and scenarios run on the real library, but with links in memory. docs/pysyncobj-defects.md has the numbers of
the defects, such as D9.
"""

from __future__ import annotations

import contextlib
import functools
import math
import pickle
from collections.abc import Callable
from typing import Any

import msgspec
import pysyncobj.pickle as stock_pickle
import pytest

from routekeeper.nameserver.raft import library, pysyncobj_seam
from routekeeper.nameserver.raft.consensus import messages
from routekeeper.nameserver.raft.consensus import part as part_module
from routekeeper.nameserver.raft.consensus.contact import QuorumContact
from routekeeper.nameserver.raft.consensus.effects import Committed, EffectQueue, InstallImage, MakeImage
from routekeeper.nameserver.raft.consensus.elections import Elections
from routekeeper.nameserver.raft.consensus.engine import Engine
from routekeeper.nameserver.raft.consensus.following import Following
from routekeeper.nameserver.raft.consensus.greetings import Greetings
from routekeeper.nameserver.raft.consensus.images import IMAGE_SIZE_MAX, INSTALL_RETRY_S, Images
from routekeeper.nameserver.raft.consensus.leading import Leading
from routekeeper.nameserver.raft.consensus.log import CONFIGURATION, RaftLog
from routekeeper.nameserver.raft.consensus.members import encode_configuration, quorum_index
from routekeeper.nameserver.raft.consensus.membership import Membership
from routekeeper.nameserver.raft.consensus.messages import (
    RESET,
    TERM_STEP_MAX,
    Append,
    AppendReply,
    MessageError,
    PreVote,
    PreVoteReply,
    RequestVote,
    SnapshotPart,
    SnapshotReply,
    Stale,
    VoteReply,
    decode,
    encode,
)
from routekeeper.nameserver.raft.consensus.part import Shared
from routekeeper.nameserver.raft.consensus.replication import WINDOW_BYTES, Progress
from routekeeper.nameserver.raft.node.applier import Applier
from routekeeper.nameserver.raft.types import ChangeNotYet, ChangeRefused, RaftStartError, Role, StopMember
from routekeeper.remoting.steps import Steps
from tests.nameserver.raft.scripts import play

TIMEOUT_S = 0.3  # election timeout of the simulated members

Make = Callable[..., Any]


def _append(engine: Any, prev: int, entries: list[tuple[int, bytes]], **changes: Any) -> Append:
    """Return a valid message from the leader to ``engine``.

    The arguments `changes` replace some of the message's fields.
    """
    log = engine.shared.log
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


def test_an_image_that_is_too_large_is_refused_aloud(world: Make, caplog: pytest.LogCaptureFixture) -> None:
    w = world()
    leader = w.elect("a")
    follower = w.engine("b")
    last = follower.shared.log.last_index
    for offset in (0, 10):
        part = SnapshotPart(
            *(
                follower.term,
                1,
                last + 50,
                follower.term,
                IMAGE_SIZE_MAX + 1,
                offset,
                b"x" * 10,
                last + 60,
                0.0,
            ),
            None,
        )
        follower.receive(leader.name, encode(part))
    assert caplog.text.count(f"bytes={IMAGE_SIZE_MAX + 1} allowed={IMAGE_SIZE_MAX}: this member cannot") == 1


def test_d5_a_vote_counts_once_for_each_voter(world: Make) -> None:
    w = world(members=5)
    w.elect("a")
    w.isolate("c")
    candidate = w.engine("c")
    assert w.run(3, lambda: candidate.role is not Role.LEADER and candidate.leader is None)
    raft = candidate.shared.library
    raft._SyncObj__setCurrentTerm(candidate.term + 1, "c:1")
    raft._SyncObj__setState(library.CANDIDATE)
    raft._SyncObj__votesCount = 1
    for _ in range(4):
        candidate.receive("d:1", encode(VoteReply(candidate.term)))
    assert candidate.role is Role.CANDIDATE
    candidate.receive("e:1", encode(VoteReply(candidate.term)))
    assert str(candidate.role) == "leader"


@pytest.mark.parametrize("kind", ["append", "stale", "request_vote", "snapshot"])
@pytest.mark.parametrize("term", [2**40, 2**64 - 1], ids=str)
def test_one_message_does_not_use_up_the_terms(world: Make, kind: str, term: int) -> None:
    """A follower must refuse a message whose term is much higher than its own.

    If it accepted the highest term that it can store, no later election could have a higher term.
    """
    w = world()
    w.elect("a")
    follower = w.engine("b")
    before = follower.term
    message: Any = {
        "append": _append(follower, 1, [], term=term),
        "stale": Stale(term),
        "request_vote": RequestVote(term, 10**6, 1, True),
        "snapshot": SnapshotPart(term, 1, 10**6, 1, 10, 0, b"x", 1, 0.0, None),
    }[kind]
    with pytest.raises(MessageError, match=r"term \d+ is more than|Expected `int` <="):
        follower.receive("c:1", encode(message))
    assert follower.term <= before + TERM_STEP_MAX
    for _ in range(3):  # afterwards, the members must still elect a leader that can append entries
        w.settle(10.0)
        assert w.submit() is not None
    w.settle(10.0)
    assert all(w.engine(name).term < 2**33 for name in "abc")


def test_a_member_that_is_many_terms_behind_catches_up_step_by_step(world: Make) -> None:
    w = world()
    w.elect("a")
    far = 5 * TERM_STEP_MAX
    for name in "ab":
        w.engine(name).elections.on_stale("x:1", Stale(far))
    w.settle(20.0)
    assert w.submit() is not None
    w.settle(20.0)
    assert min(w.engine(name).term for name in "abc") > far


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


@pytest.mark.parametrize("error", [MemoryError(), ValueError("a defect of the state machine")])
def test_d11_an_apply_that_raises_on_one_member_stops_it_and_is_not_counted(
    world: Make, error: Exception
) -> None:
    w = world()
    w.elect("a")
    machine = w["b"].machine
    calls = []

    def apply(payload: bytes, **keywords: Any) -> None:
        calls.append(keywords["index"])
        raise error

    machine.apply = apply
    first, second = w.submit(), w.submit()
    assert w.run(1, lambda: w["b"].stopped != "")
    assert w["b"].stopped == f"entry {first} was not applied: {type(error).__name__}: {error}"
    assert calls == [first], "what follows is not applied over a gap"
    assert w.engine("b").applied_index < first
    assert w.run(1, lambda: w.engine("a").applied_index >= second)


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
    leader.shared.log.add(
        bytes((kind,)) + pickle.dumps(["add", "x:1"]), leader.shared.log.last_index + 1, leader.term
    )
    w["a"].wake()
    w.run(0.5)
    stopped = [member for member in w.members.values() if "kind" in member.stopped]
    assert len(stopped) >= 2  # the leader, and each follower that already knows that the entry is committed
    assert all(member.engine.applied_index == w.engine("a").shared.log.last_index - 1 for member in stopped)


def test_d12_d13_d23_d27_commands_are_not_forwarded(world: Make) -> None:
    w = world()
    w.elect("a")
    with pytest.raises(AssertionError, match="not forwarded"):
        w.engine("b").shared.library._applyCommand(b"x", None)
    assert w.engine("b").append(b"x", term=w.engine("b").term) is None
    assert w.engine("a").append(b"x", term=w.engine("a").term - 1) is None


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
        w.cut("a", other)  # over a new link, the leader begins at the end of its log, and must go back
    w.run(1)
    w.logging = True
    w.heal()
    assert w.run(2, lambda: w.engine("a").leader is not None)
    w.settle(2)
    resets = [m for a, _, m in w.log if a == "a:1" and isinstance(m, AppendReply) and m.state == RESET]
    assert 1 <= len(resets) <= 4


def test_d20_no_flood_while_a_peer_needs_an_image_that_is_not_there(world: Make) -> None:
    w = world()
    w.elect("a")
    for _ in range(20):
        w.submit()
    w.settle()
    leader = w.engine("a")
    leader.shared.log.trim(leader.applied_index - 2)
    progress = leader.leading.progress["b:1"]
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
    w.drop_filter = lambda a, b, m: isinstance(m, Append) and b == "c:1"  # no Append message reaches c
    w.start("c")
    w.run(0.2)
    learner = w.engine("c")
    assert learner.role is Role.LEARNER
    last = w.engine("a").shared.log.last_index
    learner.receive("b:1", encode(PreVote(99, last + 100, 98)))
    learner.receive("b:1", encode(RequestVote(99, last + 100, 98, True)))
    assert not [m for a, _, m in w.log if a == "c:1" and isinstance(m, PreVoteReply | VoteReply)]
    # The leader and the learner alone must not commit, because they are no majority of the voters.
    w.crash(w["b"])
    w.drop_filter = None
    commit = w.engine("a").commit_index
    index = w.submit("a")
    w.run(0.25)
    assert learner.shared.log.last_index >= (index or 0)
    assert w.engine("a").commit_index == commit
    w.start("b")
    w.run(5, lambda: w.leader is not None)
    w.submit()
    assert w.run(3, lambda: learner.role is not Role.LEARNER)
    w.settle()
    assert w["c"].machine.applied == w["a"].machine.applied
    assert w["c"].disk.vote[1] is not None


def test_first_start_needs_every_member_once_and_names_whom_it_waits_for(world: Make) -> None:
    w = world(started=False)
    w.start("a", "b")
    w.run(3)
    assert w.leader is None
    assert w.engine("a").greetings.waiting_for == ("c:1",)
    assert w.engine("a").role is Role.LEARNER
    w.start("c")
    w.settle()
    assert w.engine("a").greetings.waiting_for == ()
    # After the group was created, a majority of the members is enough for a start.
    for member in list(w.members.values()):
        w.crash(member)
    w.run(0.5)
    w.start("a", "c")
    assert w.run(3, lambda: w.leader is not None)


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

    def fail(wanted: MakeImage) -> None:
        attempts.append(w.now)
        w.at(0.01, member.engine.images.failed, "no room")

    member.make_image = fail
    for _ in range(400):
        w.submit(size=100)
        w.run(0.1)
    assert 3 <= len(attempts) <= 5
    assert attempts[2] - attempts[1] > 1.5 * (attempts[1] - attempts[0])


def test_d28_a_failed_snapshot_is_tried_again_although_no_entry_follows(world: Make) -> None:
    """A snapshot that fails must be tried again after a pause, even if the journal does not grow.

    In this test, a member makes a snapshot when its journal is twice as large as the last snapshot.
    """
    w = world(compact_bytes=1000)
    member, attempts = w.elect("a"), []
    while (member.image() or (0, 0, 0))[2] < 4000:
        w.submit(size=100)
        w.run(0.01)
    w.run(1)

    def fail(wanted: MakeImage) -> None:
        attempts.append(w.now)
        w.at(0.01, member.engine.images.failed, "no room")

    member.make_image = fail
    while not attempts:
        w.submit(size=100)
        w.run(0.01)
    w.run(0.1)
    before = member.engine.status()["journal_bytes"]
    assert before > 8000  # the failed snapshot has not shortened the journal
    assert w.run(6, lambda: len(attempts) == 2)
    assert 5.0 <= attempts[1] - attempts[0] < 6.0


def test_a_member_that_stops_does_not_say_that_nothing_was_written(world: Make) -> None:
    w = world()
    leader = w.elect("a").engine
    w.submit()
    w.settle()
    leader.stop()
    with pytest.raises(ChangeRefused, match="this member stops"):
        leader.images.save()


def test_no_entry_is_appended_while_a_snapshot_is_restored(world: Make) -> None:
    """While a snapshot is restored, no entry may be appended.

    The restored snapshot gets the log's next index. If an entry already had this index, the log would contain
    an entry that was made for the former state. Then the member would have to stop.

    In this test, a slow disk ends the leadership of the only member during the restore. The member must not
    be elected again before the restore ends, because a new leader appends an entry.
    """
    w = world(members=1)
    leader = w.leader.engine
    w.submit()
    w.settle()
    leader.images.may_restore()
    leader.shared.restoring = True
    last = leader.shared.log.last_index
    assert w.submit() is None
    with pytest.raises(ChangeNotYet, match="a snapshot is being restored"):
        leader.membership.add_member("d:1")
    leader.leading.step_down("journal stalls")
    w.run(5)
    assert leader.shared.log.last_index == last
    leader.shared.restoring = False
    assert w.run(5, lambda: leader.leads)


def test_a_restore_stops_the_member_rather_than_keep_an_entry_of_the_former_state(world: Make) -> None:
    w = world(members=1)
    member = w.leader
    index, term, configuration = member.engine.images.restore_at(0)
    w.submit()
    w.settle()
    assert member.engine.shared.log.last_index == index
    member.engine.images.restored(index, term, configuration, pytest.fail)
    assert member.stopped == f"snapshot {index} cannot be restored: the log grew to {index} meanwhile"


def test_d7_the_only_member_commits_no_entry_that_its_disk_lacks_when_it_is_elected(world: Make) -> None:
    """A slow disk ends the leadership of the only member, and the member is elected again.

    Meanwhile a client's entry is still being written. The member must not apply the entry before the disk has
    it, because a power cut could lose an entry that the client knows to be applied.
    """
    for seed in range(1, 11):
        w = world(seed, members=1)
        member = w.leader
        engine, log, disk = member.engine, member.engine.shared.log, member.disk
        w.submit()
        w.settle()
        frames = len(disk.frames)
        member.write_delay = 1.4
        assert w.run(1.0, lambda disk=disk, frames=frames: len(disk.frames) > frames)
        w.run(0.9)
        member.write_delay = 2.0
        index, term = w.submit(), engine.term
        assert w.run(1.0, lambda engine=engine: engine.status()["storage_stalled"])
        assert w.run(1.0, lambda engine=engine, term=term: engine.term > term)
        assert log.durable_index < index
        member.write_delay = None
        while log.durable_index < index:
            w.run(0.001)
            assert engine.applied_index <= log.durable_index
        w.settle()
        assert member.machine.applied[-1][0] == index


def test_d14_snapshots_shorten_the_log_and_bring_a_late_member_up(world: Make) -> None:
    w = world(compact_bytes=20_000)
    w.elect("a")
    w.crash(w["c"])
    for _ in range(3000):
        w.submit(size=1000)
        if w.rng.random() < 0.1:
            w.run(0.01)
    assert w.run(5, lambda: w.engine("a").shared.log.base_index > 100)
    w.start("c")
    w.settle(10)
    assert w.stat["installs"] >= 1
    assert w["c"].machine.applied == w["a"].machine.applied


def test_an_image_that_could_not_be_stored_is_asked_for_again_with_a_growing_pause(world: Make) -> None:
    """A follower that cannot store a snapshot asks for it again, with longer and longer pauses.

    If it did not ask, the leader would send the snapshot again only after half a minute.
    """
    w = world(compact_bytes=20_000)
    w.elect("a")
    w.crash(w["c"])
    for _ in range(3000):
        w.submit(size=1000)
        if w.rng.random() < 0.1:
            w.run(0.01)
    assert w.run(5, lambda: w.engine("a").shared.log.base_index > 100)
    w.start("c")
    late, tries = w["c"], []
    install = late.install_image

    def fail(wanted: InstallImage) -> None:
        tries.append(w.now)
        if len(tries) < 4:
            w.at(0.01, late.engine.images.install_failed, "no room")
        else:
            install(wanted)

    late.install_image = fail
    assert w.run(9, lambda: len(tries) == 4)
    assert 1.0 < tries[1] - tries[0] < 2.0
    assert tries[2] - tries[1] > 1.5 * (tries[1] - tries[0])
    assert tries[3] - tries[2] > 1.5 * (tries[2] - tries[1])
    w.settle(10)
    assert late.machine.applied == w["a"].machine.applied
    # After the success, the next pause is short again.
    assert w.engine("c").images._install_retry_s == INSTALL_RETRY_S[0]


def test_a_leader_says_what_is_committed_before_it_applies_it(world: Make) -> None:
    """A leader sends a new commit index before it applies the entry.

    So all members apply a large entry at the same time. A client of a follower need not wait until the leader
    has applied the entry.
    """
    w = world()
    leader = w.elect("a")
    w.settle()
    events: list[str] = []
    apply, send = leader.machine.apply, leader.send

    def applied(payload: bytes, *, index: int, term: int, live: bool) -> None:
        events.append("applied")
        apply(payload, index=index, term=term, live=live)

    def sent(peer: str, data: bytes) -> bool:
        message = decode(data)
        if isinstance(message, Append) and not message.entries and not message.beat:
            events.append(f"{peer} told {message.commit} contact={message.age is not None}")
        return bool(send(peer, data))

    leader.machine.apply, leader.send = applied, sent
    index = w.submit()
    assert index is not None
    assert w.run(1.0, lambda: "applied" in events)
    assert events == [f"b:1 told {index} contact=True", f"c:1 told {index} contact=True", "applied"]
    w.run(1.0)
    assert len(events) == 3  # no follower got the new commit index twice


def test_a_snapshot_reply_of_another_image_moves_nothing(world: Make) -> None:
    w = world()
    w.elect("a")
    leader = w.engine("a")
    reply = SnapshotReply(leader.term, 77, 10, False, 0.0, leader.shared.clock())
    leader.receive("b:1", encode(reply))
    assert leader.leading.progress["b:1"].transfer is None


def test_d34_what_is_under_way_to_a_stopped_peer_is_bounded(world: Make) -> None:
    w = world()
    w.elect("a")
    w.settle()
    w["b"].write_delay = float("inf")
    for _ in range(60):
        w.submit(size=500_000)
        w.run(0.005)
    assert w.engine("a").leading.progress["b:1"].unacknowledged <= WINDOW_BYTES + (1 << 20)
    w["b"].resume_disk()
    w.settle()


def test_a_disk_that_works_again_is_trusted_even_under_constant_load(world: Make) -> None:
    w = world()
    w.elect("a")
    follower = w["b"]
    follower.write_delay = float("inf")
    w.submit()
    w.run(1.5)
    assert follower.engine.status()["storage_stalled"]
    follower.resume_disk()
    follower.write_delay = 0.05  # so slow that at each moment a write is in progress
    for _ in range(60):
        w.submit()
        w.run(0.01)
    assert len(follower.engine.shared.log._unwritten) > 0
    assert not follower.engine.status()["storage_stalled"]


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
    follower.changed = lambda: told.append(
        follower.engine.contact_age() < follower.engine.greetings.contact_limit
    )
    w.run(0.3)
    assert told == []
    follower.paused_until = w.now + 0.35  # the follower hangs for longer than an election timeout
    w.run(1.0)
    assert False in told
    assert told[-1] is True
    assert follower.engine.term == w.engine("a").term == 1


def test_d25_an_emptied_members_echo_dates_no_contact(world: Make) -> None:
    w = world()
    w.elect("a")
    w.submit()
    w.settle()
    w.crash(w["c"], wipe=True)
    w.run(0.5)
    w.drop_filter = lambda a, b, m: isinstance(m, Append) and b == "c:1" and bool(m.entries)
    w.start("c")
    w.run(1)
    leader = w.engine("a")
    assert w.engine("c").role is Role.LEARNER
    assert leader.in_contact()
    w.block(("b", "a"), ("a", "b"))
    w.run(TIMEOUT_S + 0.05)
    assert leader.contact_age() > TIMEOUT_S  # the learner's answers do not prove contact
    assert not leader.in_contact()


def test_d35_a_leader_without_a_committed_entry_of_its_term_changes_nothing(world: Make) -> None:
    w = world()
    w.elect("a")
    w.drop_filter = lambda a, b, m: isinstance(m, Append) and bool(m.entries)
    assert w.run(10, lambda: w.leader is None or w.leader.engine.membership.hand_over() or True)
    for name in "bc":
        w.engine(name).shared.stand_now()
    deaf = None
    for _ in range(400):
        w.run(0.01)
        deaf = next((w.engine(n) for n in "abc" if w.engine(n).role is Role.LEADER), None)
        if deaf is not None and not deaf.leads:
            break
    assert deaf is not None
    assert not deaf.leads
    with pytest.raises(ChangeRefused, match="own term"):
        deaf.membership.add_member("d:1")


def test_the_library_is_checked_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    library.check_library()
    monkeypatch.delattr(pysyncobj_seam.module.SyncObj, "_SyncObj__sendNextNodeIdx")
    with pytest.raises(RaftStartError, match=r"0\.3\.17.*without _SyncObj__sendNextNodeIdx"):
        library.check_library()
    monkeypatch.undo()
    monkeypatch.setattr(pysyncobj_seam.module, "VERSION", "0.3.18")
    with pytest.raises(RaftStartError, match=r"found 0\.3\.18"):
        library.check_library()


def test_the_installed_library_is_left_as_it_is() -> None:
    import pysyncobj.syncobj as stock

    assert stock is not pysyncobj_seam.module
    assert stock.SyncObj is not pysyncobj_seam.module.SyncObj
    assert stock.pickle.loads(stock.pickle.dumps((1, "x"))) == (1, "x")
    with pytest.raises(AssertionError, match="pickle"):
        pysyncobj_seam.module.pickle.loads(b"")


# ---- each fix is necessary: without it, its scenario fails


def _d1_off(patch: pytest.MonkeyPatch) -> None:
    original = Following.on_append

    def on_append(following: Any, peer: str, m: Append) -> None:
        log, term = following.shared.log, following.shared.library.term
        if m.entries and log.base_index <= m.prev_index < log.last_index and m.term >= term:
            log.deleteEntriesFrom(m.prev_index + 1 - log.base_index)
        original(following, peer, m)

    patch.setattr(Following, "on_append", on_append)


def _d2_off(patch: pytest.MonkeyPatch) -> None:
    original = Images.on_part

    def on_part(images: Any, peer: str, m: SnapshotPart) -> None:
        images._following.accept_leader(peer, m.term, min(m.last, images.shared.log.last_index))
        original(images, peer, m)

    patch.setattr(Images, "on_part", on_part)


def _d3_off(patch: pytest.MonkeyPatch) -> None:
    original = Leading.on_append_reply

    def on_reply(leading: Any, peer: str, m: AppendReply) -> None:
        original(leading, peer, msgspec.structs.replace(m, term=leading.shared.library.term))

    patch.setattr(Leading, "on_append_reply", on_reply)


def _d4_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Shared, "hears_leader", lambda shared, now: False)


def _d5_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Elections,
        "on_vote_reply",
        lambda elections, peer, m: elections.shared.library.vote(elections.shared.clock(), peer, term=m.term),
    )


def _d6_off(patch: pytest.MonkeyPatch) -> None:
    original = EffectQueue.send
    patch.setattr(
        EffectQueue,
        "send",
        lambda effects, peer, m: None if isinstance(m, Stale) else original(effects, peer, m),
    )


def _d7_off(patch: pytest.MonkeyPatch) -> None:
    always = property(lambda log: log.last_index, lambda log, value: None)
    patch.setattr(RaftLog, "durable_index", always, raising=False)


def _d7_election_off(patch: pytest.MonkeyPatch) -> None:
    """Let a tick that elects the only voter commit its whole log while a client's entry is being written."""
    real = library.Library.tick

    def tick(self: Any, now: float, *, commit_limit: int | None) -> None:
        real(self, now, commit_limit=commit_limit)
        log = self.rules.shared.log
        # The entry of this election itself is not durable yet, either.
        is_under_way = log.last_index - log.durable_index > 1
        if commit_limit is None and self.state == library.LEADER and is_under_way:
            self.commit(log.last_index)

    patch.setattr(library.Library, "tick", tick)


def _d8_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(part_module, "FALLBACK", 30.0 / TIMEOUT_S)


def _d9_off(patch: pytest.MonkeyPatch) -> None:
    """Switch off the repair of PySyncObj's defect D9.

    A replaced leader then believes that it still has contact with a majority.
    """
    patch.setattr(Engine, "in_contact", lambda engine: True)


def _d10_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Greetings, "_check_cluster", lambda greetings, peer, hello: None)


def _d11_off(patch: pytest.MonkeyPatch) -> None:
    def applying(applier: Any, entry: Committed) -> Steps[None]:
        if entry.payload is not None:
            with contextlib.suppress(Exception):
                applier._machine.apply(entry.payload, index=entry.index, term=entry.term, live=True)
        yield from ()

    patch.setattr(Applier, "_applying", applying)


def _d12_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(library.Library, "_applyCommand", library.SyncObj._applyCommand)


def _d16_off(patch: pytest.MonkeyPatch) -> None:
    def on_part(images: Any, peer: str, m: SnapshotPart) -> None:
        images._following.accept_leader(peer, m.term)
        images.shared.effects.add(InstallImage(m.index, m.index_term, m.configuration, bytearray(m.data)))

    patch.setattr(Images, "on_part", on_part)
    patch.setattr(Images, "installed", Images._replace_state)


def _d17_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leading, "link_changed", lambda leading, peer: None)


def _d18_off(patch: pytest.MonkeyPatch) -> None:
    original = Progress.rewind
    patch.setattr(Progress, "rewind", lambda progress, first: original(progress, progress.next - 1))


def _d19_off(patch: pytest.MonkeyPatch) -> None:
    original = Leading.on_append_reply

    def on_reply(leading: Any, peer: str, m: AppendReply) -> None:
        original(leading, peer, m)
        if m.state == RESET:
            leading.progress[peer].next = m.index

    patch.setattr(Leading, "on_append_reply", on_reply)


def _d20_off(patch: pytest.MonkeyPatch) -> None:
    def flood(leading: Any, peer: str, progress: Progress, now: float) -> None:
        for _ in range(100):
            leading.shared.effects.send(
                peer, SnapshotPart(leading.shared.library.term, 0, 1, 0, 0, 0, b"", 0, now, None)
            )

    patch.setattr(Leading, "_send_image", flood)


def _d22_off(patch: pytest.MonkeyPatch) -> None:
    original = Progress.acknowledged

    def acknowledged(progress: Progress, index: int) -> None:
        original(progress, index)
        progress.next = index + 1

    patch.setattr(Progress, "acknowledged", acknowledged)


def _d25_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Shared, "may_vote", property(lambda shared: True))


def _d25_echo_off(patch: pytest.MonkeyPatch) -> None:
    original = QuorumContact.accepted_by
    patch.setattr(
        QuorumContact,
        "accepted_by",
        lambda contact, peer, *, clock, echo, voter: original(
            contact, peer, clock=clock, echo=echo, voter=True
        ),
    )


class _Own(msgspec.Struct):
    """A message by which PySyncObj itself replicates entries, in PySyncObj's format."""

    content: dict[str, Any]
    term: int = 0


def _d26_off(patch: pytest.MonkeyPatch) -> None:
    """Switch off the repair of PySyncObj's defect D26.

    PySyncObj's own code then replicates the entries, over the links of the tests.
    """
    stock = library.SyncObj
    ours, known = library._Port.send, (messages.encode, messages.decode)
    receive = Engine.take

    def send(port: Any, node: Any, message: dict[str, Any]) -> bool:
        if message["type"] in ("append_entries", "next_node_idx"):
            return bool(port.library.rules.shared.effects.send(node.id, _Own(message)))
        return ours(port, node, message)

    def write(message: Any) -> bytes:
        return b"\xff" + pickle.dumps(message.content) if isinstance(message, _Own) else known[0](message)

    def read(data: bytes) -> Any:
        return _Own(pickle.loads(data[1:])) if data[:1] == b"\xff" else known[1](data)

    def take(engine: Any, peer: str, message: Any) -> None:
        if isinstance(message, _Own):
            engine.shared.library._receive(engine.shared.clock(), peer, message.content)
        else:
            receive(engine, peer, message)

    patch.setattr(pysyncobj_seam.module, "pickle", stock_pickle)
    patch.setattr(library._Port, "send", send)
    patch.setattr(messages, "encode", write)
    patch.setattr(messages, "decode", read)
    patch.setattr(Engine, "take", take)
    for name in ("_SyncObj__sendAppendEntries", "_SyncObj__sendNextNodeIdx"):
        patch.setattr(library.Library, name, getattr(stock, name))
    patch.setattr(Leading, "quorum_index", lambda leading: leading.shared.log.last_index)


def _d27_off(patch: pytest.MonkeyPatch) -> None:
    """Switch off the repair of PySyncObj's defect D27.

    A leader then appends proposals even if they were made for an earlier term.
    """
    original = Engine.append

    def append(engine: Any, payload: bytes, *, term: int) -> int | None:
        return original(engine, payload, term=engine.term)

    patch.setattr(Engine, "append", append)


def _d28_off(patch: pytest.MonkeyPatch) -> None:
    original = Images.failed

    def failed(images: Any, error: str) -> None:
        original(images, error)
        images._retry_at = -math.inf

    patch.setattr(Images, "failed", failed)


def _d31_off(patch: pytest.MonkeyPatch) -> None:
    original = Engine._committed

    def committed(engine: Any) -> list[Committed]:
        try:
            return original(engine)
        except StopMember:
            engine._given = [Committed(engine.applied_index + 1, 0, None, live=True)]
            return list(engine._given)

    patch.setattr(Engine, "_committed", committed)


def _d34_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Progress, "window_open", property(lambda progress: True))


def _d35_off(patch: pytest.MonkeyPatch) -> None:
    def change(membership: Any, configuration: Any) -> int:
        index: int = membership._leading.add(CONFIGURATION + encode_configuration(configuration))
        membership.adopt_configuration()
        return index

    patch.setattr(Membership, "_change", change)


def _d36_off(patch: pytest.MonkeyPatch) -> None:
    """Switch off the repair of PySyncObj's defect D36.

    A new configuration then takes effect only when its entry is committed.
    """
    original = Shared.adopt_configuration

    def adopt(shared: Any) -> None:
        log, held = shared.log, shared.log._configurations
        newest = log.configuration_index, log.configuration
        if log.configuration_index > log.getRaftCommitIndex() and len(held) > 1:
            log.configuration_index, log.configuration = held[0]
        original(shared)
        log.configuration_index, log.configuration = newest

    patch.setattr(Shared, "adopt_configuration", adopt)


SWITCHED_OFF: list[tuple[str, Callable[[pytest.MonkeyPatch], None], Callable[..., None] | str]] = [
    ("d1", _d1_off, "d1_older_entries_come_again"),
    ("d1", _d1_off, "d1_committed_entries_stay"),
    ("d2", _d2_off, "d2_piece_of_a_snapshot_commits_nothing"),
    ("d3", _d3_off, "d3_answers_of_another_term_do_not_count"),
    ("d4", _d4_off, "d4_vote_request_beside_a_leader_is_ignored"),
    ("d5", _d5_off, test_d5_a_vote_counts_once_for_each_voter),
    ("d6", _d6_off, "d6_messages_of_an_older_term_are_answered"),
    ("d7", _d7_off, "d7_acknowledged_is_durable"),
    ("d7", _d7_off, "d7_a_single_member_waits_for_its_disk"),
    (
        "d7",
        _d7_election_off,
        test_d7_the_only_member_commits_no_entry_that_its_disk_lacks_when_it_is_elected,
    ),
    ("d8", _d8_off, "d8_leader_without_a_majority_steps_down"),
    ("d9", _d9_off, "d9_replaced_leader_is_not_in_contact"),
    ("d10", _d10_off, "d10_strangers_change_nothing"),
    (
        "d11",
        _d11_off,
        functools.partial(
            test_d11_an_apply_that_raises_on_one_member_stops_it_and_is_not_counted,
            error=ValueError("a defect"),
        ),
    ),
    ("d12", _d12_off, test_d12_d13_d23_d27_commands_are_not_forwarded),
    ("d16", _d16_off, "d16_older_snapshot_is_not_installed"),
    ("d17", _d17_off, "d17_a_peer_counts_anew_after_each_link"),
    ("d18", _d18_off, test_d18_a_long_conflicting_tail_is_replaced_in_a_few_messages),
    ("d19", _d19_off, "d19_reset_beyond_the_log_is_clamped"),
    ("d20", _d20_off, test_d20_no_flood_while_a_peer_needs_an_image_that_is_not_there),
    ("d22", _d22_off, lambda world: test_d22_an_acknowledgement_does_not_rewind_what_is_under_way()),
    ("d25", _d25_off, test_d25_an_emptied_member_neither_votes_nor_counts_until_it_has_caught_up),
    ("d25 echo", _d25_echo_off, test_d25_an_emptied_members_echo_dates_no_contact),
    ("d26", _d26_off, "d26_large_entry_travels_in_one_message"),
    ("d27", _d27_off, test_d12_d13_d23_d27_commands_are_not_forwarded),
    ("d28", _d28_off, test_d28_a_failing_snapshot_is_tried_again_with_a_growing_pause),
    (
        "d31",
        _d31_off,
        functools.partial(test_d31_version_and_unknown_entries_stop_the_member_and_lose_nothing, kind=3),
    ),
    ("d34", _d34_off, test_d34_what_is_under_way_to_a_stopped_peer_is_bounded),
    ("d35", _d35_off, "d35_second_change_waits_for_the_first"),
    ("d35", _d35_off, test_d35_a_leader_without_a_committed_entry_of_its_term_changes_nothing),
    ("d36", _d36_off, "d36_configuration_is_in_force_from_append_on"),
    ("d37", _d35_off, "d37_leader_does_not_remove_itself"),
]


@pytest.mark.parametrize(
    ("switch_off", "scenario"),
    [case[1:] for case in SWITCHED_OFF],
    ids=[f"{name}-{position}" for position, (name, _, _) in enumerate(SWITCHED_OFF)],
)
def test_a_fix_that_is_switched_off_is_caught_by_its_scenario(
    world: Make,
    switch_off: Callable[[pytest.MonkeyPatch], None],
    scenario: Callable[..., None] | str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    switch_off(monkeypatch)
    # A defect of the raft library may raise any of these exceptions. Our own checks raise AssertionError.
    wrong = (AssertionError, ValueError, EOFError, pickle.UnpicklingError, pytest.fail.Exception)
    played = functools.partial(play, name=scenario) if isinstance(scenario, str) else scenario
    with pytest.raises(wrong):
        played(world)
