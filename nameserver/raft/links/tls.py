"""Mutual TLS 1.3 between members, as a pipe without IO: bytes of the wire in, plain bytes out, and back.

Each end must show a certificate of the configured authority that names the host of the member's address, as
an IP address or a DNS name among its subject alternative names; ports, wildcards and common names do not
count. The event loop's own TLS is not used: it tells nobody why a connection that was accepted failed.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from nameserver.raft.types import RaftStartError
from remoting.addresses import split_address
from remoting.transport.tls import no_password, reason

_READ: Final = 256 * 1024
_reason: Final = partial(reason, who="the peer", whose="the peer's")


class TlsError(Exception):
    """The connection must be closed; one line for the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsContexts:
    """One member's certificate and authority, for connections that it accepts and that it dials."""

    accept: ssl.SSLContext
    dial: ssl.SSLContext


class Pipe:
    """One end of a TLS connection.

    After :class:`TlsError` what :meth:`pending` returns should still reach the peer: it says why.
    """

    def __init__(self, contexts: TlsContexts, *, accepts: bool) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = contexts.accept if accepts else contexts.dial
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=accepts)
        self.established = False

    def receive(self, data: bytes) -> bytes:
        """Take bytes of the wire; return the plain ones that are complete.

        Raises:
            TlsError: The peer cannot prove itself, refuses us, or speaks no TLS.
        """
        self._incoming.write(data)
        if not self.established and not self.shake():
            return b""
        parts = []
        try:
            while part := self._tls.read(_READ):
                parts.append(part)
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass  # no more yet; or the peer closes, and what follows is the connection's end
        except ssl.SSLError as error:
            raise TlsError(_reason(error)) from error
        return b"".join(parts)

    def send(self, data: bytes) -> bytes:
        """Plain bytes in, bytes for the wire out."""
        self._tls.write(data)
        return self._outgoing.read()

    def pending(self) -> bytes:
        """What the wire must still carry."""
        return self._outgoing.read()

    def certificate(self) -> Mapping[str, Any]:
        """The peer's, which is valid; see :func:`names_host`."""
        return self._tls.getpeercert() or {}

    def shake(self) -> bool:
        """Go on with the handshake, which the dialler begins (see :meth:`pending`); whether it is done."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise TlsError(_reason(error)) from error
        self.established = True
        return True


def load(*, me: str, cert: Path, key: Path, ca: Path) -> TlsContexts:
    """Read this member's certificate, its key, and the authority of all members, and try them.

    Raises:
        RaftStartError: A file cannot be used; or with this certificate ``me`` could not even talk to itself.
    """
    contexts = TlsContexts(
        accept=_context(ssl.PROTOCOL_TLS_SERVER, cert=cert, key=key, ca=ca),
        dial=_context(ssl.PROTOCOL_TLS_CLIENT, cert=cert, key=key, ca=ca),
    )
    contexts.accept.num_tickets = 0  # no session is ever resumed
    accept, dial = Pipe(contexts, accepts=True), Pipe(contexts, accepts=False)
    try:
        dial.shake()
        while not accept.established:
            accept.receive(dial.pending())
            dial.receive(accept.pending())
    except TlsError as error:
        raise RaftStartError(f"raft: certificate {cert}: {error}") from error
    host, _ = split_address(me)
    if not names_host(accept.certificate(), host):
        raise RaftStartError(f"raft: certificate {cert} names {names(accept.certificate())}, not {host}")
    return contexts


def _context(protocol: int, *, cert: Path, key: Path, ca: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # both ends check the name of a member: names_host
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(cert, key, password=no_password)
    except (OSError, ValueError) as error:
        raise RaftStartError(f"raft: certificate {cert} with key {key}: {_reason(error)}") from error
    try:
        context.load_verify_locations(cafile=ca)
    except OSError as error:
        raise RaftStartError(f"raft: authority {ca}: {_reason(error)}") from error
    return context


def names_host(certificate: Mapping[str, Any], host: str) -> bool:
    """Whether a certificate, as :meth:`ssl.SSLObject.getpeercert` gives it, names ``host``."""
    kind, name = _canonical(host)
    return any(
        kind == of_kind and name == _canonical(value)[1]
        for of_kind, value in certificate.get("subjectAltName", ())
    )


def names(certificate: Mapping[str, Any]) -> str:
    """The names in a certificate, for the log."""
    found = [str(value) for _, value in certificate.get("subjectAltName", ())]
    return ",".join(found)[:200] or "nobody"


def _canonical(host: str) -> tuple[str, str]:
    """Kind and comparable form of a host, kinds as the ssl module calls them."""
    try:
        return "IP Address", str(ipaddress.ip_address(host))
    except ValueError:
        return "DNS", host.rstrip(".").lower()
