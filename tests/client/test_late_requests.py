"""If a hung thread sends an old request late, the request does not undo newer requests of other threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from routekeeper.client.operation import Invoke, Oneway
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from tests.client.test_consumer_sim import QUEUES, Broker, History, Member, World, fill
from tests.client.test_released_commits import KEPT, PullMember, append, stored


@dataclass
class WatchingBroker(Broker):
    """A broker that records the queues whose stored offset became lower."""

    fallen: list[tuple[str, str, int]] = field(default_factory=list)

    def serve(self, member: Member, request: RemotingCommand) -> tuple[float, RemotingCommand]:
        before = dict(self.offsets)
        answer = super().serve(member, request)
        self.fallen += [key for key, offset in before.items() if self.offsets[key] < offset]
        return answer


@pytest.mark.parametrize("seed", range(20))
def test_a_stored_offset_is_not_overwritten_by_an_older_one(seed: int) -> None:
    world = World(seed, loss=0.0)
    broker = world.broker = WatchingBroker(world)
    world.still, world.timer_divisor = 0.4, 25.0
    history = History(world.rng, failing=0.0)
    wanted = fill(world, 100)
    Member(world, history, 1)
    world.run_until(lambda: set(history.finished) == wanted, 300)
    ends = {("g", *key): len(log) for key, log in broker.queues.items() if log}
    world.run_until(lambda: broker.offsets.items() >= ends.items(), 60)
    assert broker.fallen == []


@pytest.mark.parametrize("seed", range(10))
def test_a_commit_is_not_undone_by_an_older_pull(seed: int) -> None:
    world = World(seed, loss=0.0)
    member = PullMember(world, 1, auto_commit=True)
    member.await_queues(QUEUES)
    world.still = 0.5
    for number in range(1, 6):
        append(member, KEPT, 1)
        member.poll(1)
        member.run(member.puller.commit())
        assert stored(member, KEPT) == number
        world.pass_time(2.0)
        assert stored(member, KEPT) == number


@pytest.mark.parametrize("seed", range(20))
def test_a_heartbeat_does_not_join_a_group_again_that_the_client_left(seed: int) -> None:
    world = World(seed, loss=0.0)
    member = Member(world, History(world.rng, failing=0.0), 1)
    world.run_until(lambda: len(member.consumer.assigned) == QUEUES + 1, 60)
    world.still = 0.5
    for number in range(60):
        world.after(0.05 * number, lambda: world.start(member, member.core.beat()))
    world.start(member, member.consumer.close())
    world.pass_time(30)
    assert world.broker.members == {}


@pytest.mark.parametrize("seed", range(40))
def test_a_closed_member_has_no_locks(seed: int) -> None:
    world = World(seed, loss=0.0)
    world.still, world.timer_divisor = 0.5, 50.0
    member = Member(world, History(world.rng, failing=0.0), 1, orderly=True)
    world.pass_time(0.05 * seed)
    world.start(member, member.consumer.close())
    world.pass_time(30)
    assert world.broker.locks == {}


class SlowLocks(World):
    """A simulated world in which the request to lock queues is sent two seconds late."""

    slow = False
    waiting = 0

    def _send(
        self,
        member: Member,
        effect: Oneway | Invoke,
        answer: Callable[[Any], None],
        fail: Callable[[Exception], None],
    ) -> None:
        if self.slow and effect.request.code == RequestCode.LOCK_BATCH_MQ:
            self.waiting += 1
            send = super()._send
            self.after(2.0, lambda: send(member, effect, answer, fail))
        else:
            super()._send(member, effect, answer, fail)


def test_a_lock_is_not_requested_after_the_unlock_at_the_end() -> None:
    world = SlowLocks(1, loss=0.0)
    member = Member(world, History(world.rng, failing=0.0), 1, orderly=True)
    world.run_until(lambda: len(member.consumer.assigned) == QUEUES + 1, 60)
    world.slow = True
    world.run_until(lambda: bool(world.waiting), 60)
    world.start(member, member.consumer.close())
    world.pass_time(30)
    assert world.broker.locks == {}
