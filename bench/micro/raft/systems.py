"""The compared systems, each with three members on loopback.

This module starts, observes, ends and restarts the members, and chooses their ports, folders and logs. Each
system runs with default sizes, and with default timers unless a series sets the timers.
"""

from __future__ import annotations

import abc
import http.client
import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from routekeeper.bench.arms.servers import class_path, four_letters, java, zookeeper_epoch
from routekeeper.bench.direct import OPENER
from routekeeper.bench.group import Missing, Unhealthy, cpu_s
from routekeeper.bench.micro.raft.timers import Timers
from routekeeper.bench.ports import HOST, free_ports
from routekeeper.bench.wires.client import Kind

MEMBERS: Final = 3
START_S: Final = 60.0
STOP_S: Final = 15.0
_QUORUM_PEER: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


class System(abc.ABC):
    """Three members of one system.

    Attributes:
        name: Name in the tables.
        kind: The protocol of the system's clients.
        clients: ``host:port`` for clients, one for each member.
        watched: ``host:port`` at which clients watch for changes, one for each member.
        peers: ``host:port`` for other members, one for each member.
    """

    name: str
    kind: Kind
    clients: list[str]
    peers: list[str]
    jvm = False

    def __init__(self, folder: Path, timers: Timers) -> None:
        self.folder = folder
        self.timers = timers
        folder.mkdir(parents=True)
        self._children: list[subprocess.Popen[bytes] | None] = [None] * MEMBERS

    @abc.abstractmethod
    def _command(self, index: int) -> list[str]:
        """Return the command line of one member."""

    @abc.abstractmethod
    def leader(self) -> int | None:
        """Return the index of the leader; None if no member, or several members, report that they lead."""

    @abc.abstractmethod
    def healthy(self) -> bool:
        """Return True if all three members serve: one leads, and two follow."""

    @abc.abstractmethod
    def version(self) -> str:
        """Return the version that a running member reports."""

    def epoch(self) -> int | None:
        """Return the newest term or epoch, as :meth:`routekeeper.bench.group.Group.epoch` describes."""
        return None

    def kill_and_restart(self) -> None:
        """Kill all members with SIGKILL, and start them again with the same folders."""
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
        for index in range(MEMBERS):
            self.bring_back(index, stopped=False)

    @property
    def watched(self) -> list[str]:
        return self.clients

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children if child is not None]

    def pid(self, index: int) -> int:
        child = self._children[index]
        assert child is not None, "asked of a member that was not started"
        return child.pid

    def start(self) -> None:
        for index in range(MEMBERS):
            self.launch(index)
        self.wait_healthy()

    def launch(self, index: int) -> None:
        home = self.folder / str(index)
        home.mkdir(exist_ok=True)
        with (home / "log.txt").open("ab") as log:
            self._children[index] = subprocess.Popen(
                self._command(index), cwd=home, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def bring_back(self, index: int, *, stopped: bool) -> None:
        """Let a member run again: continue it if it was stopped, or restart it if it was killed."""
        child = self._children[index]
        assert child is not None, "asked of a member that was not started"
        if stopped:
            child.send_signal(signal.SIGCONT)
        else:
            child.wait(STOP_S)
            self.launch(index)

    def wait_healthy(self) -> None:
        """Wait until all members serve.

        Raises:
            Unhealthy: If some member does not serve after 60 s, or has ended. The message has the last lines
                of the member's log.
        """
        deadline = time.monotonic() + START_S
        while not self.healthy():
            for index, child in enumerate(self._children):
                if child is not None and child.poll() is not None:
                    raise Unhealthy(
                        f"{self.name} {index} ended with {child.returncode}\n{self.log_tail(index)}"
                    )
            if time.monotonic() > deadline:
                tails = "\n".join(self.log_tail(index) for index in range(MEMBERS))
                raise Unhealthy(f"{self.name} is not healthy after {START_S:g} s\n{tails}")
            time.sleep(0.05)

    def log_tail(self, index: int) -> str:
        lines = (self.folder / str(index) / "log.txt").read_text(errors="replace").splitlines()
        return "\n".join(lines[-6:])

    def cpu_s(self) -> list[float]:
        return [cpu_s(pid) for pid in self.pids]

    def resident_mb(self) -> list[float]:
        return [psutil.Process(pid).memory_info().rss / 1e6 for pid in self.pids]

    def stop(self) -> None:
        for child in self._children:
            if child is not None and child.poll() is None:
                child.terminate()
                child.send_signal(signal.SIGCONT)  # a stopped process handles SIGTERM only after SIGCONT
        for child in self._children:
            if child is not None:
                try:
                    child.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()


class RouteKeeper(System):
    """Three RouteKeeper members, with HTTP and metrics switched on, as users start them.

    Args:
        interpreter: Command that runs ``-m PROGRAM``, such as a profiler; ``{index}`` is the member's number.
        program: Module of the nameserver; another tree may have another module.
    """

    kind: Kind = "remoting"

    def __init__(
        self,
        folder: Path,
        timers: Timers,
        *,
        durability: str,
        interpreter: str = "",
        program: str = "routekeeper.nameserver",
    ) -> None:
        super().__init__(folder, timers)
        self.name = f"routekeeper-{durability}"
        self._durability = durability
        self._interpreter, self._program = interpreter, program
        # Let each member answer reads from its own state, as in ZooKeeper. Set this in a file: the benchmark
        # of linearizable reads changes the setting by request 318, and a command-line flag would take
        # precedence.
        self._settings = folder / "namesrv.properties"
        self._settings.write_text("routeFreshness=stale\n")
        addresses = [f"{HOST}:{port}" for port in free_ports(3 * MEMBERS)]
        self.clients, self.http = addresses[:MEMBERS], addresses[MEMBERS : 2 * MEMBERS]
        self.peers = addresses[2 * MEMBERS :]

    def _command(self, index: int) -> list[str]:
        interpreter = shlex.split(self._interpreter.replace("{index}", str(index))) or [sys.executable]
        command = [
            *interpreter,
            "-m",
            self._program,
            "--mode",
            "raft",
            "--durability",
            self._durability,
        ]
        command += ["--listen", self.clients[index], "--http", self.http[index], "--data", "data"]
        command += ["--raft", self.peers[index], "--peers", ",".join(self.peers)]
        if self.timers.election_ms is not None:
            command += ["--election-timeout-ms", str(self.timers.election_ms)]
        return [*command, "-c", str(self._settings)]

    def version(self) -> str:
        return str(self.status(0).get("version", ""))

    @property
    def watched(self) -> list[str]:
        return self.http

    def status(self, index: int) -> dict[str, Any]:
        status = _json(f"http://{self.http[index]}/v1/status")
        return status if isinstance(status, dict) else {}

    def leader(self) -> int | None:
        return _one([self.status(index).get("role") == "leader" for index in range(MEMBERS)])

    def epoch(self) -> int | None:
        terms = [self.status(index).get("term") for index in range(MEMBERS)]
        return max((int(term) for term in terms if term is not None), default=None)

    def healthy(self) -> bool:
        found = [self.status(index) for index in range(MEMBERS)]
        roles = sorted(str(one.get("role")) for one in found)
        return roles == ["follower", "follower", "leader"] and all(
            _get(f"http://{http}/readyz") is not None for http in self.http
        )


class ZooKeeper(System):
    """ZooKeeper from pyspark's jars, with the settings of ZooKeeper's example file.

    By default its heap is as large as with ZooKeeper's own start script. Connections per address are not
    limited. ZooKeeper syncs before it acknowledges; that is its default.
    """

    kind: Kind = "jute"
    name = "zookeeper"
    jvm = True

    def __init__(self, folder: Path, timers: Timers, *, heap_mb: int = 1000) -> None:
        if importlib.util.find_spec("pyspark") is None:
            raise Missing("zookeeper is in pyspark's jars: install pyspark")
        super().__init__(folder, timers)
        self._heap_mb = heap_mb
        ports = free_ports(3 * MEMBERS)
        self.clients = [f"{HOST}:{port}" for port in ports[:MEMBERS]]
        self.peers = [f"{HOST}:{port}" for port in ports[MEMBERS:]]
        servers = "".join(
            f"server.{index + 1}={HOST}:{ports[MEMBERS + index]}:{ports[2 * MEMBERS + index]}\n"
            for index in range(MEMBERS)
        )
        for index in range(MEMBERS):
            home = folder / str(index)
            (home / "data").mkdir(parents=True)
            (home / "data" / "myid").write_text(f"{index + 1}\n")
            (home / "zoo.cfg").write_text(
                f"tickTime={timers.tick_ms}\ninitLimit={timers.init_limit}\nsyncLimit={timers.sync_limit}\n"
                f"maxSessionTimeout={max(20 * timers.tick_ms, timers.lease_s * 1000)}\n"
                f"dataDir={home / 'data'}\n"
                f"clientPortAddress={HOST}\nclientPort={ports[index]}\nmaxClientCnxns=0\nadmin.enableServer=false\n"
                f"4lw.commands.whitelist=srvr\n{servers}"
            )
            (home / "log4j2.properties").write_text(
                "rootLogger.level=warn\nrootLogger.appenderRef.console.ref=console\n"
                "appender.console.type=Console\nappender.console.name=console\n"
                "appender.console.layout.type=PatternLayout\n"
                "appender.console.layout.pattern=%d %p %c{1} %m%n\n"
            )

    def _command(self, index: int) -> list[str]:
        home = self.folder / str(index)
        command = [java(), f"-Xmx{self._heap_mb}m"]
        command += [f"-Dlog4j2.configurationFile={home / 'log4j2.properties'}"]
        return [*command, "-cp", class_path(), _QUORUM_PEER, str(home / "zoo.cfg")]

    def version(self) -> str:
        found = re.match(r"Zookeeper version: ([^-,\s]+)", four_letters(self.clients[0], b"srvr"))
        return found[1] if found else ""

    def _modes(self) -> list[str]:
        modes = []
        for client in self.clients:
            lines = four_letters(client, b"srvr").splitlines()
            modes.append(next((line[6:] for line in lines if line.startswith("Mode: ")), ""))
        return modes

    def leader(self) -> int | None:
        return _one([mode == "leader" for mode in self._modes()])

    def epoch(self) -> int | None:
        return zookeeper_epoch(self.clients)

    def healthy(self) -> bool:
        return sorted(self._modes()) == ["follower", "follower", "leader"]


FACTORIES: Final[dict[str, Callable[[Path, Timers], System]]] = {
    "routekeeper-fsync": lambda folder, timers: RouteKeeper(folder, timers, durability="fsync"),
    "routekeeper-memory": lambda folder, timers: RouteKeeper(folder, timers, durability="memory"),
    "zookeeper": ZooKeeper,
}


def _one(flags: Sequence[bool]) -> int | None:
    return flags.index(True) if sum(flags) == 1 else None


def _get(url: str) -> bytes | None:
    """Return the body of an HTTP answer with status 200; None for another status or without an answer."""
    try:
        with OPENER.open(url, timeout=3) as reply:
            body: bytes = reply.read()
            return body
    # OSError: for example, the connection is refused. HTTPException: the server may be killed while it
    # answers.
    except (OSError, http.client.HTTPException):
        return None


def _json(url: str) -> object:
    body = _get(url)
    return json.loads(body) if body else None


def fdatasync_ms(folder: Path, *, times: int = 200, size: int = 2048) -> list[float]:
    """Append ``size`` bytes to a file and call fdatasync, many times; return the times in ms, ascending."""
    path = folder / "fdatasync"
    took = []
    with path.open("wb", buffering=0) as file:
        for _ in range(times):
            started = time.perf_counter()
            file.write(bytes(size))
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - started) * 1e3)
    path.unlink()
    return sorted(took)
