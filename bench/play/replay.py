"""Replay of a saved session, at its original pace."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import msgspec

from routekeeper.bench.plan import PlanError
from routekeeper.bench.play.hub import Hub
from routekeeper.bench.play.model import Change, Done, Order, Outcome, Saved, State, Tick
from routekeeper.bench.play.picture import ChangeLog
from routekeeper.bench.play.play import SESSION_MAX, SESSION_NAME, TICK_EVERY_S, NotSaved
from routekeeper.remoting.files import read_regular


def load(folder: Path) -> tuple[State, list[Change]]:
    """Return a saved session: the state of all designs at its start, and all changes.

    Raises:
        PlanError: If the folder has no session that this version can read.
    """
    path = folder / SESSION_NAME
    try:
        first, *others = read_regular(str(path), size_max=2 * SESSION_MAX).splitlines()
        begin = msgspec.json.decode(first, type=State)
        changes = [msgspec.json.decode(line, type=Change) for line in others]
    except OSError as error:
        raise PlanError(f"--replay {folder}: {path.name}: {error.strerror}") from None
    except ValueError as error:
        raise PlanError(f"--replay {folder}: {path.name} is no saved session: {error}") from None
    numbers = [begin.id, *(change.id for change in changes)]
    if any(later != earlier + 1 for earlier, later in pairwise(numbers)):
        raise PlanError(f"--replay {folder}: {path.name}: its changes are not numbered one by one")
    return msgspec.structs.replace(begin, replayed=True), changes


class Replay:
    """A saved session that is shown again. It accepts no commands."""

    def __init__(self, begin: State, changes: list[Change]) -> None:
        self._changes = changes
        self._begun_s: float | None = None
        self.log = ChangeLog(begin)
        self.hub = Hub(self.log)

    @property
    def state(self) -> State:
        return msgspec.structs.replace(self.log.now, at_ms=self._now_ms())

    def _now_ms(self) -> int:
        if self._begun_s is None:
            return 0
        last_ms = self._changes[-1].at_ms if self._changes else 0
        return min(last_ms, round((asyncio.get_running_loop().time() - self._begun_s) * 1000))

    async def run(self) -> None:
        """Show all changes, each at the time at which it happened in the saved session.

        Send ticks between the changes and after the last one, until the caller cancels this task. Without
        ticks, a page would report that the program does not answer.
        """
        loop = asyncio.get_running_loop()
        self._begun_s = loop.time()
        for change in self._changes:
            while (ahead_s := change.at_ms / 1000 - (loop.time() - self._begun_s)) > 0:
                await self._tick_after(min(ahead_s, TICK_EVERY_S))
            self.log.add(change)
            self.hub.change(change)
        while True:
            await self._tick_after(TICK_EVERY_S)

    async def _tick_after(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        self.hub.tick(Tick(at_ms=self._now_ms(), designs=[]))

    async def order(self, order: Order) -> Done:
        """Refuse a command, because a saved session cannot change."""
        outcomes = [
            Outcome(design=design.name, result="not applied", reason="this is a saved session")
            for design in self.log.now.designs
        ]
        return Done(id=self.log.now.id, at_ms=self._now_ms(), order=order, outcomes=outcomes)

    async def save(self) -> Saved:
        raise NotSaved("this is a saved session")
