"""RocketMQ's KV file beside the replicated KV configuration: imported once, then only written."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from nameserver.commands import ImportKv
from nameserver.modes.interface import NoQuorum, OutcomeUnknown
from nameserver.replicated.proposals import WRITE_DEADLINE_S
from nameserver.routes.table import RouteTable
from nameserver.settings.changes import LiveSettings
from nameserver.settings.files import encode_kv, load_kv_file, write_atomic
from nameserver.verdicts import Applied, Moved

from .writes import Writes

logger = logging.getLogger(__name__)

IMPORT_RETRY_S: Final = 1.0

EXPORT_RETRY_S: Final = 5.0
"""After a KV file that could not be written, the next try."""


class KvFile:
    """Offers the file found at the start to the group, and keeps it as the table is.

    Raises:
        FileError: If the file and its ``.bak`` are both broken.
    """

    def __init__(self, settings: LiveSettings, table: RouteTable, writes: Writes) -> None:
        self._path = Path(settings.current.kv_path)
        self._table = table
        self._writes = writes
        self._loop = asyncio.get_running_loop()
        self._found = load_kv_file(self._path)
        self._changed = asyncio.Event()
        self._closed = False
        self._exporter: asyncio.Task[None] | None = None
        self._importer: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to import and to export."""
        self._exporter = self._loop.create_task(self._export(), name="kv export")
        if self._found:
            self._importer = self._loop.create_task(self._import(), name="kv import")

    def may_differ(self) -> None:
        """The table's KV configuration may have changed."""
        self._changed.set()

    async def close(self) -> None:
        """Import no more; return once the file is written as the table is."""
        self._closed = True
        if self._importer is not None:
            self._importer.cancel()
            await asyncio.wait((self._importer,))
        if self._exporter is not None:
            self._changed.set()  # it ends after one more look
            await asyncio.wait((self._exporter,))

    async def _import(self) -> None:
        """Offer the KV file found at the start to a group that has never held any KV configuration.

        Whoever is first wins; the table rejects every later import, and then the file is only written.
        """
        command = ImportKv(table=self._found)
        while not self._table.view.kv_table():
            try:
                verdict = await self._writes.propose(command, deadline=self._loop.time() + WRITE_DEADLINE_S)
            except (NoQuorum, OutcomeUnknown):
                await asyncio.sleep(IMPORT_RETRY_S)
                continue
            if isinstance(verdict, Applied):
                logger.info("KV configuration imported file=%s", self._path)
            if not isinstance(verdict, Moved):
                return

    async def _export(self) -> None:
        """Keep the KV file as the table is, for RocketMQ's tools and for leaving this mode.

        What the disk does not take is tried again until it does, whether or not anything changes meanwhile.
        """
        failing = False
        while True:
            await self._changed.wait()
            self._changed.clear()
            table = self._table.view.kv_table()
            if table:
                try:
                    await asyncio.to_thread(_save_if_other, self._path, encode_kv(table))
                except OSError as error:
                    if not failing:  # once, not at each new try
                        logger.error("KV configuration not exported file=%s error=%s", self._path, error)
                    failing = True
                    if not self._closed:
                        self._loop.call_later(EXPORT_RETRY_S, self._changed.set)
                else:
                    if failing:
                        logger.info("KV configuration exported again file=%s", self._path)
                    failing = False
            if self._closed and not self._changed.is_set():
                return


def _save_if_other(path: Path, content: bytes) -> None:
    if not path.exists() or path.read_bytes() != content:
        write_atomic(path, content)
