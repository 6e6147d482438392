"""State files of a broker that were damaged, edited or lost while it was stopped."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.message import decode_messages
from tests.broker.conftest import BrokerProcess, StartBroker, Wire
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow]

MESSAGES: Final = 5


def half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def empty(content: bytes) -> bytes:
    return b""


def flip(inside: bytes) -> Callable[[bytes], bytes]:
    """Return a function that flips one bit of a file's content.

    The function flips the lowest bit of the first byte of ``inside``. If this byte begins a name, the result
    is another valid name.
    """

    def flipped(content: bytes) -> bytes:
        at = content.index(inside)
        return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]

    return flipped


def damage(path: Path, how: Callable[[bytes], bytes]) -> bytes:
    """Replace a file's content by ``how(content)``, and return the former content."""
    good = path.read_bytes()
    path.write_bytes(how(good))
    assert path.read_bytes() != good
    return good


def body(topic: str, number: int) -> bytes:
    return f"{topic} {number}".encode()


def fill(broker: BrokerProcess, *topics: str) -> None:
    """Send messages to each topic in turn.

    Each new topic makes the broker write the topic table, so the table's backup lacks the last topic.
    """
    wire = broker.wire()
    for topic in topics:
        for number in range(MESSAGES):
            assert wire.send_message(topic, body(topic, number), queue_id=number % 4).code == 0


def assert_all_there(broker: BrokerProcess, *topics: str) -> None:
    wire = broker.wire()
    for topic in topics:
        found = []
        for queue_id in range(4):
            answer = wire.answer(wire.pull(topic, 0, queue_id=queue_id))
            assert answer.code == 0, (topic, queue_id, answer.remark)
            found += [message.body for message in decode_messages(answer.body)]
        assert sorted(found) == [body(topic, number) for number in range(MESSAGES)]


def refusal(store: Path) -> str:
    """Start a broker that must refuse to start, and return its only output line that is not a log line."""
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "routekeeper.broker",
            "--listen",
            "127.0.0.1:0",
            "--store",
            str(store),
            "-n",
            "",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()  # empty, because the broker must end without a ready line
        process.kill()
        _, log = process.communicate()
    assert ready == "", log
    assert process.returncode in (1, 2), log
    assert "Traceback" not in log
    lines = [line for line in log.splitlines() if line.startswith("mqbroker: ")]
    assert len(lines) == 1, log
    return lines[0]


def lines(broker: BrokerProcess, level: str) -> list[str]:
    # A thread writes the log. This line comes after all lines about files that were read at the start.
    wait_until(lambda: " store directory path=" in broker.log.read_text(), "the start is in the log")
    return [line for line in broker.log.read_text().splitlines() if f" {level} " in line]


def test_damaged_topic_table_is_named_and_no_message_is_lost(start_broker: StartBroker) -> None:
    first = start_broker()
    fill(first, "Early", "Late")
    assert first.stop() == 0
    table = first.store / "config" / "topics.json"
    good = damage(table, half)
    second = start_broker()
    (error,) = [line for line in lines(second, "ERROR") if "topics.json" in line]
    assert str(table) in error
    assert "topics.json.bak" in error
    assert_all_there(second, "Early", "Late")
    # If a topic is created again, its queue must continue after the old messages.
    assert second.wire().send_message("Late", b"more").ext_fields["queueOffset"] == "2"
    assert second.wire().send_message("New", b"x").code == 0
    assert second.stop() == 0
    # The operator restores the table from before the damage, but topics were created since then.
    table.write_bytes(good)
    assert "topics.json.sha256" in refusal(first.store)
    table.with_name("topics.json.sha256").unlink()
    third = start_broker()
    wire = third.wire()
    for topic in ("Early", "Late"):
        for queue_id in range(4):
            assert wire.answer(wire.pull(topic, 0, queue_id=queue_id)).code == 0
    assert wire.answer(wire.pull("New", 0)).code == 0


def test_flipped_bit_in_a_topics_name_refuses_the_start_until_somebody_decides(
    start_broker: StartBroker,
) -> None:
    first = start_broker()
    fill(first, "Early", "Late")
    assert first.stop() == 0
    table = first.store / "config" / "topics.json"
    good = damage(table, lambda content: content.replace(b'"Late"', b'"Mate"'))
    line = refusal(first.store)
    assert str(table) in line
    assert "remove topics.json.sha256" in line
    damaged = table.read_bytes()
    table.write_bytes(good)
    second = start_broker()
    assert_all_there(second, "Early", "Late")
    assert second.stop() == 0
    # The operator accepts the damaged file and removes its checksum file. The damaged file then counts as
    # edited by the operator. Still no message may be lost.
    table.write_bytes(damaged)
    table.with_name("topics.json.sha256").unlink()
    third = start_broker()
    (found,) = [line for line in lines(third, "WARNING") if "topics found in the log" in line]
    assert "topics=Late" in found
    assert [line for line in lines(third, "WARNING") if "topics.json" in line and "without checksum" in line]
    assert_all_there(third, "Early", "Late")
    assert third.stop() == 0
    fourth = start_broker()
    assert not any("checksum" in line for line in lines(fourth, "WARNING"))


def test_topic_table_and_backup_both_damaged_refuse_and_topics_come_from_the_log(
    start_broker: StartBroker,
) -> None:
    first = start_broker()
    fill(first, "Early", "Late")
    assert first.stop() == 0
    names = ("topics.json", "topics.json.bak")
    for name in names:
        damage(first.store / "config" / name, half)
    line = refusal(first.store)
    assert all(name in line for name in (*names, "topics.json.sha256"))
    for name in (*names, "topics.json.sha256"):
        (first.store / "config" / name).unlink()
    second = start_broker()
    (warning,) = [line for line in lines(second, "WARNING") if "topics found in the log" in line]
    assert "Early" in warning
    assert "Late" in warning
    assert_all_there(second, "Early", "Late")


@pytest.mark.parametrize("rebuilt", [False, True], ids=["queue files", "queues built anew"])
def test_deleted_topic_does_not_come_back_with_the_backup(start_broker: StartBroker, rebuilt: bool) -> None:
    first = start_broker()
    fill(first, "Early", "Gone", "Late")
    assert first.wire().call(215, {"topic": "Gone"}).code == 0
    assert first.stop() == 0
    damage(first.store / "config" / "topics.json", half)
    if rebuilt:
        (first.store / "checkpoint").unlink()
    second = start_broker()
    assert_all_there(second, "Early", "Late")
    assert "Gone" not in json.loads(second.wire().call(21).body)["topicConfigTable"]
    wire = second.wire()
    assert wire.send_message("Gone", b"again").ext_fields["queueOffset"] == "0"


def commit(broker: BrokerProcess, offset: int, group: str = "Readers") -> None:
    ext = {"consumerGroup": group, "topic": "Early", "queueId": "0", "commitOffset": str(offset)}
    assert broker.wire().call(15, ext).code == 0


def committed(broker: BrokerProcess, group: str = "Readers") -> RemotingCommand:
    return broker.wire().call(14, {"consumerGroup": group, "topic": "Early", "queueId": "0"})


def test_flipped_bit_in_offsets_or_changed_settings_refuses_the_start(start_broker: StartBroker) -> None:
    first = start_broker()
    fill(first, "Early")
    commit(first, 2)
    assert first.wire().call(25, body=b"longPollingEnable=false\n").code == 0
    assert first.stop() == 0
    for name, inside in (("consumerOffset.json", b"Readers"), ("broker.properties", b"longPolling")):
        file = first.store / "config" / name
        good = damage(file, flip(inside))
        line = refusal(first.store)
        assert str(file) in line
        assert f"remove {name}.sha256" in line
        file.write_bytes(good)
    assert committed(start_broker()).ext_fields == {"offset": "2"}


def test_other_damaged_tables_are_named_and_the_backups_are_used(start_broker: StartBroker) -> None:
    damages = {"consumerOffset.json": half, "subscriptionGroup.json": empty, "delayOffset.json": half}
    store: Path | None = None
    for life in (1, 2):  # 1 is the first run, 2 is a restart. The broker writes all tables in both runs.
        broker = start_broker(store=store)
        store = broker.store
        fill(broker, "Early") if life == 1 else None
        commit(broker, life)
        body = json.dumps({"groupName": "Mine", "retryMaxTimes": life}).encode()
        assert broker.wire().call(200, body=body).code == 0
        wire = broker.wire()
        wire.answer(send_delayed(wire, life))
        while not_delivered(wire, life):
            pass
        assert broker.stop() == 0
    assert store is not None
    for name, how in damages.items():
        damage(store / "config" / name, how)
    again = start_broker(store=store)
    for name in damages:
        (error,) = [line for line in lines(again, "ERROR") if name in line]
        assert f"{name}.bak" in error
    # The backup has the older offset, so the group gets some messages again and misses none.
    assert committed(again).ext_fields == {"offset": "1"}
    table = json.loads(again.wire().call(201).body)["subscriptionGroupTable"]
    assert table["Mine"]["retryMaxTimes"] == 2  # the backup of the groups has the last change, too
    assert again.stop() == 0
    for name in damages:
        assert (store / "config" / f"{name}.damaged").exists()


def send_delayed(wire: Wire, life: int) -> int:
    ext = dict(
        zip(
            "abcdefghijkm",
            ["P", "Early", "TBW102", "4", "0", "0", "1", "0", "DELAY\x011\x02", "0", "false", "false"],
            strict=True,
        )
    )
    return wire.send(RemotingCommand.request(310, ext, b"delayed %d" % life))


def not_delivered(wire: Wire, life: int) -> bool:
    """Return True while the delayed message of start number ``life`` is not in the first queue.

    The queue had two messages before the first delayed message.
    """
    answer = wire.call(30, {"topic": "Early", "queueId": "0"})
    return int(answer.ext_fields["offset"]) < 2 + life


def test_older_topic_table_with_its_checksum_or_none_at_all_loses_no_topic(start_broker: StartBroker) -> None:
    first = start_broker()
    fill(first, "Early")
    assert first.stop() == 0
    config = first.store / "config"
    names = ("topics.json", "topics.json.bak", "topics.json.sha256")
    saved = {name: (config / name).read_bytes() for name in names if (config / name).exists()}
    second = start_broker()
    fill(second, "Late")
    assert second.stop() == 0
    for name, content in saved.items():
        (config / name).write_bytes(content)
    third = start_broker()
    (error,) = [line for line in lines(third, "ERROR") if "topics.json" in line]
    assert "older" in error
    assert_all_there(third, "Early", "Late")
    assert third.stop() == 0
    (config / "topics.json").unlink()
    fourth = start_broker()
    (error,) = [line for line in lines(fourth, "ERROR") if "topics.json" in line]
    assert "missing" in error
    assert_all_there(fourth, "Early", "Late")


def test_flipped_bit_in_the_checkpoint_deletes_no_log_file(start_broker: StartBroker) -> None:
    flags = ("--set", "maxMessageSize=100000", "--set", "mappedFileSizeCommitLog=170000")
    first = start_broker(*flags)
    wire = first.wire()
    for number in range(12):
        assert wire.send_message("Many", b"%04d" % number + b"x" * 60_000).code == 0
    assert first.stop() == 0
    logs = sorted(path.name for path in (first.store / "commitlog").iterdir())
    assert len(logs) > 2
    damage(first.store / "checkpoint", lambda content: content.replace(b'"logMin":0', b'"logMin":340000'))
    second = start_broker(*flags)
    assert sorted(path.name for path in (first.store / "commitlog").iterdir()) == logs
    wire = second.wire()
    answer = wire.answer(wire.pull("Many", 0))
    assert next(iter(decode_messages(answer.body))).body.startswith(b"0000")
