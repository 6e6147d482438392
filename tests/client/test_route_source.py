"""A client whose routes come from a function of the user instead of the nameservers."""

from __future__ import annotations

import itertools
import random
from functools import partial
from typing import Any

import pytest

from routekeeper.client.blocking import Client
from routekeeper.client.config import ClientConfig
from routekeeper.client.core import ClientCore
from routekeeper.client.directory import Directory
from routekeeper.client.errors import NoNameserver
from routekeeper.client.operation import Clock, Deliver, Instant, Operation, Signal, Wait
from routekeeper.remoting.route import BrokerData, QueueData, TopicRouteData
from tests.ports import free_addresses


def a_route(queues: int) -> TopicRouteData:
    return TopicRouteData(
        queue_datas=(
            QueueData(
                broker_name="broker-a",
                read_queue_nums=queues,
                write_queue_nums=queues,
                perm=6,
                topic_sys_flag=0,
            ),
        ),
        broker_datas=(BrokerData(cluster="c", broker_name="broker-a", broker_addrs={0: "127.0.0.1:1"}),),
    )


def test_routes_come_from_the_source_that_a_client_was_given() -> None:
    asked = []

    def look_up(topic: str) -> TopicRouteData:
        asked.append(topic)
        return a_route(queues=len(asked))

    def source(directory: Directory, topic: str, *, timeout_s: float | None) -> Operation[TopicRouteData]:
        route: TopicRouteData = yield Deliver(look_up, topic)
        return route

    (dead,) = free_addresses(1)
    client = Client(ClientConfig(nameservers=(dead,)), core=partial(ClientCore, source=source))
    try:
        assert client.run(client.core.directory.refresh("T"))
        assert client.run(client.core.directory.refresh("T"))
        info = client.core.directory.routes.publish("T")
        assert info is not None
        assert len(info.queues) == 2
        assert asked == ["T", "T"]
        # The user's function is not called if the call names a nameserver: the client asks this nameserver.
        with pytest.raises(NoNameserver):
            client.route("T", nameserver=dead)
    finally:
        client.close()


def test_no_route_in_use_gets_older_than_one_refresh_period() -> None:
    now_s = 100.0
    asked: dict[str, list[float]] = {"T": [], "U": []}

    def source(directory: Directory, topic: str, *, timeout_s: float | None) -> Operation[TopicRouteData]:
        asked[topic].append(now_s)
        yield Clock()
        return a_route(queues=4)

    directory = Directory(ClientConfig(nameservers=("127.0.0.1:1",)), random.Random(1), source)

    def play(operation: Operation[Any], until_s: float) -> None:
        """Perform effects until the operation ends or the test's clock reaches ``until_s`` (seconds)."""
        nonlocal now_s
        result: object = None
        try:
            while True:
                effect = operation.send(result)
                if isinstance(effect, Clock):
                    result = Instant(now_s=now_s, wall_ms=0)
                else:
                    assert isinstance(effect, Wait)
                    assert effect.timeout_s is not None
                    if now_s + effect.timeout_s > until_s:
                        return
                    now_s, result = now_s + effect.timeout_s, False
        except StopIteration:
            return

    routes = directory.keep_routes(Signal(), lambda: False)
    play(directory.refresh("T"), now_s)
    began_s = now_s
    now_s += 2.5
    play(directory.refresh("U"), now_s)
    now_s = began_s
    play(routes, began_s + 100)
    for times in asked.values():
        assert len(times) == 4
        assert max(later - earlier for earlier, later in itertools.pairwise(times)) <= 30.0
        times.clear()
    # Simulate a pause of the process that is longer than one refresh period.
    now_s = began_s + 195
    play(routes, began_s + 250)
    for times in asked.values():
        assert sorted({at_s - began_s for at_s in times}) == [195, 210, 240], "its own instants again"
