"""The journal's thread, and the cheap way in which the loop learns of finished writes.

The thread makes every write and every sync. On a frozen disk even a write into the page cache blocks (also
with RWF_NOWAIT, and also through the kernel's AIO), and the loop must not block. A descriptor that the loop
polls reports a finished write. If another event will wake the loop anyway, the loop asks instead.

The thread runs :meth:`Writer.steps`, a generator that yields wherever it waits, and the driver waits for it.
The driver is a thread here, and virtual time in the simulator.
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

#: Interval of new tries after a write found the disk full.
FULL_RETRY_S: Final = 0.5

#: A position with the operations that make it durable; a function to call; or None to end.
Item: TypeAlias = tuple[int, list[Op]] | Callable[[], None] | None
#: The steps yield one of these: to get the next item; or when the disk has finished its work, which the call
#: has waited for already. Any other value is a number of seconds to wait.
NEXT_ITEM: Final = None
DISK: Final = 0.0
Steps: TypeAlias = Generator[float | None, Item, None]


class WriterThread(queue.SimpleQueue[Item]):
    """A queue, and a thread that runs the steps with the items of the queue."""

    def __init__(self) -> None:
        self.closing = threading.Event()
        self._thread: threading.Thread

    def start(self, steps: Steps) -> None:
        self._thread = threading.Thread(target=self._run, args=(steps,), name="raft journal", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the steps once all items are done; blocking."""
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
    """Writes in order. Items that arrive during a sync share the next one (group commit).

    Args:
        done: Called on the thread with the position up to which all is durable, unless the write is
            silent.
        failed: Called on the thread with the reason; the process must end.
        times: Records the time of each write with its sync.

    Attributes:
        handed: The last position that was handed over.
        wrote_all: The writer has ended and has written everything that was handed over.
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
            # Only then are all callbacks of earlier writes certain to be called.
            self._silent = silent and (self._silent or self.handed == self._written)
            self.handed = position
        self._thread.put((position, ops))

    def ask(self) -> int:
        """On the loop: return the position up to which all is durable; ``done`` is called for later ones."""
        with self._lock:
            self._silent = False
            return self._written

    def trim(self, index: int) -> None:
        """Delete the journal up to ``index``, which nothing needs any more."""
        self._thread.put(lambda: self._journal.trim(index))

    def rotate(self) -> None:
        """Begin another segment after all items that were handed over."""
        self._thread.put(self._rotate)

    def close(self) -> None:
        """Write queued items and end; blocking."""
        self._thread.close()

    # ---- on the thread

    def steps(self) -> Steps:
        """Write the queued items in order, as a generator that yields wherever it waits."""
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
                    # Before the frame is acknowledged: else a kill in between would hide that an acknowledged
                    # frame is missing.
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
        """Get the next item; make room for zeros while there is none, or before the zeros run out."""
        if self._journal.wants_room and (self._thread.empty() or self._journal.out_of_room):
            self._journal.make_room()
            yield DISK
        return (yield NEXT_ITEM)

    def _next(self) -> Item:
        """Get an item without waiting. No other thread takes items from the queue."""
        return _nothing if self._thread.empty() else self._thread.get_nowait()

    def _tell(self, position: int) -> None:
        with self._lock:
            self._written = position
            silent = self._silent
        if not silent:
            self._done(position)

    def _append(self, ops: list[Op]) -> Generator[float | None, Item, bool]:
        """Write, and wait for free space as long as it takes; return False if the member closed meanwhile."""
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
    """Mark an empty queue."""
