"""Registrations that were held up on their way: a group's routes do not go back to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from nameserver.modes.interface import Freshness
from nameserver.replicated import Replicated
from tests.nameserver.replicated.group import ONE, Group, ask, codes, group_of, register, run

FIRST, SECOND = {"counter": 1, "queues": 4}, {"counter": 2, "queues": 8}


def queues_of(member: Replicated, topic: str = "T") -> int:
    """Return how many queues a member shows of the broker's topic; 0 if it shows none."""
    entry = member.view(Freshness.STALE).topic(topic)
    return 0 if entry is None else entry.queues["broker-a"].write_queue_nums


async def shown(group: Group, topic: str = "T") -> list[int]:
    await group.equal()
    return [queues_of(member, topic) for member in group.running]


@pytest.mark.xfail(strict=True, reason="the late copy takes the routes of the whole group back")
def test_a_late_copy_takes_no_member_back(tmp_path: Path) -> None:
    async def body() -> None:
        async with group_of(tmp_path) as group:
            assert codes(await group.everywhere(register(counter=0, queues=2))) == [0, 0, 0]
            one, two, three = group.running
            assert (await ask(one, register(**FIRST))).code == 0
            assert (await ask(two, register(**SECOND))).code == 0
            assert await shown(group) == [8, 8, 8]
            assert (await ask(three, register(**FIRST))).code == 0
            assert await shown(group) == [8, 8, 8]
            assert await shown(group, "U") == [8, 8, 8]

    run(body)


@pytest.mark.xfail(strict=True, reason="a late increment takes a topic of an incomplete record back")
def test_a_late_increment_takes_no_member_back(tmp_path: Path) -> None:
    async def body() -> None:
        async with group_of(tmp_path) as group:
            assert codes(await group.everywhere(register(counter=0, queues=2))) == [0, 0, 0]
            one, two, three = group.running
            assert (await ask(one, register(counter=1, queues=4, topics=("T",)), ONE)).code == 0
            assert (await ask(two, register(counter=2, queues=8, topics=("T",)), ONE)).code == 0
            assert (await ask(three, register(counter=1, queues=4, topics=("T",)), ONE)).code == 0
            assert await shown(group) == [8, 8, 8]

    run(body)
