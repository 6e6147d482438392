"""Wrong arguments and wrong uses: both clients raise a documented error with advice on what to do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import routekeeper
import routekeeper.client.aio
import routekeeper.client.blocking
from routekeeper.client.config import ClientConfig, ProducerConfig
from routekeeper.client.errors import ClientClosed, InvalidArgument
from routekeeper.client.producer import Message
from routekeeper.remoting.bodies import MessageQueue

QUEUE = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)


@pytest.fixture
def config(peer: Any) -> ClientConfig:
    return ClientConfig(nameservers=(peer.addr,), shutdown_s=0.2)


def message(**values: Any) -> Message:
    return Message(**{"topic": "T", "body": b"x", **values})


MESSAGES = {
    "control character in tags": message(tags="a\x01b"),
    "line end in tags": message(tags="a\nb"),
    "surrogate in tags": message(tags="\ud800"),
    "tags of another type": message(tags=5),
    "control character in keys": message(keys=["a", "b\x02"]),
    "blank in a key": message(keys=["a b"]),
    "surrogate in keys": message(keys=["\udfff"]),
    "empty key": message(keys=["a", ""]),
    "keys of another type": message(keys=[5]),
    "keys that are no sequence": message(keys=5),
    "body of text": message(body="x"),
    "value of a number": message(properties={"n": 5}),
    "name of a number": message(properties={5: "n"}),
    "surrogate in a value": message(properties={"n": "\ud83d"}),
    "properties that are none": message(properties=[("n", "v")]),
    "no topic": message(topic=None),
    "flag of text": message(flag="1"),
    "flag above 32 bits": message(flag=2**31),
    "delay level of text": message(delay_level="3"),
    "delay level of a fraction": message(delay_level=1.5),
    "text for a message": "x",
    "nothing for a message": None,
}


def refused(
    use: Callable[[], Any], error: type[Exception] = InvalidArgument, says: str = "allowed|needed|outside"
) -> None:
    """Assert that ``use`` raises this error, with a printable text that matches ``says``."""
    try:
        use()
    except Exception as problem:
        raised = problem
    else:
        pytest.fail("it was taken", pytrace=False)
    # ``ascii`` escapes the text for the test report, which cannot contain a lone surrogate.
    assert isinstance(raised, error), ascii(repr(raised))
    assert re.search(says, ascii(str(raised)))
    assert str(raised).encode()


def cases(table: dict[str, Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("given", list(table.values()), ids=list(table))


@cases(MESSAGES)
def test_a_message_that_cannot_be_sent_is_an_invalid_argument(given: Any, config: ClientConfig) -> None:
    with routekeeper.client.blocking.Client(config) as started:
        producer = started.producer("g")
        sends: list[Callable[[], Any]] = [
            lambda: producer.send(given),
            lambda: producer.put(given),
            lambda: producer.send_batch([given]),
            lambda: producer.send_oneway(given),
            lambda: producer.send_async(given).result(10),
        ]
        for send in sends:
            refused(send)


SENDS: dict[str, dict[str, Any]] = {
    "queue": {"queue": "broker-a:0"},
    "queue with a surrogate": {"queue": MessageQueue(topic="T", broker_name="\ud800", queue_id=0)},
    "timeout of text": {"timeout_s": "1"},
    "timeout that is none": {"timeout_s": float("nan")},
    "timeout without end": {"timeout_s": float("inf")},
}


@cases(SENDS)
def test_a_send_with_a_wrong_argument_is_an_invalid_argument(
    given: dict[str, Any], config: ClientConfig
) -> None:
    with routekeeper.client.blocking.Client(config) as started:
        refused(lambda: started.producer("g").send(message(), **given))
        refused(lambda: started.producer("g").send_batch([message()], **given))


SUBSCRIPTIONS = {
    "list": ["T"],
    "text": "T",
    "number": 5,
    "expression of another type": {"T": ["A"]},
    "surrogate in a tag": {"T": "\ud800"},
    "topic of another type": {5: "*"},
}


@cases(SUBSCRIPTIONS)
def test_subscriptions_that_are_none_are_invalid_arguments(given: Any, config: ClientConfig) -> None:
    with routekeeper.client.blocking.Client(config) as started:
        refused(lambda: started.push_consumer("g", given, lambda messages: None))
        refused(lambda: started.pull_consumer("g", given))


@pytest.mark.parametrize("group", [None, 5, b"g"])
def test_a_group_of_another_type_is_an_invalid_argument(group: Any, config: ClientConfig) -> None:
    refused(lambda: ProducerConfig(group=group))


# After close --------------------------------------------------------------------------------------


def blocking_uses(started: routekeeper.client.blocking.Client) -> Iterator[Callable[[], Any]]:
    producer = started.producer("g")
    push = started.push_consumer("g1", {"T": "*"}, lambda messages: None)
    pull = started.pull_consumer("g2", {"T": "*"})
    admin = routekeeper.client.blocking.Admin(started)
    started.close()
    yield lambda: producer.send(message())
    yield lambda: producer.put(message())
    yield lambda: producer.send_oneway(message())
    yield lambda: producer.send_batch([message()])
    yield lambda: producer.send_async(message())
    yield lambda: producer.queues("T")
    yield lambda: started.producer("other").send(message())
    yield lambda: started.route("T")
    yield lambda: admin.topic_list()
    yield push.start
    yield lambda: push.subscribe("T")
    yield pull.start
    yield lambda: pull.poll(timeout_s=0.1)
    yield lambda: pull.seek(QUEUE, 0)
    yield started.start


def test_a_blocking_client_that_is_closed_says_so(config: ClientConfig) -> None:
    for use in blocking_uses(routekeeper.client.blocking.Client(config)):
        refused(use, ClientClosed, "closed")


def test_an_asyncio_client_that_is_closed_says_so(config: ClientConfig) -> None:
    async def main() -> None:
        async with routekeeper.client.aio.Client(config) as started:
            producer = started.producer("g")
            push = started.push_consumer("g1", {"T": "*"}, lambda messages: None)
            pull = started.pull_consumer("g2", {"T": "*"})
            admin = routekeeper.client.aio.Admin(started)
        uses: list[Callable[[], Awaitable[Any]]] = [
            lambda: producer.send(message()),
            lambda: producer.put(message()),
            lambda: producer.send_oneway(message()),
            lambda: admin.topic_list(),
            lambda: push.start(),
            lambda: pull.poll(timeout_s=0.1),
            lambda: pull.seek(QUEUE, 0),
            lambda: started.start(),
        ]
        for use in uses:
            with pytest.raises(ClientClosed, match="closed"):
                await use()

    asyncio.run(main())


def test_a_part_that_is_closed_says_so_while_its_client_goes_on(config: ClientConfig) -> None:
    with routekeeper.client.blocking.Client(config) as started:
        producer = started.producer("g")
        producer.close()
        for send in (producer.send, producer.put, producer.send_oneway):
            with pytest.raises(ClientClosed, match="closed"):
                send(message())
        consumer = started.pull_consumer("g2", {"T": "*"})
        consumer.start()
        consumer.close()
        uses: list[Callable[[], Any]] = [
            lambda: consumer.subscribe("T"),
            lambda: consumer.seek(QUEUE, 0),
            consumer.commit,
        ]
        for use in uses:
            refused(use, ClientClosed, "closed")
        assert started.producer("g").send(message()).status.name == "SEND_OK"


def test_an_asyncio_client_that_was_not_started_says_what_to_do(config: ClientConfig) -> None:
    async def main() -> None:
        started = routekeeper.client.aio.Client(config)
        with pytest.raises(ClientClosed, match="async with"):
            await started.producer("g").put(message())

    asyncio.run(main())


# One client, two loops ----------------------------------------------------------------------------


def test_an_asyncio_client_under_a_second_loop_says_so(config: ClientConfig) -> None:
    started = routekeeper.client.aio.Client(config)

    async def first() -> None:
        await started.start()
        await started.producer("g").send(message())

    async def second() -> None:
        wrong: Any = getattr(routekeeper, "WrongLoop", ())
        producer = started.producer("g")
        uses: list[Callable[[], Awaitable[Any]]] = [
            lambda: producer.send(message()),
            lambda: producer.put(message()),
            lambda: started.start(),
            lambda: started.close(),
        ]
        for use in uses:
            with pytest.raises(wrong, match="make one in each loop"):
                await asyncio.wait_for(use(), 5.0)

    asyncio.run(first())
    asyncio.run(second())
