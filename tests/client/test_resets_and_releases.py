"""If an operator resets offsets while a member ends or hands a queue over, the reset is not lost."""

from __future__ import annotations

from tests.client.test_consumer_sim import QUEUES, History, Member, World, fill
from tests.client.test_orderly_resets import ALL, begin, reset


def test_a_member_that_ends_stores_the_offsets_of_a_reset() -> None:
    world = World(1, loss=0.0)
    history = History(world.rng, failing=0.0)
    wanted = fill(world, 40)
    member = Member(world, history, 1)
    world.run_until(lambda: set(history.finished) == wanted, 60)
    left: list[bool] = []
    reset(member)
    member.leave(lambda: left.append(True))
    world.run_until(lambda: bool(left), 60)
    assert [world.broker.offsets["g", "T", queue.queue_id] for queue in ALL] == [0] * QUEUES
    Member(world, history, 2)
    world.run_until(lambda: all(history.finished[body] == 2 for body in wanted), 60)


def test_a_member_that_hands_a_queue_over_stores_the_offset_of_a_reset() -> None:
    world = World(1, loss=0.0)
    first, history = begin(world)
    second = Member(world, history, 2, orderly=True, workers=QUEUES)
    world.pass_time(2.0)  # the first member waits for its listeners before it hands queues over
    reset(first)
    world.run_until(lambda: sum(queue.topic == "T" for queue in second.consumer.assigned) == QUEUES // 2, 60)
    moved = [queue.queue_id for queue in second.consumer.assigned if queue.topic == "T"]
    world.run_until(lambda: all(len(history.order[number]) >= 3 for number in moved), 120)
    assert [history.order[number][:3] for number in moved] == [[0, 0, 1]] * len(moved)
