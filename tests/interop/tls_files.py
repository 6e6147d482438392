"""Certificates for both sides, as RocketMQ's JVM properties and as our options name them.

They are those of the members' TLS tests: one authority, ``member`` for 127.0.0.1, and others that do not fit.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from .apache import ask_over

CERTS: Final = Path(__file__).resolve().parent.parent / "nameserver" / "raft" / "certs"
AUTHORITY: Final = str(CERTS / "authority.pem")


def certificate(name: str) -> str:
    return str(CERTS / f"{name}.pem")


def key(name: str) -> str:
    return str(CERTS / f"{name}.key")


#: No file: the default one of a machine, if there is one, would count.
_NO_FILE: Final = {"tls.config.file": "/nonexistent/tls.properties", "tls.test.mode.enable": "false"}


def java_client(name: str = "member") -> dict[str, str]:
    """Return JVM properties of a client, or of a broker's own connections, that shows a certificate."""
    return {
        **_NO_FILE,
        "tls.enable": "true",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": AUTHORITY,
        "tls.client.certPath": certificate(name),
        "tls.client.keyPath": key(name),
    }


def java_server(name: str = "member") -> dict[str, str]:
    """Return JVM properties of a server that takes nothing plain and nobody without a certificate."""
    return {
        **_NO_FILE,
        "tls.server.mode": "enforcing",
        "tls.server.certPath": certificate(name),
        "tls.server.keyPath": key(name),
        "tls.server.need.client.auth": "require",
        "tls.server.authClient": "true",
        "tls.server.trustCertPath": AUTHORITY,
    }


#: Options of our ``mqadmin``.
MQADMIN: Final = (*("--tls-ca", AUTHORITY, "--tls-cert", certificate("member"), "--tls-key", key("member")),)
#: Settings of our broker's connections to nameservers.
TO_NAMESRV: Final[Mapping[str, str]] = {
    "tls.enable": "true",
    "tls.client.trustCertPath": AUTHORITY,
    "tls.client.certPath": certificate("member"),
    "tls.client.keyPath": key("member"),
}


def routed(namesrv: str, topic: str, broker: str) -> bool:
    """Return whether a nameserver, asked over TLS, routes a topic to the address ``broker``."""
    context = ssl.create_default_context(cafile=AUTHORITY)
    context.load_cert_chain(certificate("member"), key("member"))
    host, _, port = namesrv.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 15.0) as plain:
        with context.wrap_socket(plain, server_hostname=host) as connection:
            code, _, body = ask_over(connection, 105, {"topic": topic})
        return code == 0 and f'"{broker}"'.encode() in body
    return False
