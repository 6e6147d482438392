"""Members in their own network namespaces, where the kernel can cut links like a broken switch or cable.

Each member has two interfaces. One is on a bridge that only the raft links use. The other one is on a bridge
of the test, so that the test can reach a member whose raft links are cut. This module needs root and
iproute2.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from routekeeper.bench.iproute import claimed_subnet, inside, ip, new_tag, remove
from routekeeper.bench.kernel import missing
from routekeeper.bench.namespaces import network

from .cluster import Cluster, Member, running

_WIRE_PORT, _HTTP_PORT, _RAFT_PORT = 9876, 9880, 9890
_BRIDGES: Final = ("raft", "test")
"""Names of the bridges. Each member has one interface for each bridge, with the bridge's name."""


@dataclass(frozen=True, kw_only=True)
class Namespaces:
    """The network of a test: two bridges, and one namespace for each member, by the member's number.

    Attributes:
        tag: Prefix of all names. The interface that connects the test to its bridge also has this name.
    """

    tag: str
    subnet: int
    size: int

    @property
    def hub(self) -> str:
        return f"{self.tag}-hub"

    def name(self, number: int) -> str:
        return f"{self.tag}-{number}"

    def raft_host(self, number: int) -> str:
        return f"198.19.{self.subnet + 1}.{number + 2}"

    def test_host(self, number: int) -> str:
        return f"198.19.{self.subnet}.{number + 2}"

    # -- faults

    def port_down(self, number: int) -> None:
        """Take down a member's port at the raft bridge, so that the member's interface loses its carrier."""
        ip(f"link set raft-{number} down", space=self.hub)

    def drop(self, sender: int, receiver: int) -> None:
        """Drop all packets from one member to another, including TCP acknowledgements."""
        ip(f"route add blackhole {self.raft_host(receiver)}/32", space=self.name(sender))

    def heal(self) -> None:
        ip(*(f"link set raft-{number} up" for number in range(self.size)), space=self.hub)
        for number in range(self.size):
            ip("route flush type blackhole", space=self.name(number))


def _made(tag: str, size: int) -> Namespaces:
    hub, host = f"{tag}-hub", "test-host"
    ip(
        f"netns add {hub}",
        f"link add {tag} type veth peer name {host} netns {hub}",
        f"link set {tag} up",
    )
    spaces = Namespaces(tag=tag, subnet=claimed_subnet(tag), size=size)
    ports = [(bridge, number) for bridge in _BRIDGES for number in range(size)]
    own = f"198.19.{spaces.subnet}.1"
    ip(
        *(f"netns add {spaces.name(number)}" for number in range(size)),
        *(
            f"link add {bridge}-{number} netns {hub} type veth peer name {bridge} netns {spaces.name(number)}"
            for bridge, number in ports
        ),
        f"address add {own}/32 dev {tag}",
        f"route replace {network(spaces.subnet)} dev {tag} src {own}",
    )
    ip(
        *(f"link add {bridge} type bridge" for bridge in _BRIDGES),
        *(f"link set {bridge} up" for bridge in _BRIDGES),
        f"link set {host} master test up",
        *(f"link set {bridge}-{number} master {bridge} up" for bridge, number in ports),
        # Isolate the members' ports at the test's bridge from each other. Through this bridge, members then
        # reach only the test.
        *(f"link set test-{number} type bridge_slave isolated on" for number in range(size)),
        space=hub,
    )
    for number in range(size):
        ip(
            "link set lo up",
            f"address add {spaces.raft_host(number)}/24 dev raft",
            f"address add {spaces.test_host(number)}/24 dev test",
            *(f"link set {bridge} up" for bridge in _BRIDGES),
            space=spaces.name(number),
        )
    return spaces


@contextmanager
def running_in_namespaces(root: Path, *, size: int = 3) -> Iterator[tuple[Cluster, Namespaces]]:
    """Start members in network namespaces, and skip the test if the user may not create namespaces."""
    lacking = missing()
    if lacking is not None:
        pytest.skip(f"links cut by the kernel need {lacking}")
    tag = new_tag()
    try:
        spaces = _made(tag, size)
        secret = root / "secret"
        secret.write_bytes(os.urandom(32).hex().encode())
        rafts = [f"{spaces.raft_host(number)}:{_RAFT_PORT}" for number in range(size)]
        members = [
            Member(
                number=number,
                root=root,
                raft=rafts[number],
                peers=",".join(rafts),
                listen=f"{spaces.test_host(number)}:{_WIRE_PORT}",
                http=f"{spaces.test_host(number)}:{_HTTP_PORT}",
                data=root / f"data{number}",
                arguments=("--raft-secret-file", str(secret)),
                prefix=tuple(inside(spaces.name(number), [])),
            )
            for number in range(size)
        ]
        with running(members) as cluster:
            yield cluster, spaces
    finally:
        remove(tag)
