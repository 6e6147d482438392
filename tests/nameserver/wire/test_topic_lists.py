"""Tests of requests for lists of topics, over sockets.

The server makes a long list in steps. Between the steps, the event loop does other work.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from routekeeper.nameserver.modes import line
from routekeeper.remoting.bodies import TopicList
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.steps import STEP
from routekeeper.remoting.transport.aio import RemotingClient
from tests.nameserver.http.test_server_http import Running, running
from tests.turns import Turns
from tests.waiting import until

TOPICS = tuple(f"topic-{number:05d}" for number in range(20 * STEP))
LIST = int(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)


async def topics(ns: Running, code: int = LIST) -> tuple[str, ...]:
    answer = await ns.ask(code, cluster="C")
    assert answer.code == 0
    return TopicList.decode(answer.body).topics


@pytest.mark.parametrize("leader_lost", [False, True], ids=["readable", "not readable at first"])
async def test_other_work_has_its_turn_while_a_long_list_is_made(
    leader_lost: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as ns:
        await ns.register("b", *TOPICS)
        monkeypatch.setattr(line, "SLICE_S", 0.0)  # one step in each turn of the event loop
        if leader_lost:
            # Make the server find no view of its table that may be read, as after the loss of the leader. The
            # read then waits until the server gets such a view.
            monkeypatch.setattr(ns.server, "_readable_view", lambda: None)
        for code in (206, 224, 311, 312, 313):
            turns = Turns()
            found = await topics(ns, code)
            assert turns.end() >= len(TOPICS) // STEP
            assert found == (TOPICS if code in (206, 224) else ())


@pytest.mark.slow
async def test_list_shows_every_acknowledged_change_beside_other_lists(tmp_path: Path) -> None:
    async with running(tmp_path) as ns:
        await ns.register("b", *TOPICS)
        others = [asyncio.create_task(topics(ns)) for _ in range(3)]
        for number in range(5):
            name = f"new-{number}"
            assert (await ns.register(name, f"topic-of-{name}", "x")).code == 0
            assert f"topic-of-{name}" in await topics(ns)
            others.append(asyncio.create_task(topics(ns)))
        for other in others:
            assert len(await other) >= len(TOPICS)


async def test_lists_of_a_closed_connection_are_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as ns:
        await ns.register("b", *TOPICS)
        monkeypatch.setattr(line, "SLICE_S", 0.0)
        async with RemotingClient() as client:
            ns.client, client_of_broker = client, ns.client
            asked = [asyncio.create_task(ns.ask(LIST)) for _ in range(3)]
            await until(lambda: bool(ns.server.lists.waiting))
        ns.client = client_of_broker
        await asyncio.gather(*asked, return_exceptions=True)
        await until(lambda: not ns.server.lists.waiting)
        assert await topics(ns) == TOPICS
