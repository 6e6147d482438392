"""Lists of topics and of groups: one bounded request, all or nothing, while others have their turn."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.broker.conftest import StartBroker

COUNT = 10_000
TOPICS = 18


def topics(count: int) -> list[dict[str, Any]]:
    """Return topics as RocketMQ 5.3's mqadmin spells them."""
    return [
        {
            "attributes": {},
            "order": False,
            "perm": 6,
            "readQueueNums": 8,
            "topicFilterType": "SINGLE_TAG",
            "topicName": f"a-topic-with-a-name-of-usual-length-{number}",
            "topicSysFlag": 0,
            "writeQueueNums": 8,
        }
        for number in range(count)
    ]


@pytest.mark.slow
@pytest.mark.xfail(strict=True, reason="a body of more than 1 MiB is refused, no matter what it lists")
def test_ten_thousand_topics_are_one_request(start_broker: StartBroker) -> None:
    wire = start_broker().wire()
    answer = wire.call(TOPICS, body=json.dumps({"topicConfigList": topics(COUNT)}).encode())
    assert (answer.code, answer.remark) == (0, None)
    found = json.loads(wire.call(21).body)["topicConfigTable"]
    assert set(found) >= {item["topicName"] for item in topics(COUNT)}
