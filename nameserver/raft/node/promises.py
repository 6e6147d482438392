"""Votes and standings on their way to the disk; nothing may leave before they are there."""

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
    """Stores what this member promises, in the background: its vote and its standing.

    Nothing leaves, and no write counts, while a promise is under way. A hung disk must not hold
    the loop: stale reads and refusals go on meanwhile.

    Args:
        in_background: Runs a coroutine that is waited for before the files are closed.
        on_kept: All promises are on the disk.
        on_failed: One cannot be stored, with the reason: the member stops.

    Attributes:
        closing: Room is waited for no longer.
    """

    directory: DataDirectory
    in_background: Callable[[Coroutine[Any, Any, None]], None]
    on_kept: Callable[[], None]
    on_failed: Callable[[str], None]
    closing: bool = False

    def __post_init__(self) -> None:
        self.thread = DiskThreads("raft promises")
        # To be stored next: a vote is never later on the disk than what this member became by it.
        self._vote_due: Callable[[], None] | None = None
        self._standing_due: Callable[[], None] | None = None
        self._saving = False
        self._promised = self._kept = 0  # promises made, and how many of them are on the disk

    @property
    def kept(self) -> bool:
        """Nothing is under way: messages may leave, and writes count."""
        return self._kept == self._promised

    def store_vote(self, term: int, vote: str | None) -> None:
        self._vote_due = partial(self.directory.save_vote, term, vote)
        self._promised += 1
        self._save_soon()

    def store_standing(self, standing: MemberState) -> None:
        if self.directory.become(standing):
            self._promised += 1
        self.save_standing()

    def save_standing(self) -> None:
        """Store what the directory knows beside promises; nothing waits for it."""
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
                return  # what is held never leaves
            self._kept = made
            if self.kept:  # no other was made meanwhile
                self.on_kept()
        self._saving = False

    async def _saved(self, saves: list[Callable[[], None]]) -> bool:
        """Wait for room as long as it takes; False if the member stops."""
        loop, said = asyncio.get_running_loop(), False
        while True:
            try:
                await loop.run_in_executor(self.thread, lambda: [save() for save in saves])
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
