"""TLS for a broker's connections to nameservers."""

from __future__ import annotations

import logging
import math
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from routekeeper.broker.config import BrokerConfig
from routekeeper.broker.errors import SettingError
from routekeeper.remoting.certificates import CertificateFiles, ends_of
from routekeeper.remoting.files import CERTIFICATES_SIZE_MAX, read_regular
from routekeeper.remoting.tls_settings import ENFORCING, TlsFile, TlsSettingError, read_tls_file
from routekeeper.remoting.transport.tls import Tls, TlsError, load

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTls:
    """TLS files for connections that this broker opens. An empty path means no file.

    Attributes:
        checks: True if a nameserver must present a certificate for its host, signed by ``ca`` or by one of
            the system's authorities.
    """

    ca: str
    cert: str
    key: str
    key_password: str = field(repr=False)
    checks: bool


def own_tls(config: BrokerConfig, file: TlsFile, *, enforcing: bool) -> OwnTls | None:
    """Return the TLS files for connections that this broker opens, or None without TLS. Do not read them.

    Settings win over the file of ``--tls-config``.
    By default, RocketMQ does not check a server's certificate. This broker does check it by default if an
    authority is configured, because an operator who configures an authority expects a check.

    Args:
        file: Content of the file of ``--tls-config``.
        enforcing: True if this broker's own port demands TLS. Its connections to nameservers then also use
            TLS by default, as in RocketMQ.

    Raises:
        TlsSettingError: If the settings contradict each other.
    """
    enabled = config.tls_enable == "true" if config.tls_enable else file.enable
    if not (enforcing if enabled is None else enabled):
        if config.tls_client_cert:
            raise TlsSettingError("tls.client.certPath (--tls-client-cert) needs --namesrv-tls on")
        return None
    ca = config.tls_client_ca or config.tls_ca or file.client_ca
    cert, key = config.tls_client_cert, config.tls_client_key
    password = config.tls_client_key_password
    if not cert:  # also take the key from the file, because certificate and key must match
        cert, key, password = file.client_cert, file.client_key, file.client_key_password
    if key and not cert:
        raise TlsSettingError("tls.client.keyPath needs tls.client.certPath")
    named = config.tls_client_auth_server
    checks = named == "true" if named else file.client_checks_servers
    return OwnTls(
        ca=ca, cert=cert, key=key, key_password=password, checks=bool(ca) if checks is None else checks
    )


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A TLS context, made from files that were read.

    Attributes:
        ends_at: The earlier of two times (Unix s): the expiry of the broker's own certificate, and the expiry
            of the authority that expires last.
    """

    own: OwnTls
    context: ssl.SSLContext
    ends_at: float


class NamesrvTls(CertificateFiles[_Loaded]):
    """The TLS files for connections to nameservers.

    The constructor reads the files. New connections use the content that was read last.

    Attributes:
        tls: TLS for the client that registers the broker.
    """

    def __init__(self, first: OwnTls, settle: Callable[[OwnTls], OwnTls | None], *, config: str) -> None:
        self._config = config
        self._in_force, self._settle = first, settle
        super().__init__(
            "nameserver tls",
            self._paths(first),
            self._load,
            self._follow,
            ends_at=lambda loaded: loaded.ends_at,
        )
        self.tls = Tls(lambda: self.value.context, lambda addr: True)

    def _paths(self, own: OwnTls) -> tuple[Path, ...]:
        return tuple(Path(path) for path in (own.cert, own.key, own.ca, self._config) if path)

    def _follow(self, loaded: _Loaded) -> None:
        self._in_force = loaded.own
        self.files.paths = self._paths(loaded.own)

    def _load(self) -> _Loaded:
        own = self._settle(self._in_force)
        if own is None:
            raise TlsSettingError("only a restart switches TLS to nameservers off")
        context = load(
            ca_file=own.ca if own.checks else "",
            cert_file=own.cert,
            key_file=own.key,
            key_password=own.key_password,
            check="host" if own.checks else "nothing",
        )
        ends_at = min(_ends(own.cert)[0], max(_ends(own.ca if own.checks else "")))
        return _Loaded(own, context, ends_at)


def _ends(file: str) -> list[float]:
    """Return the times at which the certificates in a file expire, or infinity without a file."""
    if not file:
        return [math.inf]
    return ends_of(read_regular(file, size_max=CERTIFICATES_SIZE_MAX).decode("latin-1"))


def namesrv_tls(config: BrokerConfig) -> NamesrvTls | None:
    """Return TLS for connections to nameservers, or None without TLS. This call blocks while it reads files.

    Raises:
        SettingError: If the settings contradict each other, or if a file cannot be used.
    """

    def settle(in_force: OwnTls | None = None) -> OwnTls | None:
        file = read_tls_file(config.tls_config) if config.tls_config else TlsFile()
        own = own_tls(config, file, enforcing=config.tls.settle().mode == ENFORCING)
        # A full disk or an unfinished copy may have cut the file. Only a line of it may end the check.
        is_lost = in_force is not None and in_force.checks and own is not None and not own.checks
        if is_lost and file.client_checks_servers is None:
            raise TlsSettingError(
                f"--tls-config {config.tls_config}: tls.client.trustCertPath or tls.client.authServer"
                " is missing, perhaps the file is incomplete; to end the check of nameservers, write"
                " tls.client.authServer=false"
            )
        return own

    try:
        first = settle()
        if first is None:
            return None
        made = NamesrvTls(first, settle, config=config.tls_config)
    except (TlsError, TlsSettingError, OSError, ValueError) as error:
        raise SettingError(f"TLS towards nameservers: {error}") from None
    if not first.checks:
        logger.warning(
            "certificates of nameservers are not checked hint=--tls-ca FILE names the authority that made"
            " them"
        )
    return made
