"""Queue locks have a bound of their memory. Many locks of one group do not slow down other requests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from routekeeper.broker.tables.locks import EXPIRY_STEP, LOCK_BYTES_MAX, LOCKS_MAX, QueueLocks
from routekeeper.remoting.bodies import MessageQueue
from routekeeper.remoting.bounds import CLIENT_ID_MAX, NAME_MAX, TOPIC_NAME_MAX
from tests.cost import least_cpu_s, on_this_machine

ONE, OTHER = "192.0.2.7", "192.0.2.8"
#: Limit of the processor time in s for 100 calls of ``any_held``. If each call searched 20,000 locks, the 100
#: calls would take about 0.1 s.
CALLS_S = 0.02


def queues(count: int, topic: str = "T", broker: str = "b") -> list[MessageQueue]:
    return [MessageQueue(topic=topic, broker_name=broker, queue_id=number) for number in range(count)]


def longest(count: int) -> list[MessageQueue]:
    """Return queues with the longest names. Python stores each of these characters in four bytes."""
    return queues(count, "\U0001f600" * TOPIC_NAME_MAX, "\U0001f600" * NAME_MAX)


def test_locks_with_long_names_use_no_more_than_the_bound() -> None:
    locks = QueueLocks()
    client_id = "\U0001f600" * CLIENT_ID_MAX
    held = locks.lock("G", client_id, longest(20_000), now=0.0)
    assert len(held) < 20_000
    assert LOCK_BYTES_MAX - 10_000 < locks.size <= LOCK_BYTES_MAX
    assert locks.lock("G", client_id, held[:5], now=30.0) == held[:5], "held locks can be renewed"
    locks.unlock("G", client_id, held)
    assert locks.size == 0


def test_one_host_leaves_half_of_the_bytes_to_others() -> None:
    locks = QueueLocks()
    held = locks.lock("G", "c", longest(50_000), now=0.0, host=ONE)
    assert locks.size <= LOCK_BYTES_MAX // 2
    assert len(locks.lock("H", "d", queues(10), now=0.0, host=ONE)) < 10
    assert len(locks.lock("I", "e", queues(10), now=0.0, host=OTHER)) == 10
    locks.unlock("G", "c", held[:5])
    assert len(locks.lock("H", "d", queues(10), now=0.0, host=ONE)) == 10


def test_bytes_have_room_for_all_locks_with_usual_names() -> None:
    locks = QueueLocks()
    locks.lock("consumers-of-orders", "192.0.2.7@4711#123456789", queues(1, "orders", "broker-a"), now=0.0)
    assert locks.size * LOCKS_MAX <= LOCK_BYTES_MAX


def test_longer_client_id_needs_room_for_an_expired_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("routekeeper.broker.tables.locks.LOCK_BYTES_MAX", 10_000)
    locks = QueueLocks()
    held = locks.lock("G", "c", queues(15), now=0.0)
    assert len(held) == 15
    again = locks.lock("G", "\U0001f600" * CLIENT_ID_MAX, held, now=61.0)
    assert 0 < len(again) < 15
    assert locks.size <= 10_000


def test_renewed_lock_shows_that_the_group_consumes_in_order() -> None:
    locks = QueueLocks()
    first, second = queues(2)
    locks.lock("G", "c", [first, second], now=0.0)
    locks.lock("G", "c", [first], now=50.0)
    assert locks.any_held("G", now=100.0)
    locks.unlock("G", "c", [first])
    assert not locks.any_held("G", now=100.0)
    assert not locks.any_held("Unknown", now=100.0)


def test_expired_locks_of_a_group_are_not_searched() -> None:
    locks = QueueLocks()
    locks.lock("G", "c", queues(20_000), now=0.0)

    def make() -> Callable[[], object]:
        return lambda: [locks.any_held("G", now=100.0) for _ in range(100)]

    allowed = on_this_machine(CALLS_S)
    assert least_cpu_s(make, below=allowed) < allowed


def test_expired_locks_are_removed_in_steps() -> None:
    locks = QueueLocks()
    count = 3 * EXPIRY_STEP + 1
    all_queues = queues(count)
    locks.lock("G", "c", all_queues, now=0.0)
    one_size = locks.size // count
    steps = locks.expire(61.0)
    next(steps)
    assert locks.size >= (count - EXPIRY_STEP) * one_size, "the first step leaves the rest"
    locks.unlock("G", "c", all_queues[-1:])
    locks.lock("G", "c", all_queues[-2:-1], now=61.0)
    assert len(list(steps)) == 2
    assert locks.size == one_size, "the lock that was renewed between two steps stays"
    assert list(locks.expire(122.0)) == []
    assert locks.size == 0


def test_valid_locks_stay_when_older_locks_expire() -> None:
    locks = QueueLocks()
    old, new = queues(2)
    locks.lock("G", "c", [new], now=0.0)
    locks.lock("G", "c", [old], now=10.0)
    locks.lock("G", "c", [new], now=60.0)
    locks.lock("H", "c", [old], now=60.0)
    assert list(locks.expire(80.0)) == []
    assert locks.lock("G", "d", [old, new], now=80.0) == (old,)
    assert locks.lock("H", "d", [old], now=80.0) == ()
