"""Tests that members do not have PySyncObj's defects with sockets, pipes and child processes."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pysyncobj import win_inet_pton
from pysyncobj.pipe_notifier import PipeNotifier
from pysyncobj.serializer import Serializer

from routekeeper.nameserver.raft.consensus.effects import MakeImage
from routekeeper.nameserver.raft.links.transport import Transport
from routekeeper.nameserver.raft.node import recovery
from routekeeper.nameserver.raft.node.member import RaftMember
from routekeeper.nameserver.raft.storage.journal import Journal, Replay
from routekeeper.nameserver.raft.types import RaftStartError
from tests.nameserver.raft.cluster import Machine, cluster_of, run
from tests.waiting import until


async def test_d14_a_crash_between_image_and_trimmed_journal_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Do not trim the journal. So the files look as if the member was killed between snapshot and trim.
    monkeypatch.setattr(Journal, "trim", lambda journal, index: None)
    async with cluster_of(tmp_path, 1, compact_bytes=5_000) as cluster:
        await cluster.start()
        (name,) = cluster.peers
        await cluster.put(*(b"%d" % i for i in range(1000)))
        await until(lambda: int(str(cluster.up[name].status()["snapshot_index"])) > 0)
        await cluster.put(*(b"%d" % i for i in range(1000, 1100)))
        covered = int(str(cluster.up[name].status()["snapshot_index"]))
        assert covered < cluster.up[name].applied_index
        await cluster.close(name)
        await cluster.start()
        await cluster.put(b"after")
        assert cluster.payloads() == [*(b"%d" % i for i in range(1100)), b"after"]


async def test_d29_an_image_is_made_without_a_child_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forked: list[int] = []

    def fork() -> int:
        forked.append(1)
        return 1  # in the parent process, fork() returns the child's id

    monkeypatch.setattr(os, "fork", fork)
    async with cluster_of(tmp_path, 1, compact_bytes=5_000) as cluster:
        await cluster.start()
        await cluster.put(*(bytes(100) for _ in range(100)))
        member = cluster.up[cluster.peers[0]]
        await until(lambda: int(str(member.status()["snapshot_index"])) > 0 or bool(forked))
        assert not forked


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
        async with cluster_of(tmp_path, 1, compact_bytes=5_000) as cluster:
            await cluster.start()
            await cluster.put(*(bytes(100) for _ in range(100)))
            member = cluster.up[cluster.peers[0]]
            await until(lambda: int(str(member.status()["snapshot_index"])) > 0)
        assert sys.getswitchinterval() == usual

    run(scenario)
    assert seen
    assert max(seen) < usual


async def test_d32_any_number_of_entries_in_one_turn_of_the_loop_is_appended(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 1) as cluster:
        await cluster.start()
        await cluster.put(*(b"%d" % i for i in range(10_000)))
        assert cluster.payloads() == [b"%d" % i for i in range(10_000)]


async def test_d33_a_member_listens_where_it_is_named_and_nowhere_else(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 1) as cluster:
        await cluster.start()
        (name,) = cluster.peers
        assert cluster.up[name].bound == name
        port = int(name.rpartition(":")[2])
        with socket.socket() as other, pytest.raises(ConnectionRefusedError):
            other.connect(("127.0.0.2", port))


def _d14_off(patch: pytest.MonkeyPatch) -> None:
    """Switch off the repair of PySyncObj's defect D14.

    The member then discards its whole journal if the journal does not begin exactly where the snapshot ends.
    """
    original = recovery.join

    def join(image: Any, replay: Replay) -> Any:
        if image is not None and replay.base_index != image.index:
            replay = Replay(base_index=image.index, base_term=image.term)
        return original(image, replay)

    patch.setattr(recovery, "join", join)


def _d29_off(patch: pytest.MonkeyPatch) -> None:
    """Switch off the repair of PySyncObj's defect D29.

    The member then writes snapshots with PySyncObj's own serializer and its default settings.
    """

    async def make(member: RaftMember, wanted: MakeImage, encode_state: Callable[[], bytes]) -> None:
        file = str(member.config.data_dir / "dump")
        Serializer(file, 1 << 16, True, None, None, None).serialize(None, wanted.index)

    patch.setattr(RaftMember, "_make_image", make)


def _d32_off(patch: pytest.MonkeyPatch) -> None:
    """Switch off the repair of PySyncObj's defect D32.

    As in PySyncObj, a pipe then wakes the member after each appended proposal.
    """
    notifiers: dict[RaftMember, Any] = {}
    original = RaftMember.append

    class _Poller:
        def subscribe(self, descriptor: int, callback: Callable[[int, int], None], mask: int) -> None:
            asyncio.get_running_loop().add_reader(descriptor, callback, descriptor, mask)

    def append(member: RaftMember, payload: bytes, *, term: int) -> int | None:
        index = original(member, payload, term=term)
        if member not in notifiers:
            made = notifiers[member] = PipeNotifier(_Poller())
            # By default, a pipe is full after 65,536 proposals. Make the pipe smaller, so that the test fills
            # it sooner.
            fcntl.fcntl(made._PipeNotifier__pipeW, fcntl.F_SETPIPE_SZ, 4096)
        notifiers[member].notify()
        return index

    patch.setattr(RaftMember, "append", append)


def _d33_off(patch: pytest.MonkeyPatch) -> None:
    """Switch off the repair of PySyncObj's defect D33.

    The member then listens on every address of the machine, as PySyncObj does by default.
    """
    original = Transport.listen
    patch.setattr(
        Transport,
        "listen",
        lambda transport, address: original(transport, f"0.0.0.0:{address.rpartition(':')[2]}"),
    )


def _d38_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(socket, "inet_ntop", win_inet_pton.inet_ntop)


def test_d38_addresses_are_written_by_the_function_of_this_system() -> None:
    assert socket.inet_ntop(socket.AF_INET, b"\x7f\0\0\1") == "127.0.0.1"


SWITCHED_OFF: list[tuple[str, Callable[[pytest.MonkeyPatch], None], Callable[..., object]]] = [
    ("d14", _d14_off, test_d14_a_crash_between_image_and_trimmed_journal_loses_nothing),
    ("d29", _d29_off, test_d29_an_image_is_made_without_a_child_process),
    (
        "d32",
        _d32_off,
        lambda path, _: test_d32_any_number_of_entries_in_one_turn_of_the_loop_is_appended(path),
    ),
    ("d38", _d38_off, lambda *_: test_d38_addresses_are_written_by_the_function_of_this_system()),
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
    # The raft library raises BlockingIOError when its pipe is full. A member raises RaftStartError when its
    # journal lacks entries that were committed.
    find_wrong(switch_off, scenario, also=(BlockingIOError, RaftStartError, TypeError))
