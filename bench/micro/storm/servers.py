"""The servers of four designs, three each on loopback: ours in both modes, RocketMQ's own, ZooKeeper's."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import psutil

from routekeeper.bench.arms.apache import JARS, LOGBACK, RELEASE
from routekeeper.bench.arms.servers import four_letters, is_ready, java, status_of
from routekeeper.bench.micro.load import cpu_s
from routekeeper.bench.micro.raft.job import Kind
from routekeeper.bench.micro.raft.systems import MEMBERS, Missing, RouteKeeper, System, ZooKeeper
from routekeeper.bench.micro.raft.timers import SERIES
from routekeeper.bench.micro.route_query import NAMESRV_MAIN
from routekeeper.bench.micro.trees import nameserver_of
from routekeeper.bench.ports import HOST, free_ports

Design = Literal["independent", "raft", "rocketmq", "zookeeper"]
DESIGNS: Final[tuple[Design, ...]] = ("independent", "raft", "rocketmq", "zookeeper")
#: Pairs of a topic and a broker above which our bound ``tablePairsMax`` is raised.
PAIRS_USUAL: Final = 3_200_000
#: RocketMQ's is that of its own script, runserver.sh. ZooKeeper's is enough for a million nodes; with less a
#: JVM spends its time on collecting garbage.
HEAP_MB: Final[dict[Design, int]] = {"rocketmq": 4096, "zookeeper": 3072}
_MB: Final = 1e6
_JCMD_S: Final = 60.0


def program_of(tree: Path | None, python: str) -> tuple[str, str]:
    """Return the command that runs ``-m PROGRAM``, and the nameserver's module; None is this checkout."""
    interpreter = python or shlex.quote(sys.executable)
    if tree is None:
        return interpreter, "routekeeper.nameserver"
    return f"env {shlex.quote(f'PYTHONPATH={tree.resolve()}')} {interpreter}", nameserver_of(tree)


def _bounds(pairs: int) -> str:
    return f"tablePairsMax={2 * pairs}\n" if pairs > PAIRS_USUAL else ""


class Independent(System):
    """Our nameservers, each with a table of its own."""

    kind: Kind = "remoting"
    name = "independent"

    def __init__(self, folder: Path, *, pairs: int, interpreter: str, program: str) -> None:
        super().__init__(folder, SERIES["defaults"])
        self._program = [*shlex.split(interpreter), "-m", program]
        self._settings = folder / "namesrv.properties"
        self._settings.write_text(_bounds(pairs))
        addresses = [f"{HOST}:{port}" for port in free_ports(2 * MEMBERS)]
        self.clients, self.http, self.peers = addresses[:MEMBERS], addresses[MEMBERS:], []

    def _command(self, index: int) -> list[str]:
        command = [*self._program, "--listen", self.clients[index], "--http", self.http[index]]
        return [*command, "--data", "data", "-c", str(self._settings)]

    def version(self) -> str:
        return status_of(self.http[0]).get("version", "")

    def leader(self) -> int | None:
        return None

    def healthy(self) -> bool:
        return all(map(is_ready, self.http))


class Raft(RouteKeeper):
    """Our nameservers with one replicated table, synced before it acknowledges; reads as by default."""

    def __init__(self, folder: Path, *, pairs: int, interpreter: str, program: str) -> None:
        super().__init__(
            folder, SERIES["defaults"], durability="fsync", interpreter=interpreter, program=program
        )
        self.name = "raft"
        self._settings.write_text(_bounds(pairs))


class RocketMQ(System):
    """RocketMQ's own nameservers, unmodified, from their jars."""

    kind: Kind = "remoting"
    name = "rocketmq"

    def __init__(self, folder: Path) -> None:
        missing = JARS.missing() or (None if shutil.which("java") else "Java (java on PATH)")
        if missing:
            raise Missing(f"rocketmq needs {missing}")
        super().__init__(folder, SERIES["defaults"])
        self._class_path = JARS.class_path()
        self.clients, self.peers = [f"{HOST}:{port}" for port in free_ports(MEMBERS)], []

    def _command(self, index: int) -> list[str]:
        home = self.folder / str(index)
        (home / "logback.xml").write_text(LOGBACK.format(file=home / "namesrv.log"))
        port = self.clients[index].rpartition(":")[2]
        (home / "namesrv.properties").write_text(f"listenPort={port}\nbindAddress={HOST}\n")
        command = [java(), "-server", f"-Xmx{HEAP_MB['rocketmq']}m"]
        command += [f"-Duser.home={home}", f"-Drocketmq.home.dir={home}"]
        command += [f"-Drmq.logback.configurationFile={home / 'logback.xml'}"]
        return [*command, "-cp", self._class_path, NAMESRV_MAIN, "-c", str(home / "namesrv.properties")]

    def version(self) -> str:
        return RELEASE

    def leader(self) -> int | None:
        return None

    def healthy(self) -> bool:
        return all(map(_listens, self.clients))


def _listens(addr: str) -> bool:
    host, _, port = addr.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def factory_of(design: Design, *, tree: Path | None, python: str) -> Callable[[Path, int], System]:
    """Return a maker of a design's servers, from their folder and the number of pairs that they will hold."""
    if design == "rocketmq":
        return lambda folder, pairs: RocketMQ(folder)
    if design == "zookeeper":
        return lambda folder, pairs: ZooKeeper(folder, SERIES["defaults"], heap_mb=HEAP_MB["zookeeper"])
    interpreter, program = program_of(tree, python)
    ours = Independent if design == "independent" else Raft
    return lambda folder, pairs: ours(folder, pairs=pairs, interpreter=interpreter, program=program)


def epoch(system: System) -> int | None:
    """Return the number of the newest term or epoch; None of servers that elect nobody, or without an answer.

    Each leader begins a new one, so the difference of two says how often leaders changed.
    """
    if isinstance(system, RouteKeeper):
        terms = [system.status(index).get("term") for index in range(MEMBERS)]
        return max((int(term) for term in terms if term is not None), default=None)
    if isinstance(system, ZooKeeper):
        found = [re.search(r"^Zxid: 0x([0-9a-f]+)$", four_letters(a, b"srvr"), re.M) for a in system.clients]
        return max((int(match[1], 16) >> 32 for match in found if match), default=None)
    return None


def largest_memory_mb(system: System) -> list[float]:
    """Return the most that each server's process has held in memory so far, by the kernel's count (VmHWM)."""
    found = []
    for pid in system.pids:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
        found.append(kilobytes * 1024 / _MB)
    return found


def usages(system: System) -> list[dict[str, float] | None]:
    """Return the CPU of each server's process so far, and its memory now; None of one that has just ended."""
    found: list[dict[str, float] | None] = []
    for pid in system.pids:
        try:
            process = psutil.Process(pid)
            found.append({"cpu_s": cpu_s(pid), "memory_mb": process.memory_info().rss / _MB})
        except (psutil.Error, OSError):
            found.append(None)
    return found


def heap_kept(system: System) -> dict[str, float]:
    """Return the MB that a JVM's heap keeps after a collection, the most of three; nothing of our designs."""
    if not isinstance(system, RocketMQ | ZooKeeper) or shutil.which("jcmd") is None:
        return {}
    try:
        kept = [live_bytes(_histogram(pid)) for pid in system.pids]
    except (subprocess.SubprocessError, ValueError):
        return {}  # the row says that it has no figure
    return {"heap_kept_mb": max(kept) / _MB}


def _histogram(pid: int) -> str:
    """Collect garbage in a JVM and return its objects by class."""
    command = ["jcmd", str(pid), "GC.class_histogram"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=_JCMD_S).stdout


def live_bytes(histogram: str) -> int:
    """Return the sum at the end of a JVM's class histogram, which is taken after a full collection (pure).

    Raises:
        ValueError: If there is none.
    """
    found = re.search(r"^Total +\d+ +(\d+) *$", histogram, re.M)
    if found is None:
        raise ValueError(f"no total in a class histogram of {len(histogram)} characters")
    return int(found[1])


def kill_and_restart(system: System) -> None:
    """Kill all servers, then start them again on their folders; return without waiting for them."""
    for pid in system.pids:
        os.kill(pid, signal.SIGKILL)
    for index in range(MEMBERS):
        system.bring_back(index, stopped=False)
