"""A page that watches a playground first gets the whole state, or all changes that it missed.

The class Hub sends events to the pages. It ends the stream of a page that does not read, because it would
otherwise have to store all events for this page.
"""

from __future__ import annotations

import asyncio

import pytest

from routekeeper.bench.play.hub import WAITING_MAX, WATCHERS_MAX, Full, Hub, Watcher
from routekeeper.bench.play.model import Change, State, Tick
from routekeeper.bench.play.picture import ChangeLog


def a_hub() -> tuple[Hub, ChangeLog]:
    begin = State(session="s", id=0, at_ms=0, started_at="", divisor=1.0, divisors=[1.0])
    log = ChangeLog(begin)
    return Hub(log), log


def told(hub: Hub, log: ChangeLog, number: int) -> None:
    change = Change(id=number, at_ms=number)
    log.add(change)
    hub.change(change)


async def lines(watcher: Watcher, count: int) -> list[bytes | None]:
    found = [await watcher.next() for _ in range(count)]
    return [None if each is None else each.splitlines()[0] for each in found]


def test_a_page_that_comes_back_gets_what_it_missed_and_another_sessions_page_the_picture() -> None:
    async def play() -> None:
        hub, log = a_hub()
        told(hub, log, 1)
        told(hub, log, 2)
        assert await lines(hub.join(log.now, "s-1"), 1) == [b"id: s-2"]
        for last in (None, "other-1", "s-7", "s-", "s-x", "s-" + "9" * 40):
            message = await hub.join(log.now, last).next()
            assert message is not None
            assert message.startswith(b"id: s-2\nevent: state\n")

    asyncio.run(play())


def test_a_page_that_does_not_read_is_closed_and_the_others_go_on() -> None:
    async def play() -> None:
        hub, log = a_hub()
        slow, quick = hub.join(log.now, "s-0"), hub.join(log.now, "s-0")
        for number in range(1, WAITING_MAX + 10):
            told(hub, log, number)
            await quick.next()
        assert (await lines(slow, WAITING_MAX + 1))[-1] is None
        hub.tick(Tick(at_ms=1, designs=[]))
        assert await lines(quick, 1) == [b"event: tick"]

    asyncio.run(play())


def test_only_so_many_pages_watch_at_a_time() -> None:
    async def play() -> None:
        hub, log = a_hub()
        joined = [hub.join(log.now, None) for _ in range(WATCHERS_MAX)]
        with pytest.raises(Full, match="16 pages"):
            hub.join(log.now, None)
        hub.leave(joined[0])
        hub.join(log.now, None)

    asyncio.run(play())
