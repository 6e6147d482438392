"""A nameserver works only on a limited number of large registrations at the same time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.nameserver.wire.server import NameServer
from routekeeper.remoting.transport.server import Connection


@pytest.mark.parametrize(
    ("mode", "places"),
    [
        ("independent", 19),
        ("raft", 4),
    ],
)
def test_registrations_of_10_000_topics_have_so_many_places(tmp_path: Path, mode: str, places: int) -> None:
    """A raft member works on fewer registrations at once than a nameserver in independent mode.

    A member must refuse each registration that it has not answered within 2.5 s. If it worked on more of them
    at once, it would have to refuse some.
    """
    settings = LiveSettings(NamesrvSettings(mode=mode, data_dir=str(tmp_path)))

    async def body() -> int:
        async with asyncio.TaskGroup() as group:
            server = NameServer(settings=settings, group=group)
            given = [server.wire.begin_large(connection, 1_700_000) for connection in connections(server)]
        return sum(given)

    assert asyncio.run(body()) == places


def connections(server: NameServer) -> list[Connection]:
    found = [Connection(server.wire) for _ in range(30)]
    for number, connection in enumerate(found):
        connection.host = f"10.0.0.{number}"
    return found
