"""A process that makes a closed-loop load, with a fixed number of requests in flight on each connection.

The process reads one JSON object from standard input (see :class:`Plan`), and writes one JSON object with the
measured values to standard output. In the first half of the warm-up it decodes every answer and compares the
answer with its request; afterwards it only counts the answers. It reads the server's CPU time from the kernel
at the start and at the end of the measured time.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
import struct
import sys
import time
from typing import Any, Final, cast

import msgspec
import uvloop

from routekeeper.bench.group import cpu_s
from routekeeper.remoting.codes import HeaderCodec, LanguageCode, RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand, decode_command
from routekeeper.remoting.frame import encode_frame, split_frame
from routekeeper.remoting.header import Header, encode_header
from routekeeper.remoting.route import decode_route

_LENGTH: Final = struct.Struct(">I")
#: First request number ("opaque"). All request numbers have nine digits, as in a client that runs for long.
_FIRST_OPAQUE: Final = 100_000_000
_ORDER: Final = 1 << 16
_QUOTED_VERSION: Final = 479
_UNQUOTED_VERSION: Final = 317


class Plan(msgspec.Struct, kw_only=True):
    """Requests to send, and the process whose CPU time is measured.

    Attributes:
        topics: Topics of the queries; the load asks for them in random order.
        mixed: True to use three dialects, distributed over the connections: quoted keys, unquoted keys, and
            quoted keys with binary headers. As with real clients, each connection always uses the same
            dialect.
        pid: Process whose CPU time is read.
        check: True to compare answers of the warm-up with their requests; False for an echo server.
        fresh: True to replace :data:`PLACE` in each request by a number that is different in every request.
    """

    host: str
    port: int
    connections: int
    depth: int
    topics: list[str]
    mixed: bool
    pid: int
    check: bool
    fresh: bool = False
    warm_s: float
    measure_s: float
    seed: int


#: Placeholder in a topic's name for a number that is different in every request, see :attr:`Plan.fresh`.
PLACE: Final = b"0123456789"


class Template(msgspec.Struct):
    """One encoded request in two parts: the bytes before and after the opaque (request number)."""

    before: bytes
    after: bytes
    binary: bool
    topic: str

    def frame(self, opaque: int) -> bytes:
        return self.before + (opaque.to_bytes(4, "big") if self.binary else b"%d" % opaque) + self.after


def template(topic: str, *, version: int, codec: HeaderCodec) -> Template:
    """Return a route query as a Java or Go client of the release ``version`` encodes it."""
    language = LanguageCode.JAVA if version == _QUOTED_VERSION else LanguageCode.GO
    header = Header(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, language.name, version, _FIRST_OPAQUE, 0, None, {"topic": topic}
    )
    data = encode_frame(encode_header(header, codec), codec=codec)
    binary = codec is HeaderCodec.ROCKETMQ
    mark = _FIRST_OPAQUE.to_bytes(4, "big") if binary else b"%d" % _FIRST_OPAQUE
    before, _, after = data.partition(mark)
    return Template(before, after, binary, topic)


def templates(plan: Plan) -> list[list[Template]]:
    """Return one list of requests, in random order, for each dialect.

    A connection sends its list again and again.
    """
    chooser = random.Random(plan.seed)
    kinds = [(_QUOTED_VERSION, HeaderCodec.JSON)]
    if plan.mixed:
        kinds += [(_UNQUOTED_VERSION, HeaderCodec.JSON), (_QUOTED_VERSION, HeaderCodec.ROCKETMQ)]
    pools = [[template(topic, version=v, codec=c) for topic in plan.topics] for v, c in kinds]
    return [[chooser.choice(pool) for _ in range(_ORDER)] for pool in pools]


class Load(asyncio.Protocol):
    """One connection that keeps ``depth`` requests in flight."""

    def __init__(self, run: Run, order: list[Template]) -> None:
        self._run = run
        self._order = order
        self._rest = b""
        # Key: the opaque. Answers may come in a different order than the requests were sent.
        self._expected: dict[int, Template] = {}
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send(self._run.plan.depth)

    def connection_lost(self, error: Exception | None) -> None:
        self._run.fail(f"connection lost: {error}")

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        end = len(data)
        position = count = 0
        unpack = _LENGTH.unpack_from
        while end - position >= 4:
            size = unpack(data, position)[0]
            after = position + 4 + size
            if after > end:
                break
            if self._run.checking:
                self._check(data, position, size)
            position = after
            count += 1
        self._rest = data[position:]
        if count:
            self._run.answered += count
            self._send(count)

    def _send(self, count: int) -> None:
        run = self._run
        order, sent = self._order, run.sent
        batch = []
        for number in range(sent, sent + count):
            asked = order[number & (_ORDER - 1)]
            opaque = _FIRST_OPAQUE + number % 800_000_000
            if run.checking:
                self._expected[opaque] = asked
            frame = asked.frame(opaque)
            batch.append(frame.replace(PLACE, b"%010d" % number) if run.plan.fresh else frame)
        run.sent = sent + count
        assert self._transport is not None
        self._transport.write(b"".join(batch))

    def _check(self, data: bytes, position: int, size: int) -> None:
        answer: RemotingCommand = decode_command(split_frame(data, position, size))
        asked = self._expected.pop(answer.opaque, None)
        if asked is None or answer.code != ResponseCode.SUCCESS:
            self._run.fail(f"answer {answer.code} {answer.remark} to opaque {answer.opaque}")
            return
        names = {queues.broker_name for queues in decode_route(answer.body).queue_datas}
        if len(names) != self._run.brokers.setdefault(asked.topic, len(names)):
            self._run.fail(f"route of {asked.topic} has {len(names)} brokers")


class Run:
    """The state that all connections of one run share."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.orders = templates(plan)
        self.sent = 0
        self.answered = 0
        self.checking = plan.check
        self.brokers: dict[str, int] = {}
        self.failure: str | None = None
        self._failed = asyncio.Event()
        self._stopping = False

    def fail(self, reason: str) -> None:
        if not self._stopping:
            self.failure = self.failure or reason
            self._failed.set()

    async def measure(self) -> dict[str, Any]:
        plan, loop = self.plan, asyncio.get_running_loop()
        transports = [
            (await loop.create_connection(functools.partial(Load, self, order), plan.host, plan.port))[0]
            for order in itertools.islice(itertools.cycle(self.orders), plan.connections)
        ]
        await self._pass(plan.warm_s / 2)
        self.checking = False
        await self._pass(plan.warm_s / 2)
        started, server, own, answered = (
            time.perf_counter(),
            cpu_s(plan.pid),
            time.process_time(),
            self.answered,
        )
        await self._pass(plan.measure_s)
        seconds = time.perf_counter() - started
        figures = {
            "answered": self.answered - answered,
            "seconds": seconds,
            "server_cpu_s": cpu_s(plan.pid) - server,
            "generator_cpu_s": time.process_time() - own,
            "failure": self.failure,
        }
        self._stopping = True
        for transport in transports:
            transport.abort()
        return figures

    async def _pass(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._failed.wait()
        except TimeoutError:
            pass


async def _main(plan: Plan) -> dict[str, Any]:
    return await Run(plan).measure()


if __name__ == "__main__":
    figures = uvloop.run(_main(msgspec.json.decode(sys.stdin.buffer.read(), type=Plan)))
    sys.stdout.buffer.write(msgspec.json.encode(figures))
