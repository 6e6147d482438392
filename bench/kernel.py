"""Links that the kernel can cut, because every process runs in a network namespace of its own.

The namespaces are described in :mod:`routekeeper.bench.namespaces`.

During a cut, the kernel drops packets without an error. TCP sends them again, and doubles the pause each
time. To delay packets, the sender's namespace routes them to a TUN device. A program at the device
(:mod:`routekeeper.bench.held_back`) sends each packet on after the delay, and may drop a share of all
packets, including handshakes, acknowledgements and repeated packets. This module needs root and iproute2.
Delays also need /dev/net/tun.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from routekeeper.bench.iproute import claimed_subnet, inside, ip, new_tag, remove, run
from routekeeper.bench.links import Direction
from routekeeper.bench.namespaces import HARNESS, HELD, Namespaces
from routekeeper.bench.network import Network
from routekeeper.bench.processes import ClusterError, Process


def missing() -> str | None:
    """Return a requirement for cutting links that this machine does not meet, or None."""
    if os.geteuid() != 0:
        return "root"
    if shutil.which("ip") is None:
        return "iproute2 (ip on PATH)"
    try:
        KernelNetwork([]).close()
    except ClusterError as error:
        return f"the right to make network namespaces: {error}"
    return None


def missing_for_delays() -> str | None:
    """Return a requirement for delaying packets that this machine does not meet, or None."""
    return missing() or (None if os.access("/dev/net/tun", os.R_OK | os.W_OK) else "/dev/net/tun")


class KernelNetwork(Network):
    """Namespaces of one cluster. The constructor creates them.

    Raises:
        ClusterError: If the kernel refuses to create a namespace. In this case the constructor removes all
            namespaces again.
    """

    bind = "0.0.0.0"

    def __init__(self, names: Sequence[str]) -> None:
        self._tag = new_tag()
        self._logs = tempfile.TemporaryDirectory(prefix="routekeeper-")
        self._rules: list[str] = []
        self._waiting: subprocess.Popen[str] | None = None
        self._holding: dict[str, Process] = {}
        self._led_on: set[str] = set()
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

    def cut(self, directions: Sequence[Direction]) -> int:
        rules = self._spaces.rules(directions)
        done_ns = self._tell_router([f"rule add {rule}" for rule in rules])
        self._rules += rules
        return done_ns

    def heal(self) -> int:
        done_ns = self._tell_router([f"rule del {rule}" for rule in self._rules])
        self._rules = []
        return done_ns

    def delay(self, directions: Sequence[Direction], delay_ms: float, *, loss: float = 0.0) -> None:
        """Delay and drop packets between servers and brokers, until the next call or until :meth:`close`.

        One sender can have only one delay for all of its directions. A direction that is not in
        ``directions`` has no delay.

        Args:
            loss: Share of packets that are dropped, 0 to 1.

        Raises:
            ClusterError: If the kernel refuses.
        """
        for process in self._holding.values():
            # When this process ends, the kernel removes the process's TUN device and the routes to it.
            process.kill()
        self._holding.clear()
        if not delay_ms and not loss:
            return
        for number, sender in enumerate(dict.fromkeys(sender for sender, _ in directions)):
            receivers = [receiver for one, receiver in directions if one == sender]
            command = [sys.executable, "-m", "routekeeper.bench.held_back", HELD, "--seed", str(number)]
            process = Process(
                role="proxy",
                index=number,
                command=self.command(
                    sender, [*command, "--delay-ms", f"{delay_ms:g}", "--loss", f"{loss:g}"]
                ),
                log=Path(self._logs.name) / f"held-{sender}.log",
            )
            self._holding[sender] = process
            process.launch()
            process.wait_ready()
            space = self._spaces.inside(sender)
            run(inside(space, ["sh", "-c", self._spaces.forwarding(sender)]))
            if sender not in self._led_on:
                ip(*self._spaces.onward(sender), space=space)
                self._led_on.add(sender)
            ip(*self._spaces.held_back(sender, receivers), space=space)

    def _at_router(self) -> subprocess.Popen[str]:
        """Start ``ip`` in the router's namespace. The program then waits for commands on standard input.

        A start may take 0.1 s. So the process is started in advance, because a fault must happen at an exact
        instant.
        """
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

    def close(self) -> None:
        for process in self._holding.values():
            process.kill()
        self._logs.cleanup()
        if self._waiting is not None:
            self._waiting.kill()
            self._waiting.communicate()
        remove(self._tag)
