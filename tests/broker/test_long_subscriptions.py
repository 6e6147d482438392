"""Subscriptions to very many tags: what they cost is bounded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from routekeeper.broker.errors import Refusal
from routekeeper.broker.pulling import Park, pull_message
from routekeeper.broker.state import BrokerState, Call
from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.message import Host
from routekeeper.remoting.route import TopicConfig

from .states import NOW, state_in


@pytest.fixture
def state(tmp_path: Path) -> Iterator[BrokerState]:
    made = state_in(tmp_path, TopicConfig(topic_name="T"))
    yield made
    made.store.log.close()


def pull(state: BrokerState, subscription: str) -> object:
    fields = {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "6",
        "suspendTimeoutMillis": "10000",
        "subscription": subscription,
    }
    request = RemotingCommand.request(11, fields)
    return pull_message(
        state, Call(request=request, connection=1, peer=Host("192.0.2.7", 4711), now_ms=NOW, now=0.0)
    )


@pytest.mark.xfail(strict=True, reason="a broker keeps 1,024 expressions of 1 MB, each with its codes")
def test_subscription_to_more_tags_than_anybody_has_is_refused(state: BrokerState) -> None:
    # A broker remembered 1,024 of these, 10 MB each, for as long as it ran.
    assert isinstance(pull(state, "||".join(f"{tag:06}" for tag in range(2_000))), Park)
    with pytest.raises(Refusal, match="a subscription of 39998 characters: allowed are 16384") as refused:
        pull(state, "||".join(f"{tag:06}" for tag in range(5_000)))
    assert refused.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
