"""The servers whose costs are measured, and readings of their CPU time, memory, disk and network use.

The harness asks the servers for these figures only before and after a measurement. During the measurement,
the answers would cost CPU time that the load did not cause.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from routekeeper.bench.arms.servers import fetch, four_letters
from routekeeper.bench.costs.units import Design
from routekeeper.bench.disk import figures
from routekeeper.bench.group import class_histogram, cpu_s, live_bytes
from routekeeper.bench.micro.raft.counters import Connection, moved, payloads
from routekeeper.bench.micro.raft.systems import RouteKeeper, System, ZooKeeper
from routekeeper.bench.micro.raft.timers import SERIES
from routekeeper.bench.micro.storm.servers import Independent, factory_of
from routekeeper.bench.processes import sample_machine

#: Number of pairs (topic, broker) for which our nameservers are set up. Every run has fewer pairs. The number
#: is below the nameserver's default limit (``tablePairsMax``), so the nameservers run with this default.
PAIRS_MAX: Final = 100_000
_CHUNK: Final = 1 << 16
#: Longest time in seconds for which the harness asks a busy server for its number of syncs.
_ANSWER_S: Final = 30.0


class CostsZooKeeper(ZooKeeper):
    """ZooKeeper servers with local sessions, which ZooKeeper's manual recommends for many clients."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, SERIES["defaults"])
        for config in folder.glob("*/zoo.cfg"):
            with config.open("a") as file:
                file.write(
                    "localSessionsEnabled=true\nlocalSessionsUpgradingEnabled=true\n"
                    "4lw.commands.whitelist=srvr,mntr\n"
                )


def servers_of(design: Design, folder: Path) -> System:
    """Return three servers of a design, without starting them."""
    if design == "zookeeper":
        return CostsZooKeeper(folder)
    return factory_of(design, tree=None, python="")(folder, PAIRS_MAX)


def watch_addresses(system: System) -> list[str]:
    """Return the address ``host:port`` at which clients watch each server."""
    return system.http if isinstance(system, Independent | RouteKeeper) else system.clients


def written_end(path: Path, beyond: int) -> int:
    """Return the offset after a file's last non-zero byte. The search begins at the offset ``beyond``.

    ZooKeeper extends its log file to 64 MiB in advance, so the file's length does not show the number of
    written bytes.
    """
    end = beyond
    with path.open("rb") as file:
        file.seek(beyond)
        at = beyond
        while chunk := file.read(_CHUNK):
            filled = chunk.rstrip(b"\0")
            if not filled:
                break
            end = at + len(filled)
            at += len(chunk)
    return end


class Disk:
    """The number of bytes that servers have written to their files, and the number of their syncs.

    A file's bytes are counted up to its last non-zero byte. A deleted file keeps its last known size. Bytes
    that replace earlier bytes of the file are not counted.
    """

    def __init__(self, system: System) -> None:
        self._system = system
        self._ends: list[dict[Path, int]] = [{} for _ in system.clients]

    def read(self) -> list[tuple[int, int]] | None:
        """Return two numbers for each server: its written bytes, and its syncs since its start.

        Return None if a server does not report its syncs.
        """
        syncs = [self._syncs(index) for index in range(len(self._ends))]
        found = []
        for ends, index, count in zip(self._ends, range(len(self._ends)), syncs, strict=True):
            if count is None:
                return None
            for path in (self._system.folder / str(index) / "data").rglob("*"):
                with contextlib.suppress(OSError):  # the server may delete the file while it is read
                    if path.is_file():
                        ends[path] = written_end(path, ends.get(path, 0))
            found.append((sum(ends.values()), count))
        return found

    def _syncs(self, index: int) -> int | None:
        """Return the number of a server's syncs since its start.

        If the server is too busy to answer, ask again for up to 30 s. Return None if it never answers.
        """
        deadline = time.monotonic() + _ANSWER_S
        while (count := self._said_syncs(index)) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return count

    def _said_syncs(self, index: int) -> int | None:
        """Return the count of syncs that a server reports, or None if it does not answer.

        Return 0 for independent nameservers, because they never sync.
        """
        system = self._system
        if isinstance(system, ZooKeeper):
            name, text = "zk_cnt_fsynctime", four_letters(system.clients[index], b"mntr")
        elif isinstance(system, RouteKeeper):
            name = "mqnamesrv_raft_fsync_seconds_count"
            text = fetch(f"http://{system.http[index]}/metrics")[1].decode()
        else:
            return 0
        count = figures(text.splitlines()).get(name)
        return None if count is None else int(count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Totals of the resources that the servers had used at one instant."""

    t: float
    cpu_s: list[float]
    disk: list[tuple[int, int]] | None
    connections: dict[Connection, int] | None
    machine_s: float


def kernel_payloads() -> dict[Connection, int] | None:
    """Return the payload bytes of each connection, as the kernel counts them.

    Return None if the program ``ss`` of iproute2 is not installed.
    """
    if shutil.which("ss") is None:
        return None
    lines = subprocess.run(["ss", "-tinpOH"], capture_output=True, text=True, check=False).stdout
    return payloads(lines.splitlines())


def read_before(system: System, disk: Disk) -> Reading:
    """Read the resources that the servers have used, at the start of a measurement.

    Read the CPU time last, so that the measurement does not include the CPU time of the other readings.
    """
    written, connections = disk.read(), kernel_payloads()
    return Reading(
        disk=written,
        connections=connections,
        machine_s=sample_machine().cpu_ns / 1e9,
        cpu_s=[cpu_s(pid) for pid in system.pids],
        t=time.monotonic(),
    )


def read_after(system: System, disk: Disk) -> Reading:
    """Read the resources that the servers have used, at the end of a measurement.

    Read the CPU time first, so that the measurement does not include the CPU time of the other readings.
    """
    t, used = time.monotonic(), [cpu_s(pid) for pid in system.pids]
    machine = sample_machine().cpu_ns / 1e9
    connections = kernel_payloads()
    return Reading(t=t, cpu_s=used, machine_s=machine, connections=connections, disk=disk.read())


def members_bytes(system: System, before: Reading, after: Reading) -> list[int] | None:
    """Return the bytes that each server exchanged with the other servers between two readings."""
    if not system.peers:
        return [0] * len(system.clients)
    if before.connections is None or after.connections is None:
        return None
    found = moved(
        before.connections,
        after.connections,
        pids=system.pids,
        member_ports={addr.rpartition(":")[2] for addr in system.peers},
        client_ports=(),
    )
    return found["members"]


def memory_bytes(system: System, *, heaps: bool) -> tuple[list[int], list[int]]:
    """Return two lists with one value in bytes for each server: its memory, and its resident memory.

    If ``heaps`` is true, the memory of a JVM is the size of its heap after a garbage collection. In all other
    cases the two values are equal.
    """
    resident = [psutil.Process(pid).memory_info().rss for pid in system.pids]
    if not heaps or not isinstance(system, ZooKeeper) or shutil.which("jcmd") is None:
        return resident, resident
    try:
        return [live_bytes(class_histogram(pid)) for pid in system.pids], resident
    except (subprocess.SubprocessError, ValueError):
        return resident, resident
