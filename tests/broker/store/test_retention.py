"""The broker removes old log files at the configured hours.

If the disk fills up, the broker does not wait for these hours. If the disk is nearly full, the broker removes
even young files.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from routekeeper.broker.config import BrokerConfig, apply_properties
from routekeeper.broker.store.files import Disk
from routekeeper.broker.store.retention import Removal, parse_hours, removal
from tests.broker.server.test_sync_flush import Broker, running_broker, settings
from tests.waiting import until


@pytest.mark.parametrize(
    ("hour", "asked", "used", "forced", "wanted"),
    [
        pytest.param(3, False, 0.5, True, Removal.NOTHING, id="another hour"),
        pytest.param(4, False, 0.5, True, Removal.EXPIRED, id="the hour"),
        pytest.param(3, True, 0.5, True, Removal.EXPIRED, id="asked for"),
        pytest.param(3, False, 0.75, True, Removal.NOTHING, id="as full as it may be"),
        pytest.param(3, False, 0.76, True, Removal.EXPIRED, id="fuller"),
        pytest.param(3, False, -1.0, True, Removal.EXPIRED, id="nobody can say"),
        pytest.param(4, True, 0.85, True, Removal.EXPIRED, id="nearly full"),
        pytest.param(3, False, 0.86, True, Removal.OLDEST, id="full"),
        pytest.param(3, False, 0.99, False, Removal.EXPIRED, id="full and young ones must stay"),
    ],
)
def test_what_goes(hour: int, asked: bool, used: float, forced: bool, wanted: Removal) -> None:
    found = removal(
        hour=hour,
        asked=asked,
        used=used,
        delete_when=parse_hours(BrokerConfig().delete_when),
        used_max=0.75,
        forcibly=0.85,
        clean_forcibly=forced,
    )
    assert found is wanted


def test_several_hours_are_separated_by_semicolons() -> None:
    assert parse_hours("04;16; 23") == {4, 16, 23}


def test_defaults_are_those_of_rocketmq() -> None:
    spelled = BrokerConfig().to_properties()
    assert {key: spelled[key] for key in DEFAULTS} == DEFAULTS


DEFAULTS = {
    "fileReservedTime": "72",
    "deleteWhen": "04",
    "diskMaxUsedSpaceRatio": "75",
    "diskSpaceCleanForciblyRatio": "85",
    "cleanFileForciblyEnable": "true",
}


@contextlib.asynccontextmanager
async def with_files(
    directory: Path, hours: str, *, first: str = ""
) -> AsyncIterator[tuple[Broker, list[Path]]]:
    """Run a broker with three full log files and a new file. Yield broker and files, the oldest file first.

    Args:
        first: Properties of the first message.
    """
    values = {"maxMessageSize": "1024", "mappedFileSizeCommitLog": str(65 * 1024 + 512), "deleteWhen": hours}
    config = apply_properties(settings(), values)[0]
    config.validate()
    async with running_broker(directory, config) as broker:
        assert (await broker.send(b"first", properties=first)).code == 0
        while len(files := sorted((directory / "commitlog").glob("0*"))) < 4:
            answers = await asyncio.gather(*(broker.send(b"x" * 1000) for _ in range(20)))
            assert {answer.code for answer in answers} == {0}
        yield broker, files


async def begins_at(broker: Broker, offset: int) -> None:
    """Wait until the first message of a queue lies at this offset of the log."""
    async with asyncio.timeout(100):
        while True:
            low = (await broker.call(31, {"topic": "T", "queueId": "0"})).ext_fields["offset"]
            entries = await broker.call(321, {"topic": "T", "queueId": "0", "index": low, "count": "1"})
            if b'"physicOffset":%d' % offset in entries.body:
                return
            await asyncio.sleep(0.1)


def another_hour() -> str:
    return str((time.localtime().tm_hour + 12) % 24)


@pytest.mark.slow
async def test_an_operator_has_old_files_removed_and_young_ones_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Disk, "space", lambda _self, _path: (100, 90))

    async with with_files(tmp_path, another_hour()) as (broker, files):
        past = time.time() - 73 * 3600
        os.utime(files[0], (past, past))
        assert (await broker.call(329)).code == 0
        await begins_at(broker, int(files[1].name))
        assert files[1].exists()


@pytest.mark.slow
async def test_a_full_disk_costs_the_oldest_files_however_young(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [90]
    monkeypatch.setattr(Disk, "space", lambda _self, _path: (100, free[0]))

    async with with_files(tmp_path, another_hour()) as (broker, files):
        free[0] = 10
        assert (await broker.call(306)).code == 0
        await begins_at(broker, int(files[-1].name))  # the broker still writes the last file, so it stays


@pytest.mark.slow
async def test_old_file_with_a_delayed_message_stays_until_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    free = [90]
    monkeypatch.setattr(Disk, "space", lambda _self, _path: (100, free[0]))

    async with with_files(tmp_path, another_hour(), first="DELAY\x0118\x02") as (broker, files):
        past = time.time() - 73 * 3600
        os.utime(files[0], (past, past))
        assert (await broker.call(329)).code == 0
        await until(lambda: "old log files kept for delayed messages" in caplog.text)
        assert files[0].exists()
        free[0] = 10
        assert (await broker.call(306)).code == 0
        await begins_at(broker, int(files[-1].name))
