"""Links that the kernel cuts: every process in a network namespace, see :mod:`bench.namespaces`.

Packets into a cut vanish and nobody is told; TCP repeats them, after pauses that double. Needs root and
iproute2. Names begin with ``rkb`` and the number of the harness's process: what one that was killed has left
is removed by the next.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Final

import psutil

from bench.links import Count, Direction
from bench.namespaces import HARNESS, SUBNETS, Namespaces, network
from bench.network import Network
from bench.processes import ClusterError, Process

_TAG: Final = re.compile(r"(rkb(\d+)-\d+)-")
_numbers: Final = itertools.count()
_own: Final[set[str]] = set()


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
        _remove(_is_left)
        self._tag = f"rkb{os.getpid()}-{next(_numbers)}"
        _own.add(self._tag)
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
        _ip(
            f"netns add {spaces.router}",
            f"link add {self._tag} type veth peer name {HARNESS} netns {spaces.router}",
            f"link set {self._tag} up",
        )
        spaces = Namespaces(tag=self._tag, subnet=self._claimed(), names=names)
        for inside, lines in spaces.commands():
            _ip(*lines, inside=inside)
        forward = "echo 1 > /proc/sys/net/ipv4/ip_forward"
        _run(["ip", "netns", "exec", spaces.router, "sh", "-c", forward])
        return spaces

    def _claimed(self) -> int:
        """Return a subnet that no other run has: the kernel has one route to each."""
        for subnet in random.sample(SUBNETS, len(SUBNETS)):
            try:
                _ip(f"route add {network(subnet)} dev {self._tag}")
            except ClusterError as error:
                if "File exists" not in str(error):
                    raise
            else:
                return subnet
        raise ClusterError(f"other runs have all {len(SUBNETS)} subnets of 198.19.0.0/16")

    def host(self, name: str) -> str:
        return self._spaces.host(name)

    def command(self, name: str, words: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", self._spaces.inside(name), *words]

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
        _remove(lambda tag, pid: tag == self._tag)
        _own.discard(self._tag)


def _is_left(tag: str, pid: int) -> bool:
    """Say whether a harness that was killed has left these."""
    return tag not in _own if pid == os.getpid() else not psutil.pid_exists(pid)


def _remove(chosen: Callable[[str, int], bool]) -> None:
    """Remove every namespace whose tag is chosen, and with them all interfaces, routes and rules."""
    listed = _run(["ip", "netns", "list"]).split()
    found = [
        (name, tag[1])
        for name in listed
        if (tag := _TAG.match(name)) is not None and chosen(tag[1], int(tag[2]))
    ]
    # The harness's interface goes with the router, too, but some time later.
    lines = [f"link del {tag}" for tag in {tag for _, tag in found}]
    lines += [f"netns del {name}" for name, _ in found]
    _run(["ip", "-force", "-batch", "-"], lines, check=False)


def _ip(*lines: str, inside: str | None = None) -> None:
    where = [] if inside is None else ["-n", inside]
    _run(["ip", *where, "-batch", "-"], lines)


def _run(command: Sequence[str], lines: Sequence[str] = (), *, check: bool = True) -> str:
    """Run a command, and return what it prints.

    Raises:
        ClusterError: If it fails; the message is the first line of what it says.
    """
    given = "".join(f"{line}\n" for line in lines)
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        said = done.stderr.strip().partition("\n")[0]
        raise ClusterError(said or f"{' '.join(command)} ended with {done.returncode}")
    return done.stdout
