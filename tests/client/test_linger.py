"""Batches of messages that wait in a producer: which batches are due, their order, and their limits."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import Any

import pytest

from routekeeper import AsyncClient
from routekeeper.client.config import ProducerConfig
from routekeeper.client.errors import InvalidArgument
from routekeeper.client.linger import Batch, Batches, BatchKey
from routekeeper.client.producer import EncodedItem, Message, SendStatus
from routekeeper.remoting.bodies import MessageQueue
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from tests.waiting import WITHIN_S, until

ANY = BatchKey("T", True, None)
FIXED = BatchKey("T", True, MessageQueue(topic="T", broker_name="b", queue_id=0))
_numbers = itertools.count()


def batches(*, linger_s: float = 1.0, batch_size: int = 100) -> Batches:
    return Batches(linger_s=linger_s, batch_size=batch_size)


def add(to: Batches, key: BatchKey = ANY, size: int = 10, now_s: float = 0.0) -> int:
    number = next(_numbers)
    to.add(key, EncodedItem(str(number), b"x" * size), number, now_s)
    return number


def take(found: Batches, now_s: float) -> Batch:
    batch = found.take(now_s)
    assert batch is not None
    return batch


def test_a_message_waits_for_others_and_no_longer_than_it_may() -> None:
    waiting = batches(linger_s=1.0)
    numbers = [add(waiting, now_s=5.0), add(waiting, now_s=5.9)]
    assert waiting.next_due_s() == 6.0
    assert waiting.take(5.99) is None
    assert take(waiting, 6.0).handles == numbers
    assert waiting.take(100.0) is None


def test_a_full_batch_waits_no_longer() -> None:
    waiting = batches(batch_size=30)
    numbers = [add(waiting) for _ in range(3)]
    assert take(waiting, 0.0).handles == numbers


def test_what_does_not_fit_goes_into_the_next_batch() -> None:
    waiting = batches(batch_size=30)
    first, second = add(waiting, size=20), add(waiting, size=20)
    assert take(waiting, 0.0).handles == [first]
    assert waiting.take(0.0) is None
    assert take(waiting, 1.0).handles == [second]


def test_a_message_above_the_batch_size_goes_alone() -> None:
    waiting = batches(batch_size=30)
    number = add(waiting, size=300)
    assert take(waiting, 0.0).handles == [number]


def test_a_batch_has_a_bound_on_its_messages() -> None:
    waiting = batches(batch_size=1 << 20)
    for _ in range(1025):
        add(waiting, size=1)
    assert len(take(waiting, 0.0).items) == 1024
    assert waiting.take(0.0) is None


def test_batches_of_one_given_queue_go_one_after_the_other() -> None:
    waiting = batches(batch_size=10)
    first, second = add(waiting, FIXED), add(waiting, FIXED)
    other = add(waiting, ANY)
    begun = take(waiting, 0.0)
    assert begun.handles == [first]
    assert take(waiting, 0.0).handles == [other], "others overtake"
    assert waiting.take(0.0) is None
    waiting.done(begun)
    assert take(waiting, 0.0).handles == [second]


def test_what_is_under_way_counts_until_it_is_done() -> None:
    waiting = batches(batch_size=100)
    add(waiting, size=40)
    add(waiting, size=2)
    batch = take(waiting, 1.0)
    assert (waiting.size, waiting.count) == (42, 2)
    waiting.done(batch)
    assert (waiting.size, waiting.count) == (0, 0)


def test_nothing_waits_after_a_flush_and_what_is_left_can_be_given_up() -> None:
    waiting = batches()
    first, second = add(waiting), add(waiting, FIXED)
    waiting.flush()
    assert take(waiting, 0.0).handles == [first]
    (left,) = waiting.abandon()
    assert left.handles == [second]
    assert waiting.count == 1, "the one that was taken"


def test_flush_has_ended_when_all_batches_from_before_it_have_ended() -> None:
    waiting = batches()
    assert waiting.flushed(waiting.flush()), "there was no batch"
    add(waiting)
    add(waiting, FIXED)
    first = waiting.flush()
    add(waiting)
    second = waiting.flush()
    begun, fixed, later = (take(waiting, 0.0) for _ in range(3))
    waiting.done(later)
    waiting.done(begun)
    assert not waiting.flushed(first)
    waiting.give_back(fixed)  # its sender was cancelled
    assert not waiting.flushed(first)
    waiting.done(take(waiting, 0.0))
    assert waiting.flushed(first)
    assert waiting.flushed(second)
    add(waiting)
    third = waiting.flush()
    waiting.abandon()
    assert waiting.flushed(third)


def test_flush_waits_for_no_message_that_was_put_later_and_does_not_send_it(peer: Any) -> None:
    routes, sent = peer.answer, list[RemotingCommand]()
    answered = threading.Event()

    async def store(request: RemotingCommand) -> RemotingCommand:
        sent.append(request)
        await until(answered.is_set, "the test lets the broker answer")
        return request.reply(ext_fields={"msgId": "0" * 32, "queueId": "0", "queueOffset": "0"})

    peer.answer = lambda request: (
        store(request) if request.code == RequestCode.SEND_BATCH_MESSAGE else routes(request)
    )

    async def main() -> None:
        async with AsyncClient(peer.addr) as client:
            producer = client.producer(ProducerConfig(group="g", linger_s=60.0))
            first = await producer.put(Message(topic="T", body=b"first"))
            flush = asyncio.create_task(producer.flush())
            await until(lambda: sent, "the first message is sent")
            second = await producer.put(Message(topic="T", body=b"second"))
            answered.set()
            await asyncio.wait_for(flush, WITHIN_S / 2)
            assert first.result().status is SendStatus.SEND_OK
            assert (second.done(), len(sent)) == (False, 1), "the second message waits for more messages"
            await producer.flush()
            assert second.result().status is SendStatus.SEND_OK

    asyncio.run(main())


@pytest.mark.parametrize(
    "values",
    [
        {"linger_s": -1.0},
        {"linger_s": 61.0},
        {"batch_size": 0},
        {"batch_size": 5 << 20},
        {"buffer_size": 1 << 20},
        {"batches_max": 0},
    ],
)
def test_settings_out_of_range_are_named(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=f"{next(iter(values))}="):
        ProducerConfig(group="g", **values)
