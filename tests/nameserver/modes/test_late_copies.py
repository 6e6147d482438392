"""Registrations that were held up on their way to one nameserver."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nameserver.modes.independent import Independent
from nameserver.modes.interface import Freshness
from nameserver.settings.changes import LiveSettings
from nameserver.settings.declared import NamesrvSettings
from nameserver.types import Answer, ConnectionId
from tests.nameserver.modes.test_independent import Recorder, never
from tests.nameserver.replicated.group import register


class OneNameserver:
    """A nameserver whose clock the test turns, and a broker that registers with it."""

    def __init__(self, folder: Path) -> None:
        self.server = Independent(LiveSettings(NamesrvSettings(data_dir=str(folder))), Recorder(), boot_id=7)
        self.now = 0.0
        self.server.tick(self.now)

    def wait(self, seconds: float) -> None:
        """Let time pass in steps of the real driver."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.25
            self.server.tick(self.now)

    def register(self, *, counter: int, queues: int, over: int = 1, **more: tuple[str, ...]) -> Answer:
        request = register(counter=counter, queues=queues, **more)  # type: ignore[arg-type]
        return self.server.register(request, ConnectionId(over), deadline=9.0, answered=never)

    @property
    def queues(self) -> int:
        """Queues that the broker's topic has here."""
        entry = self.server.view(Freshness.DEFAULT).topic("T")
        return 0 if entry is None else entry.queues["broker-a"].write_queue_nums


@pytest.mark.xfail(strict=True, reason="the late copy takes the routes back")
def test_a_late_copy_takes_nothing_back(tmp_path: Path) -> None:
    async def main() -> None:
        one = OneNameserver(tmp_path)
        one.register(counter=1, queues=4)
        one.register(counter=2, queues=8)
        assert one.register(counter=1, queues=4) == Answer()
        assert one.queues == 8

    asyncio.run(main())
