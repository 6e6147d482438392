"""Namespaces: stored names have the namespace as a prefix, and users never see the prefix."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from routekeeper.bench.timers import divide_periods
from routekeeper.client.blocking import Client
from routekeeper.client.config import (
    ClientConfig,
    ConsumeFrom,
    ConsumerConfig,
    ProducerConfig,
    PullConsumerConfig,
)
from routekeeper.client.errors import InvalidArgument
from routekeeper.client.namespace import Namespace
from routekeeper.client.producer import Message, by_hash
from routekeeper.client.queue_reader import ReceivedMessage

from .conftest import Process

TENANT = Namespace("tenant")


@pytest.mark.parametrize(
    ("seen", "stored"),
    [
        ("Orders", "tenant%Orders"),
        ("%RETRY%billing", "%RETRY%tenant%billing"),
        ("%DLQ%billing", "%DLQ%tenant%billing"),
        ("tenant", "tenant%tenant"),
        ("other%Orders", "tenant%other%Orders"),
        ("TBW102", "TBW102"),
        ("CHECKPOINT_TOPIC", "CHECKPOINT_TOPIC"),
        ("rmq_sys_REVIVE", "rmq_sys_REVIVE"),
        ("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_TRANS"),
        ("", ""),
    ],
)
def test_names_are_translated_as_javas_client_does(seen: str, stored: str) -> None:
    assert TENANT.inside(seen) == stored
    assert TENANT.inside(stored) == stored, "what has the namespace keeps it"
    assert TENANT.outside(stored) == seen
    assert Namespace().inside(seen) == Namespace().outside(seen) == seen


def test_names_of_other_namespaces_stay() -> None:
    assert TENANT.outside("other%Orders") == "other%Orders"
    assert TENANT.outside("%RETRY%other%g") == "%RETRY%other%g"


@pytest.mark.parametrize("name", ["a%b", "a b", "%", "x" * 101])
def test_a_namespace_that_names_could_not_be_split_at_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="namespace="):
        ClientConfig(nameservers=("127.0.0.1:1",), namespace=name)


@pytest.mark.slow
def test_messages_pass_under_stored_names_and_are_seen_without(
    nameserver: Process, broker: Process, eventually: Callable[..., None]
) -> None:
    config = divide_periods(ClientConfig(nameservers=(nameserver.addr,), namespace="tenant"), 10)
    seen: list[ReceivedMessage] = []

    def listen(messages: Sequence[ReceivedMessage]) -> None:
        for message in messages:
            seen.append(message)
            if message.body == b"again" and message.reconsume_times == 0:
                raise RuntimeError("not this time")

    group = ConsumerConfig(group="billing", consume_from=ConsumeFrom.FIRST_OFFSET)
    with Client(config) as tenant:
        producer = tenant.producer(ProducerConfig(group="orders"))
        sent = [producer.send(Message(topic="Orders", body=b"single"))]
        (first, *_) = producer.queues("Orders")
        assert (first.topic, sent[0].queue.topic) == ("Orders", "Orders")
        sent.append(producer.send(Message(topic="Orders", body=b"queue"), queue=first))
        sent.append(producer.send(Message(topic="Orders", body=b"hash"), select=by_hash("key")))
        sent.append(producer.send_batch([Message(topic="Orders", body=b"batch")]))
        sent.append(producer.put(Message(topic="Orders", body=b"lingered")).result(10))
        sent.append(producer.send(Message(topic="Orders", body=b"again")))
        producer.send_oneway(Message(topic="Orders", body=b"oneway"))
        assert {result.queue.topic for result in sent} == {"Orders"}

        consumer = tenant.consume(group, {"Orders": "*"}, listen)
        eventually(lambda: len(seen) == 8, "all messages and the one that came back")
        assert {message.topic for message in seen} == {"Orders"}
        assert {message.queue.topic for message in seen} == {"Orders", "%RETRY%billing"}
        assert {queue.topic for queue in consumer.assigned} == {"Orders", "%RETRY%billing"}
        stored = tenant.run(tenant.admin.topic_list()).topics
        assert {"tenant%Orders", "%RETRY%tenant%billing"} <= set(stored)
        assert not {"Orders", "%RETRY%billing"} & set(stored)
        single = next(message for message in seen if message.body == b"single")
        assert single.properties["INSTANCE_ID"] == "tenant", "as Java's producer marks them"

        pull = PullConsumerConfig(group="archive", consume_from=ConsumeFrom.FIRST_OFFSET, auto_commit=False)
        with tenant.pull_consumer(pull, {"Orders": "*"}) as puller:
            eventually(lambda: len(puller.assigned) >= 4, "queues to pull from")
            queue = sent[0].queue
            assert puller.max_offset(queue) > sent[0].queue_offset
            puller.pause(queue)
            assert {paused.topic for paused in puller.core.paused} == {"tenant%Orders"}
            puller.resume()
            puller.seek(queue, sent[0].queue_offset)
            puller.unsubscribe("Orders")
            puller.subscribe("Orders")
            got: list[ReceivedMessage] = []

            def pulled() -> bool:
                got.extend(puller.poll(timeout_s=0.1))
                return len(got) >= 7

            eventually(pulled, "all to pull")
            assert {message.topic for message in got} == {"Orders"}
            puller.commit()
            assert puller.committed(queue) == puller.max_offset(queue)
        consumer.close()

    with Client(ClientConfig(nameservers=(nameserver.addr,))) as nobody:
        assert {row.topic for row in nobody.producer("p").queues("tenant%Orders")} == {"tenant%Orders"}
