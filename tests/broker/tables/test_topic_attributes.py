"""Attributes of topics in requests 17 and 18 are checked as RocketMQ 5.3.3 checks them."""

from __future__ import annotations

import json

import pytest

from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.route import TopicConfig
from tests.broker.conftest import Wire


def change(wire: Wire, topic: str, attributes: str) -> RemotingCommand:
    numbers = {"readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "topicSysFlag": "0"}
    words = {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "order": "false"}
    return wire.call(17, {"topic": topic, "attributes": attributes, **numbers, **words})


def attributes_of(wire: Wire, topic: str) -> dict[str, str] | None:
    answer = wire.call(351, {"topic": topic})
    return dict(TopicConfig.from_json(json.loads(answer.body)).attributes) if answer.code == 0 else None


@pytest.mark.parametrize(
    ("attributes", "named"),
    [
        ("+message.type=Delay", "allowed are NORMAL, UNSPECIFIED, FIFO, DELAY, TRANSACTION"),
        ("+message.type=MIXED", "allowed are NORMAL, UNSPECIFIED, FIFO, DELAY, TRANSACTION"),
        ("+mesage.type=DELAY", "allowed are message.type, queue.type, cleanup.policy, reserve.time"),
        ("+queue.type=BatchCQ", "allowed are SimpleCQ"),
        ("+cleanup.policy=COMPACTION", "allowed are DELETE"),
        ("+reserve.time=3600", "allowed are -1"),
        ("+message.type", "neither +key=value nor -key"),
        ("+message.type=NORMAL,+message.type=DELAY", "twice"),
        ("-message.type", "no such attribute to remove"),
        ("-message.type=DELAY", "neither +key=value nor -key"),
    ],
)
def test_attribute_that_the_broker_does_not_serve_is_refused_by_name(
    wire: Wire, attributes: str, named: str
) -> None:
    answer = change(wire, "NeverMade", attributes)
    assert answer.code != 0
    assert named in (answer.remark or "")
    assert attributes.split(",")[-1].lstrip("+-").partition("=")[0] in (answer.remark or "")
    assert attributes_of(wire, "NeverMade") is None


def test_attribute_is_checked_when_a_topic_changes(wire: Wire) -> None:
    made = "+message.type=NORMAL,+queue.type=SimpleCQ"
    assert change(wire, "Typed", made).code == 0
    assert change(wire, "Typed", made).code == 0
    assert change(wire, "Typed", "+message.type=DELAY").code == 0
    for refused in ("+message.type=Delay", "-queue.type", "+cleanup.policy=DELETE"):
        assert change(wire, "Typed", refused).code != 0
    assert attributes_of(wire, "Typed") == {"message.type": "DELAY", "queue.type": "SimpleCQ"}
    assert change(wire, "Typed", "-message.type").code == 0
    assert attributes_of(wire, "Typed") == {"queue.type": "SimpleCQ"}


@pytest.mark.parametrize("sign", ["", "+"])
def test_list_of_topics_is_checked_too_and_changes_nothing_if_one_is_refused(wire: Wire, sign: str) -> None:
    def created(**attributes: str) -> RemotingCommand:
        listed = {sign + name.replace("_", "."): value for name, value in attributes.items()}
        topics = [
            {"topicName": f"First{len(sign)}"},
            {"topicName": f"Second{len(sign)}", "attributes": listed},
        ]
        return wire.call(18, body=json.dumps({"topicConfigList": topics}).encode())

    refused = created(message_type="Delay")
    assert refused.code != 0
    assert "message.type 'Delay'" in (refused.remark or "")
    assert attributes_of(wire, f"First{len(sign)}") is None
    assert created(message_type="DELAY").code == 0
    assert attributes_of(wire, f"Second{len(sign)}") == {"message.type": "DELAY"}
