"""brokerStatus, getBrokerConfig, consumerProgress and consumerConnection against our own broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from routekeeper.bench.timers import divide_periods
from routekeeper.client.blocking import Client
from routekeeper.client.config import ClientConfig, ConsumeFrom, ConsumerConfig
from routekeeper.client.producer import Message
from tests.client.mqadmin import mqadmin


def run(nameserver: Any, *argv: str) -> tuple[int, str, str]:
    return mqadmin(*argv, namesrv=nameserver.addr)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "name"), [("brokerStatus", "bootTimestamp"), ("getBrokerConfig", "brokerName")]
)
@pytest.mark.parametrize("whole", [False, True])
def test_a_broker_tells_its_figures_and_settings(
    command: str, name: str, whole: bool, nameserver: Any, broker: Any
) -> None:
    target = ("-c", "DefaultCluster") if whole else ("-b", broker.addr)
    code, out, err = run(nameserver, command, *target)
    assert (code, err) == (0, "")
    assert name in out
    assert (broker.addr in out) == (whole or command == "getBrokerConfig")
    code, out, _ = run(nameserver, command, *target, "-o", "json")
    assert name in json.loads(out)[broker.addr]


def test_a_broker_that_does_not_answer_is_named(nameserver: Any, broker: Any) -> None:
    code, out, err = run(nameserver, "brokerStatus", "-b", "127.0.0.1:1")
    assert (code, out) == (1, "")
    assert "127.0.0.1:1" in err
    code, out, err = run(nameserver, "getBrokerConfig", "-c", "NoSuchCluster")
    assert code == 1
    assert "no broker in cluster 'NoSuchCluster'" in err


def test_lag_and_members_of_a_group(nameserver: Any, broker: Any, eventually: Callable[..., None]) -> None:
    config = divide_periods(ClientConfig(nameservers=(nameserver.addr,)), 10)
    with Client(config) as started:
        sender = started.producer("pg")
        for number in range(5):
            sender.send(Message(topic="Lagging", body=b"%d" % number), timeout_s=20)
        seen: list[int] = []
        group = ConsumerConfig(group="lagging", consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer = started.consume(group, {"Lagging": "*"}, lambda batch: seen.append(len(batch)))
        eventually(lambda: len(seen) == 5, "all consumed")

        code, out, err = run(nameserver, "consumerConnection", "-g", "lagging")
        assert (code, err) == (0, "")
        assert started.core.client_id in out
        assert "\nLagging              *\n" in out
        assert "MessageModel: CLUSTERING" in out
        members = json.loads(run(nameserver, "consumerConnection", "-g", "lagging", "-o", "json")[1])
        assert members["subscriptions"]["Lagging"] == "*"

        consumer.close()  # close() stores the offsets
        for number in range(3):
            sender.send(Message(topic="Lagging", body=b"%d" % number))
        code, out, err = run(nameserver, "consumerProgress", "-g", "lagging")
        assert (code, err) == (0, "")
        assert out.splitlines()[0].split("  ")[0] == "#Topic"
        assert "Consume Diff Total: 3" in out
        progress = json.loads(run(nameserver, "consumerProgress", "-g", "lagging", "-o", "json")[1])
        assert progress["diffTotal"] == 3
        assert (
            sum(queue["consumerOffset"] for queue in progress["queues"] if queue["topic"] == "Lagging") == 5
        )

        code, _, err = run(nameserver, "consumerConnection", "-g", "lagging")
        assert code == 1
        assert "no member of group 'lagging' is online" in err
        code, _, err = run(nameserver, "consumerProgress", "-g", "NoSuchGroup")
        assert code == 1
        assert "No topic route info" in err
