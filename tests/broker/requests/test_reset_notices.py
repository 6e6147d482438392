"""Request 222 sends a group's members their new offsets in steps, because one notice may have megabytes.

It also stores the offsets if the members may not set them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from routekeeper.broker.requests.group_requests import NOTICES_BYTES, NOTICES_MAX
from routekeeper.broker.requests.handlers import serve
from routekeeper.broker.tables.state import BrokerState, Call, Later, Stepwise
from routekeeper.remoting.bodies import (
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from routekeeper.remoting.codes import LanguageCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.route import TopicConfig
from tests.broker.conftest import StartBroker, Wire
from tests.broker.states import HOST, NOW, state_in

QUEUES = 5_000
RESET = {"topic": "T", "group": "G", "timestamp": "-1", "isForce": "true"}


def beat(
    client_id: str,
    language: LanguageCode = LanguageCode.JAVA,
    *,
    topic: str = "T",
    consume_type: str = "CONSUME_PASSIVELY",
) -> RemotingCommand:
    consumer = ConsumerData(
        group_name="G", consume_type=consume_type, subscriptions=(SubscriptionData(topic=topic),)
    )
    data = HeartbeatData(client_id=client_id, consumers=(consumer,), producer_groups=())
    return RemotingCommand(code=34, ext_fields={}, body=data.encode(), version=479, language=language)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[BrokerState]:
    topic = TopicConfig(topic_name="T", read_queue_nums=QUEUES, write_queue_nums=QUEUES)
    made = state_in(tmp_path, topic)
    made.groups.put(SubscriptionGroupConfig(group_name="G"), now_ms=NOW)
    yield made
    made.store.log.close()


def call(request: RemotingCommand, connection: int) -> Call:
    return Call(request=request, connection=connection, peer=HOST, now_ms=NOW, now=0.0)


@pytest.mark.parametrize(("queues", "members"), [(QUEUES, 60), (1, 3 * NOTICES_MAX)])
def test_a_step_tells_a_bounded_number_of_members_a_bounded_number_of_bytes(
    state: BrokerState, queues: int, members: int
) -> None:
    for number in range(members):
        language = LanguageCode.CPP if number % 2 else LanguageCode.JAVA
        serve(state, call(beat(f"c{number}", language), number + 1))
    ext = RESET if queues > 1 else RESET | {"queueId": "0"}
    outcome = serve(state, call(RemotingCommand.request(222, ext), 1))
    assert isinstance(outcome, Stepwise)
    told: list[tuple[int, RemotingCommand]] = []
    steps: list[list[bytes]] = []

    def note() -> None:
        told.extend(state.effects.tell)
        steps.append([request.body for _, request in state.effects.tell])
        state.effects.tell = []

    try:
        step = next(outcome.work)
        while True:
            note()
            step = outcome.work.send(step())
    except StopIteration as end:
        note()
        reply = end.value
    assert reply.code == 0
    assert sorted(connection for connection, _ in told) == list(range(1, members + 1)), "each is told once"
    assert max(map(len, steps)) <= NOTICES_MAX
    assert all(sum(map(len, bodies[:-1])) < NOTICES_BYTES for bodies in steps)
    assert len({id(request.body) for _, request in told}) == 2, "one for C++ clients, one for all others"


def reset(state: BrokerState, topic: str = "T") -> tuple[RemotingCommand | Later, list[int]]:
    """Reset a group's offset in one queue to the queue's end, 0.

    Return the outcome, and the connections of the members that the broker tells the new offset.
    """
    state.effects.about = {}
    state.effects.tell = []
    ext = RESET | {"topic": topic, "queueId": "0"}
    outcome = serve(state, call(RemotingCommand.request(222, ext), 1))
    assert isinstance(outcome, Stepwise)
    try:
        step = next(outcome.work)
        while True:
            step = outcome.work.send(step())
    except StopIteration as end:
        return end.value, [connection for connection, _ in state.effects.tell]


def test_offsets_are_stored_and_told_if_the_last_heartbeat_lacks_the_topic(state: BrokerState) -> None:
    serve(state, call(beat("c1", topic="Other"), 1))
    state.offsets.commit("T", "G", 0, 7)
    outcome, told = reset(state)
    assert isinstance(outcome, Later)
    assert (outcome.reply.code, outcome.offsets_saved) == (0, True)
    assert state.offsets.get("T", "G", 0) == 0
    assert told == [1], "a member whose heartbeat was not the last one may subscribe to it"
    assert "offsets" not in state.effects.about


@pytest.mark.parametrize("topic", ["T", "Other"])
def test_offsets_of_pull_consumers_are_stored_and_told(state: BrokerState, topic: str) -> None:
    for number in (1, 2):
        serve(state, call(beat(f"c{number}", topic=topic, consume_type="CONSUME_ACTIVELY"), number))
    state.offsets.commit("T", "G", 0, 7)
    outcome, told = reset(state)
    assert isinstance(outcome, Later)
    assert (outcome.reply.code, outcome.offsets_saved) == (0, True)
    assert state.offsets.get("T", "G", 0) == 0
    assert told == [1, 2]
    assert "offsets" not in state.effects.about


def test_audit_line_says_that_members_were_told_if_the_broker_stored_nothing(state: BrokerState) -> None:
    for number in (1, 2):
        serve(state, call(beat(f"c{number}"), number))
    state.offsets.commit("T", "G", 0, 7)
    outcome, told = reset(state)
    assert isinstance(outcome, RemotingCommand)
    assert outcome.code == 0
    assert state.offsets.get("T", "G", 0) == 7
    assert told == [1, 2]
    assert state.effects.about["offsets"] == "told 2 members"


def test_offsets_of_pull_consumers_that_would_need_too_many_bytes_are_refused(state: BrokerState) -> None:
    state.config = replace(state.config, offset_bytes_max=1)
    state.topics.put(TopicConfig(topic_name="U"), now_ms=NOW)
    serve(state, call(beat("c1", topic="U", consume_type="CONSUME_ACTIVELY"), 1))
    outcome, told = reset(state, "U")
    assert isinstance(outcome, RemotingCommand)
    assert (outcome.code, told) == (16, [])


@pytest.mark.faults
@pytest.mark.slow
def test_all_members_are_told_though_their_notices_are_large(start_broker: StartBroker) -> None:
    broker = start_broker()
    wire = broker.wire()
    ext = {"topic": "T", "readQueueNums": "30000", "writeQueueNums": "30000", "perm": "6"}
    assert wire.call(17, ext).code == 0
    assert wire.call(200, body=SubscriptionGroupConfig(group_name="G").encode()).code == 0
    members: list[Wire] = [broker.wire() for _ in range(10)]
    for number, member in enumerate(members):
        language = LanguageCode.CPP if number % 2 else LanguageCode.JAVA
        assert member.answer(member.send(beat(f"c{number}", language))).code == 0
    assert wire.call(222, RESET).code == 0
    for member in members:
        while (notice := member.receive()).code != 220:
            pass
        assert len(notice.body) > 1 << 20
