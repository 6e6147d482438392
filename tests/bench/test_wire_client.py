"""A load program that sends on an ended connection gets a report of the loss, and no exception."""

from __future__ import annotations

import asyncio

import uvloop

from routekeeper.bench.wires.client import Client
from routekeeper.bench.wires.remoting_wire import RemotingAnswers


def test_sending_on_a_connection_that_has_ended_reports_its_loss_and_raises_nothing() -> None:
    async def main() -> list[str]:
        lost: list[str] = []
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
        _, client = await asyncio.get_running_loop().create_connection(
            lambda: Client(
                RemotingAnswers(), lambda client, answer: None, lambda client, reason: lost.append(reason)
            ),
            *server.sockets[0].getsockname(),
        )
        try:
            client.abort()
            client.send(b"x")
            await asyncio.sleep(0)
            client.send(b"x")
        finally:
            server.close()
        return lost

    assert uvloop.run(main()) == ["connection lost: None"]
