"""RocketMQ's own nameservers. Their results are a check of the results of our design ``independent``.

Maven fetches the nameservers' jars once.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from routekeeper.bench.arms.servers import StartedServers, java, server_names
from routekeeper.bench.network import Network
from routekeeper.bench.ports import free_ports
from routekeeper.bench.processes import ClusterError, Record
from routekeeper.bench.runfolder import Arm
from routekeeper.bench.surroundings import cache_home
from routekeeper.bench.timers import Timers

RELEASE: Final = "5.3.3"
_MAIN: Final = "org.apache.rocketmq.namesrv.NamesrvStartup"
_FETCH_S: Final = 600.0
LOGBACK: Final = """<configuration>
  <appender name="file" class="org.apache.rocketmq.logging.ch.qos.logback.core.FileAppender">
    <file>{file}</file>
    <encoder><pattern>%d %-5level %logger{{20}} - %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="file"/></root>
</configuration>
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jars:
    """Programs of a RocketMQ release, and the folder of their jars.

    Attributes:
        pom: Maven's file that lists the programs.
    """

    name: str
    pom: Path

    @property
    def _kept(self) -> Path:
        return cache_home() / "routekeeper" / "bench" / self.name

    def missing(self) -> str | None:
        """Return a text that names Maven if this machine lacks both the jars and Maven, else None."""
        if self._kept.exists() or shutil.which("mvn") is not None:
            return None
        return "Maven (mvn on PATH), which fetches them once"

    def folder(self) -> Path:
        """Return the folder of the jars. Fetch the jars first if this machine lacks them.

        Raises:
            ClusterError: If Maven is missing or fails.
        """
        folder = self._kept
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_name(f"{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():
                return folder
            maven = shutil.which("mvn")
            if maven is None:
                raise ClusterError(f"the jars of {self.name} need {self.missing()}")
            partial = folder.with_name(f"{folder.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            # Copy the file first, because Maven builds in the folder of its pom.xml.
            shutil.copy(self.pom, partial / "pom.xml")
            done = subprocess.run(
                [maven, "-B", "-q", "dependency:copy-dependencies", f"-DoutputDirectory={partial / 'jars'}"],
                cwd=partial,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_FETCH_S,
                check=False,
            )
            if done.returncode != 0:
                raise ClusterError(f"mvn ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
            (partial / "jars").rename(folder)
        return folder

    def class_path(self) -> str:
        """Return the class path of all jars."""
        return os.pathsep.join(str(jar) for jar in sorted(self.folder().glob("*.jar")))


JARS: Final = Jars(name=f"apache-{RELEASE}", pom=Path(__file__).with_name("apache.xml"))


def missing() -> str | None:
    """Return the name of a program that RocketMQ's nameservers need and this machine lacks, or None."""
    return JARS.missing()


class ApacheNameservers(StartedServers):
    """RocketMQ's unmodified nameservers, with the same lease and scan period as our nameservers.

    The servers share no state.
    """

    def __init__(
        self, arm: Arm, folder: Path, timers: Timers, record: Record, *, count: int, network: Network
    ) -> None:
        super().__init__(arm, folder, timers, record, network)
        hosts = [network.host(name) for name in server_names(count)]
        self.clients = [f"{host}:{port}" for host, port in zip(hosts, free_ports(count), strict=True)]
        class_path = JARS.class_path()
        for index, addr in enumerate(self.clients):
            home = self.data_of(index)
            home.mkdir(parents=True)
            (home / "logback.xml").write_text(LOGBACK.format(file=home / "namesrv.log"))
            (home / "namesrv.properties").write_text(
                f"listenPort={addr.rpartition(':')[2]}\nbindAddress={network.bind}\n"
                f"scanNotActiveBrokerInterval={timers.scan_ms()}\n"
            )
            command = [java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
            command += [f"-Duser.home={home}", f"-Drocketmq.home.dir={home}"]
            command += [f"-Drmq.logback.configurationFile={home / 'logback.xml'}"]
            command += ["-cp", class_path, _MAIN, "-c", str(home / "namesrv.properties")]
            self._add(command, log=f"apache-{index}.log", ready_mark="boot success")

    def data_of(self, index: int) -> Path:
        return self.folder / f"apache-{index}"

    def ready(self) -> bool:
        return all(map(_listens, self.clients))

    def role(self, index: int) -> str:
        return "independent" if _listens(self.clients[index]) else "unknown"

    def empty_disk(self, index: int) -> None:
        """Do nothing, because the nameserver keeps its routes in memory only."""


def _listens(addr: str) -> bool:
    host, _, port = addr.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True
