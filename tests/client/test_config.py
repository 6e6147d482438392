"""If a setting is wrong, the error names the value and the allowed values."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest

from routekeeper.client.blocking import Client
from routekeeper.client.config import (
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    PullConsumerConfig,
    check_topic,
    parse_nameservers,
)
from routekeeper.client.errors import InvalidArgument
from routekeeper.client.producer import Message
from routekeeper.remoting.errors import RemotingError


def test_nameserver_lists_are_split_and_freed_of_repetitions() -> None:
    assert parse_nameservers(" a:1;b:2,a:1; ") == ("a:1", "b:2")
    assert parse_nameservers("[::1]:9876") == ("[::1]:9876",)


def test_without_nameservers_nothing_starts() -> None:
    with pytest.raises(InvalidArgument, match="NAMESRV_ADDR"):
        ClientConfig(nameservers=())


@pytest.mark.parametrize(
    ("topic", "text"),
    [("", "blank"), ("a b", "characters outside"), ("x" * 128, "at most 127"), ("t/1", "characters outside")],
)
def test_illegal_topics_are_refused(topic: str, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        check_topic(topic)


def test_retry_topics_may_be_as_long_as_groups() -> None:
    assert check_topic("%RETRY%" + "g" * 200)


@pytest.mark.parametrize("config", [ProducerConfig, ConsumerConfig, PullConsumerConfig])
def test_a_group_whose_retry_topic_is_too_long_for_a_topic_is_refused(config: Any) -> None:
    assert config(group="g" * 120)
    with pytest.raises(InvalidArgument, match="group of 121 characters, at most 120"):
        config(group="g" * 121)


def test_the_namespace_counts_for_the_length_of_a_group() -> None:
    client = Client(ClientConfig(nameservers=("127.0.0.1:1",), namespace="ns"))
    try:
        assert client.producer("g" * 117)
        with pytest.raises(InvalidArgument, match="group of 121 characters, at most 120"):
            client.producer("g" * 118)
        with pytest.raises(InvalidArgument, match="group of 121 characters, at most 120"):
            client.push_consumer("g" * 118, {"T": "*"}, lambda messages: None)
    finally:
        client.close()


@pytest.mark.parametrize("values", [{"retry_times": -1}, {"send_timeout_s": 0.0}, {"compress_level": 10}])
def test_producer_settings_out_of_range_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="allowed"):
        ProducerConfig(group="g", **values)


CONFIGS: list[tuple[Any, dict[str, Any]]] = [
    (ClientConfig, {"nameservers": ("127.0.0.1:1",)}),
    (ProducerConfig, {"group": "g"}),
    (ConsumerConfig, {"group": "g"}),
    (PullConsumerConfig, {"group": "g"}),
]
DURATIONS = [
    (config, values, field.name)
    for config, values in CONFIGS
    for field in fields(config)
    if field.name.endswith("_s")
]


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, 1e9])
@pytest.mark.parametrize(
    ("config", "values", "name"),
    DURATIONS,
    ids=[f"{config.__name__}.{name}" for config, _, name in DURATIONS],
)
def test_times_that_nobody_can_wait_are_refused(
    config: Any, values: dict[str, Any], name: str, value: float
) -> None:
    with pytest.raises(InvalidArgument, match=f"{name}={value}"):
        config(**values, **{name: value})


def test_client_without_time_for_its_shutdown_gives_each_message_an_outcome() -> None:
    client = Client(ClientConfig(nameservers=("127.0.0.1:1",), shutdown_s=0, nameserver_avoid_s=0))
    client.start()
    future = client.producer(ProducerConfig(group="g", linger_s=60.0, send_timeout_s=0.001)).put(
        Message(topic="T", body=b"x")
    )
    client.close()
    assert isinstance(future.exception(0), RemotingError)
