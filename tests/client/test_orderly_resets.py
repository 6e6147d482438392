"""If an orderly group's offsets are reset while a listener runs, no queue has two listener calls at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from routekeeper.remoting.bodies import MessageQueue, QueueOffsets
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from tests.client.test_consumer_sim import QUEUES, History, Member, World

ALL = tuple(MessageQueue(topic="T", broker_name="b", queue_id=number) for number in range(QUEUES))


def begin(world: World) -> tuple[Member, History]:
    """Start a member with slow listeners, and wait until a listener runs for each queue."""
    world.listener_s = (10.0, 12.0)
    history = History(world.rng, failing=0.0)
    for queue in ALL:
        for number in range(5):
            world.broker.append("T", queue.queue_id, b"%d of %d" % (number, queue.queue_id))
    member = Member(world, history, 1, orderly=True, workers=2 * QUEUES)
    world.run_until(lambda: sum(history.running.values()) == QUEUES, 60)
    return member, history


def reset(member: Member) -> None:
    body = QueueOffsets(offsets=dict.fromkeys(ALL, 0)).encode()
    fields = {"group": "g", "topic": "T"}
    member.core.peer_request(RemotingCommand.request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body))


def seek(member: Member) -> None:
    for queue in ALL:
        member.world.start(member, member.consumer.seek(queue, 0))


@pytest.mark.parametrize("change", [reset, seek])
def test_the_next_batch_waits_for_the_listener_that_runs(change: Callable[[Member], None]) -> None:
    world = World(1, loss=0.0)
    member, history = begin(world)
    change(member)
    began_s = world.now_s
    world.run_until(lambda: all(history.order[queue.queue_id][:2] == [0, 0] for queue in ALL), 60)
    assert history.overlaps == 0
    assert world.now_s - began_s < 26.0, "the second call begins when the first one ends"
    world.run_until(lambda: all(len(history.order[queue.queue_id]) == 6 for queue in ALL), 120)
    assert history.overlaps == 0


def test_another_member_gets_a_queue_only_after_the_listener_that_runs() -> None:
    world = World(1, loss=0.0)
    first, history = begin(world)
    reset(first)
    second = Member(world, history, 2, orderly=True, workers=QUEUES)
    world.run_until(lambda: sum(queue.topic == "T" for queue in second.consumer.assigned) == QUEUES // 2, 60)
    world.run_until(lambda: all(4 in history.order[queue.queue_id] for queue in ALL), 300)
    assert history.overlaps == 0
