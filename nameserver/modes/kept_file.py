"""A file that a nameserver writes again after each change of its settings or KV configuration.

A failed or hung disk does not stop the nameserver.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from routekeeper.remoting.disk_threads import DiskThreads

logger = logging.getLogger(__name__)

RETRY_S: Final = 5.0
"""Seconds from a failed write to the next attempt."""
BYTES_PER_S: Final = 8 * 1024 * 1024
"""Limit of the average write rate in bytes per second. A pause after each write keeps the rate below it."""
CLOSE_S: Final = 2.0
"""Longest time in seconds that a stopping nameserver waits for this file.

Acknowledged changes are not lost, because they are in the file or in the raft log.
"""


class KeptFile:
    """A file that a separate thread replaces as a whole. The thread tries again until a write succeeds.

    After each write there is a pause, which grows with the file's size. The next write contains all changes
    that were made during the write and the pause.

    The first failure is logged, and the callers that wait for the write get the reason. A hung disk delays
    neither the event loop nor the end of the process.

    Args:
        what, done: Words for the log that name the content and the action, such as "settings" and "kept".
        path: Path of the file, for the log and for measuring the file's size.
        write: Function that is called on the event loop. It returns the function with which the thread
            replaces the file, or None if there is nothing to write.

    Attributes:
        is_failing: True if the last write failed.
    """

    def __init__(
        self, what: str, done: str, *, path: Path, write: Callable[[], Callable[[], None] | None]
    ) -> None:
        self._what = what
        self._done = done
        self._path = path
        self._write = write
        self._thread = DiskThreads(f"{what} file")
        self._changes = 0  # number of changes since the start
        self._kept = 0  # number of these changes that the file contains
        self._writing: asyncio.Future[str | None] | None = None
        self._timer: asyncio.Handle | None = None
        # Timer of a write that begins only after the pause. Callers may already wait for this write.
        self._pause: asyncio.Handle | None = None
        self._pause_end = 0.0
        self._size = 0
        self.is_failing = False
        self._closed = False

    def changed(self) -> None:
        """Record a change of the state. The caller must then call :meth:`keep` or :meth:`keep_soon`."""
        self._changes += 1

    def keep_soon(self) -> None:
        """Return at once, and start a write after all callbacks of this iteration of the event loop."""
        if self._timer is None and self._writing is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_soon(self._keep_again)

    async def keep(self) -> str | None:
        """Wait until all changes so far are written. Return None, or the reason why a write failed."""
        needed = self._changes
        while self._kept < needed:
            # Shield the write, because other callers may wait for it and a cancelled request must not stop
            # it.
            failure = await asyncio.shield(self._writing or self._begin())
            if failure is not None:
                return f"in force, but not kept in a file: {failure}; tried again every {RETRY_S:g} s"
        return None

    async def close(self) -> None:
        """Try once more to write changes that the file lacks.

        Give up after :data:`CLOSE_S` seconds, for example because the disk hangs.
        """
        self._closed = True
        self._stop_timer()
        if self._pause is not None:
            self._pause.cancel()
            self._write_now()
        try:
            async with asyncio.timeout(CLOSE_S):
                if self._writing is not None:
                    await asyncio.shield(self._writing)
                await self.keep()
        except TimeoutError:
            self._say(f"the disk has not answered for {CLOSE_S:g} s: ending without it")
        self._thread.shutdown()

    def _begin(self) -> asyncio.Future[str | None]:
        self._stop_timer()
        loop = asyncio.get_running_loop()
        self._writing = outcome = loop.create_future()
        if self._pause_end > loop.time() and not self._closed:
            self._pause = loop.call_at(self._pause_end, self._write_now)
        else:
            self._write_now()
        return outcome

    def _write_now(self) -> None:
        """Start the write whose future is in ``_writing``, with all changes that were made until now."""
        self._pause = None
        outcome = self._writing
        assert outcome is not None
        changes = self._changes
        try:
            work = self._write()
        except Exception as error:
            self._ended(outcome, changes, error)
        else:
            if work is None:
                self._ended(outcome, changes, None)
            else:
                self._begin_work(outcome, changes, work)

    def _begin_work(
        self, outcome: asyncio.Future[str | None], changes: int, work: Callable[[], None]
    ) -> None:
        try:
            writing = asyncio.get_running_loop().run_in_executor(self._thread, self._measured, work)
        except RuntimeError as error:
            # End the write with an error. Otherwise every later caller would wait for a write that never
            # began.
            self._ended(outcome, changes, OSError(f"no thread can be started: {error}"))
        else:
            writing.add_done_callback(lambda written: self._ended(outcome, changes, written.exception()))

    def _measured(self, work: Callable[[], None]) -> None:
        """Run the write function in the thread, then measure the file's size."""
        work()
        with suppress(OSError):
            self._size = self._path.stat().st_size

    def _ended(self, outcome: asyncio.Future[str | None], changes: int, error: BaseException | None) -> None:
        self._writing = None
        self._pause_end = asyncio.get_running_loop().time() + self._size / BYTES_PER_S
        if error is None:
            self._kept = changes
            if self.is_failing:
                logger.info("%s %s again file=%s", self._what, self._done, self._path)
            self.is_failing = False
            if self._kept < self._changes:
                self.keep_soon()
        else:
            if not self.is_failing:  # Log only the first failure. A broken disk must not flood the log.
                self._say(error)
            self.is_failing = True
            if not self._closed:
                self._timer = asyncio.get_running_loop().call_later(RETRY_S, self._keep_again)
        outcome.set_result(None if error is None else str(error))

    def _say(self, error: BaseException | str) -> None:
        trace = None if isinstance(error, OSError | str) else error
        line = "%s not %s file=%s error=%s"
        logger.error(line, self._what, self._done, self._path, error, exc_info=trace)

    def _keep_again(self) -> None:
        self._timer = None
        if self._kept < self._changes and self._writing is None:
            self._begin()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
