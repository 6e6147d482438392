"""The network of a run. Our proxy or the kernel can cut its links."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from routekeeper.bench.links import Command, Direction, Done, Link, Passes, pair_host
from routekeeper.bench.ports import HOST, free_ports
from routekeeper.bench.processes import ClusterError, Process, Record

ANSWER_S: Final = 10.0


class Network:
    """The network between the processes of a run: hosts, addresses and links. This class cannot cut links.

    A link is identified by its two processes.

    Cuts do not affect the harness and the observer.

    Attributes:
        bind: The host at which servers and brokers listen.
    """

    bind = HOST

    def host(self, name: str) -> str:
        """Return the host of a server or broker, to which the harness and other processes connect."""
        return HOST

    def command(self, name: str, words: Sequence[str]) -> list[str]:
        """Return the command line that runs the program ``words`` on the host of the process ``name``."""
        return list(words)

    def dialled(self, dialler: str, acceptor: str, to: str) -> str:
        """Return the address to which ``dialler`` must connect, if ``acceptor`` listens at ``to``."""
        return to

    def members(self, bound: Mapping[str, str]) -> list[str]:
        """Return the addresses at which raft members connect to each other.

        Args:
            bound: Address at which each member listens, by the member's name.
        """
        return list(bound.values())

    def between(self, dialler: int, acceptor: int, ports: Sequence[int]) -> str:
        """Return the host by which the server ``dialler`` reaches these ports of the server ``acceptor``."""
        return self.host(f"nameserver-{acceptor}")

    def carriers(self) -> list[Process]:
        """Return the processes that carry links, not yet started.

        After this call no link can be added.
        """
        return []

    def cut(self, directions: Sequence[Direction]) -> int:
        """Cut these directions, each from its first to its second process. Return the instant in ns."""
        raise ClusterError("these links are not cut")

    def heal(self) -> int:
        """End all cuts. Return the instant in ns at which the links were open again."""
        raise ClusterError("these links are not cut")

    def delay(self, directions: Sequence[Direction], delay_ms: float, *, loss: float = 0.0) -> None:
        """Delay packets in these directions, and drop the share ``loss`` of them.

        Raises:
            ClusterError: If this network cannot delay or drop packets.
        """
        raise ClusterError("these links are not delayed")

    def look(self, timeout_s: float = ANSWER_S) -> list[Passes]:
        """Return the present state of each link, or an empty list if this network does not know the states.

        Raises:
            ClusterError: If the network does not report the states within ``timeout_s``.
        """
        return []

    def close(self) -> None:
        """Remove interfaces and rules after the processes have ended."""


class ProxyNetwork(Network):
    """A network on loopback, in which every link passes the proxy.

    Attributes:
        process: The proxy's process, made by :meth:`carriers`.
    """

    process: Process

    def __init__(self, folder: Path, record: Record) -> None:
        self.links: list[Link] = []
        self._folder = folder
        self._record = record
        self._asking = threading.Lock()
        self._number = 0
        self._is_silent = False

    def dialled(self, dialler: str, acceptor: str, to: str) -> str:
        (port,) = free_ports(1)
        self.links.append(Link(dialler=dialler, acceptor=acceptor, listen=f"{HOST}:{port}", to=to))
        return self.links[-1].listen

    def members(self, bound: Mapping[str, str]) -> list[str]:
        identities = [f"{HOST}:{port}" for port in free_ports(len(bound))]
        names = dict(zip(identities, bound, strict=True))
        self.links += [
            Link(acceptor=name, listen=identity, to=bound[name], names=names)
            for identity, name in names.items()
        ]
        return identities

    def between(self, dialler: int, acceptor: int, ports: Sequence[int]) -> str:
        host = pair_host(dialler, acceptor)
        self.links += [
            Link(
                dialler=f"nameserver-{dialler}",
                acceptor=f"nameserver-{acceptor}",
                listen=f"{host}:{port}",
                to=f"{HOST}:{port}",
            )
            for port in ports
        ]
        return host

    def carriers(self) -> list[Process]:
        path = self._folder / "links.json"
        path.write_bytes(msgspec.json.encode(self.links))
        self.process = Process(
            role="proxy",
            index=0,
            command=[sys.executable, "-m", "routekeeper.bench.proxy", str(path)],
            log=self._folder / "proxy.log",
            record=self._record,
            pipe_in=True,
        )
        return [self.process]

    def cut(self, directions: Sequence[Direction]) -> int:
        return self._do(Command(do="cut", directions=list(directions)))

    def heal(self) -> int:
        return self._do(Command(do="heal"))

    def delay(self, directions: Sequence[Direction], delay_ms: float, *, loss: float = 0.0) -> None:
        if loss:
            raise ClusterError("the proxy loses no packets; --links kernel does")
        self._do(Command(do="delay", directions=list(directions), delay_ms=delay_ms))

    def look(self, timeout_s: float = ANSWER_S) -> list[Passes]:
        """Return the present state of each link: open or cut, delay, and bytes passed.

        If the last call timed out and the proxy has not answered yet, wait for the late answer, without a
        new command.
        """
        with self._asking:
            if not self._is_silent:
                self._write(Command(do="look"))
            self._is_silent = True
            passes = self._answer(timeout_s).passes
            self._is_silent = False
            return passes

    def _do(self, command: Command) -> int:
        """Send a command to the proxy. Return the instant in ns at which the proxy had carried it out."""
        with self._asking:
            self._write(command)
            # The proxy may not have answered the last command ``look`` yet. In this case _answer() skips the
            # late answer. So the next call of look() must send the command again.
            self._is_silent = False
            return self._answer(ANSWER_S).t_ns

    def _write(self, command: Command) -> None:
        child = self.process.child
        assert child is not None
        assert child.stdin is not None
        self._number += 1
        numbered = msgspec.structs.replace(command, number=self._number)
        try:
            child.stdin.write(msgspec.json.encode(numbered).decode() + "\n")
            child.stdin.flush()
        except (OSError, ValueError) as error:  # ValueError: the proxy has ended, and its stdin is closed
            raise ClusterError(f"the proxy is gone: {error}\n{self.process.log_tail()}") from error

    def _answer(self, timeout_s: float) -> Done:
        """Return the answer to the last command. Skip answers to earlier commands."""
        deadline = time.monotonic() + timeout_s
        while True:
            done = msgspec.json.decode(self.process.next_line(deadline), type=Done)
            if done.number == self._number:
                return done
