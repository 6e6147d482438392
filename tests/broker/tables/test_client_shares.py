"""Each host has a quota of the memory for heartbeats, and a quota of the queue locks.

So one host cannot use all memory or all locks that other hosts need.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from routekeeper.broker.config import BrokerConfig
from routekeeper.broker.requests.handlers import serve
from routekeeper.broker.tables.locks import LOCKS_MAX
from routekeeper.broker.tables.state import BrokerState, Call
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.message import Host
from routekeeper.remoting.route import TopicConfig
from tests.broker.states import NOW, state_in

ONE, OTHER, LOOPBACK = "192.0.2.7", "192.0.2.8", "127.0.0.1"
ROOM = 200_000


@pytest.fixture
def state(tmp_path: Path) -> Iterator[BrokerState]:
    made = state_in(tmp_path, TopicConfig(topic_name="T"))
    made.config = BrokerConfig(client_bytes_max=ROOM)
    yield made
    made.store.log.close()


def ask(state: BrokerState, code: int, body: object, *, host: str, connection: int = 1) -> RemotingCommand:
    request = RemotingCommand.request(code, {}, json.dumps(body).encode())
    call = Call(request=request, connection=connection, peer=Host(host, 4711), now_ms=NOW, now=0.0)
    answer = serve(state, call)
    assert isinstance(answer, RemotingCommand)
    return answer


def beat(state: BrokerState, host: str, *groups: str, connection: int = 1) -> RemotingCommand:
    body = {"clientID": "c", "producerDataSet": [{"groupName": group} for group in groups]}
    return ask(state, 34, body, host=host, connection=connection)


def fill(state: BrokerState, host: str) -> int:
    """Send heartbeats of a host until one is refused, and return the number of accepted groups."""
    taken = 0
    while beat(state, host, f"G{taken}").code == 0:
        taken += 1
        assert taken < ROOM
    return taken


def test_one_host_leaves_half_of_the_room_of_clients_to_others(state: BrokerState) -> None:
    taken = fill(state, ONE)
    refused = beat(state, ONE, "One more").remark or ""
    assert ONE in refused
    assert f"maxClientBytes={ROOM}" in refused
    assert beat(state, OTHER, "Mine", connection=2).code == 0
    assert beat(state, ONE, "G0").code == 0, "a client that is known goes on"
    state.clients.closed(1)
    assert fill(state, ONE) == taken


def test_loopback_may_take_all_room_of_clients(state: BrokerState) -> None:
    fill(state, LOOPBACK)
    assert beat(state, OTHER, "Mine", connection=2).code != 0
    assert state.clients.size > 0.9 * ROOM


def lock(state: BrokerState, host: str, group: str, first: int, count: int) -> int:
    """Lock ``count`` queues for a client of a host, and return the number of locked queues."""
    queues = [
        {"topic": "T", "brokerName": "b", "queueId": queue_id} for queue_id in range(first, first + count)
    ]
    answer = ask(state, 41, {"consumerGroup": group, "clientId": host, "mqSet": queues}, host=host)
    return len(json.loads(answer.body)["lockOKMQSet"])


@pytest.mark.slow
def test_one_host_leaves_half_of_the_locks_to_others(state: BrokerState) -> None:
    step = 5000
    held = sum(lock(state, ONE, "G", first, step) for first in range(0, LOCKS_MAX, step))
    assert held == LOCKS_MAX // 2
    assert lock(state, OTHER, "H", 0, 10) == 10
    assert lock(state, ONE, "G", 0, 10) == 10, "a client that holds them goes on"
