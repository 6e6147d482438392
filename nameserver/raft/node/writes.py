"""Writes of the journal, seen from the loop: handed over, and heard of when they are durable."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Final

from nameserver.raft.consensus.log import Op
from nameserver.raft.storage.files import StorageFull
from nameserver.raft.storage.journal import Journal
from nameserver.raft.storage.writer import Writer

from . import clock

logger = logging.getLogger(__name__)

#: A follower waits for its own write if the one before it ended so long ago: no other work is being held up.
QUIET_S: Final = 0.0003
#: And if the loop was through with all that was ready so soon: it is not busy with reads, say.
IDLE_S: Final = 0.0003
#: Once a write took longer than the loop waits, the loop waits for none for so long.
HASTE_S: Final = 0.25


class JournalWrites:
    """The journal's writer and up to where it is known to be through.

    Args:
        on_durable: Everything up to this position is durable; on the loop.
        on_failed: The disk is broken, with the reason; on the loop.
    """

    def __init__(
        self, journal: Journal, *, on_durable: Callable[[int], None], on_failed: Callable[[str], None]
    ) -> None:
        self._journal = journal
        self._on_durable = on_durable
        self._loop = asyncio.get_running_loop()
        self._handed = self._told = 0  # positions: the last one, and up to which they are durable
        self._told_at = self._wait_from = -math.inf
        self._closed = False
        self._writer = Writer(
            journal, done=partial(self._on_loop, self.durable), failed=partial(self._on_loop, on_failed)
        )
        self._writer.start()

    def write(self, position: int, ops: list[Op], *, leads: bool, alone: bool) -> None:
        """Hand over ``ops``. A leader with others hears from them before it can commit, and asks then."""
        self._writer.write(position, ops, silent=leads and not alone)
        if self._handed == self._told and not leads:
            now = clock.boot_clock()
            if now > self._wait_from and now > self._told_at + QUIET_S:
                # all that is ready goes first
                self._loop.call_soon(self._loop.call_soon, self._await_write, now + IDLE_S)
        self._handed = position

    def ask(self) -> None:
        """Take what is durable by now before something else is done with it."""
        if self._handed != self._told:
            position = self._writer.ask()
            if position > self._told:
                self.durable(position)

    def _await_write(self, deadline: float) -> None:
        """The answer to the leader is all that is waited for, most likely: the disk is waited for with it."""
        if self._closed or self._handed == self._told or clock.boot_clock() > deadline:
            return
        position = self._writer.wait(self._handed)
        if position is None:
            self._wait_from = clock.boot_clock() + HASTE_S
        elif position:
            self.durable(position)

    def durable(self, position: int) -> None:
        """Tell that everything up to ``position`` is durable; once more if that had to wait for a promise."""
        self._told, self._told_at = max(self._told, position), clock.boot_clock()
        self._on_durable(position)

    def _on_loop(self, callback: Callable[..., None], said: object) -> None:
        """On the writer's thread: tell the loop."""
        try:
            self._loop.call_soon_threadsafe(callback, said)
        except RuntimeError:
            pass  # the loop is closed: nobody is left to be told

    def rotate(self) -> None:
        """Begin another segment, behind all that was handed over."""
        self._writer.call(self._rotate)

    def _rotate(self) -> None:
        """On the writer's thread."""
        try:
            self._journal.rotate()
        except StorageFull as error:
            logger.error("journal full: %s; the segment goes on", error)

    def trim(self, index: int) -> None:
        """The journal needs nothing up to ``index`` any more."""
        self._writer.call(lambda: self._journal.trim(index))

    def stop_waiting(self) -> None:
        self._closed = True

    def close(self) -> bool:
        """Write what is queued; blocking. Return whether all was written."""
        self._writer.close()
        return self._writer.wrote_all
