"""Files that a running server reads again after they have changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

from routekeeper.remoting import wall_clock
from routekeeper.remoting.disk_threads import DiskThreads
from routekeeper.remoting.files import Signature, signature

logger = logging.getLogger(__name__)

#: Seconds between two checks of the files.
CHECK_S: Final = 5.0
#: Minimum age in seconds of content that these checks read. Younger content may be incomplete, because its
#: writer is still busy.
SETTLED_S: Final = 1.0
_UNSETTLED: Final = "unsettled"

T = TypeVar("T")


class WatchedFiles(Generic[T]):
    """Files that belong together, and the value that was last read from them.

    The constructor reads the files, which blocks; its errors reach the caller. Later, a thread checks and
    reads the files, so that a hung disk delays no other work. If the new content cannot be used, the former
    value stays in force, and one WARNING gives the reason. Content that changes while it is read is refused,
    because a part of it may be missing.

    Args:
        what: Name of the files in log lines, such as "raft certificate".
        paths: Paths of the files. If the paths depend on the content, ``take`` must update :attr:`paths`.
        read: Reads the files and returns the value. Any exception refuses the content; its text is the
            reason.
        take: Called on the event loop with each newer value, but not with the first value. It may refuse the
            value by raising an exception before it changes anything.
        each: Called on the event loop after each check.

    Attributes:
        value: Value that was last read successfully.
    """

    def __init__(
        self,
        what: str,
        paths: Sequence[Path],
        read: Callable[[], T],
        take: Callable[[T], None],
        *,
        each: Callable[[], None] | None = None,
    ) -> None:
        self.what = what
        self.paths = tuple(paths)
        self._read, self._take, self._each = read, take, each
        # Compute the signature before the files are read, so that a change during the reading is detected
        # later.
        self._taken = signature(self.paths)
        self._refused: tuple[Signature | None, str] | None = None
        self._thread = DiskThreads(what)
        self._looking = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None
        self.value = read()

    def watch(self) -> None:
        """Check the files every :data:`CHECK_S` seconds from now on.

        If a file has changed within the last :data:`SETTLED_S` seconds, the files are checked again after
        this time, and not read before.
        """
        self._watching = asyncio.get_running_loop().create_task(self._watch(), name=self.what)

    def close(self) -> None:
        """Stop the checks."""
        if self._watching is not None:
            self._watching.cancel()
        self._thread.shutdown()

    async def look(self) -> str:
        """Check the files now, and read them if they have changed, even if they changed just now.

        Returns:
            ``unchanged``, ``taken``, or ``refused: REASON``. After a refusal, each check reads the files
                again, and returns ``refused`` until they can be used.
        """
        return await self._check(settled_s=0.0)

    async def _check(self, *, settled_s: float) -> str:
        async with self._looking:
            outcome = await self._look(settled_s)
        if self._each is not None:
            self._each()
        return outcome

    async def change(self, work: Callable[[], None]) -> None:
        """Change the files: call ``work`` in the thread that also checks and reads them.

        Raises:
            RuntimeError: If that thread cannot be started; ``work`` is never called.
        """
        await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _watch(self) -> None:
        pause_s = CHECK_S
        while True:
            await asyncio.sleep(pause_s)
            outcome = await self._check(settled_s=SETTLED_S)
            pause_s = SETTLED_S if outcome == _UNSETTLED else CHECK_S

    def _read_whole(self, found: Signature) -> T:
        value = self._read()
        if signature(self.paths) != found:
            raise ValueError("a file changed while it was read; the next check reads it again")
        return value

    async def _look(self, settled_s: float) -> str:
        loop = asyncio.get_running_loop()
        found: Signature | None = None
        try:
            found = await loop.run_in_executor(self._thread, signature, self.paths)
            if found == self._taken:
                self._refused = None  # if the same error comes back, log it again
                return "unchanged"
            now_ms = wall_clock.now_ms()
            if any(abs(now_ms - changed_ns / 1e6) < settled_s * 1e3 for changed_ns, _, _ in found):
                return _UNSETTLED
            # Read again, even after a refusal: an operator replaces files one after another. A certificate
            # and a key that do not match now may soon match.
            value = await loop.run_in_executor(self._thread, self._read_whole, found)
            self._take(value)
        # A defect in ``read`` or ``take``, or a thread that cannot start, must not end a working server.
        except Exception as error:
            reason = str(error) or repr(error)
            if self._refused != (found, reason):
                self._refused = found, reason
                logger.warning("%s not taken, the former one goes on error=%s", self.what, reason)
            return f"refused: {reason}"
        self.value, self._refused = value, None
        self._taken = found  # if ``take`` changed the paths, the next check reads the files again
        logger.info("%s read again files=%s", self.what, ",".join(map(str, self.paths)))
        return "taken"
