"""Tests of ``/v1/watch`` over real sockets.

The tests cover events, watches that continue, refusals and closed connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from routekeeper.nameserver.http import watch, watchers
from routekeeper.nameserver.http.watch import COMMENT
from routekeeper.remoting.http import listener
from routekeeper.remoting.transport import split_address
from tests.nameserver.http.test_admin import TOKEN, node
from tests.nameserver.http.test_listener import limited
from tests.nameserver.http.test_server_http import running
from tests.ports import free_addresses
from tests.waiting import until

EVENT_S = 30.0


class Stream:
    """The events of one watch, in order."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer
        self.id = ""

    async def next(self, *names: str) -> dict[str, Any]:
        """Return the data of the next event with one of these names.

        Skip other events and comments.
        """
        while True:
            name, data = await self.any()
            if name in names:
                return data

    async def any(self) -> tuple[str, dict[str, Any]]:
        fields: dict[str, str] = {}
        async with asyncio.timeout(EVENT_S):
            while (line := await self.answer.content.readline()) != b"\n" or "event" not in fields:
                assert line, "the stream has ended"
                name, _, text = line.decode().strip().partition(": ")
                fields[name] = text
        self.id = fields.get("id", self.id)
        return fields["event"], json.loads(fields["data"])

    async def ended(self) -> bool:
        """Return True if the stream ends. Skip events that come before the end."""
        async with asyncio.timeout(EVENT_S):
            with contextlib.suppress(aiohttp.ClientError):
                while await self.answer.content.readline():
                    pass
        return True


@contextlib.asynccontextmanager
async def watching(
    web: aiohttp.ClientSession, addr: str, query: str = "", **headers: str
) -> AsyncIterator[Stream]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with web.get(f"http://{addr}/v1/watch{query}", headers=named) as answer:
        assert answer.status == 200, await answer.text()
        assert answer.content_type == "text/event-stream"
        yield Stream(answer)


async def test_watch_tells_the_state_then_changes_and_goes_on_behind_its_id(tmp_path: Path) -> None:
    async with running(tmp_path) as ns:
        await ns.register("b", "T", "U")
        async with watching(ns.web, ns.http) as stream:
            events = [await stream.any() for _ in range(5)]
            assert [name for name, _ in events] == ["members", "reset", "topics", "brokers", "complete"]
            assert events[0][1]["mode"] == "independent"
            assert events[2][1]["changed"] == ["T", "U"]
            assert [broker["broker_name"] for broker in events[3][1]["changed"]] == ["b"]
            await ns.register("c", "V")
            assert (await stream.next("topics"))["changed"] == ["V"]
            assert [broker["broker_name"] for broker in (await stream.next("brokers"))["changed"]] == ["c"]
            last = stream.id
        await ns.ask(216, topic="T")
        for query, headers in (
            ("?kinds=topics", {"Last_Event_ID": last}),
            (f"?kinds=topics&last_event_id={last}", {}),
        ):
            async with watching(ns.web, ns.http, query, **headers) as stream:
                name, data = await stream.any()
                assert (name, data["removed"], data["changed"]) == ("topics", ["T"], [])
        async with watching(ns.web, ns.http, "?kinds=topics", Last_Event_ID="nonsense") as stream:
            assert (await stream.any())[0] == "reset"
            assert (await stream.any())[1]["changed"] == ["U", "V"]


@pytest.mark.slow
async def test_watch_of_a_raft_member_goes_on_at_another_member(tmp_path: Path) -> None:
    """A watch can continue at any member, because all members derive revisions from the same log.

    The events of each member also show which member is the leader.
    """

    async def put(group: list[Any], key: str) -> None:
        async def done() -> bool:
            url = f"http://{group[0].addr}/v1/kv/n/{key}"
            headers = {"Authorization": f"Bearer {TOKEN}"}
            async with group[0].web.put(url, json={"value": "v"}, headers=headers) as answer:
                return bool(answer.status == 200)

        async with asyncio.timeout(60):
            while not await done():  # noqa: ASYNC110  # a group without a leader refuses the change
                await asyncio.sleep(0.05)

    peers = free_addresses(3)
    async with contextlib.AsyncExitStack() as stack:
        group = [
            await stack.enter_async_context(
                # Long, so that the leader stays the leader on a busy machine until the transfer.
                node(tmp_path / str(at), raft, tuple(peers), raftElectionTimeoutMs="2000")
            )
            for at, raft in enumerate(peers)
        ]
        await until(lambda: all(one.mode.status().writes_ready for one in group))
        await put(group, "k")
        async with watching(group[0].web, group[0].addr, "?kinds=topics,members") as stream:
            members = await stream.next("members")
            assert sorted(members["members"]) == sorted(peers)
            assert members["leader"] in peers
            await stream.next("complete")
            place = stream.id
        assert not place.startswith("0-"), "the group has a number"
        async with watching(
            group[1].web, group[1].addr, "?kinds=topics,brokers", Last_Event_ID=place
        ) as other:
            leader = next(one for one in group if one.mode.status().role == "leader")
            operations = leader.mode.operations
            assert operations is not None
            await operations.member.changes.transfer_leadership(
                None, deadline=asyncio.get_running_loop().time() + 30
            )
            async with watching(group[2].web, group[2].addr, "?kinds=members") as third:
                while (await third.next("members"))["leader"] in (None, leader.raft):
                    pass
            ended = asyncio.create_task(other.any())
            await asyncio.sleep(0)
            assert not ended.done(), "nothing of the table has changed, and there is no reset"
            ended.cancel()


@pytest.mark.slow
async def test_id_and_entity_tag_hold_over_a_restart_and_not_in_a_new_cluster_that_was_forced(
    tmp_path: Path,
) -> None:
    (raft,) = free_addresses(1)
    known: dict[str, str] = {}
    for forced in ("", "", "true"):
        more = {"raftForceNewCluster": forced} if forced else {}
        async with node(tmp_path, raft, (raft,), **more) as one:
            await until(lambda one=one: one.mode.status().writes_ready)  # type: ignore[misc]
            url, token = f"http://{one.addr}/v1/kv", {"Authorization": f"Bearer {TOKEN}"}
            if not known:
                async with one.web.put(f"{url}/n/k", json={"value": "v"}, headers=token) as answer:
                    assert answer.status == 200
            async with one.web.get(url, headers={"If-None-Match": known.get("tag", "")}) as answer:
                assert answer.status == (304 if known and not forced else 200)
                known["tag"] = answer.headers["ETag"]
            query = f"?kinds=topics,members&last_event_id={known.get('id', '')}"
            async with watching(one.web, one.addr, query) as stream:
                await stream.next("members")
                if "id" not in known or forced:
                    assert [(await stream.any())[0] for _ in range(2)] == ["reset", "complete"]
                    known["id"] = stream.id


@pytest.mark.slow
async def test_entity_tag_of_a_member_that_was_asked_before_it_joined_holds_elsewhere(tmp_path: Path) -> None:
    """All members must send equal entity tags, even a member that sent a tag before it joined the group.

    An entity tag depends on the group's name. A member that has not joined yet uses the name of the group
    that it would create itself.
    """
    first, second = free_addresses(2)
    async with (
        node(tmp_path / "1", first, (first,)) as one,
        node(tmp_path / "2", second, (first, second)) as two,
    ):
        await until(lambda: one.mode.status().writes_ready)
        async with two.web.get(f"http://{two.addr}/v1/kv?consistency=stale") as answer:
            assert answer.status == 200
        token = {"Authorization": f"Bearer {TOKEN}"}
        value = "/v1/kv/n/k"
        async with one.web.put(f"http://{one.addr}{value}", json={"value": "v"}, headers=token) as answer:
            tag = answer.headers["ETag"]
        operations = one.mode.operations
        assert operations is not None
        deadline = asyncio.get_running_loop().time() + 30
        await operations.member.changes.add_member(second, deadline=deadline)
        async with two.web.get(f"http://{two.addr}{value}?consistency=linearizable") as answer:
            assert (answer.status, answer.headers["ETag"]) == (200, tag)


async def test_parameters_that_are_wrong_are_named(tmp_path: Path) -> None:
    async with running(tmp_path) as ns:
        for query, said in (
            ("kinds=queues", "kinds=queues is none of topics, brokers, members"),
            ("kinds=", "kinds= is none of"),
            ("state=some", "state=some is none of full, none"),
            ("x=1", "unknown parameter x"),
        ):
            status, problem = await ns.get(f"/v1/watch?{query}")
            assert (status, said in problem["detail"]) == (400, True), problem
        async with ns.web.head(f"http://{ns.http}/v1/watch") as answer:
            assert (answer.status, answer.content_type) == (200, "text/event-stream")
        await until(lambda: len(ns.web_server._watchers) == 0)


async def test_server_ends_in_the_instant_in_which_the_time_of_a_query_is_over(tmp_path: Path) -> None:
    async with running(tmp_path) as ns:
        loop, reads = asyncio.get_running_loop(), ns.web_server.reads
        asked = asyncio.create_task(ns.get("/v1/topics?index=1&wait=2s"))
        await until(lambda: bool(reads.waits))
        over = next(iter(reads.waits)).when()
        assert over is not None
        ended = loop.create_future()

        def end() -> None:
            try:
                reads.end()
            except RuntimeError as error:
                ended.set_exception(error)
            else:
                ended.set_result(None)

        loop.call_at(over + 1e-9, end)
        await ended
        assert (await asked)[0] == 200


async def test_watchers_are_bounded_and_a_place_is_free_once_one_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchers, "WATCHERS_MAX", 3)
    async with running(tmp_path) as ns, contextlib.AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(watching(ns.web, ns.http)) for _ in range(3)]
        async with ns.web.get(f"http://{ns.http}/v1/watch") as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
            assert "all 3 places of watchers are taken" in (await answer.json(content_type=None))["detail"]
        assert (await ns.get("/v1/topics"))[0] == 200
        streams[0].answer.close()
        await until(lambda: len(ns.web_server._watchers) == 2)
        await stack.enter_async_context(watching(ns.web, ns.http))


async def test_one_host_has_a_part_of_the_places_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchers, "WATCHERS_PER_HOST", 2)
    monkeypatch.setattr(watchers, "charged_host", lambda host: "10.0.0.1")
    async with running(tmp_path) as ns, contextlib.AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(watching(ns.web, ns.http))
        status, problem = await ns.get("/v1/watch")
        assert (status, "2 watchers are from this host" in problem["detail"]) == (503, True)


@pytest.mark.slow
async def test_silent_watch_gets_comments_and_is_not_closed_as_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchers, "COMMENT_S", 0.2)
    monkeypatch.setattr(watchers, "_TICK_S", 0.1)
    async with limited(tmp_path, monkeypatch, idle_s=1.0) as web:
        session = web.ns.web
        async with watching(session, web.ns.http, "?kinds=topics") as stream:
            await stream.next("complete")
            loop = asyncio.get_running_loop()
            begun, comments = loop.time(), 0
            async with asyncio.timeout(EVENT_S):
                while loop.time() < begun + 2.5 or comments < 5:
                    line = await stream.answer.content.readline()
                    assert line in (COMMENT[:2], b"\n"), line
                    comments += line == COMMENT[:2]


@pytest.mark.slow
async def test_watcher_that_does_not_read_is_closed_and_others_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with limited(tmp_path, monkeypatch, stalled_s=1.0) as web:
        ns = web.ns
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(split_address(ns.http))
        with reader:
            reader.sendall(b"GET /v1/watch?kinds=topics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await until(lambda: len(ns.web_server._watchers) == 1)
            async with watching(ns.web, ns.http, "?kinds=topics") as stream:
                await stream.next("complete")
                topics = [f"{number:05d}{'x' * 300}" for number in range(8_000)]
                for first in range(0, len(topics), 2_000):
                    assert (await ns.register(f"b{first}", *topics[first : first + 2_000])).code == 0
                told = 0
                while told < len(topics):
                    told += len((await stream.next("topics"))["changed"])
                await until(lambda: len(ns.web_server._watchers) == 1)
                await ns.register("c", "last")
                assert (await stream.next("topics"))["changed"] == ["last"]
    assert "it has read nothing of its answer for 1 s" in caplog.text


@pytest.mark.slow
async def test_what_changes_within_a_pause_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "PAUSE_MIN_S", 0.5)
    async with running(tmp_path) as ns, watching(ns.web, ns.http, "?kinds=topics") as stream:
        await stream.next("complete")
        topics = [f"t{number:02d}" for number in range(60)]
        for number, topic in enumerate(topics):
            await ns.register(f"b{number}", topic)
        events, told = 0, 0
        while told < len(topics):
            told += len((await stream.next("topics"))["changed"])
            events += 1
        assert events < len(topics) / 2


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the kernel has no such limit")
async def test_kernel_closes_a_watcher_whose_host_does_not_answer(tmp_path: Path) -> None:
    async with running(tmp_path) as ns, watching(ns.web, ns.http) as stream:
        await stream.next("complete")
        await ns.get("/healthz")
        limits = sorted(
            connection.transport.get_extra_info("socket").getsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT
            )
            for connection in ns.web_server._connections.open
            if connection.transport is not None
        )
        assert limits == [0, round(watchers.LOST_S * 1000)]


async def test_watch_ends_when_the_server_stops(tmp_path: Path) -> None:
    async with running(tmp_path) as ns, watching(ns.web, ns.http) as stream:
        await stream.next("complete")
        before = asyncio.get_running_loop().time()
        closing = asyncio.create_task(ns.web_server.close())
        assert await stream.ended()
        await closing
        assert asyncio.get_running_loop().time() - before < 10


def test_bounds_are_below_those_of_connections() -> None:
    assert watchers.WATCHERS_MAX * 10 < listener.CONNECTIONS_MAX
    assert watch.COMMENT_S * 2 <= watchers.LOST_S < listener.IDLE_S
