"""A nameserver continues to run if the system cannot start another thread.

It reports each task that it could not do for lack of a thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from routekeeper.nameserver.modes import kept_file
from routekeeper.nameserver.modes.kept_file import KeptFile
from routekeeper.nameserver.production import asking
from routekeeper.nameserver.production.asking import Production
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.settings.ranking import load_settings
from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.route import BrokerData, RouteDialect, TopicRouteData, encode_route
from routekeeper.remoting.transport.aio import RemotingClient
from tests.nameserver.http.test_admin import TOKEN, node
from tests.ports import free_addresses
from tests.waiting import until

WHY = "no thread can be started: can't start new thread"


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return a set to which a test adds prefixes of thread names.

    Afterwards, no thread whose name has such a prefix can be started.
    """
    names: set[str] = set()
    start = threading.Thread.start

    def start_or_refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(tuple(names)):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_refuse)
    return names


def test_a_file_is_written_once_a_thread_can_be_started_and_nobody_waits_until_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refused: set[str]
) -> None:
    monkeypatch.setattr(kept_file, "RETRY_S", 0.01)
    written: list[int] = []

    def write() -> Callable[[], None]:
        return lambda: written.append(1)

    async def main() -> None:
        file = KeptFile("content", "kept", path=Path("a/file"), write=write)
        refused.add("content file")
        async with asyncio.timeout(20):
            for _ in range(2):
                file.changed()
                assert await file.keep() == (
                    f"in force, but not kept in a file: {WHY}; tried again every 0.01 s"
                )
        assert file.is_failing
        refused.clear()
        await until(lambda: written)
        assert await file.keep() is None
        await file.close()

    with caplog.at_level(logging.INFO):
        asyncio.run(main())
    assert [(record.getMessage(), record.exc_info) for record in caplog.records] == [
        (f"content not kept file=a/file error={WHY}", None),
        ("content kept again file=a/file", None),
    ]


def test_a_long_route_of_production_is_decoded_without_a_thread(
    monkeypatch: pytest.MonkeyPatch, refused: set[str]
) -> None:
    route = TopicRouteData(
        broker_datas=tuple(
            BrokerData(cluster="c", broker_name=f"b{number}", broker_addrs={0: "192.0.2.1:10911"})
            for number in range(1000)
        )
    )
    body = encode_route(route, RouteDialect.QUOTED)
    assert len(body) > asking._DECODED_HERE_MAX

    async def invoke(
        client: RemotingClient, addr: str, request: RemotingCommand, **_: Any
    ) -> RemotingCommand:
        return request.reply(ResponseCode.SUCCESS, body=body)

    async def main() -> None:
        settings = load_settings(
            flags={"clusterTest": "true", "clusterTestNameservers": "192.0.2.1:9876"}
        ).settings
        async with asyncio.TaskGroup() as group:
            production = Production(LiveSettings(settings), group)
            deadline = asyncio.get_running_loop().time() + 20
            refused.update(("production routes", "asyncio"))
            assert await production.ask("T", host="192.0.2.3", deadline=deadline) == route
            refused.clear()
            assert await production.ask("U", host="192.0.2.3", deadline=deadline) == route
            await production.close()

    monkeypatch.setattr(RemotingClient, "invoke", invoke)
    asyncio.run(main())


@pytest.mark.slow
def test_a_snapshot_that_no_thread_can_read_for_a_download_is_asked_for_again(
    tmp_path: Path, refused: set[str]
) -> None:
    async def body() -> None:
        (raft,) = free_addresses(1)
        async with node(tmp_path, raft, (raft,)) as one:
            await until(lambda: one.mode.status().writes_ready, "it is ready")
            url = f"http://{one.addr}/v1/raft/snapshot"
            headers = {"Authorization": f"Bearer {TOKEN}", "Accept": "application/octet-stream"}
            refused.add("snapshot download")
            async with one.web.post(url, headers=headers) as answer:
                assert answer.status == 503
                assert answer.headers["Retry-After"] == "1"
                problem = await answer.json(content_type=None)
            assert WHY.replace("started:", "started to read it:") in problem["detail"]
            refused.clear()
            async with one.web.post(url, headers=headers) as answer:
                assert answer.status == 200

    asyncio.run(body())
