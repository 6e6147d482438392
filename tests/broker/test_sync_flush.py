"""What SYNC_FLUSH promises: no acknowledgement before the disk has confirmed. Here it is slow, or broken."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

import pytest

from broker.config import BrokerConfig
from broker.server import BrokerServer
from remoting.command import RemotingCommand
from remoting.transport.aio import RemotingClient


class Send(Protocol):
    def __call__(self, body: bytes, topic: str = "T") -> Awaitable[RemotingCommand]: ...


async def with_broker(directory: Path, config: BrokerConfig, act: Callable[[Send], Awaitable[None]]) -> None:
    """Run a broker and ``act`` on one loop."""
    stop = asyncio.Event()
    bound: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group, RemotingClient() as client:
        group.create_task(BrokerServer(config, directory).run(stop, bound.set_result))
        addr = await bound
        fields = {"a": "P", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0"}

        async def send(body: bytes, topic: str = "T") -> RemotingCommand:
            request = RemotingCommand.request(310, fields | {"b": topic}, body)
            return await client.invoke(addr, request, timeout_s=20.0)

        try:
            await act(send)
        finally:
            stop.set()


def settings(**changes: str) -> BrokerConfig:
    return BrokerConfig(listen_port=0, **changes)  # type: ignore[arg-type]


def test_no_answer_before_the_sync_and_one_sync_for_all_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, opened = os.fdatasync, threading.Event()
    calls: list[int] = []

    def slow(fd: int) -> None:
        if "commitlog" in os.readlink(f"/proc/self/fd/{fd}"):
            calls.append(fd)
            assert opened.wait(30)
        real(fd)

    async def act(send: Send) -> None:
        opened.set()
        assert (await send(b"first")).code == 0  # creates the topic
        opened.clear()
        before = len(calls)
        waiting = [asyncio.ensure_future(send(b"%d" % number)) for number in range(20)]
        _, pending = await asyncio.wait(waiting, timeout=0.3)
        assert len(pending) == 20
        opened.set()
        answers = await asyncio.gather(*waiting)
        assert {answer.code for answer in answers} == {0}
        # The sync under way when they came, one for the rest, perhaps one of the checkpoint.
        assert len(calls) - before <= 5

    monkeypatch.setattr(os, "fdatasync", slow)
    asyncio.run(with_broker(tmp_path, settings(flush_disk_type="SYNC_FLUSH"), act))


def test_asynchronous_flush_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = threading.Event()

    def slow(fd: int) -> None:
        assert opened.wait(30)

    async def act(send: Send) -> None:
        assert (await send(b"x")).code == 0
        opened.set()

    monkeypatch.setattr(os, "fdatasync", slow)
    asyncio.run(with_broker(tmp_path, settings(), act))


def test_disk_that_cannot_sync_ends_acknowledging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async def act(send: Send) -> None:
        first = await send(b"x")
        assert first.code == 10
        assert first.ext_fields["queueOffset"] == "0"
        second = await send(b"y")
        assert second.code == 14
        assert "sync of" in (second.remark or "")

    monkeypatch.setattr(os, "fdatasync", broken)
    asyncio.run(with_broker(tmp_path, settings(flush_disk_type="SYNC_FLUSH"), act))


def test_slow_disk_answers_flush_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = threading.Event()

    def slow(fd: int) -> None:
        assert opened.wait(30)

    async def act(send: Send) -> None:
        answer = await send(b"x")
        assert answer.code == 10
        assert answer.ext_fields["TRACE_ON"] == "true"
        opened.set()

    monkeypatch.setattr(os, "fdatasync", slow)
    config = BrokerConfig(listen_port=0, flush_disk_type="SYNC_FLUSH", sync_flush_timeout_ms=100)
    asyncio.run(with_broker(tmp_path, config, act))


def test_topic_that_cannot_be_written_is_not_acknowledged(tmp_path: Path) -> None:
    obstacle = tmp_path / "config" / "topics.json.tmp"

    async def act(send: Send) -> None:
        assert (await send(b"x", topic="Before")).code == 0  # waits for the table, so no write is under way
        obstacle.mkdir()
        refused = await send(b"x")
        assert refused.code == 14
        assert "topic table" in (refused.remark or "")
        assert (await send(b"x")).code == 14
        obstacle.rmdir()
        async with asyncio.timeout(10):
            while (await send(b"x")).code != 0:
                pass

    asyncio.run(with_broker(tmp_path, settings(), act))
