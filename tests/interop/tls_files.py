"""Certificates for both sides, as RocketMQ's JVM properties and as our options name them.

They are those of the members' TLS tests: one authority, ``member`` for 127.0.0.1, and others that do not fit.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from typing import Final

from tests.tls import AUTHORITY as AUTHORITY_FILE
from tests.tls import client_context, key, pem

from .apache import ask_over

AUTHORITY: Final = str(AUTHORITY_FILE)
#: No file: the default one of a machine, if there is one, would count.
_NO_FILE: Final = {"tls.config.file": "/nonexistent/tls.properties", "tls.test.mode.enable": "false"}


def java_client(name: str = "member") -> dict[str, str]:
    """Return JVM properties of a client, or of a broker's own connections, that shows a certificate."""
    return {
        **_NO_FILE,
        "tls.enable": "true",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": AUTHORITY,
        "tls.client.certPath": pem(name),
        "tls.client.keyPath": key(name),
    }


def java_server(name: str = "member") -> dict[str, str]:
    """Return JVM properties of a server that takes nothing plain and nobody without a certificate."""
    return {
        **_NO_FILE,
        "tls.server.mode": "enforcing",
        "tls.server.certPath": pem(name),
        "tls.server.keyPath": key(name),
        "tls.server.need.client.auth": "require",
        "tls.server.authClient": "true",
        "tls.server.trustCertPath": AUTHORITY,
    }


_SHOWN: Final = ("--tls-cert", pem("member"), "--tls-key", key("member"))
#: Flags of our servers by their mode; where it is enforcing, clients must show a certificate, too.
MODE_FLAGS: Final[Mapping[str, tuple[str, ...]]] = {
    "enforcing": (*_SHOWN, "--tls-mode", "enforcing", "--tls-ca", AUTHORITY, "--tls-client-auth", "require"),
    "permissive": _SHOWN,
    "disabled": (),
}
#: Options of our ``mqadmin``.
MQADMIN: Final = (*("--tls-ca", AUTHORITY, "--tls-cert", pem("member"), "--tls-key", key("member")),)
#: Settings of our broker's connections to nameservers.
TO_NAMESRV: Final[Mapping[str, str]] = {
    "tls.enable": "true",
    "tls.client.trustCertPath": AUTHORITY,
    "tls.client.certPath": pem("member"),
    "tls.client.keyPath": key("member"),
}


def routed(namesrv: str, topic: str, broker: str) -> bool:
    """Return whether a nameserver, asked over TLS, routes a topic to the address ``broker``."""
    context = client_context("member")
    host, _, port = namesrv.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 15.0) as plain:
        with context.wrap_socket(plain, server_hostname=host) as connection:
            code, _, body = ask_over(connection, 105, {"topic": topic})
        return code == 0 and f'"{broker}"'.encode() in body
    return False
