"""Tests of the code by which a member carries out its engine's effects, such as messages and stored votes.

The member carries out the effects in order. While it does this, it must not call the engine.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from routekeeper.nameserver.raft.consensus.messages import Stale
from routekeeper.nameserver.raft.node import member as node_member
from routekeeper.nameserver.raft.node.member import HELD_MAX, RaftMember
from tests.nameserver.raft.cluster import Cluster, cluster_of, run
from tests.nameserver.raft.test_member_disks import Still
from tests.waiting import until


@contextlib.asynccontextmanager
async def _stalled_vote(cluster: Cluster, disk: Still) -> AsyncIterator[tuple[RaftMember, RaftMember]]:
    """Start a cluster of two, and let the disk hang while the follower stores its vote.

    Yield the leader and the follower. At the end of the context, the disk works again.
    """
    await cluster.start()
    await cluster.put(b"one")
    await cluster.settled()
    leader = await cluster.elected()
    follower = next(member for member in cluster.up.values() if member is not leader)
    disk.moves.clear()
    try:
        assert leader.hand_over()
        await until(lambda: not follower.promises_kept)
        yield leader, follower
    finally:
        disk.moves.set()


@pytest.mark.slow
def test_a_link_behind_a_stalled_vote_is_dropped_on_the_next_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member ends a link if too many messages wait until the member's vote is stored.

    While the disk hangs, the messages wait in a queue. If the queue is full, the next message ends the link
    in the next turn of the event loop. The link must not end while the member carries out the engine's
    effects. The end of a link calls the engine, and this is not allowed at that time.
    """
    disk, performing = Still(), False
    ended: list[tuple[RaftMember, bool]] = []
    perform, link_down = RaftMember.perform, RaftMember.link_down

    def performed(member: RaftMember) -> None:
        nonlocal performing
        before, performing = performing, True
        try:
            perform(member)
        finally:
            performing = before

    def went_down(member: RaftMember, peer: str) -> None:
        ended.append((member, performing))
        link_down(member, peer)

    monkeypatch.setattr(RaftMember, "perform", performed)
    monkeypatch.setattr(RaftMember, "link_down", went_down)
    monkeypatch.setattr(node_member, "DISK", disk)

    async def scenario() -> None:
        async with cluster_of(tmp_path, size=2) as cluster:
            async with _stalled_vote(cluster, disk) as (leader, follower):
                assert all(follower.send(cluster.name(leader), b"x") for _ in range(HELD_MAX - 8))
                await until(lambda: any(member is follower for member, _ in ended))

            def appended() -> bool:  # False while leadership moves, because no leader appends entries then
                leads = cluster.leader
                return leads is not None and leads.append(b"two", term=leads.term) is not None

            await until(appended)  # the members are linked again
            wanted = [b"one", b"two"]
            await until(
                lambda: all(
                    [payload for _, payload in machine.applied] == wanted
                    for machine in cluster.machines.values()
                )
            )

    run(scenario)
    assert [amid for _, amid in ended if amid] == []


@pytest.mark.slow
async def test_bytes_that_wait_for_a_stalled_vote_are_bounded_like_those_of_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that wait until a vote is stored may use only a limited amount of memory.

    A limit on their number is not enough, because even a few messages can be very large.
    """
    disk, size = Still(), 1024 * 1024 - 1000
    ended: list[RaftMember] = []
    link_down = RaftMember.link_down

    def went_down(member: RaftMember, peer: str) -> None:
        ended.append(member)
        link_down(member, peer)

    monkeypatch.setattr(RaftMember, "link_down", went_down)
    monkeypatch.setattr(node_member, "DISK", disk)
    async with cluster_of(tmp_path, size=2) as cluster:
        async with _stalled_vote(cluster, disk) as (leader, follower):
            sent = [follower.send(cluster.name(leader), bytes(size)) for _ in range(40)]
            assert sent.count(True) in (15, 16)  # a few messages of the engine may wait, too
            assert sent.index(False) == sent.count(True), "a message was sent behind a refused one"
            assert ended == []
            # Above the limit for application messages, messages of the engine still wait in the queue. They
            # have a higher limit, BUFFER_MAX, which the test lowers.
            monkeypatch.setattr(node_member, "BUFFER_MAX", 16 * size + 100)
            for _ in range(50):
                follower.engine.effects.send(cluster.name(leader), Stale(follower.term))
                follower.perform()
            await until(lambda: follower in ended)
        await until(lambda: cluster.name(leader) in follower.linked)
        await cluster.elected()
        await until(lambda: follower.send(cluster.name(leader), bytes(size)))
        await until(lambda: len(cluster.messages) == 1)
