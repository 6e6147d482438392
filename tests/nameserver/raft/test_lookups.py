"""A DNS resolver that does not answer must not block a member.

It may delay only the member's links to addresses that contain host names.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from routekeeper.nameserver.raft.links.auth import Credentials
from routekeeper.nameserver.raft.links.transport import Transport
from routekeeper.nameserver.raft.types import RaftStartError
from routekeeper.remoting.transport import lookups
from tests.nameserver.raft.cluster import Owner
from tests.waiting import until

#: Seconds for which the resolver does not answer in these tests. Real resolvers may need longer.
SILENT_S = 10.0
#: Longest time that a test may take, in seconds.
SOON_S = 5.0
PEERS = tuple(f"peer-{number}.example:9878" for number in range(40))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Make the resolver hang for names below ``.example``.

    Yield the set of names that were looked up.
    """
    asked, over, resolve = set[str](), threading.Event(), socket.getaddrinfo

    def silent(host: Any, *more: Any, **others: Any) -> Any:
        if not str(host).endswith(".example") or others.get("flags", 0) & socket.AI_NUMERICHOST:
            return resolve(host, *more, **others)
        asked.add(str(host))
        over.wait(SILENT_S)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    yield asked
    over.set()
    for thread in threading.enumerate():
        if thread.name.startswith("look up "):
            thread.join(SOON_S)


def transport() -> Transport:
    me = "zzz.example:9878"  # a member dials only members with smaller names, so this member dials all
    credentials = Credentials(me=me, members=frozenset({me, *PEERS}), cluster="c", secret=b"s" * 32)
    return Transport(credentials, owner=Owner(), frame_size_max=1000)


@pytest.mark.slow
def test_peers_whose_names_nobody_resolves_take_no_thread_from_other_work(asked: set[str]) -> None:
    async def main() -> None:
        links = transport()
        await links.listen("127.0.0.1:0")
        await links.go()
        await until(lambda: len(asked) >= 4, "the resolver is asked")
        begun = time.monotonic()
        await asyncio.gather(*(asyncio.to_thread(lambda: None) for _ in range(20)))
        assert time.monotonic() - begun < SOON_S, "snapshots and other files are written meanwhile"
        await links.close()

    begun = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - begun < SILENT_S, "the loop ends without the resolver"


def test_a_name_to_listen_on_that_nobody_resolves_ends_the_start(
    asked: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups, "LISTEN_WITHIN_S", 0.1, raising=False)

    async def main() -> None:
        with pytest.raises(RaftStartError, match=r"me\.example was not resolved within 0\.1 s"):
            await transport().listen("me.example:0")

    begun = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - begun < SOON_S
