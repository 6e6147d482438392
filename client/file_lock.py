"""A lock on a file that lets only one consumer store its offsets there, and the order of the file's writes.

Threads lock and write the file, because a slow disk must not block the event loop. Cancelling the consumer
does not end such a thread. :class:`LockAttempt` then releases the thread's lock, and the next attempt waits
for the release. :class:`Writes` lets the next write wait for the thread's write.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from routekeeper.remoting.files import open_regular

from .errors import ClientError

#: Longest time in seconds for which an attempt or a write waits for earlier ones of this process.
EARLIER_S: Final = 5.0


class FileLock:
    """A lock on a file, for one consumer and for the writes that it began.

    The lock ends after the consumer has released it and these writes have ended, or when this object or the
    process ends. A child process after a fork does not have the lock. Otherwise, after a crash of the parent
    process alone, the living child would prevent a restart of the parent.
    """

    _descriptor = -1

    def __init__(self, path: Path) -> None:
        """Lock the file, and create it if it is missing.

        Raises:
            BlockingIOError: If the file is locked already, by this process or another process.
            OSError: If the file cannot be opened or locked.
        """
        import fcntl  # imported only here: Windows lacks fcntl, but clients that need no lock run on Windows

        self._users, self._mutex = 1, threading.RLock()
        self._flock, self._unlock = fcntl.flock, fcntl.LOCK_UN
        _locks.add(self)
        self._descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
        try:
            self._flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            self._close()
            raise

    def __enter__(self) -> Self:
        """Keep the lock until the end of the ``with`` block, even if the consumer releases it.

        Raises:
            ClientError: If the lock has ended.
        """
        with self._mutex:
            if not self._users:
                raise ClientError("offsets not kept: the consumer is closed")
            self._users += 1
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    def release(self) -> None:
        """End the lock as soon as no write uses it. The consumer calls this method once."""
        with self._mutex:
            self._users -= 1
            if not self._users and self._descriptor >= 0:
                # Unlock before closing: a new child process also has the descriptor until it calls exec.
                with suppress(OSError):  # a network file system may fail, but closing ends the lock
                    self._flock(self._descriptor, self._unlock)
                self._close()

    def forked(self) -> None:
        """Forget the lock in a child process after a fork. The parent process keeps the lock."""
        # Make a new mutex. Another thread of the parent may have held the old mutex during the fork, and no
        # thread of the child would ever release it.
        self._mutex = threading.RLock()
        self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):  # close() frees the descriptor even if it fails
                os.close(descriptor)

    def __del__(self) -> None:
        self._close()


class Writes:
    """The writes of one consumer's file: one at a time, and never an older write after a newer one.

    Cancelling an operation does not end the thread that writes for it. Without this class, the next write
    would begin while that thread still writes. The file would then have the content of one write and the
    checksum of the other, or the older content.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._numbered = 0  # number of the newest write
        self._begun = 0  # number of the newest write that a thread began
        self._hangs = False  # True after a write has waited in vain for the write that runs now

    def next_number(self) -> int:
        """Return the number of a new write. A newer write has a higher number."""
        self._numbered += 1
        return self._numbered

    def make(self, number: int, write: Callable[[], None]) -> None:
        """Call the function ``write``, unless a thread already began a newer write.

        Raises:
            ClientError: If an earlier write does not end, for example on a hung disk; ``write`` was not
                called. The first call waits :data:`EARLIER_S` for the earlier write, and further calls fail
                at once.
            OSError: If the disk fails.
        """
        if not self._mutex.acquire(timeout=0 if self._hangs else EARLIER_S):
            self._hangs = True
            raise ClientError("offsets not kept: an earlier write of the file has not ended")
        try:
            self._hangs = False
            if number > self._begun:
                self._begun = number
                write()
        finally:
            self._mutex.release()


class LockAttempt:
    """An attempt of one consumer to lock a file, made by a thread that may end later than the consumer.

    Args:
        path: The file that the consumer wants to use.
        lock_path: The file that is locked.
    """

    def __init__(self, path: Path, lock_path: Path) -> None:
        self.path = path
        self._lock_path = lock_path
        self._is_abandoned = False
        self._lock: FileLock | None = None
        self._ended = threading.Event()

    def run(self) -> FileLock:
        """Lock the file. Wait for earlier attempts of this process only if one of them may have the lock.

        Raises:
            BlockingIOError: If the file is locked by another consumer, of this process or another process.
            ClientError: If the attempt was abandoned; the file is not locked.
            OSError: If the file cannot be opened or locked.
        """
        with _attempts.mutex:
            if self._is_abandoned:
                raise ClientError("file not locked: the start of the consumer was cancelled")
            earlier = [one for one in _attempts.running if one._lock_path == self._lock_path]
            _attempts.running.add(self)
        try:
            lock = self._try(earlier)
            with _attempts.mutex:
                if not self._is_abandoned:
                    self._lock = lock
                    return lock
            lock.release()
            raise ClientError("file not locked: the start of the consumer was cancelled")
        finally:
            with _attempts.mutex:
                _attempts.running.discard(self)
            self._ended.set()

    def _try(self, earlier: list[LockAttempt]) -> FileLock:
        try:
            return FileLock(self._lock_path)
        except BlockingIOError:
            if self._is_abandoned or not earlier:
                raise
        # Perhaps an earlier attempt was abandoned, and its thread still has the lock for a moment.
        deadline = time.monotonic() + EARLIER_S
        for one in earlier:
            one._ended.wait(max(0.0, deadline - time.monotonic()))
        return FileLock(self._lock_path)

    def abandon(self) -> None:
        """Release the lock, at once or as soon as the thread has it, for a consumer that was cancelled."""
        with _attempts.mutex:
            self._is_abandoned = True
            lock, self._lock = self._lock, None
        # Release the lock here: an event loop keeps the thread's result, so ``__del__`` may run much later.
        if lock is not None:
            lock.release()


class _Attempts:
    """The attempts that threads of this process make now."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin with no attempts, at the start and in a child process after a fork.

        A child process does not have the threads that make the attempts of its parent.
        """
        # The mutex must be reentrant. While a thread has it, the garbage collector may run in this thread and
        # end an operation, which then calls abandon().
        self.mutex = threading.RLock()
        self.running: set[LockAttempt] = set()


#: Locks of this process, which a child process after a fork must forget.
_locks: Final[weakref.WeakSet[FileLock]] = weakref.WeakSet()
_attempts: Final = _Attempts()


def _end_in_child() -> None:
    _attempts.begin()
    for lock in tuple(_locks):
        lock.forked()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_end_in_child)
