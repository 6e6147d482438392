"""Disks that are full, broken or stand still."""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from nameserver.raft.storage.identity import DataDirectory
from tests.nameserver.raft.cluster import cluster_of, run

#: A group of one in a process of its own, which its disk concerns as a whole. A scenario gets it as leader.
_ALONE = """
    import asyncio, json, os, resource, sys
    from pathlib import Path
    from nameserver.raft import RaftConfig, RaftMember

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


_FULL = """
    async def scenario(member):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
        last = None
        for _ in range(1000):
            last = member.append(bytes(1000), term=member.term)
        await until(lambda: member.status()["storage_stalled"] and not member.leads)
        assert member.append(b"x", term=member.term) is None
        assert member.applied_index < last
        durable = member.status()["durable_index"]
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        await until(lambda: member.leads and member.applied_index > last)
        print(json.dumps([durable, last, member.applied_index]))
"""


def test_a_full_disk_stops_acknowledging_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    done = _run_alone(_FULL, tmp_path)
    assert done.returncode == 0, done.stderr
    durable, last, applied = json.loads(done.stdout)
    assert durable < last < applied
    assert "journal full" in done.stderr
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 200_000


_BROKEN = """
    async def scenario(member):
        # The journal's descriptor now means a device on which every write fails.
        journal = member._driver._journal._file
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


def test_a_disk_that_stands_still_holds_votes_back_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    still = threading.Event()
    still.set()
    original = DataDirectory.vote_to_save

    def slow(directory: DataDirectory, term: int, vote: str | None) -> Callable[[], None]:
        write = original(directory, term, vote)

        def wait_and_write() -> None:
            assert threading.current_thread() is not threading.main_thread()
            assert still.wait(30)
            write()

        return wait_and_write

    async def scenario() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.start()
            monkeypatch.setattr(DataDirectory, "vote_to_save", slow)
            await cluster.put(b"one")
            await cluster.settled()
            leader = cluster.name(await cluster.elected())
            still.clear()
            await cluster.close(leader)
            loop = asyncio.get_running_loop()
            try:
                longest, end = 0.0, loop.time() + 2.0
                while loop.time() < end:
                    before = loop.time()
                    await asyncio.sleep(0.001)
                    longest = max(longest, loop.time() - before)
                assert longest < 1.0  # far below the time for which the disk stood still
                assert cluster.leader is None  # no vote was asked for or given
                assert all(member.applied_index > 0 for member in cluster.up.values())
            finally:
                still.set()
            await cluster.elected()
            await cluster.put(b"two")
            await cluster.settled()

    run(scenario)
