"""Tests of administration over HTTP: refused requests, and changes of a group of three members."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema
import pytest

from routekeeper.nameserver.http import openapi
from routekeeper.nameserver.http.admin import BODY_MAX, SNAPSHOT_MAX
from routekeeper.nameserver.http.app import HttpServer
from routekeeper.nameserver.modes.independent import Independent
from routekeeper.nameserver.replicated import Replicated
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.settings.ranking import load_settings
from routekeeper.nameserver.wire.server import NameServer
from tests.ports import free_addresses
from tests.waiting import until

TOKEN = "a-token-of-the-operators"
CONDITION_S = 60.0
DOCUMENT = json.loads(openapi.document())
CHANGES = [
    ("POST", "/v1/raft/members", {"address": "127.0.0.1:1"}),
    ("DELETE", "/v1/raft/members/127.0.0.1:1", None),
    ("POST", "/v1/raft/transfer", {}),
    ("POST", "/v1/raft/snapshot", None),
    ("POST", "/v1/raft/restore", None),
]


@dataclass
class Answer:
    status: int
    headers: Any
    body: Any


@dataclass
class Node:
    """One nameserver with its HTTP server."""

    raft: str
    mode: Replicated | Independent
    http: HttpServer
    addr: str
    web: aiohttp.ClientSession

    async def ask(
        self, method: str, path: str, document: object = None, *, token: str | None = TOKEN, data: Any = None
    ) -> Answer:
        """Send a request, and check the answer against the OpenAPI document."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with self.web.request(
            method, f"http://{self.addr}{path}", json=document, data=data, headers=headers
        ) as answer:
            raw = await answer.read()
            body = json.loads(raw) if answer.content_type.endswith("json") else raw
            check_answer(method, path, answer.status, answer.content_type, body)
            return Answer(answer.status, answer.headers, body)


def check_answer(method: str, path: str, status: int, content_type: str, body: Any) -> None:
    template = path.partition("?")[0]
    if template.startswith("/v1/raft/members/"):
        template = "/v1/raft/members/{address}"
    response = DOCUMENT["paths"][template][method.lower()]["responses"][str(status)]
    if "$ref" in response:
        response = DOCUMENT["components"]["responses"][response["$ref"].rpartition("/")[2]]
    schema = response["content"][content_type]["schema"] | {"components": DOCUMENT["components"]}
    if isinstance(body, dict):
        jsonschema.Draft202012Validator(schema).validate(body)
    if status >= 400:
        assert body["status"] == status
        assert body["instance"] == path.partition("?")[0]


@contextlib.asynccontextmanager
async def node(root: Path, raft: str, peers: tuple[str, ...], **settings: str) -> AsyncIterator[Node]:
    """Run one nameserver: in raft mode if ``peers`` has addresses, otherwise in independent mode."""
    token = settings.pop("token", TOKEN)
    flags = {"dataDir": str(root), "httpListen": "127.0.0.1:0", "listenPort": "0"} | settings
    if peers:
        flags |= {"mode": "raft", "raftAddress": raft, "raftPeers": ",".join(peers)}
    live = LiveSettings(load_settings(flags=flags).settings)
    async with asyncio.TaskGroup() as group, aiohttp.ClientSession() as web:
        server = NameServer(settings=live, group=group)
        mode: Replicated | Independent
        if peers:
            mode = Replicated(live, server, boot_id=secrets.randbits(48))
            await mode.start()
        else:
            mode = Independent(live, server, boot_id=1)
            mode.start()
        http = HttpServer(consistency=mode, server=server, settings=live, version="test", token=token or None)
        try:
            yield Node(raft, mode, http, await http.start("127.0.0.1", 0), web)
        finally:
            await http.close()
            await server.close(drain_s=1.0)
            await mode.close()


@contextlib.asynccontextmanager
async def group_of(root: Path, size: int) -> AsyncIterator[list[Node]]:
    addresses = tuple(free_addresses(size))
    async with contextlib.AsyncExitStack() as stack:
        nodes = [
            # The leader must not change during the test. A short election timeout could expire on a busy
            # machine, because all members share one event loop.
            await stack.enter_async_context(
                node(root / str(number), address, addresses, raftElectionTimeoutMs="2000")
            )
            for number, address in enumerate(addresses)
        ]
        await until(lambda: all(n.mode.status().writes_ready for n in nodes), "all are ready")
        yield nodes


def leader(nodes: list[Node]) -> Node:
    """Return the leader. The group must have a leader already."""
    name = nodes[0].mode.status().leader
    return next(n for n in nodes if n.raft == name)


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await body()

    asyncio.run(main())


# -- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_changes_without_a_token_file_are_off(tmp_path: Path) -> None:
    (raft,) = free_addresses(1)
    async with node(tmp_path, raft, (raft,), token="") as one:
        for method, path, document in CHANGES:
            for token in (None, TOKEN):
                answer = await one.ask(method, path, document, token=token)
                assert answer.status == 403
                assert "--http-token-file" in answer.body["detail"]
        assert (await one.ask("GET", "/v1/raft/status", token=None)).status == 200


@pytest.mark.slow
def test_changes_need_the_token_and_say_which_challenge(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        (raft,) = free_addresses(1)
        async with node(tmp_path, raft, (raft,)) as one:
            for method, path, document in CHANGES:
                for token in (None, "", "wrong", TOKEN[:-1], TOKEN + "x"):
                    answer = await one.ask(method, path, document, token=token)
                    assert answer.status == 401, (path, token)
                    assert answer.headers["WWW-Authenticate"].startswith('Bearer realm="mqnamesrv"')
                    assert TOKEN not in json.dumps(answer.body)
            async with one.web.post(
                f"http://{one.addr}/v1/raft/transfer", headers={"Authorization": f"Basic {TOKEN}"}
            ) as basic:
                assert basic.status == 401
            assert one.mode.status().members == (raft,)

    run(body)
    refusals = [r for r in caplog.records if r.getMessage().startswith("admin request refused")]
    assert 1 <= len(refusals) < 10, "said, but not once for each of a flood"
    assert TOKEN[:-1] not in caplog.text


@pytest.mark.slow
async def test_independent_mode_has_no_group(tmp_path: Path) -> None:
    async with node(tmp_path, "", ()) as one:
        for method, path, document in [("GET", "/v1/raft/status", None), *CHANGES]:
            answer = await one.ask(method, path, document)
            assert answer.status == 404
            assert "mode independent" in answer.body["detail"]


BAD_BODIES: dict[str, tuple[str, bytes, str]] = {
    "no JSON": ("/v1/raft/members", b"address=1", "no JSON"),
    "no object": ("/v1/raft/members", b'["127.0.0.1:1"]', "no JSON object"),
    "nothing": ("/v1/raft/members", b"", '{"address": "HOST:PORT"}'),
    "another member": ("/v1/raft/members", b'{"adress": "127.0.0.1:1"}', "unknown member adress"),
    "no text": ("/v1/raft/members", b'{"address": 1}', "HOST:PORT"),
    "no port": ("/v1/raft/members", b'{"address": "127.0.0.1"}', "is not HOST:PORT"),
    "port 0": ("/v1/raft/members", b'{"address": "127.0.0.1:0"}', "port of 1 to 65535"),
    "transfer": ("/v1/raft/transfer", b'{"to": "nowhere"}', "is not HOST:PORT"),
    "snapshot": ("/v1/raft/snapshot", b'{"path": "/etc/passwd"}', "unknown member path, allowed: none"),
    "restore": ("/v1/raft/restore", b"", "empty"),
    "timeout 0": ("/v1/raft/transfer?timeout=0s", b"{}", "timeout=0s"),
    "timeout word": ("/v1/raft/transfer?timeout=soon", b"{}", "timeout=soon"),
    "timeout large": ("/v1/raft/transfer?timeout=101s", b"{}", "up to 100s"),
    "parameter": ("/v1/raft/transfer?wait=1s", b"{}", "unknown parameter wait"),
}


@pytest.mark.slow
async def test_request_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b" " * BODY_MAX

    (raft,) = free_addresses(1)
    async with node(tmp_path, raft, (raft,)) as one:
        for name, (path, data, words) in BAD_BODIES.items():
            answer = await one.ask("POST", path, data=data)
            assert answer.status == 400, name
            assert words in answer.body["detail"], name
        answer = await one.ask("DELETE", "/v1/raft/members/nowhere")
        assert answer.status == 400
        # The second body is sent in chunks, without Content-Length.
        for large in (b" " * (BODY_MAX + 1), chunks()):
            assert (await one.ask("POST", "/v1/raft/members", data=large)).status == 413
        assert (await one.ask("GET", "/v1/raft/status?x=1")).status == 400
    assert SNAPSHOT_MAX >= 1 << 30


# -- changes in a group of three members --------------------------------------------------------------------


@pytest.mark.slow
async def test_follower_names_the_leader_and_leadership_goes_where_it_is_sent(tmp_path: Path) -> None:
    async with group_of(tmp_path, 3) as nodes:
        first = leader(nodes)
        for other in nodes:
            if other is first:
                continue
            for method, path, document in CHANGES[:3]:
                answer = await other.ask(method, path, document)
                assert answer.status == 421, (path, answer.body)
                assert answer.body["leader"] == first.raft
                assert first.raft in answer.body["detail"]
            assert other.mode.status().leader == first.raft
        refused = await first.ask("DELETE", "/v1/raft/members/127.0.0.1:1")
        assert refused.status == 409
        assert "127.0.0.1:1 is no member" in refused.body["detail"]
        second = next(n for n in nodes if n is not first)
        answer = await first.ask("POST", "/v1/raft/transfer?timeout=10s", {"to": second.raft})
        assert (answer.status, answer.body) == (200, {"leader": second.raft})
        status = (await second.ask("GET", "/v1/raft/status")).body
        assert (status["me"], status["role"], status["leader"]) == (second.raft, "leader", second.raft)
        answer = await second.ask("POST", "/v1/raft/transfer", {})
        assert answer.body["leader"] in {n.raft for n in nodes if n is not second}
        stranger = await leader(nodes).ask("POST", "/v1/raft/transfer", {"to": "127.0.0.1:1"})
        assert stranger.status in (409, 421)


@pytest.mark.slow
def test_downloads_from_a_disk_that_stands_still_hold_up_neither_others_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    returns, standing = threading.Event(), threading.Semaphore(0)
    opened = Path.open

    def stands_still(path: Path, mode: str = "r", **named: Any) -> Any:
        if mode == "rb" and path.is_relative_to(tmp_path):
            standing.release()
            returns.wait(600)
        return opened(path, mode, **named)

    async def body() -> None:
        (raft,) = free_addresses(1)
        async with node(tmp_path, raft, (raft,)) as one:
            await until(lambda: one.mode.status().writes_ready, "it is ready")
            monkeypatch.setattr(Path, "open", stands_still)
            url = f"http://{one.addr}/v1/raft/snapshot"
            headers = {"Authorization": f"Bearer {TOKEN}", "Accept": "application/octet-stream"}
            downloads = [
                asyncio.create_task(one.web.post(url, headers=headers).__aenter__()) for _ in range(40)
            ]
            for _ in downloads:  # all 40 hang at once: more than the default executor has threads
                await until(lambda: standing.acquire(blocking=False), "the disk was asked")
            async with asyncio.timeout(CONDITION_S):
                await asyncio.to_thread(lambda: None)
        await asyncio.gather(*downloads, return_exceptions=True)

    ended = threading.Event()

    def serve() -> None:
        run(body)  # would hang, too, if a thread of the default executor hung
        ended.set()

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    try:
        assert ended.wait(2 * CONDITION_S)
    finally:
        returns.set()
        server.join()


@pytest.mark.slow
async def test_member_without_a_group_knows_no_leader(tmp_path: Path) -> None:
    addresses = tuple(free_addresses(3))
    async with node(tmp_path, addresses[0], addresses) as one:
        answer = await one.ask("POST", "/v1/raft/transfer", {})
        assert answer.status == 503
        assert answer.headers["Retry-After"] == "1"
        status = (await one.ask("GET", "/v1/raft/status", token=None)).body
        assert sorted(status["waiting_for"]) == sorted(addresses[1:])
