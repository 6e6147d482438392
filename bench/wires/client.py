"""A load program's connection to a server on an event loop, in RocketMQ's or ZooKeeper's protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, Literal, TypeVar, cast

from routekeeper.bench.wires.wire import Answer, Conversation, WireError

Kind = Literal["remoting", "jute"]
W = TypeVar("W", bound=Conversation)


class Client(asyncio.Protocol, Generic[W]):
    """One connection that calls ``answered`` for each answer, and ``lost`` when the connection ends."""

    def __init__(
        self,
        wire: W,
        answered: Callable[[Client[W], Answer], None],
        lost: Callable[[Client[W], str], None],
    ) -> None:
        self.wire = wire
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.key = 0
        self.number = 0
        self.sent_at = 0.0
        self.answered = answered
        self._lost = lost
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        hello = self.wire.hello()
        if hello:
            self.send(hello)
        if self.wire.ready:
            self.ready.set_result(None)

    def data_received(self, data: bytes) -> None:
        try:
            answers = self.wire.feed(data)
        except WireError as error:
            self._lost(self, str(error))
            self.abort()
            return
        if self.wire.out:
            self.send(bytes(self.wire.out))
            self.wire.out.clear()
        for answer in answers:
            self.answered(self, answer)
        if not self.ready.done() and self.wire.ready:
            self.ready.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._lost(self, f"connection lost: {error}")
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(f"closed before it was ready: {error}"))
            self.ready.exception()  # Read the error. Otherwise asyncio logs it if no task waits for it.

    def send(self, data: bytes) -> None:
        """Write ``data`` to the connection.

        If the connection is closed, do nothing, because ``lost`` reports closed connections.
        """
        if not self._transport.is_closing():  # uvloop raises an error for a write to a closed transport
            self._transport.write(data)

    def abort(self) -> None:
        self._transport.abort()
