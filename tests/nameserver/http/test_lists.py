"""Tests of lists over HTTP.

The tests cover pages, filters, waiting for a change, status 304, gzip, and the cost of large lists.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routekeeper.nameserver.http import coding, lane, lists
from routekeeper.nameserver.http.coding import accepts_gzip, cursor_of, has_tag, place_of
from routekeeper.nameserver.http.lists import Wanted
from routekeeper.nameserver.modes import line
from routekeeper.nameserver.modes.interface import Freshness
from routekeeper.nameserver.routes.view import RouteView
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.steps import STEP, finish
from tests.nameserver.http.test_server_http import Running, running
from tests.waiting import until


async def pages(ns: Running, path: str, member: str) -> list[Any]:
    """Return all pages of a list, each page as the list of its items."""
    found, cursor = [], ""
    while True:
        status, body = await ns.get(f"{path}{cursor}")
        assert status == 200, body
        found.append(body[member])
        if "next_cursor" not in body:
            return found
        cursor = f"&cursor={quote(body['next_cursor'])}"


async def test_pages_of_topics_hold_each_topic_once_whatever_comes_and_goes_between_them(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as ns:
        topics = [f"t{number:02d}" for number in range(10)]
        await ns.register("b", *topics)
        assert await pages(ns, "/v1/topics?limit=4", "topics") == [topics[:4], topics[4:8], topics[8:]]
        assert await pages(ns, "/v1/topics?limit=10", "topics") == [topics]
        _, first = await ns.get("/v1/topics?limit=4")
        await ns.register("b", *topics[:2], *topics[4:], "t00a", "t99", counter=2)
        await ns.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="t03")
        _, rest = await ns.get(f"/v1/topics?cursor={first['next_cursor']}")
        assert rest["topics"] == [*topics[4:], "t99"]


async def test_lists_are_filtered_by_prefix_and_cluster(tmp_path: Path) -> None:
    async with running(tmp_path) as ns:
        await ns.register("orders-b", "orders-1", "bills-1", "ä-1")
        await ns.register("bills-b", "orders-2", "bills-2", cluster="D")
        for path, member, expected in (
            ("/v1/topics?prefix=orders", "topics", ["orders-1", "orders-2"]),
            ("/v1/topics?cluster=D", "topics", ["bills-2", "orders-2"]),
            ("/v1/topics?cluster=D&prefix=orders&limit=1", "topics", ["orders-2"]),
            ("/v1/topics?cluster=none", "topics", []),
            ("/v1/topics?prefix=%C3%A4", "topics", ["ä-1"]),
            ("/v1/topics?prefix=zz", "topics", []),
        ):
            assert await pages(ns, path, member) == [expected], path
        for path, expected in (
            ("/v1/brokers?prefix=orders", ["orders-b"]),
            ("/v1/brokers?cluster=D", ["bills-b"]),
            ("/v1/brokers?cluster=C&prefix=bills", []),
        ):
            _, body = await ns.get(path)
            assert [broker["broker_name"] for broker in body["brokers"]] == expected, path
        brokers = await pages(ns, "/v1/brokers?limit=1", "brokers")
        assert [broker["broker_name"] for (broker,) in brokers] == ["orders-b", "bills-b"]
        clusters = await pages(ns, "/v1/clusters?limit=1", "clusters")
        assert [cluster["cluster"] for (cluster,) in clusters] == ["C", "D"]
        _, body = await ns.get("/v1/clusters?cluster=D&prefix=D")
        assert [cluster["cluster"] for cluster in body["clusters"]] == ["D"]


async def test_kv_namespaces_and_keys_come_in_pages(tmp_path: Path) -> None:
    async with running(tmp_path) as ns:
        for namespace in ("n1", "n2", "other"):
            for key in ("k1", "k2", "é"):
                await ns.ask(RequestCode.PUT_KV_CONFIG, namespace=namespace, key=key, value=f"{key}!")
        assert await pages(ns, "/v1/kv?prefix=n&limit=1", "namespaces") == [["n1"], ["n2"]]
        tables = await pages(ns, "/v1/kv/n1?limit=2", "table")
        assert tables == [{"k1": "k1!", "k2": "k2!"}, {"é": "é!"}]
        assert await pages(ns, "/v1/kv/n1?prefix=%C3%A9", "table") == [{"é": "é!"}]


WRONG = {
    "/v1/topics?limit=0": "limit=0 is not 1 to 10000",
    "/v1/topics?limit=10001": "limit=10001 is not 1 to 10000",
    "/v1/topics?limit=-1": "limit=-1 is no whole number",
    "/v1/topics?cursor=%00": "is no next_cursor of this list",
    f"/v1/topics?cursor={cursor_of('c', 'a:1')}": "is no next_cursor of this list",
    f"/v1/brokers?cursor={cursor_of('t')}": "is no next_cursor of this list",
    "/v1/topics?wait=1s": "wait needs index",
    "/v1/topics?index=1&wait=61s": "wait=61s is not 0s to 60s",
}


async def test_wrong_parameter_is_named_with_what_is_allowed(tmp_path: Path) -> None:
    async with running(tmp_path) as ns:
        for path, said in WRONG.items():
            status, problem = await ns.get(path)
            assert status == 400, path
            assert said in problem["detail"]


@given(st.lists(st.text(), min_size=1, max_size=3))
def test_cursor_stands_for_its_place(place: list[str]) -> None:
    assert place_of(cursor_of(*place), len(place)) == tuple(place)


@given(st.text())
def test_any_text_is_a_cursor_or_is_refused(text: str) -> None:
    try:
        place = place_of(text, 1)
    except ValueError:
        return
    assert len(place) == 1


async def test_list_is_answered_when_its_kind_has_changed_and_not_for_other_changes(tmp_path: Path) -> None:
    async with running(tmp_path) as ns:
        await ns.register("b", "T")
        _, before = await ns.get("/v1/kv")
        kv = asyncio.create_task(ns.get(f"/v1/kv?index={before['index']}&wait=50s"))
        far = asyncio.create_task(ns.get(f"/v1/topics?index={10**17}&wait=50s"))
        paths = ("/v1/topics", "/v1/brokers", "/v1/clusters")
        lists = [asyncio.create_task(ns.get(f"{path}?index={before['index']}&wait=50s")) for path in paths]
        waiting = ns.mode._waiters._lists
        await until(lambda: sum(map(len, waiting.values())) == 5)
        await ns.register("c", "T", "U")
        for task in lists:
            status, body = await asyncio.wait_for(task, 30)
            assert status == 200
            assert body["index"] > before["index"]
        assert not kv.done()
        assert sum(map(len, waiting.values())) == 2, "who has an answer waits no more"
        await ns.ask(RequestCode.PUT_KV_CONFIG, namespace="n", key="k", value="v")
        assert (await asyncio.wait_for(kv, 30))[1]["namespaces"] == ["n"]
        assert not far.done()
        ns.web_server.reads.end()
        assert (await asyncio.wait_for(far, 30))[0] == 200
        assert not any(waiting.values())


async def test_list_that_has_not_changed_is_answered_at_the_end_of_its_wait(tmp_path: Path) -> None:
    async with running(tmp_path) as ns:
        await ns.register("b", "T")
        _, before = await ns.get("/v1/topics")
        status, body = await ns.get(f"/v1/topics?index={before['index']}&wait=0.05s")
        assert (status, body["index"]) == (200, before["index"])
        status, _ = await ns.get(f"/v1/topics?index={before['index']}&epoch=9&wait=50s")
        assert status == 200, "an index of another epoch is not waited for"
        assert not any(ns.mode._waiters._lists.values())


async def test_entity_tag_spares_an_answer_until_something_of_its_kind_changes(tmp_path: Path) -> None:
    async def asked(ns: Running, path: str, tag: str = "") -> tuple[int, str, bytes]:
        headers = {"If-None-Match": tag} if tag else {}
        async with ns.web.get(f"http://{ns.http}{path}", headers=headers) as answer:
            return answer.status, answer.headers["ETag"], await answer.read()

    async with running(tmp_path) as ns:
        await ns.register("b", "T")
        await ns.ask(RequestCode.PUT_KV_CONFIG, namespace="n", key="k", value="v")
        paths = ("/v1/topics", "/v1/brokers", "/v1/clusters", "/v1/kv", "/v1/kv/n", "/v1/topics/T/route")
        tags = {}
        for path in paths:
            _, tags[path], _ = await asked(ns, path)
            assert await asked(ns, path, f'"x", {tags[path]}') == (304, tags[path], b"")
            assert (await asked(ns, path, "*"))[0] == 304
            assert (await asked(ns, path, '"x"'))[0] == 200
        await ns.register("c", "U")
        changed = [path for path in paths if (await asked(ns, path, tags[path]))[0] == 200]
        assert changed == ["/v1/topics", "/v1/brokers", "/v1/clusters"]
        await ns.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"supportActingMaster=true")
        assert (await asked(ns, paths[-1], tags[paths[-1]]))[0] == 200, "the setting shows in routes"


@pytest.mark.parametrize(
    ("header", "accepts"),
    [
        (None, False),
        ("", False),
        ("gzip", True),
        ("deflate, gzip;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip;q=0.000", False),
        ("*", True),
        ("identity", False),
        ("gzip;q=0, *", False),
        ("x" * 8000, False),
        ("gzip;" * 1000, False),
    ],
)
def test_gzip_is_for_those_who_accept_it(header: str | None, accepts: bool) -> None:
    assert accepts_gzip(header) is accepts


def test_weak_and_strong_tags_are_told_apart() -> None:
    assert has_tag('W/"1"', 'W/"1"')
    assert has_tag('"1"', 'W/"1"')
    assert not has_tag('"1"', 'W/"1"', strong=True)
    assert not has_tag('W/"1"', '"1"', strong=True)
    assert has_tag('"0", "1"', '"1"', strong=True)
    assert not has_tag("1", '"1"')


async def test_large_answers_are_compressed_and_say_the_same(tmp_path: Path) -> None:
    async def asked(ns: Running, path: str, coding: str) -> tuple[Any, bytes]:
        headers = {"Accept-Encoding": coding}
        ns.web._auto_decompress = False
        async with ns.web.get(f"http://{ns.http}{path}", headers=headers) as answer:
            return answer.headers.copy(), await answer.read()

    async with running(tmp_path) as ns:
        await ns.register("b", *(f"orders-{number:05d}" for number in range(3 * STEP)))
        plain, body = await asked(ns, "/v1/topics", "identity")
        headers, packed = await asked(ns, "/v1/topics", "gzip")
        assert "Content-Encoding" not in plain
        assert headers["Content-Encoding"] == "gzip"
        assert plain["Vary"] == headers["Vary"] == "Accept-Encoding"
        assert plain["ETag"] == headers["ETag"]
        assert len(packed) < len(body) / 3
        assert json.loads(gzip.decompress(packed))["topics"] == json.loads(body)["topics"]
        small, _ = await asked(ns, "/v1/topics?limit=10", "gzip")
        assert "Content-Encoding" not in small


def test_compressing_takes_a_step_for_each_part() -> None:
    assert len(list(coding.compressing(bytes(1024 * 1024)))) == 16
    assert gzip.decompress(finish(coding.compressing(b"x" * 300_000))) == b"x" * 300_000


async def test_lists_that_wait_for_their_turn_are_bounded_and_who_is_gone_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "WAITING_MAX", 5)
    begun = 0
    async with running(tmp_path) as ns:
        at = lane.Lane()

        def work(steps: int) -> Any:
            nonlocal begun
            begun += 1
            for _ in range(steps):
                await_time()
                yield
            return begun

        def await_time() -> None:
            finish(coding.compressing(bytes(256 * 1024)))

        wanted = [True] * 5
        waiting = [
            asyncio.create_task(at.run(work(20), is_wanted=lambda number=number: wanted[number]))  # type: ignore[misc]
            for number in range(5)
        ]
        await asyncio.sleep(0)
        assert at.waiting == 5
        with pytest.raises(Exception, match="5 lists are being made"):
            await at.run(work(1), is_wanted=lambda: True)
        wanted[3] = False
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(results[3], ConnectionError)
        assert [isinstance(result, int) for result in results] == [True, True, True, False, True]
        assert begun == 4
        assert await at.run(work(1), is_wanted=lambda: True) == 5
        assert at.waiting == 0
        await ns.get("/healthz")


@pytest.mark.slow
async def test_loop_goes_round_while_a_list_of_a_large_table_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A fast machine makes the whole list in 20 ms. With the default time slice, the list could then need too
    # few turns of the event loop.
    monkeypatch.setattr(line, "SLICE_S", 0.0005)
    rounds = 0

    async def count() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    async with running(tmp_path) as ns:
        for number in range(8):
            topics = [f"orders-{number}-{one:05d}" for one in range(10_000)]
            assert (await ns.register(f"b{number}", *topics)).code == 0
        counting = asyncio.create_task(count())
        await asyncio.sleep(0)
        page = lists.topics_page(
            ns.mode.view(Freshness.STALE), ns.web_server.reads.order, Wanted(limit=50, cluster="D")
        )
        made = await ns.web_server.lane.run(page, is_wanted=lambda: True)
        assert made.things.inner == []
        counting.cancel()
    assert rounds > 8


async def test_list_whose_making_fails_is_a_500_and_the_next_one_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as ns:
        await ns.register("b", "T")
        with monkeypatch.context() as broken:
            broken.setattr(RouteView, "topic_names", lambda _: 1 / 0)
            assert (await ns.get("/v1/topics"))[0] == 500
        assert (await ns.get("/v1/topics"))[1]["topics"] == ["T"]
    assert "http request failed" in caplog.text
