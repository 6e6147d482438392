"""Three real processes, killed and paused: nothing acknowledged is lost, somebody leads again soon."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import free_addresses

pytestmark = [pytest.mark.faults, pytest.mark.one_core]

_MEMBER = """
    import asyncio, json, sys
    from pathlib import Path
    import msgspec, uvloop
    from routekeeper.nameserver.raft.node.member import RaftMember
    from routekeeper.nameserver.raft.types import RaftConfig

    me, peers, data, durability = sys.argv[1], tuple(sys.argv[2].split(",")), Path(sys.argv[3]), sys.argv[4]

    class Machine:
        def __init__(self):
            self.applied, self.waiting = [], {}
        def apply(self, payload, *, index, term, live):
            self.applied.append(payload.decode())
            wanted = self.waiting.pop(index, None)
            if wanted is not None:
                print(json.dumps(["ack" if wanted == payload else "lost", wanted.decode()]), flush=True)
        def snapshot(self):
            copy = list(self.applied)
            return lambda: msgspec.msgpack.encode(copy)
        def prepare(self, image):
            applied = msgspec.msgpack.decode(image)
            return lambda: setattr(self, "applied", applied)

    async def main():
        machine, told = Machine(), [None]
        def changed():
            state = [member.leads, member.term]
            if state != told[0]:
                told[0] = state
                print(json.dumps(["state", *state]), flush=True)
        member = RaftMember(
            RaftConfig(me=me, peers=peers, listen=None, data_dir=data, durability=durability,
                       compact_bytes=50_000),
            machine, on_peer_message=lambda s, d: None, on_change=changed)
        await member.start()
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := (await reader.readline()).decode().split():
            match line:
                case ["put", payload]:
                    index = member.append(payload.encode(), term=member.term) if member.leads else None
                    if index is None:
                        print(json.dumps(["no", payload]), flush=True)
                    else:
                        machine.waiting[index] = payload.encode()
                case ["dump"]:
                    print(json.dumps(["dump", member.applied_index, member.status()["commit_index"],
                                      machine.applied]), flush=True)
        await member.close()

    uvloop.run(main())
"""


class Process:
    """One member in its own process; its lines are read without blocking."""

    def __init__(self, name: str, peers: str, data: Path, durability: str, log: Path) -> None:
        self.name = name
        with open(log, "ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(_MEMBER), name, peers, str(data), durability],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self._rest = b""
        self.leads = False
        self.acknowledged: list[str] = []
        self.dump: tuple[int, int, list[str]] | None = None

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()

    def read(self) -> None:
        assert self.process.stdout is not None
        chunk = self.process.stdout.read()
        *lines, self._rest = (self._rest + (chunk or b"")).split(b"\n")
        for line in lines:
            match json.loads(line):
                case ["state", bool(leads), int()]:
                    self.leads = leads
                case ["ack", str(payload)]:
                    self.acknowledged.append(payload)
                case ["dump", int(applied), int(commit), list(items)]:
                    self.dump = (applied, commit, items)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)

    def reap(self) -> None:
        self.process.wait(20)
        self.read()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class Cluster:
    def __init__(self, root: Path, durability: str) -> None:
        self.names = free_addresses(3)
        self.root, self.durability = root, durability
        self.up: dict[str, Process] = {}
        self.acknowledged: list[str] = []
        self.sent = 0

    def start(self, *names: str) -> None:
        for name in names or self.names:
            data = self.root / name.rpartition(":")[2]
            log = self.root / f"{data.name}.log"
            self.up[name] = Process(name, ",".join(self.names), data, self.durability, log)

    def read(self) -> None:
        for process in self.up.values():
            process.read()
            self.acknowledged += process.acknowledged
            process.acknowledged.clear()

    @property
    def leaders(self) -> list[Process]:
        return [process for process in self.up.values() if process.leads]

    def load(self, seconds: float, *, until_acknowledged: bool = False) -> float:
        """Put at every member that leads; return the seconds until the first acknowledgement."""
        begun = time.monotonic()
        before = len(self.acknowledged)
        first = float("inf")
        while time.monotonic() - begun < seconds:
            for process in self.leaders:
                self.sent += 1
                process.say(f"put {self.sent}")
            time.sleep(0.002)
            self.read()
            if len(self.acknowledged) > before and first == float("inf"):
                first = time.monotonic() - begun
                if until_acknowledged:
                    break
        return first

    def kill(self, *names: str) -> None:
        for name in names:
            self.up[name].kill()
        for name in names:
            process = self.up.pop(name)
            process.reap()
            self.acknowledged += process.acknowledged

    def check(self) -> None:
        """All members equal, everything acknowledged there, once."""
        deadline = time.monotonic() + 20
        while True:
            before = len(self.acknowledged)  # what comes after the dumps is not in them
            for process in self.up.values():
                process.dump = None
                process.say("dump")
            while any(process.dump is None for process in self.up.values()):
                assert time.monotonic() < deadline, "no answer"
                time.sleep(0.01)
                self.read()
            dumps = [process.dump for process in self.up.values() if process.dump is not None]
            equal = len(self.leaders) == 1 and all(dump == dumps[0] for dump in dumps)
            if equal and len(self.acknowledged) == before:
                break
            assert time.monotonic() < deadline, [dump[:2] for dump in dumps]
            time.sleep(0.05)
        items = dumps[0][2]
        assert len(set(items)) == len(items)
        assert not set(self.acknowledged) - set(items)
        assert len(self.acknowledged) > 20

    def close(self) -> None:
        for process in self.up.values():
            process.process.send_signal(signal.SIGCONT)
            process.kill()
        for process in self.up.values():
            process.reap()


@pytest.fixture(params=["journal", "fsync"])
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    made = Cluster(tmp_path, request.param)
    made.start()
    try:
        made.load(20, until_acknowledged=True)
        yield made
    finally:
        made.close()


def _leader(cluster: Cluster) -> str:
    cluster.load(20, until_acknowledged=True)
    return cluster.leaders[-1].name


def test_killed_leaders_lose_nothing_and_are_replaced_quickly(cluster: Cluster) -> None:
    took = []
    for _ in range(10):
        cluster.load(0.3)
        name = _leader(cluster)
        cluster.kill(name)
        took.append(cluster.load(20, until_acknowledged=True))
        cluster.start(name)
    cluster.load(0.3)
    cluster.check()
    took.sort()
    print("recovery_s", [round(seconds, 3) for seconds in took])
    assert took[len(took) // 2] < 2.0  # no second election; 0.1 s where nothing else runs


def test_all_killed_at_once_lose_nothing(cluster: Cluster) -> None:
    for _ in range(8):
        cluster.load(0.4)
        cluster.kill(*list(cluster.up))
        cluster.start()
        assert cluster.load(20, until_acknowledged=True) < 20
    cluster.check()


def test_a_paused_leader_is_replaced_and_accepts_nothing_when_it_wakes(cluster: Cluster) -> None:
    for _ in range(2):
        cluster.load(0.3)
        name = _leader(cluster)
        paused = cluster.up[name]
        paused.process.send_signal(signal.SIGSTOP)
        del cluster.up[name]
        begun = time.monotonic()
        assert cluster.load(20, until_acknowledged=True) < 5.0
        cluster.load(max(0.0, 3.0 - (time.monotonic() - begun)))
        cluster.up[name] = paused
        paused.process.send_signal(signal.SIGCONT)
        cluster.load(1.0)
    cluster.check()
