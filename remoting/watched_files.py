"""Files that are read again while a server runs, once they have changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

from routekeeper.remoting.disk_threads import DiskThreads
from routekeeper.remoting.files import Signature, signature

logger = logging.getLogger(__name__)

#: Interval in seconds between checks of the files.
CHECK_S: Final = 5.0

T = TypeVar("T")


class WatchedFiles(Generic[T]):
    """Files that belong together, and the value that was last read from them.

    The constructor reads them, which blocks; its errors reach the caller. Later a thread checks and reads
    them, so that a hung disk delays no other work. An unusable new content changes nothing: the former value
    stays, and one WARNING says why.

    Args:
        what: Name of the files in log lines, such as "raft certificate".
        paths: Paths of the files. If they change with the content, ``take`` sets :attr:`paths`.
        read: Returns the value; any exception refuses the content, with its text as the reason.
        take: Called on the loop with each newer value, but not with the first. It may refuse the value by an
            exception, if it has changed nothing by then.
        each: Called on the loop after each check.

    Attributes:
        value: The value that was last read.
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
        # computed before the reading, so that a change meanwhile is noticed
        self._taken = signature(self.paths)
        self._refused: tuple[Signature, str] | None = None
        self._thread = DiskThreads(what)
        self._looking = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None
        self.value = read()

    def watch(self) -> None:
        """Check the files every :data:`CHECK_S` from now on."""
        self._watching = asyncio.get_running_loop().create_task(self._watch(), name=self.what)

    def close(self) -> None:
        """Stop the checks."""
        if self._watching is not None:
            self._watching.cancel()
        self._thread.shutdown()

    async def look(self) -> str:
        """Check the files now, and read them if they have changed.

        Returns:
            ``unchanged``, ``taken``, or ``refused: REASON``; also ``refused`` as long as a content that was
                refused before is unchanged.
        """
        async with self._looking:
            outcome = await self._look()
        if self._each is not None:
            self._each()
        return outcome

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            await self.look()

    async def _look(self) -> str:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._thread, signature, self.paths)
        if found == self._taken:
            return "unchanged"
        # Files are replaced one after the other: a certificate and key that do not fit yet may fit soon.
        try:
            value = await loop.run_in_executor(self._thread, self._read)
            self._take(value)
        except Exception as error:  # a defect in a reader must not end a working server
            reason = str(error) or repr(error)
            if self._refused != (found, reason):
                self._refused = found, reason
                logger.warning("%s not taken, the former one goes on error=%s", self.what, reason)
            return f"refused: {reason}"
        self.value, self._refused = value, None
        self._taken = found  # state of the former paths: if ``take`` sets others, they are read once more
        logger.info("%s read again files=%s", self.what, ",".join(map(str, self.paths)))
        return "taken"
