"""Push consumers in a simulated world: some brokers of their topic never answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from routekeeper.client.operation import Invoke
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import RequestTimeout
from routekeeper.remoting.route import BrokerData, QueueData, RouteDialect, TopicRouteData, encode_route
from tests.client.test_consumer_sim import ADDR, QUEUES, Broker, History, Member, World, fill

SILENT_QUEUES = 16


class SilentWorld(World):
    """A simulated world with one broker that answers. Other brokers receive requests and never answer."""

    def __init__(self, seed: int, silent: int) -> None:
        super().__init__(seed, loss=0.0)
        # The silent brokers have the names a0, c1, a2, c3, ... The broker that answers has the name "b", so
        # some silent brokers sort before it and some after it.
        self.silent = {
            f"{'a' if number % 2 == 0 else 'c'}{number}": f"192.0.2.10:{number + 1}"
            for number in range(silent)
        }
        self.broker = KnownBroker(self)

    def _invoke(
        self, member: Member, effect: Invoke, answer: Callable[[Any], None], fail: Callable[[Exception], None]
    ) -> None:
        if effect.addr in self.silent.values():
            self.after(effect.timeout_s, lambda: fail(RequestTimeout(f"{effect.addr} is silent")))
        else:
            super()._invoke(member, effect, answer, fail)


class KnownBroker(Broker):
    """The broker that answers. It is the nameserver, too: its routes also list the silent brokers."""

    world: SilentWorld

    def _route(self, request: RemotingCommand) -> RemotingCommand:
        if request.ext_fields["topic"] != "T":
            return super()._route(request)
        addrs = {"b": ADDR, **self.world.silent}
        route = TopicRouteData(
            queue_datas=tuple(
                QueueData(broker_name=name, read_queue_nums=nums, write_queue_nums=nums, perm=6)
                for name in addrs
                for nums in [QUEUES if name == "b" else SILENT_QUEUES]
            ),
            broker_datas=tuple(
                BrokerData(cluster="C", broker_name=name, broker_addrs={0: addr})
                for name, addr in addrs.items()
            ),
        )
        return request.reply(body=encode_route(route, RouteDialect.QUOTED))


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize(("silent", "limit_s"), [(1, 15.0), (2, 20.0), (40, 90.0)])
def test_queues_of_a_broker_that_answers_begin_although_others_are_silent(
    silent: int, limit_s: float, orderly: bool
) -> None:
    for seed in range(3):
        world = SilentWorld(seed, silent)
        history = History(world.rng, failing=0.0)
        wanted = fill(world, 20)
        Member(world, history, seed, orderly=orderly)
        world.run_until(lambda: set(history.finished) == wanted, limit_s)  # noqa: B023


def test_locks_are_renewed_although_other_brokers_are_silent() -> None:
    world = SilentWorld(1, 40)
    history = History(world.rng, failing=0.0)
    wanted = fill(world, 20)
    Member(world, history, 1, orderly=True)
    world.run_until(lambda: set(history.finished) == wanted, 3600.0)
    # The loop takes 200 s. A member trusts its lock for only 30 s after a renewal, so it must renew the lock.
    for number in range(10):
        body = b"later%d" % number
        world.broker.append("T", number % QUEUES, body)
        world.run_until(lambda: body in history.finished, 40.0)  # noqa: B023
        pause_s = world.now_s + 20.0
        world.after(20.0, lambda: None)
        world.run_until(lambda: world.now_s >= pause_s, 21.0)  # noqa: B023


@pytest.mark.parametrize("seed", range(5))
def test_a_member_takes_queues_over_soon_although_a_broker_is_silent(seed: int) -> None:
    world = SilentWorld(seed, 1)
    history = History(world.rng, failing=0.0)
    wanted = fill(world, 20)
    members = [Member(world, history, serial) for serial in (1, 2)]

    def owner() -> Member | None:
        """Return the member that consumes queues of broker "b"; None if no member or several members do."""
        owners = [
            member
            for member in members
            if any(queue.broker_name == "b" for queue in member.consumer.assigned)
        ]
        return owners[0] if len(owners) == 1 else None

    world.run_until(lambda: set(history.finished) == wanted and owner() is not None, 120.0)
    dead = owner()
    assert dead is not None
    dead.kill()
    for number in range(QUEUES):
        world.broker.append("T", number, b"later%d" % number)
        wanted.add(b"later%d" % number)
    world.run_until(lambda: set(history.finished) == wanted, 15.0)
