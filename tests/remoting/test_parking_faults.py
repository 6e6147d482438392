"""Tests of a faulty connection among those that wait for the same read barrier.

The other connections still get their answers.
"""

from __future__ import annotations

import asyncio

import pytest

from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.command import RemotingCommand, decode_command
from routekeeper.remoting.frame import FrameDecoder
from routekeeper.remoting.transport.secured import Secured
from routekeeper.remoting.transport.server import RemotingServer
from tests import tls
from tests.remoting.servers import serving
from tests.remoting.test_parking import WAITS, Gate, Peer
from tests.remoting.test_tls_port import Records
from tests.waiting import until

#: A TLS record with bytes that do not decrypt.
BROKEN_RECORD = b"\x17\x03\x03\x00\x20" + bytes(32)
#: Number of the request at which :class:`Answering` fails.
FAULTY = 13


class Answering(Gate):
    """A gate that answers requests itself; it fails at the request with the opaque :data:`FAULTY`."""

    def whole(self, data: bytes) -> bytes | int | None:
        if self.number:
            return self.number
        (frame,) = FrameDecoder().feed(data)
        request = decode_command(frame)
        if request.opaque == FAULTY:
            raise RuntimeError("a fault of the fast path")
        return request.reply(ResponseCode.SUCCESS, remark="served").encode()


async def connect(listen: str, *, secured: bool = False) -> Peer:
    host, _, port = listen.rpartition(":")
    context = tls.client_context() if secured else None
    return Peer(*await asyncio.open_connection(host, int(port), ssl=context))


async def waiting(server: RemotingServer, count: int) -> None:
    """Wait until ``count`` connections wait for read barrier 1."""
    await until(lambda: len(server.parked.get(1, ())) == count)


async def test_broken_tls_record_of_one_client_costs_no_other_client_its_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = Answering()
    gate.number = 1
    async with serving({}, fast_path=lambda: gate, tls=tls.port_context()) as (server, listen):
        tell = server.tls.say

        def failed(connection: Secured, reason: str) -> None:
            # The barrier passes after the server has begun to close the connection, and before the event loop
            # reports the end of the connection.
            asyncio.get_running_loop().call_soon(gate.open, server, 1)
            tell(connection, reason)

        server.tls.say = failed
        broken, records = await tls.Peer.connect(listen), Records(tls.client_context())
        broken.writer.write(await records.shake(broken))
        broken.writer.write(
            records.seal(RemotingCommand.request(WAITS, {"topic": "T"}).with_opaque(1).encode())
        )
        await waiting(server, 1)
        other = await connect(listen, secured=True)
        other.send((WAITS, 2))
        await waiting(server, 2)
        broken.writer.write(BROKEN_RECORD)
        assert await other.answers(1) == [(2, "served")]
        assert not server.parked
        await other.close()
        broken.close()
    assert not [record for record in caplog.records if record.exc_info]


async def test_fault_while_one_client_is_answered_costs_no_other_client_its_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = Answering()
    gate.number = 1
    async with serving({}, fast_path=lambda: gate) as (server, listen):
        faulty, other = await connect(listen), await connect(listen)
        faulty.send((WAITS, FAULTY))
        await waiting(server, 1)
        other.send((WAITS, 2))
        await waiting(server, 2)
        gate.open(server, 1)
        assert await other.answers(1) == [(2, "served")]
        await until(lambda: len(server.connections) == 1, "the faulty connection is closed")
        await faulty.close()
        await other.close()
    (record,) = [record for record in caplog.records if record.exc_info]
    assert "parked requests were not answered" in record.getMessage()
