"""Storage of votes and member states in the background, before any message that depends on them leaves."""

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
    """Background storage of this member's promises. A promise is a vote, or a change of the member state.

    While a promise is being stored, no message leaves this member, and no journal write counts as durable.
    The event loop does not wait for the disk. So a member with a hung disk still answers stale reads, and
    refuses other requests.

    Args:
        in_background: Runs a coroutine. The member waits for the coroutine's end before it closes the files.
        on_kept: Called when all promises are on the disk.
        on_failed: Called with the reason when a promise cannot be stored. The member must then stop.

    Attributes:
        kept: True if no promise is being stored. Messages may then leave, and journal writes count as
            durable.
        closing: True if the member closes, and therefore no longer waits for space on a full disk.
    """

    directory: DataDirectory
    in_background: Callable[[Coroutine[Any, Any, None]], None]
    on_kept: Callable[[], None]
    on_failed: Callable[[str], None]
    closing: bool = False

    def __post_init__(self) -> None:
        self.thread = DiskThreads("raft promises")
        # Functions that store the next vote and the next member state. The vote must be stored first, because
        # the member state may depend on it.
        self._vote_due: Callable[[], None] | None = None
        self._standing_due: Callable[[], None] | None = None
        self._saving = False
        self._promised = 0  # number of promises so far
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

        Unlike :meth:`store_standing`, this method lets messages leave meanwhile.
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
                return  # the member stops, so its waiting messages never leave
            if self._promised == made:  # no further promise was made while the disk worked
                self.kept = True
                self.on_kept()
        self._saving = False

    async def _saved(self, saves: list[Callable[[], None]]) -> bool:
        """Store votes or member states by these functions. Return False if the member must stop.

        If the disk is full, wait for free space.
        """
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
        """Call functions that store votes or member states: in a thread, or else on the event loop.

        The event loop calls them only if no thread can be started. A member that waited for a thread could
        take part in no election. A vote is small, so the event loop waits only for a few syncs. If the disk
        hangs at the same time, the event loop hangs, too.

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
