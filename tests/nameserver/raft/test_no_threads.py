"""Raft members continue to run if the system cannot start another thread.

When threads can be started again, the members do the work that had to wait.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from routekeeper.nameserver.raft.consensus import images
from routekeeper.nameserver.raft.node import images as node_images
from routekeeper.nameserver.raft.node.member import RaftMember
from routekeeper.nameserver.raft.types import ChangeRefused, Role
from routekeeper.remoting.threads import NoFreeThread
from tests.nameserver.raft.cluster import Cluster, cluster_of, in_seconds, run
from tests.waiting import until

WHY = "no thread can be started: can't start new thread"


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return a set to which a test adds prefixes of thread names.

    Afterwards, no thread whose name has such a prefix can be started.
    """
    names: set[str] = set()
    start = threading.Thread.start

    def start_or_refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(tuple(names)):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_refuse)
    return names


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[logging.LogRecord]]:
    """Return a function that finds the warnings and errors whose texts begin with its argument."""

    def find(event: str) -> list[logging.LogRecord]:
        found = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert not any(record.exc_info for record in found), "one line tells it all"
        return [record for record in found if record.getMessage().startswith(event)]

    return find


def snapshot_index(member: RaftMember) -> int:
    return int(str(member.status()["snapshot_index"]))


async def saved(member: RaftMember) -> bytes:
    found = await member.changes.save_snapshot(deadline=in_seconds(20))
    return found.path.read_bytes()


@pytest.mark.parametrize("name", ["raft snapshots", "raft images"])
def test_a_snapshot_is_made_once_a_thread_can_be_started(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: set[str],
    lines: Callable[[str], list[logging.LogRecord]],
    name: str,
) -> None:
    monkeypatch.setattr(images, "SNAPSHOT_RETRY_S", (0.2, 0.2))

    async def scenario() -> None:
        async with cluster_of(tmp_path, 1, compact_bytes=5_000) as cluster:
            refused.update((name, "asyncio"))
            await cluster.start()
            await cluster.put(*(bytes(100) for _ in range(100)))
            member = await cluster.elected()
            await until(lambda: lines("snapshot failed"))
            assert WHY in lines("snapshot failed")[0].getMessage()
            await cluster.put(b"still works")
            assert snapshot_index(member) <= 1
            refused.clear()
            await until(lambda: snapshot_index(member) > 1)

    run(scenario)


async def with_a_member_without_data(cluster: Cluster) -> str:
    """Return a member that does not run and whose disk is empty.

    It will need the leader's snapshot, because the leader's log contains only entries after this snapshot.
    """
    await cluster.start()
    leader = await cluster.elected()
    await cluster.put(*(bytes(100_000) for _ in range(30)))
    await saved(leader)
    await until(lambda: leader.engine.shared.log.base_index > 1)
    away = next(name for name in cluster.peers if cluster.up[name] is not leader)
    await cluster.close(away)
    directory = cluster.config(away).data_dir
    directory.rename(directory.with_name("old"))
    return away


@pytest.mark.slow
@pytest.mark.parametrize("name", ["raft snapshots", "raft images"])
def test_a_member_takes_the_leaders_snapshot_once_a_thread_can_be_started(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: set[str],
    lines: Callable[[str], list[logging.LogRecord]],
    name: str,
) -> None:
    monkeypatch.setattr(images, "INSTALL_RETRY_S", (0.2, 0.2))

    async def scenario() -> None:
        async with cluster_of(tmp_path) as cluster:
            away = await with_a_member_without_data(cluster)
            refused.add(name)  # the other members have started these threads already
            await cluster.start(away)
            await until(lambda: lines("snapshot not installed"))
            assert WHY in lines("snapshot not installed")[0].getMessage()
            assert cluster.machines[away].applied == []
            assert cluster.up[away].role is Role.LEARNER
            await cluster.put(b"still works")
            refused.clear()
            await until(lambda: cluster.up[away].role is Role.FOLLOWER)
            await cluster.settled()

    run(scenario)


@pytest.mark.slow
def test_a_leader_that_cannot_read_its_snapshot_now_goes_on_and_sends_it_later(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: set[str],
    lines: Callable[[str], list[logging.LogRecord]],
) -> None:
    monkeypatch.setattr(node_images, "THREAD_RETRY_S", 0.05)

    async def scenario() -> None:
        async with cluster_of(tmp_path) as cluster:
            away = await with_a_member_without_data(cluster)
            await cluster.settled()
            others = [name for name in cluster.peers if name != away]
            for name in others:
                await cluster.up[name].changes.save_snapshot(deadline=in_seconds(20))
            for name in others:
                await cluster.close(name)
            refused.add("raft images")
            await cluster.start(*others)
            await cluster.put(b"one")
            leader = await cluster.elected()
            index = snapshot_index(leader)
            await cluster.start(away)
            await until(lambda: lines("snapshot not read yet"))
            await cluster.put(b"still works")
            assert leader.leads
            refused.clear()
            await until(lambda: cluster.up[away].role is Role.FOLLOWER)
            await cluster.settled()
            (line,) = lines("snapshot not read")
            assert line.getMessage() == f"snapshot not read yet index={index} error={WHY}"
            assert leader.status()["snapshot_failures"] == 0, "no attempt to replace the good snapshot"
            assert snapshot_index(leader) == index

    run(scenario)


@pytest.mark.parametrize("name", ["raft snapshots", "raft images"])
def test_a_restore_is_refused_while_no_thread_can_be_started(
    tmp_path: Path,
    refused: set[str],
    lines: Callable[[str], list[logging.LogRecord]],
    name: str,
) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path, 1) as cluster:
            await cluster.start()
            await cluster.put(b"one")
            raw = await saved(await cluster.elected())
            await cluster.put(b"two")
            (me,) = cluster.peers
            await cluster.close(me)
            await cluster.start(me)  # the restarted member has no threads yet
            member = await cluster.elected()
            refused.update((name, "asyncio"))
            with pytest.raises(ChangeRefused, match=f"{WHY}; ask again"):
                await member.changes.restore_snapshot(raw, deadline=in_seconds(20))
            await cluster.put(b"three")
            assert cluster.payloads() == [b"one", b"two", b"three"]
            refused.clear()
            await member.changes.restore_snapshot(raw, deadline=in_seconds(20))
            assert cluster.payloads() == [b"one"]
        assert len(lines("snapshot")) == len(lines("snapshot restored")) == 1

    run(scenario)


def test_a_snapshot_that_cannot_be_read_back_now_is_refused(tmp_path: Path, refused: set[str]) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path, 1) as cluster:
            await cluster.start()
            await cluster.put(b"one")
            await saved(await cluster.elected())
            (me,) = cluster.peers
            await cluster.close(me)
            refused.add("raft images")
            await cluster.start(me)
            member = await cluster.elected()
            with pytest.raises(ChangeRefused, match=WHY):
                await member.changes.save_snapshot(deadline=in_seconds(20))
            await cluster.put(b"two")
            refused.clear()
            await saved(member)

    run(scenario)


def test_a_member_votes_while_no_thread_can_be_started(
    tmp_path: Path, refused: set[str], lines: Callable[[str], list[logging.LogRecord]]
) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path, 1) as cluster:
            refused.add("raft promises")
            await cluster.start()
            await cluster.put(b"one")
            (me,) = cluster.peers
            term = cluster.up[me].term
            await cluster.close(me)
            await cluster.start(me)
            await cluster.put(b"two")
            assert cluster.up[me].term > term, "the vote was stored"
            assert cluster.payloads() == [b"one", b"two"]
        logged = [line.getMessage() for line in lines("no thread")]
        once = "no thread can be started: the event loop stores the votes error=can't start new thread"
        assert logged == [once, once], "once in each run of the member"

    run(scenario)


def test_a_member_ends_cleanly_while_no_thread_can_be_started(
    tmp_path: Path, refused: set[str], lines: Callable[[str], list[logging.LogRecord]]
) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path, 1) as cluster:
            await cluster.start()
            await cluster.put(b"one")
            (me,) = cluster.peers
            refused.add("raft close")
            await cluster.close(me)
            await cluster.start(me)
            await cluster.put(b"two")
            assert cluster.payloads() == [b"one", b"two"]
        assert not lines("")

    run(scenario)


def test_a_start_without_a_thread_for_the_journal_is_refused_with_one_line(
    tmp_path: Path, refused: set[str]
) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path, 1) as cluster:
            refused.add("raft")
            with pytest.raises(NoFreeThread, match=r"can't start new thread; the limits .* more threads$"):
                await cluster.start()
            refused.clear()
            await cluster.start()
            await cluster.put(b"works")

    run(scenario)
