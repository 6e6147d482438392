"""The servers of one design (such as raft mode or ZooKeeper), and the resources that they use.

The servers are started without the harness of the comparison.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Final, Protocol

from routekeeper.bench.wires.client import Kind

_CPUCLOCK_SCHED: Final = 2
_MB: Final = 1e6
_JCMD_S: Final = 60.0


class Missing(Exception):
    """A design's programs are not installed."""


class Unhealthy(Exception):
    """A group of servers, or its load, has failed, so a measurement is not possible."""


class Group(Protocol):
    """Servers of one design, which start and stop together.

    Attributes:
        kind: The protocol of the clients.
        jvm: True if each server is a Java process.
    """

    name: str
    kind: Kind
    jvm: bool

    @property
    def clients(self) -> list[str]:
        """Return the addresses ``host:port`` for clients, one for each server."""

    @property
    def pids(self) -> list[int]:
        """Return the pids of the running server processes, by index."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def leader(self) -> int | None:
        """Return the index of the leader, or None if there is no leader."""

    def epoch(self) -> int | None:
        """Return the number of the newest term or epoch.

        Each leader begins a new term, so the difference of two results is the number of changes of leader.
        Return None if the design has no elections, or if no server answers.
        """

    def kill_and_restart(self) -> None:
        """Kill all servers and restart them with the same folders, without a wait until they are ready."""

    def log_tail(self, index: int) -> str: ...


def cpu_s(pid: int) -> float:
    """Return the user and system time that a process has used since its start, in seconds.

    The time includes all threads, and has a resolution of 1 ns. The times in ``/proc`` have a resolution of
    only 10 ms. The clock id is computed as in glibc's clock_getcpuclockid(3), for Linux only.
    """
    return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)


def log_tails(group: Group) -> str:
    return "\n".join(group.log_tail(index) for index in range(len(group.clients)))


def largest_memory_mb(group: Group) -> list[float]:
    """Return the peak memory in MB of each server's process since its start (the kernel's VmHWM)."""
    found = []
    for pid in group.pids:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
        found.append(kilobytes * 1024 / _MB)
    return found


def heap_kept(group: Group) -> dict[str, float]:
    """Return the largest heap of the servers' JVMs after a garbage collection, in MB.

    The result is empty if the servers are not JVMs, or if the heap cannot be read.
    """
    if not group.jvm or shutil.which("jcmd") is None:
        return {}
    try:
        kept = [live_bytes(class_histogram(pid)) for pid in group.pids]
    except (subprocess.SubprocessError, ValueError):
        # Leave this figure out, because an error here would also lose the other figures of the measurement.
        return {}
    return {"heap_kept_mb": max(kept) / _MB}


def class_histogram(pid: int) -> str:
    """Make a JVM collect garbage, and return the number and size of its objects by class, as text."""
    command = ["jcmd", str(pid), "GC.class_histogram"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=_JCMD_S).stdout


def live_bytes(histogram: str) -> int:
    """Return the total bytes in a class histogram, which is the size of the heap after a garbage collection.

    Raises:
        ValueError: If the histogram has no total.
    """
    found = re.search(r"^Total +\d+ +(\d+) *$", histogram, re.M)
    if found is None:
        raise ValueError(f"no total in a class histogram of {len(histogram)} characters")
    return int(found[1])
