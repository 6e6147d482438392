"""Whole members on one event loop: real sockets on loopback, real files, real threads."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import resource
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop
from pysyncobj.pipe_notifier import PipeNotifier
from pysyncobj.serializer import Serializer

from nameserver.raft import (
    ChangeRefused,
    ChangeUnknown,
    Durability,
    NotLeader,
    RaftConfig,
    RaftMember,
    RaftStartError,
    Role,
    StopMember,
    driver,
)
from nameserver.raft.datadir import DataDirectory
from nameserver.raft.journal import Journal, Replay
from nameserver.raft.transport import Transport
from tests.ports import free_ports

SECRET = b"a secret of some length"


class Machine:
    def __init__(self) -> None:
        self.applied: list[tuple[int, bytes]] = []
        self.replayed = 0
        self.member: RaftMember | None = None

    def apply(self, payload: bytes, *, index: int, term: int, live: bool) -> None:
        self.applied.append((index, payload))
        self.replayed += not live

    def snapshot(self) -> Callable[[], bytes]:
        copy = list(self.applied)
        return lambda: msgspec.msgpack.encode(copy)

    def prepare(self, image: bytes | bytearray) -> Callable[[], None]:
        applied = msgspec.msgpack.decode(image, type=list[tuple[int, bytes]])
        return lambda: setattr(self, "applied", applied)


async def _until(condition: Callable[[], bool], seconds: float = 25.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the test has no event to wait for
            await asyncio.sleep(0.002)


def in_seconds(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


class Cluster:
    """Members that share a loop; each can be closed and started again."""

    def __init__(self, root: Path, size: int, **settings: Any) -> None:
        self.peers = tuple(f"127.0.0.1:{port}" for port in free_ports(size))
        self.root = root
        self.settings = settings
        self.up: dict[str, RaftMember] = {}
        self.machines: dict[str, Machine] = {}
        self.messages: list[tuple[str, str, bytes]] = []
        self.changes = 0
        self.fatal: list[str] = []
        self.removed: list[tuple[str, str]] = []

    def config(self, me: str, **changes: Any) -> RaftConfig:
        settings: dict[str, Any] = {
            "durability": "journal",
            "secret": SECRET,
            "peers": self.peers,
            **self.settings,
            **changes,
        }
        name = me.rpartition(":")[2]
        return RaftConfig(me=me, listen=None, data_dir=self.root / name, **settings)

    async def start(self, *names: str, **changes: Any) -> None:
        for name in names or self.peers:
            machine = Machine()
            member = RaftMember(
                self.config(name, **changes),
                machine,
                on_peer_message=lambda sender, data, name=name: self.messages.append((name, sender, data)),  # type: ignore[misc]
                on_change=self._changed,
                on_fatal=self.fatal.append,
                on_removed=lambda line, name=name: self.removed.append((name, line)),  # type: ignore[misc]
            )
            await member.start()
            self.up[name], self.machines[name] = member, machine

    async def join(self, name: str) -> None:
        """Start a newcomer with an empty disk and have the leader add it."""
        shutil.rmtree(self.config(name).data_dir, ignore_errors=True)
        leader = await self.elected()
        await self.start(name, peers=tuple(sorted({*leader.members, name})))
        await leader.add_member(name, deadline=in_seconds(20))
        await _until(lambda: all(name in self.up[member].voters for member in leader.members))

    def _changed(self) -> None:
        self.changes += 1

    async def close(self, name: str, *, handover: bool = False) -> None:
        await self.up.pop(name).close(handover=handover)

    @property
    def leader(self) -> RaftMember | None:
        return next((member for member in self.up.values() if member.leads), None)

    async def elected(self) -> RaftMember:
        await _until(lambda: self.leader is not None)
        leader = self.leader
        assert leader is not None
        return leader

    def name(self, member: RaftMember) -> str:
        return next(name for name, other in self.up.items() if other is member)

    async def put(self, *payloads: bytes) -> None:
        """Append and wait until the leader has applied the last."""
        leader = await self.elected()
        indexes = [leader.append(payload, term=leader.term) for payload in payloads]
        last = indexes[-1]
        assert last is not None
        await _until(lambda: leader.applied_index >= last)

    async def settled(self) -> None:
        leader = await self.elected()
        await _until(lambda: all(m.applied_index == leader.commit_index for m in self.up.values()))
        states = [self.machines[name].applied for name in self.up]
        assert all(state == states[0] for state in states)

    def payloads(self) -> list[bytes]:
        name = next(iter(self.up))
        return [payload for _, payload in self.machines[name].applied]


@contextlib.asynccontextmanager
async def _cluster(root: Path, size: int = 3, **settings: Any) -> AsyncIterator[Cluster]:
    cluster = Cluster(root, size, **settings)
    try:
        yield cluster
    finally:
        for name in list(cluster.up):
            await cluster.close(name)
    assert not cluster.fatal


def _run(scenario: Callable[[], Awaitable[None]], *, uv: bool = False) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scenario()

    if uv:
        uvloop.run(bounded())
    else:
        asyncio.run(bounded())


@pytest.mark.parametrize("durability", ["memory", "journal", "fsync"])
@pytest.mark.parametrize("uv", [False, True], ids=["asyncio", "uvloop"])
def test_three_members_replicate_and_one_catches_up(tmp_path: Path, durability: Durability, uv: bool) -> None:
    async def scenario() -> None:
        async with _cluster(tmp_path, durability=durability) as cluster:
            await cluster.start()
            await cluster.put(*(b"%d" % i for i in range(100)))
            await cluster.settled()
            leader = await cluster.elected()
            follower = next(name for name in cluster.peers if cluster.up[name] is not leader)
            await cluster.close(follower)
            await cluster.put(*(b"%d" % i for i in range(100, 150)))
            await cluster.start(follower)
            assert (cluster.up[follower].role is Role.LEARNER) == (durability == "memory")
            await _until(lambda: cluster.up[follower].role is Role.FOLLOWER)
            await cluster.settled()
            assert cluster.payloads() == [b"%d" % i for i in range(150)]
            assert cluster.changes > 0

    _run(scenario, uv=uv)


@pytest.mark.parametrize("durability", ["journal", "fsync"])
def test_everything_is_there_after_all_members_restart(tmp_path: Path, durability: Durability) -> None:
    async def scenario() -> None:
        async with _cluster(tmp_path, durability=durability) as cluster:
            await cluster.start()
            await cluster.put(*(b"%d" % i for i in range(50)))
            await cluster.settled()
            for name in cluster.peers:
                await cluster.close(name)
            await cluster.start(*cluster.peers[:1])
            alone = cluster.machines[cluster.peers[0]]
            assert [p for _, p in alone.applied] == [b"%d" % i for i in range(len(alone.applied))]
            assert alone.replayed == len(alone.applied)  # what is replayed is not live
            await cluster.start(*cluster.peers[1:])
            await cluster.put(b"after")
            await cluster.settled()
            assert cluster.payloads() == [*(b"%d" % i for i in range(50)), b"after"]

    _run(scenario)


def test_a_closing_leader_is_replaced_without_a_pause(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with _cluster(tmp_path, election_timeout_ms=3000) as cluster:
            await cluster.start()
            await cluster.put(b"one")
            leader = await cluster.elected()
            loop = asyncio.get_running_loop()
            begun = loop.time()
            await cluster.close(cluster.name(leader), handover=True)
            await cluster.elected()
            assert loop.time() - begun < 2.0, "nobody waited for an election timeout"
            await cluster.put(b"two")
            await cluster.settled()

    _run(scenario)


def test_first_start_waits_for_all_and_says_for_whom(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with _cluster(tmp_path) as cluster:
            await cluster.start(*cluster.peers[:2])
            first = cluster.up[cluster.peers[0]]
            await _until(lambda: first.waiting_for == (cluster.peers[2],))
            assert first.status()["waiting_for"] == [cluster.peers[2]]
            assert any(
                r.getMessage() == f"first start waits for members={cluster.peers[2]}" for r in caplog.records
            )
            assert first.contact_age() == float("inf")
            await cluster.start(cluster.peers[2])
            await cluster.elected()
            assert first.waiting_for == ()

    _run(scenario)


def test_an_emptied_member_joins_again_and_a_foreign_directory_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with _cluster(tmp_path) as cluster:
            await cluster.start()
            await cluster.put(*(b"%d" % i for i in range(20)))
            await cluster.settled()
            leader = await cluster.elected()
            name = next(peer for peer in cluster.peers if cluster.up[peer] is not leader)
            with pytest.raises(RaftStartError, match="in use"):
                await cluster.start(name)
            await cluster.close(name)
            directory = cluster.config(name).data_dir
            directory.rename(directory.with_name("old"))
            await cluster.start(name)
            assert cluster.up[name].role is Role.LEARNER
            await _until(lambda: cluster.up[name].role is Role.FOLLOWER)
            await cluster.settled()
            await cluster.close(name)
            wrong = RaftConfig(
                me=name,
                peers=cluster.peers,
                listen=None,
                data_dir=directory,
                durability="memory",
                secret=SECRET,
            )
            member = RaftMember(
                wrong, Machine(), on_peer_message=lambda sender, data: None, on_change=lambda: None
            )
            with pytest.raises(RaftStartError, match="durability journal, not memory"):
                await member.start()
            await member.close()

    _run(scenario)


def test_snapshots_trim_the_journal_and_bring_an_empty_member_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with _cluster(tmp_path, compact_bytes=100_000) as cluster:
            await cluster.start()
            for _ in range(30):
                await cluster.put(*(os.urandom(1000) for _ in range(40)))
            await cluster.settled()
            leader = await cluster.elected()
            await _until(lambda: int(str(leader.status()["snapshot_index"])) > 100)
            assert leader.status()["snapshot_failures"] == 0
            name = next(peer for peer in cluster.peers if cluster.up[peer] is not leader)
            await cluster.close(name)
            directory = cluster.config(name).data_dir
            files = [path for _, path in Journal.segment_paths(directory / "raft")]
            assert len(files) <= 4
            await cluster.start(name)  # with its own data
            await cluster.settled()
            await cluster.close(name)
            directory.rename(directory.with_name("old"))
            await cluster.start(name)  # with none
            await _until(lambda: cluster.up[name].role is Role.FOLLOWER)
            await cluster.settled()
            assert len(cluster.payloads()) == 1200

    _run(scenario)


def test_application_messages_are_in_order_with_what_is_applied(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with _cluster(tmp_path) as cluster:
            await cluster.start()
            await cluster.put(b"x")
            leader = await cluster.elected()
            name = next(peer for peer in cluster.peers if cluster.up[peer] is not leader)
            follower = cluster.up[name]
            assert follower.leader == cluster.name(leader)
            assert leader.linked == set(cluster.peers) - {cluster.name(leader)}
            for i in range(100):
                assert follower.send(cluster.name(leader), b"%d" % i)
            await _until(lambda: len(cluster.messages) == 100)
            assert cluster.messages == [(cluster.name(leader), name, b"%d" % i) for i in range(100)]
            assert not follower.send("127.0.0.1:1", b"x")
            assert not follower.send(name, b"x")

    _run(scenario)


def test_contact_is_young_with_a_quorum_and_grows_without(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with _cluster(tmp_path, election_timeout_ms=200) as cluster:
            await cluster.start()
            await cluster.put(b"x")
            await cluster.settled()
            assert {member.contact_limit for member in cluster.up.values()} == {0.2}
            await _until(lambda: all(m.contact_age() < m.contact_limit for m in cluster.up.values()))
            leader = await cluster.elected()
            others = [name for name in cluster.peers if cluster.up[name] is not leader]
            assert all(leader.member_age(name) < 1.0 for name in others)
            for name in others:
                await cluster.close(name)
            await _until(lambda: leader.contact_age() > leader.contact_limit)
            await _until(lambda: leader.role is not Role.LEADER)
            assert leader.append(b"late", term=leader.term) is None

    _run(scenario)


def test_a_single_member_works_alone_on_a_port_of_its_own_choice(tmp_path: Path) -> None:
    async def scenario() -> None:
        machine = Machine()
        config = RaftConfig(
            me="one:0", peers=("one:0",), listen="127.0.0.1:0", data_dir=tmp_path, durability="fsync"
        )
        for count in (1, 2):
            member = RaftMember(config, machine, on_peer_message=lambda s, d: None, on_change=lambda: None)
            await member.start()
            assert int(member.bound.rpartition(":")[2]) > 0
            await _until(lambda member=member: member.leads)  # type: ignore[misc]
            index = member.append(b"%d" % count, term=member.term)
            assert index is not None
            await _until(lambda member=member, index=index: member.applied_index >= index)  # type: ignore[misc]
            assert member.contact_age() == 0.0
            await member.close()
            await member.close()
        assert [payload for _, payload in machine.applied] == [b"1", b"1", b"2"]  # live, replayed, live

    _run(scenario)


def test_a_member_with_other_peers_is_not_let_in(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with _cluster(tmp_path) as cluster:
            await cluster.start(*cluster.peers[:2])
            third = cluster.peers[2]
            cluster.peers = (*cluster.peers[:2], third, "127.0.0.1:1")
            await cluster.start(third)
            await _until(lambda: any("another cluster" in r.getMessage() for r in caplog.records))
            assert cluster.up[third].linked == frozenset()

    _run(scenario)


def test_an_entry_or_image_that_cannot_be_read_is_refused_at_start_with_one_line(tmp_path: Path) -> None:
    class Newer(Machine):
        def apply(self, payload: bytes, *, index: int, term: int, live: bool) -> None:
            raise StopMember("command format 9, this program knows 1")

        def prepare(self, image: bytes | bytearray) -> Callable[[], None]:
            raise StopMember("image format 9, this program knows 1")

    async def scenario() -> None:
        async with _cluster(tmp_path, 1, compact_bytes=20_000) as cluster:
            for payload, what in ((b"x", "command"), (bytes(30_000), "image")):
                await cluster.start()
                await cluster.put(payload)
                member = cluster.up[cluster.peers[0]]
                if what == "image":
                    await _until(lambda member=member: int(str(member.status()["snapshot_index"])) > 0)  # type: ignore[misc]
                await cluster.close(cluster.peers[0])
                again = RaftMember(
                    cluster.config(cluster.peers[0]),
                    Newer(),
                    on_peer_message=lambda sender, data: None,
                    on_change=lambda: None,
                    on_fatal=cluster.fatal.append,
                )
                with pytest.raises(RaftStartError, match=f"{what} format 9") as refused:
                    await again.start()
                assert "\n" not in str(refused.value)

    _run(scenario)


def test_a_snapshot_that_raises_is_a_failed_snapshot(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with _cluster(tmp_path, 1, compact_bytes=5_000) as cluster:
            await cluster.start()
            cluster.machines[cluster.peers[0]].snapshot = lambda: 1 // 0  # type: ignore[assignment,return-value]
            for _ in range(20):
                await cluster.put(bytes(1000))
            member = cluster.up[cluster.peers[0]]
            await _until(lambda: member.status()["snapshot_failures"] == 1)
            await cluster.put(b"still works")

    _run(scenario)


# ---- a full disk, in real processes

_MEMBER = """
    import asyncio, json, resource, sys
    from pathlib import Path
    from nameserver.raft import RaftConfig, RaftMember

    class Machine:
        def __init__(self): self.applied = 0
        def apply(self, payload, *, index, term, live): self.applied = index
        def snapshot(self): return lambda: b""
        def prepare(self, image): return lambda: None

    async def main():
        member = RaftMember(
            RaftConfig(me="a:0", peers=("a:0",), listen="127.0.0.1:0", data_dir=Path(sys.argv[1])),
            Machine(), on_peer_message=lambda s, d: None, on_change=lambda: None)
        await member.start()
        async def until(condition):
            async with asyncio.timeout(20):
                while not condition(): await asyncio.sleep(0.01)
        await until(lambda: member.leads)
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
        await member.close()

    asyncio.run(main())
"""


def test_a_full_disk_stops_acknowledging_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_MEMBER), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    durable, last, applied = json.loads(done.stdout)
    assert durable < last < applied
    assert "journal full" in done.stderr
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 200_000


_BROKEN = """
    import asyncio, errno, os, sys
    from pathlib import Path
    from nameserver.raft import RaftConfig, RaftMember

    class Machine:
        def apply(self, payload, *, index, term, live): pass
        def snapshot(self): return lambda: b""
        def prepare(self, image): return lambda: None

    async def main():
        member = RaftMember(
            RaftConfig(me="a:0", peers=("a:0",), listen="127.0.0.1:0", data_dir=Path(sys.argv[1])),
            Machine(), on_peer_message=lambda s, d: None, on_change=lambda: None)
        await member.start()
        while not member.leads: await asyncio.sleep(0.01)
        # The journal's descriptor now means a device on which every write fails.
        journal = member._driver._journal._file
        broken = os.open(sys.argv[2], os.O_RDONLY)
        os.dup2(broken, journal)
        member.append(b"x", term=member.term)
        await asyncio.sleep(10)

    asyncio.run(main())
"""


def test_a_broken_journal_ends_the_process(tmp_path: Path) -> None:
    victim = tmp_path / "readonly"
    victim.write_bytes(b"")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_BROKEN), str(tmp_path / "data"), str(victim)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 70, done.stderr
    assert "raft member stops" in done.stderr
    assert "Bad file descriptor" in done.stderr


# ---- what the library's sockets, pipes and children do badly


def test_d21_a_large_message_leaves_whole_without_another_send(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with _cluster(tmp_path, 2) as cluster:
            await cluster.start()
            one, two = cluster.peers
            await _until(lambda: two in cluster.up[one].linked)
            message = os.urandom(5_000_000)
            begun = in_seconds(0)
            assert cluster.up[one].send(two, message)
            await _until(lambda: (two, one, message) in cluster.messages)
            assert in_seconds(0) - begun < 5

    _run(scenario)


def test_d14_a_crash_between_image_and_trimmed_journal_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Journal, "trim", lambda journal, index: None)  # it is killed before that

    async def scenario() -> None:
        async with _cluster(tmp_path, 1, compact_bytes=5_000) as cluster:
            await cluster.start()
            (name,) = cluster.peers
            await cluster.put(*(b"%d" % i for i in range(1000)))
            await _until(lambda: int(str(cluster.up[name].status()["snapshot_index"])) > 0)
            await cluster.put(*(b"%d" % i for i in range(1000, 1100)))
            covered = int(str(cluster.up[name].status()["snapshot_index"]))
            assert covered < cluster.up[name].applied_index
            await cluster.close(name)
            await cluster.start()
            await cluster.put(b"after")
            assert cluster.payloads() == [*(b"%d" % i for i in range(1100)), b"after"]

    _run(scenario)


def test_d29_an_image_is_made_without_a_child_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forked: list[int] = []

    def fork() -> int:
        forked.append(1)
        return 1  # as in the parent, whose child lives on

    monkeypatch.setattr(os, "fork", fork)

    async def scenario() -> None:
        async with _cluster(tmp_path, 1, compact_bytes=5_000) as cluster:
            await cluster.start()
            await cluster.put(*(bytes(100) for _ in range(100)))
            member = cluster.up[cluster.peers[0]]
            await _until(lambda: int(str(member.status()["snapshot_index"])) > 0 or bool(forked))
            assert not forked

    _run(scenario)


def test_while_an_image_is_made_threads_take_short_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, seen = sys.getswitchinterval(), []
    original = Machine.snapshot

    def snapshot(machine: Machine) -> Callable[[], bytes]:
        encode = original(machine)

        def look_and_encode() -> bytes:
            seen.append(sys.getswitchinterval())
            return encode()

        return look_and_encode

    monkeypatch.setattr(Machine, "snapshot", snapshot)

    async def scenario() -> None:
        async with _cluster(tmp_path, 1, compact_bytes=5_000) as cluster:
            await cluster.start()
            await cluster.put(*(bytes(100) for _ in range(100)))
            member = cluster.up[cluster.peers[0]]
            await _until(lambda: int(str(member.status()["snapshot_index"])) > 0)
        assert sys.getswitchinterval() == usual

    _run(scenario)
    assert seen
    assert max(seen) < usual


def test_d32_any_number_of_entries_in_one_turn_of_the_loop_is_appended(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with _cluster(tmp_path, 1) as cluster:
            await cluster.start()
            await cluster.put(*(b"%d" % i for i in range(10_000)))
            assert cluster.payloads() == [b"%d" % i for i in range(10_000)]

    _run(scenario)


def test_d33_a_member_listens_where_it_is_named_and_nowhere_else(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with _cluster(tmp_path, 1) as cluster:
            await cluster.start()
            (name,) = cluster.peers
            assert cluster.up[name].bound == name
            port = int(name.rpartition(":")[2])
            with socket.socket() as other, pytest.raises(ConnectionRefusedError):
                other.connect(("127.0.0.2", port))

    _run(scenario)


def _d14_off(patch: pytest.MonkeyPatch) -> None:
    """A journal that does not begin where the image ends is thrown away."""
    original = driver.join

    def join(image: Any, replay: Replay, **keywords: Any) -> Any:
        if image is not None and replay.base_index != image.index:
            replay = Replay(base_index=image.index, base_term=image.term)
        return original(image, replay, **keywords)

    patch.setattr(driver, "join", join)


def _d29_off(patch: pytest.MonkeyPatch) -> None:
    """The library's own writer of dumps, with its defaults."""

    async def make(member: driver.Driver, index: int, *_: object) -> None:
        file = str(member._config.data_dir / "dump")
        Serializer(file, 1 << 16, True, None, None, None).serialize(None, index)

    patch.setattr(driver.Driver, "_make_image", make)


def _d32_off(patch: pytest.MonkeyPatch) -> None:
    """Each submission is taken, and then the library's pipe is to wake the member."""
    notifiers: dict[RaftMember, Any] = {}
    original = RaftMember.append

    class _Poller:
        def subscribe(self, descriptor: int, callback: Callable[[int, int], None], mask: int) -> None:
            asyncio.get_running_loop().add_reader(descriptor, callback, descriptor, mask)

    def append(member: RaftMember, payload: bytes, *, term: int) -> int | None:
        index = original(member, payload, term=term)
        if member not in notifiers:
            made = notifiers[member] = PipeNotifier(_Poller())
            # The usual one is full after 65,536 submissions, this one sooner.
            fcntl.fcntl(made._PipeNotifier__pipeW, fcntl.F_SETPIPE_SZ, 4096)
        notifiers[member].notify()
        return index

    patch.setattr(RaftMember, "append", append)


def _d33_off(patch: pytest.MonkeyPatch) -> None:
    """Bound on every address of the machine unless told otherwise."""
    original = Transport.listen
    patch.setattr(
        Transport,
        "listen",
        lambda transport, address: original(transport, f"0.0.0.0:{address.rpartition(':')[2]}"),
    )


SWITCHED_OFF: list[tuple[str, Callable[[pytest.MonkeyPatch], None], Callable[..., None]]] = [
    ("d14", _d14_off, test_d14_a_crash_between_image_and_trimmed_journal_loses_nothing),
    ("d29", _d29_off, test_d29_an_image_is_made_without_a_child_process),
    (
        "d32",
        _d32_off,
        lambda path, _: test_d32_any_number_of_entries_in_one_turn_of_the_loop_is_appended(path),
    ),
    ("d33", _d33_off, lambda path, _: test_d33_a_member_listens_where_it_is_named_and_nowhere_else(path)),
]


@pytest.mark.parametrize(
    ("switch_off", "scenario"), [case[1:] for case in SWITCHED_OFF], ids=[case[0] for case in SWITCHED_OFF]
)
def test_a_fix_that_is_switched_off_is_caught_by_its_scenario(
    switch_off: Callable[[pytest.MonkeyPatch], None],
    scenario: Callable[..., None],
    find_wrong: Callable[..., None],
) -> None:
    find_wrong(switch_off, scenario, also=BlockingIOError)  # which the library's full pipe is


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
        async with _cluster(tmp_path) as cluster:
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

    _run(scenario)


def test_a_founder_without_a_disk_that_restarts_founds_no_second_cluster(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with _cluster(tmp_path, 1, durability="memory") as cluster:
            (founder,) = cluster.peers
            await cluster.start()
            await cluster.put(b"one")
            newcomers = [f"127.0.0.1:{port}" for port in free_ports(2)]
            for name in newcomers:
                await cluster.join(name)
            await cluster.settled()
            await cluster.close(founder, handover=True)
            await cluster.put(b"two")
            await cluster.start(founder)  # its flags still name it alone
            await _until(lambda: cluster.up[founder].role is Role.FOLLOWER)
            await cluster.put(b"three")
            await cluster.settled()
            assert cluster.payloads() == [b"one", b"two", b"three"]

    _run(scenario)


# ---- operations (rules 11 and 14)


@pytest.mark.parametrize("durability", ["memory", "journal"])
def test_members_are_added_and_removed_and_everyone_follows(tmp_path: Path, durability: Durability) -> None:
    async def scenario() -> None:
        async with _cluster(tmp_path, durability=durability) as cluster:
            await cluster.start()
            await cluster.put(*(b"%d" % i for i in range(50)))
            newcomers = [f"127.0.0.1:{port}" for port in free_ports(2)]
            for name in newcomers:
                await cluster.join(name)
                await cluster.put(name.encode())
            await cluster.settled()
            assert len((await cluster.elected()).voters) == 5
            leader = await cluster.elected()
            gone = next(name for name in cluster.peers if cluster.up[name] is not leader)
            await leader.remove_member(gone, deadline=in_seconds(10))
            await _until(lambda: [name for name, _ in cluster.removed] == [gone])
            assert "removed" in cluster.removed[0][1]
            await cluster.close(gone)
            with pytest.raises(RaftStartError, match="was removed from its cluster"):
                await cluster.start(gone)
            await cluster.put(b"after")
            await cluster.settled()
            await leader.remove_member(gone, deadline=in_seconds(1))  # nothing to do
            # Whoever was added elects and is elected as the founders are, also after all restart.
            for name in list(cluster.up):
                await cluster.close(name)
            if durability == "journal":
                names = sorted({*cluster.peers, *newcomers} - {gone})
                await cluster.start(*names, peers=(*cluster.peers, *newcomers))
                await cluster.put(b"last")
                await cluster.settled()
                assert (await cluster.elected()).voters == tuple(names)

    _run(scenario)


def test_a_leader_hands_over_before_its_own_removal(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with _cluster(tmp_path) as cluster:
            await cluster.start()
            await cluster.put(b"one")
            leader = await cluster.elected()
            me = cluster.name(leader)
            with pytest.raises(NotLeader) as refused:
                await leader.remove_member(me, deadline=in_seconds(10))
            successor = refused.value.leader
            assert successor in cluster.peers
            assert successor != me
            await _until(lambda: cluster.up[successor].leads)
            await cluster.up[successor].remove_member(me, deadline=in_seconds(10))
            await _until(lambda: [name for name, _ in cluster.removed] == [me])
            await cluster.close(me)
            await cluster.put(b"two")
            await cluster.settled()

    _run(scenario)


def test_a_member_that_does_not_come_stays_a_learner_and_the_caller_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with _cluster(tmp_path) as cluster:
            await cluster.start()
            leader = await cluster.elected()
            (port,) = free_ports(1)
            name = f"127.0.0.1:{port}"
            with pytest.raises(ChangeUnknown, match="is a learner"):
                await leader.add_member(name, deadline=in_seconds(0.3))
            assert leader.learners == (name,)
            assert len(leader.voters) == 3
            await cluster.put(b"goes on")
            await cluster.start(name, peers=(*cluster.peers, name))  # it comes after all
            await _until(lambda: name in leader.voters)
            await cluster.settled()

    _run(scenario)


def test_leadership_goes_where_it_is_sent(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with _cluster(tmp_path, election_timeout_ms=2000) as cluster:
            await cluster.start()
            await cluster.put(b"one")
            for target in (*cluster.peers, None):
                await cluster.settled()  # a leader just elected has yet to hear of the others
                leader = await cluster.elected()
                if target == cluster.name(leader):
                    with pytest.raises(ChangeRefused, match="leads already"):
                        await leader.transfer_leadership(target, deadline=in_seconds(5))
                    continue
                found = await leader.transfer_leadership(target, deadline=in_seconds(5))
                assert found == (target or found) != cluster.name(leader)
                with pytest.raises(NotLeader):
                    await leader.transfer_leadership(None, deadline=in_seconds(5))
            leader = await cluster.elected()
            with pytest.raises(ChangeRefused, match="none of the voters"):
                await leader.transfer_leadership("127.0.0.1:1", deadline=in_seconds(5))
            for name in list(cluster.up):
                if cluster.up[name] is not leader:
                    await cluster.close(name)
            with pytest.raises((ChangeRefused, NotLeader)):
                await leader.transfer_leadership(None, deadline=in_seconds(1))

    _run(scenario)


@pytest.mark.parametrize("durability", ["memory", "journal"])
def test_a_snapshot_is_saved_copied_and_restored_in_a_new_cluster(
    tmp_path: Path, durability: Durability
) -> None:
    async def scenario() -> None:
        async with _cluster(tmp_path / "old", durability=durability) as cluster:
            await cluster.start()
            await cluster.put(*(b"%d" % i for i in range(30)))
            leader = await cluster.elected()
            saved = await leader.save_snapshot(deadline=in_seconds(10))
            image = saved.path.read_bytes()
            assert saved.size == len(image)
            assert 30 <= saved.index <= leader.applied_index
            again = await leader.save_snapshot(deadline=in_seconds(10))
            assert again.index >= saved.index
            with pytest.raises(ChangeRefused, match="force-new-cluster"):
                await leader.restore_snapshot(image, deadline=in_seconds(5))
            follower = next(member for member in cluster.up.values() if member is not leader)
            with pytest.raises(NotLeader):
                await follower.restore_snapshot(image, deadline=in_seconds(5))

        async with _cluster(tmp_path / "new", 3, durability=durability) as cluster:
            first, *others = cluster.peers
            await cluster.start(first, force_new_cluster=True)
            await cluster.put(b"will be gone", *(b"x" for _ in range(100)))
            member = cluster.up[first]
            for bad in (b"", image[:-1], b"XXXX" + image[4:]):
                with pytest.raises(ChangeRefused, match="no snapshot"):
                    await member.restore_snapshot(bad, deadline=in_seconds(5))
            term = member.term
            await member.restore_snapshot(image, deadline=in_seconds(10))
            assert cluster.payloads() == [b"%d" % i for i in range(30)]
            assert member.term > term
            await cluster.put(b"after")
            for name in others:
                await cluster.join(name)
            await cluster.settled()
            assert cluster.payloads() == [*(b"%d" % i for i in range(30)), b"after"]
            if durability == "journal":
                for name in cluster.peers:
                    await cluster.close(name)
                await cluster.start()
                await cluster.put(b"last")
                await cluster.settled()
                assert cluster.payloads() == [*(b"%d" % i for i in range(30)), b"after", b"last"]

    _run(scenario)


def test_one_member_left_of_three_makes_a_new_cluster_of_its_data(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with _cluster(tmp_path) as cluster:
            await cluster.start()
            await cluster.put(*(b"%d" % i for i in range(40)))
            await cluster.settled()
            one, two, three = cluster.peers
            for name in cluster.peers:
                await cluster.close(name)
            await cluster.start(one, force_new_cluster=True)
            member = cluster.up[one]
            await _until(lambda: member.leads)
            assert member.voters == (one,)
            await cluster.put(b"alone")
            name = str(member.status()["cluster"])
            # An old member that comes back is a stranger, and so is this one to it.
            await cluster.start(two)
            assert str(cluster.up[two].status()["cluster"]) != name
            await asyncio.sleep(1.5)
            assert member.linked == frozenset()
            assert cluster.up[two].linked == frozenset()
            assert cluster.up[two].term <= member.term
            await cluster.close(two)
            # The flag that was left in place does nothing at the next start.
            await cluster.close(one)
            await cluster.start(one, force_new_cluster=True)
            member = cluster.up[one]
            await _until(lambda: member.leads)
            assert str(member.status()["cluster"]) == name
            assert any("force-new-cluster ignored" in r.getMessage() for r in caplog.records)
            await cluster.close(one)
            await cluster.start(one)
            for newcomer in (two, three):
                await cluster.join(newcomer)
            await cluster.put(b"three again")
            await cluster.settled()
            assert cluster.payloads() == [*(b"%d" % i for i in range(40)), b"alone", b"three again"]

    _run(scenario)


def test_a_new_cluster_begun_but_not_finished_is_finished_by_the_next_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with _cluster(tmp_path) as cluster:
            await cluster.start()
            await cluster.put(b"one")
            await cluster.settled()
            one = cluster.peers[0]
            for name in cluster.peers:
                await cluster.close(name)
            path = cluster.config(one).data_dir / "identity.json"
            identity = json.loads(path.read_bytes())
            path.write_text(json.dumps(identity | {"forcing": True}))
            await cluster.start(one)
            await _until(lambda: cluster.up[one].leads)
            assert cluster.up[one].voters == (one,)
            assert cluster.payloads() == [b"one"]

    _run(scenario)


def test_a_first_start_that_cannot_bind_leaves_nothing_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with _cluster(tmp_path, 1) as cluster:
            (name,) = cluster.peers
            with socket.socket() as taken:
                taken.bind(("127.0.0.1", int(name.rpartition(":")[2])))
                taken.listen()
                with pytest.raises(RaftStartError, match="cannot listen"):
                    await cluster.start(name)
            left = [path.name for path in cluster.config(name).data_dir.rglob("*") if path.is_file()]
            assert left == ["lock"]
            await cluster.start(name)
            await cluster.put(b"works")

    _run(scenario)


_REMOVED = """
    import asyncio, sys
    from pathlib import Path
    from nameserver.raft import RaftConfig, RaftMember

    class Machine:
        def apply(self, payload, *, index, term, live): pass
        def snapshot(self): return bytes
        def prepare(self, image): return lambda: None

    async def main():
        root, names = Path(sys.argv[1]), sys.argv[2].split(",")
        members = [
            RaftMember(
                RaftConfig(me=me, peers=tuple(names), listen=None, data_dir=root / me.rpartition(":")[2]),
                Machine(), on_peer_message=lambda s, d: None, on_change=lambda: None)
            for me in names
        ]
        for member in members: await member.start()
        while not any(m.leads for m in members): await asyncio.sleep(0.01)
        leader = next(m for m in members if m.leads)
        other = next(name for name in names if name != leader.leader)
        await leader.remove_member(other, deadline=asyncio.get_running_loop().time() + 10)
        await asyncio.sleep(10)

    asyncio.run(main())
"""


def test_the_process_of_a_removed_member_ends_with_one_line_and_code_3(tmp_path: Path) -> None:
    names = ",".join(f"127.0.0.1:{port}" for port in free_ports(3))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_REMOVED), str(tmp_path), names],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 3, done.stderr
    assert sum("was removed" in line and line.startswith("raft: ") for line in done.stderr.splitlines()) == 1
