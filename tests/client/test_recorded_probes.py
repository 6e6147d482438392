"""Our broker's answers to handmade requests, compared with recorded answers of Apache's brokers.

Our broker is in the same state as Apache's brokers were. The code, the names in the JSON and the type of each
value must be equal.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from routekeeper.bench.timers import divide_periods
from routekeeper.client.blocking import Client
from routekeeper.client.config import ClientConfig, ConsumeFrom, ConsumerConfig
from routekeeper.client.operation import invoke
from routekeeper.client.producer import Message
from routekeeper.remoting.bodies import MessageQueue
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.lenient import ANSWER, loads
from routekeeper.remoting.message import decode_messages
from routekeeper.remoting.route import TopicConfig
from tests.waiting import wait_until

FOLDER = Path(__file__).resolve().parent.parent / "golden" / "mqadmin"
PROBES = {
    (release, case["name"].removeprefix("probe: ")): case
    for release in ("4.9.7", "5.3.3")
    for case in json.loads((FOLDER / f"{release}-broker.json").read_text())
    if case["name"].startswith("probe: ")
}
TOPIC: Final = "Golden"
GROUP: Final = "golden_group"
#: Names of JSON objects whose keys are data, such as queues, groups or clients.
TABLES: Final = {"offsetTable", "consumerTable", "correctionOffsets", "data", "consumeStatsList"}


@dataclass(frozen=True, slots=True)
class Staged:
    """A broker with three messages in one queue, and a consumer group that skips them.

    The group subscribes to a tag that none of the messages has.
    """

    started: Client
    addr: str

    def ask(self, code: int, fields: Mapping[str, str]) -> RemotingCommand:
        return self.started.run(invoke(self.addr, RemotingCommand.request(code, fields), 5.0))

    def passed(self) -> bool:
        """Return True if the group's offset is after all messages and a member reports offsets (code 223)."""
        offset = self.ask(14, {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0"})
        queues = loads(self.ask(223, {"topic": TOPIC, "group": GROUP}).body or b"{}", ANSWER)
        told = isinstance(queues, dict) and any((queues.get("consumerTable") or {}).values())
        return told and offset.ext_fields.get("offset") == "3"


@pytest.fixture(scope="module")
def staged(nameserver: Any, broker: Any) -> Iterator[Staged]:
    config = divide_periods(ClientConfig(nameservers=(nameserver.addr,)), 10)
    with Client(config) as started:
        topic = TopicConfig(topic_name=TOPIC, read_queue_nums=2, write_queue_nums=2)
        started.run(started.admin.create_topic(broker.addr, topic))
        producer = started.producer("PG")
        queue = MessageQueue(topic=TOPIC, broker_name="broker-a", queue_id=0)
        for body, key, tag in (("one", "key1", "TagA"), ("two", "key1", "TagB"), ("three", "key2", "TagA")):
            producer.send(Message(topic=TOPIC, body=body.encode(), tags=tag, keys=[key]), queue=queue)
        group = ConsumerConfig(group=GROUP, consume_from=ConsumeFrom.FIRST_OFFSET)
        started.consume(group, {TOPIC: "TagI"}, lambda batch: None)
        scene = Staged(started, broker.addr)
        wait_until(scene.passed, "the group has passed the messages")
        yield scene


#: Answer codes of our broker that differ from Apache's codes, by release and by the name of the request.
OTHER_CODE: Final = {
    ("4.9.7", "reset, unknown group"): 26,  # 5.3.3 answers 26, too
    # Apache's broker creates a group as soon as any client asks for its configuration. Our broker creates a
    # group only for members of the group and for operators.
    ("5.3.3", "an unknown group's configuration"): 26,
}
#: Names in the JSON answer that 4.9's brokers do not send, by code of the request.
SINCE_5: Final[Mapping[int, set[str]]] = {317: {"totalInflightDiff", "pullOffset"}}
#: Codes of requests that 4.9's brokers refuse as unknown.
OF_5: Final = (343, 345, 352)
#: Names in the JSON answer that Apache's broker sends and ours does not send, by code of the request.
UNTOLD: Final[Mapping[int, set[str]]] = {
    # settings of groups that only POP and gRPC clients use
    352: {"attributes", "consumeTimeoutMinute", "groupRetryPolicy", "groupSysFlag"},
}
RUNTIME: Final = 28
QUERY_MESSAGE: Final = 12


def shape(value: object, name: str = "") -> object:
    """Return the shape of a JSON value: its names, and the type of each value.

    Keys that are data, such as client ids, are replaced by one name, ``*``.
    """
    match value:
        case dict() if name in TABLES or any(key.startswith("{") for key in value):
            return {"*": merged(shape(item) for item in value.values())}
        case dict():
            return {key: shape(item, key) for key, item in value.items() if item is not None}
        case list() if name in TABLES:
            return [merged(shape(item, name) for item in value)]
        case list():
            return [merged(map(shape, value))]
        case bool():
            return "flag"
        case int() | float():
            return "number"
    return "text"


def merged(shapes: Iterable[object]) -> object:
    """Return one shape that has the names of all given shapes; None if there is no shape."""
    whole: object = None
    for one in shapes:
        if isinstance(one, dict) and isinstance(whole, dict):
            whole = {
                key: merged(found for found in (whole.get(key), one.get(key)) if found is not None)
                for key in {**whole, **one}
            }
        elif isinstance(one, list) and isinstance(whole, list):
            whole = [merged(found for found in (*whole, *one) if found is not None)]
        elif one is not None:
            whole = one
    return whole


@pytest.mark.slow
@pytest.mark.parametrize(("release", "probe"), PROBES, ids=lambda value: str(value))
def test_our_broker_answers_with_the_same_members(release: str, probe: str, staged: Staged) -> None:
    case = PROBES[release, probe]
    code = case["code"]
    if case["answer"] == 3:
        assert code in OF_5
        return
    have, body = staged.ask(code, case["fields"]), base64.b64decode(case["answer_body"])
    assert have.code == OTHER_CODE.get((release, probe), case["answer"]), have.remark
    if (release, probe) in OTHER_CODE:
        return
    assert set(have.ext_fields) == set(case["answer_fields"])
    if code == QUERY_MESSAGE:
        wanted, found = (
            [(one.topic, one.body, one.queue_offset) for one in decode_messages(stored)]
            for stored in (body, have.body)
        )
        assert found == wanted
        return
    if not body:
        assert have.body == b""
        return
    theirs, ours = (shape(loads(text, ANSWER)) for text in (body, have.body))
    assert isinstance(theirs, dict)
    assert isinstance(ours, dict)
    # Compare only some values: most of Apache's values describe pools, page caches and timers, which our
    # broker does not have.
    if code == RUNTIME:
        told, known = ours["table"], theirs["table"]
        assert set(told.values()) == set(known.values()) == {"text"}
        assert len(set(told) & set(known)) >= 20
        return
    if release.startswith("4."):
        ours = without(SINCE_5.get(code, set()), ours)
    # A table in Apache's answer was empty, so the shape of its entries is unknown: compare only the other
    # names.
    if None in values_of(theirs):
        assert set(ours) == set(theirs)
        return
    assert not UNTOLD.get(code, set()) & set(ours), "told by now"
    assert ours == without(UNTOLD.get(code, set()), theirs)


def without(names: set[str], told: Any) -> Any:
    """Return a shape without the given names, at any depth."""
    if isinstance(told, list):
        return [without(names, item) for item in told]
    if isinstance(told, dict):
        return {name: without(names, value) for name, value in told.items() if name not in names}
    return told


def values_of(told: Mapping[str, object]) -> set[object]:
    return {
        value for item in told.values() if isinstance(item, dict) for value in item.values() if value is None
    }
