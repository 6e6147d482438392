"""The playground, which runs all designs, logs changes, executes the page's commands and saves sessions.

A :class:`Stage` has one design's processes, and threads that observe these processes. The threads pass their
observations to the event loop through :meth:`Playground.post`. All other code of this module runs on that
loop.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from routekeeper.bench.play.hub import Hub
from routekeeper.bench.play.model import (
    Change,
    Design,
    DesignName,
    Done,
    Mark,
    Order,
    Outcome,
    Saved,
    State,
    Tick,
)
from routekeeper.bench.play.orders import CLIENTS, DIVISORS, FAULTS, in_words, named, problem_of
from routekeeper.bench.play.picture import ChangeLog
from routekeeper.bench.play.scene import Happened, Scene
from routekeeper.bench.play.stage import Stage, plan_of
from routekeeper.bench.processes import ArmLost, ClusterError
from routekeeper.bench.schedule import SessionPlan

TICK_EVERY_S: Final = 0.5
#: Highest number of commands that are executed at the same time. Further commands are refused.
ORDERS_MAX: Final = 8
#: File with a session. The first line is the state of all designs at the start. Each further line is one
#: change.
SESSION_NAME: Final = "session.jsonl"
#: Largest size of the session's file in bytes. The program writes no changes into a larger file.
SESSION_MAX: Final = 256 * 1024 * 1024
_MS: Final = 1_000_000

T = TypeVar("T")


class BadOrder(ValueError):
    """A command is impossible. The error's message says why in one line."""


class TooMany(Exception):
    """The highest allowed number of commands is being executed already."""


class NotSaved(Exception):
    """A session cannot be saved. The error's message says why."""


@dataclass(slots=True, eq=False)
class _Running:
    """A started design.

    ``stage`` has the design's processes and threads. ``scene`` has the design's state as the page shows it.
    """

    name: DesignName
    stage: Stage = field(init=False)
    scene: Scene | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    phase: str = "starting"


class Playground:
    """A session: the designs that run, and the record of all changes to them.

    Attributes:
        hub: Sender of changes and ticks to the pages.
    """

    def __init__(
        self, designs: Sequence[DesignName], *, missing: Sequence[str], divisor: float, work: Path, out: Path
    ) -> None:
        """Prepare a session.

        Args:
            missing: Designs that this machine cannot run, each with the reason.
            work: Existing folder for all files that processes write.
            out: Folder below which sessions are saved.
        """
        self._names = list(designs)
        self._work = work
        self._out = out
        self._start_ns = time.monotonic_ns()
        self._session = secrets.token_hex(8)
        self._started_at = datetime.now(UTC).isoformat(timespec="seconds")
        begin = State(
            session=self._session,
            id=0,
            at_ms=0,
            started_at=self._started_at,
            divisor=divisor,
            divisors=list(DIVISORS),
            missing=list(missing),
            designs=[Design(name=name) for name in designs],
        )
        self.log = ChangeLog(begin)
        self.hub = Hub(self.log)
        self._lives = 0
        self._running: list[_Running] = []
        self._starting: list[asyncio.Task[None]] = []
        self._orders = 0
        self._restarting = False
        self._saving = asyncio.Lock()
        self._ending = False
        self._threads = ThreadPoolExecutor(32, thread_name_prefix="play")
        self._file = open(work / SESSION_NAME, "wb")  # noqa: SIM115 - closed by end()
        self._file.write(msgspec.json.encode(begin) + b"\n")

    def now_ms(self) -> int:
        return (time.monotonic_ns() - self._start_ns) // _MS

    @property
    def state(self) -> State:
        """The present state of the compared clusters (one for each design), as the page shows it."""
        return msgspec.structs.replace(self.log.now, at_ms=self.now_ms(), designs=self._designs_now())

    def _designs_now(self) -> list[Design]:
        """Return all designs with their present counters, and the times of the last readings and answers."""
        scenes = {each.name: each.scene for each in self._running if each.scene is not None}
        return [
            msgspec.structs.replace(scenes[design.name].design, phase=design.phase, reason=design.reason)
            if design.name in scenes
            else design
            for design in self.log.now.designs
        ]

    def is_shown(self, running: _Running) -> bool:
        return running in self._running

    # -- changes ------------------------------------------------------------------------------------------

    def change(self, change: Change) -> Change:
        """Return the change with its id and time, after adding it to the log and sending it to all pages."""
        numbered = msgspec.structs.replace(change, id=self.log.now.id + 1, at_ms=self.now_ms())
        if numbered.done is not None:
            numbered = msgspec.structs.replace(
                numbered, done=msgspec.structs.replace(numbered.done, id=numbered.id)
            )
        if numbered.mark is not None:
            numbered = msgspec.structs.replace(
                numbered, mark=msgspec.structs.replace(numbered.mark, action=numbered.id)
            )
        self.log.add(numbered)
        if not self._file.closed and self._file.tell() < SESSION_MAX:
            self._file.write(msgspec.json.encode(numbered) + b"\n")
        self.hub.change(numbered)
        return numbered

    def post(
        self,
        loop: asyncio.AbstractEventLoop,
        running: _Running,
        take: Callable[[Scene], Iterable[Happened]],
    ) -> None:
        """Let the event loop call ``take``, which changes the design's shown state by an observation.

        A thread that observes the design calls this method. ``take`` returns the resulting changes and facts.
        """
        try:
            loop.call_soon_threadsafe(self._happened, running, take)
        except RuntimeError:
            pass  # the loop has ended, so no page is open that could show the observation

    def _happened(self, running: _Running, take: Callable[[Scene], Iterable[Happened]]) -> None:
        """Log and send the changes that ``take`` returns, and record its facts about brokers.

        A fact says, for example, that a broker went down. The session's event files contain the facts.
        """
        if running.scene is None or not self.is_shown(running):
            return
        for each in take(running.scene):
            if each.lost:
                self._lose(running, each.lost)
            if each.change is not None:
                self.change(each.change)
            if each.fact is not None:
                index = int(each.broker.removeprefix("broker-"))
                running.stage.cluster.truth(index, each.fact, each.t_ns)

    async def tick_always(self) -> None:
        """Send counters and the times of the last readings and answers to the pages twice a second.

        Return when the session ends.
        """
        while True:
            await asyncio.sleep(TICK_EVERY_S)
            if self._ending:
                return
            self._file.flush()
            scenes = [each.scene for each in self._running if each.scene is not None]
            self.hub.tick(Tick(at_ms=self.now_ms(), designs=[scene.tick() for scene in scenes]))

    # -- start and end ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start every design. If a design does not start, show it as failed."""
        self._lives += 1
        loop = asyncio.get_running_loop()
        starting: list[asyncio.Task[None]] = []
        for name in self._names:
            given = SessionPlan(
                out=self._work,
                plan=plan_of(self.log.now.divisor),
                series=plan_of(self.log.now.divisor).series[0],
                arm=name,
                block=1,
                order_in_block=self._names.index(name),
                attempt=self._lives,
                profile="play",
                seed=1,
                command=("mqbench", "play"),
            )
            running = _Running(name)
            running.stage = Stage(name, given, partial(self.post, loop, running))
            self._running.append(running)
            starting.append(asyncio.create_task(self._start(running)))
        self._starting = starting
        await asyncio.gather(*starting)

    async def _start(self, running: _Running) -> None:
        stage = running.stage
        try:
            await self._in_thread(stage.start)
        except (ArmLost, ClusterError, OSError) as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            await self._in_thread(stage.end)
            if not self._ending and self.is_shown(running):
                running.phase = "failed"
                self.change(Change(id=0, at_ms=0, design=running.name, phase="failed", reason=reason))
            return
        if self._ending or not self.is_shown(running):
            await self._in_thread(stage.end)
            return
        cluster = stage.cluster
        running.scene = Scene(
            running.name,
            servers=dict(zip(cluster.started.names, cluster.servers.clients, strict=True)),
            brokers=dict(zip([each.name for each in cluster.brokers], cluster.broker_addrs, strict=True)),
            clients=CLIENTS,
            learns="watch" if cluster.watches else "poll",
            start_ns=self._start_ns,
        )
        running.scene.count_from(self.now_ms())
        running.phase = "running"
        design = running.scene.design
        others = [each for each in self.log.now.designs if each.name != running.name]
        places = self._names.index
        everybody = sorted([*others, design], key=lambda each: places(each.name))
        self.change(Change(id=0, at_ms=0, designs=everybody))
        await self._in_thread(stage.watch)

    def _lose(self, running: _Running, reason: str) -> None:
        """End a design, and show it as failed, because one of the threads that observe it has ended."""
        if running.phase == "running" and not self._ending:
            running.phase = "failed"
            self.change(Change(id=0, at_ms=0, design=running.name, phase="failed", reason=reason))
            self._threads.submit(running.stage.end)

    async def end(self) -> None:
        """End the session: close the pages, and end all processes and threads."""
        self._ending = True
        self.hub.end()
        await asyncio.gather(*(self._in_thread(each.stage.end) for each in self._running))
        # A design that was still starting may be about to show its state or to start its threads. Wait until
        # its task has noticed that the session ends.
        await asyncio.gather(*self._starting, return_exceptions=True)
        self._file.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *arguments))

    # -- commands from the page ---------------------------------------------------------------------------

    async def order(self, order: Order) -> Done:
        """Execute a command in all designs that the command names, at the same time.

        If the command names no design, execute it in all designs.

        Raises:
            BadOrder: If the command is impossible.
            TooMany: If :data:`ORDERS_MAX` commands are being executed already.
        """
        if (problem := problem_of(order)) is not None:
            raise BadOrder(problem)
        if absent := [name for name in order.designs if name not in self._names]:
            raise BadOrder(
                f"designs names {absent[0]}, which does not run here; allowed are {', '.join(self._names)}"
            )
        if self._orders >= ORDERS_MAX:
            raise TooMany(f"{self._orders} orders are under way, allowed are {ORDERS_MAX}")
        self._orders += 1
        try:
            if order.do == "timers":
                return await self._restart(order)
            return await self._carry_out(order)
        finally:
            self._orders -= 1

    async def _carry_out(self, order: Order) -> Done:
        begin_ms = self.now_ms()
        wanted = [each for each in self._running if each.name in (order.designs or self._names)]
        outcomes = await asyncio.gather(*(self._do(order, each) for each in wanted))
        mark = None
        # A design that was replaced meanwhile does not count, because the fault did not hit its successor.
        is_struck = any(
            outcome.result != "not applied" and self.is_shown(each)
            for outcome, each in zip(outcomes, wanted, strict=True)
        )
        if order.do in FAULTS and is_struck:
            mark = Mark(action=0, at_ms=begin_ms, text=in_words(order))
        return self._done(order, outcomes, mark)

    def _done(self, order: Order, outcomes: Sequence[Outcome], mark: Mark | None) -> Done:
        at_ms = self.now_ms()
        done = Done(id=0, at_ms=at_ms, order=order, outcomes=list(outcomes))
        change = self.change(Change(id=0, at_ms=0, done=done, mark=mark))
        if mark is not None:
            for each in self._running:
                if each.scene is not None:
                    each.scene.count_from(mark.at_ms)
                    counters = msgspec.structs.replace(each.scene.counters)
                    self.change(Change(id=0, at_ms=0, design=each.name, counters=counters))
        assert change.done is not None
        return change.done

    async def _do(self, order: Order, running: _Running) -> Outcome:
        def refused(reason: str) -> Outcome:
            return Outcome(design=running.name, result="not applied", reason=reason)

        async with running.lock:
            if self._ending or not self.is_shown(running):
                return refused(f"{running.name} is ending")
            if running.scene is None or running.phase != "running":
                return refused(f"{running.name} is {running.phase}")
            design = running.scene.design
            target, to = named(order.target, design), named(order.to, design)
            if target is None or to is None:
                return refused("no server runs")
            if order.to and to == target:
                return refused(f"{target} is both ends of the link")
            return await self._in_thread(running.stage.carry_out, order, target, to)

    async def _restart(self, order: Order) -> Done:
        """End all designs and start them again with other timers."""
        if self._restarting:
            raise TooMany("the designs are restarting already")
        self._restarting = True
        try:
            ended, self._running = self._running, []
            designs = [Design(name=name) for name in self._names]
            self.change(Change(id=0, at_ms=0, designs=designs, divisor=order.divisor))
            await asyncio.gather(*(self._in_thread(each.stage.end) for each in ended))
            if not self._ending:
                await self.start()
            outcomes = [
                Outcome(
                    design=each.name,
                    result="applied" if each.phase == "running" else "not applied",
                    reason="" if each.phase == "running" else "it did not start again",
                )
                for each in self._running
            ]
            return self._done(order, outcomes, None)
        finally:
            self._restarting = False

    # -- saving -------------------------------------------------------------------------------------------

    async def save(self) -> Saved:
        """Save the session until now: one run folder for each running design, and one file with all changes.

        Raises:
            NotSaved: If no design runs, or if the folder cannot be written.
        """
        async with self._saving:
            running = [each for each in self._running if each.phase == "running"]
            if not running:
                raise NotSaved("no design runs yet")
            folder = self._out / time.strftime("play-%Y%m%d-%H%M%S")
            while folder.exists():
                await asyncio.sleep(0.1)
                folder = self._out / time.strftime("play-%Y%m%d-%H%M%S")
            try:
                folder.mkdir(parents=True)
                for each in running:
                    await self._in_thread(each.stage.life.save, folder)
                self._file.flush()
                await self._in_thread(self._copy_changes, folder, self._file.tell())
            except OSError as error:
                raise NotSaved(f"{folder}: {error.strerror}") from error
        return saved_in(folder)

    def _copy_changes(self, folder: Path, size: int) -> None:
        """Copy the first ``size`` bytes of the session's file, to which the event loop continues to write."""
        with open(self._work / SESSION_NAME, "rb") as file:
            (folder / SESSION_NAME).write_bytes(file.read(size))


def saved_in(folder: Path) -> Saved:
    """Return the folder of a saved session, with the shell commands that use the folder."""
    quoted = shlex.quote(str(folder))
    return Saved(
        folder=str(folder),
        report=f"mqbench report {quoted} --out {quoted}",
        replay=f"mqbench play --replay {quoted}",
    )
