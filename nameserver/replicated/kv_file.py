"""RocketMQ's KV file: imported once into the replicated KV configuration, and afterwards only written."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from routekeeper.nameserver.commands import ImportKv
from routekeeper.nameserver.disk.files import DISK
from routekeeper.nameserver.modes.interface import NoQuorum, OutcomeUnknown
from routekeeper.nameserver.modes.kept_file import KeptFile
from routekeeper.nameserver.routes.kv import KV_BYTES_MAX, size_of
from routekeeper.nameserver.settings.files import FileError, encode_kv, load_kv_file, write_atomic
from routekeeper.nameserver.verdicts import Applied, Moved

from .proposals import WRITE_DEADLINE_S
from .proposer import Proposer
from .surroundings import Component, Surroundings

logger = logging.getLogger(__name__)

IMPORT_RETRY_S: Final = 1.0

_Table: TypeAlias = dict[str, dict[str, str | None]]


class KvFile(Component):
    """The KV file: imported into the replicated table at the start, and written after later changes.

    A file that cannot be imported does not prevent the start, and is not overwritten.

    Attributes:
        export: Writer of the file.
    """

    def __init__(self, given: Surroundings, proposer: Proposer) -> None:
        path = self._path = Path(given.settings.current.kv_path)
        super().__init__(given)
        self._proposer = proposer
        # content of the file; None if the file is broken and must stay unchanged
        self._found: _Table | None = None
        self._exports = False
        self.export = KeptFile("KV configuration", "exported", path=path, write=self._write)
        self._importer: asyncio.Task[None] | None = None
        try:
            found = load_kv_file(path)
            size = size_of(found)
            if size > KV_BYTES_MAX:
                raise FileError(f"{path} has {size} bytes of entries, at most {KV_BYTES_MAX} are allowed")
            self._found = found
        except FileError as error:
            logger.error(
                "KV configuration not imported error=%s: nothing is exported over it; mend it or move it "
                "away, and restart",
                error,
            )

    def start(self) -> None:
        """Begin to import the file, and to write it when the table changes; do nothing for a broken file."""
        if self._found is None:
            return
        self._exports = True
        self.export.keep_soon()
        if self._found:
            self._importer = self._loop.create_task(self._import(self._found), name="kv import")

    def may_differ(self) -> None:
        """Write the file again, because the table's KV configuration may have changed."""
        self.export.changed()
        if self._exports:
            self.export.keep_soon()

    async def close(self) -> None:
        """Stop the import; return when the file equals the table, or after some seconds if the disk hangs."""
        if self._importer is not None:
            self._importer.cancel()
            await asyncio.wait((self._importer,))
        await self.export.close()

    async def _import(self, found: _Table) -> None:
        try:
            await self._offer(ImportKv(table=found))
        except Exception:
            # Do not overwrite the file: its content is not in the table, and must not be lost.
            logger.exception("KV configuration not imported file=%s", self._path)
            self._exports = False

    async def _offer(self, command: ImportKv) -> None:
        """Propose the content of the KV file to a cluster that never had a KV configuration.

        The first import by any member succeeds. The table rejects every later import. If it rejects this
        member's import, this member only writes its file from then on.
        """
        while not self._table.view.kv_table():
            try:
                verdict = await self._proposer.propose(command, deadline=self._loop.time() + WRITE_DEADLINE_S)
            except (NoQuorum, OutcomeUnknown):
                await asyncio.sleep(IMPORT_RETRY_S)
                continue
            if isinstance(verdict, Applied):
                logger.info("KV configuration imported file=%s", self._path)
            if not isinstance(verdict, Moved):
                return

    def _write(self) -> Callable[[], None] | None:
        """Return a function that writes the table's KV configuration to the file, for RocketMQ's tools.

        Return None if the table has no KV configuration, or if the file must stay unchanged.
        """
        table = self._table.view.kv_table()
        if not table or not self._exports:
            return None
        return partial(_save_if_other, self._path, encode_kv(table))


def _save_if_other(path: Path, content: bytes) -> None:
    if not path.exists() or DISK.read(path) != content:
        write_atomic(path, content)
