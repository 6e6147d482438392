"""If a subcommand asks several brokers or queues, it continues after a failure.

The subcommand names the failure, and ends with exit code 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from routekeeper.remoting.bodies import (
    ClientConnection,
    ConsumeOffset,
    ConsumerConnection,
    ConsumeStats,
    MessageQueue,
    QueueOffsets,
    TopicOffset,
    TopicStats,
)
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from tests.client.mqadmin import mqadmin

NAMES = ("broker-a", "broker-b", "broker-c")


class Brokers:
    """Three scripted brokers with two queues each of topic T and group G.

    The first broker is the nameserver, too.

    Attributes:
        failing: The broker that refuses to return topic statistics or lists of members, and to store an
            offset of its queue 0.
        resetting: Brokers that reset the group's offsets on request, to offset 7. The other brokers refuse
            this request, as brokers of 4.9 do.
        unknown: Name of the broker at which the group has no offsets.
        stored: Queues whose offset was stored.
    """

    def __init__(self, new_peer: Callable[[], Any], answers: Any, route_body: Callable[..., bytes]) -> None:
        self.peers = {name: new_peer() for name in NAMES}
        route = route_body(queues=2, **{name: peer.addr for name, peer in self.peers.items()})
        self._known = answers({"T": route, "%RETRY%G": route})
        self.failing = ""
        self.resetting: set[str] = set()
        self.unknown = ""
        self.stored: list[str] = []
        for name, peer in self.peers.items():
            peer.answer = lambda request, name=name: self.answer(name, request)

    def answer(self, name: str, request: RemotingCommand) -> Any:
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return self._known(request)
        queues = [MessageQueue(topic="T", broker_name=name, queue_id=number) for number in (0, 1)]
        fails = name == self.failing
        match request.code:
            case RequestCode.INVOKE_BROKER_TO_RESET_OFFSET if name in self.resetting:
                return request.reply(body=QueueOffsets(offsets=dict.fromkeys(queues, 7)).encode())
            case RequestCode.INVOKE_BROKER_TO_RESET_OFFSET:
                return request.reply(ResponseCode.CONSUMER_NOT_ONLINE, remark="no members")
            case RequestCode.GET_CONSUME_STATS if name == self.unknown:
                return request.reply(body=ConsumeStats().encode())
            case RequestCode.GET_CONSUME_STATS:
                offset = ConsumeOffset(broker_offset=9, consumer_offset=1)
                return request.reply(body=ConsumeStats(offsets=dict.fromkeys(queues, offset)).encode())
            case RequestCode.GET_MAX_OFFSET:
                return request.reply(ext_fields={"offset": "9"})
            case RequestCode.UPDATE_CONSUMER_OFFSET if not (fails and request.ext_fields["queueId"] == "0"):
                self.stored.append(f"{name} {request.ext_fields['queueId']}")
                return request.reply()
            case RequestCode.GET_TOPIC_STATS_INFO if not fails:
                stats = dict.fromkeys(queues, TopicOffset(min_offset=0, max_offset=9))
                return request.reply(body=TopicStats(offsets=stats).encode())
            case RequestCode.GET_CONSUMER_CONNECTION_LIST if name == "broker-c":
                member = ClientConnection(client_id="somebody", client_addr="192.0.2.1:5")
                return request.reply(body=ConsumerConnection(connections=(member,)).encode())
            case RequestCode.GET_CONSUMER_CONNECTION_LIST if not fails:
                return request.reply(ResponseCode.CONSUMER_NOT_ONLINE, remark="no members")
            case RequestCode.GET_CONSUMER_RUNNING_INFO if name == "broker-c":
                return request.reply(body=b'{"mqTable":{},"subscriptionSet":[]}')
        return request.reply(ResponseCode.NO_PERMISSION, remark="not today")

    def run(self, *argv: str) -> tuple[int, str, str]:
        return mqadmin(*argv, namesrv=self.peers["broker-a"].addr)


@pytest.fixture
def brokers(new_peer: Any, answers: Any, route_body: Any) -> Brokers:
    return Brokers(new_peer, answers, route_body)


@pytest.mark.parametrize("failing", NAMES)
def test_offsets_of_all_other_queues_are_reset(failing: str, brokers: Brokers) -> None:
    brokers.failing = failing
    code, out, err = brokers.run("skipAccumulatedMessage", "-g", "G", "-t", "T")
    others = [f"{name} {number}" for name in NAMES for number in (0, 1)]
    others.remove(f"{failing} 0")
    assert brokers.stored == others
    assert (code, err.count("\n")) == (1, 1)
    assert f"broker_name='{failing}', queue_id=0" in err
    assert "not today" in err
    rows = [line.split()[:2] for line in out.splitlines()[1:]]
    assert [" ".join(row) for row in rows] == others


def test_a_broker_without_offsets_of_the_group_is_not_reset_and_is_named(brokers: Brokers) -> None:
    brokers.unknown = "broker-b"
    code, out, err = brokers.run("skipAccumulatedMessage", "-g", "G", "-t", "T")
    assert (code, err.count("\n")) == (1, 1)
    assert f"broker {brokers.peers['broker-b'].addr}: group 'G' has no offsets of topic 'T'" in err
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["broker-a"] * 2 + ["broker-c"] * 2


def test_offsets_that_brokers_reset_are_listed_beside_those_that_the_tool_set(brokers: Brokers) -> None:
    brokers.resetting = {"broker-b"}
    code, out, err = brokers.run("skipAccumulatedMessage", "-g", "G", "-t", "T")
    rows = [line.split() for line in out.splitlines() if line.startswith("broker-")]
    assert (code, err) == (0, "")
    assert [row[:2] for row in rows if len(row) == 6] == [[name, n] for name in NAMES[::2] for n in "01"]
    assert [row for row in rows if len(row) == 3] == [["broker-b", n, "7"] for n in "01"]


@pytest.mark.parametrize("failing", NAMES)
def test_queues_of_all_other_brokers_are_listed(failing: str, brokers: Brokers) -> None:
    brokers.failing = failing
    code, out, err = brokers.run("topicStatus", "-t", "T")
    listed = {line.split()[0] for line in out.splitlines() if line.startswith("broker-")}
    assert listed == set(NAMES) - {failing}
    assert (code, err.count("\n")) == (1, 1)
    assert brokers.peers[failing].addr in err
    assert "not today" in err


def test_members_that_another_broker_knows_are_found(brokers: Brokers) -> None:
    brokers.failing = "broker-a"
    code, out, err = brokers.run("consumerConnection", "-g", "G")
    assert (code, err.count("\n")) == (0, 1)
    assert f"WARNING: broker {brokers.peers['broker-a'].addr}: CODE: 16  DESC: not today" in err
    assert "somebody" in out


def test_a_group_that_no_broker_tells_of_fails_with_the_reason(brokers: Brokers) -> None:
    for peer in brokers.peers.values():
        peer.answer = lambda request: (
            brokers.answer("", request)
            if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
            else request.reply(ResponseCode.NO_PERMISSION, remark="not today")
        )
    code, _, err = brokers.run("consumerConnection", "-g", "G")
    assert (code, "not today" in err) == (1, True)


def test_the_state_of_members_that_another_broker_knows_is_shown(brokers: Brokers) -> None:
    brokers.failing = "broker-a"
    code, out, err = brokers.run("consumerStatus", "-g", "G")
    assert (code, err.count("\n")) == (1, 1)
    assert f"broker {brokers.peers['broker-a'].addr}: CODE: 16 DESC: not today" in err
    assert "somebody" in out
    assert "Rebalance OK" in out


def test_a_group_whose_brokers_all_refuse_is_not_said_to_have_no_members(brokers: Brokers) -> None:
    for peer in brokers.peers.values():
        peer.answer = lambda request: (
            brokers.answer("", request)
            if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
            else request.reply(ResponseCode.NO_PERMISSION, remark="not today")
        )
    code, _, err = brokers.run("consumerStatus", "-g", "G")
    assert (code, err.count("not today")) == (1, 3)
    assert "online" not in err
