"""podman with a store of its own, and compose files run in it.

As root, with runc and cgroupfs: that works on any Debian 12, also without systemd and on hybrid cgroups.
Images, volumes, networks and the engine's own state lie in one directory, which is gone in the end.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "compose"
#: Must be there, as .ci/run installs them.
PROGRAMS = ("podman", "runc", "conmon", "iptables", "mmdebstrap")
COMMAND_S = 120.0
CONDITION_S = 90.0
#: What a base image must have: a Python, what makes a virtual environment, and nothing to read.
BASE_PACKAGES = ("usr-is-merged", "python3", "python3-venv", "ca-certificates")
BASE_OPTIONS = (
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "force-unsafe-io",
)

CONTAINERS_CONF = """
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "{root}/tmp"
[network]
network_backend = "netavark"
network_config_dir = "{root}/networks"
"""
STORAGE_CONF = """
[storage]
driver = "overlay"
graphroot = "{root}/storage"
runroot = "{root}/run"
"""

_T = TypeVar("_T")


def until(condition: Callable[[], _T], what: str, *, within_s: float = CONDITION_S) -> _T:
    """Return the first true value of a condition; each try starts programs, so a pause between tries."""
    deadline = time.monotonic() + within_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.2)


def say(line: str) -> None:
    """Tell whoever watches ``make containers`` how far it is."""
    print(f"containers: {line}", flush=True)


@dataclass
class Engine:
    """One podman and what it holds."""

    root: Path
    environment: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        conf, storage = self.root / "containers.conf", self.root / "storage.conf"
        conf.write_text(CONTAINERS_CONF.format(root=self.root))
        storage.write_text(STORAGE_CONF.format(root=self.root))
        self.environment = os.environ | {
            "CONTAINERS_CONF": str(conf),
            "CONTAINERS_STORAGE_CONF": str(storage),
            "PODMAN_COMPOSE_WARNING_LOGS": "false",
        }

    def attempt(
        self, *words: str, timeout_s: float = COMMAND_S, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program with this engine's settings; ``more`` is added to its environment."""
        return subprocess.run(
            words,
            env=self.environment | more,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def run(self, *words: str, timeout_s: float = COMMAND_S, **more: str) -> str:
        done = self.attempt(*words, timeout_s=timeout_s, **more)
        assert done.returncode == 0, f"{' '.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def podman(self, *words: str, timeout_s: float = COMMAND_S) -> str:
        return self.run("podman", *words, timeout_s=timeout_s)

    def image_mb(self, image: str) -> float:
        return int(self.podman("image", "inspect", "--format", "{{.Size}}", image)) / 1e6

    def base(self) -> str:
        """Return a base image: what ``CONTAINERS_BASE`` names, or a small Debian made from its packages.

        ``CONTAINERS_BASE`` is an image, or the archive of a root file system.
        """
        named = os.environ.get("CONTAINERS_BASE")
        if named and not Path(named).is_file():
            return named
        assert sys.version_info[:2] == (3, 11), "Debian 12's Python is 3.11: use it, or name CONTAINERS_BASE"
        archive = Path(named) if named else self._bootstrap()
        self.podman("import", str(archive), "routekeeper-base")
        return "localhost/routekeeper-base"

    def _bootstrap(self) -> Path:
        archive = self.root / "base.tar"
        self.run(
            *("mmdebstrap", "--mode=root", "--variant=essential", "--quiet"),
            "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
            *(f"--include={package}" for package in BASE_PACKAGES),
            *(f"--dpkgopt={option}" for option in BASE_OPTIONS),
            *("bookworm", str(archive)),
            timeout_s=600,
        )
        return archive

    def build(self, target: str, image: str, base: str, lock: str) -> None:
        """Build one image, without a network: this machine's own pip fetches what the lock file names."""
        wheels = self.root / "wheels"
        self.run(
            *(sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes", "--no-deps"),
            *("--requirement", str(ROOT / lock), "--dest", str(wheels)),
            timeout_s=600,
        )
        self.podman(
            *("build", "--network", "none", "--file", str(COMPOSE / "Dockerfile"), "--target", target),
            *("--build-arg", f"BASE={base}", "--build-arg", "PIP_NO_INDEX=1"),
            *("--build-arg", "PIP_FIND_LINKS=/wheels", "--volume", f"{wheels}:/wheels:ro"),
            *("--tag", image, str(ROOT)),
            timeout_s=900,
        )

    def close(self) -> None:
        """End every container, take the networks away, delete the store."""
        for words in (
            ("rm", "--force", "--all", "--volumes", "--time", "0"),
            ("network", "prune", "--force"),
            ("volume", "prune", "--force"),
            ("rmi", "--all", "--force"),
        ):
            self.attempt("podman", *words)
        for mount in sorted(mounts_below(self.root), key=len, reverse=True):
            subprocess.run(("umount", "--lazy", mount), check=False)
        shutil.rmtree(self.root)


def mounts_below(root: Path) -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [line.split()[1] for line in lines if line.split()[1].startswith(f"{root}/")]


@dataclass
class Composition:
    """One compose file that runs, under a project name of its own."""

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
        return f"rk-{self.name}"

    @property
    def network(self) -> str:
        return f"{self.project}_default"

    def container(self, service: str) -> str:
        return f"{self.project}_{service}_1"

    def attempt(self, service: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command inside a service's container."""
        return self.engine.attempt("podman", "exec", self.container(service), *words)

    def inside(self, service: str, *words: str) -> str:
        done = self.attempt(service, *words)
        assert done.returncode == 0, f"{service}: {' '.join(words)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def healthy(self, service: str) -> bool:
        """Run the service's health check once: no systemd is here that would run it by the clock."""
        return self.engine.attempt("podman", "healthcheck", "run", self.container(service)).returncode == 0

    def wait_healthy(self, *services: str) -> None:
        for service in services:
            until(partial(self.healthy, service), f"{service} is healthy")

    def log(self, service: str) -> str:
        done = self.engine.attempt("podman", "logs", self.container(service))
        return done.stdout + done.stderr

    def inspect(self, service: str) -> dict[str, Any]:
        (found,) = json.loads(self.engine.podman("inspect", self.container(service)))
        assert isinstance(found, dict)
        return found

    def cut_off(self, service: str) -> None:
        self.engine.podman("network", "disconnect", self.network, self.container(service))

    def connect(self, service: str) -> None:
        self.engine.podman("network", "connect", "--alias", service, self.network, self.container(service))
