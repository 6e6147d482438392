"""Bugs that tests plant in the nameserver.

Each bug breaks a rule, and a run of the simulator must find the bug.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from routekeeper.nameserver import handlers, liveness
from routekeeper.nameserver.commands import Evict, Update, encode_command, format_of
from routekeeper.nameserver.disk.files import StorageFull
from routekeeper.nameserver.liveness import Liveness
from routekeeper.nameserver.raft.consensus.contact import QuorumContact
from routekeeper.nameserver.raft.consensus.effects import EffectQueue
from routekeeper.nameserver.raft.consensus.elections import Elections
from routekeeper.nameserver.raft.consensus.engine import Engine
from routekeeper.nameserver.raft.consensus.following import Following
from routekeeper.nameserver.raft.consensus.log import RaftLog, Recovered
from routekeeper.nameserver.raft.consensus.membership import Membership
from routekeeper.nameserver.raft.consensus.messages import Append, AppendReply, PreVote, RequestVote
from routekeeper.nameserver.raft.library import LEADER, Library
from routekeeper.nameserver.raft.node import recovery
from routekeeper.nameserver.raft.node.images import ImageFiles
from routekeeper.nameserver.raft.node.member import RaftMember
from routekeeper.nameserver.raft.storage.identity import DataDirectory
from routekeeper.nameserver.raft.storage.images import SnapshotFile
from routekeeper.nameserver.raft.storage.journal import Journal, Replay
from routekeeper.nameserver.replicated import Replicated, failure_detector, mode, proposer, reader
from routekeeper.nameserver.replicated.barriers import Barriers
from routekeeper.nameserver.replicated.failure_detector import FailureDetector
from routekeeper.nameserver.replicated.leader import Leader
from routekeeper.nameserver.replicated.peer_messages import BrokerContact, Deferral, Report
from routekeeper.nameserver.replicated.proposals import ProposalBook
from routekeeper.nameserver.replicated.reporter import Reporter
from routekeeper.nameserver.routes import table, updates
from routekeeper.nameserver.routes.entries import Record, Share
from routekeeper.nameserver.routes.store import RouteStore
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.routes.topics import Draft
from routekeeper.nameserver.routes.view import RouteView
from routekeeper.nameserver.types import Answer, LeaveReason, Request
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.steps import Steps, in_chunks

from .disk import DiskFile, DiskFiles
from .oracles import Oracle
from .scenario import run_seed

Plant = Callable[[pytest.MonkeyPatch], None]


def apply_ignores_the_revision(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RouteTable, "moved", lambda table, command: False)


def an_update_does_not_notice_that_a_topic_was_dropped(patch: pytest.MonkeyPatch) -> None:
    def unaware(store: RouteStore, command: Update) -> Update:
        return msgspec.structs.replace(command, topic_count=len(store.topics.of_name(command.broker_name)))

    for name in ("apply_few", "apply_update", "topic_dropped"):
        real = getattr(updates, name)
        patch.setattr(table, name, lambda store, c, real=real: real(store, unaware(store, c)))


def a_deletion_of_nothing_is_answered_without_the_log(patch: pytest.MonkeyPatch) -> None:
    real = handlers._HANDLERS[RequestCode.DELETE_TOPIC_IN_NAMESRV]

    def delete(view: RouteView, request: Request, *arguments: Any) -> Any:
        if view.topic(request.ext_fields["topic"]) is None:
            return Answer()
        return real(view, request, *arguments)

    patch.setitem(handlers._HANDLERS, RequestCode.DELETE_TOPIC_IN_NAMESRV, delete)


def removal_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RouteStore, "moved_at", lambda store, kind, key: store.present(kind, key) or 0)


def late_copies_apply(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Liveness, "is_late", lambda *_, **__: False)


def nobody_is_believed_to_have_gone_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(liveness, "REPEATED_AFTER_S", math.inf)


def no_change_is_answered_without_contact(patch: pytest.MonkeyPatch) -> None:
    real = Reporter.may_vouch

    def always(reporter: Any, broker: Any, origin: Any, *, in_contact: bool, lease_s: float) -> bool:
        return real(reporter, broker, origin, in_contact=True, lease_s=lease_s)

    patch.setattr(Reporter, "may_vouch", always)


def contact_is_dated_by_arrival(patch: pytest.MonkeyPatch) -> None:
    real = Following._take_statement

    def heard(following: Any, leader: str, m: Append) -> None:
        real(following, leader, m)
        if m.age is not None:
            following._contact.stated_by_leader(
                leader, clock=m.clock, echo=following._clock(), age=m.age, commit=m.commit
            )

    patch.setattr(Following, "_take_statement", heard)


def contact_counts_before_the_commit_index_is_applied(patch: pytest.MonkeyPatch) -> None:
    real = QuorumContact.applied
    patch.setattr(QuorumContact, "applied", lambda contact, index: real(contact, 1 << 60))


def barriers_are_joined_that_were_sent_before(patch: pytest.MonkeyPatch) -> None:
    real = Barriers.join

    def join(barriers: Any) -> int:
        under_way = barriers.sent
        return under_way if under_way > barriers._confirmed else real(barriers)

    patch.setattr(Barriers, "join", join)


def reads_join_what_was_joined_last(patch: pytest.MonkeyPatch) -> None:
    """Let a read join the latest barrier even if the leader has already sent that barrier."""
    real = reader.Reader.join

    def join(keeper: Any, passed: Any) -> int:
        latest: int = keeper._joined_latest
        if passed is keeper._joined_by and latest in keeper._waiting:
            return latest
        return real(keeper, passed)

    patch.setattr(reader.Reader, "join", join)


def reads_join_what_was_refused(patch: pytest.MonkeyPatch) -> None:
    """Let reads join a barrier that failed before it was sent, so that these reads are never answered."""
    real = reader.Reader._end_barrier

    def end(keeper: Any, number: int, error: Any) -> None:
        latest = keeper._joined_latest
        real(keeper, number, error)
        keeper._joined_latest = latest

    patch.setattr(reader.Reader, "_end_barrier", end)


def echoes_of_another_term_count(patch: pytest.MonkeyPatch) -> None:
    """Let a leader count messages of another term as a proof that the senders still follow this leader."""
    real = Engine.take

    def receive(engine: Any, peer: str, message: Any) -> None:
        library = engine.shared.library
        another = isinstance(message, AppendReply | PreVote) and message.term != library.term
        if another and library.state == LEADER:
            engine._contact.accepted_by(peer, clock=engine._clock(), echo=engine._clock(), voter=True)
        real(engine, peer, message)

    patch.setattr(Engine, "take", receive)


def eviction_is_forwarded_by_a_deposed_leader(patch: pytest.MonkeyPatch) -> None:
    def evict(leader: Any, eviction: Evict) -> None:
        deadline = asyncio.get_running_loop().time() + 10.0
        sequence = leader._book.add(encode_command(eviction), deadline=deadline)
        leader._observer.evicting(eviction, sequence)
        leader._work_soon()

    patch.setattr(Leader, "evict", evict)


def closed_evidence_of_any_revision_counts(patch: pytest.MonkeyPatch) -> None:
    real = failure_detector.judge

    def judge(
        record: Record, contacts: Iterable[BrokerContact | None] | None, **named: float
    ) -> LeaveReason | None:
        if contacts is not None:
            contacts = [
                msgspec.structs.replace(contact, closed_revision=record.revision)
                if contact is not None and contact.closed_at is not None
                else contact
                for contact in contacts
            ]
        return real(record, contacts, **named)

    patch.setattr(failure_detector, "judge", judge)


def connections_of_others_do_not_count(patch: pytest.MonkeyPatch) -> None:
    real = failure_detector.judge

    def judge(
        record: Record, contacts: Iterable[BrokerContact | None] | None, **named: float
    ) -> LeaveReason | None:
        if contacts is not None:
            contacts = [contact for contact in contacts if contact is None or not contact.connected]
        return real(record, contacts, **named)

    patch.setattr(failure_detector, "judge", judge)


def hearings_of_others_do_not_count(patch: pytest.MonkeyPatch) -> None:
    real = FailureDetector.receive

    def receive(keeper: Any, member: str, report: Report, *, clock: float) -> Any:
        contacts = tuple(
            msgspec.structs.replace(contact, heard_at=report.clock - 2.0) for contact in report.contacts
        )
        return real(keeper, member, msgspec.structs.replace(report, contacts=contacts), clock=clock)

    patch.setattr(FailureDetector, "receive", receive)


def crashes_are_not_evidence(patch: pytest.MonkeyPatch) -> None:
    real = Replicated.closed
    patch.setattr(Replicated, "closed", lambda mode, origin, *, by_us: real(mode, origin, by_us=True))


def a_report_counts_beyond_its_link(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leader, "_linked_anew", lambda leader, members: set())


def acknowledgement_comes_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    always = property(lambda log: log.last_index, lambda log, value: None)
    patch.setattr(RaftLog, "durable_index", always, raising=False)


def the_only_voter_commits_its_whole_log_when_it_is_elected(patch: pytest.MonkeyPatch) -> None:
    """Let a tick that elects the only voter also commit entries that are not in the journal yet.

    The first start of a group of one shows this, because its first entry is then not in the journal.
    """
    real = Library.tick

    def tick(library: Any, now: float, *, commit_limit: int | None) -> None:
        real(library, now, commit_limit=commit_limit)
        if commit_limit is None and library.state == LEADER:
            library.commit(library.rules.shared.log.last_index)

    patch.setattr(Library, "tick", tick)


def _syncs_are_left_out(patch: pytest.MonkeyPatch, of: str) -> None:
    real = DiskFile.sync

    def sync(file: DiskFile) -> None:
        if not file.path.name.startswith(of):
            real(file)

    patch.setattr(DiskFile, "sync", sync)


def frames_of_the_journal_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    real = DiskFiles.open

    def opened(files: DiskFiles, path: Path, **how: bool) -> DiskFile:
        return real(files, path, **(how | {"durable": False}))

    patch.setattr(DiskFiles, "open", opened)


def votes_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    _syncs_are_left_out(patch, "vote")


def the_standing_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    _syncs_are_left_out(patch, "standing")


def images_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    _syncs_are_left_out(patch, "snapshot")


def names_of_segments_and_images_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    real = DiskFiles.sync_directory

    def sync_directory(files: DiskFiles, path: Path) -> None:
        if path.name != "raft":
            real(files, path)

    patch.setattr(DiskFiles, "sync_directory", sync_directory)


def promises_are_not_stored(patch: pytest.MonkeyPatch) -> None:
    """Let a killed member forget its term and its vote."""
    patch.setattr(EffectQueue, "store_vote", lambda effects: None)


def votes_are_given_to_shorter_logs(patch: pytest.MonkeyPatch) -> None:
    """Let a voter accept every candidate's log as complete."""
    for name in ("on_pre_vote", "on_request_vote"):
        real = getattr(Elections, name)

        def asked(elections: Any, peer: str, m: PreVote | RequestVote, real: Any = real) -> None:
            real(elections, peer, msgspec.structs.replace(m, last_index=1 << 40, last_term=1 << 40))

        patch.setattr(Elections, name, asked)


def machines_never_restart(patch: pytest.MonkeyPatch) -> None:
    """Let a member with durability ``journal`` assume that a power cut has lost no entries."""
    patch.setattr(DiskFiles, "boot_id", lambda files: "always the same")


def whoever_lost_power_votes(patch: pytest.MonkeyPatch) -> None:
    """Let a member that lost power vote with the remaining part of its journal."""
    real = DataDirectory.begin

    def begin(directory: DataDirectory) -> None:
        if directory.state.doubtful:
            directory.state = dataclasses.replace(directory.state, voter=True, doubtful=False)
        real(directory)

    patch.setattr(DataDirectory, "begin", begin)


def images_are_read_on_the_loop(patch: pytest.MonkeyPatch) -> None:
    def read_image(images: Any, index: int, offset: int, size: int) -> bytes | None:
        snapshots = images.storage.snapshots
        if images.storage.volatile or snapshots is None:
            return real(images, index, offset, size)
        return snapshots.read(index, offset, size)  # type: ignore[no-any-return]

    real = ImageFiles.read_image
    patch.setattr(ImageFiles, "read_image", read_image)


def what_a_full_disk_took_of_a_frame_is_left_there(patch: pytest.MonkeyPatch) -> None:
    real = Journal._write

    def write(journal: Any, data: bytes) -> None:
        journal._cut = lambda size: None
        try:
            real(journal, data)
        except StorageFull:
            journal._size += len(data) // 3  # the full disk has stored this part of the write
            raise
        finally:
            del journal._cut

    patch.setattr(Journal, "_write", write)


def snapshots_are_encoded_from_the_live_table(patch: pytest.MonkeyPatch) -> None:
    def snapshot(mode: Any) -> Callable[[], bytes]:
        encoders = real(mode), lambda: real(mode)()
        return encoders[1]

    real = Replicated.snapshot
    patch.setattr(Replicated, "snapshot", snapshot)


def what_is_in_a_log_is_decided_again(patch: pytest.MonkeyPatch) -> None:
    def beyond(book: ProposalBook, understood: int) -> tuple[int, ...]:
        waiting = book._waiting.items()
        return tuple(number for number, one in waiting if format_of(one.proposal.command) > understood)

    patch.setattr(ProposalBook, "beyond", beyond)


def what_a_leader_may_take_yet_is_decided_again(patch: pytest.MonkeyPatch) -> None:
    """Let a leader's answer to one copy of a proposal count as the answer to the newest copy."""

    def defer(book: ProposalBook, deferral: Deferral, *, term: int) -> None:
        waiting = book._waiting.get(deferral.sequence)
        if waiting is not None and deferral.boot_id == book.boot_id:
            deferral = msgspec.structs.replace(deferral, attempt=waiting.attempts)
        real(book, deferral, term=term)

    real = ProposalBook.defer
    patch.setattr(ProposalBook, "defer", defer)


def requests_wait_without_a_deadline(patch: pytest.MonkeyPatch) -> None:
    real = Replicated.execute

    async def execute(mode: Any, *arguments: Any, deadline: float) -> Any:
        return await real(mode, *arguments, deadline=deadline + 100.0)

    for module in (reader, proposer, mode):
        patch.setattr(module, "WRITE_DEADLINE_S", 100.0)
    patch.setattr(Replicated, "execute", execute)


# -- fixes of the raft library's defects, switched off; docs/pysyncobj-defects.md explains the D-numbers


def d1_what_was_acknowledged_is_dropped(patch: pytest.MonkeyPatch) -> None:
    """Simulate PySyncObj's defect D1.

    When an old message arrives again, the member removes all entries after this message from its log.
    """
    real = Following.on_append

    def on_append(following: Any, peer: str, m: Append) -> None:
        log, library = following._log, following._library
        real(following, peer, m)
        now_and_then = m.beat and not m.entries and following._clock() % 1.0 < 0.05
        if now_and_then and log.last_index > library.commit_index:
            library._SyncObj__deleteEntriesFrom(log.last_index)

    patch.setattr(Following, "on_append", on_append)


def d8_whoever_knows_a_leader_is_in_contact(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RaftMember, "in_contact", lambda member: member.leader is not None)


def d14_the_journal_behind_an_image_is_dropped(patch: pytest.MonkeyPatch) -> None:
    real = recovery.join

    def join(image: SnapshotFile | None, replay: Replay) -> Recovered | None:
        joined = real(image, replay)
        if image is not None and joined is not None and replay.base_index not in (None, image.index):
            return dataclasses.replace(joined, entries=[], commit_index=joined.base_index, replaced=True)
        return joined

    patch.setattr(recovery, "join", join)


def removed_members_are_not_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Membership, "notify_removed", lambda membership: None)


def a_slice_leaves_half_a_registration_visible(patch: pytest.MonkeyPatch) -> None:
    """Commit each step of a topic change separately, so that readers see half a registration."""
    real = Draft.put

    def put(draft: Any, shares: Mapping[str, Share], *, without: Collection[str] = ()) -> Steps[None]:
        for chunk in in_chunks(shares):
            part = Draft(draft._store, draft._name, draft._revision, host=draft._host)
            yield from real(part, {topic: shares[topic] for topic in chunk})
            part.commit()
            yield
        yield from real(draft, {}, without=without)

    patch.setattr(Draft, "put", put)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A planted bug, the faults that make it visible, and the checks that must find it.

    Attributes:
        install: Function that plants the bug.
        oracles: Checks that must find the bug. A violation of another check does not count.
        likely: The seed that caught the bug the last time. Tests try this seed first.
    """

    install: Plant
    oracles: tuple[Oracle, ...]
    faults: tuple[str, ...] = ()
    durability: str = "journal"
    likely: int | None = None
    members: int = 3
    droppers: int = 0

    def caught_by(self, seed: int) -> str:
        """Return the violation's time, check and text, or "" if this seed does not catch the bug.

        The caller must first plant the bug.
        """
        seen = tuple(f"{oracle}:" for oracle in self.oracles)
        result = run_seed(
            seed,
            members=self.members,
            faults=self.faults,
            durability=self.durability,
            droppers=self.droppers,
        )
        return next((violation for violation in result.violations if violation.split()[1] in seen), "")


def _named(*planted: Planted) -> dict[str, Planted]:
    return {plant.install.__name__: plant for plant in planted}


PLANTS: Final = _named(
    Planted(
        install=apply_ignores_the_revision,
        likely=1,
        oracles=(Oracle.REVISIONS,),
        faults=("kill leader", "partition", "reset", "one way"),
    ),
    Planted(
        install=removal_is_forgotten,
        likely=4,
        oracles=(Oracle.REVISIONS,),
        faults=("kill leader", "partition", "reset", "one way"),
    ),
    Planted(
        install=an_update_does_not_notice_that_a_topic_was_dropped,
        likely=6,
        oracles=(Oracle.TABLE,),
        faults=("slow",),
    ),
    Planted(
        install=a_deletion_of_nothing_is_answered_without_the_log,
        likely=57,
        droppers=4,
        oracles=(Oracle.HISTORY,),
        faults=("slow", "one way", "pause"),
    ),
    Planted(
        install=late_copies_apply,
        likely=1,
        oracles=(Oracle.GOING_BACK,),
        faults=("late registration",),
    ),
    Planted(
        install=nobody_is_believed_to_have_gone_back,
        likely=10,
        oracles=(Oracle.RECOVERY,),
        faults=("restored broker",),
    ),
    Planted(
        install=no_change_is_answered_without_contact,
        likely=1,
        oracles=(Oracle.CONTACT,),
        faults=("partition", "one way", "pause leader"),
    ),
    Planted(
        install=contact_is_dated_by_arrival,
        likely=4,
        oracles=(Oracle.CONTACT,),
        faults=("pause", "pause leader", "partition", "one way"),
    ),
    Planted(
        install=contact_counts_before_the_commit_index_is_applied,
        likely=3,
        oracles=(Oracle.CONTACT,),
        faults=("partition", "pause", "kill", "slow"),
    ),
    Planted(
        install=barriers_are_joined_that_were_sent_before,
        likely=9,
        oracles=(Oracle.BARRIER,),
        faults=("slow", "partition", "pause"),
    ),
    Planted(
        install=reads_join_what_was_joined_last,
        likely=50,
        oracles=(Oracle.BARRIER,),
        faults=("slow", "partition", "pause"),
    ),
    Planted(
        install=reads_join_what_was_refused,
        likely=14,
        oracles=(Oracle.ANSWERS,),
        faults=("partition", "one way", "pause leader"),
    ),
    Planted(
        install=echoes_of_another_term_count,
        likely=7,
        oracles=(Oracle.CONTACT,),
        faults=("partition", "one way", "pause leader", "slow"),
    ),
    Planted(
        install=a_report_counts_beyond_its_link,
        likely=1,
        oracles=(Oracle.EVICTION_LINK,),
        faults=("missed report",),
    ),
    Planted(
        install=eviction_is_forwarded_by_a_deposed_leader,
        likely=24,
        oracles=(Oracle.EVICTION_TERM,),
        faults=("kill leader", "partition", "pause leader"),
    ),
    Planted(
        install=closed_evidence_of_any_revision_counts,
        likely=7,
        oracles=(Oracle.EVICTION_CLOSE,),
        faults=("reset", "pause", "slow"),
    ),
    Planted(
        install=connections_of_others_do_not_count,
        likely=1,
        oracles=(Oracle.EVICTION_LINK,),
        faults=("broker cut off", "reset"),
    ),
    Planted(
        install=hearings_of_others_do_not_count,
        likely=2,
        oracles=(Oracle.EVICTION_SILENCE,),
        faults=("broker cut off", "pause broker"),
    ),
    Planted(install=crashes_are_not_evidence, likely=5, oracles=(Oracle.GHOSTS,)),
    Planted(
        install=acknowledgement_comes_before_the_sync,
        likely=14,
        oracles=(Oracle.AGREEMENT,),
        faults=("kill all", "disk hangs"),
    ),
    Planted(
        install=the_only_voter_commits_its_whole_log_when_it_is_elected,
        likely=1,
        members=1,
        oracles=(Oracle.DURABILITY,),
        faults=(),
        durability="fsync",
    ),
    Planted(
        install=what_a_full_disk_took_of_a_frame_is_left_there,
        likely=8,
        oracles=(Oracle.STARTS,),
        faults=("kill all", "disk full"),
        durability="fsync",
    ),
    Planted(
        install=frames_of_the_journal_are_not_synced,
        oracles=(Oracle.AGREEMENT, Oracle.STARTS, Oracle.RECOVERY),
        faults=("power all", "power"),
        durability="fsync",
        likely=2,
    ),
    Planted(
        install=votes_are_not_synced,
        oracles=(Oracle.STARTS,),
        faults=("power all", "power", "kill leader", "transfer leader"),
        durability="fsync",
        likely=1,
    ),
    Planted(
        install=the_standing_is_not_synced,
        oracles=(Oracle.STARTS, Oracle.RECOVERY),
        faults=("power all", "wipe"),
        durability="fsync",
        likely=1,
    ),
    Planted(
        install=images_are_not_synced,
        oracles=(Oracle.STARTS, Oracle.RECOVERY),
        faults=("power all", "power"),
        durability="fsync",
        likely=1,
    ),
    Planted(
        install=names_of_segments_and_images_are_not_synced,
        oracles=(Oracle.AGREEMENT, Oracle.STARTS, Oracle.RECOVERY),
        faults=("power all", "power"),
        durability="fsync",
        likely=1,
    ),
    Planted(
        install=promises_are_not_stored,
        likely=63,
        oracles=(Oracle.ELECTIONS,),
        faults=("kill", "kill all", "partition"),
    ),
    Planted(
        install=votes_are_given_to_shorter_logs,
        likely=11,
        oracles=(Oracle.AGREEMENT, Oracle.PROCESS, Oracle.HISTORY),
        faults=("partition", "kill", "kill leader"),
    ),
    Planted(
        install=removed_members_are_not_told,
        likely=1,
        oracles=(Oracle.PROCESS,),
        faults=("add member", "remove member"),
    ),
    Planted(
        install=machines_never_restart,
        oracles=(Oracle.AGREEMENT, Oracle.STARTS, Oracle.HISTORY, Oracle.HELD_ENTRIES),
        faults=("power", "partition", "kill"),
        durability="journal",
        likely=1,
    ),
    Planted(
        install=whoever_lost_power_votes,
        oracles=(Oracle.AGREEMENT, Oracle.HISTORY, Oracle.HELD_ENTRIES, Oracle.PROCESS),
        faults=("power", "partition", "kill"),
        durability="journal",
        likely=28,
    ),
    Planted(
        install=images_are_read_on_the_loop,
        oracles=(Oracle.DISK_WAITS,),
        faults=("wipe", "kill"),
        durability="journal",
        likely=1,
    ),
    Planted(
        install=snapshots_are_encoded_from_the_live_table,
        likely=1,
        oracles=(Oracle.AGREEMENT,),
        faults=("kill all", "wipe", "kill"),
    ),
    Planted(
        install=what_is_in_a_log_is_decided_again,
        likely=9,
        oracles=(Oracle.REGISTER, Oracle.HISTORY),
        faults=("slow", "one way", "transfer leader"),
    ),
    Planted(
        install=what_a_leader_may_take_yet_is_decided_again,
        likely=48,
        oracles=(Oracle.REGISTER,),
        faults=("contend for a register",),
    ),
    Planted(
        install=requests_wait_without_a_deadline,
        likely=3,
        oracles=(Oracle.ANSWERS,),
        faults=("partition", "kill leader", "one way"),
    ),
    Planted(
        install=d1_what_was_acknowledged_is_dropped,
        likely=4,
        oracles=(Oracle.HELD_ENTRIES,),
        faults=("reset", "kill leader", "slow"),
    ),
    Planted(
        install=d8_whoever_knows_a_leader_is_in_contact,
        likely=2,
        oracles=(Oracle.CONTACT,),
        faults=("partition", "one way", "pause leader"),
    ),
    Planted(
        install=d14_the_journal_behind_an_image_is_dropped,
        likely=1,
        oracles=(Oracle.STARTS,),
        faults=("kill all", "kill"),
    ),
    Planted(
        install=a_slice_leaves_half_a_registration_visible,
        likely=1,
        oracles=(Oracle.TABLE,),
        faults=("slow",),
    ),
)
"""All bugs that tests plant, by the name of the function that plants the bug."""
