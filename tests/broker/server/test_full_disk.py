"""A broker whose disk fails: its log, ``/readyz`` and a counter inform operators."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.conftest import WAIT_S, BrokerProcess, StartBroker, Wire
from tests.broker.disks import fill, resize, small_disk
from tests.broker.server.test_http import Figures, figure, figures, get
from tests.broker.server.test_sync_flush import running_broker, settings
from tests.ports import free_addresses
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow]

MIB = 1 << 20
BODY = bytes(100_000)
FLUSH_DISK_TIMEOUT = 10
SERVICE_NOT_AVAILABLE = 14


def http_of(broker: BrokerProcess) -> str:
    return broker.ready_line.split("http=")[1]


def metrics(broker: BrokerProcess) -> Figures:
    status, text = get(http_of(broker), "/metrics")
    assert status == 200
    return figures(text)


def is_ready(broker: BrokerProcess) -> bool:
    return get(http_of(broker), "/readyz")[0] == 200


def lines(broker: BrokerProcess, event: str) -> list[str]:
    return [line for line in broker.log.read_text().splitlines() if event in line]


def send_until_refused(wire: Wire) -> str:
    for _ in range(1000):
        answer = wire.send_message("T", BODY)
        if answer.code:
            assert answer.code == SERVICE_NOT_AVAILABLE
            assert answer.remark is not None
            return answer.remark
    raise AssertionError("the disk is not full")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Return the folder of a disk of 4 MiB."""
    at = tmp_path / "disk"
    with small_disk(at, size_bytes=4 * MIB):
        yield at


def test_full_disk_is_one_warning_not_ready_and_a_counter_until_there_is_room(
    start_broker: StartBroker, disk: Path
) -> None:
    broker = start_broker("--http", "127.0.0.1:0", "--set", f"storePathCommitLog={disk / 'commitlog'}")
    wire = broker.wire()
    assert "No space left on device" in send_until_refused(wire)
    assert wire.send_message("T", BODY).code == SERVICE_NOT_AVAILABLE
    status, text = get(http_of(broker), "/readyz")
    assert status == 503
    assert "No space left on device" in text
    assert get(http_of(broker), "/healthz")[0] == 200
    assert figure(metrics(broker), "mqbroker_sends_refused_total", reason="disk_full") == 2
    wait_until(lambda: bool(lines(broker, "not ready reason=")), "a line says so")
    resize(disk, size_bytes=16 * MIB)
    # There are no sends, so the broker itself must notice the free space.
    wait_until(lambda: is_ready(broker), "ready with room")
    assert wire.send_message("T", BODY).code == 0
    wait_until(lambda: bool(lines(broker, "ready again")), "a line says that it is over")
    assert [line.split()[1] for line in lines(broker, "not ready reason=")] == ["WARNING"]
    assert [line.split()[1] for line in lines(broker, "ready again")] == ["WARNING"]
    assert lines(broker, "ready again")[0].endswith("sends_refused=2")
    assert broker.stop() == 0


def test_disk_without_room_for_a_checkpoint_is_cleaned_by_the_broker(
    start_broker: StartBroker, disk: Path
) -> None:
    sizes = ("--set", "maxMessageSize=131072", "--set", "mappedFileSizeCommitLog=524288")
    broker = start_broker("--http", "127.0.0.1:0", *sizes, store=disk / "store")
    wire = broker.wire()
    for _ in range(12):
        assert wire.send_message("T", BODY).code == 0
    checkpoint = disk / "store" / "checkpoint"
    wait_until(lambda: json.loads(checkpoint.read_bytes())["logOffset"] > MIB, "two files are complete")
    assert "No space left on device" in send_until_refused(wire)
    fill(disk)  # this file stays, so only the broker itself can free space
    assert wire.call(306).code == 0
    wait_until(lambda: wire.send_message("T", BODY).code == 0, "the broker takes messages again")
    wait_until(lambda: is_ready(broker), "ready")
    assert lines(broker, "files removed before their time")
    assert broker.stop() == 0


def test_table_that_cannot_be_written_makes_a_broker_not_ready_until_it_is_written(
    start_broker: StartBroker, disk: Path, tmp_path: Path
) -> None:
    broker = start_broker(
        "--http", "127.0.0.1:0", "--set", f"storePathCommitLog={tmp_path / 'log'}", store=disk / "store"
    )
    wire = broker.wire()
    filler = fill(disk)
    # A send to a new topic needs a larger topic table, which does not fit on the disk.
    assert wire.send_message("New", b"x").code == FLUSH_DISK_TIMEOUT, "stored, but not safe yet"
    refused = wire.send_message("New", b"x")
    assert refused.code == SERVICE_NOT_AVAILABLE
    assert "cannot write topics.json" in (refused.remark or "")
    status, text = get(http_of(broker), "/readyz")
    assert status == 503
    assert "No space left on device" in text
    assert figure(metrics(broker), "mqbroker_sends_refused_total", reason="disk_full") >= 1
    wait_until(lambda: bool(lines(broker, "not ready reason=")), "a line says so")
    filler.unlink()
    wait_until(lambda: is_ready(broker), "ready with room")
    assert wire.send_message("New", b"x").code == 0
    wait_until(lambda: bool(lines(broker, "ready again")), "a line says that it is over")
    assert len(lines(broker, "not ready reason=")) == len(lines(broker, "ready again")) == 1
    assert broker.stop() == 0


async def test_hung_disk_is_one_warning_and_not_ready_until_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (addr,) = free_addresses(1)
    answers = threading.Event()
    answers.set()

    def hung(fd: int) -> None:
        assert answers.wait(WAIT_S)  # no real sync follows, because this machine's own disk may be slow

    def told() -> list[tuple[str, str]]:
        found = [record for record in caplog.records if record.name == "routekeeper.broker.server.upkeep"]
        return [(record.levelname, record.msg.split("=")[0]) for record in found]

    async def is_ready() -> bool:
        return await asyncio.to_thread(get, addr, "/readyz") == (200, "ready\n")

    monkeypatch.setattr(os, "fdatasync", hung)
    # The timeout is long, because a sync takes longer if a busy machine pauses this process.
    config = settings(flush_disk_type="SYNC_FLUSH", http=addr, sync_flush_timeout_ms=4000)  # type: ignore[arg-type]
    async with running_broker(tmp_path, config) as broker:
        assert (await broker.send(b"x")).code == 0
        assert told() == []
        answers.clear()
        # Code 10 is RocketMQ's FLUSH_DISK_TIMEOUT: the message is stored, but may not survive a power cut.
        assert (await broker.send(b"x")).code == 10
        await asyncio.to_thread(wait_until, lambda: bool(told()), "a line says so")
        status, text = await asyncio.to_thread(get, addr, "/readyz")
        assert status == 503
        assert "has not answered" in text
        answers.set()
        await asyncio.to_thread(wait_until, lambda: len(told()) == 2, "a line says that it is over")
        assert await is_ready()
    assert told() == [("WARNING", "not ready reason"), ("WARNING", "ready again after_s")]
