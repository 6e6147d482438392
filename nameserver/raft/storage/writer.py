"""The journal's thread, and how the loop learns from it at little cost.

Every write and every sync is the thread's: on a frozen disk even a write into the page cache waits (also with
RWF_NOWAIT, also when handed to the kernel's AIO), and the loop must not. The loop learns of the end through
a descriptor that it polls; where something else will wake it anyway, it asks then.

The thread runs :meth:`Writer.steps`, a generator that says where it waits; its driver waits.
Here that is a thread; in the simulator it is the virtual time.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Generator
from typing import Final, TypeAlias

from routekeeper.nameserver.disk.files import StorageFull
from routekeeper.nameserver.raft.consensus.log import Op
from routekeeper.remoting.histogram import Histogram

from .journal import Journal

logger = logging.getLogger(__name__)

#: Interval at which a write that found the disk full is tried again.
FULL_RETRY_S: Final = 0.5

#: A position and what becomes durable as it; something to call; None to end.
Item: TypeAlias = tuple[int, list[Op]] | Callable[[], None] | None
#: The steps wait here: for the next item, which is sent to them; until the disk has done what it was given,
#: which the calls to it have waited for already; or for so many seconds.
NEXT_ITEM: Final = None
DISK: Final = 0.0
Steps: TypeAlias = Generator[float | None, Item, None]


class WriterThread(queue.SimpleQueue[Item]):
    """A queue, and a thread that runs steps with what is put there."""

    def __init__(self) -> None:
        self.closing = threading.Event()
        self._thread: threading.Thread

    def start(self, steps: Steps) -> None:
        self._thread = threading.Thread(target=self._run, args=(steps,), name="raft journal", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Have the steps end once all items are done; blocking."""
        self.closing.set()
        self.put(None)
        self._thread.join()

    def _run(self, steps: Steps) -> None:
        with contextlib.suppress(StopIteration):
            waits = next(steps)
            while True:
                if waits:
                    self.closing.wait(waits)
                waits = steps.send(self.get() if waits is NEXT_ITEM else None)


class Writer:
    """Writes in order. What waits while one write is synced goes together in the next (group commit).

    Args:
        done: Called on the thread with the position up to which all is durable, unless the write is silent.
        failed: Called on the thread, which ends: the process must end.
        times: Takes how long each write took, its sync included.

    Attributes:
        handed: The last position that was handed over.
        wrote_all: It has ended, and all is written that was handed over.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        done: Callable[[int], None],
        failed: Callable[[str], None],
        times: Histogram | None = None,
    ) -> None:
        self._journal = journal
        self._done = done
        self._failed = failed
        self._times = Histogram() if times is None else times
        self._thread = WriterThread()
        self._lock = threading.Lock()
        self.handed = self._written = 0
        self._silent = False
        self.wrote_all = False
        self._thread.start(self.steps())

    def write(self, position: int, ops: list[Op], *, silent: bool = False) -> None:
        """Hand over what becomes durable as ``position``; ``silent`` if :meth:`ask` is called soon anyway."""
        with self._lock:
            # All callbacks of the writes under way will be called.
            self._silent = silent and (self._silent or self.handed == self._written)
            self.handed = position
        self._thread.put((position, ops))

    def ask(self) -> int:
        """On the loop: return the position up to which all is durable; ``done`` is called for later ones."""
        with self._lock:
            self._silent = False
            return self._written

    def trim(self, index: int) -> None:
        """The journal needs nothing up to ``index`` any more."""
        self._thread.put(lambda: self._journal.trim(index))

    def rotate(self) -> None:
        """Begin another segment, behind all that was handed over."""
        self._thread.put(self._rotate)

    def close(self) -> None:
        """Write what is queued and end; blocking."""
        self._thread.close()

    # ---- on the thread

    def steps(self) -> Steps:
        """Run the thread's steps, in their order."""
        try:
            item = yield from self._take()
            while item is not None:
                if isinstance(item, tuple):
                    position, ops = item
                    while isinstance(item := self._next(), tuple):
                        position, more = item
                        ops = ops + more
                    if not (yield from self._append(ops)):
                        return
                    # First: a kill in between would make a journal without the acknowledged frame look whole.
                    self._journal.mark_end()
                    self._tell(position)
                else:
                    item()
                    yield DISK
                    item = _nothing
                if item is _nothing:
                    item = yield from self._take()
            self.wrote_all = True
        except OSError as error:
            # After a failed sync nobody knows what the disk holds (rule 9).
            self._failed(f"journal: {error.strerror or error}")
        except Exception as error:
            logger.exception("journal writer failed")
            self._failed(f"journal: {error}")

    def _rotate(self) -> None:
        try:
            self._journal.rotate()
        except StorageFull as error:
            logger.error("journal full: %s; the segment goes on", error.strerror)

    def _take(self) -> Generator[float | None, Item, Item]:
        """Wait for something to do; room is made while there is nothing, or before it is missed."""
        if self._journal.wants_room and (self._thread.empty() or self._journal.out_of_room):
            self._journal.make_room()
            yield DISK
        return (yield NEXT_ITEM)

    def _next(self) -> Item:
        """Nobody else takes anything from the queue."""
        return _nothing if self._thread.empty() else self._thread.get_nowait()

    def _tell(self, position: int) -> None:
        with self._lock:
            self._written = position
            silent = self._silent
        if not silent:
            self._done(position)

    def _append(self, ops: list[Op]) -> Generator[float | None, Item, bool]:
        """Write, waiting for room as long as it takes; False if the member closed meanwhile."""
        said = False
        while True:
            try:
                begun = time.perf_counter()
                self._journal.append(ops)
                self._times.observe(time.perf_counter() - begun)
                yield DISK
                if said:
                    logger.info("journal has room again")
                return True
            except StorageFull as full:
                if not said:
                    logger.error("journal full: %s; acknowledging nothing until there is room", full.strerror)
                    said = True
                if self._thread.closing.is_set():
                    return False
                yield FULL_RETRY_S


def _nothing() -> None:
    """Marks an empty queue."""
