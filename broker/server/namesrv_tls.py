"""Security of a broker's own connections to nameservers."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from routekeeper.broker.config import BrokerConfig
from routekeeper.broker.errors import SettingError
from routekeeper.remoting.transport.tls import Tls, TlsError, load
from routekeeper.remoting.watched_files import WatchedFiles

logger = logging.getLogger(__name__)


class NamesrvTls:
    """The files of TLS towards nameservers. Reads them at once; new connections use what was read last.

    Raises:
        SettingError: If a file cannot be used.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        paths = (config.tls_client_ca, config.tls_client_cert, config.tls_client_key)
        try:
            self.files = WatchedFiles(
                "nameserver tls", tuple(Path(path) for path in paths if path), self._load, lambda _: None
            )
        except TlsError as error:
            raise SettingError(f"TLS towards nameservers: {error}") from None
        self.tls = Tls(lambda: self.files.value, lambda addr: True)
        if not config.checks_nameservers:
            logger.warning(
                "certificates of nameservers are not checked hint=--tls-ca FILE names the authority that made"
                " them"
            )

    def _load(self) -> ssl.SSLContext:
        config = self._config
        return load(
            ca_file=config.tls_client_ca if config.checks_nameservers else "",
            cert_file=config.tls_client_cert,
            key_file=config.tls_client_key,
            key_password=config.tls_client_key_password,
            check="host" if config.checks_nameservers else "nothing",
        )
