"""Delayed messages: time and topic of their delivery, and messages that cannot be delivered."""

from __future__ import annotations

import asyncio
import errno
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

from routekeeper.broker.requests.sending import delayed
from routekeeper.broker.server import delay
from routekeeper.broker.server.delay import DelayService, deliver_due, oldest_waiting
from routekeeper.broker.store.files import DISK
from routekeeper.broker.store.messages import Draft
from routekeeper.broker.store.steps import run_here
from routekeeper.broker.tables.state import BrokerState
from routekeeper.broker.tables.topics import SCHEDULE_TOPIC
from routekeeper.remoting.message import StoredMessage, decode_messages
from routekeeper.remoting.route import TopicConfig
from tests.broker.states import HOST, NOW, state_in


def schedule(state: BrokerState, body: bytes, level: int, *, at: int = NOW, topic: str = "T") -> None:
    plain = Draft(topic=topic, queue_id=3, body=body, properties="", tags_code=0, born_host=HOST)
    state.store.put(delayed(state, plain, {"TAGS": "A"}, level, now_ms=at), now_ms=at)


def delivered(state: BrokerState, topic: str = "T") -> list[StoredMessage]:
    batch = state.store.get(topic, 3, 0, count_max=1000, bytes_max=1 << 20)
    return list(decode_messages(batch.body))


def deliver_all(state: BrokerState, *, now_ms: int) -> float | None:
    """Deliver all due messages. Return the seconds until the next delivery, or None if no message waits."""
    while (wait_s := deliver_due(state, now_ms=now_ms)) == 0.0:
        pass
    return wait_s


def test_message_waits_for_its_level_and_then_moves(state: BrokerState) -> None:
    schedule(state, b"x", 2)
    assert deliver_due(state, now_ms=NOW) == 5.0
    assert deliver_due(state, now_ms=NOW + 4_999) == 0.001
    assert delivered(state) == []
    assert deliver_due(state, now_ms=NOW + 5_000) == 0.0, "others may be due"
    (message,) = delivered(state)
    assert (message.body, message.queue_id, message.store_timestamp) == (b"x", 3, NOW + 5_000)
    assert state.effects.arrived == {("T", 3)}
    assert state.delay_offsets == {2: 1}
    assert deliver_due(state, now_ms=NOW + 10_000) is None
    assert len(delivered(state)) == 1


def test_levels_do_not_wait_for_each_other(state: BrokerState) -> None:
    schedule(state, b"late", 18)
    schedule(state, b"soon", 1)
    assert deliver_all(state, now_ms=NOW + 1_000) == 7199.0
    assert [message.body for message in delivered(state)] == [b"soon"]


def test_level_above_the_last_is_the_last(state: BrokerState) -> None:
    schedule(state, b"x", 99)
    assert state.store.bounds(SCHEDULE_TOPIC, 17) == (0, 1)


def test_messages_of_a_level_that_was_removed_come_at_their_time(tmp_path: Path) -> None:
    before = state_in(tmp_path, TopicConfig(topic_name="T"))
    schedule(before, b"x", 18)
    before.store.close()
    state = state_in(tmp_path, TopicConfig(topic_name="T"))
    state.config = replace(state.config, message_delay_level="1s 5s")
    assert deliver_due(state, now_ms=NOW + 1_000) == 7199.0
    deliver_all(state, now_ms=NOW + 7_200_000)
    assert [message.body for message in delivered(state)] == [b"x"]
    state.store.log.close()


def test_delayed_messages_that_were_removed_with_old_log_files_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = state_in(tmp_path, TopicConfig(topic_name="T"), log_file_size=1000)
    for number in range(20):
        schedule(state, b"%d" % number, 18)
    assert deliver_due(state, now_ms=NOW) == 7200.0
    run_here(state.store.checkpoint())
    run_here(state.store.remove_old_files(before=math.inf, count_max=2))
    low, high = state.store.bounds(SCHEDULE_TOPIC, 17)
    assert 0 < low < high
    deliver_all(state, now_ms=NOW + 7_200_000)
    assert len(delivered(state)) == 20 - low
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        f"delayed messages removed before they were due level=18 count={low}"
    ]
    state.store.log.close()


def test_old_log_files_stay_while_their_delayed_messages_wait(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = state_in(tmp_path, TopicConfig(topic_name="T"), log_file_size=1000)

    def clean() -> None:
        run_here(state.store.checkpoint())
        run_here(state.store.remove_old_files(before=math.inf, keep_from=oldest_waiting(state)))

    schedule(state, b"soon", 1)
    for number in range(20):
        schedule(state, b"%d" % number, 18)
    clean()
    assert state.store.log.min_offset == 0
    deliver_all(state, now_ms=NOW + 1_000)
    for _ in range(2):
        clean()
    assert state.store.bounds(SCHEDULE_TOPIC, 17) == (0, 20)
    deliver_all(state, now_ms=NOW + 7_200_000)
    assert [message.body for message in delivered(state)] == [b"soon", *(b"%d" % each for each in range(20))]
    clean()
    assert state.store.bounds(SCHEDULE_TOPIC, 17) == (20, 20)
    assert [(record.levelname, record.msg[:42]) for record in caplog.records if record.levelno > 20] == [
        ("WARNING", "old log files kept for delayed messages be")
    ]
    state.store.log.close()


def test_turn_is_limited_and_goes_on(state: BrokerState) -> None:
    for number in range(10):
        schedule(state, b"%d" % number, 1)
    assert deliver_due(state, now_ms=NOW + 1_000, limit=4) == 0.0
    assert len(delivered(state)) == 4
    assert deliver_due(state, now_ms=NOW + 1_000, limit=100) == 0.0
    assert [message.body for message in delivered(state)] == [b"%d" % number for number in range(10)]


def test_backlog_of_one_level_does_not_hold_up_another(state: BrokerState) -> None:
    for number in range(500):
        schedule(state, b"%d" % number, 1)
    schedule(state, b"other", 2)
    for _ in range(2):
        assert deliver_due(state, now_ms=NOW + 5_000) == 0.0
    assert b"other" in [message.body for message in delivered(state)]


def test_turn_of_the_loop_delivers_messages_of_one_level_and_of_a_bounded_size(tmp_path: Path) -> None:
    state = state_in(tmp_path, TopicConfig(topic_name="T"), log_file_size=64 << 20)
    sizes = [300 << 10] * 7 + [2 << 20] + [1000] * 40
    count = 3 * len(sizes)
    for level in (1, 2, 3):
        for number, size in enumerate(sizes):
            schedule(state, (b"%d %d " % (level, number)).ljust(size), level)
    turns: list[list[StoredMessage]] = []

    async def main() -> None:
        running = asyncio.create_task(DelayService(state, delivered=lambda: None).run())
        offset = 0
        while offset < count and len(turns) < 1000:
            await asyncio.sleep(0)
            high = state.store.bounds("T", 3)[1]
            found = [state.store.message_in_queue("T", 3, at) for at in range(offset, high)]
            turns.append([message for message in found if message is not None])
            offset = high
        running.cancel()

    asyncio.run(main())
    state.store.log.close()
    named = [tuple(map(int, message.body.split())) for turn in turns for message in turn]
    for level in (1, 2, 3):
        assert [number for of, number in named if of == level] == list(range(len(sizes))), "once, in order"
    assert max(len({message.body[:1] for message in turn}) for turn in turns) == 1
    assert max(len(turn) for turn in turns) <= 32
    assert all(len(turn) == 1 or sum(len(message.body) for message in turn) <= 1 << 20 for turn in turns)


def test_clock_set_back_does_not_hold_messages_for_ever(state: BrokerState) -> None:
    schedule(state, b"x", 1, at=NOW + 86_400_000)
    assert deliver_all(state, now_ms=NOW) is None
    assert len(delivered(state)) == 1


def test_message_of_a_deleted_topic_is_dropped(state: BrokerState) -> None:
    schedule(state, b"gone", 1, topic="Gone")
    schedule(state, b"x", 1)
    assert deliver_all(state, now_ms=NOW + 1_000) is None
    assert [message.body for message in delivered(state)] == [b"x"]
    assert delivered(state, "Gone") == []


def test_message_that_no_longer_fits_the_log_is_dropped_and_those_behind_it_come(
    state: BrokerState, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker drops a delayed message that becomes too large for the log when it is due.

    Before that time, the message is stored with the short name of the schedule topic. Then it gets the longer
    name of its own topic. If the broker did not drop the message, the broker would end at each delivery.
    """
    topic = "T" * 127
    state.topics.put(TopicConfig(topic_name=topic), now_ms=NOW)
    room = (1 << 20) - 8 - 91 - len(SCHEDULE_TOPIC) - len(topic) - 100
    schedule(state, b"x" * room, 1, topic=topic)
    schedule(state, b"behind", 1)
    assert deliver_all(state, now_ms=NOW + 1_000) is None
    assert [message.body for message in delivered(state)] == [b"behind"]
    assert "delayed message dropped" in caplog.text


class BadPlace:
    """A fault of the disk: a delay level's first message cannot be read until ``is_healed`` is set."""

    def __init__(self, state: BrokerState, level: int, monkeypatch: pytest.MonkeyPatch) -> None:
        (entry,) = state.store.entries(SCHEDULE_TOPIC, level - 1, 0, 1)
        self._at = entry.log_offset
        self._read = DISK.read
        self.failed = 0
        self.is_healed = False
        monkeypatch.setattr(DISK, "read", self)

    def __call__(self, fd: int, size: int, at: int) -> bytes:
        if at == self._at and not self.is_healed:
            self.failed += 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self._read(fd, size, at)


def test_place_that_cannot_be_read_does_not_hold_up_other_levels(
    state: BrokerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule(state, b"unread", 1)
    others = [b"%d" % number for number in range(40)]
    for body in others:
        schedule(state, body, 2)
    place = BadPlace(state, 1, monkeypatch)
    assert deliver_due(state, now_ms=NOW + 5_000, limit=32) == 0.0, "8 more are due"
    with pytest.raises(OSError, match="Input/output error"):
        deliver_all(state, now_ms=NOW + 5_000)
    assert [message.body for message in delivered(state)] == others
    place.is_healed = True
    assert deliver_all(state, now_ms=NOW + 5_000) is None
    assert [message.body for message in delivered(state)] == [*others, b"unread"]


def test_disk_that_gives_nothing_for_a_while_does_not_end_the_service(
    state: BrokerState, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delay, "_RETRY_S", 0.01)
    schedule(state, b"x", 1)
    place = BadPlace(state, 1, monkeypatch)

    async def main() -> None:
        service = DelayService(state, delivered=came)
        running = asyncio.create_task(service.run())
        async with asyncio.timeout(10):
            await done.wait()
        running.cancel()

    def came() -> None:
        place.is_healed = place.failed >= 3
        if delivered(state):
            done.set()

    done = asyncio.Event()
    asyncio.run(main())
    assert [message.body for message in delivered(state)] == [b"x"]
    assert caplog.text.count("delayed messages wait") == 1


def test_a_level_that_cannot_be_delivered_for_days_keeps_no_log_files(tmp_path: Path) -> None:
    """A delayed message that the disk cannot read must not keep the old log files for ever."""
    state = state_in(tmp_path, TopicConfig(topic_name="T"), log_file_size=1000)
    schedule(state, b"unreadable", 1)
    for number in range(5):
        schedule(state, b"%d" % number, 18)
    assert oldest_waiting(state) == 0
    assert oldest_waiting(state, due_after_ms=NOW + 1_000) == 0
    (waiting,) = state.store.entries(SCHEDULE_TOPIC, 17, 0, 1)
    assert oldest_waiting(state, due_after_ms=NOW + 3_600_000) == waiting.log_offset > 0
    state.store.log.close()
