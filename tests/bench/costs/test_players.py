"""The simulated brokers of ``mqbench costs`` send as many registrations as are counted."""

from __future__ import annotations

import asyncio
import contextlib

from routekeeper.bench.costs.players import Command, Plan, Players
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import decode_command
from routekeeper.remoting.frame import FrameDecoder
from tests.waiting import until

BROKERS = 4
SERVERS = 3


def test_broker_that_comes_back_registers_once_with_each_server() -> None:
    async def scenario() -> None:
        registered = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal registered
            decoder = FrameDecoder()
            while data := await reader.read(65_536):
                for frame in decoder.feed(data):
                    request = decode_command(frame)
                    registered += request.code == RequestCode.REGISTER_BROKER
                    writer.write(request.reply().encode())
            writer.close()

        async with contextlib.AsyncExitStack() as stack:
            server = await stack.enter_async_context(await asyncio.start_server(serve, "127.0.0.1", 0))
            host, port = server.sockets[0].getsockname()[:2]
            players = Players(
                Plan(kind="remoting", servers=[f"{host}:{port}"] * SERVERS, watched=[], period_s=1.0)
            )
            await players.bring(Command(do="bring", brokers=BROKERS, topics=10))
            assert registered >= 2 * BROKERS * SERVERS, "the first repetition is not measured"
            await players.begin(Command(do="begin"))
            registered = 0
            await players.come_back(Command(do="come_back"))
            # A broker that has begun to repeat its registration does so within one period.
            await asyncio.sleep(1.5 * players.plan.period_s)
            assert registered == BROKERS * SERVERS
            assert players.counts.registrations == BROKERS * 10
            await players.bring(Command(do="bring", brokers=BROKERS, topics=10))
            await until(lambda: registered >= 3 * BROKERS * SERVERS, "the brokers repeat their registrations")
            await players.clear(Command(do="clear"))

    asyncio.run(scenario())
