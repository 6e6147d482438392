"""Tests of peers that pass the handshake but are not in the member's configuration.

On loopback without a secret, any process can pass the handshake. The member must accept the connection of
such a peer, because the peer may have been added to the group while this member was down. But the connection
must not harm the member.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
from collections.abc import Collection
from pathlib import Path

import pytest

from routekeeper.nameserver.raft.consensus.messages import Greeting, encode
from routekeeper.nameserver.raft.links.auth import NONCE_SIZE, Credentials, Handshake
from routekeeper.nameserver.raft.links.transport import OUTSIDERS_MAX, RAFT
from routekeeper.nameserver.raft.node.member import RaftMember
from routekeeper.nameserver.raft.storage.identity import State
from tests.nameserver.raft.cluster import Cluster, cluster_of
from tests.waiting import until


class Stranger:
    """The end of a link at a stranger. The test itself sends and reads its messages."""

    def __init__(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.name = name
        self.reader = reader
        self._writer = writer

    @classmethod
    async def link(cls, cluster: Cluster, name: str) -> Stranger:
        """Dial the first member and pass the handshake as ``name``.

        Raises:
            asyncio.IncompleteReadError: If the member refuses the connection.
        """
        member = cluster.peers[0]
        credentials = Credentials(
            me=name,
            members=frozenset((member,)),
            cluster=stored(cluster).cluster,
            secret=None,
        )
        host, _, port = member.rpartition(":")
        stranger = cls(name, *await asyncio.open_connection(host, int(port)))
        handshake = Handshake(credentials, peer=member, nonce=os.urandom(NONCE_SIZE))
        try:
            stranger.send(handshake.begin())
            proof = handshake.receive(await stranger.receive())
            assert proof is not None
            stranger.send(proof)
            handshake.receive(await stranger.receive())
        except BaseException:
            await stranger.close()
            raise
        return stranger

    def send(self, frame: bytes) -> None:
        self._writer.write(struct.pack(">I", len(frame)) + frame)

    async def receive(self) -> bytes:
        (size,) = struct.unpack(">I", await self.reader.readexactly(4))
        return await self.reader.readexactly(size)

    def greet(self, cluster: Cluster, *, election_timeout_ms: int = 300) -> None:
        name = stored(cluster).cluster
        hello = Greeting("instance", False, False, election_timeout_ms, {}, 0, name)
        self.send(bytes((RAFT,)) + encode(hello))

    async def ended(self) -> None:
        """Wait until the member has closed the link; fail after 3 s.

        A member closes any silent link after 4 s. So within 3 s, it must have closed this link for another
        reason.
        """
        async with asyncio.timeout(3):
            while await self.reader.read(65536):
                pass
        await self.close()

    async def close(self) -> None:
        self._writer.transport.abort()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


def only_member(cluster: Cluster) -> RaftMember:
    return cluster.up[cluster.peers[0]]


def stored(cluster: Cluster) -> State:
    return only_member(cluster)._storage.directory.state


def links(cluster: Cluster) -> Collection[str]:
    return only_member(cluster).transport._links


async def test_only_so_many_of_them_are_linked_at_once(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, size=1, secret=None) as cluster:
        await cluster.start()
        await cluster.elected()
        linked = [await Stranger.link(cluster, f"127.0.0.1:{n}") for n in range(1, OUTSIDERS_MAX + 1)]
        one_more = await Stranger.link(cluster, "127.0.0.1:999")
        await one_more.ended()
        await linked[0].close()
        await until(lambda: len(links(cluster)) < OUTSIDERS_MAX)
        linked[0] = await Stranger.link(cluster, "127.0.0.1:999")
        linked[0].greet(cluster)
        await linked[0].receive()
        for stranger in linked:
            await stranger.close()


@pytest.mark.parametrize("name", ["no address", "x:0\nfake line"], ids=ascii)
async def test_a_name_that_is_no_address_is_not_let_in(tmp_path: Path, name: str) -> None:
    async with cluster_of(tmp_path, size=1, secret=None) as cluster:
        await cluster.start()
        await cluster.elected()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await Stranger.link(cluster, name)


@pytest.mark.parametrize("timeout_ms", [29, 60_001])
async def test_an_election_timeout_that_no_member_may_have_ends_the_link(
    tmp_path: Path, timeout_ms: int
) -> None:
    """A member ends the link to a peer that announces an election timeout outside the permitted range.

    A member serves reads only if its last contact with a majority is younger than a limit. This limit follows
    from the smallest election timeout that peers announce. With a limit of 1 ms the member would answer no
    read, so it must refuse such an announcement.
    """
    async with cluster_of(tmp_path, size=1, secret=None) as cluster:
        await cluster.start()
        member = await cluster.elected()
        before = member.contact_limit
        stranger = await Stranger.link(cluster, "127.0.0.1:1")
        stranger.greet(cluster, election_timeout_ms=timeout_ms)
        await stranger.ended()
        assert member.contact_limit == before
