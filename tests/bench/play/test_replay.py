"""A replayed session shows the changes of the saved one, and continues to answer after the last change."""

from __future__ import annotations

import asyncio

from routekeeper.bench.play.model import Change, Design, State
from routekeeper.bench.play.replay import Replay
from tests.waiting import WITHIN_S


def test_a_page_gets_ticks_also_after_the_last_change() -> None:
    begin = State(
        session="s", id=0, at_ms=0, started_at="", divisor=1.0, divisors=[1.0], designs=[Design(name="raft")]
    )

    async def play() -> None:
        replay = Replay(begin, [Change(id=1, at_ms=1, design="raft", phase="running")])
        page = replay.hub.join(replay.state, "s-0")
        running = asyncio.create_task(replay.run())
        seen: list[bytes] = []
        async with asyncio.timeout(WITHIN_S):
            while len(seen) < 3:
                message = await page.next()
                assert message is not None
                if seen or b"event: change" in message:
                    seen.append(message)
        assert all(b'event: tick\ndata: {"at_ms":1,' in each for each in seen[1:]), seen
        running.cancel()

    asyncio.run(play())
