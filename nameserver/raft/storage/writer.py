"""The journal's thread, and a fast method by which the event loop learns of finished writes.

The thread makes every write and every sync, because the event loop must not block. On a hung disk even a
write into the page cache blocks (also with RWF_NOWAIT, and also through the kernel's AIO).

The thread reports a finished write through a descriptor that the event loop polls. If another event will wake
the loop soon, the write is silent: the thread reports nothing, and the loop asks for finished writes.

:meth:`Writer.steps` does the work. It is a generator that yields wherever it must wait, and the code that
runs the generator then waits. In a member, a thread runs the generator (:class:`WriterThread`). The simulator
runs it on virtual time.
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

#: Seconds between two attempts to write while the disk is full.
FULL_RETRY_S: Final = 0.5

#: An item of the queue has one of three kinds: journal operations with the position that is durable after
#: them, a function to call, or None to end the thread.
Item: TypeAlias = tuple[int, list[Op]] | Callable[[], None] | None
#: Values that :meth:`Writer.steps` yields. NEXT_ITEM asks the caller for the next item. DISK says that the
#: last call has already waited for the disk. Any other value is a number of seconds to wait.
NEXT_ITEM: Final = None
DISK: Final = 0.0
Steps: TypeAlias = Generator[float | None, Item, None]


class WriterThread(queue.SimpleQueue[Item]):
    """A queue with a thread that passes the queue's items to :meth:`Writer.steps`."""

    def __init__(self) -> None:
        self.closing = threading.Event()
        self._thread: threading.Thread

    def start(self, steps: Steps) -> None:
        self._thread = threading.Thread(target=self._run, args=(steps,), name="raft journal", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait until the thread has handled all items and has ended."""
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
    """Writer of the journal, in the order of its items. Items that arrive during a sync share the next sync.

    Args:
        done: Called on the thread with the position up to which the journal is durable. Not called for writes
            with ``silent=True``.
        failed: Called on the thread with the reason for a failure. The process must then end.
        times: Records the time of each write with its sync.

    Attributes:
        handed: The last position that :meth:`write` received.
        wrote_all: True if the writer has ended and has written all items of its queue.
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
        """Put operations into the thread's queue; the thread writes them in order.

        Args:
            position: Number that ``done`` reports, or :meth:`ask` returns, once the operations are durable.
            silent: True if the thread need not call ``done``, because the caller soon calls :meth:`ask`.
        """
        with self._lock:
            # All unfinished writes share one flag. While an earlier write must still call ``done``, this
            # write must not set the flag, because the earlier write would become silent, too.
            self._silent = silent and (self._silent or self.handed == self._written)
            self.handed = position
        self._thread.put((position, ops))

    def ask(self) -> int:
        """Return the position up to which the journal is durable. The event loop calls this method.

        After this call, the thread calls ``done`` for all unfinished writes, also for those with
        ``silent=True``.
        """
        with self._lock:
            self._silent = False
            return self._written

    def trim(self, index: int) -> None:
        """Delete the journal's entries up to ``index``, because a snapshot covers them."""
        self._thread.put(lambda: self._journal.trim(index))

    def rotate(self) -> None:
        """Begin a new segment of the journal after the items that are already in the queue."""
        self._thread.put(self._rotate)

    def close(self) -> None:
        """Wait until all queued items are written and the thread has ended."""
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
                    # Store the journal's end before the acknowledgement. If the process were killed after an
                    # acknowledgement without a stored end, a later loss of this frame would be invisible.
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
            # End the process, because after a failed sync the data on the disk is unknown (rule 9 of
            # docs/raft-rules.md).
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
        """Return the next item. If the queue is empty or little space is prepared, first prepare space.

        Space is prepared by writing zeros after the last frame (see :meth:`.journal.Journal.make_room`).
        """
        if self._journal.wants_room and (self._thread.empty() or self._journal.out_of_room):
            self._journal.make_room()
            yield DISK
        return (yield NEXT_ITEM)

    def _next(self) -> Item:
        """Return the next item without waiting, or ``_nothing`` if the queue is empty.

        The test for an empty queue is reliable, because no other thread takes items from the queue.
        """
        return _nothing if self._thread.empty() else self._thread.get_nowait()

    def _tell(self, position: int) -> None:
        with self._lock:
            self._written = position
            silent = self._silent
        if not silent:
            self._done(position)

    def _append(self, ops: list[Op]) -> Generator[float | None, Item, bool]:
        """Write operations, and wait for free space if the disk is full.

        Return False if the member closed before the operations were written.
        """
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
    """Do nothing. The writer takes this function in place of an item, to show that the queue is empty."""
