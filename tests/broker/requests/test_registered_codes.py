"""Tag codes of a group's subscription: the broker computes them once, and not for every pull."""

from __future__ import annotations

import json

import pytest

from routekeeper.broker.requests import pulling
from routekeeper.broker.requests.handlers import Outcome, serve
from routekeeper.broker.requests.pulling import Park
from routekeeper.broker.tables.state import BrokerState, Call
from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.message import tag_hash
from tests.broker.states import HOST, NOW

TAGS = [f"tag{number}" for number in range(500)]
CODES = frozenset(map(tag_hash, TAGS))
#: An expression that is too long for the cache of short expressions.
LONG = " || ".join(TAGS)


def serve_on(state: BrokerState, request: RemotingCommand) -> Outcome:
    return serve(state, Call(request=request, connection=1, peer=HOST, now_ms=NOW, now=0.0))


def subscribe(state: BrokerState, topic: str, expression: str, *, version: int = 1, codes: int = 0) -> None:
    """Send a heartbeat with one subscription. It states the codes of the first ``codes`` tags."""
    subscription = {
        "topic": topic,
        "subString": expression,
        "subVersion": version,
        "codeSet": [tag_hash(tag) for tag in TAGS[:codes]],
    }
    consumer = {"groupName": "G", "subscriptionDataSet": [subscription]}
    body = json.dumps({"clientID": "c", "consumerDataSet": [consumer]}).encode()
    answer = serve_on(state, RemotingCommand.request(34, {}, body))
    assert isinstance(answer, RemotingCommand)
    assert answer.code == 0


def pull(state: BrokerState) -> Outcome:
    """Pull with the group's subscription: bit 4 of ``sysFlag``, which announces an expression, is not set."""
    ext = {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "2",
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subVersion": "0",
    }
    return serve_on(state, RemotingCommand.request(11, ext))


def codes_of_pull(state: BrokerState) -> frozenset[int] | None:
    outcome = pull(state)
    assert isinstance(outcome, Park)
    return outcome.pull.codes


@pytest.mark.parametrize("stated", [len(TAGS), 0], ids=["codes", "expression"])
def test_pulls_share_the_codes_of_their_subscription(state: BrokerState, stated: int) -> None:
    subscribe(state, "T", LONG, codes=stated)
    codes = codes_of_pull(state)
    assert codes == CODES
    assert codes_of_pull(state) is codes
    subscribe(state, "T", LONG, codes=stated)
    assert codes_of_pull(state) is codes, "a heartbeat that changes nothing keeps the codes"


def test_newer_subscription_replaces_the_codes(state: BrokerState) -> None:
    subscribe(state, "T", LONG, codes=len(TAGS))
    assert codes_of_pull(state) == CODES
    subscribe(state, "T", "tag0", version=2, codes=1)
    assert codes_of_pull(state) == frozenset({tag_hash("tag0")})
    subscribe(state, "T", "*", version=3)
    assert codes_of_pull(state) is None
    subscribe(state, "Other", "*", version=4)
    answer = pull(state)
    assert isinstance(answer, RemotingCommand)
    assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    subscribe(state, "T", "tag0", version=1, codes=1)
    assert codes_of_pull(state) == frozenset({tag_hash("tag0")})


def test_expression_without_tags_is_read_once(state: BrokerState, monkeypatch: pytest.MonkeyPatch) -> None:
    subscribe(state, "T", "||" * 1000)
    read: list[str] = []

    def count(expression: str) -> frozenset[int] | None:
        read.append(expression)
        raise ValueError

    monkeypatch.setattr(pulling, "subscription_codes", count)
    for _ in range(3):
        answer = pull(state)
        assert isinstance(answer, RemotingCommand)
        assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert len(read) == 1


def test_tags_of_an_expression_count_as_memory_without_their_codes(state: BrokerState) -> None:
    subscribe(state, "T", LONG)
    assert state.clients.size > 100 * len(TAGS)
