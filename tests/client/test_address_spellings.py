"""The client treats several spellings of one address as one address: host names, IPv6, upper case."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from routekeeper.bench.timers import divide_periods
from routekeeper.client.blocking import Client
from routekeeper.client.config import ClientConfig, ConsumeFrom, ConsumerConfig
from routekeeper.client.mqadmin.__main__ import main
from routekeeper.client.producer import Message
from tests.client.conftest import Process


def mqadmin(*arguments: str) -> tuple[int, str]:
    out, err = io.StringIO(), io.StringIO()
    code = main(arguments, environment={}, out=out, err=err)
    return code, out.getvalue() + err.getvalue()


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
            code, text = mqadmin(
                *("updateTopic", "-n", nameserver.addr, "-b", f"{named}:{port}", "-t", topic, "-o", "true")
            )
            assert code == 0, text
            eventually(lambda: _routed(client, topic), "the topic has a route")
            sent = client.producer("senders").send(Message(topic=topic, body=b"x"))
            config = ConsumerConfig(group=name, consume_from=ConsumeFrom.FIRST_OFFSET)
            with client.consume(config, {topic: "*"}, seen.extend):
                eventually(lambda: len(seen) == 1, "the message is consumed")

                def track() -> str:
                    _, text = mqadmin("queryMsgById", "-n", nameserver.addr, "-i", sent.offset_message_id)
                    return text.partition("trackType=")[2].partition(",")[0]

                eventually(lambda: track() != "NOT_CONSUME_YET", "its offset is stored")
                assert track() == "CONSUMED"
            code, text = mqadmin(
                *("updateTopicPerm", "-n", nameserver.addr, "-b", f"{named}:{port}", "-t", topic, "-p", "4")
            )
            assert code == 0, text
    finally:
        broker.stop()


def _routed(client: Client, topic: str) -> bool:
    try:
        return bool(client.route(topic).queue_datas)
    except Exception:
        return False
