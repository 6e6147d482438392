"""The network of a run. Our proxy or the kernel can cut its links."""

from __future__ import annotations

import abc
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from routekeeper.bench.links import Count, Direction, Link, Passes, pair_host
from routekeeper.bench.ports import HOST, free_ports
from routekeeper.bench.processes import ClusterError, Process, ProxyProcess, Record, network_process


class Network(abc.ABC):
    """The network between the processes of a run: hosts, addresses and links.

    A link is identified by its two processes.

    Cuts do not affect the harness and the observer.

    Attributes:
        bind: The host at which servers and brokers listen.
    """

    bind: str

    @abc.abstractmethod
    def host(self, name: str) -> str:
        """Return the host of a server or broker, to which the harness and other processes connect."""

    @abc.abstractmethod
    def command(self, name: str, words: Sequence[str]) -> list[str]:
        """Return the command line that runs the program ``words`` on the host of the process ``name``."""

    @abc.abstractmethod
    def dialled(self, dialler: str, acceptor: str, to: str) -> str:
        """Return the address to which ``dialler`` must connect, if ``acceptor`` listens at ``to``."""

    def members(self, bound: Mapping[str, str]) -> list[str]:
        """Return the addresses at which raft members connect to each other.

        Args:
            bound: Address at which each member listens, by the member's name.
        """
        return list(bound.values())

    def between(self, dialler: int, acceptor: int, ports: Sequence[int]) -> str:
        """Return the host by which the server ``dialler`` reaches these ports of the server ``acceptor``."""
        return self.host(f"nameserver-{acceptor}")

    @abc.abstractmethod
    def carriers(self) -> list[Process]:
        """Return the processes that carry links, not yet started.

        After this call no link can be added.
        """

    @abc.abstractmethod
    def cut(self, directions: Sequence[Direction]) -> int:
        """Cut these directions, each from its first to its second process. Return the instant in ns."""

    @abc.abstractmethod
    def heal(self) -> int:
        """End all cuts. Return the instant in ns at which the links were open again."""

    def delay(self, directions: Sequence[Direction], delay_ms: float, *, loss: float = 0.0) -> None:
        """Delay packets in these directions, and drop the share ``loss`` of them.

        Raises:
            ClusterError: If this network cannot delay or drop packets.
        """
        raise ClusterError("these links are not delayed")

    @abc.abstractmethod
    def counts(self) -> list[Count]:
        """Return the number of bytes that have passed each link, or an empty list if they are not counted."""

    def look(self, timeout_s: float) -> list[Passes]:
        """Return the state of each link.

        Raises:
            ClusterError: If this network does not know the states of its links, or does not report the states
                within ``timeout_s``.
        """
        raise ClusterError("these links are not looked at")

    @abc.abstractmethod
    def close(self) -> None:
        """Remove interfaces and rules after the processes have ended."""


class ProxyNetwork(Network):
    """A network on loopback, in which every link passes the proxy."""

    bind = HOST

    def __init__(self, folder: Path, record: Record) -> None:
        self._folder = folder
        self._record = record
        self._links: list[Link] = []
        self._proxy: ProxyProcess

    def host(self, name: str) -> str:
        return HOST

    def command(self, name: str, words: Sequence[str]) -> list[str]:
        return list(words)

    def dialled(self, dialler: str, acceptor: str, to: str) -> str:
        (port,) = free_ports(1)
        self._links.append(Link(dialler=dialler, acceptor=acceptor, listen=f"{HOST}:{port}", to=to))
        return self._links[-1].listen

    def members(self, bound: Mapping[str, str]) -> list[str]:
        identities = [f"{HOST}:{port}" for port in free_ports(len(bound))]
        names = dict(zip(identities, bound, strict=True))
        self._links += [
            Link(acceptor=name, listen=identity, to=bound[name], peek="raft", names=names)
            for identity, name in names.items()
        ]
        return identities

    def between(self, dialler: int, acceptor: int, ports: Sequence[int]) -> str:
        host = pair_host(dialler, acceptor)
        self._links += [
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
        self._proxy = network_process(self._links, self._folder, sys.executable, self._record)
        return [self._proxy.process]

    def cut(self, directions: Sequence[Direction]) -> int:
        return self._proxy.cut(directions)

    def heal(self) -> int:
        return self._proxy.heal()

    def delay(self, directions: Sequence[Direction], delay_ms: float, *, loss: float = 0.0) -> None:
        if loss:
            raise ClusterError("the proxy loses no packets; --links kernel does")
        self._proxy.delay(directions, delay_ms)

    def counts(self) -> list[Count]:
        return self._proxy.counts()

    def look(self, timeout_s: float) -> list[Passes]:
        return self._proxy.look(timeout_s)

    def close(self) -> None:
        """Do nothing, because the proxy's process has ended already."""
