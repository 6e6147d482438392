"""TLS contexts for the ports that this process serves, read from certificate files."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from pathlib import Path

from routekeeper.remoting.certificates import CertificateFiles, ends_of
from routekeeper.remoting.files import CERTIFICATES_SIZE_MAX, read_regular
from routekeeper.remoting.tls_settings import (
    CLIENT_AUTH,
    DISABLED,
    ENFORCING,
    PLAIN,
    PortTls,
    TlsFlags,
    TlsSettingError,
)
from routekeeper.remoting.transport.secured import PortContext
from routekeeper.remoting.transport.tls import no_password, reason

logger = logging.getLogger(__name__)

_VERIFY = dict(zip(CLIENT_AUTH, (ssl.CERT_NONE, ssl.CERT_OPTIONAL, ssl.CERT_REQUIRED), strict=True))


def load_port(settings: PortTls, *, what: str = "tls") -> PortContext:
    """Read the certificate files that the settings name, and return the port's context.

    This function blocks.

    Args:
        what: Name of the port in error texts.

    Raises:
        TlsSettingError: If a file cannot be used; the text names the file.
    """
    if settings.mode == DISABLED:
        return PortContext()
    cert, key, ca = settings.cert, settings.key or settings.cert, settings.ca
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Renegotiation would let a peer repeat the expensive part of a handshake without limit.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    # Allow no session tickets: a peer could resume a session after its certificate has expired.
    context.num_tickets = 0
    context.verify_mode = _VERIFY[settings.client_auth]
    ends_at = _ends(what, "certificate", cert)[0]
    _content(what, "key", key)
    try:
        context.load_cert_chain(cert, key, password=settings.key_password or no_password)
    except (OSError, ValueError) as error:
        raise TlsSettingError(f"{what}: certificate {cert} with key {key}: {reason(error)}") from None
    if ca:
        ends_at = min(ends_at, max(_ends(what, "authority", ca)))
        try:
            context.load_verify_locations(cafile=ca)
        except (OSError, ValueError) as error:
            raise TlsSettingError(f"{what}: authority {ca}: {reason(error)}") from None
    return PortContext(context=context, demanded=settings.mode == ENFORCING, ends_at=ends_at)


def paths_of(settings: PortTls) -> tuple[Path, ...]:
    """Return the paths of the files that :func:`load_port` reads; the certificate's path comes first."""
    return tuple(Path(name) for name in (settings.cert, settings.key, settings.ca) if name)


def _content(what: str, kind: str, path: str) -> str:
    try:  # read the file here first, because OpenSSL would block on a FIFO
        return read_regular(path, size_max=CERTIFICATES_SIZE_MAX).decode("latin-1")
    except OSError as error:
        raise TlsSettingError(f"{what}: {kind} {path}: {reason(error)}") from None


def _ends(what: str, kind: str, path: str) -> list[float]:
    try:
        return ends_of(_content(what, kind, path))
    except TlsSettingError:
        raise
    except ValueError as error:
        raise TlsSettingError(f"{what}: {kind} {path}: {error}") from None


class PortFiles(CertificateFiles[PortContext]):
    """The TLS files of one port, which are watched for changes. The constructor reads them, which blocks.

    Args:
        what: Name of the port in error texts and log lines.
        settle: Returns the settings; it reads the file ``config`` again at each call. With the settings in
            force as its argument, it can refuse a file that is incomplete.
        take: Called on the event loop with each newer context.
        config: Path of a file that contains a part of the settings; empty if there is none.

    Raises:
        TlsSettingError: If the files cannot be used.
    """

    def __init__(
        self,
        what: str,
        settle: Callable[[PortTls], PortTls],
        take: Callable[[PortContext], None],
        *,
        config: str = "",
    ) -> None:
        self._what, self._settle = what, settle
        self._config: tuple[Path, ...] = (Path(config),) if config else ()
        self._settings = self._newest = settle(PLAIN)
        self._take_context = take
        super().__init__(
            what, self._paths(), self._read, self._take_newest, ends_at=lambda context: context.ends_at
        )
        self._settings = self._newest
        self._warn_of_settings()

    def _paths(self) -> tuple[Path, ...]:
        return (*paths_of(self._settings), *self._config)

    def _read(self) -> PortContext:
        # These settings are not in force yet: the certificate files may still be refused.
        self._newest = self._settle(self._settings)
        return load_port(self._newest, what=self._what)

    def _take_newest(self, context: PortContext) -> None:
        self._settings = self._newest
        self.files.paths = self._paths()
        self._take_context(context)
        self._warn_of_settings()

    def _warn_of_settings(self) -> None:
        for warning in self._settings.warnings:
            logger.warning("tls setting ignored file=%s reason=%s", self._config[0], warning)


def watched_port(flags: TlsFlags, take: Callable[[PortContext], None]) -> PortFiles | None:
    """Return the watched TLS files of the port with these flags; None if the port can never use TLS.

    This function blocks.

    Raises:
        TlsSettingError: If the files cannot be used.
    """
    if flags.settle().mode == DISABLED and not flags.config:
        return None
    return PortFiles("tls certificate", flags.settle, take, config=flags.config)


def watched_http(settings: PortTls, take: Callable[[PortContext], None]) -> PortFiles | None:
    """Return the watched TLS files of an HTTP port; None if the port does not use TLS.

    This function blocks.

    Raises:
        TlsSettingError: If the files cannot be used.
    """
    if settings.mode == DISABLED:
        return None
    return PortFiles("http tls certificate", lambda _: settings, take)
