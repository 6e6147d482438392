"""Votes and standings on their way to the disk, and what must not leave before they are there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from nameserver.disk.files import FULL_ERRNOS
from nameserver.raft.consensus.members import Standing
from nameserver.raft.storage.identity import DataDirectory
from nameserver.raft.storage.writer import FULL_RETRY_S
from remoting.disk_threads import DiskThreads

logger = logging.getLogger(__name__)

#: Messages held while a promise is stored; a disk that stands still for long costs those after these.
HELD_MAX: Final = 4096


@dataclass(eq=False, repr=False)
class Promises:
    """Stores what this member promises, in the background: its vote and its standing.

    Nothing leaves, and no write counts, while a promise is under way. A disk that stands still must not hold
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
        self._vote_due: tuple[int, str | None] | None = None
        self._standing_due = self._saving = False
        self._promised = self._kept = 0  # promises made, and how many of them are on the disk
        self._held: list[tuple[str, int, bytes]] = []  # member, kind, message

    @property
    def kept(self) -> bool:
        """Nothing is under way: messages may leave, and writes count."""
        return self._kept == self._promised

    def store_vote(self, term: int, vote: str | None) -> None:
        self._vote_due = (term, vote)
        self._promised += 1
        self._save_soon()

    def store_standing(self, standing: Standing) -> None:
        if self.directory.become(standing):
            self._promised += 1
        self.save_standing()

    def save_standing(self) -> None:
        """Store what the directory knows beside promises; nothing waits for it."""
        self._standing_due = True
        self._save_soon()

    # ---- what waits

    def hold(self, member: str, kind: int, message: bytes) -> bool:
        """Keep a message until all promises are kept; False if too many wait already."""
        if len(self._held) >= HELD_MAX:
            return False
        self._held.append((member, kind, message))
        return True

    def link_down(self, peer: str) -> None:
        self._held = [message for message in self._held if message[0] != peer]

    def take_held(self) -> list[tuple[str, int, bytes]]:
        """Messages, in order."""
        held, self._held = self._held, []
        return held

    # ---- the disk

    def _save_soon(self) -> None:
        if not self._saving:
            self._saving = True
            self.in_background(self._save())

    async def _save(self) -> None:
        """A vote is never later on the disk than what this member became by it."""
        while self._vote_due is not None or self._standing_due:
            made = self._promised
            saves: list[Callable[[], None]] = []
            if self._vote_due is not None:
                saves.append(partial(self.directory.save_vote, *self._vote_due))
            if self._standing_due:
                saves.append(self.directory.standing_to_save())
            self._vote_due, self._standing_due = None, False
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
