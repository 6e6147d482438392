"""This member's certificate as time goes on: said before it ends, and read again when its files change."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from routekeeper.nameserver.raft.links import tls
from routekeeper.nameserver.raft.links.tls import TlsContexts
from routekeeper.nameserver.raft.types import RaftConfig
from routekeeper.remoting.watched_files import WatchedFiles

logger = logging.getLogger(__name__)


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
        cert, key, ca = self._cert, _, _ = config.tls_cert, config.tls_key, config.tls_ca
        self._take = take
        self._warned = 0
        self.files = WatchedFiles(
            "raft certificate",
            (cert, key, ca),
            lambda: tls.load(me=self._me, cert=cert, key=key, ca=ca),
            self._take_newer,
            each=self._warn,
        )

    @property
    def contexts(self) -> TlsContexts:
        """As read last."""
        return self.files.value

    @property
    def left_s(self) -> float:
        """Seconds until this member's certificate, or its last authority, has expired; below 0 afterwards."""
        return self.contexts.expires_at - time.time()

    def watch(self) -> None:
        """Look from now on at the files and the date."""
        self._warn()
        self.files.watch()

    def close(self) -> None:
        """Look no more."""
        self.files.close()

    def _take_newer(self, contexts: TlsContexts) -> None:
        self._warned = 0
        self._take(contexts)

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
