"""Members in network namespaces of their own: links are cut by the kernel, as a switch or a cable would.

Each member has two interfaces: one on a bridge, which only the raft links use, and one to the test, so that
what a cut-off member says can be heard. Needs root and iproute2.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from .cluster import Cluster, Member, running

_WIRE_PORT, _HTTP_PORT, _RAFT_PORT = 9876, 9880, 9890


def ip(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=check, timeout=20)


@dataclass
class Namespaces:
    """The bridge, and one namespace a member; members are known by number."""

    tag: int
    size: int

    @property
    def hub(self) -> str:
        return f"rkhub{self.tag}"

    def name(self, number: int) -> str:
        return f"rkns{self.tag}-{number}"

    def raft_host(self, number: int) -> str:
        return f"198.19.{self.tag}.{number + 1}"

    def test_host(self, number: int) -> str:
        return f"198.18.{self.tag}.{4 * number + 2}"

    def create(self) -> None:
        ip("netns", "add", self.hub)
        ip("-n", self.hub, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.hub, "link", "set", "bridge", "up")
        for number in range(self.size):
            name, port, line = self.name(number), f"port{number}", f"rk{self.tag}-{number}"
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
            ip("link", "add", port, "netns", self.hub, "type", "veth", "peer", "name", "raft", "netns", name)
            ip("-n", self.hub, "link", "set", port, "master", "bridge", "up")
            ip("-n", name, "address", "add", f"{self.raft_host(number)}/24", "dev", "raft")
            ip("-n", name, "link", "set", "raft", "up")
            ip("link", "add", line, "type", "veth", "peer", "name", "test", "netns", name)
            ip("address", "add", f"198.18.{self.tag}.{4 * number + 1}/30", "dev", line)
            ip("link", "set", line, "up")
            ip("-n", name, "address", "add", f"{self.test_host(number)}/30", "dev", "test")
            ip("-n", name, "link", "set", "test", "up")

    def delete(self) -> None:
        for number in range(self.size):
            ip("link", "del", f"rk{self.tag}-{number}", check=False)
            ip("netns", "del", self.name(number), check=False)
        ip("netns", "del", self.hub, check=False)

    # -- faults

    def port_down(self, number: int) -> None:
        """The switch loses one member: it sees no carrier."""
        ip("-n", self.hub, "link", "set", f"port{number}", "down")

    def drop(self, sender: int, receiver: int) -> None:
        """Nothing passes from one member to another, acknowledgements neither."""
        ip("-n", self.name(sender), "route", "add", "blackhole", f"{self.raft_host(receiver)}/32")

    def heal(self) -> None:
        for number in range(self.size):
            ip("-n", self.hub, "link", "set", f"port{number}", "up")
            ip("-n", self.name(number), "route", "flush", "type", "blackhole")


@contextmanager
def running_in_namespaces(root: Path, *, size: int = 3) -> Iterator[tuple[Cluster, Namespaces]]:
    """Start members in namespaces; skip the test where there is no right to make these."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if shutil.which("ip") is None:
        pytest.skip("network namespaces need iproute2 (ip)")
    spaces = Namespaces(tag=random.randrange(1, 255), size=size)
    try:
        try:
            spaces.create()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
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
                prefix=("ip", "netns", "exec", spaces.name(number)),
            )
            for number in range(size)
        ]
        with running(members) as cluster:
            yield cluster, spaces
    finally:
        spaces.delete()
