"""Clusters that tests start on a container engine from the project's compose files."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.ports import free_addresses

from .engine import COMMAND_S, COMPOSE, Engine, say, wait_until

NAMESRVS: Final = ("namesrv-1", "namesrv-2", "namesrv-3")
BROKERS: Final = ("broker-1", "broker-2")
WIRE: Final = ";".join(f"{name}:9876" for name in NAMESRVS)
HTTP: Final = ";".join(f"{name}:9880" for name in NAMESRVS)
USER: Final = 10001
#: Environment variables that set the ports which the services of a compose file open on the host.
PORTS: Final = ("NAMESRV_PORT", "HTTP_PORT", "LOCUST_PORT")


@dataclass
class Composition:
    """A running cluster of one compose file. Each cluster has its own project name."""

    engine: Engine
    name: str
    variables: dict[str, str]
    files: tuple[str, ...] = ()

    def compose(self, *words: str, timeout_s: float = COMMAND_S) -> str:
        files = [
            word for file in (self.name, *self.files) for word in ("--file", str(COMPOSE / f"{file}.yaml"))
        ]
        command = (
            str(Path(sys.executable).with_name("podman-compose")),
            "--project-name",
            self.project,
            *files,
            *words,
        )
        return self.engine.run(*command, timeout_s=timeout_s, **self.variables)

    @property
    def project(self) -> str:
        # The name must be unique on this machine. The kernel's firewall rules contain the names of networks,
        # so two engines must not use the same network name.
        return f"rk-{self.name}-{self.engine.root.name.rpartition('-')[2]}"

    @property
    def network(self) -> str:
        return f"{self.project}_default"

    def container(self, service: str) -> str:
        return f"{self.project}_{service}_1"

    def attempt(self, service: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command inside a service's container; return its result, even if the command failed."""
        return self.engine.attempt("podman", "exec", self.container(service), *words)

    def inside(self, service: str, *words: str) -> str:
        done = self.attempt(service, *words)
        assert done.returncode == 0, f"{service}: {' '.join(words)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def healthy(self, service: str) -> bool:
        """Run the service's health check once, because podman runs it regularly only with systemd."""
        return self.engine.attempt("podman", "healthcheck", "run", self.container(service)).returncode == 0

    def wait_healthy(self, *services: str) -> None:
        for service in services:
            wait_until(partial(self.healthy, service), f"{service} is healthy")

    def log(self, service: str) -> str:
        done = self.engine.attempt("podman", "logs", self.container(service))
        return done.stdout + done.stderr

    def inspect(self, service: str) -> dict[str, Any]:
        (found,) = json.loads(self.engine.podman("inspect", self.container(service)))
        assert isinstance(found, dict)
        return found

    def addresses(self) -> dict[str, str]:
        """Return the current address of every service that is connected to the cluster's network."""
        found = {}
        for service in (*NAMESRVS, *BROKERS):
            networks = self.inspect(service)["NetworkSettings"]["Networks"]
            found[service] = networks.get(self.network, {}).get("IPAddress")
        return {service: address for service, address in found.items() if address}

    def cut_off(self, service: str) -> None:
        self.engine.podman("network", "disconnect", self.network, self.container(service))

    def connect(self, service: str) -> None:
        self.engine.podman("network", "connect", "--alias", service, self.network, self.container(service))


@contextmanager
def running(engine: Engine, name: str, *files: str) -> Iterator[Composition]:
    """Start a cluster from a compose file, with new secrets and on free ports; remove it at the end.

    Args:
        files: Additional compose files. Their services do not start with the cluster.
    """
    variables = {}
    for variable in ("RAFT_SECRET", "HTTP_TOKEN"):
        path = engine.root / f"{name}-{variable.lower()}"
        path.write_text(secrets.token_hex(32))
        os.chown(path, USER, USER)
        path.chmod(0o400)
        variables[variable] = str(path)
    for variable, address in zip(PORTS, free_addresses(len(PORTS)), strict=True):
        variables[variable] = address.rpartition(":")[2]
    cluster = Composition(engine, name, variables, files)
    try:
        start(cluster)
        yield cluster
    except AssertionError as error:
        for service in (*NAMESRVS, *BROKERS):
            error.add_note(f"-- log of {service}\n{cluster.log(service)[-3000:]}")
        raise
    finally:
        cluster.compose("down", "--volumes", "--timeout", "0")


def start(cluster: Composition) -> None:
    say(f"{cluster.name}: starting")
    began = time.monotonic()
    cluster.compose("up", "--detach", "--no-build", *NAMESRVS, *BROKERS)
    cluster.wait_healthy(*NAMESRVS, *BROKERS)
    say(f"{cluster.name}: up and healthy in {time.monotonic() - began:.0f} s")
