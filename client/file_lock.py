"""A lock on a file that lets only one consumer store its offsets there."""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from routekeeper.remoting.files import open_regular

from .errors import ClientError


class FileLock:
    """A lock on a file, for one consumer and for the writes that it began.

    The lock ends after the consumer has released it and these writes have ended, or when this object or the
    process ends. A child process after a fork does not have the lock. Otherwise, if a crash ended the parent
    process alone, the child would keep the parent's next run from starting.
    """

    _descriptor = -1

    def __init__(self, path: Path) -> None:
        """Lock the file; create it if it is missing.

        Raises:
            BlockingIOError: If the file is locked already, by this process or another one.
            OSError: If the file cannot be opened or locked.
        """
        import fcntl  # not at the top: Windows lacks fcntl, but clients without an offset file run there

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
        """End the lock as soon as no write uses it; the consumer calls this once."""
        with self._mutex:
            self._users -= 1
            if not self._users and self._descriptor >= 0:
                # Unlock first: a new process has the lock, too, until it has loaded its program.
                with suppress(OSError):  # a network file system may fail, but closing ends the lock
                    self._flock(self._descriptor, self._unlock)
                self._close()

    def forked(self) -> None:
        """Forget the lock in a child process after a fork; the parent process keeps it."""
        self._mutex = threading.RLock()  # another thread of the parent may have held the former one
        self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):  # the descriptor is closed in any case
                os.close(descriptor)

    def __del__(self) -> None:
        self._close()


#: Locks of this process.
_locks: Final[weakref.WeakSet[FileLock]] = weakref.WeakSet()


def _end_in_child() -> None:
    for lock in tuple(_locks):
        lock.forked()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_end_in_child)
