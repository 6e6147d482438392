"""With SYNC_FLUSH, the broker acknowledges a message only after a sync, even on a slow or broken disk."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from routekeeper.broker.config import BrokerConfig
from routekeeper.broker.requests.handlers import HANDLERS, MAY_WAIT
from routekeeper.broker.requests.pulling import Park
from routekeeper.broker.server.process import BrokerServer
from routekeeper.remoting.bodies import SubscriptionGroupConfig
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.transport.aio import RemotingClient
from tests.waiting import until


class Broker:
    """A running broker, and one connection to it."""

    def __init__(self, client: RemotingClient, addr: str) -> None:
        self._client = client
        self._addr = addr

    async def call(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> RemotingCommand:
        request = RemotingCommand.request(code, ext or {}, body)
        return await self._client.invoke(self._addr, request, timeout_s=20.0)

    async def send(self, body: bytes, topic: str = "T", properties: str = "") -> RemotingCommand:
        fields = {"a": "P", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0"}
        return await self.call(310, fields | {"b": topic, "i": properties}, body)


@contextlib.asynccontextmanager
async def running_broker(directory: Path, config: BrokerConfig) -> AsyncIterator[Broker]:
    """Run a broker on this event loop."""
    stop = asyncio.Event()
    bound: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group, RemotingClient(outstanding_max=10_000) as client:
        group.create_task(BrokerServer(config, directory).run(stop, bound.set_result))
        broker = Broker(client, await bound)
        try:
            yield broker
        finally:
            stop.set()


def settings(**changes: str) -> BrokerConfig:
    return BrokerConfig(listen_port=0, **changes)  # type: ignore[arg-type]


async def test_no_answer_before_the_sync_and_one_sync_for_all_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, opened = os.fdatasync, threading.Event()
    calls: list[int] = []

    def slow(fd: int) -> None:
        if "commitlog" in os.readlink(f"/proc/self/fd/{fd}"):
            calls.append(fd)
            assert opened.wait(30)
        real(fd)

    monkeypatch.setattr(os, "fdatasync", slow)
    async with running_broker(tmp_path, settings(flush_disk_type="SYNC_FLUSH")) as broker:
        opened.set()
        assert (await broker.send(b"first")).code == 0  # creates the topic
        opened.clear()
        before = len(calls)
        waiting = [asyncio.ensure_future(broker.send(b"%d" % number)) for number in range(20)]
        _, pending = await asyncio.wait(waiting, timeout=0.3)
        assert len(pending) == 20
        opened.set()
        answers = await asyncio.gather(*waiting)
        assert {answer.code for answer in answers} == {0}
        # Allow at most five syncs for 20 sends. One sync was running when the sends came, one sync serves all
        # waiting sends, and a checkpoint may add some syncs.
        assert len(calls) - before <= 5


@pytest.mark.slow
async def test_messages_that_wait_for_the_disk_take_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, opened = os.fdatasync, threading.Event()
    count, body = 100, b"x" * 60_000
    written = tmp_path / "commitlog"

    def slow(fd: int) -> None:
        assert opened.wait(30)
        real(fd)

    def size() -> int:
        return sum(file.read_bytes().count(body) for file in written.iterdir())

    monkeypatch.setattr(os, "fdatasync", slow)
    async with running_broker(tmp_path, settings(flush_disk_type="SYNC_FLUSH")) as broker:
        opened.set()
        assert (await broker.send(body)).code == 0  # creates the topic
        opened.clear()
        tracemalloc.start()
        try:
            waiting = [asyncio.ensure_future(broker.send(body)) for _ in range(count)]
            await until(lambda: size() > count)
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            opened.set()
        assert {answer.code for answer in await asyncio.gather(*waiting)} == {0}
        assert taken < count * len(body) / 4


async def test_asynchronous_flush_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = threading.Event()

    def slow(fd: int) -> None:
        assert opened.wait(30)

    monkeypatch.setattr(os, "fdatasync", slow)
    async with running_broker(tmp_path, settings()) as broker:
        assert (await broker.send(b"x")).code == 0
        opened.set()


async def test_slow_disk_answers_flush_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = threading.Event()

    def slow(fd: int) -> None:
        assert opened.wait(30)

    monkeypatch.setattr(os, "fdatasync", slow)
    config = BrokerConfig(listen_port=0, flush_disk_type="SYNC_FLUSH", sync_flush_timeout_ms=100)
    async with running_broker(tmp_path, config) as broker:
        answer = await broker.send(b"x")
        assert answer.code == 10
        assert answer.ext_fields["TRACE_ON"] == "true"
        opened.set()


@pytest.mark.slow
async def test_group_that_cannot_be_written_is_not_acknowledged(tmp_path: Path) -> None:
    obstacle = tmp_path / "config" / "subscriptionGroup.json.tmp"
    async with running_broker(tmp_path, settings()) as broker:
        assert (await broker.send(b"x")).code == 0  # now the topic table's folder exists
        obstacle.mkdir()
        body = SubscriptionGroupConfig(group_name="G", retry_max_times=3).encode()
        refused = await broker.call(200, body=body)
        assert (refused.code, refused.remark) == (14, "cannot write subscriptionGroup.json: Is a directory")
        assert (await broker.call(207, {"groupName": "G"})).code == 14
        obstacle.rmdir()
        assert (await broker.call(200, body=body)).code == 0
        assert b'"retryMaxTimes":3' in (tmp_path / "config" / "subscriptionGroup.json").read_bytes()


@pytest.mark.slow
async def test_offsets_that_cannot_be_written_are_not_acknowledged_and_are_written_later(
    tmp_path: Path,
) -> None:
    file = tmp_path / "config" / "consumerOffset.json"
    obstacle = file.with_name(file.name + ".tmp")
    clone = {"srcGroup": "G", "destGroup": "H", "topic": "T", "offline": "true"}
    async with running_broker(tmp_path, settings()) as broker:
        assert (await broker.send(b"x")).code == 0  # now the topic table's folder exists
        offset = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "1"}
        obstacle.mkdir()
        # A commit is answered at once. Offsets are written to the disk later.
        assert (await broker.call(15, offset)).code == 0
        refused = await broker.call(314, clone)
        assert (refused.code, refused.remark) == (14, "cannot write consumerOffset.json: Is a directory")
        obstacle.rmdir()
        await until(file.exists, "the offsets are written later")
        # The offsets have not changed since the failed write. They are on the disk now, so the failed write
        # did not mark them as saved.
        assert b'"T@G":{0:1}' in file.read_bytes()
        assert (await broker.call(314, clone | {"destGroup": "I"})).code == 0
        assert b'"T@I":{0:1}' in file.read_bytes()


async def test_sender_that_does_not_want_to_wait_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, opened = os.fdatasync, threading.Event()

    def slow(fd: int) -> None:
        assert opened.wait(30)
        real(fd)

    monkeypatch.setattr(os, "fdatasync", slow)
    async with running_broker(tmp_path, settings(flush_disk_type="SYNC_FLUSH")) as broker:
        opened.set()
        assert (await broker.send(b"x")).code == 0  # creates the topic
        opened.clear()
        waiting = asyncio.ensure_future(broker.send(b"waits"))
        assert (await broker.send(b"does not", properties="WAIT\x01false\x02")).code == 0
        assert not waiting.done()
        opened.set()
        assert (await waiting).code == 0


def test_all_whose_answers_may_wait_are_asked_before_they_take_effect() -> None:
    """``MAY_WAIT`` must hold exactly the codes whose handlers may return an answer that waits.

    If a code were missing there, the broker could carry out a request with this code and then refuse it.
    """
    at_once = {RemotingCommand, Park}
    waiting = set()
    for code, handler in HANDLERS.items():
        outcome = get_type_hints(handler)["return"]
        if not at_once.issuperset(get_args(outcome) or (outcome,)):
            waiting.add(code)
    assert waiting == MAY_WAIT


@pytest.mark.slow
async def test_message_that_is_answered_with_overload_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, opened = os.fdatasync, threading.Event()

    def slow(fd: int) -> None:
        assert opened.wait(30)
        real(fd)

    monkeypatch.setattr(os, "fdatasync", slow)
    # On a busy machine, 4500 sends take longer than the default timeout. With that timeout, the broker would
    # answer some sends with code 10 before the last send arrives. So it would refuse fewer sends.
    config = BrokerConfig(listen_port=0, flush_disk_type="SYNC_FLUSH", sync_flush_timeout_ms=60_000)
    async with running_broker(tmp_path, config) as broker:
        opened.set()
        assert (await broker.send(b"x")).code == 0  # creates the topic
        opened.clear()
        # All sends use one connection, because the test is about the bound of 4096 unanswered requests on
        # each connection.
        sends = [asyncio.ensure_future(broker.send(b"%d" % number)) for number in range(4500)]
        await asyncio.wait(sends, return_when=asyncio.FIRST_COMPLETED)
        # A request that only reads is still answered.
        assert (await broker.call(30, {"topic": "T", "queueId": "0"})).code == 0
        opened.set()
        answers = await asyncio.gather(*sends)
        busy = [answer for answer in answers if answer.code == 2]
        assert len(busy) == 4500 - 4096
        assert all((answer.remark or "").startswith("[OVERLOAD]") for answer in busy)
        stored = await broker.call(30, {"topic": "T", "queueId": "0"})
        assert int(stored.ext_fields["offset"]) == 1 + 4096
