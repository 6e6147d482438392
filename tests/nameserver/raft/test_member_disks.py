"""Tests of members whose disks fail, hang or are full."""

from __future__ import annotations

import asyncio
import errno
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from routekeeper.nameserver.disk.files import File, Files
from routekeeper.nameserver.raft.node import member as node_member
from routekeeper.nameserver.raft.storage.identity import DataDirectory
from routekeeper.nameserver.raft.types import ChangeRefused, ChangeUnknown, NotLeader
from tests import standstill
from tests.nameserver.raft.cluster import cluster_of, in_seconds, run
from tests.waiting import until

#: A program that runs a group of one member in its own process, because a disk fault affects the whole
#: process. When the member leads the group, the program calls the scenario of the test with the member.
_ALONE = """
    import asyncio, os, sys
    from pathlib import Path
    from routekeeper.nameserver.raft.node.member import RaftMember
    from routekeeper.nameserver.raft.types import RaftConfig

    class Machine:
        def apply(self, payload, *, index, term, live): pass
        def snapshot(self): return lambda: b""
        def prepare(self, image): return lambda: None

    async def until(condition):
        async with asyncio.timeout(20):
            while not condition(): await asyncio.sleep(0.01)

    async def main(scenario):
        member = RaftMember(
            RaftConfig(me="a:0", peers=("a:0",), listen="127.0.0.1:0", data_dir=Path(sys.argv[1])),
            Machine(), on_peer_message=lambda s, d: None, on_change=lambda: None)
        await member.start()
        await until(lambda: member.leads)
        await scenario(member)
        await member.close()
"""


def _run_alone(scenario: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
    program = textwrap.dedent(_ALONE) + textwrap.dedent(scenario) + "\nasyncio.run(main(scenario))\n"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


_BROKEN = """
    async def scenario(member):
        # The journal's descriptor now means a device on which every write fails.
        journal = member._storage.journal._file.descriptor
        broken = os.open(sys.argv[2], os.O_RDONLY)
        os.dup2(broken, journal)
        member.append(b"x", term=member.term)
        await asyncio.sleep(10)
"""


def test_a_broken_journal_ends_the_process(tmp_path: Path) -> None:
    victim = tmp_path / "readonly"
    victim.write_bytes(b"")
    done = _run_alone(_BROKEN, tmp_path / "data", victim)
    assert done.returncode == 70, done.stderr
    assert "raft member stops" in done.stderr
    assert "Bad file descriptor" in done.stderr


_NO_VOTE_IS_STORED = """
    from routekeeper.nameserver.raft.storage.identity import DataDirectory

    def save_vote(directory, term, vote):
        raise MemoryError("planted")

    DataDirectory.save_vote = save_vote

    async def scenario(member): await asyncio.sleep(10)
"""
_NOBODY_DIALS = """
    from routekeeper.nameserver.raft.links.transport import Transport

    def dial_members(transport):
        raise RuntimeError("planted")

    Transport._dial_members = dial_members

    async def scenario(member): await asyncio.sleep(10)
"""


@pytest.mark.parametrize(
    ("scenario", "what"),
    [
        pytest.param(_NO_VOTE_IS_STORED, "storage failed: MemoryError('planted')", id="storage"),
        pytest.param(_NOBODY_DIALS, "dialling failed: ", id="dialling"),
    ],
)
def test_a_task_that_dies_ends_the_process_and_says_why(tmp_path: Path, scenario: str, what: str) -> None:
    """If a task of a member fails, the process must end and log the reason.

    Otherwise, the process would continue to run, but would no longer do a part of its work, such as voting.
    """
    done = _run_alone(scenario, tmp_path)
    assert done.returncode == 70, done.stderr
    assert what in done.stderr


@pytest.mark.slow
def test_a_member_ends_at_once_though_there_is_no_room_for_its_vote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(directory: DataDirectory, term: int, vote: str | None) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def scenario() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.start()
            await cluster.put(b"one")
            await cluster.settled()
            leader = cluster.name(await cluster.elected())
            monkeypatch.setattr(DataDirectory, "save_vote", full)
            await cluster.close(leader)
            await until(lambda: "no room for term, vote or standing" in caplog.text)
            for name in list(cluster.up):
                async with asyncio.timeout(node_member.CLOSE_S / 2):
                    await cluster.close(name)

    run(scenario)
    assert "storage does not answer" not in caplog.text


@pytest.mark.slow
async def test_a_disk_that_stands_still_holds_votes_back_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    still = threading.Event()
    still.set()
    original = DataDirectory.save_vote

    def slow(directory: DataDirectory, term: int, vote: str | None) -> None:
        assert threading.current_thread() is not threading.main_thread()
        assert still.wait(30)
        original(directory, term, vote)

    async with cluster_of(tmp_path) as cluster:
        await cluster.start()
        monkeypatch.setattr(DataDirectory, "save_vote", slow)
        await cluster.put(b"one")
        await cluster.settled()
        leader = cluster.name(await cluster.elected())
        still.clear()
        await cluster.close(leader)
        loop = asyncio.get_running_loop()
        try:
            longest, end = 0.0, loop.time() + 2.0
            standstill.begin()
            while loop.time() < end:
                before = time.monotonic()
                await asyncio.sleep(0.001)
                if time.monotonic() - before > 0.1:
                    longest = max(longest, standstill.elapsed(before))
            assert longest < 1.0  # much less than the 2 s for which the disk hung
            assert cluster.leader is None  # no member asked for votes or voted
            assert all(member.applied_index > 0 for member in cluster.up.values())
        finally:
            still.set()
        await cluster.elected()
        await cluster.put(b"two")
        await cluster.settled()


class Still(Files):
    """A disk that hangs in every call while ``moves`` is cleared.

    It records the calls that the event loop makes while the disk hangs.
    """

    def __init__(self) -> None:
        self.moves = threading.Event()
        self.moves.set()
        self.on_the_loop: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in ("moves", "on_the_loop") or name.startswith("_"):
            return found
        self._wait(name)
        return found

    def _wait(self, what: str) -> None:
        if threading.current_thread() is threading.main_thread() and not self.moves.is_set():
            self.on_the_loop.append(what)
        elif not self.moves.wait(30):
            raise AssertionError(what)

    def open(self, path: Path, *, write: bool = False, new: bool = False, durable: bool = False) -> File:
        return cast(File, _StillFile(self, super().open(path, write=write, new=new, durable=durable)))


class _StillFile:
    def __init__(self, disk: Still, file: File) -> None:
        self._disk, self._file = disk, file

    def __getattr__(self, name: str) -> Any:
        self._disk._wait(name)
        return getattr(self._file, name)


@pytest.mark.slow
def test_a_disk_that_stands_still_holds_up_no_change_of_the_group_on_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the disk hangs, other threads may wait for it, but the event loop must not wait.

    The test creates and removes snapshots, reads their dates and the member's status, and adds a member.
    """
    disk = Still()
    monkeypatch.setattr(node_member, "DISK", disk)

    async def scenario() -> None:
        async with cluster_of(tmp_path, compact_bytes=2_000) as cluster:
            await cluster.start()
            await cluster.put(*(bytes(100) for _ in range(100)))
            await cluster.settled()
            leader = await cluster.elected()
            disk.moves.clear()
            try:
                for member in cluster.up.values():
                    standing = member.engine.shared.standing
                    member.engine.shared.become(replace(standing, founders={**standing.founders, "d:1": "i"}))
                    member.images.read_image(int(str(leader.status()["snapshot_index"])), 0, 100)
                    member.images.age()
                    member.images.image()
                    member.engine.images.save()
                    member.perform()
                adding = asyncio.ensure_future(
                    leader.changes.add_member("127.0.0.1:1", deadline=in_seconds(0.5))
                )
                await asyncio.wait([adding])
                assert isinstance(adding.exception(), ChangeUnknown | NotLeader | ChangeRefused)
            finally:
                disk.moves.set()
            await cluster.elected()

    run(scenario)
    assert disk.on_the_loop == []


_STANDS_STILL = """
    import signal, threading
    from routekeeper.nameserver.raft.node import member as node_member
    from routekeeper.nameserver.disk.files import Files

    class Still(Files):
        moves = True
        def open(self, *arguments, **named):
            file = super().open(*arguments, **named)
            write, sync = type(file).write_at, type(file).sync
            class Waits(type(file)):
                __slots__ = ()
                def write_at(self, *arguments): return Still.wait() or write(self, *arguments)
                def sync(self): return Still.wait() or sync(self)
            return Waits(file.descriptor)
        @staticmethod
        def wait():
            if not Still.moves: threading.Event().wait()

    node_member.DISK = Still()

    async def scenario(member):
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        await until(lambda: not member._background)
        Still.moves = False
        if UNDER_WAY: member.append(b"x", term=member.term)
        os.kill(os.getpid(), signal.SIGTERM)
        await stopped.wait()
"""


@pytest.mark.slow
@pytest.mark.parametrize("under_way", [True, False], ids=["a write is under way", "what it closes"])
def test_a_member_ends_though_its_disk_stands_still(tmp_path: Path, under_way: bool) -> None:
    before = time.monotonic()
    done = _run_alone(_STANDS_STILL.replace("UNDER_WAY", str(under_way)), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "storage does not answer" in done.stderr
    assert time.monotonic() - before < 30
