"""If a pull consumer commits after it has released a queue, the error names offsets that were not stored."""

from __future__ import annotations

import random
from typing import Any

import pytest

from routekeeper.client.config import ClientConfig, ConsumeFrom, PullConsumerConfig
from routekeeper.client.core import ClientCore, Identity
from routekeeper.client.errors import PartlyNotApplied
from routekeeper.client.operation import Operation
from routekeeper.client.pull_consumer import PullConsumerCore
from routekeeper.client.queue_reader import ReceivedMessage
from routekeeper.remoting.bodies import MessageQueue
from tests.client.test_consumer_sim import ADDR, QUEUES, Member, World

#: Two queues. When a second member joins, the first member releases MOVING and keeps KEPT.
MOVING, KEPT = (MessageQueue(topic="T", broker_name="b", queue_id=number) for number in (QUEUES - 1, 0))


class PullMember(Member):
    """One process of the group whose program calls the methods of a pull consumer."""

    def __init__(self, world: World, serial: int, *, auto_commit: bool = False) -> None:
        self.dead = self.cut_off = False
        self.arrival_s = 0.0
        self.world = world
        config = ClientConfig(nameservers=(ADDR,))
        self.core = ClientCore(config, Identity(ip="192.0.2.1", pid=1, serial=serial), random.Random(serial))
        settings = PullConsumerConfig(
            group="g", consume_from=ConsumeFrom.FIRST_OFFSET, suspend_s=2.0, auto_commit=auto_commit
        )
        self.puller = PullConsumerCore(self.core, settings, {"T": "*"})
        self.run(self.core.start())
        self.run(self.puller.start())

    def run(self, operation: Operation[Any]) -> Any:
        """Run an operation to its end, and return its result or raise its exception."""
        ended: list[Any] = []
        failed: list[Exception] = []

        def perform() -> Operation[None]:
            try:
                ended.append((yield from operation))
            except Exception as error:
                failed.append(error)

        self.world.start(self, perform())
        self.world.run_until(lambda: bool(ended or failed), 60)
        if failed:
            raise failed[0]
        return ended[0]

    def poll(self, count: int) -> list[ReceivedMessage]:
        """Call the consumer's `poll` until it has returned ``count`` messages or more, and return them."""
        found: list[ReceivedMessage] = []
        while len(found) < count:
            found += self.run(self.puller.poll(timeout_s=10.0))
        return found

    def await_queues(self, count: int) -> None:
        self.world.run_until(lambda: len(self.puller.assigned) == count, 120)


def new_member(*, auto_commit: bool = False) -> PullMember:
    world = World(1, loss=0.0)
    member = PullMember(world, 1, auto_commit=auto_commit)
    member.await_queues(QUEUES)
    return member


def append(member: PullMember, queue: MessageQueue, count: int) -> None:
    for number in range(count):
        member.world.broker.append("T", queue.queue_id, b"%d" % number)


def stored(member: PullMember, queue: MessageQueue) -> int:
    return member.world.broker.offsets.get(("g", "T", queue.queue_id), 0)


@pytest.mark.parametrize("auto_commit", [False, True])
def test_a_commit_names_a_queue_that_was_released_before_it(auto_commit: bool) -> None:
    first = new_member(auto_commit=auto_commit)
    append(first, KEPT, 3)
    first.poll(3)
    append(first, MOVING, 1)
    first.poll(1)
    second = PullMember(first.world, 2, auto_commit=auto_commit)
    first.await_queues(QUEUES // 2)
    with pytest.raises(PartlyNotApplied) as raised:
        first.run(first.puller.commit())
    assert set(raised.value.failures) == {MOVING}
    assert "released" in str(raised.value)
    assert (stored(first, KEPT), stored(first, MOVING)) == (3, 0)
    first.run(first.puller.commit())  # raises nothing: the loss is reported only once
    assert [message.queue for message in second.poll(1)] == [MOVING]


def test_a_commit_does_not_name_a_queue_whose_messages_were_stored_before_its_release() -> None:
    first = new_member()
    append(first, MOVING, 3)
    first.poll(3)
    first.run(first.puller.commit())
    append(first, MOVING, 3)  # pulled, but not returned to the program
    PullMember(first.world, 2)
    first.await_queues(QUEUES // 2)
    first.run(first.puller.commit())
    assert stored(first, MOVING) == 3


def test_a_commit_does_not_name_a_queue_that_came_back_with_its_messages() -> None:
    first = new_member()
    append(first, MOVING, 3)
    first.poll(3)
    second = PullMember(first.world, 2)
    first.await_queues(QUEUES // 2)
    second.run(second.core.close())
    second.kill()
    first.await_queues(QUEUES)
    first.poll(3)
    first.run(first.puller.commit())
    assert stored(first, MOVING) == 3


def test_with_automatic_commits_a_commit_is_silent_about_releases_before_the_last_poll() -> None:
    first = new_member(auto_commit=True)
    append(first, MOVING, 3)
    first.poll(3)
    PullMember(first.world, 2, auto_commit=True)
    first.await_queues(QUEUES // 2)
    append(first, KEPT, 3)
    first.poll(3)
    first.run(first.puller.commit())
    assert stored(first, KEPT) == 3
