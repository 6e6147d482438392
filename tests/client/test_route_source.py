"""A client whose routes come from somewhere else than the nameservers."""

from __future__ import annotations

import pytest

from client.blocking import Client
from client.config import ClientConfig
from client.directory import Directory
from client.errors import NoNameserver
from client.operation import Deliver, Operation
from remoting.route import BrokerData, QueueData, TopicRouteData
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
    client = Client(ClientConfig(nameservers=(dead,)), source=source)
    try:
        assert client.run(client.core.directory.refresh("T"))
        assert client.run(client.core.directory.refresh("T"))
        info = client.core.directory.routes.publish("T")
        assert info is not None
        assert len(info.queues) == 2
        assert asked == ["T", "T"]
        with pytest.raises(NoNameserver):  # who names a nameserver asks that one
            client.route("T", nameserver=dead)
    finally:
        client.close()
