"""The order of a process's work: senders take turns, so one that sends much delays only itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

from routekeeper.nameserver.modes.independent import Independent
from routekeeper.nameserver.modes.interface import Freshness
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.nameserver.types import Answer, ConnectionId, Request
from routekeeper.remoting.codes import ResponseCode
from tests.nameserver.modes.test_independent import Recorder
from tests.nameserver.modes.test_storms import registration, rounds_until
from tests.nameserver.replicated.group import run

STRANGER, BROKER, OTHER = ConnectionId(1), ConnectionId(2), ConnectionId(3)


class Clock:
    """A clock that moves at each reading, so that a slice of work ends after five readings on any machine."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


class Server:
    """One whose work takes as many rounds of the loop on any machine, and the order of its answers."""

    def __init__(self, folder: Path) -> None:
        settings = LiveSettings(NamesrvSettings(data_dir=str(folder)))
        self.mode = Independent(settings, Recorder(), boot_id=7, clock=Clock())
        self.mode.tick(0.0)
        self.answered: list[ConnectionId] = []

    def register(self, request: Request, over: ConnectionId) -> None:
        def take(answer: Answer) -> None:
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            self.answered.append(over)

        deadline = asyncio.get_running_loop().time() + 60.0
        answer = self.mode.register(request, over, deadline=deadline, answered=take)
        if answer is not None:
            take(answer)


def test_one_who_sends_many_large_registrations_holds_nobody_up_for_more_than_one(tmp_path: Path) -> None:
    async def main() -> None:
        server = Server(tmp_path)
        for first in range(5):
            server.register(registration(1, 8_000, first=first), over=STRANGER)
        for number, over in (2, BROKER), (3, OTHER):
            server.register(registration(number, 3), over=over)
        await rounds_until(lambda: len(server.answered) == 7)
        assert server.answered.index(BROKER) <= 1
        assert server.answered.index(OTHER) <= 2

    run(main)


def test_work_of_one_connection_keeps_its_order(tmp_path: Path) -> None:
    """Its last registration counts, and the end of its connection comes after all of them."""

    async def main() -> None:
        server = Server(tmp_path)
        view = server.mode.view(Freshness.STALE)
        server.register(registration(1, 8_000), over=STRANGER)
        for number in 2, 3, 4:
            server.register(registration(number, 3), over=STRANGER)
        server.register(registration(5, 3), over=BROKER)
        server.mode.closed(STRANGER, by_us=False)
        await rounds_until(lambda: len(server.answered) == 5)
        await rounds_until(lambda: [name for name, _ in view.names()] == ["b5"])
        assert not server.mode.carries_broker(STRANGER)

    run(main)


def test_broker_of_many_topics_that_leaves_lets_others_be_served_meanwhile(tmp_path: Path) -> None:
    async def main() -> None:
        server = Server(tmp_path)
        view = server.mode.view(Freshness.STALE)
        server.register(registration(1, 20_000), over=BROKER)
        await rounds_until(lambda: len(server.answered) == 1)
        server.mode.closed(BROKER, by_us=False)
        assert await rounds_until(lambda: not view.names()) >= 20_000 / 1_000 / 5

    run(main)
