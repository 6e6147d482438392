"""One nameserver of a raft group: it implements ``Mode``, applies the log, and connects the components."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Final, assert_never

import msgspec

from routekeeper.nameserver.commands import (
    Command,
    CommandFormatError,
    DeleteKv,
    DeleteTopic,
    Evict,
    PutKv,
    RegisterTopic,
    Touch,
    Update,
    decode_batch,
    decoding_command,
    work_of,
)
from routekeeper.nameserver.handlers import READS, Renewal
from routekeeper.nameserver.liveness import CLOCK_PERIOD_S
from routekeeper.nameserver.modes.group import GroupStatus, Operations
from routekeeper.nameserver.modes.interface import (
    DEFAULT,
    LINEARIZABLE,
    BarrierPassed,
    ConsistencyStatus,
    Effects,
    Freshness,
    FreshnessNotOffered,
    NoQuorum,
)
from routekeeper.nameserver.modes.line import Line
from routekeeper.nameserver.modes.local import Local
from routekeeper.nameserver.modes.notes import note_change
from routekeeper.nameserver.modes.serving import serve
from routekeeper.nameserver.modes.timeline import GroupNotes
from routekeeper.nameserver.raft.node.member import RaftMember
from routekeeper.nameserver.raft.types import RaftConfig, StopMember
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.routes.view import RouteView
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.types import Answer, BrokerKey, ConnectionId, Request
from routekeeper.nameserver.verdicts import Applied, Verdict
from routekeeper.remoting import wall_clock
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.line_limit import LimitedLog
from routekeeper.remoting.steps import Steps, finish

from . import peer_messages
from .barriers import Barriers
from .kv_file import KvFile
from .leader import Leader
from .observer import Observer
from .proposals import WRITE_DEADLINE_S, ProposalBook
from .proposer import Proposer
from .raft_settings import raft_config
from .reader import ANSWER_MARGIN_S, Reader
from .reporter import Reporter
from .reports import Reports
from .snapshots import read_snapshot, snapshot_of, snapshot_of_epoch
from .surroundings import Surroundings
from .under_way import EntryUnderWay

logger = logging.getLogger(__name__)

STEP_WORK: Final = 64 * 1024
"""Largest work of an entry that is applied in one step, in bytes as :func:`.commands.work_of` counts them.

Larger entries let the event loop run between two steps. 64 KiB is the work of about 600 topics.
"""

_SHORT: Final = (Update, Touch, PutKv, DeleteKv, RegisterTopic, DeleteTopic)
"""Commands that change only the objects which they name.

Any other command may change much of the table, for example remove all topics of a broker.
"""


class Replicated(Local):
    """One nameserver of a group. Implements ``Consistency``, ``Mode`` and the engine's ``StateMachine``.

    Make the object while the loop runs, then ``await start()``.

    The method :meth:`execute` handles requests that must wait:

    - A default read waits for contact with a leader, at most one maximum election timeout.
    - A linearizable read waits for a barrier until the deadline.
    - A write waits for its outcome until the deadline.

    ``view(DEFAULT)`` never waits: without contact it raises NoQuorum. The wire server then calls ``execute``.
    The HTTP server then calls ``await_view``, because it needs the view itself.

    Attributes:
        member: The raft member.
        leader: The leader's work, done while this member leads.
        reports: Reports to the leader: when this process last saw each broker, and over which connection.
        reader: Reads that wait.
        proposer: Registrations and other changes.
        surroundings: State that all of these components share.
    """

    def __init__(
        self,
        settings: LiveSettings,
        effects: Effects,
        *,
        boot_id: int,
        raft: RaftConfig | None = None,
        on_fatal: Callable[[str], None] | None = None,
        on_removed: Callable[[str], None] | None = None,
        observer: Observer | None = None,
    ) -> None:
        """Make a member that is not started yet.

        Args:
            boot_id: Random number of this process, 63 bits.
            raft: The engine's settings; None to derive them from ``settings``.
            on_fatal: Called with one line of text when the member has stopped because of an error. By default
                the process ends.
            on_removed: Called once, with a line for the operator, when the group has removed this member.
                The member has stopped by then, and the process should end.

        Raises:
            RaftStartError: The raft settings are wrong.
            FileError: The KV file cannot be used, or the operator must decide about the file.
        """
        super().__init__(settings, effects, boot_id=boot_id, keeps_routes=True)
        raft = raft_config(settings.current) if raft is None else raft
        self._durability = raft.durability
        self._loop = asyncio.get_running_loop()
        self._led_term = 0
        self._group_notes = GroupNotes(self._history.timeline)
        # Revision and digests before the entry that is being applied in steps. They are needed only for an
        # entry with several commands. Between two of its commands, the table is not the state at any index.
        self._before_entry: tuple[int, str, str] | None = None
        # The entry that is being applied in steps; None until its commands have been decoded.
        self._under_way: EntryUnderWay | None = None
        self._work_due = False
        self._observer = Observer() if observer is None else observer
        self._peer_log = LimitedLog(logger, self._loop.time)
        member = self.member = self._member = RaftMember(
            raft,
            self,
            on_peer_message=self.take_message,
            on_change=self.member_changed,
            on_fatal=on_fatal,
            on_removed=on_removed,
        )
        given = self.surroundings = Surroundings(
            me=raft.me,
            loop=self._loop,
            member=member,
            table=self._table,
            liveness=self._liveness,
            settings=settings,
            observer=self._observer,
            work_soon=self._work_soon,
            line=Line(clock=self._loop.time, call_soon=self._loop.call_soon),
        )
        book, barriers = ProposalBook(boot_id=boot_id), Barriers()
        reporter = Reporter(self._liveness, boot_id=boot_id)
        leader = self.leader = Leader(
            given,
            book=book,
            reporter=reporter,
            barriers=barriers,
            answer_reads=self._answer_reads,
            peer_log=self._peer_log,
        )
        reports = self.reports = Reports(given, reporter=reporter, leader=leader)
        reader = self.reader = Reader(given, barriers=barriers, leader=leader, reporter=reporter)
        self.proposer = Proposer(given, book=book, leader=leader, reports=reports, reader=reader)
        self._kv_file = KvFile(given, self.proposer)
        self._kept_files.append(self._kv_file.export)
        times = {"commit": self.proposer.commit_times, **member.times}
        self.operations = Operations(raft_status=self.raft_status, member=member, times=times)

    async def start(self) -> None:
        """Read the stored state, bind the raft port, and join the group; do not wait for a quorum.

        Raises:
            RaftStartError: The member cannot start; the text is one line for the operator.
        """
        await self._member.start()
        self._tick()
        self.member_changed()
        self._kv_file.start()

    # -- methods of the interface Consistency -------------------------------------------------------------

    def view(self, freshness: Freshness) -> RouteView:
        if freshness is DEFAULT:  # True for nearly every read
            if not self._member.in_contact():
                raise NoQuorum(f"name server not ready: {self.reader.why_not()}")
        elif freshness is LINEARIZABLE:
            raise FreshnessNotOffered("a linearizable read needs a barrier first")
        return self._table.view

    async def await_view(
        self, freshness: Freshness, *, deadline: float, topic: str | None = None
    ) -> RouteView:
        """Return a view that is as fresh as ``freshness`` requires; see :meth:`Consistency.await_view`.

        Args:
            topic: The only topic that the caller reads; None if the caller reads more. If the entry that is
                being applied cannot change this topic's route, the read does not wait for that entry.
        """
        otherwise = None if topic is None else partial(self._is_untouched, topic)
        return await self.reader.await_view(freshness, deadline=deadline, otherwise=otherwise)

    def _is_untouched(self, topic: str) -> bool:
        """Return True if the entry that is being applied is decoded and cannot change the topic's route."""
        return self._under_way is not None and not self._under_way.may_change(topic)

    def join_barrier(self, passed: BarrierPassed) -> int:
        return self.reader.join(passed)

    def refuse_read(self, error: NoQuorum) -> Answer:
        self.reader.refused += 1
        return super().refuse_read(error)

    def register(
        self,
        request: Request,
        origin: ConnectionId,
        *,
        deadline: float,
        answered: Callable[[Answer], None],
        host: str = "",
        turn_of: str = "",
    ) -> Answer | None:
        return self.proposer.register(
            request, origin, deadline=deadline, answered=answered, host=host, turn_of=turn_of or host
        )

    async def execute(
        self, request: Request, origin: ConnectionId, *, deadline: float, host: str = ""
    ) -> Answer:
        deadline = min(deadline, self._loop.time() + WRITE_DEADLINE_S)
        return await serve(self, request, origin, deadline=deadline, host=host)

    async def readable(self, request: Request, *, deadline: float) -> RouteView:
        if request.code in READS:
            freshness = Freshness(self.settings.current.route_freshness)
            of_topic = request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
            topic = request.ext_fields.get("topic") if of_topic else None
            return await self.await_view(freshness, deadline=deadline, topic=topic)
        if request.code == RequestCode.QUERY_DATA_VERSION:
            await self.reader.await_contact(deadline=deadline - ANSWER_MARGIN_S)
        return self._table.view

    def renew(self, renewal: Renewal, origin: ConnectionId) -> Answer | Command:
        return self.proposer.renew(renewal, origin)

    async def propose(self, command: Command, *, deadline: float) -> Verdict:
        return await self.proposer.propose(command, deadline=deadline)

    def closed(self, origin: ConnectionId, *, by_us: bool) -> None:
        # This member still finishes a registration that it has begun to decide. It drops the connection's
        # registrations that it has not begun.
        self.surroundings.line.leave(origin)
        closing = self._closing(origin, by_us=by_us)
        self.surroundings.line.run(closing, lambda _: None, sender=origin, host=origin)

    def _closing(self, origin: ConnectionId, *, by_us: bool) -> Steps[bool]:
        self.proposer.closed(origin)
        self.reports.closed(origin, by_us=by_us)
        yield from ()
        return True

    async def withdrawn(self, broker: BrokerKey, origin: ConnectionId) -> None:
        self.reports.withdrawn(broker, origin)

    def status(self) -> ConsistencyStatus:
        member = self._member
        revision, digest, state_digest = self._digests_applied
        age = member.contact_age()
        ready, first_reports = member.in_contact(), self._first_reports()
        return ConsistencyStatus(
            mode="raft",
            role=str(member.role),
            term=member.term,
            commit_index=member.commit_index,
            applied_index=member.applied_index,
            leader=member.leader,
            last_contact_ms=None if age == math.inf else round(age * 1000),
            members=member.members,
            boot_id=self._boot_id,
            revision=revision,
            digest=digest,
            state_digest=state_digest,
            durability=self._durability,
            reads_ready=ready and not first_reports,
            writes_ready=ready,
            waiting_for=first_reports if ready else self.reader.why_not(),
            unwritten_files=self._unwritten_files(),
        )

    def raft_status(self) -> GroupStatus:
        """Return the raft member's figures, and this class's counters since the start."""
        member = self._member
        figures = member.status() | {
            "refused_reads": self.reader.refused,
            "refused_writes": self.proposer.refused,
            "unknown_outcomes": self.proposer.unknown,
            "barriers": self.reader.barriers_sent,
            "barriers_confirmed": self.leader.barriers_answered,
            "barrier_rounds": self.leader.rounds_begun,
            "proposals": len(self.proposer.book),
            "apply_lag": max(0, member.commit_index - member.applied_index),
        }
        return msgspec.convert(figures, GroupStatus)

    async def close(self) -> None:
        """Hand over leadership, write pending data, answer all waiting requests, and stop."""
        if self.surroundings.closing:
            return
        self.surroundings.closing = True
        self._waiters.end()
        self.surroundings.line.clear()
        async with asyncio.TaskGroup() as group:  # each task may wait for the disk, so run them together
            group.create_task(self._kv_file.close())
            group.create_task(self._member.close())
            group.create_task(self._settings_file.close())
        self.proposer.end()
        self.reader.end()

    # -- work of one loop iteration ------------------------------------------------------------------------

    def _work_soon(self) -> None:
        """Schedule the sending of reports and proposals, and an append, after this iteration's callbacks."""
        if not self._work_due and not self.surroundings.closing:
            self._work_due = True
            self._loop.call_soon(self._work)

    def _work(self) -> None:
        self._work_due = False
        if self.surroundings.closing:
            return
        if self.reports.send_due():
            # Send proposals only after the report: the leader must know a connection before it gets a command
            # that came over the connection.
            self.proposer.hand_over()
        if self.leader.sequencer is not None:
            self.leader.mark()
            self.leader.append()
        self.proposer.decide_deferred()
        self.reader.answer_waiting()

    def _answer_reads(self) -> None:
        self.reader.answer_waiting()

    def _tick(self) -> None:
        if self.surroundings.closing:
            return
        self._loop.call_later(CLOCK_PERIOD_S, self._tick)
        self.reports.tick()
        self.leader.tick()
        self._note_group()
        self._peer_log.tell_suppressed()
        self._work()

    # -- methods that the raft engine calls ---------------------------------------------------------------

    def member_changed(self) -> None:
        """React to possible changes of the member's role, term, leader and links."""
        if self.surroundings.closing:
            return
        links, member = self.surroundings.links, self._member
        before, leader = dict(links), member.leader
        links.clear()
        links.update({peer: member.link_number(peer) for peer in member.linked})
        self.leader.forget_unlinked()
        self.leader.update_role()
        self.reports.leader_changed(linked_anew=leader in links and links[leader] != before.get(leader))
        self.reader.log_contact()
        self._note_group()
        self.leader.settle_rounds()
        self._work_soon()

    def _note_group(self) -> None:
        member = self._member
        self._group_notes.look(
            at_ms=wall_clock.now_ms(),
            leader=member.leader,
            term=member.term,
            in_contact=member.in_contact(),
            refused=(self.reader.refused, self.proposer.refused),
        )

    def take_message(self, member: str, data: bytes) -> None:
        """Handle a message of another member."""
        if self.surroundings.closing:
            return
        try:
            message = peer_messages.decode(data)
        except peer_messages.PeerMessageError as error:
            self._peer_log.write(
                logging.ERROR, member, "peer message refused member=%s error=%s", member, error
            )
            return
        match message:
            case peer_messages.ReadIndex():
                self.leader.take_barrier(member, message)
            case peer_messages.ReadIndexReply():
                self.reader.take_index(message)
            case peer_messages.ReadIndexCheck():
                self.reader.take_check(member, message)
            case peer_messages.ReadIndexCheckReply():
                self.leader.take_confirmation(member, message)
            case peer_messages.Propose():
                self.leader.take_proposals(member, message)
            case peer_messages.Deferred():
                self.proposer.take_deferrals(message)
            case peer_messages.Report():
                self.leader.take_report(member, message)
            case peer_messages.Acknowledgement():
                self.reports.take_acknowledgement(member, message)
                self.reader.ask()
            case _:
                assert_never(message)

    def apply(self, payload: bytes, *, index: int, term: int, live: bool) -> Steps[None]:
        """Apply one entry, see :class:`StateMachine`.

        A long entry is applied in several steps. Readers see the effect of each command as soon as that
        command is applied. ``live`` is False for an entry that was in this member's log at its start.
        """
        try:
            batch = decode_batch(payload)
            # Decode all commands before the first is applied: a member must apply all of them or none.
            commands: list[Command] = []
            work, short = 0, True
            for proposal in batch.proposals:
                command = self.leader.pop_decoded(proposal)
                if command is None:
                    command = yield from decoding_command(proposal.command)
                commands.append(command)
                work += work_of(proposal.command)
                short = short and isinstance(command, _SHORT)
        except CommandFormatError as error:
            raise StopMember(f"{error}; install the release that the other members run") from error
        # Apply all commands to the table first. The work after that concerns this process alone. A defect in
        # that work must not make this member's table differ from the tables of other members.
        in_steps = work > STEP_WORK or not short
        if in_steps:
            self._under_way = EntryUnderWay(commands, self._table)
            yield from self._under_way.prepare()
        if in_steps and len(commands) > 1:
            self._before_entry = self._digests()
        verdicts: list[Verdict] = []
        for command in commands:
            if in_steps and verdicts:
                yield
            self._observer.applying(command)
            verdict = self._table.apply_at_once(command)
            if verdict is None:
                steps = self._table.applying(command)
                verdict = (yield from steps) if in_steps else finish(steps)
            self._observer.applied(command, verdict)
            verdicts.append(verdict)
        # The code does not yield between the last command and the end of the entry. So from here on the
        # table is the state at the entry's index.
        self._before_entry = self._under_way = None
        for proposal, command, verdict in zip(batch.proposals, commands, verdicts, strict=True):
            try:
                if isinstance(verdict, Applied):
                    self._after_change(command, verdict, live=live)
                if proposal.boot_id == self._boot_id:
                    self.proposer.settle(proposal.sequence, verdict)
            except Exception:
                # Only log the error: the table is changed already, and this member must go on exactly like
                # the other members.
                logger.exception("what follows a change failed index=%d command=%s", index, type(command))
        if not batch.proposals and live:
            self.leader.begin_to_judge(term, prior_term=self._led_term)
        self._led_term = max(self._led_term, term)
        self.proposer.book.applied(term)
        self.leader.applied(index)
        if live:
            self._work_soon()
        self.proposer.answer_settled(index=index)

    @property
    def _digests_applied(self) -> tuple[int, str, str]:
        """Return the revision and the digests at the applied index.

        The table itself may already contain some commands of the next entry.
        """
        return self._before_entry or self._digests()

    def _digests(self) -> tuple[int, str, str]:
        view = self._table.view
        return view.revision, view.digest(), view.state_digest()

    def _after_change(self, command: Command, applied: Applied, *, live: bool) -> None:
        """Do the work outside the table that an applied change requires.

        This member notifies brokers and closes connections (``effects``) only for live entries: entries that
        were not yet in its log when it started.
        """
        if type(command) is Update and not self._waiters:
            return  # usual case: only topics change, and no request waits
        if applied.kv_changed:
            self._kv_file.may_differ()
        for gone in applied.left:
            self.reports.removed(gone.broker)
            self.leader.removed(gone.broker)
        if applied.joined is not None:
            self.leader.listed(applied.joined)
        self._waiters.wake_affected(applied)
        if not live:
            return
        note_change(self._history, command, applied)
        if isinstance(command, Evict):
            for origin in self._liveness.connections_of(command.broker, up_to_revision=command.revision):
                if not self.proposer.is_answering(command.broker, origin):
                    self._effects.close_connection(origin)
        if not applied.min_changes:
            return
        if self._member.leads and self.settings.current.notify_min_broker_id_changed:
            for change in applied.min_changes:
                self._effects.notify_min_broker(change)

    def snapshot(self) -> Callable[[], bytes]:
        """Return a function that encodes the present state. The engine calls the function in a thread."""
        return snapshot_of(self._table, self._led_term)

    def prepare(self, image: bytes | bytearray) -> Callable[[], None]:
        """Decode a snapshot, and return a function that installs it. The engine calls this in a thread."""
        return partial(self._install, *read_snapshot(image))

    def restored(self, image: bytes | bytearray) -> bytes:
        """Return the snapshot that an operator restores, marked with an epoch that was never used.

        By the epoch, clients notice that they must not compare revisions before and after the restore.
        """
        return snapshot_of_epoch(image, after=self._table.view.epoch)

    def _install(self, table: RouteTable, led_term: int) -> None:
        """Replace the state by the decoded state of a snapshot."""
        self._table.adopt(table)
        self._led_term = led_term
        self._before_entry = self._under_way = None
        self.proposer.table_replaced(term=led_term)
        self._liveness.table_replaced()
        self._kv_file.may_differ()
        self._waiters.wake_all()
