"""Links that the kernel cuts: every process in a network namespace, see :mod:`routekeeper.bench.namespaces`.

Packets into a cut vanish and nobody is told; TCP repeats them, after pauses that double. Needs root and
iproute2.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence

from routekeeper.bench.iproute import claimed_subnet, inside, ip, new_tag, remove, run
from routekeeper.bench.links import Count, Direction
from routekeeper.bench.namespaces import HARNESS, Namespaces
from routekeeper.bench.network import Network
from routekeeper.bench.processes import ClusterError, Process


def missing() -> str | None:
    """Return what this machine lacks to cut links by the kernel; None if nothing."""
    if os.geteuid() != 0:
        return "root"
    if shutil.which("ip") is None:
        return "iproute2 (ip on PATH)"
    try:
        KernelNetwork([]).close()
    except ClusterError as error:
        return f"the right to make network namespaces: {error}"
    return None


class KernelNetwork(Network):
    """Namespaces of one cluster, made at once.

    Raises:
        ClusterError: If the kernel refuses one; nothing is left.
    """

    bind = "0.0.0.0"

    def __init__(self, names: Sequence[str]) -> None:
        self._tag = new_tag()
        self._rules: list[str] = []
        self._waiting: subprocess.Popen[str] | None = None
        try:
            self._spaces = self._made(names)
            self._waiting = self._at_router()
        except BaseException:
            self.close()
            raise

    def _made(self, names: Sequence[str]) -> Namespaces:
        spaces = Namespaces(tag=self._tag, subnet=0, names=names)
        ip(
            f"netns add {spaces.router}",
            f"link add {self._tag} type veth peer name {HARNESS} netns {spaces.router}",
            f"link set {self._tag} up",
        )
        spaces = Namespaces(tag=self._tag, subnet=claimed_subnet(self._tag), names=names)
        for space, lines in spaces.commands():
            ip(*lines, space=space)
        run(inside(spaces.router, ["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]))
        return spaces

    def host(self, name: str) -> str:
        return self._spaces.host(name)

    def command(self, name: str, words: Sequence[str]) -> list[str]:
        return inside(self._spaces.inside(name), words)

    def dialled(self, dialler: str, acceptor: str, to: str) -> str:
        return f"{self._spaces.dialled(dialler, acceptor)}:{to.rpartition(':')[2]}"

    def carriers(self) -> list[Process]:
        return []

    def cut(self, directions: Sequence[Direction]) -> int:
        rules = self._spaces.rules(directions)
        done_ns = self._tell_router([f"rule add {rule}" for rule in rules])
        self._rules += rules
        return done_ns

    def heal(self) -> int:
        done_ns = self._tell_router([f"rule del {rule}" for rule in self._rules])
        self._rules = []
        return done_ns

    def _at_router(self) -> subprocess.Popen[str]:
        """Return what waits for lines at the router: to start it takes a busy machine a tenth of a second."""
        command = ["ip", "-n", self._spaces.router, "-batch", "-"]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def _tell_router(self, lines: Sequence[str]) -> int:
        assert self._waiting is not None
        _, said = self._waiting.communicate("".join(f"{line}\n" for line in lines))
        done_ns = time.monotonic_ns()
        if self._waiting.returncode != 0:
            raise ClusterError(f"links cannot be cut: {said.strip()}")
        self._waiting = self._at_router()
        return done_ns

    def counts(self) -> list[Count]:
        """Nobody counts: what an interface has carried names no pair, and repetitions would count twice."""
        return []

    def close(self) -> None:
        if self._waiting is not None:
            self._waiting.kill()
            self._waiting.communicate()
        remove(self._tag)
