"""Each host has a quota of the waiting pulls. If one host fills its quota, other hosts can still wait."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from routekeeper.broker.requests.pulling import Park, Pull, pull_message
from routekeeper.broker.server.delay import DelayService
from routekeeper.broker.server.waiting_pulls import WaitingPulls
from routekeeper.broker.tables.long_polling import PULL_BYTES_MAX, PULLS_MAX
from routekeeper.broker.tables.state import BrokerState, Call
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.message import Host
from tests.broker.states import NOW

FIELDS = {
    "consumerGroup": "G",
    "topic": "T",
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "32",
    "sysFlag": "6",
    "suspendTimeoutMillis": "10000",
    "subscription": "*",
}
ONE, OTHER = "192.0.2.7", "192.0.2.8"


def pull_from(state: BrokerState, host: str, *, connection: int = 1) -> Pull:
    """Return a pull that came from ``host`` and has to wait."""
    request = RemotingCommand.request(11, FIELDS)
    call = Call(request=request, connection=connection, peer=Host(host, 4711), now_ms=NOW, now=0.0)
    found = pull_message(state, call)
    assert isinstance(found, Park)
    return found.pull


def held(pulls: WaitingPulls, pull: Pull, count: int) -> int:
    """Park ``count`` equal pulls, and return the number of accepted pulls."""
    deadline = asyncio.get_running_loop().time() + 3600
    return sum(pulls.park(pull, deadline=deadline) for _ in range(count))


def waiting_pulls(state: BrokerState) -> WaitingPulls:
    delay = DelayService(state, delivered=lambda: None)
    return WaitingPulls(state, delay=delay, send=lambda _, __: None)


@pytest.mark.slow
async def test_one_host_leaves_half_of_the_places_to_others(state: BrokerState) -> None:
    pulls = waiting_pulls(state)
    assert held(pulls, pull_from(state, ONE), PULLS_MAX) == PULLS_MAX // 2
    assert held(pulls, pull_from(state, OTHER, connection=2), 1) == 1
    pulls.drop(1)
    assert held(pulls, pull_from(state, ONE, connection=3), 1) == 1


async def test_one_host_leaves_half_of_the_bytes_to_others(state: BrokerState) -> None:
    pulls = waiting_pulls(state)
    codes = frozenset(range(50_000))
    large = msgspec.structs.replace(pull_from(state, ONE), codes=codes)
    assert held(pulls, large, 100) == PULL_BYTES_MAX // 2 // large.size
    other = msgspec.structs.replace(pull_from(state, OTHER, connection=2), codes=codes)
    assert held(pulls, other, 1) == 1


@pytest.mark.slow
async def test_an_ipv6_network_is_one_host(state: BrokerState) -> None:
    pulls = waiting_pulls(state)
    half = PULLS_MAX // 2
    assert held(pulls, pull_from(state, "2001:db8::1"), half) == half
    assert held(pulls, pull_from(state, "2001:db8::2", connection=2), 1) == 0
    assert held(pulls, pull_from(state, "2001:db8:1::1", connection=3), 1) == 1


@pytest.mark.slow
async def test_loopback_may_take_all_places(state: BrokerState) -> None:
    pulls = waiting_pulls(state)
    assert held(pulls, pull_from(state, "127.0.0.1"), PULLS_MAX + 1) == PULLS_MAX
