"""The journal's thread, and how the loop learns from it at little cost.

Every write and every sync is the thread's: on a frozen disk even a write into the page cache waits (also with
RWF_NOWAIT, also when handed to the kernel's AIO), and the loop must not. What the thread costs is handing
over: it gets the interpreter only when the loop gives it up, and the loop learns of the end through a
descriptor that it polls. A loop with nothing else to do waits for the thread itself, for a moment; one that
will be woken by something else anyway asks then.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Final

from nameserver.raft.consensus.log import Op

from .journal import Journal, StorageFull

logger = logging.getLogger(__name__)

#: How often a write that found the disk full is tried again.
FULL_RETRY_S: Final = 0.5
#: The loop waits no longer for one write; a sync takes a fifth of it on a good disk.
WAIT_S: Final = 0.001


class Writer:
    """Writes in order. What waits while one write is synced goes together in the next (group commit).

    Args:
        done: Called on the thread with the position up to which all is durable, unless :meth:`wait` says so
            or the write is a silent one.
        failed: Called on the thread, which ends: the process must end.
    """

    def __init__(
        self, journal: Journal, *, done: Callable[[int], None], failed: Callable[[str], None]
    ) -> None:
        self._journal = journal
        self._done = done
        self._failed = failed
        self._queue: queue.SimpleQueue[tuple[int, list[Op]] | Callable[[], None] | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="raft journal", daemon=True)
        self._lock = threading.Lock()
        self._handed = self._written = 0
        self._silent = False
        self._awaited = self._making_room = False
        self._wake = threading.Lock()  # held, but for the moment between two sides of a wait
        self._wake.acquire()

    def start(self) -> None:
        self._thread.start()

    def write(self, position: int, ops: list[Op], *, silent: bool = False) -> None:
        """Hand over what becomes durable as ``position``; ``silent`` if :meth:`ask` is called soon anyway."""
        with self._lock:
            # Whoever is to be told of what is under way will be told.
            self._silent = silent and (self._silent or self._handed == self._written)
            self._handed = position
        self._queue.put((position, ops))

    def ask(self) -> int:
        """On the loop: return the position up to which all is durable; ``done`` is told of what follows."""
        with self._lock:
            self._silent = False
            return self._written

    def call(self, work: Callable[[], None]) -> None:
        """Run something of the journal's between two writes."""
        self._queue.put(work)

    def wait(self, position: int) -> int | None:
        """On the loop: wait for a write, at most ``WAIT_S``.

        Returns:
            The position up to which all is durable, of which ``done`` is not told then; None if the write
            takes longer; 0 if waiting made no sense. ``done`` is told in both cases.
        """
        with self._lock:
            if self._written >= position or self._making_room:
                return 0
            self._awaited = True
        if not self._wake.acquire(timeout=WAIT_S):
            with self._lock:
                if self._awaited:
                    self._awaited = False
                    return None
            self._wake.acquire()  # it came in the very moment
        return self._written

    def close(self) -> None:
        """Write what is queued and end; blocking."""
        self._closing.set()
        self._queue.put(None)
        self._thread.join()

    # ---- on the thread

    def _run(self) -> None:
        try:
            item = self._take()
            while item is not None:
                if not isinstance(item, tuple):
                    item()
                    item = self._take()
                    continue
                position, ops = item
                item = self._next()
                while isinstance(item, tuple):
                    position, more = item
                    ops = ops + more
                    item = self._next()
                if not self._append(ops):
                    return
                self._tell(position)
                if item is _NOTHING:
                    item = self._take()
        except OSError as error:
            # After a failed sync nobody knows what the disk holds (rule 9).
            self._failed(f"journal: {error.strerror or error}")
        except Exception as error:
            logger.exception("journal writer failed")
            self._failed(f"journal: {error}")

    def _take(self) -> tuple[int, list[Op]] | Callable[[], None] | None:
        """Wait for something to do; room is made while there is nothing, or before it is missed."""
        if self._journal.wants_room and (self._queue.empty() or self._journal.out_of_room):
            self._making_room = True
            self._journal.make_room()
            self._making_room = False
        return self._queue.get()

    def _next(self) -> tuple[int, list[Op]] | Callable[[], None] | None:
        try:
            return self._queue.get_nowait()
        except queue.Empty:
            return _NOTHING

    def _tell(self, position: int) -> None:
        with self._lock:
            self._written = position
            awaited, self._awaited = self._awaited, False
            silent = self._silent
        if awaited:
            self._wake.release()
        elif not silent:
            self._done(position)

    def _append(self, ops: list[Op]) -> bool:
        """Write, waiting for room as long as it takes; False if the member closed meanwhile."""
        said = False
        while True:
            try:
                self._journal.append(ops)
                if said:
                    logger.info("journal has room again")
                return True
            except StorageFull as error:
                if not said:
                    logger.error("journal full: %s; acknowledging nothing until there is room", error)
                    said = True
                if self._closing.wait(FULL_RETRY_S):
                    return False


def _nothing() -> None:
    """Marks an empty queue."""


_NOTHING: Final = _nothing
