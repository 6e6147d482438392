"""Apache's Java producer and push consumer, led to brokers by our nameservers, and served by our broker."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from .apache import Apache
from .ours import OurDeployment, create_topic, retried_by_java, route

pytestmark = pytest.mark.interop

MANY = 10_000
SOME = 1_000

# mode, release of the client, number of messages
COMBINATIONS = [
    pytest.param("independent", "5.3.3", MANY, id="independent-5.3.3-many"),
    pytest.param("independent", "4.9.7", SOME, id="independent-4.9.7"),
    pytest.param("raft", "5.3.3", SOME, id="raft-5.3.3"),
    pytest.param("raft", "4.9.7", MANY, id="raft-4.9.7-many"),
]


def assert_all_sent(sent: Mapping[str, str], count: int) -> None:
    assert sent["status SEND_OK"] == str(count), sent
    assert sent["failed"] == "0"


@pytest.mark.parametrize(("deployment", "client", "count"), COMBINATIONS, indirect=["deployment"])
def test_messages_go_through_an_apache_broker(
    deployment: OurDeployment, apaches: dict[str, Apache], client: str, count: int
) -> None:
    # an old client at the young broker and the other way round, as they meet during an upgrade
    (broker,) = (broker for release, broker in deployment.apache.items() if release != client)
    topic = f"Through{broker.name}"
    create_topic(broker.addr, topic)
    deployment.everywhere(lambda addr: route(addr, topic) is not None, f"{topic} routed")
    send_and_receive(deployment, apaches[client], topic, count)


@pytest.mark.parametrize(("deployment", "client", "count"), COMBINATIONS, indirect=["deployment"])
def test_our_broker_creates_a_topic_for_a_producer_and_carries_its_messages(
    deployment: OurDeployment, apaches: dict[str, Apache], client: str, count: int
) -> None:
    topic = f"NeverCreated{client[0]}"
    assert [route(addr, topic) for addr in deployment.addrs] == [None, None, None]
    consumed = send_and_receive(deployment, apaches[client], topic, count)
    assert consumed["redelivered"] == "0"
    for addr in deployment.addrs:
        found = route(addr, topic)
        assert found is not None, "the route of a topic that a producer brought about"
        assert [data["brokerAddrs"] for data in found["brokerDatas"]] == [{"0": deployment.ours.addr}]
        (queues,) = found["queueDatas"]
        # the producer asks for 4, TBW102 offers 8: the smaller one counts
        assert (queues["writeQueueNums"], queues["readQueueNums"], queues["perm"]) == (4, 4, 6)


def send_and_receive(deployment: OurDeployment, apache: Apache, topic: str, count: int) -> Mapping[str, str]:
    """Send ``count`` numbered messages, and receive each of them; return the consumer's facts."""
    assert_all_sent(apache.produce(deployment.addrs, topic, count), count)
    consumed = apache.consume(deployment.addrs, topic, f"{topic}_group", count)
    assert consumed["distinct"] == str(count), consumed
    return consumed


@pytest.mark.parametrize("client", ["4.9.7", "5.3.3"])
def test_refused_messages_come_back_through_our_brokers_retry_topic(
    deployment: OurDeployment, apaches: dict[str, Apache], client: str
) -> None:
    group = f"retrying_{client[0]}"
    consumed = retried_by_java(apaches[client], deployment.addrs, deployment.ours.addr, group)
    assert (consumed["distinct"], consumed["redelivered"]) == ("100", "10"), consumed
    for addr in deployment.addrs:
        found = route(addr, f"%RETRY%{group}")
        assert found is not None
        assert [data["brokerName"] for data in found["brokerDatas"]] == [deployment.ours.name]
