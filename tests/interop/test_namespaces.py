"""Tests that namespaces work alike in our client and in Java's client, at Apache's broker.

The tests cover names, retries, and the isolation of one namespace from another.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from routekeeper import Client, ConsumeFrom, ConsumerConfig, Message, ReceivedMessage
from routekeeper.bench.timers import divide_periods

from .apache import RELEASES, START_S, Apache, ask, wait_until
from .ours import ApacheDeployment, Fleet, in_parallel
from .patient import patient, sender

pytestmark = pytest.mark.interop

COUNT = 50


def test_ours_and_javas_clients_meet_in_a_namespace(fleet: Fleet, apaches: dict[str, Apache]) -> None:
    in_parallel(*(partial(meet, fleet.apache(release), apaches[release]) for release in RELEASES))


def meet(apache_deployment: ApacheDeployment, apache: Apache) -> None:
    addrs = apache_deployment.addrs
    seen: list[ReceivedMessage] = []

    def listen(messages: Sequence[ReceivedMessage]) -> None:
        for message in messages:
            seen.append(message)
            if message.body.strip() == b"7" and message.reconsume_times == 0:
                raise RuntimeError("not this time")

    config = divide_periods(patient(addrs, namespace="tenant"), 10)
    group = ConsumerConfig(group="readers", consume_from=ConsumeFrom.FIRST_OFFSET)
    with Client(config=config) as tenant, Client(config=patient(addrs)) as stranger:
        stranger.producer(sender("strangers")).send(Message(topic="FromJava", body=b"of nobody", tags="TagI"))
        sent = apache.produce(addrs, "FromJava", COUNT, namespace="tenant")
        assert sent["status SEND_OK"] == str(COUNT), sent
        tenant.consume(group, {"FromJava": "TagI"}, listen)
        wait_until(lambda: len(seen) == COUNT + 1, "all messages, and one again", START_S)
        assert {int(message.body) for message in seen} == set(range(COUNT))
        assert {message.topic for message in seen} == {"FromJava"}

        producer = tenant.producer(sender("writers"))
        for number in range(COUNT):
            producer.send(Message(topic="FromOurs", body=b"%d" % number, tags="TagI"))
        facts = apache.consume(addrs, "FromOurs", "java_readers", COUNT, retry_every=25, namespace="tenant")
        assert (facts["distinct"], facts["redelivered"]) == (str(COUNT), "2"), facts

    _, _, topics = ask(apache_deployment.broker.addr, 21)
    for name in ("tenant%FromJava", "tenant%FromOurs", "%RETRY%tenant%readers", "%RETRY%tenant%java_readers"):
        assert f'"{name}"'.encode() in topics, name
    assert b'"FromOurs"' not in topics
