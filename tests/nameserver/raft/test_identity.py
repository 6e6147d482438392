"""Tests of a member's data directory.

Only one process may use the directory, in only one mode and for only one member. A stored vote survives a
write that a power cut interrupts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from routekeeper.nameserver.disk.files import DISK
from routekeeper.nameserver.raft.consensus.members import MemberState
from routekeeper.nameserver.raft.storage.identity import DataDirectory
from routekeeper.nameserver.raft.storage.journal import Journal
from routekeeper.nameserver.raft.storage.slots import Slots
from routekeeper.nameserver.raft.types import RaftConfig, RaftStartError

PEERS = ("a:1", "b:1", "c:1")


@pytest.fixture
def config(tmp_path: Path) -> RaftConfig:
    return RaftConfig(me="a:1", peers=PEERS, listen=None, data_dir=tmp_path / "data")


def _open(config: RaftConfig) -> None:
    directory = DataDirectory(config)
    try:
        directory.load_vote()
    finally:
        directory.close()


def _one_line(config: RaftConfig, match: str) -> None:
    with pytest.raises(RaftStartError, match=match) as refused:
        _open(config)
    assert "\n" not in str(refused.value)


def test_a_directory_is_locked_while_in_use(config: RaftConfig) -> None:
    first = DataDirectory(config)
    _one_line(config, "in use")
    first.close()
    DataDirectory(config).close()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda c: replace(c, me="b:1"), "belongs to member a:1, not b:1"),
        (lambda c: replace(c, durability="memory"), "durability journal"),
    ],
)
def test_a_directory_keeps_to_one_member_and_one_way_of_storing(
    config: RaftConfig, change: Callable[[RaftConfig], RaftConfig], match: str
) -> None:
    DataDirectory(config).close()
    _one_line(change(config), match)


def test_journal_and_fsync_may_be_exchanged(config: RaftConfig) -> None:
    DataDirectory(config).close()
    DataDirectory(replace(config, durability="fsync")).close()


def test_a_directory_of_another_mode_is_refused(config: RaftConfig) -> None:
    config.data_dir.mkdir()
    (config.data_dir / "identity.json").write_text(json.dumps({"mode": "independent"}))
    _one_line(config, "belongs to mode independent")
    (config.data_dir / "identity.json").write_text("{")
    _one_line(config, "damaged")


def test_other_members_rule_stays_with_the_founding_ones(config: RaftConfig) -> None:
    first = DataDirectory(config)
    cluster = first.state.cluster
    first.close()
    second = DataDirectory(replace(config, peers=("a:1", "x:1")))
    assert second.state.members == PEERS
    assert second.state.cluster == cluster
    second.close()


def test_a_standing_that_was_written_in_another_order_is_read(config: RaftConfig) -> None:
    """The fields of the file that stores the member's role may have any order, because they have names.

    A member skips fields whose names it does not know.
    """
    DataDirectory(config).close()
    kept = {
        "members": ["a:1", "b:1"],
        "cluster": "c",
        "instance": "i",
        "voter": False,
        "unknown": {"a:1": 3},
        "doubtful": True,
        "founders": {"a:1": "i", "b:1": "j"},
        "removed": False,
        "forced": True,
        "boot": "life",
        "synced": True,
    }
    slots = Slots(DISK, config.data_dir / "raft" / "standing", size=64 * 1024)
    slots.load()
    slots.save(json.dumps(kept).encode())
    slots.close()
    directory = DataDirectory(config)
    directory.close()
    assert directory.standing == MemberState(
        instance="i", founders={"a:1": "i", "b:1": "j"}, cluster="c", doubtful=True
    )
    assert (directory.state.members, directory.state.boot, directory.state.synced) == (
        ("a:1", "b:1"),
        "life",
        True,
    )


@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("damage", ["torn", "rotten"])
def test_the_newest_vote_outlives_the_damage_of_one_copy(config: RaftConfig, slot: int, damage: str) -> None:
    directory = DataDirectory(config)
    assert directory.load_vote() == (0, None)
    directory.save_vote(3, "b:1")
    directory.save_vote(4, None)
    directory.close()
    path = config.data_dir / "raft" / "vote"
    raw = bytearray(path.read_bytes())
    size = len(raw) // 2
    assert size % 4096 == 0  # the two copies of the vote share no disk block
    if damage == "torn":
        raw[slot * size + 8 : (slot + 1) * size] = bytes(size - 8)
    else:
        raw[slot * size + 6] ^= 1
    path.write_bytes(raw)
    # The first start replaces the damaged copy by an intact one. So the second start must find the vote,
    # although the other copy is damaged before it.
    for _ in range(2):
        directory = DataDirectory(config)
        assert directory.load_vote() == (4, None)
        directory.close()
        raw = bytearray(path.read_bytes())
        raw[(1 - slot) * size + 6] ^= 1
        path.write_bytes(raw)


def test_lost_promises_are_refused(config: RaftConfig) -> None:
    directory = DataDirectory(config)
    Journal(directory.raft, sync=False).recover()
    directory.become(replace(directory.standing, voter=True))
    directory.standing_to_save()()
    directory.close()
    vote = config.data_dir / "raft" / "vote"
    raw = vote.read_bytes()
    vote.write_bytes(bytes(len(raw)))
    _one_line(config, "what this member promised is unknown")
    vote.unlink()
    _one_line(config, "missing")
    vote.write_bytes(raw)
    for _, segment in Journal.segments_in(DISK, directory.raft):
        segment.unlink()
    _one_line(config, "lost its journal")


def test_a_memory_only_member_is_another_one_after_each_start(config: RaftConfig) -> None:
    config = replace(config, durability="memory")
    directory = DataDirectory(config)
    directory.load_vote()
    directory.save_vote(7, "b:1")
    directory.become(replace(directory.standing, voter=True))
    directory.standing_to_save()()
    first = directory.standing.instance
    directory.close()
    directory = DataDirectory(config)
    assert directory.standing.instance != first
    assert not directory.standing.voter
    assert directory.load_vote() == (7, "b:1")  # the member still uses the stored term and vote
    directory.close()


def test_a_short_secret_is_one_line(config: RaftConfig) -> None:
    with pytest.raises(RaftStartError, match="the secret has 31 bytes, at least 32 are needed"):
        replace(config, secret=b"x" * 31).validate()
    replace(config, secret=b"x" * 32).validate()
