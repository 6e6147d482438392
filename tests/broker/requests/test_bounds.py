"""Bounds of the state that any client can create in a broker.

A new topic must not make the broker write its whole topic table again. Otherwise a client that creates many
topics could keep the broker's disk busy.
"""

from __future__ import annotations

import json
import time

import pytest

from routekeeper.remoting.command import RemotingCommand
from tests.broker.conftest import StartBroker, Wire

pytestmark = [pytest.mark.faults, pytest.mark.slow]


def topics(wire: Wire) -> dict[str, object]:
    table: dict[str, object] = json.loads(wire.call(21).body)["topicConfigTable"]
    return table


def update_offset(wire: Wire, topic: str, queue_id: int, group: str = "G") -> RemotingCommand:
    ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": "1"}
    return wire.call(15, ext)


def test_topics_have_a_bound_that_names_its_setting(start_broker: StartBroker) -> None:
    broker = start_broker("--set", "maxTopics=12")
    wire = broker.wire()
    answers = [wire.send_message(f"T{number}", b"x") for number in range(12)]
    made = [answer.code == 0 for answer in answers]
    assert made == sorted(made, reverse=True)
    assert 0 < sum(made) < 12
    assert len(topics(wire)) == 12
    assert "maxTopics=12" in (answers[-1].remark or "")
    ext = {"topic": "Made", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6"}
    refused = wire.call(17, ext)
    assert refused.code != 0
    assert "maxTopics=12" in (refused.remark or "")
    several = json.dumps({"topicConfigList": [{"topicName": "L1"}, {"topicName": "L2"}]}).encode()
    assert "maxTopics=12" in (wire.call(18, body=several).remark or "")
    assert len(topics(wire)) == 12
    # At the limit, existing topics can still be changed. If a topic is removed, a new topic can be created.
    assert wire.send_message("T0", b"x").code == 0
    assert wire.call(17, ext | {"topic": "T0"}).code == 0
    assert wire.call(215, {"topic": "T0"}).code == 0
    assert wire.call(17, ext).code == 0


def test_groups_have_a_bound_that_names_its_setting(start_broker: StartBroker) -> None:
    broker = start_broker("--set", "maxSubscriptionGroups=15")
    wire = broker.wire()
    assert wire.send_message("T", b"x").code == 0
    answers = [wire.answer(wire.pull("T", 0, group=f"G{number}")) for number in range(15)]
    assert answers[0].code == 0
    assert answers[-1].code != 0
    assert "maxSubscriptionGroups=15" in (answers[-1].remark or "")
    assert len(json.loads(wire.call(201).body)["subscriptionGroupTable"]) == 15
    refused = wire.call(200, body=b'{"groupName":"Mine"}')
    assert "maxSubscriptionGroups=15" in (refused.remark or "")
    assert wire.call(200, body=b'{"groupName":"G0","retryMaxTimes":3}').code == 0
    # A heartbeat of a new group is still accepted. The group gets default settings, and no retry topic yet.
    beat = {"clientID": "c", "consumerDataSet": [{"groupName": "New"}], "producerDataSet": []}
    assert wire.call(34, body=json.dumps(beat).encode()).code == 0
    assert "%RETRY%New" not in topics(wire)


def test_offsets_are_kept_for_queues_that_are_there_and_within_a_bound(start_broker: StartBroker) -> None:
    broker = start_broker("--set", "maxConsumerOffsetBytes=1000")
    wire = broker.wire()
    assert wire.send_message("T", b"x").code == 0
    for queue_id in (-1, 4, 2**31 - 1):
        refused = update_offset(wire, "T", queue_id)
        assert refused.code != 0
        assert "0..3" in (refused.remark or "")
    assert update_offset(wire, "Nowhere", 0).code != 0
    answers = [update_offset(wire, "T", 0, group=f"G{number:03d}") for number in range(100)]
    assert answers[0].code == 0
    assert "maxConsumerOffsetBytes=1000" in (answers[-1].remark or "")
    assert len(wire.call(43).body) < 1100
    assert update_offset(wire, "T", 0, group="G000").code == 0


def test_new_topic_is_appended_and_survives_a_kill_and_damage_of_the_table(start_broker: StartBroker) -> None:
    broker = start_broker()
    wire = broker.wire()
    table = broker.store / "config" / "topics.json"
    assert wire.send_message("First", b"x").code == 0
    before = table.read_bytes()
    for number in range(20):
        assert wire.send_message(f"T{number}", b"x").code == 0
    assert wire.call(215, {"topic": "T7"}).code == 0
    assert table.read_bytes() == before
    ext = {"topic": "Made", "readQueueNums": "7", "writeQueueNums": "7", "perm": "4"}
    assert wire.call(17, ext).code == 0
    broker.kill()
    table.write_bytes(table.read_bytes()[:100])
    again = start_broker()
    wire = again.wire()
    found = topics(wire)
    assert {f"T{number}" for number in range(20)} - found.keys() == {"T7"}
    made = found["Made"]
    assert isinstance(made, dict)
    assert (made["readQueueNums"], made["perm"]) == (7, 4)
    assert wire.send_message("T3", b"more").ext_fields["queueOffset"] == "1"
    assert wire.send_message("Last", b"x").code == 0
    assert again.stop() == 0
    # After a clean stop, the topic table's file must be complete again, because RocketMQ's tools read it.
    assert {"T3", "Last"} <= json.loads(table.read_bytes())["topicConfigTable"].keys()


def beat_of(producers: list[str], client_id: str = "c") -> bytes:
    groups = [{"groupName": name} for name in producers]
    return json.dumps({"clientID": client_id, "producerDataSet": groups, "consumerDataSet": []}).encode()


def test_groups_that_heartbeats_name_have_a_bound_and_those_known_go_on(start_broker: StartBroker) -> None:
    broker = start_broker("--set", "maxClientBytes=2000000")
    mine, *strangers = [broker.wire() for _ in range(9)]
    known = {"groupName": "Known", "subscriptionDataSet": [{"topic": "T", "subString": "a || b"}]}
    beat = {"clientID": "m", "consumerDataSet": [known], "producerDataSet": [{"groupName": "P"}]}
    assert mine.call(34, body=json.dumps(beat).encode()).code == 0
    answers = [
        stranger.call(34, body=beat_of([f"{number}-{turn}-{'x' * 100}" for number in range(1000)]))
        for turn, stranger in enumerate(strangers)
    ]
    assert answers[0].code == 0
    assert answers[-1].code != 0
    assert "maxClientBytes=2000000" in (answers[-1].remark or "")
    assert mine.call(34, body=json.dumps(beat).encode()).code == 0
    wide = known | {"groupName": "Wide", "subscriptionDataSet": [{"topic": "T", "subString": "x" * 900_000}]}
    assert mine.call(34, body=json.dumps(beat | {"consumerDataSet": [wide]}).encode()).code != 0
    # If a client unregisters or its connection closes, its memory becomes free for other clients.
    for number in range(1000):
        gone = {"clientID": "c", "producerGroup": f"{number}-0-{'x' * 100}"}
        assert strangers[0].call(35, gone).code == 0
    assert strangers[0].call(34, body=beat_of([f"new-{number}" for number in range(500)])).code == 0
    for stranger in strangers:
        stranger.close()
    deadline = time.monotonic() + 40
    for turn in range(3):
        more = beat_of([f"more-{number}-{turn}-{'x' * 100}" for number in range(1000)])
        other = broker.wire()
        while (answer := other.call(34, body=more)).code != 0:
            assert time.monotonic() < deadline, answer.remark
