"""The journal's thread, seen from the loop: what is handed to it, and up to where that is durable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from nameserver.disk.files import StorageFull
from nameserver.raft.consensus.log import Op
from nameserver.raft.storage.journal import Journal
from nameserver.raft.storage.writer import Writer

logger = logging.getLogger(__name__)


class JournalWrites:
    """Hands over to the journal's thread, and knows up to where that is through.

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
        self._writer = Writer(
            journal, done=partial(self._on_loop, self._durable), failed=partial(self._on_loop, on_failed)
        )
        self._writer.start()

    def write(self, position: int, ops: list[Op], *, asked: bool) -> None:
        """Hand over what becomes durable as ``position``; ``asked`` if :meth:`ask` follows soon anyway."""
        self._writer.write(position, ops, silent=asked)
        self._handed = position

    def ask(self) -> None:
        """Take what is durable by now before something else is done with it."""
        if self._handed != self._told:
            position = self._writer.ask()
            if position > self._told:
                self._durable(position)

    def _durable(self, position: int) -> None:
        self._told = max(self._told, position)
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

    def close(self) -> bool:
        """Write what is queued; blocking. Return whether all was written."""
        self._writer.close()
        return self._writer.wrote_all
