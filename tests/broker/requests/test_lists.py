"""Requests with lists: their size is bounded, and either all entries are stored or none.

The broker serves a list in steps, with other requests in between.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from routekeeper.broker.requests.handlers import serve
from routekeeper.broker.tables.state import BrokerState, Call, Later, Stepwise
from routekeeper.broker.tables.topics import ATTRIBUTES_MAX
from routekeeper.remoting.bodies import SubscriptionGroupTable
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.fields import RegisterBrokerFields
from routekeeper.remoting.route import TopicConfig
from tests.broker.conftest import BrokerProcess, RecordingNameserver, StartBroker, Wire, brokers_in
from tests.broker.states import HOST, NOW, state_in
from tests.registrations import read_registration
from tests.waiting import wait_until

COUNT = 10_000
TOPIC, TOPICS, GROUPS = 17, 18, 225
MANY = {f"+{number}": "" for number in range(ATTRIBUTES_MAX + 1)}


def topics(count: int) -> list[dict[str, Any]]:
    """Return topics in the form of RocketMQ 5.3's mqadmin."""
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


def groups(count: int) -> list[dict[str, Any]]:
    """Return groups in the form of RocketMQ 5.3's mqadmin."""
    return [
        {
            "attributes": {},
            "brokerId": 0,
            "consumeBroadcastEnable": True,
            "consumeEnable": True,
            "consumeFromMinEnable": True,
            "consumeMessageOrderly": False,
            "consumeTimeoutMinute": 15,
            "groupName": f"a-group-with-a-name-of-usual-length-{number}",
            "groupRetryPolicy": {"type": "CUSTOMIZED"},
            "groupSysFlag": 0,
            "notifyConsumerIdsChangedEnable": True,
            "retryMaxTimes": 3,
            "retryQueueNums": 1,
            "whichBrokerWhenConsumeSlowly": 1,
        }
        for number in range(count)
    ]


def body(code: int, items: list[dict[str, Any]]) -> bytes:
    return json.dumps({"topicConfigList" if code == TOPICS else "groupConfigList": items}).encode()


def listed(wire: Wire) -> tuple[set[str], set[str]]:
    """Return the names of a broker's topics and groups."""
    found = json.loads(wire.call(21).body)["topicConfigTable"]
    return set(found), set(SubscriptionGroupTable.decode(wire.call(201).body).groups)


@pytest.mark.slow
def test_ten_thousand_topics_and_groups_are_one_request_each_and_survive(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker()
    wire = broker.wire()
    for code, items in ((TOPICS, topics(COUNT)), (GROUPS, groups(COUNT))):
        answer = wire.call(code, body=body(code, items))
        assert (answer.code, answer.remark) == (0, None)
    line = r"audit .*change=UPDATE_AND_CREATE_{} count=10000 {}=\"a-{}-with.*result=applied"
    for found in (
        line.format("TOPIC_LIST", "topic", "topic"),
        line.format("SUBSCRIPTIONGROUP_LIST", "group", "group"),
    ):
        wait_until(lambda found=found: re.search(found, broker.log.read_text()) is not None, found)  # type: ignore[misc]
    broker.kill()  # the answer was positive, so the changes must already be on disk
    again = start_broker(store=broker.store).wire()
    have = listed(again)
    assert have[0] >= {item["topicName"] for item in topics(COUNT)}
    assert have[1] >= {item["groupName"] for item in groups(COUNT)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "items", "said"),
    [
        (TOPICS, topics(COUNT + 1), "a list of 10001 topics, allowed are 10000"),
        (GROUPS, groups(COUNT + 1), "a list of 10001 groups, allowed are 10000"),
        (TOPICS, [*topics(300), {"topicName": "no good"}], "illegal characters"),
        (TOPICS, [*topics(300), {"topicName": "TBW102"}], "conflict with system topic"),
        (TOPICS, [*topics(300), {"topicName": "T", "readQueueNums": 10**6}], "outside 0..65536"),
        (TOPICS, [*topics(300), {"readQueueNums": 1}], "no topicName"),
        (TOPICS, [*topics(300), {"topicName": "T", "attributes": MANY}], "a topic has 65 attributes"),
        (GROUPS, [*groups(300), {"groupName": "no good"}], "group 'no good': "),
        (GROUPS, [*groups(300), {"groupName": "G", "retryQueueNums": 5000}], "is outside 0..1024"),
        (TOPICS, topics(2000), "maxTopics=1000"),
        (GROUPS, groups(2000), "maxSubscriptionGroups=1000"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_list_of_which_one_is_refused_changes_nothing(
    small: Wire, code: int, items: list[dict[str, Any]], said: str
) -> None:
    before = listed(small)
    answer = small.call(code, body=body(code, items))
    assert answer.code != 0
    assert said in (answer.remark or "")
    assert listed(small) == before


def announced(request: RemotingCommand) -> set[str]:
    """Return the names of the topics in a broker's registration."""
    compressed = RegisterBrokerFields.parse(request.ext_fields).compressed
    return set(read_registration(request.body, compressed=compressed, version=request.version).topics)


@pytest.mark.parametrize("code", [TOPICS, TOPIC])
def test_topics_are_answered_once_they_are_registered(
    start_broker: StartBroker, nameserver: RecordingNameserver, code: int
) -> None:
    wanted = {item["topicName"] for item in topics(3 if code == TOPICS else 1)}
    request = RemotingCommand.request(TOPICS, {}, body(TOPICS, topics(3)))
    if code == TOPIC:
        queues = {"readQueueNums": "8", "writeQueueNums": "8", "perm": "6", "order": "false"}
        more = {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"}
        request = RemotingCommand.request(TOPIC, {"topic": next(iter(wanted))} | queues | more)
    wire = start_broker(namesrv=nameserver.addr).wire()
    nameserver.expect(103)  # the registration at the broker's start
    nameserver.answering.clear()
    changing = wire.send(request)
    named: set[str] = set()
    # The first registration may name only some of the topics. The broker sends the next registration only
    # after an answer to the first registration, and this nameserver does not answer now.
    while not named & wanted:
        named |= announced(nameserver.expect(103))
    same = wire.send(request)  # this repetition changes nothing, so its answer does not wait for nameservers
    assert wire.receive().opaque == same, "the first one waits for the nameserver"
    nameserver.answering.set()
    answer = wire.receive()
    assert (answer.opaque, answer.code) == (changing, 0)


@pytest.fixture(scope="module")
def small_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Run a broker that allows few topics and groups. No test may change its topics or groups."""
    with brokers_in(tmp_path_factory.mktemp("small")) as start:
        yield start("--set", "maxTopics=1000", "--set", "maxSubscriptionGroups=1000")


@pytest.fixture
def small(small_broker: BrokerProcess) -> Wire:
    return small_broker.wire()


@pytest.mark.parametrize("code", [TOPICS, GROUPS])
@pytest.mark.parametrize("bad", [b"", b"{}", b"{", b'{"topicConfigList":{},"groupConfigList":1}'])
def test_a_body_that_holds_no_list_is_refused(small: Wire, code: int, bad: bytes) -> None:
    answer = small.call(code, body=bad)
    assert answer.code != 0
    assert answer.remark


def state(tmp_path: Path) -> BrokerState:
    return state_in(tmp_path, TopicConfig(topic_name="T"))


def asked(state: BrokerState, code: int, items: list[dict[str, Any]]) -> Stepwise:
    request = RemotingCommand.request(code, body=body(code, items))
    outcome = serve(state, Call(request=request, connection=1, peer=HOST, now_ms=NOW, now=0.0))
    assert isinstance(outcome, Stepwise)
    return outcome


def run(outcome: Stepwise, between: Any = lambda: None) -> RemotingCommand | Later:
    """Run the steps of a request as the broker does. Call ``between`` where other requests may run."""
    sent: object = None
    while True:
        try:
            work = outcome.work.send(sent)
        except StopIteration as end:
            answer: RemotingCommand | Later = end.value
            return answer
        sent = work()
        between()


@pytest.mark.parametrize("code", [TOPICS, GROUPS])
def test_others_have_their_turn_while_a_long_list_is_taken_over(tmp_path: Path, code: int) -> None:
    known = state(tmp_path)
    table = known.topics if code == TOPICS else known.groups
    sizes: list[int] = []
    items = (topics if code == TOPICS else groups)(1000)
    before = len(table)
    answer = run(asked(known, code, items), lambda: sizes.append(len(table)))
    assert isinstance(answer, Later)
    assert len(table) == before + 1000
    assert max(after - former for former, after in itertools.pairwise(sizes)) <= 100
    assert len(sizes) >= 2 * 1000 // 100  # at least 10 steps check the list, and at least 10 add its entries
    known.store.log.close()


@pytest.mark.parametrize("code", [TOPICS, GROUPS])
def test_two_lists_at_a_time_share_the_room_that_there_is(tmp_path: Path, code: int) -> None:
    known = state(tmp_path)
    table = known.topics if code == TOPICS else known.groups
    room = len(table) + 1000
    known.config = (
        replace(known.config, topics_max=room) if code == TOPICS else replace(known.config, groups_max=room)
    )
    make, name = (topics, "topicName") if code == TOPICS else (groups, "groupName")
    second = [item | {name: f"{item[name]}-b"} for item in make(600)]
    answers: list[RemotingCommand | Later] = []

    def other() -> None:
        if not answers and len(table) > 300:
            answers.append(run(asked(known, code, second)))

    assert isinstance(run(asked(known, code, make(600)), other), Later)
    assert isinstance(answers[0], RemotingCommand)
    assert "allowed is" in (answers[0].remark or "")
    # The first list is stored. Only its 600 entries count now, so the limit allows 400 more entries.
    third = [item | {name: f"{item[name]}-c"} for item in make(400)]
    assert isinstance(run(asked(known, code, third)), Later)
    known.store.log.close()


def test_a_broker_without_slaves_says_so_and_where_its_log_ends(wire: Wire) -> None:
    assert wire.send_message("Slaves", b"x").code == 0
    answer = wire.call(907)
    status = json.loads(answer.body)
    assert answer.code == 0
    assert status.pop("masterCommitLogMaxOffset") > 0
    assert status == {
        "haClientRuntimeInfo": {
            "activated": False,
            "lastReadTimestamp": 0,
            "lastWriteTimestamp": 0,
            "masterFlushOffset": 0,
            "maxOffset": 0,
            "transferredByteInSecond": 0,
        },
        "haConnectionInfo": [],
        "inSyncSlaveNums": 0,
        "master": True,
    }
