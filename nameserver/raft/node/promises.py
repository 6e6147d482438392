"""Storage of votes and member states in the background; no message leaves before they are durable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from routekeeper.nameserver.disk.files import FULL_ERRNOS
from routekeeper.nameserver.raft.consensus.members import MemberState
from routekeeper.nameserver.raft.storage.identity import DataDirectory
from routekeeper.nameserver.raft.storage.writer import FULL_RETRY_S
from routekeeper.remoting.disk_threads import DiskThreads

logger = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class Promises:
    """Stores this member's promises in the background: its vote and its member state.

    While a promise is being stored, no message leaves this member, and no journal write counts as durable.
    The event loop does not wait for the disk. So a member with a hung disk still answers stale reads, and
    still refuses requests.

    Args:
        in_background: Runs a coroutine; the member waits for its end before it closes the files.
        on_kept: Called when all promises are on the disk.
        on_failed: Called with the reason when a promise cannot be stored; the member must stop.

    Attributes:
        kept: True if no promise is being stored: messages may leave, and journal writes count as durable.
        closing: Set to True when the member closes; the member then no longer waits for space on a full disk.
    """

    directory: DataDirectory
    in_background: Callable[[Coroutine[Any, Any, None]], None]
    on_kept: Callable[[], None]
    on_failed: Callable[[str], None]
    closing: bool = False

    def __post_init__(self) -> None:
        self.thread = DiskThreads("raft promises")
        # The next values to store. Store the vote first, because the member state may depend on it.
        self._vote_due: Callable[[], None] | None = None
        self._standing_due: Callable[[], None] | None = None
        self._saving = False
        self._promised = 0  # number of promises made
        self._no_thread_logged = False
        self.kept = True

    def _promise(self) -> None:
        self._promised += 1
        self.kept = False

    def store_vote(self, term: int, vote: str | None) -> None:
        self._vote_due = partial(self.directory.save_vote, term, vote)
        self._promise()
        self._save_soon()

    def store_standing(self, standing: MemberState) -> None:
        if self.directory.become(standing):
            self._promise()
        self.save_standing()

    def save_standing(self) -> None:
        """Store the member state in the background.

        Only :meth:`store_standing` holds messages back meanwhile.
        """
        self._standing_due = self.directory.standing_to_save()
        self._save_soon()

    # ---- the disk

    def _save_soon(self) -> None:
        if not self._saving:
            self._saving = True
            self.in_background(self._save())

    async def _save(self) -> None:
        while saves := [save for save in (self._vote_due, self._standing_due) if save is not None]:
            made = self._promised
            self._vote_due = self._standing_due = None
            if not await self._saved(saves):
                return  # the member stops: its waiting messages never leave
            if self._promised == made:  # no further promise was made while the disk worked
                self.kept = True
                self.on_kept()
        self._saving = False

    async def _saved(self, saves: list[Callable[[], None]]) -> bool:
        """Store the values; if the disk is full, wait for free space. Return False if the member stops."""
        said = False
        while True:
            try:
                await self._store(saves)
                return True
            except OSError as error:
                if error.errno not in FULL_ERRNOS:
                    self.on_failed(f"cannot store term, vote or standing: {error.strerror}")
                    return False
                if not said:
                    said = True
                    logger.error("no room for term, vote or standing: promising nothing until there is")
                if self.closing:
                    return False
                await asyncio.sleep(FULL_RETRY_S)

    async def _store(self, saves: list[Callable[[], None]]) -> None:
        """Call the functions in the thread, or here if no thread can be started.

        A member that waited for a thread would take part in no election. The values are small, so the event
        loop waits for one sync only. But if the disk hangs, too, the loop hangs.

        Raises:
            OSError: The disk failed, or is full.
        """

        def store() -> None:
            for save in saves:
                save()

        try:
            running = asyncio.get_running_loop().run_in_executor(self.thread, store)
        except RuntimeError as error:
            if not self._no_thread_logged:
                self._no_thread_logged = True
                logger.warning("no thread can be started: the event loop stores the votes error=%s", error)
            store()
        else:
            await running
