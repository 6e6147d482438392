"""Property values with the byte 0x01 arrive unchanged, and property names with this byte are refused."""

from __future__ import annotations

import pytest

from routekeeper.bench.timers import divide_periods
from routekeeper.client.blocking import Client
from routekeeper.client.config import ClientConfig, ConsumeFrom, PullConsumerConfig
from routekeeper.client.errors import InvalidArgument
from routekeeper.client.messages import Message, wire_properties
from tests.client.conftest import Process


@pytest.mark.faults
def test_a_value_with_0x01_arrives_as_it_was_sent(nameserver: Process, broker: Process) -> None:
    properties = {"Trace": "pinpoint\x01trace\x01", "colour": "red"}
    with Client(divide_periods(ClientConfig(nameservers=(nameserver.addr,)), 10)) as client:
        client.producer("senders").send(Message(topic="Traced", body=b"x", properties=properties))
        config = PullConsumerConfig(group="readers_of_traced", consume_from=ConsumeFrom.FIRST_OFFSET)
        with client.pull_consumer(config, {"Traced": "*"}) as consumer:
            (received,) = consumer.poll(count=1, timeout_s=30.0)
    assert {name: received.properties[name] for name in properties} == properties
    assert received.forward_to("Other").properties == properties


@pytest.mark.parametrize(
    ("name", "value"), [("a\x01b", "v"), ("a\x02b", "v"), ("a", "v\x02"), ("", "v"), ("a", "")]
)
def test_properties_that_would_be_read_as_others_are_refused(name: str, value: str) -> None:
    message = Message(topic="T", body=b"x", properties={name: value})
    with pytest.raises(InvalidArgument, match="property"):
        wire_properties(message)
