"""Simulated nameservers. Each is a real :class:`Replicated` in a simulated process."""

from __future__ import annotations

import asyncio
import logging
import shutil
from asyncio.events import _get_running_loop, _set_running_loop
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from routekeeper.nameserver.commands import Command, Evict
from routekeeper.nameserver.modes.interface import NO_QUORUM_TAG, Freshness, NoQuorum
from routekeeper.nameserver.raft.consensus.log import FIRST_INDEX
from routekeeper.nameserver.raft.types import RaftConfig, RaftStartError
from routekeeper.nameserver.replicated import Replicated, raft_config
from routekeeper.nameserver.replicated.observer import Observer
from routekeeper.nameserver.replicated.peer_messages import Report
from routekeeper.nameserver.routes.entries import Record
from routekeeper.nameserver.routes.view import RouteView
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.settings.ranking import load_settings
from routekeeper.nameserver.types import Answer, BrokerKey, ConnectionId, MinBrokerChange, Request
from routekeeper.nameserver.verdicts import Applied, NoChange, Verdict
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.route import RouteDialect, encode_route
from routekeeper.remoting.steps import Steps

from .disk import Crashed, Disk
from .net import End, NetLoop
from .operator import is_refusal
from .oracles import Oracle
from .seams import Machine, running
from .truth import ANSWER_S, TURNS_S, Truth

if TYPE_CHECKING:
    from routekeeper.nameserver.raft.consensus.engine import Engine

    from .world import World

_T = TypeVar("_T")

FORGOTTEN_S = ANSWER_S + 0.2
"""Seconds after which an unanswered request is reported as forgotten; answers must come earlier."""

logger = logging.getLogger(__name__)


class Watched(Replicated):
    """The real raft mode. It also reports its changes to the simulator's :class:`Truth`."""

    def __init__(
        self, host: Member, settings: LiveSettings, effects: Server, *, boot_id: int, raft: RaftConfig
    ) -> None:
        self.host = host
        self.truth = host.world.truth
        self.started = False
        self.looked_at_index = -1
        self.looked_at_term = host.promised_term
        self.verdicts: list[tuple[Command, Verdict]] = []
        self.connected_at: dict[BrokerKey, float] = {}
        self.heard_at: dict[BrokerKey, float] = {}
        self.index = 0
        """Index of the entry that is being applied."""
        self.digest_of_whole_commands = ""
        """Digest of the table after the last command that is completely applied."""
        self.boot_id = boot_id
        super().__init__(
            settings,
            effects,
            boot_id=boot_id,
            raft=raft,
            on_fatal=host.stopped,
            on_removed=lambda reason: host.was_removed(),
            observer=Observing(self),
        )

    @property
    def state_digest(self) -> str:
        return self._digests_applied[2]

    def view_now(self) -> RouteView:
        return self._table.view

    @property
    def in_contact(self) -> bool:
        return self._member.in_contact()

    def in_contact_now(self) -> bool:
        """Return True if the member had contact with a majority recently enough.

        Unlike ``in_contact``, this method may be called from outside the member's process.
        """
        return self.host.look(lambda mode: mode.in_contact)

    @property
    def judges(self) -> bool:
        """Return True if this member leads and is ready to evict brokers."""
        detector = self.leader.failure_detector
        return (
            detector is not None
            and detector.term == self._member.term
            and self._member.leads
            and detector.ready(self._liveness.clock)
            and self._member.in_contact()
        )

    def hand_over(self) -> None:
        """Hand over leadership, as a leader does when it closes."""
        self._member.hand_over()

    @property
    def waits_to_be_added(self) -> bool:
        """Return True if this member waits until a leader adds it to the group.

        A member waits if it never took part in the group. It also waits if its disk was emptied, until it
        receives a change of members. A member that waits ignores the message "you were removed"; see
        ``Membership.on_removed``.
        """
        if not self._member.started or self._member.engine.shared.empty:
            return True
        engine = self._member.engine
        index, _ = engine.shared.log.committed_configuration(engine.commit_index)
        return index == FIRST_INDEX and not engine.shared.may_vote

    @property
    def promises_kept(self) -> bool:
        """Return True if the member's new role is stored on the disk.

        Until then, a crash makes the member a learner again.
        """
        return self._member.promises_kept

    @property
    def engine(self) -> Engine:
        """The member's engine. It exists after the member has started."""
        return self._member.engine

    def was_paused_since(self, at: float) -> bool:
        return self.host.paused_at_last > at

    # -- calls that the raft log makes

    def apply(self, payload: bytes, *, index: int, term: int, live: bool) -> Steps[None]:
        self.verdicts.clear()
        self.index = index
        self.digest_of_whole_commands = self.view_now().state_digest()
        yield from super().apply(payload, index=index, term=term, live=live)
        self.truth.applied(self, index, term, payload)

    # -- liveness

    def note(self, broker: BrokerKey) -> None:
        now = self.host.world.clock.now
        contact = self._liveness.contact(broker)
        if contact is not None and contact.connected:
            self.connected_at.setdefault(broker, now)
        else:
            self.connected_at.pop(broker, None)

    def note_all(self) -> None:
        for broker in list(self.connected_at):
            self.note(broker)

    def _closing(self, origin: ConnectionId, *, by_us: bool) -> Steps[bool]:
        closed = yield from super()._closing(origin, by_us=by_us)
        self.note_all()
        return closed


class Observing(Observer):
    """An observer that reports a member's applied commands, contacts and evictions to :class:`Truth`."""

    def __init__(self, mode: Watched) -> None:
        self._mode = mode
        self._truth = mode.truth
        self._before: Record | None = None

    def applying(self, command: Command) -> None:
        if self._is_first:
            self._before = self._truth.before(command, self._mode.view_now())

    def applied(self, command: Command, verdict: Verdict) -> None:
        mode = self._mode
        mode.verdicts.append((command, verdict))
        mode.digest_of_whole_commands = mode.view_now().state_digest()
        if self._is_first:
            self._truth.after(command, verdict, mode.view_now(), self._before, mode.index)

    @property
    def _is_first(self) -> bool:
        return self._mode.index not in self._truth.log

    def settled(self, verdict: Verdict) -> None:
        if isinstance(verdict, Applied | NoChange):
            self._truth.acknowledged(self._mode.index)

    def renewed(self, answer: Answer) -> None:
        if answer.code == ResponseCode.SUCCESS:
            self._truth.count["answered without the log"] += 1
            self._truth.check_promise(self._mode, "an answer without the log")

    def heard(self, broker: BrokerKey, *, registers: bool) -> None:
        self._mode.heard_at[broker] = self._mode.host.world.clock.now
        if registers:
            self._mode.note(broker)

    def withdrawn(self, broker: BrokerKey) -> None:
        self._mode.note_all()

    def reporting(self, report: Report) -> None:
        for line in report.contacts:
            if line.closed_at is not None:
                self._truth.reported(line.broker, line.closed_revision)

    def evicting(self, eviction: Evict, sequence: int) -> None:
        self._truth.judged(self._mode, eviction, (self._mode.boot_id, sequence))


class Server:
    """A replacement of the nameserver's server, which passes requests to :class:`Watched`."""

    def __init__(self, host: Member) -> None:
        self.host = host
        self.life = host.life
        self._ends: dict[ConnectionId, End] = {}
        self._unanswered: dict[ConnectionId, int] = {}
        self._close_after: set[ConnectionId] = set()
        self._number = 0
        self._answered: set[tuple[ConnectionId, int]] = set()
        self._waiting: dict[tuple[ConnectionId, int], tuple[float, Request]] = {}  # oldest request first
        self._parked: dict[int, list[tuple[ConnectionId, int, Request]]] = {}
        """Reads that wait for a barrier, by the barrier's number."""
        self._needed: dict[int, int] = {}
        """For each barrier, the greatest index that was acknowledged before the latest read joined it."""
        # ``Reader`` compares callbacks by identity, and each ``self._passed`` would be a new object. So all
        # calls pass this object.
        self._told = self._passed

    def look_for_the_forgotten(self) -> None:
        """Check that each request is answered in time, even if no event wakes its task any more."""
        now = self.host.world.clock.now
        for begun, request in self._waiting.values():
            if now - begun <= FORGOTTEN_S:
                return
            if self.host.paused_at_last < begun:
                self.host.world.truth.fail(
                    Oracle.ANSWERS,
                    f"{self.host.name} has not answered request {request.code} for {now - begun:.3f} s",
                )
                return

    def accept(self, end: End) -> None:
        if end.closed:
            return
        self._number += 1
        origin = ConnectionId(self._number)
        self._ends[origin] = end
        end.receive = lambda item: self._request(origin, *item)
        end.lost = lambda error: self._closed(origin, by_us=False)

    def _closed(self, origin: ConnectionId, *, by_us: bool) -> None:
        if self._ends.pop(origin, None) is not None:
            self.host.running.closed(origin, by_us=by_us)

    def _request(
        self, origin: ConnectionId, number: int, request: Request, freshness: Freshness | None
    ) -> None:
        self._unanswered[origin] = self._unanswered.get(origin, 0) + 1
        self._waiting[origin, number] = self.host.world.clock.now, request
        mode, loop = self.host.running, self.host.loop
        if request.code == RequestCode.REGISTER_BROKER:
            answered = partial(self._answer, origin, number)
            answer = mode.register(request, origin, deadline=loop.time() + ANSWER_S, answered=answered)
            if answer is not None:
                self._answer(origin, number, answer)
        elif freshness is Freshness.LINEARIZABLE and self.host.world.clock.rng.random() < 0.5:
            # The read joins the barrier without a task or a future, as in the real server.
            barrier = mode.join_barrier(self._told)
            self._needed[barrier] = self.host.world.truth.acknowledged_index
            self._parked.setdefault(barrier, []).append((origin, number, request))
        else:
            loop.create_task(self._serve(origin, number, request, freshness))

    def _passed(self, number: int, error: NoQuorum | None) -> None:
        """Answer the reads that wait for a barrier, after the barrier has passed or has failed."""
        # For one barrier, this method is called twice if another caller joins it between two reads. The
        # second call finds no reads, because the first call has answered them.
        mode, needed = self.host.running, self._needed.pop(number, None)
        if error is None and needed is not None:
            self.host.world.truth.check_barrier(mode, needed)
        for origin, read, request in self._parked.pop(number, ()):
            if error is not None:
                self._answer(origin, read, mode.refuse_read(error))
            else:
                self._answer(origin, read, self._found(mode.view(Freshness.STALE), request))

    async def _execute(self, origin: ConnectionId, request: Request, freshness: Freshness | None) -> Answer:
        mode = self.host.running
        deadline = self.host.loop.time() + ANSWER_S
        if freshness is None:
            return await mode.execute(request, origin, deadline=deadline)
        truth = self.host.world.truth
        needed = truth.acknowledged_index
        try:
            topic = request.ext_fields.get("topic")  # None if the request is about KV values
            view = await mode.await_view(freshness, deadline=deadline, topic=topic)
        except NoQuorum as error:
            return Answer(code=ResponseCode.SYSTEM_ERROR, remark=f"{NO_QUORUM_TAG} {error}")
        if freshness is Freshness.LINEARIZABLE:
            truth.check_barrier(mode, needed)
        return self._found(view, request)

    def _found(self, view: RouteView, request: Request) -> Answer:
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            route = view.route(request.ext_fields["topic"])
            if route is None:
                return Answer(code=ResponseCode.TOPIC_NOT_EXIST)
            return Answer(body=encode_route(route, RouteDialect.QUOTED))
        entry = view.kv_value(request.ext_fields["namespace"], request.ext_fields["key"])
        if entry is None or entry.value is None:
            return Answer(code=ResponseCode.QUERY_NOT_FOUND)
        return Answer(code=ResponseCode.SUCCESS, ext_fields={"value": entry.value})

    async def _serve(
        self, origin: ConnectionId, number: int, request: Request, freshness: Freshness | None
    ) -> None:
        try:
            answer = await self._execute(origin, request, freshness)
        except Exception as error:
            self.host.world.truth.fail(
                Oracle.PROCESS, f"{self.host.name} raises for request {request.code}: {error!r}"
            )
            raise
        self._answer(origin, number, answer)

    def _answer(self, origin: ConnectionId, number: int, answer: Answer) -> None:
        world = self.host.world
        if (origin, number) in self._answered:
            world.truth.fail(
                Oracle.ANSWERS, f"{self.host.name} answers request {number} of connection {origin} twice"
            )
            return
        begun, request = self._waiting.pop((origin, number))
        took = world.clock.now - begun
        if took > ANSWER_S + TURNS_S and self.host.paused_at_last < begun:
            world.truth.fail(
                Oracle.ANSWERS, f"{self.host.name} answers request {request.code} after {took:.3f} s"
            )
        self._answered.add((origin, number))
        world.truth.count["answers"] += 1
        end = self._ends.get(origin)
        if end is not None:
            end.send((number, answer))
        self._unanswered[origin] -= 1
        if origin in self._close_after and not self._unanswered[origin]:
            self._close(origin)

    def _close(self, origin: ConnectionId) -> None:
        end = self._ends.get(origin)
        if end is not None:
            end.close()
            self._closed(origin, by_us=True)

    # -- methods of the interface Effects

    def close_connection(self, origin: ConnectionId) -> None:
        if self._unanswered.get(origin):
            self._close_after.add(origin)
        else:
            self.host.loop.call_soon(self._close, origin)

    def notify_min_broker(self, change: MinBrokerChange) -> None:
        self.host.world.truth.count["905"] += 1


class MemberLoop(NetLoop):
    """A nameserver's event loop.

    While the loop runs, :func:`seams.machine` returns the simulated machine on which this nameserver runs.
    """

    machine: Machine
    member: Member

    truth: Truth

    def _enter(self) -> asyncio.AbstractEventLoop | None:
        # Copy the code of the base class, because a call of its method in each turn would take too much time.
        running.append(self.machine)
        before = _get_running_loop()
        _set_running_loop(self)
        return before

    def _leave(self, before: asyncio.AbstractEventLoop | None) -> None:
        running.pop()
        _set_running_loop(before)

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., _T], *args: Any
    ) -> asyncio.Future[_T]:
        user = self.machine.user

        def on_the_disk() -> _T:
            user.patient += 1
            try:
                return func(*args)
            finally:
                user.patient -= 1

        return super().run_in_executor(executor, on_the_disk)

    def _thread_waits(self) -> float:
        return max(super()._thread_waits(), self.machine.disk.hangs_until - self._clock.now)

    def after_turn(self) -> None:
        mode = self.member.mode
        if mode is not None and mode.started:
            self.truth.look(mode)


class Member:
    """One nameserver, including its restarts."""

    def __init__(self, world: World, number: int, folder: Path) -> None:
        self.world = world
        self.number = number
        self.name = f"127.0.0.1:{7001 + number}"
        self.wire = f"nameserver-{number}"
        self.folder = folder
        self.life = 0
        self.offset = world.clock.rng.uniform(100, 9000)
        self.up = False
        self.born_at = 0.0
        self.paused_at_last = -1.0
        """Time at which the last pause ended or will end."""
        self.paused_from = -1.0
        self.loop: MemberLoop
        self.machine: Machine
        self.disk = Disk(folder.parent, self, world.clock.rng)
        self.at_risk = False
        """True if the member may have lost acknowledged entries and is not a voter again yet."""
        self.promised_term = 0
        """Term that was stored on the member's disk when its former process ended."""
        self.expects_end = False
        """True if the process must end soon, because its disk breaks."""
        self.mode: Watched | None = None
        self.server: Server | None = None
        self.removed = False
        """True if the process ended because the group had removed the member."""
        self.expects_refusal = self.refused = False
        self._graveyard: list[MemberLoop] = []

    @property
    def running(self) -> Watched:
        assert self.mode is not None
        return self.mode

    @property
    def ready(self) -> bool:
        return self.mode is not None and self.mode.started

    # -- methods of the interface Host

    def deliver(self, life: int, call: Callable[..., object], *arguments: Any) -> None:
        if life == self.life and self.up:
            self.loop.deliver(call, *arguments)

    # -- start, stop and crash of the member

    def start(self) -> None:
        """Start the member's process."""
        assert not self.up
        world = self.world
        self.life += 1
        self.up = True
        self.born_at = world.clock.now
        self.expects_end = False
        life = self.life
        self.loop = MemberLoop(world.clock, offset=self.offset, failed=lambda text: self._failed(text, life))
        self.machine = Machine(world.clock, self.loop, self.disk)
        self.loop.machine, self.loop.member, self.loop.truth = self.machine, self, world.truth
        self.loop.net, self.loop.host = world.net, self
        world.net.back(self)
        self.loop.deliver(self._boot)

    def _boot(self) -> None:
        self.loop.create_task(self._main(self.loop), name=f"main of {self.name}")

    async def _main(self, loop: MemberLoop) -> None:
        world = self.world
        flags = {
            "mode": "raft",
            "raftAddress": self.name,
            "raftPeers": ",".join(dict.fromkeys((*(m.name for m in world.members), self.name))),
            "dataDir": str(self.folder),
            "raftDurability": world.durability,
            "raftElectionTimeoutMs": str(world.election_timeout_ms),
        }
        settings = LiveSettings(load_settings(flags=flags, file={}).settings)
        server = self.server = Server(self)
        raft = replace(raft_config(settings.current), compact_bytes=world.compact_bytes)
        try:
            mode = Watched(self, settings, server, boot_id=self.machine.rng.getrandbits(62), raft=raft)
            self.mode = mode
            await mode.start()
        except Crashed:
            return
        except RaftStartError as error:
            if self.expects_refusal and is_refusal(error):
                self.refused = True
            elif is_refusal(error) and world.operator.removes(self):
                self.was_removed()  # it was killed after it stored its removal, and before it ended
            else:
                world.truth.fail(Oracle.STARTS, f"{self.name} does not start: {error}")
            return
        mode.started = True
        loop.machine.user.patient -= 1
        world.net.listeners[self.wire] = (self, lambda end: self.deliver(end.life, server.accept, end))

    def kill(self, *, power: bool = False, wipe: bool = False) -> None:
        """End the process as by SIGKILL.

        Args:
            power: If True, cut the power. Then peers do not notice the end, and data that was not synced may
                be lost.
            wipe: If True, empty the disk afterwards.
        """
        if not self.up:
            return
        self.at_risk |= wipe or power
        if self.ready and self.running.promises_kept and self.world.durability != "memory":
            self.promised_term = self.running.engine.term
        self.up = False
        self.loop.die()
        self._graveyard.append(self.loop)
        self.mode = None
        self.machine.crash(power=power)
        net = self.world.net
        net.listeners.pop(self.name, None)
        net.listeners.pop(self.wire, None)
        net.died(self, power=power)
        if wipe:
            self._wipe()

    def _wipe(self) -> None:
        self.disk.empty()
        self.promised_term = 0
        self.disk.full = False  # on a full disk, the next start would fail, and the checks would report this
        shutil.rmtree(self.folder, ignore_errors=True)

    def crashed(self, *, power: bool) -> None:
        """End the process during a call of its disk.

        Cut the power only if this cannot lose an acknowledged change of the group.
        """
        self.kill(power=power and self.world.may_lose_power(self))

    def complain(self, text: str) -> None:
        self.world.truth.fail(Oracle.DISK_WAITS, f"{self.name}: {text}")

    def begin_anew(self) -> None:
        """Empty the member's disk and start the member."""
        self.kill()
        self._wipe()
        self.removed = False
        self.start()

    def pause(self, seconds: float) -> None:
        if not self.loop.paused:
            self.paused_from = self.world.clock.now
        self.loop.pause(seconds)
        self.paused_at_last = max(self.paused_at_last, self.loop.paused_until)

    def mend(self) -> None:
        """End the member's pause and the faults of its disk."""
        self.disk.full = False
        self.disk.hangs_until = 0.0
        self.disk.crash_in = self.disk.fail_in = 0
        self.loop.go_on()

    def look(self, what: Callable[[Watched], _T]) -> _T:
        """Call a function as code of the member's process."""
        mode = self.running
        return self.loop.run_inside(lambda: what(mode))

    def bury(self) -> None:
        """Release the memory of ended processes at the end of the run."""
        for loop in self._graveyard:
            loop.bury()
        self._graveyard.clear()

    def _failed(self, text: str, life: int) -> None:
        if self.up and life == self.life:
            self.world.truth.fail(Oracle.PROCESS, f"{self.name}: {text}")

    def was_removed(self) -> None:
        """End the process after the current turn of its event loop, as a removed member does by itself."""
        self.removed = True
        self.world.clock.at(0.0, self._end, self.life)

    def _end(self, life: int) -> None:
        if life == self.life:
            self.kill()

    def stopped(self, reason: str) -> None:
        if not self.expects_end:
            self.world.truth.fail(Oracle.PROCESS, f"{self.name} stops: {reason}")
        self.world.clock.at(0.0, self._end, self.life)
