"""TLS certificates of the tests, as RocketMQ's JVM properties and as options of our programs.

The certificates come from ``tests.tls``: the certificate of the authority, the certificate ``member`` for
127.0.0.1, and some wrong certificates.
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
#: Name a settings file that does not exist. Otherwise a program would read the default file of this machine.
_NO_FILE: Final = {"tls.config.file": "/nonexistent/tls.properties", "tls.test.mode.enable": "false"}


def java_client(name: str = "member") -> dict[str, str]:
    """Return JVM properties of a client that shows a certificate.

    A broker needs the same properties for its own outgoing connections.
    """
    return {
        **_NO_FILE,
        "tls.enable": "true",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": AUTHORITY,
        "tls.client.certPath": pem(name),
        "tls.client.keyPath": key(name),
    }


def java_server(name: str = "member") -> dict[str, str]:
    """Return JVM properties of a server that accepts only TLS connections with a client certificate."""
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
#: Options of our servers by TLS mode; in enforcing mode clients must also show a certificate.
MODE_FLAGS: Final[Mapping[str, tuple[str, ...]]] = {
    "enforcing": (*_SHOWN, "--tls-mode", "enforcing", "--tls-ca", AUTHORITY, "--tls-client-auth", "require"),
    "permissive": _SHOWN,
    "disabled": (),
}
#: TLS options of our ``mqadmin``.
MQADMIN: Final = (*("--tls-ca", AUTHORITY, "--tls-cert", pem("member"), "--tls-key", key("member")),)
#: TLS settings of our broker's connections to nameservers.
TO_NAMESRV: Final[Mapping[str, str]] = {
    "tls.enable": "true",
    "tls.client.trustCertPath": AUTHORITY,
    "tls.client.certPath": pem("member"),
    "tls.client.keyPath": key("member"),
}


def routed(namesrv: str, topic: str, broker: str) -> bool:
    """Return True if a nameserver, asked over TLS, routes a topic to the address ``broker``."""
    context = client_context("member")
    host, _, port = namesrv.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 15.0) as plain:
        with context.wrap_socket(plain, server_hostname=host) as connection:
            code, _, body = ask_over(connection, 105, {"topic": topic})
        return code == 0 and f'"{broker}"'.encode() in body
    return False
