"""This member's certificate as time goes on: said before it ends, and read again when its files change."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from routekeeper.nameserver.raft.links import tls
from routekeeper.nameserver.raft.links.tls import TlsContexts
from routekeeper.nameserver.raft.types import RaftConfig, RaftStartError
from routekeeper.remoting.disk_threads import DiskThreads

logger = logging.getLogger(__name__)

#: Interval at which the files and the date are looked at.
CHECK_S: Final = 5.0

_Signature = tuple[tuple[int, int, int], ...]


class Certificates:
    """The files of ``--raft-tls-*``, and what was read of them last. Reads them at once; blocking.

    Args:
        config: Names all three.
        take: Called with newer contexts, on the loop: connections from now on use them.

    Raises:
        RaftStartError: They cannot be used.
    """

    def __init__(self, config: RaftConfig, take: Callable[[TlsContexts], None]) -> None:
        assert config.tls_cert is not None
        assert config.tls_key is not None
        assert config.tls_ca is not None
        self._me = config.me
        self._cert, self._key, self._ca = config.tls_cert, config.tls_key, config.tls_ca
        self._take = take
        self._read = self._refused = self._signature()
        self._warned = 0
        self._thread = DiskThreads("raft certificates")
        self._watching: asyncio.Task[None] | None = None
        self.contexts = self._load()

    def _load(self) -> TlsContexts:
        return tls.load(me=self._me, cert=self._cert, key=self._key, ca=self._ca)

    def _signature(self) -> _Signature:
        """Return what changes with the files, as far as a look at them tells."""
        return tuple(_of(path) for path in (self._cert, self._key, self._ca))

    @property
    def left_s(self) -> float:
        """Seconds until this member's certificate, or its last authority, has expired; below 0 afterwards."""
        return self.contexts.expires_at - time.time()

    def watch(self) -> None:
        """Look from now on at the files and the date."""
        self._warn()
        self._watching = asyncio.get_running_loop().create_task(self._watch(), name="raft certificates")

    def close(self) -> None:
        """Look no more."""
        if self._watching is not None:
            self._watching.cancel()
        self._thread.shutdown()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(CHECK_S)
            signature = await loop.run_in_executor(self._thread, self._signature)
            if signature != self._read:
                # Files are replaced one after the other: what does not fit yet may do so soon.
                try:
                    self.contexts = await loop.run_in_executor(self._thread, self._load)
                except (RaftStartError, OSError, ValueError) as error:
                    if signature != self._refused:
                        logger.warning("raft certificate not taken, the former one goes on error=%s", error)
                    self._refused = signature
                else:
                    self._read = self._refused = signature
                    self._warned = 0
                    self._take(self.contexts)
                    logger.info("raft certificate read again file=%s until=%s", self._cert, self._until)
            self._warn()

    @property
    def _until(self) -> str:
        return f"{datetime.fromtimestamp(self.contexts.expires_at, UTC):%Y-%m-%dT%H:%M:%SZ}"

    def _warn(self) -> None:
        """Say once at each threshold that the certificate ends."""
        passed = tls.thresholds_passed(self.left_s)
        if passed > self._warned:
            self._warned = passed
            logger.warning(
                "raft certificate ends soon me=%s file=%s until=%s days_left=%.1f: put a new one in its "
                "place, it is read without a restart",
                self._me,
                self._cert,
                self._until,
                self.left_s / tls.DAY_S,
            )


def _of(path: Path) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return found.st_mtime_ns, found.st_size, found.st_ino
