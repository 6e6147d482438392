"""A member refuses data in a format of another release; the error contains both format numbers."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from routekeeper.nameserver.disk.files import DISK
from routekeeper.nameserver.raft.consensus.messages import MessageError, Stale, decode, encode
from routekeeper.nameserver.raft.storage.identity import DataDirectory
from routekeeper.nameserver.raft.storage.slots import BLOCK, Slots
from routekeeper.nameserver.raft.types import RaftConfig, RaftStartError

PEERS = ("a:1", "b:1", "c:1")


def test_a_message_of_another_format_is_refused_by_both_numbers() -> None:
    message = encode(Stale(7))
    assert decode(message) == Stale(7)
    with pytest.raises(MessageError, match="format 2, this program knows 1"):
        decode(b"\x02" + message[1:])


def test_a_vote_of_another_format_is_refused_by_both_numbers(tmp_path: Path) -> None:
    DataDirectory(RaftConfig(me="a:1", peers=PEERS, listen=None, data_dir=tmp_path)).close()
    slots = Slots(DISK, tmp_path / "raft" / "vote", size=BLOCK)
    slots.load()
    slots.save(msgspec.msgpack.encode((2, 5, "b:1")))
    slots.close()
    directory = DataDirectory(RaftConfig(me="a:1", peers=PEERS, listen=None, data_dir=tmp_path))
    try:
        with pytest.raises(RaftStartError, match="format 2, this program knows 1"):
            directory.load_vote()
    finally:
        directory.close()
