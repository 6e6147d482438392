"""Tests of a complete nameserver in independent mode.

The nameserver runs in the process of the tests. It serves RocketMQ's protocol and HTTP over sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema
import pytest

from routekeeper.nameserver.http import openapi
from routekeeper.nameserver.http.app import HttpServer, page_files
from routekeeper.nameserver.modes import kept_file
from routekeeper.nameserver.modes.independent import Independent
from routekeeper.nameserver.modes.interface import Freshness, NoQuorum
from routekeeper.nameserver.routes.view import RouteView
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.nameserver.types import Answer, BrokerAddr, ConnectionId, MinBrokerChange, Request
from routekeeper.nameserver.wire.server import NameServer
from routekeeper.remoting.bodies import KVTable, TopicList
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.fields import PutKvFields, RegisterBrokerFields
from routekeeper.remoting.registration import RegisterBody, body_crc32, encode_register_body
from routekeeper.remoting.route import DataVersion, TopicConfig, decode_route
from routekeeper.remoting.transport import split_address
from routekeeper.remoting.transport.aio import RemotingClient
from tests.waiting import until


class LeaderLost(Independent):
    """Independent mode which, as long as ``lost`` is True, refuses requests like a group without a leader."""

    lost = False

    def view(self, freshness: Freshness) -> RouteView:
        if self.lost and freshness is Freshness.DEFAULT:
            raise NoQuorum("name server not ready: no leader")
        return super().view(freshness)

    async def execute(
        self, request: Request, origin: ConnectionId, *, deadline: float, host: str = ""
    ) -> Answer:
        if self.lost:
            return Answer(code=1, remark="[NO_QUORUM] name server not ready: no leader")
        return await super().execute(request, origin, deadline=deadline, host=host)


@dataclass
class Running:
    server: NameServer
    mode: LeaderLost
    live: LiveSettings
    wire: str
    http: str
    client: RemotingClient
    web: aiohttp.ClientSession
    web_server: HttpServer

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.web.get(f"http://{self.http}{path}") as answer:
            body = await answer.read()
            kind = answer.content_type
            return answer.status, json.loads(body) if kind.endswith("json") else body.decode()

    async def ask(self, code: int, body: bytes = b"", **ext: str) -> RemotingCommand:
        return await self.client.invoke(self.wire, RemotingCommand.request(code, ext, body))

    async def register(
        self,
        name: str,
        *topics: str,
        counter: int = 1,
        client: RemotingClient | None = None,
        cluster: str = "C",
    ) -> RemotingCommand:
        body = encode_register_body(
            RegisterBody(
                data_version=DataVersion(timestamp=1, counter=counter),
                topic_configs=tuple(TopicConfig(topic_name=topic) for topic in topics),
            ),
            compressed=False,
            version=479,
        )
        fields = RegisterBrokerFields(
            broker_name=name,
            broker_addr=f"10.0.0.1:{zlib.crc32(name.encode()) % 60000}",
            cluster_name=cluster,
            broker_id=0,
            body_crc32=body_crc32(body),
        )
        request = RemotingCommand.request(RequestCode.REGISTER_BROKER, fields.to_ext(), body)
        return await (client or self.client).invoke(self.wire, request)


@contextlib.asynccontextmanager
async def running(tmp_path: Path, **changes: Any) -> AsyncIterator[Running]:
    settings = NamesrvSettings(listen_port=0, http="127.0.0.1:0", data_dir=str(tmp_path))
    live = LiveSettings(replace(settings, **changes))
    async with asyncio.TaskGroup() as group:
        server = NameServer(settings=live, group=group)
        mode = LeaderLost(live, server, boot_id=1)
        mode.start()
        http = HttpServer(consistency=mode, server=server, settings=live, version="test")
        wire = await server.start(mode)
        addr = await http.start("127.0.0.1", 0)
        try:
            async with RemotingClient() as client, aiohttp.ClientSession() as web:
                yield Running(server, mode, live, wire, addr, client, web, http)
        finally:
            await http.close()
            await server.close(drain_s=2.0)
            await mode.close()


async def test_registered_topic_is_routed_and_vanishes_with_its_connection(tmp_path: Path) -> None:
    async with running(tmp_path) as ns:
        async with RemotingClient() as broker:
            assert (await ns.register("b", "T", "U", client=broker)).code == 0
            for _ in range(3):
                answer = await ns.ask(105, topic="T")
                assert [data.broker_name for data in decode_route(answer.body).broker_datas] == ["b"]
            assert ns.server.cache.hits >= 2
            listed = TopicList.decode((await ns.ask(206)).body)
            assert sorted(listed.topics) == ["T", "U"]
        await until(lambda: ns.mode.view(Freshness.STALE).topic_count == 0)
        answer = await ns.ask(105, topic="T")
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert "No topic route info in name server for the topic: T" in (answer.remark or "")


async def test_every_code_of_the_issue_is_served_and_others_are_not(tmp_path: Path) -> None:
    served = [100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 217, 219, 224, 304, 311, 312, 313]
    served += [318, 319, 322, 327, 901, 904]
    async with running(tmp_path) as ns:
        for code in range(0, 1000, 1):
            if code not in served and code % 7 and code != 905:
                continue
            answer = await ns.ask(code, topic="T")
            assert (answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED) is (code not in served), code
            assert (answer.remark == f" request type {code} not supported") is (code not in served), code


async def test_kv_and_settings_work_over_the_wire_and_show_over_http(tmp_path: Path) -> None:
    async with running(tmp_path) as ns:
        fields = PutKvFields(namespace="N/é", key="k", value="v")
        assert (await ns.ask(100, b"", **fields.to_ext())).code == 0
        assert KVTable.decode((await ns.ask(219, namespace="N/é")).body).table == {"k": "v"}
        status, body = await ns.get("/v1/kv/N%2F%C3%A9")
        assert (status, body["table"]) == (200, {"k": "v"})
        await ns.register("b", "T")
        await ns.ask(100, namespace="ORDER_TOPIC_CONFIG", key="T", value="b:4")
        assert decode_route((await ns.ask(105, topic="T")).body).order_topic_conf is None
        assert (await ns.ask(318, b"orderMessageEnable=true")).code == 0
        assert decode_route((await ns.ask(105, topic="T")).body).order_topic_conf == "b:4"
        await ns.ask(100, namespace="ORDER_TOPIC_CONFIG", key="T", value="b:8")
        assert decode_route((await ns.ask(105, topic="T")).body).order_topic_conf == "b:8"


async def test_refused_route_query_turns_the_client_away_but_keeps_a_brokers_connection(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as ns, RemotingClient() as broker:
        await ns.register("b", "T", client=broker)
        assert (await ns.ask(105, topic="T")).code == 0
        ns.mode.lost = True
        refused = await ns.ask(105, topic="T")
        assert refused.code == 1
        assert refused.remark == "[NO_QUORUM] name server not ready: no leader"
        await until(lambda: not ns.client.connected(ns.wire))
        request = RemotingCommand.request(105, {"topic": "T"})
        for _ in range(2):
            assert (await broker.invoke(ns.wire, request)).code == 1
        assert broker.connected(ns.wire)
        assert (await ns.ask(206)).code == 1
        # The connection stays open, because only refused route queries close it.
        assert ns.client.connected(ns.wire)
        status, problem = await ns.get("/v1/topics/T/route")
        assert (status, problem["status"]) == (503, 503)
        status, body = await ns.get("/v1/topics/T/route?consistency=stale")
        assert (status, body["topic"]) == (200, "T")
        for path in ("/v1/status", "/v1/digest", "/healthz", "/metrics"):
            assert (await ns.get(path))[0] == 200
        assert (await ns.ask(319)).code in (0, 1)
        ns.mode.lost = False
        assert (await ns.ask(105, topic="T")).code == 0


async def test_stale_setting_answers_routes_without_a_leader(tmp_path: Path) -> None:
    async with running(tmp_path, route_freshness="stale") as ns:
        await ns.register("b", "T")
        ns.mode.lost = True
        assert (await ns.ask(105, topic="T")).code == 0


async def test_evicted_brokers_connection_is_closed_after_what_is_in_flight(tmp_path: Path) -> None:
    async with running(tmp_path) as ns:
        await ns.ask(206)
        (connection,) = ns.server.wire.connections.values()
        connection.unanswered += 1
        ns.server.close_connection(ConnectionId(connection.id))
        assert connection.open
        connection.unanswered -= 1
        ns.server.close_connection(ConnectionId(connection.id))
        await until(lambda: not ns.server.wire.connections)
        ns.server.close_connection(ConnectionId(12345))


async def test_brokers_are_told_the_smallest_id_without_waiting_for_dead_ones(tmp_path: Path) -> None:
    told: list[dict[str, str]] = []

    async with running(tmp_path / "a") as ns:
        import routekeeper.remoting.transport.server as transport

        async with asyncio.TaskGroup() as group:
            broker = transport.RemotingServer(
                handlers={905: lambda _c, command: told.append(dict(command.ext_fields))}, group=group
            )
            addr = await broker.start("127.0.0.1", 0)
            for registered in ("127.0.0.1:1", addr):
                ns.server._notices.registered(ConnectionId(1), "127.0.0.1", registered)
            ns.server.notify_min_broker(
                MinBrokerChange(
                    min_broker_id=1,
                    min_broker_addr=BrokerAddr("10.0.0.1:1"),
                    offline_addr=BrokerAddr("10.0.0.1:2"),
                    ha_addr=None,
                    tell=(BrokerAddr("127.0.0.1:1"), BrokerAddr(addr)),
                )
            )
            await until(lambda: told)
            await broker.close()
    assert told == [{"minBrokerId": "1", "minBrokerAddr": "10.0.0.1:1", "offlineBrokerAddr": "10.0.0.1:2"}]


# HTTP --------------------------------------------------------------------------------------------

DOCUMENT = json.loads(openapi.document())


def schema_of(path: str, status: int) -> dict[str, Any]:
    operation = DOCUMENT["paths"][path]["get"]
    assert str(status) in operation["responses"], f"{path} answers {status}, which is not documented"
    response = operation["responses"][str(status)]
    if "$ref" in response:
        response = DOCUMENT["components"]["responses"][response["$ref"].rpartition("/")[2]]
    ((_, media),) = response["content"].items()
    schema: dict[str, Any] = {**media["schema"], "components": DOCUMENT["components"]}
    return schema


READS = [
    ("/v1/topics", "/v1/topics", 200),
    ("/v1/topics?consistency=stale", "/v1/topics", 200),
    ("/v1/topics?consistency=linearizable", "/v1/topics", 400),
    ("/v1/topics?consistency=x", "/v1/topics", 400),
    ("/v1/topics?nonsense=1", "/v1/topics", 400),
    ("/v1/topics?index=0&wait=5s", "/v1/topics", 200),
    ("/v1/topics?wait=1s", "/v1/topics", 400),
    ("/v1/topics?prefix=T&cluster=C&limit=1", "/v1/topics", 200),
    ("/v1/topics?limit=0", "/v1/topics", 400),
    ("/v1/topics?cursor=x", "/v1/topics", 400),
    ("/v1/brokers?index=0&wait=5s", "/v1/brokers", 200),
    ("/v1/clusters?index=0", "/v1/clusters", 200),
    ("/v1/kv/N?index=0", "/v1/kv/{namespace}", 200),
    ("/v1/kv/N?cluster=C", "/v1/kv/{namespace}", 400),
    ("/v1/kv", "/v1/kv", 200),
    ("/v1/kv/N/k", "/v1/kv/{namespace}/{key}", 200),
    ("/v1/kv/N/gone", "/v1/kv/{namespace}/{key}", 404),
    ("/v1/watch?kinds=all", "/v1/watch", 400),
    ("/v1/topics/T/explain?index=1", "/v1/topics/{topic}/explain", 400),
    ("/v1/topics/T/route", "/v1/topics/{topic}/route", 200),
    ("/v1/topics/T/route?consistency=default", "/v1/topics/{topic}/route", 200),
    ("/v1/topics/T/route?index=0&wait=1s", "/v1/topics/{topic}/route", 200),
    ("/v1/topics/T/route?index=x", "/v1/topics/{topic}/route", 400),
    ("/v1/topics/T/route?wait=1s", "/v1/topics/{topic}/route", 400),
    ("/v1/topics/T/route?index=1&wait=61s", "/v1/topics/{topic}/route", 400),
    ("/v1/topics/gone/route", "/v1/topics/{topic}/route", 404),
    ("/v1/topics/T/explain", "/v1/topics/{topic}/explain", 200),
    ("/v1/topics/gone/explain", "/v1/topics/{topic}/explain", 200),
    ("/v1/brokers", "/v1/brokers", 200),
    ("/v1/clusters", "/v1/clusters", 200),
    ("/v1/kv/N", "/v1/kv/{namespace}", 200),
    ("/v1/kv/gone", "/v1/kv/{namespace}", 404),
    ("/v1/status", "/v1/status", 200),
    ("/v1/status?x=1", "/v1/status", 400),
    ("/v1/digest", "/v1/digest", 200),
    ("/v1/raft/status", "/v1/raft/status", 404),  # independent mode has no raft group
    ("/healthz", "/healthz", 200),
    ("/readyz", "/readyz", 200),
    ("/metrics", "/metrics", 200),
    ("/v1/topics?contains=t&limit=1", "/v1/topics", 200),
    ("/v1/brokers?contains=10.0", "/v1/brokers", 200),
    ("/v1/console/cluster", "/v1/console/cluster", 200),
    ("/v1/console/cluster?x=1", "/v1/console/cluster", 400),
    ("/v1/console/pulse", "/v1/console/pulse", 200),
    ("/v1/console/history", "/v1/console/history", 200),
    ("/v1/console/topics/T", "/v1/console/topics/{topic}", 200),
    ("/v1/console/own?after=0", "/v1/console/own", 200),
    ("/v1/console/own?after=x", "/v1/console/own", 400),
    ("/v1/console/own/topics/T", "/v1/console/own/topics/{topic}", 200),
    ("/openapi.json", "/openapi.json", 200),
]


async def test_http_answers_are_as_the_document_says(tmp_path: Path) -> None:
    async with running(tmp_path) as ns:
        await ns.register("b", "T")
        await ns.ask(100, namespace="N", key="k", value="v")
        for path, template, expected in READS:
            status, body = await ns.get(path)
            assert status == expected, (path, body)
            schema = schema_of(template, status)
            if isinstance(body, dict):
                jsonschema.Draft202012Validator(schema).validate(body)
            if status >= 400:
                assert body["status"] == status
                assert body["title"]
                assert body["detail"]
    assert {template for _, template, _ in READS} == {
        path for path, item in DOCUMENT["paths"].items() if "get" in item
    }


async def test_document_and_served_paths_are_the_same(tmp_path: Path) -> None:
    async with running(tmp_path) as ns:
        application = HttpServer(
            consistency=ns.mode, server=ns.server, settings=ns.live, version="x"
        ).application()
        served = {
            (route.method, route.resource.canonical)
            for route in application.router.routes()
            if route.resource is not None and route.method != "HEAD"
        }
        described = {
            (method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods
        }
        page = {("GET", path) for path in page_files()}
        assert {("GET", "/"), ("GET", "/style.css"), ("GET", "/app.js")} < page
        assert served == described | page
        _, document = await ns.get("/openapi.json")
        assert document == DOCUMENT


def test_document_is_whole() -> None:
    """The OpenAPI document has valid schemas, no broken references and no unused components."""
    text = json.dumps(DOCUMENT)
    referred = set(re.findall(r'"#/components/(\w+/\w+)"', text))
    there = {
        f"{kind}/{name}"
        for kind, named in DOCUMENT["components"].items()
        for name in named
        if kind != "securitySchemes"
    }
    assert referred == there
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    assert DOCUMENT["openapi"].startswith("3.1")


async def test_members_of_the_bodies_keep_their_order(tmp_path: Path) -> None:
    async with running(tmp_path) as ns:
        await ns.register("b", "T")
        _, topics = await ns.get("/v1/topics")
        assert list(topics) == [
            *("mode", "index", "epoch", "leader_known", "last_contact_ms", "boot_id", "topics")
        ]
        _, route = await ns.get("/v1/topics/T/route")
        assert list(route)[-2:] == ["topic", "route"]
        _, gone = await ns.get("/v1/topics/gone/route")
        assert list(gone) == [
            *("type", "title", "status", "detail", "index", "epoch", "events", "likely_causes"),
            "instance",
        ]
        _, brokers = await ns.get("/v1/brokers")
        assert list(brokers["brokers"][0]["data_version"]) == ["counter", "stateVersion", "timestamp"]


async def test_blocking_route_query_returns_when_its_topic_changes_and_not_for_others(tmp_path: Path) -> None:
    async with running(tmp_path) as ns:
        await ns.register("b", "T", "U")
        _, before = await ns.get("/v1/topics/T/route")
        index = before["index"]
        query = asyncio.create_task(ns.get(f"/v1/topics/T/route?index={index}&wait=20s"))
        await ns.register("c", "U", "V")
        _, other = await ns.get("/v1/topics/U/route?index=0")
        assert other["index"] > index
        assert not query.done()
        await ns.register("d", "T", "W")
        status, after = await asyncio.wait_for(query, 30)
        assert status == 200
        assert after["index"] > index
        assert len(after["route"]["brokerDatas"]) == 2
        started = asyncio.get_running_loop().time()
        _, same = await ns.get(f"/v1/topics/T/route?index={after['index']}&wait=0.2s")
        assert same["index"] == after["index"]
        assert asyncio.get_running_loop().time() - started >= 0.15


async def test_missing_topic_says_why_it_is_gone(tmp_path: Path) -> None:
    async with running(tmp_path) as ns:
        await ns.register("b", "T", "U")
        await ns.ask(216, topic="T")
        status, problem = await ns.get("/v1/topics/T/route")
        assert status == 404
        assert [event["reason"] for event in problem["events"]] == ["deleted"]
        assert "deleted" in problem["detail"]


async def test_metrics_are_prometheus_text_and_count_what_the_cache_answered(tmp_path: Path) -> None:
    line = re.compile(
        r'[a-z_]+(\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\})? -?[0-9.]+(e[+-]?\d+)?|# (HELP|TYPE) [a-z_]+ .+'
    )
    async with running(tmp_path) as ns:
        await ns.register("b", "T")
        for _ in range(10):
            await ns.ask(105, topic="T")
        _, text = await ns.get("/metrics")
        assert all(line.fullmatch(row) for row in text.splitlines()), text
        assert 'mqnamesrv_requests_total{code="105"} 10.0\n' in text
        assert "mqnamesrv_topics 1.0\n" in text
        families = re.findall(r"# TYPE (\S+)", text)
        assert len(families) == len(set(families))


@pytest.mark.parametrize(
    ("file", "code", "ext", "body"),
    [
        ("kvConfig.json", RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"}, b""),
        ("namesrv.properties", RequestCode.UPDATE_NAMESRV_CONFIG, {}, b"enableTopicList=false"),
    ],
)
async def test_file_that_the_disk_refuses_is_counted_until_it_is_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    code: RequestCode,
    ext: dict[str, str],
    body: bytes,
) -> None:
    monkeypatch.setattr(kept_file, "RETRY_S", 0.02)
    in_the_way = tmp_path / f"{file}.tmp"
    async with running(tmp_path) as ns:
        _, text = await ns.get("/metrics")
        assert "mqnamesrv_unwritten_files 0.0\n" in text
        in_the_way.mkdir()  # a folder in place of the temporary file makes writes fail, as on a full disk
        answer = await ns.ask(code, body, **ext)
        assert answer.code == 1
        assert (answer.remark or "").startswith("in force, but not kept in a file")
        _, text = await ns.get("/metrics")
        assert "mqnamesrv_unwritten_files 1.0\n" in text
        in_the_way.rmdir()
        async with asyncio.timeout(20):
            while "mqnamesrv_unwritten_files 0.0\n" not in (await ns.get("/metrics"))[1]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def test_writes_over_http_are_not_offered(tmp_path: Path) -> None:
    async with running(tmp_path) as ns:
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            async with ns.web.request(method, f"http://{ns.http}/v1/topics", data=b"x") as answer:
                assert answer.status == 405
                assert "GET" in answer.headers["Allow"]
                assert answer.content_type == "application/problem+json"
                detail = (await answer.json(content_type=None))["detail"]
                assert detail == f"{method} is not offered at /v1/topics, only GET, HEAD"


async def test_page_and_its_parts_are_served_and_load_nothing_from_elsewhere(tmp_path: Path) -> None:
    async with running(tmp_path) as ns:
        for path in page_files():
            async with ns.web.get(f"http://{ns.http}{path}") as answer:
                text = await answer.text()
                assert answer.status == 200
                assert (
                    answer.headers["Content-Security-Policy"]
                    == "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
                    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
                    "require-trusted-types-for 'script'; trusted-types 'none'"
                )
                # The address of the SVG namespace is only a name: no browser loads it.
                assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
                assert "https://" not in text
                assert "<style" not in text


@pytest.mark.slow
async def test_closing_http_leaves_no_silent_connection(tmp_path: Path) -> None:
    async with running(tmp_path) as ns:
        reader, writer = await asyncio.open_connection(*split_address(ns.http))
        writer.write(b"GET /healthz HT")
        await ns.get("/healthz")
    assert await asyncio.wait_for(reader.read(), 30) == b""
    writer.close()
