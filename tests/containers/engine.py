"""A podman engine that keeps its images and containers in its own directory.

podman runs as root, with runc and cgroupfs, which work on any Debian 12, even without systemd. All images,
volumes, networks and state are in one directory. The engine removes this directory at the end, even after an
interrupt. Several threads may run commands at the same time.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from tests import waiting

ROOT: Final = Path(__file__).resolve().parents[2]
COMPOSE: Final = ROOT / "compose"
_VERSION: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
IMAGE: Final = f"routekeeper:{_VERSION}"
BENCH_IMAGE: Final = f"routekeeper-bench:{_VERSION}"
#: Programs that must be installed; .ci/run installs them.
PROGRAMS = ("podman", "runc", "conmon", "iptables", "mmdebstrap")
#: Timeout of a command in s. It is long: on a busy disk, the removal of a cluster has taken 25 s.
COMMAND_S = 240.0
CONDITION_S = 180.0
#: A function that waits for a condition. The time is long, because each check runs a command in a container.
wait_until = partial(waiting.wait_until, within_s=CONDITION_S)
#: Signals that end ``make containers`` early.
ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Seconds after SIGTERM in which an interrupted command must end. Then it gets SIGKILL.
END_S = 30.0
#: Packages of a base image: Python, and the packages that a virtual environment needs.
BASE_PACKAGES = ("usr-is-merged", "python3", "python3-venv", "ca-certificates", "libstdc++6")
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
[storage.options]
additionalimagestores = [{others}]
"""

_T = TypeVar("_T")


def say(line: str) -> None:
    """Print a line about the progress of ``make containers``."""
    print(f"containers: {line}", flush=True)


class EngineEnded(Exception):
    """Raised if the engine was stopped while it was in use."""


@dataclass
class Engine:
    """A podman engine with its own store.

    Attributes:
        images_of: Directory of another engine's store. If set, this engine uses its images and builds none.
    """

    root: Path
    images_of: Path | None = None
    environment: dict[str, str] = field(init=False)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _ended: bool = field(init=False, default=False)
    _commands: set[subprocess.Popen[str]] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        conf, storage = self.root / "containers.conf", self.root / "storage.conf"
        conf.write_text(CONTAINERS_CONF.format(root=self.root))
        others = f'"{self.images_of}"' if self.images_of else ""
        storage.write_text(STORAGE_CONF.format(root=self.root, others=others))
        temporary = self.root / "temporary"
        temporary.mkdir(exist_ok=True)
        self.environment = os.environ | {
            "CONTAINERS_CONF": str(conf),
            "CONTAINERS_STORAGE_CONF": str(storage),
            "PODMAN_COMPOSE_WARNING_LOGS": "false",
            "TMPDIR": str(temporary),
        }

    def attempt(
        self, *words: str, timeout_s: float = COMMAND_S, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program with this engine's environment variables and those of ``more``.

        Raises:
            EngineEnded: If :meth:`stop` was called, even while the command was running.
        """
        with self._lock:
            if self._ended:
                raise EngineEnded
            command = self._launch(*words, **more)
            self._commands.add(command)
        try:
            output, errors = command.communicate(timeout=timeout_s)
        # After any interrupt, first send SIGTERM. A program that gets SIGKILL at once cannot remove its
        # containers.
        except BaseException:
            command.terminate()
            try:
                command.communicate(timeout=END_S)
            except subprocess.TimeoutExpired:
                command.kill()
                command.communicate()
            raise
        finally:
            with self._lock:
                self._commands.discard(command)
        if self._ended:
            raise EngineEnded
        return subprocess.CompletedProcess(words, command.returncode, output, errors)

    def _launch(self, *words: str, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            words,
            env=self.environment | more,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, timeout_s: float = COMMAND_S, **more: str) -> str:
        done = self.attempt(*words, timeout_s=timeout_s, **more)
        assert done.returncode == 0, f"{' '.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def podman(self, *words: str, timeout_s: float = COMMAND_S) -> str:
        return self.run("podman", *words, timeout_s=timeout_s)

    def image_mb(self, image: str) -> float:
        return int(self.podman("image", "inspect", "--format", "{{.Size}}", image)) / 1e6

    def prepare(self) -> str:
        """Download the wheels of the server's image and make a base image; return the base image."""
        with ThreadPoolExecutor(1) as pool:
            wheels = pool.submit(self.fetch, "requirements.lock")
            try:
                base = self._base()
            except BaseException:
                self.stop()
                raise
            wheels.result()
            return base

    def _base(self) -> str:
        """Return the base image that the environment variable names, or a new small Debian image.

        ``CONTAINERS_BASE`` has the name of an image, or the path of an archive with a root file system.
        """
        named = os.environ.get("CONTAINERS_BASE")
        if named and not Path(named).is_file():
            return named
        assert sys.version_info[:2] == (3, 11), "Debian 12's Python is 3.11: use it, or name CONTAINERS_BASE"
        archive = Path(named) if named else self.bootstrap("base", BASE_PACKAGES)
        self.podman("import", str(archive), "routekeeper-base")
        return "localhost/routekeeper-base"

    def bootstrap(self, name: str, packages: tuple[str, ...]) -> Path:
        """Make a root file system from Debian's packages; return its archive."""
        archive = self.root / f"{name}.tar"
        self.run(
            *("mmdebstrap", "--mode=root", "--variant=essential", "--quiet"),
            "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
            *(f"--include={package}" for package in packages),
            *(f"--dpkgopt={option}" for option in BASE_OPTIONS),
            *("bookworm", str(archive)),
            timeout_s=900,
        )
        return archive

    def fetch(self, lock: str) -> None:
        """Download the packages of a lock file with pip, on this machine and not in a container."""
        self.run(
            *(sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes", "--no-deps"),
            # pip downloads source packages only to read their names and versions. It must not download their
            # build tools.
            "--no-build-isolation",
            *("--requirement", str(ROOT / lock), "--dest", str(self.wheels)),
            timeout_s=900,
        )

    @property
    def images(self) -> Path:
        """Directory whose store has the images of this engine."""
        return self.images_of or self.root / "storage"

    @property
    def wheels(self) -> Path:
        return self.root / "wheels"

    def build(self, target: str, image: str, base: str) -> None:
        """Build one image, without a network, from the packages that :meth:`fetch` downloaded."""
        self.podman(
            *("build", "--network", "none", "--file", str(COMPOSE / "Dockerfile"), "--target", target),
            *("--build-arg", f"BASE={base}", "--build-arg", "PIP_NO_INDEX=1"),
            *("--build-arg", "PIP_FIND_LINKS=/wheels", "--volume", f"{self.wheels}:/wheels:ro"),
            *("--tag", image, str(ROOT)),
            timeout_s=1800,
        )

    def stop(self) -> None:
        """End running commands. Later calls of :meth:`attempt` raise :class:`EngineEnded`."""
        with self._lock:
            self._ended = True
            for command in self._commands:
                command.terminate()

    def close(self) -> None:
        """End every container, remove the networks and delete the store. Ignore signals meanwhile.

        A command that was interrupted may have started other commands that still create a container. podman
        also refuses to remove a container before the containers that depend on it. So the removal is
        repeated until no container is left.
        """
        previous = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING}
        try:
            self.stop()
            deadline = time.monotonic() + CONDITION_S
            while True:
                self._launch(
                    "podman", "rm", "--force", "--all", "--depend", "--volumes", "--time", "0"
                ).communicate()
                for process in contained(self.root):  # these may be processes of an interrupted build
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
                left = processes_of(self.root)
                if not left:
                    break
                if time.monotonic() > deadline:
                    print(f"still there: {left}", file=sys.stderr)
                    break
            self._launch("podman", "network", "prune", "--force").communicate()
            for mount in sorted(mounts_below(self.root), key=len, reverse=True):
                subprocess.run(("umount", "--lazy", mount), check=False)
            shutil.rmtree(self.root)
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def processes_of(root: Path) -> dict[int, str]:
    """Return the command lines of an engine's processes, by process id.

    The function finds the processes by the engine's directory. It is in the command line of a container's
    monitor, and in the environment of each podman command. podman's DNS server does not count, because all
    engines share it.
    """
    found = dict.fromkeys(contained(root), "in a container")
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            environment = (process / "environ").read_bytes()
        except OSError:
            continue  # the process has just ended
        if str(root).encode() in command + environment and b"aardvark-dns" not in command:
            found[int(process.name)] = command.replace(b"\0", b" ").decode(errors="replace")
    return found


def contained(root: Path) -> list[int]:
    """Return the ids of processes whose root file system is inside an engine's directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            mounts = (process / "mountinfo").read_text().splitlines()
        except OSError:
            continue  # the process has just ended
        if any(line.split()[4] == "/" and f"{root}/" in line for line in mounts):
            found.append(int(process.name))
    return found


def mounts_below(root: Path) -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [line.split()[1] for line in lines if line.split()[1].startswith(f"{root}/")]
