"""Queues without a stored offset: a broker answers 0 while a queue is new, and later "not found"."""

from __future__ import annotations

from dataclasses import dataclass

from routekeeper.client.config import ConsumeFrom
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from tests.client.test_consumer_sim import QUEUES, Broker, History, Member, World, fill


@dataclass
class AgeingBroker(Broker):
    """A broker whose queues count as new until the test sets ``young`` to False."""

    young: bool = True

    def serve(self, member: Member, request: RemotingCommand) -> tuple[float, RemotingCommand]:
        answer = super().serve(member, request)
        if request.code == RequestCode.QUERY_CONSUMER_OFFSET and answer[1].code and self.young:
            return 0, request.reply(ext_fields={"offset": "0"})
        return answer


def test_a_group_that_was_killed_before_its_first_message_skips_nothing() -> None:
    world = World(1, loss=0.0)
    broker = world.broker = AgeingBroker(world)
    history = History(world.rng, failing=0.0)
    first = Member(world, history, 1, consume_from=ConsumeFrom.LAST_OFFSET)
    world.run_until(lambda: len(first.consumer.assigned) == QUEUES + 1, 60)
    world.pass_time(2 * first.core.config.offset_persist_s)
    first.kill()
    wanted = fill(world, 40)
    broker.young = False
    Member(world, history, 2, consume_from=ConsumeFrom.LAST_OFFSET)
    world.run_until(lambda: set(history.finished) == wanted, 60)
