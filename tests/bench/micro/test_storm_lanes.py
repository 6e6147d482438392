"""A simulated broker of a storm keeps its connection when an earlier, abandoned connection ends."""

from __future__ import annotations

import asyncio
import contextlib
import struct

import pytest

from routekeeper.bench.storm import brokers
from routekeeper.bench.storm.brokers import Brokers, Command, Plan
from tests.waiting import WITHIN_S, until

_SESSION = struct.pack(">iiqi", 0, 30_000, 77, 16) + bytes(17)


def test_end_of_an_abandoned_connection_is_no_loss_of_the_present_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(brokers, "CONNECT_S", 1.0)
    accepted: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer as a ZooKeeper server, but never answer the first connection."""
        accepted.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            await reader.readexactly(size)
            if len(accepted) > 1:
                writer.write(struct.pack(">i", len(_SESSION)) + _SESSION)
            while True:
                size, number = struct.unpack(">ii", await reader.readexactly(8))
                await reader.readexactly(size - 4)
                writer.write(struct.pack(">iiqi", 16, number, 5, 0))

    async def scenario() -> list[str]:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()[:2]
            plan = Plan(kind="jute", servers=[f"{host}:{port}"], brokers=1, topics=3, resident=False)
            made = Brokers(plan)
            (lane,) = made.lanes
            living = asyncio.create_task(lane.live())
            try:
                await asyncio.wait_for(lane.connected.wait(), WITHIN_S)
                accepted[0].close()
                with contextlib.suppress(ConnectionError):
                    await accepted[0].wait_closed()
                for _ in range(3):
                    await made.register(Command(do="register"))
                    await asyncio.wait_for(lane.listed.wait(), WITHIN_S)
                assert lane.connected.is_set()
                await until(lambda: len(made.rows) >= 3, "each registration has a row")
            finally:
                living.cancel()
                for writer in accepted:
                    writer.close()
            return [row["kind"] for row in made.rows]

    assert asyncio.run(scenario()) == ["registration"] * 3
