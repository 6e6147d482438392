"""Expired log files are removed while a quota, or a lack of free inodes, makes writes of new files fail."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from routekeeper.broker.store.files import Disk
from tests.broker.server.test_sync_flush import Broker
from tests.broker.store.test_retention import another_hour, begins_at, with_files
from tests.waiting import WITHIN_S, until


async def end_of_queue(broker: Broker) -> int:
    return int((await broker.call(30, {"topic": "T", "queueId": "0"})).ext_fields["offset"])


@pytest.mark.slow
async def test_expired_file_is_removed_though_the_delay_offsets_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Disk, "space", lambda _self, _path: (100, 50))
    obstacle = tmp_path / "config" / "delayOffset.json.tmp"

    async with with_files(tmp_path, another_hour(), first="DELAY\x011\x02") as (broker, files):
        obstacle.mkdir()
        sent = await end_of_queue(broker)
        deadline = time.monotonic() + WITHIN_S
        while await end_of_queue(broker) == sent:  # until the delayed message is delivered
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        past = time.time() - 73 * 3600
        os.utime(files[0], (past, past))
        assert (await broker.call(329)).code == 0
        await begins_at(broker, int(files[1].name))
        await until(lambda: not files[0].exists(), "the file is removed")
        assert files[1].exists()
        obstacle.rmdir()
        await until((tmp_path / "config" / "delayOffset.json").exists, "the offsets are written later")
    events = [record.msg.split("=")[0] for record in caplog.records if record.levelname == "ERROR"]
    assert events == ["file not written path"]
