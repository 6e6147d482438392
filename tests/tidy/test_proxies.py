"""Tests that no program here reaches our own servers through a proxy that environment variables name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.bench.servers import running
from tests.ports import free_addresses

ROOT = Path(__file__).resolve().parents[2]
#: Compose files without TLS; tests/client/test_compose_health.py checks the file with TLS in the same way.
COMPOSITIONS = [ROOT / "compose" / name for name in ("independent.yaml", "raft.yaml")]


def health_check(path: Path, http: str) -> list[str]:
    """Return the nameservers' health check as the container runs it, but with the HTTP address ``http``."""
    kind, *command = yaml.safe_load(path.read_text())["x-namesrv-health"]["test"]
    assert kind == "CMD"
    assert any("127.0.0.1:9880" in word for word in command)
    return [sys.executable, *(word.replace("127.0.0.1:9880", http) for word in command[1:])]


@pytest.mark.slow
def test_health_checks_of_compose_ask_the_server_itself(tmp_path: Path) -> None:
    """A health check must not use a proxy, which could not reach the server and would report it unhealthy."""
    dead, nobody = free_addresses(2)
    proxied = dict.fromkeys(("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy"), f"http://{dead}")
    with running(tmp_path, brokers=(), nameservers=1) as cluster:
        for path in COMPOSITIONS:
            for http, healthy in ((cluster.http[0], True), (nobody, False)):
                done = subprocess.run(
                    health_check(path, http), env=proxied, capture_output=True, text=True, timeout=60
                )
                assert (done.returncode == 0) is healthy, (path.name, http, done.stderr[-2000:])


def test_no_program_reads_http_through_the_environments_proxy() -> None:
    """Programs must not use ``urlopen`` or urllib's default opener, because both use the environment's proxy.

    http.client and aiohttp do not use a proxy by default.
    """
    asking = re.compile(r"\burlopen\(|build_opener\((?!urllib\.request\.ProxyHandler\(\{\}\))|trust_env=True")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in ("nameserver", "broker", "client", "remoting", "bench", "compose")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".yaml", ".yml", "") and path.is_file() and "__pycache__" not in path.parts
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if asking.search(line)
    ]
    assert found == []
