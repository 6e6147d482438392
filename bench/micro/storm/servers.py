"""The servers of four designs, three servers each, on loopback.

The designs are our two modes, RocketMQ and ZooKeeper.
"""

from __future__ import annotations

import shlex
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from routekeeper.bench.arms.apache import JARS, LOGBACK, RELEASE
from routekeeper.bench.arms.servers import is_ready, java, status_of
from routekeeper.bench.group import Missing
from routekeeper.bench.micro.raft.systems import MEMBERS, RouteKeeper, System, ZooKeeper
from routekeeper.bench.micro.raft.timers import SERIES
from routekeeper.bench.micro.route_query import NAMESRV_MAIN
from routekeeper.bench.micro.trees import program_of
from routekeeper.bench.ports import HOST, free_ports
from routekeeper.bench.wires.client import Kind

Design = Literal["independent", "raft", "rocketmq", "zookeeper"]
DESIGNS: Final[tuple[Design, ...]] = ("independent", "raft", "rocketmq", "zookeeper")
#: Highest number of pairs of topic and broker for which our default of the limit ``tablePairsMax`` is enough.
#: With more pairs, the benchmark raises this limit.
PAIRS_USUAL: Final = 3_200_000
#: Heaps of JVMs in MB. RocketMQ's heap has the size that RocketMQ's own script runserver.sh sets. ZooKeeper's
#: heap is enough for a million nodes; with a smaller heap, the JVM would spend most of its time on garbage
#: collection.
HEAP_MB: Final[dict[Design, int]] = {"rocketmq": 4096, "zookeeper": 3072}


def _bounds(pairs: int) -> str:
    return f"tablePairsMax={2 * pairs}\n" if pairs > PAIRS_USUAL else ""


class Independent(System):
    """Our nameservers in independent mode: each has a route table of its own."""

    kind: Kind = "remoting"
    name = "independent"

    def __init__(self, folder: Path, *, pairs: int, interpreter: str, program: str) -> None:
        super().__init__(folder)
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

    def healthy(self) -> bool:
        return all(map(is_ready, self.http))


class Raft(RouteKeeper):
    """Our nameservers in raft mode, with one replicated table; they sync before they acknowledge."""

    def __init__(self, folder: Path, *, pairs: int, interpreter: str, program: str) -> None:
        super().__init__(folder, durability="fsync", interpreter=interpreter, program=program)
        self.name = "raft"
        self._settings.write_text(_bounds(pairs))


class RocketMQ(System):
    """RocketMQ's own unmodified nameservers, from their jars."""

    kind: Kind = "remoting"
    name = "rocketmq"
    jvm = True

    def __init__(self, folder: Path) -> None:
        missing = JARS.missing() or (None if shutil.which("java") else "Java (java on PATH)")
        if missing:
            raise Missing(f"rocketmq needs {missing}")
        super().__init__(folder)
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
    """Return a function that makes a design's servers; its arguments are a folder and a number of pairs.

    A pair is a topic at a broker.
    """
    if design == "rocketmq":
        return lambda folder, pairs: RocketMQ(folder)
    if design == "zookeeper":
        return lambda folder, pairs: ZooKeeper(folder, SERIES["defaults"], heap_mb=HEAP_MB["zookeeper"])
    interpreter, program = program_of(tree, python)
    ours = Independent if design == "independent" else Raft
    return lambda folder, pairs: ours(folder, pairs=pairs, interpreter=interpreter, program=program)
