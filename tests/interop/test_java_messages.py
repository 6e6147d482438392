"""Tests of Apache's Java producer and push consumer with our nameservers, at Apache's and our brokers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from .apache import BINARY, Apache
from .ours import PAIRS, OurDeployment, retried_by_java, route, routed_topic

pytestmark = pytest.mark.interop


@dataclass(frozen=True, slots=True)
class Load:
    """Messages that one Java producer sends and one Java push consumer receives.

    Attributes:
        client: Release of both clients.
        batch: Messages per request.
        properties: JVM properties of both clients.
    """

    client: str
    count: int
    batch: int = 1
    properties: Mapping[str, str] = field(default_factory=dict)

    def send(self, deployment: OurDeployment, apache: Apache, topic: str) -> None:
        """Send the messages; their bodies are numbers."""
        sent = apache.produce(
            deployment.addrs, topic, self.count, batch=self.batch, properties=self.properties
        )
        assert sent["status SEND_OK"] == str(self.count // self.batch), sent
        assert sent["failed"] == "0"

    def receive(self, deployment: OurDeployment, apache: Apache, topic: str) -> None:
        """Receive each of the messages at least once."""
        consumed = apache.consume(
            deployment.addrs, topic, f"{topic}_group", self.count, properties=self.properties
        )
        assert (consumed["distinct"], consumed["redelivered"]) == (str(self.count), "0"), consumed


COMBINATIONS = pytest.mark.parametrize(
    ("deployment", "load"),
    [
        pytest.param("independent", Load("5.3.3", 10_000), id="independent-5.3.3-many"),
        pytest.param("independent", Load("4.9.7", 1_000, properties=BINARY), id="independent-4.9.7-binary"),
        pytest.param(
            "raft", Load("5.3.3", 1_000, batch=20, properties=BINARY), id="raft-5.3.3-binary-batches"
        ),
        pytest.param("raft", Load("4.9.7", 10_000), id="raft-4.9.7-many"),
    ],
    indirect=["deployment"],
)


@COMBINATIONS
def test_messages_go_through_an_apache_broker(
    deployment: OurDeployment, apaches: dict[str, Apache], load: Load
) -> None:
    # Let each client use the broker of the other release, as may happen during an upgrade.
    (broker,) = (broker for release, broker in deployment.apache.items() if release != load.client)
    topic = routed_topic(deployment.addrs, broker.addr, f"Through{broker.name}")
    load.send(deployment, apaches[load.client], topic)
    load.receive(deployment, apaches[load.client], topic)


@COMBINATIONS
def test_our_broker_creates_a_topic_for_a_producer_and_carries_its_messages(
    deployment: OurDeployment, apaches: dict[str, Apache], load: Load
) -> None:
    topic = f"NeverCreated{load.client[0]}"
    assert [route(addr, topic) for addr in deployment.addrs] == [None, None, None]
    load.send(deployment, apaches[load.client], topic)
    deployment.everywhere(
        lambda addr: route(addr, topic) is not None, "a topic that a producer brought about"
    )
    for addr in deployment.addrs:
        found = route(addr, topic)
        assert found is not None
        assert [data["brokerAddrs"] for data in found["brokerDatas"]] == [{"0": deployment.ours.addr}]
        (queues,) = found["queueDatas"]
        # The producer asks for 4 queues, and the topic TBW102 has 8. The broker creates the smaller number.
        assert (queues["writeQueueNums"], queues["readQueueNums"], queues["perm"]) == (4, 4, 6)
    load.receive(deployment, apaches[load.client], topic)


@pytest.mark.parametrize(("deployment", "client"), PAIRS, indirect=["deployment"])
def test_refused_messages_come_back_through_our_brokers_retry_topic(
    deployment: OurDeployment, apaches: dict[str, Apache], client: str
) -> None:
    group = f"retrying_{client[0]}"
    consumed = retried_by_java(apaches[client], deployment.addrs, deployment.ours.addr, group)
    assert (consumed["distinct"], consumed["redelivered"]) == ("100", "10"), consumed
    deployment.everywhere(lambda addr: route(addr, f"%RETRY%{group}") is not None, "the retry topic")
    for addr in deployment.addrs:
        found = route(addr, f"%RETRY%{group}")
        assert found is not None
        assert [data["brokerName"] for data in found["brokerDatas"]] == [deployment.ours.name]
