"""Reads that wait for a barrier which cannot be sent."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nameserver.config import LiveSettings, NamesrvSettings
from nameserver.consistency import NoQuorum
from nameserver.raft import RaftConfig
from nameserver.replicated import ANSWER_MARGIN_S, Replicated, reads
from nameserver.types import ConnectionId, MinBrokerChange

ALONE, OTHER = "127.0.0.1:1", "127.0.0.1:2"
CONDITION_S = 20.0


class NoEffects:
    """Nothing is applied here."""

    def close_connection(self, origin: ConnectionId) -> None:
        raise AssertionError

    def notify_min_broker(self, change: MinBrokerChange) -> None:
        raise AssertionError


def test_every_read_without_a_leader_is_refused_also_after_others_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They join the same barrier, for none was sent; each of them has a deadline of its own."""
    monkeypatch.setattr(reads, "WRITE_DEADLINE_S", ANSWER_MARGIN_S + 0.02)

    async def body() -> None:
        settings = LiveSettings(NamesrvSettings(data_dir=str(tmp_path)))
        raft = RaftConfig(me=ALONE, peers=(ALONE, OTHER), listen=None, data_dir=tmp_path)
        member = Replicated(settings, NoEffects(), boot_id=1, raft=raft)
        refused: asyncio.Queue[int] = asyncio.Queue()

        def told(number: int, error: NoQuorum | None) -> None:
            assert error is not None
            refused.put_nowait(number)

        for _ in range(3):
            assert member.join_barrier(told) == 1
            assert member.join_barrier(told) == 1
            assert await asyncio.wait_for(refused.get(), CONDITION_S) == 1
        assert refused.empty()  # told once for all that joined
        await member.close()

    asyncio.run(body())
