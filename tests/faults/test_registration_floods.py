"""Many waiting registrations of one host use little memory in a server and do not delay other hosts."""

from __future__ import annotations

import random
import selectors
import socket

import pytest

from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand, decode_command
from routekeeper.remoting.frame import FrameDecoder
from tests.faults.brokers import read_answer
from tests.faults.test_strangers import MIB, Server, process, server
from tests.registrations import body_of, fields_of, registration

__all__ = ["process", "server"]

pytestmark = pytest.mark.faults

#: Size in bytes of the largest body that a server reads without a permission for large frames. In
#: remoting/transport/intake.py, such a permission is called a "place".
BODY_MAX = 65_000
CONNECTIONS, FRAMES, ROUNDS = 8, 4_096, 2
#: If the server reads nothing for this time (s), the test assumes that it will read nothing more. A shorter
#: time would end the attack too early.
STALLED_S = 0.5


def costly(seed: int) -> bytes:
    """Return a registration of many short names. It fills a frame of 65,000 bytes."""
    names = random.Random(seed)
    topics = [f"{names.randrange(16**7):07x}" for _ in range(12_000)]
    body = body_of(topics, counter=seed, compressed=True)
    assert BODY_MAX / 2 < len(body) < BODY_MAX, len(body)
    fields = fields_of(body, "flood", "10.9.9.9:10911", compressed="true")
    return RemotingCommand.request(RequestCode.REGISTER_BROKER, fields, body).with_opaque(seed).encode()


def flood(server: Server, data: bytes) -> int:
    """Send as much as the server reads on several connections, then close them.

    Return the number of bytes that were sent.
    """
    sent = 0
    with selectors.DefaultSelector() as selector:
        for _ in range(CONNECTIONS):
            link = server.connect()
            link.setblocking(False)
            selector.register(link, selectors.EVENT_WRITE, 0)
        while ready := selector.select(STALLED_S):
            for key, _ in ready:
                taker, at = key.fileobj, key.data
                assert isinstance(taker, socket.socket)
                size = taker.send(memoryview(data)[at % len(data) :])
                sent += size
                if at + size < FRAMES * BODY_MAX:
                    selector.modify(taker, selectors.EVENT_WRITE, at + size)
                else:
                    selector.unregister(taker)
                    taker.close()
        for key in list(selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
    return sent


def test_registrations_that_wait_hold_little_memory(server: Server) -> None:
    data = b"".join(map(costly, range(1, 9)))
    server.check_healthy()
    sent = sum(flood(server, data) for _ in range(ROUNDS))
    assert sent > CONNECTIONS * BODY_MAX
    assert server.peak() < 400 * MIB


class Flood:
    """Connections of one host, each with registrations that take long to handle."""

    def __init__(self, server: Server, connections: int, data: bytes) -> None:
        self._links = [server.connect() for _ in range(connections)]
        self._decoders = [FrameDecoder() for _ in self._links]
        for link in self._links:
            link.sendall(data)
            link.setblocking(False)
        self.handled = 0

    def __enter__(self) -> Flood:
        return self

    def __exit__(self, *_: object) -> None:
        for link in self._links:
            link.close()

    def count(self) -> int:
        """Return the number of this host's registrations that have succeeded so far."""
        for link, decoder in zip(self._links, self._decoders, strict=True):
            try:
                data = link.recv(65536)
            except BlockingIOError:
                continue
            codes = [decode_command(frame).code for frame in decoder.feed(data)]
            self.handled += codes.count(ResponseCode.SUCCESS)
        return self.handled


@pytest.mark.one_core
def test_other_hosts_register_beside_a_host_with_many_connections(server: Server) -> None:
    """While one host floods the server over 200 connections, another host can register.

    The test counts registrations instead of seconds, because a slow machine needs more seconds for each
    registration.

    The server serves hosts in turn: one registration from the flooding host, then one registration from the
    other host. If the server served connections in turn, the other host would wait for one registration of
    each of the 200 connections.
    """
    connections, wanted = 200, 8
    with (
        Flood(server, connections, b"".join(map(costly, (1, 2, 3)))) as strangers,
        socket.create_connection(server.wire, timeout=60, source_address=("127.0.0.2", 0)) as broker,
    ):
        before = strangers.count()
        for counter in range(1, wanted + 1):
            topics = tuple(f"own-{number}" for number in range(10))
            request = registration("own", "127.0.0.2:10911", topics, counter=counter, queues=counter)
            broker.sendall(request.with_opaque(counter).encode())
            answer = read_answer(broker)
            assert (answer.opaque, answer.code, answer.remark) == (counter, ResponseCode.SUCCESS, None)
        assert strangers.count() - before < connections
