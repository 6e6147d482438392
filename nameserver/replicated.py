"""``--mode raft``: the route table of all nameservers is one replicated log.

This process decides a request on its own copy of the table, proposes the command to the leader, and learns
the verdict when the entry passes through its own ``apply``; what has moved by then is decided again. Liveness
is judged by the leader over the reports of all members. What decides is pure (:mod:`nameserver.proposals`,
:mod:`nameserver.evidence`, :mod:`nameserver.handlers`); this module carries values between it, the raft
engine and the server. Everything runs on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from nameserver import exchange
from nameserver.barriers import Barriers, Confirmed, Rounds, Route
from nameserver.commands import (
    ENTRY_BYTES_MAX,
    Batch,
    Command,
    CommandFormatError,
    Evict,
    ImportKv,
    Proposal,
    RegisterBroker,
    decode_batch,
    decode_command,
    encode_batch,
    encode_command,
)
from nameserver.config import LiveSettings, NamesrvSettings
from nameserver.consistency import (
    NO_QUORUM_TAG,
    BarrierPassed,
    ConsistencyError,
    ConsistencyStatus,
    Effects,
    Freshness,
    FreshnessNotOffered,
    NoQuorum,
    Operations,
    OutcomeUnknown,
    Registering,
    Told,
    refusal,
    serve,
)
from nameserver.evidence import REPORT_PERIOD_S, Evidence, Judgement, Reporter, Unchanged, answer_or_touch
from nameserver.exchange import (
    FIRST_COMMAND_FORMAT,
    Acknowledgement,
    Barrier,
    Deferral,
    Deferred,
    ExchangeError,
    Propose,
    Reached,
    Report,
    Round,
    Stands,
)
from nameserver.explain import Explanation, History, Note
from nameserver.files import encode_kv, load_kv_file, save_settings_file, write_atomic
from nameserver.handlers import (
    READS,
    Farewell,
    Heard,
    Renewal,
    SettingsChange,
    decode_registration,
    explain_route,
    note_applied,
)
from nameserver.liveness import CLOCK_PERIOD_S, Liveness, Standing
from nameserver.proposals import WRITE_DEADLINE_S, ProposalBook, Sequencer
from nameserver.raft import RaftConfig, RaftMember, RaftStartError, Role, SnapshotInfo, StopMember
from nameserver.route_state import Record, encode_image
from nameserver.route_table import RouteTable, RouteView
from nameserver.types import Answer, BrokerKey, ConnectionId, Request
from nameserver.verdicts import Applied, Moved, NoChange, RegisterReply, Verdict
from remoting.codes import RequestCode

logger = logging.getLogger(__name__)

IMAGE_FORMAT: Final = 1

PRUNE_PERIOD_S: Final = 5.0
"""How often what is known of brokers without a record is looked through."""

CONTACT_LOOK_S: Final = 0.01
"""How often requests that wait for contact with a leader look for it; one timer serves all of them."""

ANSWER_MARGIN_S: Final = 0.05
"""A verdict is waited for so much shorter than the deadline, so that the answer leaves within it."""

PROPOSE_BYTES: Final = 1024 * 1024
"""Commands are sent to the leader in messages of about this many bytes; one command is never split."""

ASK_ALL_S: Final = 0.05
"""A round of barriers asks as many voters as it needs, and everybody if it is not over after this time."""

REPEAT_BYTES_MAX: Final = 64 * 1024
REPEATS_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bodies of registrations that changed nothing are kept up to this size, and this much of them in all."""

LATE_MAX: Final = 10_000
"""Registrations whose verdict is still looked out for after their request was answered."""

IMPORT_RETRY_S: Final = 1.0

EXPORT_RETRY_S: Final = 5.0
"""After a KV file that could not be written, the next try."""


class _Image(msgspec.Struct, array_like=True, frozen=True):
    """State image as the log keeps it.

    Attributes:
        led_term: Term of the last leader that took office before it.
    """

    format: int
    led_term: int
    table: bytes


@dataclass(frozen=True, slots=True)
class _Heard:
    liveness: Liveness
    origin: ConnectionId
    uptime_s: float

    def standing(self, broker: BrokerKey) -> Standing:
        return self.liveness.standing(broker, self.origin)


class _Repeat(NamedTuple):
    """A registration that changed nothing, and how it was decided.

    A decision depends on the request, the table and the settings alone. So the same bytes on a table of the
    same revision need not be decoded, checked and compared with the record once more; what depends on this
    process is asked anew each time.
    """

    body: bytes
    ext_fields: Mapping[str, str]
    version: int
    table_revision: int
    settings: NamesrvSettings
    lease_ms: int
    renewal: Renewal

    def is_made_by(self, request: Request, table_revision: int, settings: NamesrvSettings) -> bool:
        return (
            self.table_revision == table_revision
            and self.settings is settings
            and self.body == request.body
            and self.version == request.version
            and self.ext_fields == request.ext_fields
        )


class _Waiter(NamedTuple):
    """Who waits for a proposal's verdict, and until when (loop time, s)."""

    told: Told
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reads:
    """Reads that joined one barrier: until when they wait, and who is to be told."""

    deadline: float
    told: list[BarrierPassed]


def raft_config(settings: NamesrvSettings) -> RaftConfig:
    """Return the engine's settings; reads the shared secret, if one is named.

    Raises:
        RaftStartError: If the secret cannot be read.
    """
    secret = None
    if settings.raft_secret_file:
        try:
            secret = Path(settings.raft_secret_file).read_bytes().strip()
        except OSError as error:
            path = settings.raft_secret_file
            raise RaftStartError(f"raft: secret {path} cannot be read: {error.strerror}") from None
    return RaftConfig(
        me=settings.raft,
        peers=settings.members,
        listen=settings.raft_listen or None,
        data_dir=Path(settings.data_dir),
        durability=settings.durability,  # type: ignore[arg-type]  # checked by config.validate
        secret=secret,
        election_timeout_ms=settings.election_timeout_ms,
        entry_size_max=ENTRY_BYTES_MAX,
        http=settings.http_told,
        force_new_cluster=settings.force_new_cluster,
        tls_cert=_path(settings.raft_tls_cert),
        tls_key=_path(settings.raft_tls_key),
        tls_ca=_path(settings.raft_tls_ca),
    )


def _path(text: str) -> Path | None:
    return Path(text) if text else None


class Replicated:
    """One nameserver of a group. Implements ``Consistency``.

    Make it on the running loop, then ``await start()``. A request that must wait does so in :meth:`execute`:
    a default read for contact with a leader, at most one maximum election timeout; a linearizable one for a
    barrier, and a write for its verdict, until the deadline. ``view(DEFAULT)`` never waits: it raises
    NoQuorum, and the server then calls ``execute``, or ``await_view`` where it needs the view itself (HTTP).
    """

    def __init__(
        self,
        settings: LiveSettings,
        effects: Effects,
        *,
        boot_id: int,
        raft: RaftConfig,
        on_removed: Callable[[str], None] | None = None,
    ) -> None:
        """Make a member that is not started.

        Args:
            boot_id: Random number of this process, 63 bits.
            on_removed: Called once, with a line for the operator, when the group has removed this member,
                which has stopped by then; the process is to end.

        Raises:
            RaftStartError: If the raft settings are wrong.
            FileError: If the KV file and its ``.bak`` are both broken.
        """
        self._settings = settings
        self._effects = effects
        self._boot_id = boot_id
        self._me = raft.me
        self._durability = raft.durability
        self._loop = asyncio.get_running_loop()
        self._table = RouteTable()
        self._history = History()
        self._liveness = Liveness()
        self._reporter = Reporter(self._liveness, boot_id=boot_id)
        self._book = ProposalBook(boot_id=boot_id)
        self._waiters: dict[int, _Waiter] = {}
        self._to_tell: list[tuple[Told, Verdict]] = []  # by the entry that is being applied
        self._verdict_timer: asyncio.TimerHandle | None = None
        # Registrations under way, also after their request was answered: their verdict dates evidence.
        self._registering: OrderedDict[int, tuple[BrokerKey, ConnectionId]] = OrderedDict()
        self._in_flight: dict[tuple[BrokerKey, ConnectionId], int] = {}
        self._repeats: dict[ConnectionId, _Repeat] = {}
        self._repeats_bytes = 0
        self._commands: dict[tuple[int, int], Command] = {}  # decoded, until applied
        self._barriers = Barriers()
        self._reads: dict[int, _Reads] = {}  # by barrier, in the order of their numbers
        self._reads_timer: asyncio.TimerHandle | None = None
        self._refused_reads = self._refused_writes = self._unknown_outcomes = 0
        self._barriers_confirmed = self._barrier_rounds = 0
        self._sequencer: Sequencer | None = None
        self._office_due = False  # the mark of this leader's office could not be appended yet
        self._rounds: Rounds | None = None
        self._round_timer: asyncio.TimerHandle | None = None
        self._gather_timer: asyncio.TimerHandle | None = None
        self._ask_due = False
        self._barrier_route: Route | None = None  # kept until something changes
        self._joined_latest = 0  # the barrier joined last, and by whom
        self._joined_by: BarrierPassed | None = None
        self._near: list[str] = []  # voters, who spoke of barriers last first
        self._evidence: Evidence | None = None
        self._early: dict[str, Report] = {}  # reports that came before this leader took office
        self._led_term = 0
        self._links: dict[str, int] = {}  # how many links to each member there have been
        self._linked: frozenset[str] = frozenset()
        self._topic_waiters: dict[str, set[asyncio.Future[None]]] = {}
        # Nobody is in contact before the first time; then it is said whenever that ends.
        self._out_of_contact_since: float | None = self._loop.time()
        self._contact_waiters: set[asyncio.Future[None]] = set()
        self._contact_timer: asyncio.TimerHandle | None = None
        self._tick_timer: asyncio.TimerHandle | None = None
        self._prune_at = 0.0
        self._judge_all_at = 0.0
        self._judged_with: set[str] = set()  # members in contact when all brokers were judged last
        self._work_due = False
        self._report_due = False
        self._closed = False
        self._files = asyncio.Lock()
        self._kv_changed = asyncio.Event()
        self._kv_found = load_kv_file(Path(settings.current.kv_path))
        self._exporter: asyncio.Task[None] | None = None
        self._importer: asyncio.Task[None] | None = None
        self._member = RaftMember(
            raft,
            self,
            on_peer_message=self._on_peer_message,
            on_change=self._on_change,
            on_removed=on_removed,
        )
        self._operations = _Operations(self, self._member)

    @classmethod
    def open(
        cls,
        settings: LiveSettings,
        effects: Effects,
        *,
        boot_id: int,
        on_removed: Callable[[str], None] | None = None,
    ) -> Replicated:
        """Make the member that the settings describe; ``await start()`` follows.

        Raises:
            RaftStartError, FileError: With one line for the operator.
        """
        return cls(
            settings, effects, boot_id=boot_id, raft=raft_config(settings.current), on_removed=on_removed
        )

    async def start(self) -> None:
        """Recover, bind the raft port, take part; does not wait for a quorum.

        Raises:
            RaftStartError: With one line for the operator.
        """
        await self._member.start()
        self._tick()
        self._on_change()
        self._exporter = self._loop.create_task(self._export_kv(), name="kv export")
        if self._kv_found:
            self._importer = self._loop.create_task(self._import_kv(), name="kv import")

    @property
    def bound(self) -> str:
        """The raft address that is bound."""
        return self._member.bound

    @property
    def member(self) -> RaftMember:
        """The member of the raft group, for figures that operators look at."""
        return self._member

    # -- Consistency --------------------------------------------------------------------------------------

    @property
    def history(self) -> History:
        return self._history

    @property
    def settings(self) -> LiveSettings:
        """The settings in force."""
        return self._settings

    @property
    def operations(self) -> Operations:
        return self._operations

    def explain(self, topic: str) -> Explanation:
        return explain_route(
            self._table.view,
            topic,
            self._history,
            started_ms_ago=int(self._liveness.clock * 1000),
            keeps_routes=True,
        )

    def view(self, freshness: Freshness) -> RouteView:
        if freshness is Freshness.DEFAULT:  # nearly every read; the cheapest way through
            if self._member.in_contact():
                return self._table.view
            raise NoQuorum(f"name server not ready: {self._why_not()}")
        if freshness is Freshness.STALE:
            return self._table.view
        raise FreshnessNotOffered("a linearizable read needs a barrier first")

    async def await_view(self, freshness: Freshness, *, deadline: float) -> RouteView:
        """Return the view with this freshness, waiting for contact with a leader or a barrier if need be.

        A default read waits until the deadline, but no longer than one maximum election timeout.

        Raises:
            NoQuorum: If there was no contact, or no barrier, in time.
        """
        try:
            if freshness is Freshness.LINEARIZABLE:
                await self.barrier(deadline=deadline)
                return self._table.view
            if freshness is Freshness.DEFAULT:
                longest = self._loop.time() + 2 * self._member.contact_limit
                await self._contact(deadline=min(deadline, longest))
            return self.view(freshness)
        except NoQuorum:
            self._refused_reads += 1
            raise

    def refuse_read(self, error: NoQuorum) -> Answer:
        self._refused_reads += 1
        return refusal(f"{NO_QUORUM_TAG} {error}")

    async def barrier(self, *, deadline: float) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()

        def passed(number: int, error: NoQuorum | None) -> None:
            if waiter.done():
                return
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)

        self.join_barrier(passed)
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except TimeoutError:
            raise self._no_barrier() from None

    def join_barrier(self, passed: BarrierPassed) -> int:
        number = self._barriers.join()
        if number == self._joined_latest and passed is self._joined_by:  # nearly every read
            if self._gather_timer is not None and self._barriers.gathered:
                self._ask_soon()
            return number
        self._joined_latest, self._joined_by = number, passed
        reads = self._reads.get(number)
        if reads is not None:
            reads.told.append(passed)
            return number
        now = self._loop.time()
        deadline = now + WRITE_DEADLINE_S - ANSWER_MARGIN_S
        self._reads[number] = _Reads(deadline=deadline, told=[passed])
        if self._reads_timer is None:
            self._reads_timer = self._loop.call_at(deadline, self._refuse_late_reads)
        self._gather(now)
        return number

    def register(
        self, request: Request, origin: ConnectionId, *, deadline: float, answered: Callable[[Answer], None]
    ) -> Answer | None:
        repeat = self._repeats.get(origin)
        if repeat is not None and repeat.is_made_by(request, self._table.revision, self._settings.current):
            self._hear(repeat.renewal.broker, origin, lease_ms=repeat.lease_ms)
            renewed = self.renew(repeat.renewal, origin)
            if isinstance(renewed, Answer):
                return renewed
        decoded = decode_registration(request)
        if isinstance(decoded, Answer):
            return decoded
        deadline = min(deadline, self._loop.time() + WRITE_DEADLINE_S)
        registering = Registering(self, request, decoded, origin, deadline, answered)
        self.arriving(registering.broker, origin, lease_ms=decoded.lease_ms)
        answer = None
        waits = False
        try:
            answer = registering.decide()
            waits = answer is None
        finally:
            if not waits:
                self.answered(registering.broker, origin)
        if registering.renewal is not None:
            self._remember(request, registering.renewal, origin, lease_ms=decoded.lease_ms)
        return answer

    def _remember(self, request: Request, renewal: Renewal, origin: ConnectionId, *, lease_ms: int) -> None:
        """Keep a registration that changed nothing: the next one over this connection will be the same."""
        self._forget_repeat(origin)
        size = len(request.body)
        if size > REPEAT_BYTES_MAX or self._repeats_bytes + size > REPEATS_BYTES_MAX:
            return
        self._repeats_bytes += size
        self._repeats[origin] = _Repeat(
            body=request.body,
            ext_fields=request.ext_fields,
            version=request.version,
            table_revision=self._table.revision,
            settings=self._settings.current,
            lease_ms=lease_ms,
            renewal=renewal,
        )

    def _forget_repeat(self, origin: ConnectionId) -> None:
        repeat = self._repeats.pop(origin, None)
        if repeat is not None:
            self._repeats_bytes -= len(repeat.body)

    async def execute(self, request: Request, origin: ConnectionId, *, deadline: float) -> Answer:
        if request.code == RequestCode.REGISTER_BROKER:
            waiter: asyncio.Future[Answer] = self._loop.create_future()

            def answered(answer: Answer) -> None:
                if not waiter.done():
                    waiter.set_result(answer)

            answer = self.register(request, origin, deadline=deadline, answered=answered)
            return await waiter if answer is None else answer
        deadline = min(deadline, self._loop.time() + WRITE_DEADLINE_S)
        return await serve(_Serving(self, origin), request, origin, deadline=deadline)

    def heard(self, broker: BrokerKey, origin: ConnectionId) -> None:
        if self._table.view.record(broker) is not None:
            self._liveness.heard(broker, origin)

    def opened(self, origin: ConnectionId) -> None:
        """Nothing is to be kept of a connection over which nothing came yet."""

    def closed(self, origin: ConnectionId, *, by_us: bool) -> None:
        self._forget_repeat(origin)
        before = self._liveness.version
        self._liveness.closed(origin, by_us=by_us, revision_of=self._revision_of)
        if self._liveness.version != before:
            self._report_soon()

    def carries_broker(self, origin: ConnectionId) -> bool:
        return self._liveness.carries_broker(origin)

    async def changed(self, topic: str, after: int, *, deadline: float) -> int:
        view = self._table.view
        try:
            async with asyncio.timeout_at(deadline):
                while view.topic_revision(topic) <= after and not self._closed:
                    await self._next_change(topic)
        except TimeoutError:
            pass
        return view.topic_revision(topic)

    def status(self) -> ConsistencyStatus:
        view, member = self._table.view, self._member
        age = member.contact_age()
        ready = self._in_contact()
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
            revision=view.revision,
            digest=view.digest(),
            state_digest=view.state_digest(),
            durability=self._durability,
            reads_ready=ready,
            writes_ready=ready,
            waiting_for="" if ready else self._why_not(),
        )

    def raft_status(self) -> dict[str, object]:
        """Return the raft member's figures, and what this layer counts beside them since the start:

        refused_reads: Reads refused because their freshness could not be had, on the wire and over HTTP.
        refused_writes: Changes answered "not applied".
        unknown_outcomes: Changes answered "may apply yet".
        barriers: Barriers sent for linearizable reads here, those sent again included.
        barriers_confirmed: As leader: barriers answered, to other members and to itself.
        barrier_rounds: As leader: rounds of heartbeats that those needed.
        proposals: Changes of this member that have no verdict yet.
        apply_lag: Entries that are committed, as far as known here, and not applied here.
        """
        member = self._member
        return member.status() | {
            "refused_reads": self._refused_reads,
            "refused_writes": self._refused_writes,
            "unknown_outcomes": self._unknown_outcomes,
            "barriers": self._barriers.sent,
            "barriers_confirmed": self._barriers_confirmed,
            "barrier_rounds": self._barrier_rounds,
            "proposals": len(self._book),
            "apply_lag": max(0, member.commit_index - member.applied_index),
        }

    async def close(self) -> None:
        """Hand leadership over, write what is pending, answer whoever still waits, stop."""
        if self._closed:
            return
        self._closed = True
        for timer in (
            self._tick_timer,
            self._contact_timer,
            self._reads_timer,
            self._round_timer,
            self._gather_timer,
            self._verdict_timer,
        ):
            if timer is not None:
                timer.cancel()
        if self._importer is not None:
            self._importer.cancel()
            await asyncio.wait((self._importer,))
        if self._exporter is not None:
            self._kv_changed.set()  # it ends after one more look
            await asyncio.wait((self._exporter,))
        for waiters in list(self._topic_waiters.values()):
            _wake(waiters)
        await self._member.close()
        for sequence in list(self._waiters):
            self._give_up(sequence)
        _wake(self._contact_waiters)
        self._refuse_reads(up_to=math.inf)
        async with self._files:  # a write that is under way ends first
            pass

    # -- contact ------------------------------------------------------------------------------------------

    def _in_contact(self) -> bool:
        return self._member.in_contact()

    def _why_not(self) -> str:
        """Say why this member cannot serve, beginning with what the wire's remark is known for."""
        member = self._member
        waiting = member.waiting_for
        if waiting:
            return f"no leader, the first start waits for {', '.join(waiting)}"
        if member.leader is None:
            return "no leader"
        if not self._in_contact():
            return f"no leader with a majority, {member.leader} was the last one"
        if member.leader != self._me and member.leader not in self._linked:
            return f"no link to leader {member.leader}"
        return f"too much is under way at leader {member.leader}"

    def _say_contact(self) -> None:
        """One line when contact with a majority is lost, and one when it is found again."""
        here = self._in_contact()
        if here == (self._out_of_contact_since is None):
            return
        now, member = self._loop.time(), self._member
        if here:
            lost_at, self._out_of_contact_since = self._out_of_contact_since, None
            assert lost_at is not None
            logger.info(
                "contact found leader=%s term=%d after_s=%.3f", member.leader, member.term, now - lost_at
            )
        else:
            self._out_of_contact_since = now
            logger.info("contact lost leader=%s term=%d", member.leader, member.term)

    async def require_contact(self, *, deadline: float) -> None:
        """Return once this member is in contact with a leader.

        Raises:
            NoQuorum: If it was not by the deadline.
        """
        await self._contact(deadline=deadline)
        if not self._in_contact():
            raise NoQuorum(f"name server not ready: {self._why_not()}")

    async def _contact(self, *, deadline: float) -> None:
        """Return once this member is in contact, or at the deadline."""
        while not self._in_contact() and not self._closed and self._loop.time() < deadline:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._contact_waiters.add(waiter)
            self._look_for_contact()
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                return
            finally:
                self._contact_waiters.discard(waiter)

    def _look_for_contact(self) -> None:
        if self._contact_waiters and self._in_contact():
            _wake(self._contact_waiters)
        if self._contact_waiters and self._contact_timer is None:
            self._contact_timer = self._loop.call_later(CONTACT_LOOK_S, self._look_again)

    def _look_again(self) -> None:
        self._contact_timer = None
        self._look_for_contact()

    # -- barriers -----------------------------------------------------------------------------------------

    def _route_of_barriers(self) -> Route | None:
        """Where a barrier goes now; None if it can go nowhere."""
        term, leader = self._member.term, self._member.leader
        if leader == self._me:
            return term, leader, 0
        if leader is None or leader not in self._linked or self._reporter.term != term:
            return None
        if self._reporter.leader_reads < exchange.BARRIER_FORMAT:  # it has not said so yet, or is older
            return None
        return term, leader, self._links[leader]

    def _gather(self, now: float) -> None:
        """Send a barrier in the next turn of the loop, or later if more reads are waited for."""
        barriers = self._barriers
        if barriers.gathered or now >= barriers.gather_until:
            self._ask_soon()
        elif self._gather_timer is None:
            self._gather_timer = self._loop.call_at(barriers.gather_until, self._gather_no_longer)

    def _gather_no_longer(self) -> None:
        self._gather_timer = None
        self._ask()

    def _ask_soon(self) -> None:
        """Ask once after everything that is ready in this turn of the loop."""
        if not self._ask_due:
            self._ask_due = True
            self._loop.call_soon(self._ask_now)

    def _ask_now(self) -> None:
        self._ask_due = False
        self._ask()

    def _ask(self) -> None:
        """Send the barrier that reads wait for, unless one is under way."""
        if not self._reads or self._closed:
            return
        now, route = self._loop.time(), self._barrier_route
        # Whoever asks stands by the leader of this very term, so the term is never one that was kept.
        if route is None or route[0] != self._member.term:
            route = self._barrier_route = self._route_of_barriers()
        number = self._barriers.to_send(route, now=now)
        if number is None or route is None:
            if now < self._barriers.gather_until:
                self._gather(now)
            return
        term, leader, _ = route
        if leader != self._me:
            voter = self._member.role is not Role.LEARNER
            if not self._member.send(leader, exchange.encode(Barrier(term=term, number=number, voter=voter))):
                self._barriers.not_sent()
            return
        rounds = self._rounds_of(term)
        if rounds is not None:
            rounds.ask(self._me, number, voter=False)
            self._settle_rounds()

    def _rounds_of(self, term: int) -> Rounds | None:
        """The rounds of a term, if this member leads in it."""
        if self._rounds is None or self._rounds.term != term:
            self._follow_role()
        return self._rounds if self._rounds is not None and self._rounds.term == term else None

    def _on_barrier(self, member: str, barrier: Barrier) -> None:
        rounds = self._rounds_of(barrier.term)
        if rounds is None:
            return
        if barrier.voter:
            self._heard_voter(member)
            if self._member.leads_with((member,)):  # of three, asker and leader are enough
                self._answer_barriers((Confirmed(member, barrier.number, self._member.read_index),))
                return
        rounds.ask(member, barrier.number, voter=barrier.voter)
        self._settle_rounds()

    def _heard_voter(self, member: str) -> None:
        if self._near[:1] != [member]:
            self._near = [member, *(other for other in self._near if other != member)]

    def _settle_rounds(self) -> None:
        """Leader: answer the barriers that are certain, begin a round for the others."""
        rounds, member = self._rounds, self._member
        if rounds is None or not rounds.pending or rounds.term != member.term or not member.leads:
            return
        confirmed = rounds.settle(commit_index=member.read_index, majority=member.leads_with)
        if confirmed:
            self._answer_barriers(confirmed)
            self._pass_reads()
        if rounds.begin(commit_index=member.read_index) is not None:
            self._barrier_rounds += 1
            enough = len(member.voters) // 2
            self._ask_voters(rounds, self._near[:enough])
            if self._round_timer is None:
                wait_s = ASK_ALL_S if len(self._near) >= enough else 0.0
                self._round_timer = self._loop.call_later(wait_s, self._ask_all)

    def _answer_barriers(self, confirmed: Sequence[Confirmed]) -> None:
        self._barriers_confirmed += len(confirmed)
        for answer in confirmed:
            if answer.member == self._me:
                self._barriers.confirmed(answer.number, answer.commit_index)
            else:
                # A lost one is no harm: the link is gone, and the barrier is sent again.
                reached = Reached(number=answer.number, index=answer.commit_index)
                self._member.send(answer.member, exchange.encode(reached))

    def _ask_voters(self, rounds: Rounds, members: Iterable[str]) -> None:
        question = exchange.encode(Round(term=rounds.term, number=rounds.number))
        for member in members:
            self._member.send(member, question)

    def _ask_all(self) -> None:
        """A round that nobody answers in time is asked of everybody: one may be gone, or stand still."""
        self._round_timer = None
        rounds = self._rounds
        if rounds is not None and rounds.under_way:
            self._ask_voters(rounds, sorted(self._member.linked - rounds.standing))
            self._round_timer = self._loop.call_later(ASK_ALL_S, self._ask_all)

    def _pass_reads(self) -> None:
        """Let reads go whose barrier is passed, and send the next one."""
        if not self._reads:
            return
        self._barriers.applied(self._member.applied_index, now=self._loop.time())
        passed = self._barriers.passed
        for number in list(self._reads):
            if number > passed:
                break
            self._end_reads(number, None)
        self._ask()

    def _end_reads(self, number: int, error: NoQuorum | None) -> None:
        for told in self._reads.pop(number).told:
            try:
                told(number, error)
            except Exception:
                logger.exception("reads failed after their barrier number=%d", number)

    def _refuse_late_reads(self) -> None:
        """One timer for all reads: the oldest ones have the first deadline."""
        self._reads_timer = None
        self._refuse_reads(up_to=self._loop.time())
        first = next(iter(self._reads.values()), None)
        if first is not None:
            self._reads_timer = self._loop.call_at(first.deadline, self._refuse_late_reads)

    def _refuse_reads(self, *, up_to: float) -> None:
        error = self._no_barrier()
        for number, reads in list(self._reads.items()):
            if reads.deadline > up_to:
                break
            self._end_reads(number, error)

    def _no_barrier(self) -> NoQuorum:
        if self._closed:
            return NoQuorum("name server not ready: it is shutting down")
        leader = self._member.leader
        if self._in_contact() and leader != self._me and self._route_of_barriers() is None:
            return NoQuorum(f"name server not ready: leader {leader} runs an older release without barriers")
        return NoQuorum(f"name server not ready: {self._why_not()}")

    # -- requests -----------------------------------------------------------------------------------------

    def heard_over(self, origin: ConnectionId) -> Heard:
        """Return what this process knows of the sender behind a connection."""
        return _Heard(self._liveness, origin, self._liveness.clock)

    def arriving(self, broker: BrokerKey, origin: ConnectionId, *, lease_ms: int) -> None:
        """Note that a registration arrived; :meth:`answered` must follow."""
        mark = broker, origin
        self._in_flight[mark] = self._in_flight.get(mark, 0) + 1
        self._hear(broker, origin, lease_ms=lease_ms)

    def _hear(self, broker: BrokerKey, origin: ConnectionId, *, lease_ms: int) -> None:
        """Note who registers over which connection."""
        before = self._liveness.contact(broker)
        self._liveness.registering(broker, origin, lease_s=lease_ms / 1000)
        if before is None or before.owner != origin or not before.connected:
            self._report_soon()

    def answered(self, broker: BrokerKey, origin: ConnectionId) -> None:
        """Note that a registration has its answer, whatever it is."""
        mark = broker, origin
        left = self._in_flight[mark] - 1
        if left:
            self._in_flight[mark] = left
        else:
            del self._in_flight[mark]

    def renew(self, renewal: Renewal, origin: ConnectionId) -> Answer | Command:
        """Answer what changes nothing, if this process may vouch for the record (rule 3)."""
        if not renewal.registration:
            lease_s = None if renewal.lease_ms is None else renewal.lease_ms / 1000
            self._liveness.heard(renewal.broker, origin, lease_s=lease_s)
        if renewal.revision is None or renewal.lease_ms is None:
            return renewal.otherwise
        decided = answer_or_touch(
            self._liveness.contact(renewal.broker),
            origin,
            acknowledged_at=self._reporter.heard_acknowledged(renewal.broker),
            clock=self._liveness.clock,
            in_contact=self._in_contact(),
            lease_s=renewal.lease_ms / 1000,
        )
        if decided is Unchanged.TOUCH:
            return renewal.otherwise
        if renewal.registration:
            self._registered(renewal.broker, origin, revision=renewal.revision)
        return renewal.answer

    def part(self, farewell: Farewell, origin: ConnectionId) -> Answer:
        """Take a broker's goodbye over a connection of its own: evidence as a close is, answered at once."""
        broker = farewell.broker
        if farewell.late:
            logger.info("late unregistration ignored broker=%s connection=%s", broker, origin)
            self._history.broker_changed(broker, Note.LATE_UNREGISTER, at_ms=time.time_ns() // 1_000_000)
            return farewell.answer
        self._liveness.withdrawn(broker, origin, revision=self._revision_of(broker))
        self._report_soon()
        return farewell.answer

    async def change_settings(self, change: SettingsChange) -> Answer:
        """Put settings in force, on this nameserver alone, and keep them in its file."""
        self._settings.change(change.after, change.changes)
        for key, value in change.changes.items():
            logger.info("setting changed key=%s value=%s", key, value)
        path = Path(change.after.store_path)
        async with self._files:
            try:
                await asyncio.to_thread(save_settings_file, path, dict(self._settings.stored))
            except OSError as error:
                logger.error("settings not kept file=%s error=%s", path, error)
                return refusal(f"in force, but not kept in a file: {error}")
        return change.answer

    # -- proposals ----------------------------------------------------------------------------------------

    async def propose(self, command: Command, *, deadline: float) -> tuple[Verdict, bool]:
        """Propose a command and wait for its verdict.

        Returns:
            As :data:`Told` has it.

        Raises:
            NoQuorum, OutcomeUnknown, CommandTooLarge: As :meth:`Mode.propose`.
        """
        waiter: asyncio.Future[tuple[Verdict, bool]] = self._loop.create_future()

        def told(outcome: Verdict | ConsistencyError, may_turn_up: bool) -> None:
            if waiter.done():
                return
            if isinstance(outcome, ConsistencyError):
                waiter.set_exception(outcome)
            else:
                waiter.set_result((outcome, may_turn_up))

        sequence = self.enter(command, deadline=deadline, told=told)
        try:
            return await waiter
        finally:
            self._strike_out(sequence)

    def enter(
        self,
        command: Command,
        *,
        deadline: float,
        told: Told,
        registration: tuple[BrokerKey, ConnectionId] | None = None,
    ) -> int:
        """Propose a command; ``told`` is called later, and returns before anything else happens here.

        Args:
            registration: The broker, and the connection over which it registers.

        Returns:
            The proposal's sequence.

        Raises:
            NoQuorum, CommandTooLarge: Nothing was proposed.
        """
        data = encode_command(command)
        if self._closed:
            raise NoQuorum("not applied: this name server is shutting down")
        if _format_of(data) > self._reporter.understood:
            raise NoQuorum(
                f"not applied: it needs format {_format_of(data)}, and a member knows only "
                f"{self._reporter.understood}, or has not said yet: it runs an older release"
            )
        if not self._book.has_room(data):
            raise NoQuorum("not applied: too many changes are under way here")
        sequence = self._book.add(data, deadline=deadline)
        until = deadline - ANSWER_MARGIN_S
        self._waiters[sequence] = _Waiter(told, until)
        self._give_up_at(until)
        self._commands[self._boot_id, sequence] = command
        if registration is not None:
            self._registering[sequence] = registration
            if len(self._registering) > LATE_MAX:
                self._registering.popitem(last=False)
        self._work_soon()
        return sequence

    def _strike_out(self, sequence: int) -> tuple[_Waiter | None, int]:
        """Forget a proposal; return who waited for it, and how many copies may yet turn up in a log."""
        self._commands.pop((self._boot_id, sequence), None)
        waiting = self._book.remove(sequence)
        return self._waiters.pop(sequence, None), 0 if waiting is None else waiting.copies

    def _give_up_at(self, until: float) -> None:
        """One timer for all who wait: nearly all have their verdict long before it fires."""
        timer = self._verdict_timer
        if timer is not None:
            if timer.when() <= until:
                return
            timer.cancel()
        self._verdict_timer = self._loop.call_at(until, self._give_up_late)

    def _give_up_late(self) -> None:
        self._verdict_timer = None
        now = self._loop.time()
        for sequence in [sequence for sequence, waiter in self._waiters.items() if waiter.until <= now]:
            self._give_up(sequence)
        if self._waiters:
            self._give_up_at(min(waiter.until for waiter in self._waiters.values()))

    def _give_up(self, sequence: int) -> None:
        """Settle a proposal that got no verdict in time: not applied if it never left, else unknown."""
        waiter, copies = self._strike_out(sequence)
        if waiter is None:
            return
        if not copies:
            if self._sequencer is not None:  # our own queue as leader may hold it yet
                self._sequencer.withdraw(self._boot_id, sequence)
            self._registering.pop(sequence, None)
            self._refused_writes += 1
            waiter.told(NoQuorum(f"not applied: {self._why_not()}"), False)
        else:
            self._unknown_outcomes += 1
            unknown = f"no verdict within {WRITE_DEADLINE_S} s, it may apply yet: {self._why_not()}"
            waiter.told(OutcomeUnknown(unknown), True)

    def _work_soon(self) -> None:
        """Report, send and append once after everything that is ready in this turn of the loop."""
        if not self._work_due and not self._closed:
            self._work_due = True
            self._loop.call_soon(self._work)

    def _report_soon(self) -> None:
        self._report_due = True
        self._work_soon()

    def _work(self) -> None:
        self._work_due = False
        if self._closed:
            return
        if self._report_due:
            self._report_due = not self._report()
        if not self._report_due:
            self._hand_out()  # a line about a connection precedes the command that came over it
        self._mark_office()
        self._append()
        self._release()
        self._pass_reads()

    def _hand_out(self) -> None:
        """Give the leader what it does not have yet."""
        now, term, leader = self._loop.time(), self._member.term, self._member.leader
        if self._sequencer is not None and self._sequencer.term == term:
            for proposal in self._book.outgoing((term, 0), now=now):
                self._book.handed(proposal.sequence, (term, 0), now=now, may_reach_log=False)
                self._offer(proposal, self._me)
            return
        if leader is None or leader == self._me or leader not in self._linked:
            return
        route = (term, self._links[leader])
        chunk: list[Proposal] = []
        size = 0
        for proposal in self._book.outgoing(route, now=now):
            if chunk and size + len(proposal.command) > PROPOSE_BYTES:
                if not self._send_chunk(leader, route, chunk, now):
                    return
                chunk, size = [], 0
            chunk.append(proposal)
            size += len(proposal.command)
        if chunk:
            self._send_chunk(leader, route, chunk, now)

    def _send_chunk(self, leader: str, route: tuple[int, int], chunk: list[Proposal], now: float) -> bool:
        message = Propose(term=route[0], proposals=tuple(chunk))
        if not self._member.send(leader, exchange.encode(message)):
            return False
        for proposal in chunk:
            self._book.handed(proposal.sequence, route, now=now, may_reach_log=True)
        return True

    def _offer(self, proposal: Proposal, member: str) -> None:
        """Take a proposal into the leader's queue, or say when to decide again."""
        sequencer = self._sequencer
        assert sequencer is not None, "offered without leading"
        understood = FIRST_COMMAND_FORMAT if self._evidence is None else self._evidence.understood()
        if _format_of(proposal.command) > understood:
            # Whoever proposed it was told otherwise by a former leader; it is sent again, and told anew.
            logger.warning(
                "proposal refused member=%s format=%d understood=%d",
                member,
                _format_of(proposal.command),
                understood,
            )
            return
        mark = (proposal.boot_id, proposal.sequence)
        command = self._commands.get(mark)
        if command is None:
            try:
                command = decode_command(proposal.command)
            except CommandFormatError as error:
                logger.error("proposal refused member=%s error=%s", member, error)
                return
            self._commands[mark] = command
        deferral = sequencer.offer(
            proposal,
            command,
            member,
            moved=self._table.moved(command),
            applied_index=self._member.applied_index,
        )
        if deferral is not None:
            self._send_deferrals([(member, deferral)])

    def _append(self) -> None:
        """Append what waits, unless an entry of ours is in flight."""
        sequencer = self._sequencer
        if sequencer is None:
            return
        batch = sequencer.next_batch()
        if batch is None:
            return
        index = self._member.append(encode_batch(batch), term=sequencer.term)
        if index is None:
            if self._member.role is Role.LEADER and self._member.term == sequencer.term:
                sequencer.not_appended()  # it hands over, perhaps in vain: the next tick tries again
            else:
                self._stop_leading()
            return
        for proposal in batch.proposals:
            if proposal.boot_id == self._boot_id:
                self._book.appended(proposal.sequence)
        self._send_deferrals(sequencer.appended(index))

    def _send_deferrals(self, deferrals: Iterable[tuple[str, Deferral]]) -> None:
        by_member: dict[str, list[Deferral]] = {}
        for member, deferral in deferrals:
            self._commands.pop((deferral.boot_id, deferral.sequence), None)
            by_member.setdefault(member, []).append(deferral)
        for member, told in by_member.items():
            term = self._member.term
            if member == self._me:
                for deferral in told:
                    self._book.defer(deferral, term=term)
            else:
                # A lost one is no harm: the proposal is sent again.
                self._member.send(member, exchange.encode(Deferred(term=term, deferrals=tuple(told))))

    def _release(self) -> None:
        """Let deferred proposals be decided again."""
        for sequence in self._book.released(applied_index=self._member.applied_index, term=self._member.term):
            waiter, copies = self._strike_out(sequence)
            if waiter is not None:
                waiter.told(Moved(revision=self._table.revision), copies > 0)

    # -- the engine's side --------------------------------------------------------------------------------

    def _on_change(self) -> None:
        """Follow the member's role, term, leader and links."""
        if self._closed:
            return
        member = self._member
        linked = member.linked
        for peer in linked - self._linked:
            self._links[peer] = self._links.get(peer, 0) + 1
        leader_linked_anew = member.leader in linked - self._linked
        self._linked = linked
        term = member.term
        self._barrier_route = None
        self._near = [member_ for member_ in self._near if member_ in linked]
        self._follow_role()
        if member.leader is not None and (self._reporter.lead_by(term) or leader_linked_anew):
            self._report_due = True
        self._say_contact()
        self._look_for_contact()
        self._settle_rounds()
        self._work_soon()

    def _follow_role(self) -> None:
        """Lead if this member leads, in its present term.

        Also called when a proposal arrives: members may know of a new leader before its own loop turns.
        """
        member, term = self._member, self._member.term
        if member.role is not Role.LEADER:
            self._stop_leading()
        elif self._sequencer is None or self._sequencer.term != term:
            self._stop_leading()
            self._sequencer = Sequencer(term=term)
            self._rounds = Rounds(term=term)
            logger.info("leading term=%d", term)
            self._office_due = True
            self._mark_office()

    def _mark_office(self) -> None:
        """Mark in the log who took office, see Evidence.prior_term; again if it was not the time for it."""
        if self._office_due and self._sequencer is not None:
            mark = encode_batch(Batch(proposals=()))
            self._office_due = self._member.append(mark, term=self._sequencer.term) is None

    def _stop_leading(self) -> None:
        if self._sequencer is None:
            return
        logger.info("no longer leading term=%d", self._sequencer.term)
        self._sequencer = None
        self._rounds = None
        self._evidence = None
        self._early.clear()
        for mark in [mark for mark in self._commands if mark[0] != self._boot_id]:
            del self._commands[mark]

    def apply(self, payload: bytes, *, index: int, term: int, live: bool) -> None:
        """Apply one entry, see :class:`StateMachine`."""
        try:
            batch = decode_batch(payload)
            # All are read before the first is applied: a member that does not understand one applies none.
            commands = [self._command(proposal) for proposal in batch.proposals]
        except CommandFormatError as error:
            raise StopMember(f"{error}; install the release that the other members run") from error
        # The table first, and all of it: what follows is of this process alone, and a defect there must not
        # make this member's table differ.
        verdicts = [self._table.apply(command) for command in commands]
        for proposal, command, verdict in zip(batch.proposals, commands, verdicts, strict=True):
            try:
                if isinstance(verdict, Applied):
                    self._follow(command, verdict, live=live)
                if proposal.boot_id == self._boot_id:
                    self._settle(proposal.sequence, verdict)
            except Exception:
                # The table is changed already: a failing side effect must not make members differ.
                logger.exception("what follows a change failed index=%d command=%s", index, type(command))
        if not batch.proposals and live:
            self._take_office(term)
        self._led_term = max(self._led_term, term)
        if self._sequencer is not None:
            self._sequencer.applied(index)
        if live:
            self._work_soon()
        settled, self._to_tell = self._to_tell, []
        for told, verdict in settled:
            try:
                told(verdict, False)
            except Exception:
                logger.exception("a change was not answered index=%d", index)

    def _command(self, proposal: Proposal) -> Command:
        command = self._commands.pop((proposal.boot_id, proposal.sequence), None)
        return decode_command(proposal.command) if command is None else command

    def snapshot(self) -> Callable[[], bytes]:
        """Return what encodes the state as it is now, see :class:`StateMachine`."""
        image, led_term = self._table.copy_for_snapshot(), self._led_term

        def encode() -> bytes:
            table = encode_image(image)
            return msgspec.msgpack.encode(_Image(format=IMAGE_FORMAT, led_term=led_term, table=table))

        return encode

    def prepare(self, image: bytes | bytearray) -> Callable[[], None]:
        """Read a state image in a thread, see :class:`StateMachine`."""
        found = msgspec.msgpack.decode(image, type=_Image)
        if found.format != IMAGE_FORMAT:
            raise StopMember(f"state image has format {found.format}, this program knows {IMAGE_FORMAT}")
        table, led_term = RouteTable.restore(found.table), found.led_term
        return lambda: self._install(table, led_term)

    def _install(self, table: RouteTable, led_term: int) -> None:
        """Replace the state by a prepared one."""
        self._table.adopt(table)
        self._repeats.clear()  # another table may have the same revision
        self._repeats_bytes = 0
        self._led_term = led_term
        self._kv_changed.set()
        for waiters in list(self._topic_waiters.values()):
            _wake(waiters)

    def _settle(self, sequence: int, verdict: Verdict) -> None:
        """Take the verdict on a proposal of this process."""
        registration = self._registering.pop(sequence, None)
        if registration is not None and isinstance(verdict, Applied | NoChange):
            revision = verdict.reply.revision if isinstance(verdict.reply, RegisterReply) else None
            if revision is not None:
                self._registered(*registration, revision=revision)
        self._book.remove(sequence)
        waiter = self._waiters.pop(sequence, None)
        if waiter is not None:
            self._to_tell.append((waiter.told, verdict))

    def _registered(self, broker: BrokerKey, origin: ConnectionId, *, revision: int) -> None:
        before = self._liveness.version
        self._liveness.registered(broker, origin, revision=revision)
        if self._liveness.version != before:
            self._report_soon()

    def _follow(self, command: Command, applied: Applied, *, live: bool) -> None:
        """Do what an applied change asks for outside the table; effects only for entries applied live."""
        if isinstance(command, RegisterBroker) and applied.of_topics_alone and not self._topic_waiters:
            return
        if applied.kv_changed:
            self._kv_changed.set()
        for gone in applied.left:
            self._liveness.removed(gone.broker)
            self._reporter.removed(gone.broker)
            if self._evidence is not None:
                self._evidence.removed(gone.broker)
        if applied.joined is not None and self._evidence is not None:
            self._evidence.listed(applied.joined, clock=self._liveness.clock)
        for topic in list(self._table.view.affected(applied, self._topic_waiters.keys())):
            _wake(self._topic_waiters[topic])
        if not live:
            return
        note_applied(self._history, command, applied, at_ms=time.time_ns() // 1_000_000)
        if applied.joined is not None:
            logger.info("broker registered broker=%s revision=%d", applied.joined, applied.revision)
        for gone in applied.left:
            logger.info(
                "broker left broker=%s name=%s reason=%s revision=%d",
                gone.broker,
                gone.broker_name,
                gone.reason,
                applied.revision,
            )
        if isinstance(command, Evict):
            for origin in self._liveness.connections_of(command.broker, up_to_revision=command.revision):
                if (command.broker, origin) not in self._in_flight:
                    self._effects.close_connection(origin)
        if self._member.leads and self._settings.current.notify_min_broker_id_changed:
            for change in applied.min_changes:
                self._effects.notify_min_broker(change)

    # -- liveness -----------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self._closed:
            return
        self._tick_timer = self._loop.call_later(CLOCK_PERIOD_S, self._tick)
        self._liveness.advance(self._loop.time())
        if self._liveness.clock >= self._prune_at:
            self._prune_at = self._liveness.clock + PRUNE_PERIOD_S
            self._liveness.prune()
            self._reporter.prune(self._is_listed)
            if self._evidence is not None:
                self._evidence.prune(self._is_listed, clock=self._liveness.clock)
        if self._member.leader is not None and self._reporter.due():
            self._report_due = True
        here = self._here()
        if here != self._judged_with or self._liveness.clock >= self._judge_all_at:
            self._judged_with = here
            self._judge_all_at = self._liveness.clock + REPORT_PERIOD_S
            self._judge(list(self._table.view.records()))
        self._work()

    def _report(self) -> bool:
        """Tell the leader what changed here; the leader tells itself.

        Returns:
            Whether there is a leader that could be told.
        """
        leader = self._member.leader
        if leader is None or (leader != self._me and leader not in self._linked):
            return False
        self._reporter.lead_by(self._member.term)
        report = self._reporter.report()
        if leader == self._me:
            self._receive(self._me, report)
            return True
        return self._member.send(leader, exchange.encode(report))

    def _receive(self, member: str, report: Report) -> None:
        """Leader: take a report, answer it, judge whom it speaks of."""
        evidence = self._evidence
        if evidence is None or evidence.term != report.term:
            if report.term >= self._member.term:
                self._early[member] = report
            return
        evidence.members_are(self._member.members)
        answer = evidence.receive(member, report, clock=self._liveness.clock)
        if answer is None:
            return
        if member == self._me:
            self._reporter.acknowledged(answer)
        else:
            self._member.send(member, exchange.encode(answer))
        view = self._table.view
        told = [view.record(line.broker) for line in report.lines if not line.connected]
        self._judge([record for record in told if record is not None])

    def _take_office(self, term: int) -> None:
        """An entry of our own is committed and applied: from here on this leader counts and judges."""
        if self._member.role is not Role.LEADER or self._member.term != term:
            return
        self._evidence = Evidence(
            term=term,
            members=self._member.members,
            prior_term=self._led_term,
            clock=self._liveness.clock,
            judge_after_s=4 * self._member.contact_limit,
        )
        self._reporter.lead_by(term)
        self._report_soon()
        early, self._early = self._early, {}
        for member, report in early.items():
            self._receive(member, report)

    def _judge(self, records: list[Record]) -> None:
        evidence, sequencer = self._evidence, self._sequencer
        if evidence is None or sequencer is None or sequencer.term != evidence.term:
            return
        here = self._here()
        evidence.members_are(self._member.members)
        evidence.out_of_contact(set(self._member.members) - here)
        for judgement in evidence.judge(records, in_contact=here, clock=self._liveness.clock):
            self._evict(judgement)

    def _here(self) -> set[str]:
        """Leader: the members in contact, itself included; empty elsewhere."""
        if self._evidence is None:
            return set()
        heard_within = 2 * self._member.contact_limit
        return {m for m in self._member.members if self._member.member_age(m) < heard_within}

    def _evict(self, judgement: Judgement) -> None:
        """Propose an eviction. Only this leader may append it, and only in the term in which it judged."""
        command = Evict(
            cluster_name=judgement.broker.cluster_name,
            broker_addr=judgement.broker.broker_addr,
            revision=judgement.revision,
            reason=judgement.reason,
        )
        proposal = Proposal(
            boot_id=self._boot_id, sequence=self._book.next_sequence(), command=encode_command(command)
        )
        self._offer(proposal, self._me)
        self._work_soon()

    # -- messages of other members ------------------------------------------------------------------------

    def _on_peer_message(self, member: str, data: bytes) -> None:
        if self._closed:
            return
        try:
            message = exchange.decode(data)
        except ExchangeError as error:
            logger.error("peer message refused member=%s error=%s", member, error)
            return
        match message:
            case Barrier():
                self._on_barrier(member, message)
            case Reached(number=number, index=index):
                self._barriers.confirmed(number, index)
                self._pass_reads()
            case Round(term=term, number=number):
                if term == self._member.term and self._member.role is not Role.LEARNER:
                    self._member.send(member, exchange.encode(Stands(term=term, number=number)))
            case Stands(term=term, number=number):
                if self._rounds is not None and self._rounds.term == term:
                    self._heard_voter(member)
                    self._rounds.stands(member, number)
                    self._settle_rounds()
            case Report():
                self._receive(member, message)
            case Acknowledgement():
                if member == self._member.leader and self._reporter.acknowledged(message):
                    self._report_soon()
                self._barrier_route = None
                self._ask()
            case Propose(term=term, proposals=proposals):
                self._follow_role()
                if self._sequencer is not None and self._sequencer.term == term:
                    for proposal in proposals:
                        self._offer(proposal, member)
                    self._work_soon()
            case Deferred(term=term, deferrals=deferrals):
                for deferral in deferrals:
                    self._book.defer(deferral, term=term)
                self._work_soon()

    # -- KV configuration ---------------------------------------------------------------------------------

    async def _import_kv(self) -> None:
        """Offer the KV file found at the start to a group that has never held any KV configuration.

        Whoever is first wins; the table rejects every later import, and then the file is only written.
        """
        command = ImportKv(table=self._kv_found)
        while not self._table.view.kv_table():
            try:
                verdict, _ = await self.propose(command, deadline=self._loop.time() + WRITE_DEADLINE_S)
            except (NoQuorum, OutcomeUnknown):
                await asyncio.sleep(IMPORT_RETRY_S)
                continue
            if isinstance(verdict, Applied):
                logger.info("KV configuration imported file=%s", self._settings.current.kv_path)
            if not isinstance(verdict, Moved):
                return

    async def _export_kv(self) -> None:
        """Keep the KV file as the table is, for RocketMQ's tools and for leaving this mode.

        What the disk does not take is tried again until it does, whether or not anything changes meanwhile.
        """
        path = Path(self._settings.current.kv_path)
        failing = False
        while True:
            await self._kv_changed.wait()
            self._kv_changed.clear()
            table = self._table.view.kv_table()
            if table:
                try:
                    await asyncio.to_thread(_save_if_other, path, encode_kv(table))
                except OSError as error:
                    if not failing:  # once, not at each new try
                        logger.error("KV configuration not exported file=%s error=%s", path, error)
                    failing = True
                    if not self._closed:
                        self._loop.call_later(EXPORT_RETRY_S, self._kv_changed.set)
                else:
                    if failing:
                        logger.info("KV configuration exported again file=%s", path)
                    failing = False
            if self._closed and not self._kv_changed.is_set():
                return

    # -- small things -------------------------------------------------------------------------------------

    def _revision_of(self, broker: BrokerKey) -> int | None:
        record = self._table.view.record(broker)
        return None if record is None else record.revision

    def _is_listed(self, broker: BrokerKey) -> bool:
        return self._table.view.record(broker) is not None

    async def _next_change(self, topic: str) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()
        waiters = self._topic_waiters.setdefault(topic, set())
        waiters.add(waiter)
        try:
            await waiter
        finally:
            waiters.discard(waiter)
            if not waiters:
                self._topic_waiters.pop(topic, None)


class _Operations:
    """What operators do to the group, through this member; see :class:`Operations`."""

    def __init__(self, mode: Replicated, member: RaftMember) -> None:
        self._mode = mode
        self._member = member

    def raft_status(self) -> dict[str, object]:
        return self._mode.raft_status()

    async def add_member(self, address: str, *, deadline: float) -> None:
        await self._member.add_member(address, deadline=deadline)

    async def remove_member(self, address: str, *, deadline: float) -> None:
        await self._member.remove_member(address, deadline=deadline)

    async def transfer_leadership(self, to: str | None, *, deadline: float) -> str:
        return await self._member.transfer_leadership(to, deadline=deadline)

    async def save_snapshot(self, *, deadline: float) -> SnapshotInfo:
        return await self._member.save_snapshot(deadline=deadline)

    async def restore_snapshot(self, image: bytes, *, deadline: float) -> None:
        await self._member.restore_snapshot(image, deadline=deadline)


class _Serving:
    """One request on its way through :func:`serve`: the mode, and the connection it came over."""

    def __init__(self, mode: Replicated, origin: ConnectionId) -> None:
        self._mode = mode
        self._origin = origin
        self._unsure = False  # an earlier command of this request may yet turn up in a log

    @property
    def settings(self) -> LiveSettings:
        return self._mode.settings

    async def readable(self, request: Request, *, deadline: float) -> RouteView:
        if request.code in READS:
            freshness = Freshness(self.settings.current.route_freshness)
            return await self._mode.await_view(freshness, deadline=deadline)
        if request.code == RequestCode.QUERY_DATA_VERSION:
            await self._mode.require_contact(deadline=deadline - ANSWER_MARGIN_S)
        return self._mode.view(Freshness.STALE)

    def heard_over(self, origin: ConnectionId) -> Heard:
        return self._mode.heard_over(origin)

    async def renew(self, renewal: Renewal, origin: ConnectionId, *, deadline: float) -> Answer | Command:
        return self._mode.renew(renewal, origin)

    async def propose(self, command: Command, *, deadline: float) -> Verdict:
        try:
            verdict, may_turn_up = await self._mode.propose(command, deadline=deadline)
        except NoQuorum as error:
            if self._unsure:
                raise OutcomeUnknown(str(error)) from None
            raise
        self._unsure = self._unsure or may_turn_up
        return verdict

    async def part(self, farewell: Farewell, origin: ConnectionId, *, deadline: float) -> Answer:
        return self._mode.part(farewell, origin)

    async def change_settings(self, change: SettingsChange) -> Answer:
        return await self._mode.change_settings(change)


def _format_of(command: bytes) -> int:
    """The format version that an encoded command starts with; a new kind of command has a new one."""
    return command[0] if command else 0


def _save_if_other(path: Path, content: bytes) -> None:
    if not path.exists() or path.read_bytes() != content:
        write_atomic(path, content)


def _wake(waiters: set[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
