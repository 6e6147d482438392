"""Changes by operators leave a line in the broker's log. Changes by clients leave no line."""

from __future__ import annotations

import json
import re
import time
from typing import Final

import pytest

from routekeeper.remoting.audit_log import LINES_PER_HOST
from routekeeper.remoting.bodies import ConsumerData, HeartbeatData, SubscriptionData
from tests.broker.conftest import BrokerProcess, StartBroker, Wire

pytestmark = [pytest.mark.slow]

WAIT_S: Final = 40.0


def audited(broker: BrokerProcess) -> list[str]:
    """Stop a broker, and return its audit lines without their time, level and logger."""
    assert broker.stop() == 0
    found = [line.partition(" routekeeper.broker.audit ") for line in broker.log.read_text().splitlines()]
    return [text for _, mark, text in found if mark]


def peer_of(wire: Wire) -> str:
    host, port = wire.socket.getsockname()[:2]
    return f"{host}:{port}"


def topic(wire: Wire, name: str, queues: int, perm: int = 6, **more: str) -> int:
    ext = {"topic": name, "readQueueNums": str(queues), "writeQueueNums": str(queues), "perm": str(perm)}
    return wire.call(17, ext | more).code


def test_every_change_by_an_operator_is_one_line_and_clients_own_requests_are_none(
    start_broker: StartBroker,
) -> None:
    broker = start_broker()
    wire = broker.wire()
    assert wire.send_message("Auto", b"x").code == 0
    consumer = ConsumerData(group_name="Members", subscriptions=(SubscriptionData(topic="Auto"),))
    assert wire.call(34, body=HeartbeatData(client_id="c", consumers=(consumer,)).encode()).code == 0
    assert wire.answer(wire.pull("Auto", 0, group="Pulls")).code == 0
    ext = {"consumerGroup": "Pulls", "topic": "Auto", "queueId": "0", "commitOffset": "1"}
    assert wire.call(15, ext).code == 0
    assert wire.call(35, {"clientID": "c", "consumerGroup": "Members"}).code == 0
    assert wire.call(26).code == 0
    assert topic(wire, "T", 2) == 0
    assert topic(wire, "T", 4, perm=4, attributes="+message.type=FIFO") == 0
    two = [{"topicName": "A", "readQueueNums": 1, "writeQueueNums": 1}, {"topicName": "B", "perm": 2}]
    assert wire.call(18, body=json.dumps({"topicConfigList": two}).encode()).code == 0
    assert wire.call(215, {"topic": "A"}).code == 0
    assert wire.call(200, body=b'{"groupName":"G"}').code == 0
    assert wire.call(200, body=b'{"groupName":"G","retryMaxTimes":3}').code == 0
    assert topic(wire, "T", 2) == 0
    for number in range(2):
        assert wire.send_message("T", b"x", queue_id=number).code == 0
    ext = {"topic": "T", "group": "G", "timestamp": "-1", "isForce": "true"}
    assert wire.call(222, ext).code == 0
    assert wire.call(222, ext | {"timestamp": "0"}).code == 0
    assert wire.call(314, {"srcGroup": "G", "destGroup": "H", "topic": "T"}).code == 0
    assert wire.call(207, {"groupName": "G", "removeOffset": "true"}).code == 0
    assert wire.call(25, body=b"fileReservedTime=48\ndeleteWhen=05\n").code == 0
    assert wire.call(306).code == 0
    assert wire.call(329).code == 0
    me = f"audit peer={peer_of(wire)} change="
    assert audited(broker) == [
        f'{me}UPDATE_AND_CREATE_TOPIC topic=T new="read=2 write=2 perm=6" result=applied',
        f'{me}UPDATE_AND_CREATE_TOPIC topic=T old="read=2 write=2 perm=6"'
        ' new="read=4 write=4 perm=4 attributes=+message.type=FIFO" result=applied',
        f'{me}UPDATE_AND_CREATE_TOPIC_LIST count=2 topic="A B"'
        ' new="read=1 write=1 perm=6; read=16 write=16 perm=2" result=applied',
        f'{me}DELETE_TOPIC_IN_BROKER topic=A old="read=1 write=1 perm=6" result=applied',
        f"{me}UPDATE_AND_CREATE_SUBSCRIPTIONGROUP group=G new=defaults result=applied",
        f'{me}UPDATE_AND_CREATE_SUBSCRIPTIONGROUP group=G old=defaults new="retryMaxTimes=3" result=applied',
        f'{me}UPDATE_AND_CREATE_TOPIC topic=T old="read=4 write=4 perm=4 attributes=+message.type=FIFO"'
        ' new="read=2 write=2 perm=6" result=applied',
        f"{me}INVOKE_BROKER_TO_RESET_OFFSET topic=T group=G timestamp=-1 force=true members=0"
        ' new="0:1 1:1" result=applied',
        f"{me}INVOKE_BROKER_TO_RESET_OFFSET topic=T group=G timestamp=0 force=true members=0"
        ' old="0:1 1:1" new="0:0 1:0" result=applied',
        f'{me}CLONE_GROUP_OFFSET topic=T source=G group=H new="0:0 1:0" result=applied',
        f'{me}DELETE_SUBSCRIPTIONGROUP group=G offsets=removed old="retryMaxTimes=3" result=applied',
        f'{me}UPDATE_BROKER_CONFIG old="deleteWhen=04 fileReservedTime=72"'
        ' new="deleteWhen=05 fileReservedTime=48" result=applied',
        f"{me}CLEAN_EXPIRED_CONSUMEQUEUE result=applied",
        f"{me}DELETE_EXPIRED_COMMITLOG result=applied",
    ]


def test_refused_and_unknown_changes_are_written_with_what_was_asked(start_broker: StartBroker) -> None:
    broker = start_broker()
    wire = broker.wire()
    assert topic(wire, "T", 2, perm=9) != 0
    assert topic(wire, "T\n2026 forged change=x", 2) != 0
    assert wire.call(17, {"topic": "T", "readQueueNums": "many"}).code != 0
    assert wire.call(215, {"topic": "TBW102"}).code != 0
    assert wire.call(200, body=b'{"groupName":"no group"}').code != 0
    assert wire.call(200, body=b"[[[").code != 0
    assert wire.call(222, {"topic": "None", "group": "G", "timestamp": "0", "isForce": "true"}).code != 0
    assert wire.call(25, body=b"storePathRootDir=/tmp\n").code != 0
    assert wire.call(25, body=b"brokerPermission=" + b"9" * 10_000).code != 0
    obstacle = broker.store / "config" / "topics.json.tmp"
    obstacle.mkdir()
    assert topic(wire, "T", 2) == 14
    obstacle.rmdir()
    *lines, not_on_disk = audited(broker)
    assert not_on_disk.endswith(" result=unknown")
    assert len(lines) == 9
    for line in lines:
        assert re.search(r" result=refused\(\d+\)$", line)
        assert len(line) < 600
    assert ' topic=T new="read=2 write=2 perm=9" ' in lines[0]
    assert r' topic="T\n2026 forged change=x" ' in lines[1]
    assert ' new="storePathRootDir=/tmp" ' in lines[7]


def test_flood_is_bounded_and_counted(start_broker: StartBroker) -> None:
    broker = start_broker()
    wire = broker.wire()
    began = time.monotonic()
    count = 100
    for number in range(count):
        assert topic(wire, "T", 1 + number % 2) == 0
    lines = audited(broker)
    windows = 1 + int((time.monotonic() - began) / 10)
    written = [line for line in lines if "change=" in line]
    assert LINES_PER_HOST <= len(written) <= windows * LINES_PER_HOST
    left_out = [re.fullmatch(r"audit lines left out suppressed=(\d+)", line) for line in lines]
    assert sum(int(match[1]) for match in left_out if match) == count - len(written)
