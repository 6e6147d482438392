"""Orderly groups: a member stops consuming a queue when the broker answers that the lock is lost."""

from __future__ import annotations

from routekeeper.remoting.bodies import MessageQueue
from tests.client.test_consumer_sim import History, Member, World

QUEUE = MessageQueue(topic="T", broker_name="b", queue_id=0)


def losing_the_lock() -> tuple[World, History, Member]:
    """Return a simulated world whose orderly member has consumed some messages, and then lost its lock.

    The broker has restarted and forgotten the lock. Then another member has locked the queue.
    """
    world = World(1, loss=0.0)
    world.listener_s = (1.0, 1.0)
    history = History(world.rng, failing=0.0)
    for number in range(200):
        world.broker.append("T", 0, b"%d" % number)
    member = Member(world, history, 1, orderly=True)
    locks = world.broker.locks
    world.run_until(lambda: len(history.order[0]) > 3, 60)
    renewed = locks[QUEUE]
    world.run_until(lambda: locks[QUEUE] != renewed, 60)
    locks[QUEUE] = ("another member", world.now_s + 600)
    world.pass_time(member.core.config.lock_s + 2)
    return world, history, member


def test_a_member_does_not_consume_a_queue_that_another_member_has_locked() -> None:
    world, history, _ = losing_the_lock()
    count = len(history.order[0])
    world.pass_time(6)
    assert len(history.order[0]) == count
    del world.broker.locks[QUEUE]
    # Another member often returns the lock soon, so the client asks for the lock every second.
    world.run_until(lambda: len(history.order[0]) > count, 4)


def test_a_member_without_the_lock_stores_no_offset() -> None:
    world, _, member = losing_the_lock()
    world.broker.offsets["g", "T", 0] = 150  # the other member stored this offset
    world.broker.append("T", 0, b"new")
    world.pass_time(20)
    world.start(member, member.consumer.close())
    world.pass_time(20)
    assert world.broker.offsets["g", "T", 0] == 150


def test_a_member_that_gets_the_lock_back_goes_on_where_the_other_member_ended() -> None:
    world, history, _ = losing_the_lock()
    count = len(history.order[0])
    world.broker.offsets["g", "T", 0] = 150
    del world.broker.locks[QUEUE]
    world.run_until(lambda: len(history.order[0]) > count, 4)
    assert history.order[0][count] == 150
