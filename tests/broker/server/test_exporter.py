"""Request 28 for RocketMQ's exporter for Prometheus, compared with recorded answers of Apache's brokers.

Source of keys and number formats: BrokerRuntimeStats and Utils of rocketmq-exporter.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from routekeeper.remoting.bodies import KVTable
from tests.broker.conftest import Wire
from tests.golden.starts import RELEASES
from tests.waiting import wait_until

GOLDEN: Final = Path(__file__).resolve().parents[2] / "golden" / "mqadmin"

LONGS: Final = (
    *("msgPutTotalTodayNow", "msgGetTotalTodayNow", "msgPutTotalTodayMorning", "msgGetTotalTodayMorning"),
    *("msgPutTotalYesterdayMorning", "msgGetTotalYesterdayMorning", "bootTimestamp", "dispatchMaxBuffer"),
    *("sendThreadPoolQueueHeadWaitTimeMills", "queryThreadPoolQueueHeadWaitTimeMills"),
    *("pullThreadPoolQueueHeadWaitTimeMills", "queryThreadPoolQueueSize", "pullThreadPoolQueueSize"),
    *("sendThreadPoolQueueSize", "sendThreadPoolQueueCapacity", "pullThreadPoolQueueCapacity"),
    *("queryThreadPoolQueueCapacity", "commitLogMinOffset", "commitLogMaxOffset", "brokerVersion"),
    *("pageCacheLockTimeMills", "getMessageEntireTimeMax", "putMessageEntireTimeMax"),
    *("putMessageTimesTotal", "putMessageSizeTotal", "startAcceptSendRequestTimeStamp"),
    *("earliestMessageTimeStamp", "remainTransientStoreBufferNumbs", "dispatchBehindBytes"),
)
DOUBLES: Final = ("consumeQueueDiskRatio", "commitLogDiskRatio", "putMessageAverageSize")
OPTIONAL_DOUBLES: Final = ("putLatency99", "putLatency999")
RATES: Final = ("putTps", "getMissTps", "getTransferedTps", "getTotalTps", "getFoundTps")
TEXTS: Final = ("runtime", "brokerVersionDesc")


def long(text: str) -> int:
    """Read a number as Java's Long.parseLong does."""
    assert re.fullmatch(r"[+-]?[0-9]{1,19}", text), text
    return int(text)


def java_split(text: str) -> list[str]:
    """Split at blanks as Java's String.split does: without the empty parts at the end."""
    return re.sub(r" +$", "", text).split(" ")


def bytes_of(number: str, unit: str) -> float:
    return float(number) * float(1024 ** (" KMGTPE".index(unit[0]) if unit != "B" else 0))


def exported(table: Mapping[str, str]) -> dict[str, Any]:
    """Return the exporter's values from an answer. Fail where the exporter would throw an exception."""
    found: dict[str, Any] = {key: long(table[key]) for key in LONGS}
    found |= {key: float(table[key]) for key in DOUBLES}
    found |= {key: float(table.get(key, "-1")) for key in OPTIONAL_DOUBLES}
    found |= {key: [float(part) for part in java_split(table[key])] for key in RATES}
    found |= {key: table[key] for key in TEXTS}
    times = {}
    for part in java_split(table["putMessageDistributeTime"]):
        name, count = part.split(":")
        times[name.strip("[]")] = long(count)
    found["putMessageDistributeTime"] = times
    number, unit, *_ = table["remainHowManyDataToFlush"].split(" ")
    found["remainHowManyDataToFlush"] = bytes_of(number, unit)
    parts = table["commitLogDirCapacity"].split(" ")
    found["capacity"] = bytes_of(parts[2], parts[3].rstrip(",."))
    found["free"] = bytes_of(parts[6], parts[7].rstrip(",."))
    found["schedules"] = [
        tuple(map(long, text.split(",")[:2]))
        for key, text in table.items()
        if key.startswith("scheduleMessageOffset")
    ]
    return found


def recorded(release: str) -> Mapping[str, str]:
    """Return the recorded answer of Apache's broker of this release."""
    for run in json.loads((GOLDEN / f"{release}-broker.json").read_text()):
        if run["name"] == "probe: runtime info of the broker":
            return KVTable.decode(base64.b64decode(run["answer_body"])).table
    raise AssertionError(f"no answer to 28 is recorded of {release}")


def test_the_recorded_answer_of_apache_can_be_exported() -> None:
    table = dict(recorded("5.3.3")) | {"getTransferedTps": recorded("4.9.7")["getTransferedTps"]}
    found = exported(table)
    assert found["putMessageTimesTotal"] == 3
    assert found["putMessageDistributeTime"]["10s~"] == 0


def test_our_answer_can_be_exported(wire: Wire) -> None:
    before = exported(KVTable.decode(wire.call(28).body).table)
    for number in range(3):
        assert wire.send_message("Exported", b"x" * 1000, properties=f"KEYS\x01{number}\x02").code == 0
    assert wire.send_message("Exported", b"late", properties="DELAY\x015\x02").code == 0
    found = exported(KVTable.decode(wire.call(28).body).table)
    stored = found["commitLogMaxOffset"] - before["commitLogMaxOffset"]
    assert found["putMessageTimesTotal"] - before["putMessageTimesTotal"] == 4
    assert found["putMessageSizeTotal"] - before["putMessageSizeTotal"] == stored > 3000
    assert found["putMessageAverageSize"] == found["putMessageSizeTotal"] / found["putMessageTimesTotal"]
    assert found["capacity"] > found["free"] > 0
    assert found["schedules"]


@pytest.mark.slow
def test_pulls_that_found_nothing_are_part_of_all_pulls(wire: Wire) -> None:
    assert wire.send_message("Pulled", b"x").code == 0
    for offset in (0, 1, 1):
        wire.answer(wire.pull("Pulled", offset))

    def rates() -> dict[str, float]:
        found = exported(KVTable.decode(wire.call(28).body).table)
        return {name: found[f"get{name}Tps"][2] for name in ("Found", "Miss", "Total")}

    wait_until(lambda: rates()["Total"] > 0, "the rates are never sampled", within_s=30)
    found = rates()
    assert found["Miss"] == pytest.approx(2 * found["Found"])
    assert found["Total"] == pytest.approx(found["Found"] + found["Miss"])


@pytest.mark.parametrize("release", RELEASES)
def test_every_key_that_apache_answers_is_there(wire: Wire, release: str) -> None:
    def without_path(key: str) -> str:
        return re.sub(r"^(commitLogDiskRatio_)/.*", r"\1", key)

    ours = set(map(without_path, KVTable.decode(wire.call(28).body).table))
    theirs = set(map(without_path, recorded(release)))
    assert not theirs - ours
