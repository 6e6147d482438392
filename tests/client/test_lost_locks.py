"""Orderly groups: a member that lost a queue's lock stops consuming the queue when the broker says so."""

from __future__ import annotations

from routekeeper.remoting.bodies import MessageQueue
from tests.client.test_consumer_sim import History, Member, World
from tests.client.test_late_requests import pass_time

QUEUE = MessageQueue(topic="T", broker_name="b", queue_id=0)


def test_a_member_does_not_consume_a_queue_that_another_member_has_locked() -> None:
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
    # The broker has restarted and forgotten the lock, and another member came first.
    locks[QUEUE] = ("another member", world.now_s + 60)
    pass_time(world, member.core.config.lock_s + 2)
    count = len(history.order[0])
    pass_time(world, 6)
    assert len(history.order[0]) == count
    del locks[QUEUE]
    world.run_until(lambda: len(history.order[0]) > count, 30)
