"""A broker's queues have a bound, and files of many queues do not hold up its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from routekeeper.broker.store import Draft, MessageStore
from routekeeper.remoting.message import Host

from .conftest import StartBroker, Wire

HOST = Host("127.0.0.1", 10911)
TOPIC = {"topic": "Wide", "readQueueNums": "65536", "writeQueueNums": "65536", "perm": "6"}


def opened(directory: Path, *, boot: str = "this boot") -> MessageStore:
    return MessageStore(
        directory,
        log_file_size=1 << 20,
        queue_file_size=2000,
        store_host=HOST,
        tags_code=lambda _: 0,
        born_at=lambda _: 0,
        boot=boot,
    )


def filled(directory: Path, queues: int) -> MessageStore:
    store = opened(directory)
    for queue_id in range(queues):
        draft = Draft(topic="T", queue_id=queue_id, body=b"x", properties="", tags_code=0, born_host=HOST)
        store.put(draft, now_ms=1)
    return store


def queue_files(directory: Path) -> int:
    return sum(1 for path in (directory / "consumequeue").glob("*/*/*") if path.is_file())


@pytest.mark.xfail(strict=True, reason="queues have no bound")
@pytest.mark.faults
@pytest.mark.slow
def test_queues_have_a_bound_that_names_its_setting(start_broker: StartBroker) -> None:
    broker = start_broker("--set", "maxQueues=10")
    wire: Wire = broker.wire()
    assert wire.call(17, TOPIC).code == 0
    answers = [wire.send_message("Wide", b"x", queue_id=number) for number in range(20)]
    assert [answer.code for answer in answers] == [0] * 10 + [16] * 10
    assert "maxQueues=10" in (answers[-1].remark or "")
    # A delayed message needs its queue later.
    properties = "DELAY\x011\x02"
    late = wire.call(
        10,
        {
            "producerGroup": "P",
            "topic": "Wide",
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
            "queueId": "15",
            "sysFlag": "0",
            "bornTimestamp": "1",
            "flag": "0",
            "properties": properties,
        },
        b"x",
    )
    assert "maxQueues=10" in (late.remark or "")
    # Queues that are there go on, and a topic that goes makes room.
    assert wire.send_message("Wide", b"x", queue_id=3).code == 0
    assert wire.call(215, {"topic": "Wide"}).code == 0
    assert wire.send_message("Other", b"x").code == 0


@pytest.mark.xfail(strict=True, reason="a checkpoint writes the files of all queues in one piece")
def test_a_checkpoint_that_is_cut_off_is_gone_on_with(tmp_path: Path) -> None:
    store = filled(tmp_path, 300)
    writing = store.checkpoint()
    made = [0]
    for step in writing:
        step()
        made.append(queue_files(tmp_path))
        assert made[-1] - made[-2] <= 64
        if made[-1] > 100:
            break
    writing.close()
    assert made[-1] < 300
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "consumequeue").glob("*/*/*")}
    store.close()
    assert queue_files(tmp_path) == 300
    again = sum(path.stat().st_mtime_ns != changed for path, changed in before.items())
    assert again <= 64, "only the last step may not have been noted"
    assert opened(tmp_path).bounds("T", 299) == (0, 1)
