"""Tests that a member serves all senders in turn, so a busy sender delays only itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from routekeeper.nameserver.modes.interface import Freshness
from routekeeper.nameserver.replicated import Replicated
from routekeeper.nameserver.replicated.proposer import NOT_BEGUN
from routekeeper.nameserver.types import Answer, ConnectionId, Request
from routekeeper.remoting.codes import ResponseCode
from tests.nameserver.modes.test_storms import registration
from tests.nameserver.replicated.group import group_of
from tests.waiting import until

STRANGER, BROKER, OTHER = ConnectionId(1), ConnectionId(2), ConnectionId(3)


class Registrations:
    """A client that sends registrations to one member and records the order of the answers."""

    def __init__(self, member: Replicated) -> None:
        self._member = member
        self.answered: list[ConnectionId] = []
        self.not_begun: list[ConnectionId] = []

    def send(self, request: Request, over: ConnectionId, *, within_s: float = 60.0) -> None:
        def take(answer: Answer) -> None:
            assert answer.code == ResponseCode.SUCCESS or answer is NOT_BEGUN, answer.remark
            (self.not_begun if answer is NOT_BEGUN else self.answered).append(over)

        deadline = asyncio.get_running_loop().time() + within_s
        answer = self._member.register(request, over, deadline=deadline, answered=take)
        if answer is not None:
            take(answer)


@pytest.mark.slow
async def test_one_who_sends_many_large_registrations_holds_nobody_up_for_more_than_one(
    tmp_path: Path,
) -> None:
    async with group_of(tmp_path, size=1) as group:
        sent = Registrations(group.at(0))
        for number in range(1, 6):
            sent.send(registration(number, 8_000), over=STRANGER)
        for number, over in (6, BROKER), (7, OTHER):
            sent.send(registration(number, 3), over=over)
        await until(lambda: len(sent.answered) == 7, "all are answered")
        assert sent.answered.index(BROKER) <= 1
        assert sent.answered.index(OTHER) <= 2


async def test_connection_that_closes_takes_its_waiting_registrations_along(tmp_path: Path) -> None:
    async with group_of(tmp_path, size=1) as group:
        member = group.at(0)
        sent = Registrations(member)
        sent.send(registration(1, 8_000), over=STRANGER)
        sent.send(registration(2, 3), over=STRANGER)
        sent.send(registration(3, 3), over=BROKER)
        member.closed(STRANGER, by_us=False)
        await until(lambda: len(sent.answered) == 2, "the others are answered")
        assert sent.not_begun == [STRANGER]
        view = member.view(Freshness.STALE)
        await until(lambda: [name for name, _ in view.names()] == ["b3"], "the first one is gone")
        assert not member.carries_broker(STRANGER)


async def test_registration_whose_time_is_over_before_its_turn_is_not_proposed(tmp_path: Path) -> None:
    """If the deadline of a registration passes while it waits, the member refuses it and never applies it."""
    async with group_of(tmp_path, size=1) as group:
        member = group.at(0)
        sent = Registrations(member)
        refused = member.raft_status().refused_writes
        sent.send(registration(1, 40_000), over=BROKER)
        sent.send(registration(2, 3), over=STRANGER, within_s=0.0)
        await until(lambda: sent.not_begun == [STRANGER], "the late one is refused")
        assert not sent.answered
        await until(lambda: sent.answered == [BROKER], "the large one is applied")
        # The next registration is the only request on its connection, so the member could begin it at once.
        # It must refuse this registration, because its deadline is over.
        sent.send(registration(3, 3), over=OTHER, within_s=0.0)
        assert sent.not_begun == [STRANGER, OTHER]
        assert [name for name, _ in member.view(Freshness.STALE).names()] == ["b1"]
        assert member.raft_status().refused_writes == refused + 2
