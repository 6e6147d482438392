"""Mutual TLS 1.3 between members: TLS contexts, and the check of names in certificates.

Each end must show a certificate from the configured authority. The certificate must have the host of the
member's address, an IP address or a DNS name, among its subject alternative names. Ports, wildcards and
common names do not count. The event loop's own TLS is not used, because it does not report the reason when an
accepted connection fails.
"""

from __future__ import annotations

import ipaddress
import math
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from routekeeper.nameserver.raft.types import RaftStartError, needed_to_start
from routekeeper.remoting.addresses import split_address
from routekeeper.remoting.files import CERTIFICATES_SIZE_MAX, read_regular
from routekeeper.remoting.transport.tls import Pipe, TlsError, no_password, reason


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsContexts:
    """One member's certificate and authority, for connections that it accepts and that it dials.

    Attributes:
        expires_at: Unix time in seconds at which the certificate expires, or at which the last of the
            authorities expires, whichever is earlier.
    """

    accept: ssl.SSLContext
    dial: ssl.SSLContext
    expires_at: float = math.inf

    def pipe(self, *, accepts: bool, who: str = "the peer", whose: str = "the peer's") -> Pipe:
        """Return one end of a new TLS connection. The dialler begins the handshake.

        Args:
            accepts: True for the end that accepted the connection; False for the dialler.
            who, whose: Words for the peer in error texts.
        """
        context = self.accept if accepts else self.dial
        return Pipe(context, accepts=accepts, who=who, whose=whose)


def load(*, me: str, cert: Path, key: Path, ca: Path) -> TlsContexts:
    """Read this member's certificate and key, and the members' authority, and test them with a handshake.

    Raises:
        RaftStartError: A file cannot be used, or the certificate does not name the host of ``me``.
    """
    contexts = TlsContexts(
        accept=_context(ssl.PROTOCOL_TLS_SERVER, cert=cert, key=key, ca=ca),
        dial=_context(ssl.PROTOCOL_TLS_CLIENT, cert=cert, key=key, ca=ca),
    )
    contexts.accept.num_tickets = 0  # send no tickets, because this program never resumes a TLS session
    accept, dial = (
        contexts.pipe(accepts=accepts, who="this member", whose="this member's") for accepts in (True, False)
    )
    with needed_to_start(f"certificate {cert}", TlsError):
        dial.shake(b"")
        while not accept.shake(dial.pending()):
            dial.shake(accept.pending())
    host, _ = split_address(me)
    if not names_host(accept.certificate(), host):
        raise RaftStartError(f"raft: certificate {cert} names {names(accept.certificate())}, not {host}")
    return replace(contexts, expires_at=_expires_at(accept.certificate(), contexts.accept))


def _expires_at(certificate: Mapping[str, Any], context: ssl.SSLContext) -> float:
    authorities = [ssl.cert_time_to_seconds(str(found["notAfter"])) for found in context.get_ca_certs()]
    return min(ssl.cert_time_to_seconds(str(certificate["notAfter"])), max(authorities, default=math.inf))


def _context(protocol: int, *, cert: Path, key: Path, ca: Path) -> ssl.SSLContext:
    for what, path in ((f"certificate {cert}", cert), (f"key {key}", key), (f"authority {ca}", ca)):
        with needed_to_start(what, OSError):
            read_regular(path, size_max=CERTIFICATES_SIZE_MAX)  # refuse a FIFO, on which OpenSSL would hang
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # names_host() checks the member's name instead, on both ends
    context.verify_mode = ssl.CERT_REQUIRED
    with needed_to_start(f"certificate {cert} with key {key}", OSError, ValueError, reason=reason):
        context.load_cert_chain(cert, key, password=no_password)
    with needed_to_start(f"authority {ca}", OSError, reason=reason):
        context.load_verify_locations(cafile=ca)
    return context


def names_host(certificate: Mapping[str, Any], host: str) -> bool:
    """Return True if ``certificate``, a result of :meth:`ssl.SSLObject.getpeercert`, names ``host``."""
    kind, name = _canonical(host)
    return any(
        kind == of_kind and name == _canonical(value)[1]
        for of_kind, value in certificate.get("subjectAltName", ())
    )


def names(certificate: Mapping[str, Any]) -> str:
    """Return the names in a certificate, for the log."""
    found = [str(value) for _, value in certificate.get("subjectAltName", ())]
    return ",".join(found)[:200] or "nobody"


def _canonical(host: str) -> tuple[str, str]:
    """Return a host's kind in the ssl module's words (DNS, IP Address), and its name in normal form."""
    try:
        return "IP Address", str(ipaddress.ip_address(host))
    except ValueError:
        return "DNS", host.rstrip(".").lower()
