"""The compared systems, each with three members on loopback.

This module starts, observes, ends and restarts the members, and chooses their ports, folders and logs. Each
system runs with default sizes and default timers.
"""

from __future__ import annotations

import abc
import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from routekeeper.bench.arms.servers import (
    class_path,
    four_letters,
    is_ready,
    java,
    status_of,
    zookeeper_epoch,
)
from routekeeper.bench.group import Missing, Unhealthy, log_tails
from routekeeper.bench.micro.raft.timers import SERIES, Timers
from routekeeper.bench.ports import HOST, free_ports
from routekeeper.bench.wires.client import Kind

MEMBERS: Final = 3
#: Seconds in which members must serve. On a busy machine, three JVMs once took more than a minute.
START_S: Final = 180.0
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

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    @abc.abstractmethod
    def _command(self, index: int) -> list[str]:
        """Return the command line of one member."""

    def roles(self) -> list[str]:
        """Return the role that each member reports; an empty list if the members elect no leader."""
        return []

    def leader(self) -> int | None:
        """Return the index of the leader; None if no member, or several members, report that they lead."""
        roles = self.roles()
        return roles.index("leader") if roles.count("leader") == 1 else None

    def healthy(self) -> bool:
        """Return True if all three members serve: one leads, and two follow."""
        return sorted(self.roles()) == ["follower", "follower", "leader"]

    @abc.abstractmethod
    def version(self) -> str:
        """Return the version that a running member reports."""

    def epoch(self) -> int | None:
        """Return the newest term or epoch, as :meth:`routekeeper.bench.group.Group.epoch` describes."""
        return None

    def kill_and_restart(self) -> None:
        """Kill all members with SIGKILL, and start them again with the same folders."""
        for child in self._children.values():
            child.kill()
        for index in range(MEMBERS):
            self._children[index].wait(STOP_S)
            self.launch(index)

    @property
    def watched(self) -> list[str]:
        return self.clients

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children.values()]

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

    def wait_healthy(self) -> None:
        """Wait until all members serve.

        Raises:
            Unhealthy: If some member does not serve after :data:`START_S`, or has ended. The message has the
                last lines of the member's log.
        """
        deadline = time.monotonic() + START_S
        while not self.healthy():
            for index, child in self._children.items():
                if child.poll() is not None:
                    raise Unhealthy(
                        f"{self.name} {index} ended with {child.returncode}\n{self.log_tail(index)}"
                    )
            if time.monotonic() > deadline:
                raise Unhealthy(f"{self.name} is not healthy after {START_S:g} s\n{log_tails(self)}")
            time.sleep(0.05)

    def log_tail(self, index: int) -> str:
        lines = (self.folder / str(index) / "log.txt").read_text(errors="replace").splitlines()
        return "\n".join(lines[-6:])

    def stop(self) -> None:
        for child in self._children.values():
            child.terminate()
            child.send_signal(signal.SIGCONT)  # a stopped process handles SIGTERM only after SIGCONT
        for child in self._children.values():
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
        *,
        durability: str,
        interpreter: str = "",
        program: str = "routekeeper.nameserver",
    ) -> None:
        super().__init__(folder)
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
        return [*command, "-c", str(self._settings)]

    def version(self) -> str:
        return status_of(self.http[0]).get("version", "")

    @property
    def watched(self) -> list[str]:
        return self.http

    def roles(self) -> list[str]:
        return [status_of(http, 3.0).get("role", "") for http in self.http]

    def epoch(self) -> int | None:
        terms = [status_of(http, 3.0).get("term") for http in self.http]
        return max((int(term) for term in terms if term is not None), default=None)

    def healthy(self) -> bool:
        return super().healthy() and all(map(is_ready, self.http))


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
        super().__init__(folder)
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

    def roles(self) -> list[str]:
        modes = []
        for client in self.clients:
            lines = four_letters(client, b"srvr").splitlines()
            modes.append(next((line[6:] for line in lines if line.startswith("Mode: ")), ""))
        return modes

    def epoch(self) -> int | None:
        return zookeeper_epoch(self.clients)


#: Functions that make a system, by its name. Their arguments are a folder, and the Python of our members.
FACTORIES: Final[dict[str, Callable[[Path, str], System]]] = {
    "routekeeper-fsync": lambda folder, python: RouteKeeper(folder, durability="fsync", interpreter=python),
    "routekeeper-memory": lambda folder, python: RouteKeeper(folder, durability="memory", interpreter=python),
    "zookeeper": lambda folder, python: ZooKeeper(folder, SERIES["defaults"]),
}


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
