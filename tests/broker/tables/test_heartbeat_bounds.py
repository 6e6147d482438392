"""A client's heartbeats use a bounded amount of memory, and the broker counts all of it."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from routekeeper.broker.config import BrokerConfig
from routekeeper.broker.requests.handlers import serve
from routekeeper.broker.tables.groups import Client, ClientTable
from routekeeper.broker.tables.state import BrokerState, Call
from routekeeper.broker.tables.topics import retry_topic
from routekeeper.remoting.bodies import ConsumerData, HeartbeatData, SubscriptionData
from routekeeper.remoting.bounds import CHOICE_MAX, GROUPS_MAX, NAME_MAX
from routekeeper.remoting.codes import LanguageCode
from routekeeper.remoting.command import RemotingCommand
from tests.broker.states import HOST, NOW

ROOM = 200_000


def ask(state: BrokerState, request: RemotingCommand, connection: int = 1) -> RemotingCommand:
    answer = serve(state, Call(request=request, connection=connection, peer=HOST, now_ms=NOW, now=0.0))
    assert isinstance(answer, RemotingCommand)
    return answer


def beat(
    state: BrokerState,
    *,
    consumers: list[dict[str, Any]] | None = None,
    producers: list[str] | None = None,
    connection: int = 1,
) -> RemotingCommand:
    body = {
        "clientID": "c",
        "consumerDataSet": consumers or [],
        "producerDataSet": [{"groupName": name} for name in producers or []],
    }
    return ask(state, RemotingCommand.request(34, {}, json.dumps(body).encode()), connection)


def names(kind: str, first: int, count: int) -> list[str]:
    return [f"{kind}{number}" for number in range(first, first + count)]


# Memory ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("letter", ["a", "\xe9", "\u4e2d", "\U0001f600"], ids=ascii)
def test_texts_count_with_their_memory(letter: str) -> None:
    """The table counts the memory of each text, not the number of its characters.

    If a text contains one emoji, Python needs four bytes for each of the text's characters.
    """
    for text in (letter * 100_000, "a" * 100_000 + letter):
        for subscription in (
            SubscriptionData(topic="T", sub_string=text),
            SubscriptionData(topic="T", tags=(text,), codes=(1,)),
            SubscriptionData(topic=text),
            SubscriptionData(topic="T", expression_type=text),
        ):
            table = ClientTable()
            client = Client(connection=1, client_id="c", client_addr="", language=LanguageCode.GO, version=1)
            data = HeartbeatData(
                client_id="c", consumers=(ConsumerData(group_name="G", subscriptions=(subscription,)),)
            )
            expected = table.growth(client, data)
            table.heartbeat(client, data, now=0.0)
            assert sys.getsizeof(text) <= table.size <= expected


def test_names_of_groups_and_clients_count_with_their_memory() -> None:
    text = "\U0001f600" * NAME_MAX
    for group, client_id in ((text, "c"), ("G", text)):
        table = ClientTable()
        client = Client(
            connection=1, client_id=client_id, client_addr="", language=LanguageCode.GO, version=1
        )
        data = HeartbeatData(client_id=client_id, producer_groups=(group,))
        expected = table.growth(client, data)
        table.heartbeat(client, data, now=0.0)
        assert sys.getsizeof(text) <= table.size <= expected


def test_names_of_choices_count_until_the_group_is_gone() -> None:
    table = ClientTable()
    client = Client(connection=1, client_id="c", client_addr="", language=LanguageCode.GO, version=1)
    sizes = []
    for choice in ("a" * CHOICE_MAX, "\U0001f600" * CHOICE_MAX):
        consumer = ConsumerData(
            group_name="G", consume_type=choice, message_model=choice, consume_from_where=choice
        )
        data = HeartbeatData(client_id="c", consumers=(consumer,))
        most = table.size + table.growth(client, data)
        table.heartbeat(client, data, now=0.0)
        assert table.size <= most
        assert table.growth(client, data) == 0
        sizes.append(table.size)
    assert sizes[1] - sizes[0] == 3 * 3 * CHOICE_MAX
    table.closed(1)
    assert table.size == 0


# Groups that one heartbeat names several times ---------------------------------------------------


def test_group_named_twice_takes_no_more_memory_than_was_counted(state: BrokerState) -> None:
    state.config = BrokerConfig(client_bytes_max=ROOM)
    old = {"topic": "T", "subVersion": 1}
    large = {"topic": "T", "subVersion": 0, "subString": "x" * 2 * ROOM}
    assert beat(state, consumers=[{"groupName": "G", "subscriptionDataSet": [old]}]).code == 0
    # Neither entry alone needs more memory: the first has no subscription, and the subscription of the second
    # is older than the known one. But if the broker registered both entries, the first would remove the known
    # subscription, and the second would then store its large one.
    twice: list[dict[str, Any]] = [{"groupName": "G"}, {"groupName": "G", "subscriptionDataSet": [large]}]
    beat(state, consumers=twice)
    assert state.clients.size <= ROOM


def test_last_entry_of_a_group_counts(state: BrokerState) -> None:
    often: list[dict[str, Any]] = [{"groupName": "G"}] * (GROUPS_MAX - 2)
    last = {"groupName": "G", "messageModel": "BROADCASTING", "subscriptionDataSet": [{"topic": "T"}]}
    body = {"clientID": "c", "consumerDataSet": [*often, {"groupName": "H"}, last]}
    found = HeartbeatData.decode(json.dumps(body).encode()).consumers
    assert [consumer.group_name for consumer in found] == ["G", "H"]
    assert beat(state, consumers=[*often, last]).code == 0
    group = state.clients.consumer_group("G")
    assert group is not None
    assert (group.is_broadcasting, set(group.subscriptions)) == (True, {"T"})


# Groups of one connection ------------------------------------------------------------------------


def test_producer_groups_of_one_connection_have_a_bound(state: BrokerState) -> None:
    half = GROUPS_MAX // 2
    assert beat(state, producers=names("p", 0, half)).code == 0
    assert beat(state, producers=names("p", half, half)).code == 0
    refused = beat(state, producers=["one more"])
    assert refused.code != 0
    assert f"{GROUPS_MAX + 1} producer groups, allowed are {GROUPS_MAX}" in (refused.remark or "")
    assert state.clients.producers("one more") == ()
    assert beat(state, producers=names("p", 0, half)).code == 0, "a client that is known goes on"
    assert beat(state, producers=["one more"], connection=2).code == 0
    gone = RemotingCommand.request(35, {"clientID": "c", "producerGroup": "p0"})
    assert ask(state, gone).code == 0
    assert beat(state, producers=["one more"]).code == 0


def test_consumer_groups_of_one_connection_have_a_bound(state: BrokerState) -> None:
    half = GROUPS_MAX // 2
    for first in (0, half):
        groups = [{"groupName": name} for name in names("g", first, half)]
        assert beat(state, consumers=groups, producers=names("p", first, half)).code == 0
    refused = beat(state, consumers=[{"groupName": "g0"}, {"groupName": "more"}])
    assert refused.code != 0
    assert f"{GROUPS_MAX + 1} consumer groups, allowed are {GROUPS_MAX}" in (refused.remark or "")
    assert retry_topic("more") not in state.topics, "a refused heartbeat creates nothing"
    assert beat(state, consumers=[{"groupName": "g0"}]).code == 0
