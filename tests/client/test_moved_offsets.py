"""Pulls at an offset without a message, because the broker removed old messages or lost new messages."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from routekeeper.remoting.command import RemotingCommand
from tests.client.test_consumer_sim import Broker, History, Member, World

KEY = ("T", 0)


@dataclass
class MovingBroker(Broker):
    """A broker that answers "offset moved" to pulls outside its queue.

    Attributes:
        first: Lowest offset of the queue that the broker still has.
        asked: Offset of the last pull of the queue.
        moves: Offsets that the broker named instead of the pulled offsets.
    """

    first: int = 0
    asked: int = -1
    moves: list[int] = field(default_factory=list)

    def _pull(self, request: RemotingCommand, key: tuple[str, int]) -> tuple[float, RemotingCommand]:
        if key != KEY:
            return super()._pull(request, key)
        self.asked = int(request.ext_fields["queueOffset"])
        end = len(self.queues[key])
        offset = min(max(self.asked, self.first), end)
        if offset == self.asked:
            return super()._pull(request, key)
        self.moves.append(offset)
        if int(request.ext_fields["sysFlag"]) & 1:
            self.offsets["g", *key] = int(request.ext_fields["commitOffset"])
        ext = {"nextBeginOffset": str(offset), "minOffset": str(self.first), "maxOffset": str(end)}
        return 0, request.reply(21, ext_fields={**ext, "suggestWhichBrokerId": "0"})

    def append_all(self, prefix: str, count: int) -> set[bytes]:
        bodies = [f"{prefix}{number}".encode() for number in range(count)]
        for body in bodies:
            self.append(*KEY, body)
        return set(bodies)


def new_world(*, listener_s: float) -> tuple[World, MovingBroker, History]:
    world = World(1, loss=0.0)
    world.listener_s = (listener_s, listener_s)
    broker = world.broker = MovingBroker(world)
    return world, broker, History(world.rng, failing=0.0)


@pytest.mark.parametrize("orderly", [False, True])
def test_pulled_messages_are_consumed_although_the_broker_removed_old_ones(orderly: bool) -> None:
    world, broker, history = new_world(listener_s=0.5)
    pulled = broker.append_all("old", 60)
    Member(world, history, 1, orderly=orderly, workers=1)
    world.run_until(lambda: broker.asked == 60, 60)
    broker.append_all("removed", 20)
    broker.first = 80
    wanted = pulled | broker.append_all("new", 20)
    world.run_until(lambda: bool(broker.moves), 60)
    assert len(history.finished) < 60, "most of the messages still wait"
    world.run_until(lambda: set(history.finished) == wanted, 600)
    assert set(history.finished.values()) == {1}
    world.run_until(lambda: broker.offsets["g", *KEY] == 100, 60)


@pytest.mark.parametrize("orderly", [False, True])
def test_pulled_messages_are_consumed_although_the_broker_lost_the_newest_ones(orderly: bool) -> None:
    world, broker, history = new_world(listener_s=0.5)
    broker.append_all("old", 20)
    Member(world, history, 1, orderly=orderly, workers=1)
    world.run_until(lambda: broker.asked == 20, 60)
    del broker.queues[KEY][15:]
    kept = {message.body for message in broker.queues[KEY]}
    world.run_until(lambda: bool(broker.moves), 60)
    wanted = kept | broker.append_all("new", 10)
    world.run_until(lambda: set(history.finished) >= wanted, 600)
    assert set(history.finished.values()) == {1}
    world.run_until(lambda: broker.offsets["g", *KEY] == 25, 60)


def test_a_lost_message_that_is_consumed_does_not_acknowledge_its_successor() -> None:
    world, broker, history = new_world(listener_s=10.0)
    broker.append_all("old", 20)
    Member(world, history, 1, workers=20)
    world.run_until(lambda: sum(history.running.values()) == 20, 60)
    del broker.queues[KEY][15:]
    world.run_until(lambda: bool(broker.moves), 60)
    wanted = broker.append_all("new", 5)

    def check_offset() -> bool:
        stored = broker.offsets.get(("g", *KEY), 0)
        below = {message.body for message in broker.queues[KEY][:stored]}
        assert below <= set(history.finished), "a stored offset passes only messages that were consumed"
        return wanted <= set(history.finished)

    world.run_until(check_offset, 600)
    assert set(history.finished.values()) == {1}
    assert len(history.finished) == 25
    world.run_until(lambda: broker.offsets["g", *KEY] == 20, 60)
