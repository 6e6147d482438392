"""Test of a connection that must wait in the middle of a large frame: the server reads nothing from it."""

from __future__ import annotations

import pytest

from tests.remoting.test_large_frames import MIB, Peer, frame, serving
from tests.waiting import until


@pytest.mark.usefixtures("run")
async def test_connection_that_has_given_way_to_another_is_not_read_until_its_turn() -> None:
    limits = {"large_frames_max": MIB, "large_frame_s": 60.0}
    async with serving(**limits) as (server, addr), Peer.dial(addr) as first:
        whole = frame(1, MIB)
        first.send(whole[:100_000])
        await until(lambda: server.received.total == 100_000)
        async with Peer.dial(addr) as second:
            second.send(frame(2, MIB)[:100_000])
            await until(lambda: server.received.total == 200_000)
            server._look_at_intake()  # a timer calls this every 60 s
            first.send(whole[100_000:101_000])
            await until(lambda: server.received.total == 201_000)
            # The first connection sent too slowly while the second waited, so now the second may send.
            server._look_at_intake()
            first.send(whole[101_000:])
            slow, other = server.connections.values()
            for _ in range(19):
                before = other.size
                second.send(bytes(10_000))
                await until(lambda: other.size == before + 10_000)  # noqa: B023  # awaited at once
                assert slow.size == 101_000
            second.send(frame(2, MIB)[290_000:])
            assert (await second.answer()).opaque == 2
            assert (await first.answer()).remark == str(MIB)
