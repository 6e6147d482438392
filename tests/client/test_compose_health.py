"""The health checks of compose/tls.yaml succeed at our servers with TLS.

They fail if they trust only an authority that has not signed the server's certificate.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.faults.test_tls_servers import server
from tests.tls import key, pem
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow]

COMPOSE = Path(__file__).resolve().parents[2] / "compose"
SERVICES: dict[str, Any] = yaml.safe_load((COMPOSE / "tls.yaml").read_text())["services"]
SECRETS = {
    "/run/secrets/tls-ca": pem("authority"),
    "/run/secrets/tls-cert": pem("member"),
    "/run/secrets/tls-key": key("member"),
}
WIRE = ("--tls-mode", "--tls-cert", "--tls-key", "--tls-ca", "--tls-client-auth")
HTTP = ("--http-tls-cert", "--http-tls-key")


def flags(service: str, *names: str) -> list[str]:
    """Return the flags ``names`` of a service. The test's own files replace the secret files."""
    command: list[str] = SERVICES[service]["command"]
    return [word for name in names for word in (name, files(command[command.index(name) + 1]))]


def files(text: str, authority: str = "authority") -> str:
    for secret, file in (SECRETS | {"/run/secrets/tls-ca": pem(authority)}).items():
        text = text.replace(secret, file)
    return text


def healthy(service: str, addr: str, authority: str = "authority") -> bool:
    """Run the health check of a service, as its container does, against the server at ``addr``."""
    kind, program, *arguments = SERVICES[service]["healthcheck"]["test"]
    assert kind == "CMD"
    words = [files(word, authority) for word in arguments]
    words = [word.replace("127.0.0.1:9880", addr).replace("127.0.0.1:10911", addr) for word in words]
    command = {"python3": (sys.executable,), "mqadmin": (sys.executable, "-m", "routekeeper.client.mqadmin")}
    # The image's environment may name a proxy, which the health check must not use. Nothing listens at this
    # proxy's address, so a check that used it would fail.
    proxied = os.environ | dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:1")
    done = subprocess.run(
        [*command[program], *words], capture_output=True, timeout=60, env=proxied, check=False
    )
    return done.returncode == 0


def test_the_health_check_of_a_nameserver_asks_over_https(tmp_path: Path) -> None:
    given = flags("namesrv-1", *WIRE, *HTTP)
    with server("nameserver", tmp_path, *given, http=True) as running:
        wait_until(lambda: healthy("namesrv-1", running.http), "it is healthy")
        assert not healthy("namesrv-1", running.http, authority="stranger-authority")


def test_the_health_check_of_a_broker_asks_over_tls_with_a_certificate(tmp_path: Path) -> None:
    given = flags("broker-1", *WIRE, "--tls-client-cert", "--tls-client-key")
    with server("broker", tmp_path, *given) as running:
        wait_until(lambda: healthy("broker-1", running.listen), "it is healthy")
        assert not healthy("broker-1", running.listen, authority="stranger-authority")
