"""No setting lets a pull wait longer than ``SUSPEND_MAX_MS``.

A client's request would otherwise time out before the broker answers the pull.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from routekeeper.broker.requests.handlers import serve
from routekeeper.broker.requests.pulling import SUSPEND_MAX_MS, Park
from routekeeper.broker.tables.state import BrokerState, Call
from routekeeper.remoting.command import RemotingCommand
from tests.broker.states import HOST, NOW


@pytest.mark.parametrize(
    ("long_polling", "short_ms", "asked_ms", "wait_ms"),
    [
        (True, 1_000, 15_000, 15_000),
        (True, 1_000, 600_000, SUSPEND_MAX_MS),
        (False, 1_000, 15_000, 1_000),
        (False, 600_000, 15_000, SUSPEND_MAX_MS),
    ],
    ids=["long", "long and too long", "short", "short and too long"],
)
def test_pull_waits_no_longer_than_allowed(
    state: BrokerState, long_polling: bool, short_ms: int, asked_ms: int, wait_ms: int
) -> None:
    state.config = replace(state.config, long_polling_enable=long_polling, short_polling_ms=short_ms)
    ext = {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "6",
        "commitOffset": "0",
        "suspendTimeoutMillis": str(asked_ms),
        "subscription": "*",
        "subVersion": "0",
    }
    request = RemotingCommand.request(11, ext)
    outcome = serve(state, Call(request=request, connection=1, peer=HOST, now_ms=NOW, now=0.0))
    assert isinstance(outcome, Park)
    assert outcome.pull.suspend_ms == wait_ms
