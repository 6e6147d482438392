"""Tests of the lane: which requests wait for the long lists of other clients, and which do not."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from routekeeper.nameserver.http import app, lane
from routekeeper.nameserver.http.coding import GZIP_STEP, compressing_answer
from routekeeper.remoting.http.gate import BEGIN_MAX
from routekeeper.remoting.steps import Steps
from tests.nameserver.http.test_floods import get
from tests.nameserver.http.test_listener import answer, ended, limited
from tests.nameserver.http.test_server_http import Running, running
from tests.turns import Turns
from tests.waiting import until

#: Loopback address of the clients that send many requests. Each loopback address is one host.
OTHER_HOST = "127.0.0.2"
GZIP = {"Accept-Encoding": "gzip"}
PLAIN = {"Accept-Encoding": "identity"}


class Held:
    """A task of another host that fills the lane until a test ends it."""

    def __init__(self, ns: Running) -> None:
        self.over = False
        self._lane = ns.web_server.lane
        self._task = asyncio.create_task(
            self._lane.run(self._work(), is_wanted=lambda: True, sender="another client", host="10.0.0.1")
        )

    def _work(self) -> Steps[bool]:
        while not self.over:
            yield
        return True

    async def end(self) -> None:
        self.over = True
        assert await self._task


async def test_answer_of_a_hosts_request_comes_before_the_many_lists_of_another_host(tmp_path: Path) -> None:
    lists, before = 40, 0
    connector = aiohttp.TCPConnector(local_addr=(OTHER_HOST, 0), limit=0)
    async with running(tmp_path) as ns, aiohttp.ClientSession(connector=connector) as others:

        async def ask_list() -> None:
            nonlocal before
            async with others.get(f"http://{ns.http}/v1/topics", headers=PLAIN) as answered:
                assert (answered.status, len(await answered.read()) > 100_000) == (200, True)
            before += 1

        await ns.register("b", *(f"topic-of-a-stranger-{number:05d}" for number in range(5_000)))
        held = Held(ns)
        await until(lambda: ns.web_server.lane.waiting == 1)
        asked = [asyncio.create_task(ask_list()) for _ in range(lists)]
        await until(lambda: ns.web_server.lane.waiting == 1 + lists)
        own = asyncio.create_task(ns.get("/v1/console/own"))
        await until(lambda: ns.web_server.lane.waiting == 2 + lists)
        await held.end()
        assert (await own)[0] == 200
        assert before < lists / 4
        await asyncio.gather(*asked)


async def test_hosts_take_turns_and_so_do_the_connections_of_one_host() -> None:
    at, order = lane.Lane(), list[str]()

    def work(name: str) -> Steps[str]:
        yield
        order.append(name)
        return name

    def ask(name: str) -> Any:
        return at.run(work(name), is_wanted=lambda: True, sender=name[:2], host=name[0])

    def first() -> Steps[str]:
        while at.waiting < 7:
            yield
        return "first"

    asked = [asyncio.create_task(at.run(first(), is_wanted=lambda: True))]
    await asyncio.sleep(0)
    asked += [asyncio.create_task(ask(name)) for name in ("A1", "A1 again", "A2", "A3", "B1", "B2")]
    await asyncio.gather(*asked)
    assert order == ["A1", "B1", "A2", "B2", "A3", "A1 again"]


async def test_compressed_metrics_do_not_wait_for_the_lane(tmp_path: Path) -> None:
    async with running(tmp_path) as ns:
        held = Held(ns)
        async with ns.web.get(f"http://{ns.http}/metrics", headers=GZIP) as answered:
            assert (answered.status, answered.headers["Content-Encoding"]) == (200, "gzip")
            assert "mqnamesrv_info" in await answered.text()
        assert not held.over
        await held.end()


@pytest.mark.parametrize("step", [GZIP_STEP, 0], ids=["short answer", "long answer"])
async def test_metrics_are_answered_while_the_lane_is_full(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "WAITING_MAX", 1)
    monkeypatch.setattr(app, "GZIP_STEP", step)
    async with running(tmp_path) as ns:
        held = Held(ns)
        await until(lambda: ns.web_server.lane.waiting == 1)
        async with ns.web.get(f"http://{ns.http}/metrics", headers=GZIP) as answered:
            assert answered.status == 200
            assert answered.headers.get("Content-Encoding") == ("gzip" if step else None)
            assert "mqnamesrv_info" in await answered.text()
        assert (await ns.get("/v1/topics"))[0] == 503
        await held.end()


async def test_of_many_queries_that_end_together_a_few_are_compressed_in_each_turn_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, compressed = Turns(), Counter[int]()

    def counting(response: web.Response) -> Steps[web.Response]:
        compressed[turns.number] += 1
        return compressing_answer(response)

    monkeypatch.setattr(app, "compressing_answer", counting)
    async with limited(tmp_path, monkeypatch) as web_:
        for number in range(10):
            await web_.ns.register(f"broker-{number}", "T")
        query = get(f"/v1/topics/T/route?index={10**15}&wait=30s", more=b"Accept-Encoding: gzip\r\n")
        opened = [await web_.open(query) for _ in range(60)]
        await until(lambda: len(web_.ns.web_server.reads.waits) == 60)
        web_.ns.web_server.reads.end()
        for reader, _ in opened:
            assert b"Content-Encoding: gzip" in await answer(reader)
    turns.end()
    assert compressed.total() == 60
    assert max(compressed.values()) <= 2 * BEGIN_MAX


async def test_watch_whose_events_are_refused_ends_with_its_connection_and_without_a_second_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with limited(tmp_path, monkeypatch) as web_:
        ns = web_.ns
        reader, _ = await web_.open(get("/v1/watch?kinds=topics"))
        assert b" 200 " in await answer(reader)
        await reader.readuntil(b"event: complete")
        monkeypatch.setattr(lane, "WAITING_MAX", 0)
        await ns.register("b", "T")
        rest = await ended(reader)
        assert b"HTTP/1.1" not in rest
        assert not rest.endswith(b"0\r\n\r\n"), "the stream has no regular end"
        await until(lambda: not web_.connections.open)
        assert 'mqnamesrv_http_requests_total{code="503",path="/v1/watch"} 1' in (await ns.get("/metrics"))[1]
