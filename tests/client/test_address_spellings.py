"""The client treats several spellings of one address as one address: host names, IPv6, upper case."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from routekeeper.bench.timers import divide_periods
from routekeeper.client.blocking import Client
from routekeeper.client.config import ClientConfig, ConsumeFrom, ConsumerConfig
from routekeeper.client.producer import Message
from tests.client.conftest import Process, is_routed
from tests.client.mqadmin import mqadmin


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.one_core
@pytest.mark.parametrize(
    ("host", "listen", "named"),
    [
        pytest.param("localhost", "127.0.0.1:0", "127.0.0.1", id="name"),
        pytest.param("0:0:0:0:0:0:0:1", "[::1]:0", "[::1]", id="IPv6"),
    ],
)
def test_mqadmin_knows_a_broker_by_every_spelling_of_its_address(
    host: str, listen: str, named: str, nameserver: Process, tmp_path: Path, eventually: Callable[..., None]
) -> None:
    name = f"spelt-{len(host)}"
    broker = Process(
        "routekeeper.broker",
        *("-n", nameserver.addr, "--listen", listen, "--name", name, "--store", str(tmp_path / "store")),
        *("--set", f"brokerIP1={host}"),
        log=tmp_path / "log",
    )
    try:
        with Client(divide_periods(ClientConfig(nameservers=(nameserver.addr,)), 10)) as client:
            eventually(
                lambda: name in client.run(client.admin.cluster_info()).broker_addr_table, "it registers"
            )
            seen: list[Any] = []
            topic, port = f"Spelt-{len(host)}", broker.addr.rpartition(":")[2]
            at_broker = ("-b", f"{named}:{port}", "-t", topic)
            code, _, err = mqadmin("updateTopic", *at_broker, "-o", "true", namesrv=nameserver.addr)
            assert code == 0, err
            eventually(lambda: is_routed(client, topic), "the topic has a route")
            sent = client.producer("senders").send(Message(topic=topic, body=b"x"))
            config = ConsumerConfig(group=name, consume_from=ConsumeFrom.FIRST_OFFSET)
            with client.consume(config, {topic: "*"}, seen.extend):
                eventually(lambda: len(seen) == 1, "the message is consumed")

                def track() -> str:
                    query = ("queryMsgById", "-i", sent.offset_message_id)
                    text = mqadmin(*query, namesrv=nameserver.addr)[1]
                    return text.partition("trackType=")[2].partition(",")[0]

                eventually(lambda: track() != "NOT_CONSUME_YET", "its offset is stored")
                assert track() == "CONSUMED"
            code, _, err = mqadmin("updateTopicPerm", *at_broker, "-p", "4", namesrv=nameserver.addr)
            assert code == 0, err
    finally:
        broker.stop()
