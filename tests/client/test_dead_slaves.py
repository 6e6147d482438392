"""A consumer pulls from a slave that no longer answers, while the slave's master still answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from routekeeper.client.operation import Invoke, Oneway
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import ConnectionLost
from routekeeper.remoting.route import BrokerData, QueueData, RouteDialect, TopicRouteData, encode_route
from tests.client.test_consumer_sim import ADDR, QUEUES, Broker, History, Member, World, fill

SLAVE = "192.0.2.8:10911"


class BusyMaster(Broker):
    """A master that tells consumers to pull from its slave."""

    def _route(self, request: RemotingCommand) -> RemotingCommand:
        answer = super()._route(request)
        if answer.code:
            return answer
        nums = QUEUES if request.ext_fields["topic"] == "T" else 1
        route = TopicRouteData(
            queue_datas=(QueueData(broker_name="b", read_queue_nums=nums, write_queue_nums=nums, perm=6),),
            broker_datas=(BrokerData(cluster="C", broker_name="b", broker_addrs={0: ADDR, 1: SLAVE}),),
        )
        return request.reply(body=encode_route(route, RouteDialect.QUOTED))

    def _pull(self, request: RemotingCommand, key: tuple[str, int]) -> tuple[float, RemotingCommand]:
        held_s, answer = super()._pull(request, key)
        return held_s, replace(answer, ext_fields={**answer.ext_fields, "suggestWhichBrokerId": "1"})


class SlaveWorld(World):
    """A simulated world in which the slave or the master may be down."""

    slave_down = False
    master_down = False

    def _send(
        self,
        member: Member,
        effect: Oneway | Invoke,
        answer: Callable[[Any], None],
        fail: Callable[[Exception], None],
    ) -> None:
        of_nameserver = effect.request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
        down = self.slave_down if effect.addr == SLAVE else self.master_down and not of_nameserver
        if down:
            fail(ConnectionLost("refused", sent=False))
        else:
            super()._send(member, effect, answer, fail)


def test_a_consumer_pulls_from_the_master_again() -> None:
    world = SlaveWorld(1, loss=0.0)
    world.broker = BusyMaster(world)
    history = History(world.rng, failing=0.0)
    wanted = fill(world, 20)
    Member(world, history, 1)
    world.run_until(lambda: set(history.finished) == wanted, 60)
    world.slave_down = True
    world.broker.append("T", 0, b"later")
    world.run_until(lambda: b"later" in history.finished, 20)


def test_a_consumer_returns_to_the_slave_if_its_master_is_the_dead_one() -> None:
    world = SlaveWorld(1, loss=0.0)
    world.broker = BusyMaster(world)
    history = History(world.rng, failing=0.0)
    wanted = fill(world, 20)
    Member(world, history, 1)
    world.run_until(lambda: set(history.finished) == wanted, 60)
    world.master_down = world.slave_down = True
    world.pass_time(5)
    world.slave_down = False  # the slave was down for only 5 s
    world.broker.append("T", 0, b"later")
    world.run_until(lambda: b"later" in history.finished, 20)
