from __future__ import annotations

import json

import pytest

from routekeeper.broker.tables.topics import (
    EDITS_LENGTH_MAX,
    StartTopics,
    TopicChange,
    TopicConfigs,
    edit_attributes,
    is_sending_forbidden,
    name_fault,
)
from routekeeper.remoting.route import TopicConfig

NOW = 1_700_000_000_000


def table(**changes: bool) -> TopicConfigs:
    return TopicConfigs(StartTopics(cluster_name="C", broker_name="b", **changes))


def create(topics: TopicConfigs, topic: str, **changes: object) -> TopicConfig | None:
    arguments: dict[str, object] = {
        "default_topic": "TBW102",
        "queue_nums": 4,
        "sys_flag": 0,
        "auto_create": True,
        "now_ms": NOW,
    }
    return topics.create_for_send(topic, **(arguments | changes))  # type: ignore[arg-type]


def test_topics_of_the_start_are_the_documented_ones() -> None:
    found = {config.topic_name: (config.read_queue_nums, config.perm) for config in table()}
    assert found == {
        "SELF_TEST_TOPIC": (1, 6),
        "TBW102": (8, 7),
        "BenchmarkTest": (1024, 6),
        "C": (16, 7),
        "b": (1, 7),
        "OFFSET_MOVED_EVENT": (1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 6),
        "C_REPLY_TOPIC": (1, 6),
    }


def test_without_auto_creation_there_is_no_default_topic() -> None:
    topics = table(auto_create_topic_enable=False)
    assert "TBW102" not in topics
    assert create(topics, "T", auto_create=False) is None


@pytest.mark.parametrize(
    ("default_topic", "asked", "queues"),
    [("TBW102", 4, 4), ("TBW102", 20, 8), ("C", 20, 16), ("TBW102", 0, 0)],
)
def test_created_topic_takes_the_smaller_queue_count(default_topic: str, asked: int, queues: int) -> None:
    config = create(table(), "T", default_topic=default_topic, queue_nums=asked)
    assert config is not None
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (queues, queues, 6)


@pytest.mark.parametrize("default_topic", ["missing", "BenchmarkTest"])
def test_template_missing_or_without_inherit_creates_nothing(default_topic: str) -> None:
    topics = table()
    assert create(topics, "T", default_topic=default_topic) is None
    assert "T" not in topics


def test_switching_auto_creation_off_live_takes_inherit_from_the_default_topic() -> None:
    assert create(table(), "T", auto_create=False) is None


def test_each_change_moves_the_version_and_no_change_does_not() -> None:
    topics = table()
    topics.begin(now_ms=5)
    assert (topics.data_version.timestamp, topics.data_version.counter) == (5, 0)
    config = TopicConfig(topic_name="T")
    assert topics.put(config, now_ms=NOW)
    assert (topics.data_version.timestamp, topics.data_version.counter) == (NOW, 1)
    assert not topics.put(config, now_ms=NOW + 1)
    assert topics.delete("T", now_ms=NOW + 2)
    assert not topics.delete("T", now_ms=NOW + 3)
    assert (topics.data_version.timestamp, topics.data_version.counter) == (NOW + 2, 2)


def test_stored_table_is_read_back_equal() -> None:
    topics = table()
    create(topics, "T")
    again = table()
    again.load(topics.to_json().decode())
    assert list(again) == list(topics)
    assert again.data_version == topics.data_version


def test_file_of_apache_4_9_is_read() -> None:
    topics = table()
    topics.load(
        '{"dataVersion":{"counter":5,"timestamp":1700000000000},"topicConfigTable":{"T":{"order":false,"perm":6,'
        '"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":4}}}'
    )
    assert topics.data_version.counter == 5
    assert topics.get("T") == TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4)


@pytest.mark.parametrize("text", ["", "[]", '{"topicConfigTable":{"T":7}}', "{"])
def test_broken_file_is_refused_and_changes_nothing(text: str) -> None:
    topics = table()
    before = list(topics)
    with pytest.raises(ValueError):
        topics.load(text)
    assert list(topics) == before


def test_stored_default_topic_goes_when_auto_creation_is_off() -> None:
    enabled = table()
    create(enabled, "T")
    disabled = table(auto_create_topic_enable=False)
    disabled.load(enabled.to_json().decode())
    assert "T" in disabled
    assert "TBW102" not in disabled


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("T-1_%|x", None),
        ("a" * 127, None),
        ("a" * 128, "longer than"),
        ("", "blank"),
        ("  ", "blank"),
        ("a b", "illegal"),
        ("a/b", "illegal"),
        ("a.b", "illegal"),
        ("ä", "illegal"),
        ("T\n", "illegal"),
    ],
)
def test_name_rules(name: str, fault: str | None) -> None:
    found = name_fault(name)
    assert (found is None) if fault is None else (found is not None and fault in found)


def test_system_topics_are_known() -> None:
    topics = table()
    assert topics.is_system("TBW102")
    assert topics.is_system("C")
    assert topics.is_system("rmq_sys_wheel_timer")
    assert not topics.is_system("T")
    assert is_sending_forbidden("SCHEDULE_TOPIC_XXXX")
    assert not is_sending_forbidden("TBW102")


def test_order_is_only_ever_set_and_once() -> None:
    topics = table()
    create(topics, "T")
    assert topics.set_order(["T", "unknown"], now_ms=NOW)
    assert not topics.set_order(["T"], now_ms=NOW)
    assert json.loads(topics.to_json())["topicConfigTable"]["T"]["order"] is True


def test_attributes_are_edited_by_sign() -> None:
    before = {"message.type": "FIFO", "b": "of a former release", "c": "too"}
    edits = "+message.type=DELAY,-b,+reserve.time=-1"
    assert edit_attributes(before, edits) == {"message.type": "DELAY", "c": "too", "reserve.time": "-1"}
    change = TopicChange(TopicConfig(topic_name="T"), "a=1")
    with pytest.raises(ValueError, match="neither"):
        change.apply_to(None)


@pytest.mark.parametrize("edit", [",", "+message.type=FIFO,", "-x"])
def test_long_text_of_attributes_is_refused_unread(edit: str) -> None:
    edits = (edit * (EDITS_LENGTH_MAX + 1))[: EDITS_LENGTH_MAX + 1]
    with pytest.raises(ValueError, match="attributes have 4097 characters, allowed are 4096"):
        edit_attributes(None, edits)
    assert edit_attributes(None, "," * EDITS_LENGTH_MAX) == {}


def test_stored_topic_with_numbers_outside_their_range_is_served_within_it() -> None:
    topics = table()
    stored = {
        "Many": {"readQueueNums": 2_000_000_000, "writeQueueNums": -3, "perm": 6},
        "Good": {"readQueueNums": 5, "writeQueueNums": 6},
    }
    topics.load(json.dumps({"topicConfigTable": stored}))
    found = {name: topics.get(name) for name in stored}
    assert {name: (c.read_queue_nums, c.write_queue_nums) for name, c in found.items() if c} == {
        "Many": (65_536, 0),
        "Good": (5, 6),
    }
