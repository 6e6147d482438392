"""A consumer's buffer of messages that were pulled and whose offsets are not committed yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routekeeper.client.process_queue import (
    BYTES_MAX,
    MESSAGES_MAX,
    PROPERTIES_FREE,
    PROPERTY_BYTES,
    SPAN_MAX,
    ProcessQueue,
)


@dataclass(frozen=True)
class Item:
    queue_offset: int
    body: bytes = b"x"
    properties: Mapping[str, str] = field(default_factory=dict)


def items(*offsets: int) -> list[Item]:
    return [Item(offset) for offset in offsets]


def test_the_commit_offset_never_passes_an_unfinished_message() -> None:
    queue: ProcessQueue[Item] = ProcessQueue(0)
    queue.pulled(items(0, 1, 2), 3)
    first, second, third = (queue.take(1)[0] for _ in range(3))
    queue.done([third])
    queue.done([second])
    assert queue.commit_offset == 0
    queue.done([first])
    assert queue.commit_offset == 3


def test_filtered_messages_are_committed_by_the_next_offset() -> None:
    queue: ProcessQueue[Item] = ProcessQueue(10)
    queue.pulled([], 20)
    assert queue.commit_offset == 20


def test_given_back_messages_are_handed_out_again_in_order() -> None:
    queue: ProcessQueue[Item] = ProcessQueue(0)
    queue.pulled(items(0, 1), 2)
    batch = queue.take(1)
    queue.give_back(batch)
    assert [item.queue_offset for item in queue.take(2)] == [0, 1]


def test_a_serial_queue_hands_out_one_batch_at_a_time() -> None:
    queue: ProcessQueue[Item] = ProcessQueue(0, serial=True)
    queue.pulled(items(0, 1), 2)
    batch = queue.take(1)
    assert queue.take(1) == ()
    queue.done(batch)
    assert [item.queue_offset for item in queue.take(1)] == [1]


def test_a_serial_queue_continues_without_a_message_that_was_set_aside() -> None:
    queue: ProcessQueue[Item] = ProcessQueue(0, serial=True)
    queue.pulled(items(0, 1, 2), 3)
    (first,) = queue.take(1)
    queue.set_aside(first)
    (second,) = queue.take(1)
    assert second.queue_offset == 1
    assert queue.take(1) == ()
    queue.give_back([first])
    assert queue.take(1) == (), "the second message is still being consumed"
    queue.done([second])
    assert queue.commit_offset == 0
    assert queue.take(1) == (first,)
    assert queue.take(1) == ()
    queue.done([first])
    assert queue.commit_offset == 2


@pytest.mark.parametrize("serial", [False, True])
def test_pulling_goes_on_behind_a_message_that_was_set_aside(*, serial: bool) -> None:
    queue: ProcessQueue[Item] = ProcessQueue(0, serial=serial)
    queue.pulled(items(0), 1)
    (first,) = queue.take(1)
    queue.set_aside(first)
    for offset in range(1, SPAN_MAX + 100):
        queue.pulled(items(offset), offset + 1)
        queue.done(queue.take(1))
        assert not queue.full
    assert queue.commit_offset == 0
    queue.done([first])
    assert queue.commit_offset == SPAN_MAX + 100


def test_a_dropped_queue_hands_out_nothing() -> None:
    queue: ProcessQueue[Item] = ProcessQueue(0)
    queue.pulled(items(0), 1)
    queue.dropped = True
    assert queue.take(1) == ()


def test_limits_pause_pulling() -> None:
    queue: ProcessQueue[Item] = ProcessQueue(0)
    queue.pulled(items(*range(MESSAGES_MAX)), MESSAGES_MAX)
    assert not queue.full
    queue.pulled(items(MESSAGES_MAX), MESSAGES_MAX + 1)
    assert queue.full
    wide: ProcessQueue[Item] = ProcessQueue(0)
    wide.pulled(items(0), SPAN_MAX + 1)
    assert wide.full


def test_properties_without_a_body_pause_pulling() -> None:
    """The limit on a queue's memory counts the properties of messages, too.

    Otherwise 1,000 messages with bodies of 1 byte could have properties that take 500 MB.
    """
    queue: ProcessQueue[Item] = ProcessQueue(0)
    properties = dict.fromkeys(map(str, range(5000)), "v")
    fit = BYTES_MAX // ((5000 - PROPERTIES_FREE) * PROPERTY_BYTES + 1)
    queue.pulled([Item(offset, properties=properties) for offset in range(fit)], fit)
    assert not queue.full
    queue.pulled([Item(fit, properties=properties)], fit + 1)
    assert queue.full


def test_a_listener_that_changes_properties_leaves_no_memory_counted() -> None:
    """After a message is consumed, its memory does not count, even if the listener changed its properties.

    If it still counted, the consumer would reach its memory limit one day and stop for ever.
    """
    queue: ProcessQueue[Item] = ProcessQueue(0)
    properties = dict.fromkeys(map(str, range(100)), "v")
    queue.pulled([Item(0, properties=properties)], 1)
    batch = queue.take(1)
    properties.clear()
    queue.done(batch)
    assert queue.cached_bytes == 0
    queue.pulled(items(1, 2), 3)
    queue.move(0)
    assert queue.cached_bytes == 0
    queue.pulled(items(1), 3)
    assert queue.cached_bytes == 1


def test_messages_below_a_moved_offset_are_still_consumed() -> None:
    """Messages that were pulled are still consumed after the offset of the next pull has moved.

    The offset moves if the broker removed old messages or lost its newest messages.
    """
    for offset in (95, 5000):
        queue: ProcessQueue[Item] = ProcessQueue(0)
        queue.pulled(items(*range(90)), 100)
        batch = queue.take(10)
        queue.move(offset)
        assert queue.count == queue.cached_bytes == 90
        assert queue.commit_offset == 0
        queue.done(batch)
        assert queue.commit_offset == 10
        queue.done(queue.take(80))
        assert queue.commit_offset == queue.next_offset == offset


def test_new_messages_with_the_offsets_of_running_ones_are_pulled_later() -> None:
    """The end of a lost message's listener must not acknowledge a new message with the same offset.

    The broker has lost messages whose listeners still run, and gives their offsets to new messages.
    """
    queue: ProcessQueue[Item] = ProcessQueue(0)
    queue.pulled(items(*range(8)), 8)
    lower, higher = queue.take(3), queue.take(3)
    queue.move(3)
    assert queue.count == 6, "the waiting messages 6 and 7 are not in the broker's queue any more"
    assert queue.full
    queue.done((*lower, higher[0]))
    assert queue.commit_offset == 3, "the broker stores a new message there, which was not pulled"
    queue.give_back(higher[1:])
    assert (queue.full, queue.commit_offset) == (True, 3)
    queue.done(queue.take(3))
    assert (queue.full, queue.commit_offset, queue.cached_bytes) == (False, 3, 0)
    new = items(3, 4)
    queue.pulled(new, 5)
    assert [id(item) for item in queue.take(9)] == [id(item) for item in new]
    queue.done(new)
    assert queue.commit_offset == 5


@pytest.mark.slow
@given(st.data())
def test_no_message_is_lost_or_handed_out_twice(data: st.DataObject) -> None:
    queue: ProcessQueue[Item] = ProcessQueue(0, serial=data.draw(st.booleans()))
    in_flight: list[Item] = []
    finished: set[int] = set()
    pulled = 0
    for _ in range(data.draw(st.integers(0, 40))):
        action = data.draw(st.sampled_from(["pull", "take", "done", "back", "aside"]))
        if action == "pull":
            count = data.draw(st.integers(0, 5))
            queue.pulled(items(*range(pulled, pulled + count)), pulled + count)
            pulled += count
        elif action == "take":
            batch = queue.take(data.draw(st.integers(1, 3)))
            assert not {item.queue_offset for item in batch} & (
                {i.queue_offset for i in in_flight} | finished
            )
            in_flight += batch
        elif in_flight:
            item = in_flight.pop(data.draw(st.integers(0, len(in_flight) - 1)))
            if action == "done":
                queue.done([item])
                finished.add(item.queue_offset)
            elif action == "back":
                queue.give_back([item])
            else:
                queue.set_aside(item)
                in_flight.append(item)
        unfinished = set(range(pulled)) - finished
        assert queue.commit_offset == (min(unfinished) if unfinished else pulled)
        assert queue.count == len(unfinished)
        assert queue.cached_bytes == len(unfinished)
        assert queue.body_bytes == len(unfinished)
