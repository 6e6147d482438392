"""A client reads many queues of one broker, but its connection allows only a few waiting pulls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

import routekeeper.client.aio
from routekeeper.client.operation import Invoke
from routekeeper.client.producer import Message
from routekeeper.client.queue_reader import TopicReader
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import TooManyRequests
from routekeeper.remoting.session import OUTSTANDING_MAX
from tests.client.test_consumer_sim import QUEUES, History, Member, World, fill
from tests.client.test_drivers import config, stored
from tests.waiting import until


def test_waiting_pulls_of_many_queues_leave_a_place_for_a_send(
    new_peer: Callable[..., Any], answers: Any, route_body: Any
) -> None:
    peer = new_peer()
    routes = answers({"T": route_body(queues=OUTSTANDING_MAX + 1, broker_a=peer.addr)})

    def answer(request: RemotingCommand) -> RemotingCommand | None:
        match request.code:
            case RequestCode.PULL_MESSAGE:
                return None  # the broker holds the pull until a message comes
            case RequestCode.SEND_MESSAGE_V2:
                return stored(request)
        found: RemotingCommand = routes(request)
        return found

    peer.answer = answer

    async def main() -> None:
        async with routekeeper.client.aio.Client(config(peer.addr)) as client:
            reader = TopicReader(client.core, "g")
            queues = await client.run(reader.queues("T"))
            pulls = [
                asyncio.create_task(client.run(reader.pull(queue, 0, suspend_s=15.0, timeout_s=600.0)))
                for queue in queues
            ]
            await until(lambda: peer.codes().count(RequestCode.PULL_MESSAGE) >= OUTSTANDING_MAX, "the pulls")
            await client.producer("pg").send(Message(topic="T", body=b"x"))
            for task in pulls:
                assert not task.done()
                task.cancel()
            for task in pulls:
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    asyncio.run(main())


class Crowded(World):
    """A simulated world in which the connection to the broker allows only two waiting pulls."""

    pulls = 0

    def _invoke(
        self, member: Member, effect: Invoke, answer: Callable[[Any], None], fail: Callable[[Exception], None]
    ) -> None:
        if effect.request.code != RequestCode.PULL_MESSAGE:
            super()._invoke(member, effect, answer, fail)
            return
        if self.pulls == 2:
            fail(TooManyRequests("2 pulls wait for answers, the most that are allowed"))
            return
        self.pulls += 1

        def ended(call: Callable[[Any], None]) -> Callable[[Any], None]:
            def end(value: Any) -> None:
                self.pulls -= 1
                call(value)

            return end

        super()._invoke(member, effect, ended(answer), ended(fail))


@pytest.mark.parametrize("seed", range(5))
def test_every_queue_is_read_although_few_pulls_may_wait(seed: int) -> None:
    world = Crowded(seed, loss=0.0)
    history = History(world.rng, failing=0.0)
    wanted = fill(world, 100)
    member = Member(world, history, 1)
    world.run_until(lambda: len(member.consumer.assigned) == QUEUES + 1, 60)
    world.run_until(lambda: set(history.finished) == wanted, 600)
    # The queues are empty now. A new message in any of these queues must still arrive soon.
    for number in range(20):
        body = b"late%d" % number
        world.broker.append("T", number % QUEUES, body)
        world.run_until(lambda body=body: body in history.finished, 60)  # type: ignore[misc]
