"""The bystander process: it asks each server for a route that never changes, and measures each wait.

The process runs during a storm, in which many brokers register or leave at the same time. It shows how long
other clients wait for answers.

- Commands: the process reads a :class:`Plan` from standard input, and then the lines ``start`` and ``stop``.
  It answers each of the two lines with one line. The answer to ``stop`` has the samples as JSON.
- Requests: there is one connection to each server, with one request in flight. The next request follows
  :data:`PAUSE_NS` after an answer. So a server may have paused up to ``PAUSE_NS`` longer than the sample
  shows.
- Delays of this process: on a machine with few cores, the process may have to wait for the CPU. It may then
  read an answer too late. A round of its loop normally takes at most :data:`_ROUND_NS`. Longer rounds add to
  the sample's ``own_ns``. The server's own delay is at least ``wait_ns - own_ns``.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from routekeeper.bench.storm.frames import OPAQUE, query_frame
from routekeeper.bench.storm.sessions import PING_S, Session
from routekeeper.bench.wires.client import Kind
from routekeeper.bench.wires.remoting_wire import RemotingAnswers
from routekeeper.bench.wires.wire import WireError

PAUSE_NS: Final = 2_000_000
_ROUND_MS: Final = 1
#: Longest normal round of the loop in ns. It consists of the time limit of the poll, and of some time for the
#: kernel and the loop.
_ROUND_NS: Final = 1_500_000
_CONNECT_AGAIN_NS: Final = 50_000_000
_CONNECT_S: Final = 1.0
#: Longest wait in ns for answers after ``stop``. A request that has no answer then becomes a sample, too.
_LAST_NS: Final = 5_000_000_000
#: Priority of this process, if the machine allows it. With a lower priority, this process would often wait
#: for the CPU, and this would look like a delay of the servers.
_PRIORITY: Final = -10


class Plan(msgspec.Struct, kw_only=True):
    """The servers to ask, and the routes to ask for.

    Attributes:
        topics: For nameservers: topics to ask for, in turn.
        paths: For ZooKeeper: nodes to read, in turn.
        expected: Text that every right answer contains.
    """

    kind: Kind
    servers: list[str]
    topics: list[str] = []
    paths: list[str] = []
    expected: str


class Sample(msgspec.Struct, array_like=True):
    """One query and its outcome.

    Attributes:
        outcome: ``ok``, ``refused``, ``wrong`` or ``lost``; ``unanswered`` if no answer came before the end.
    """

    server: int
    sent_ns: int
    wait_ns: int
    own_ns: int
    outcome: str


class Line:
    """The connection to one server."""

    def __init__(self, asking: Asking, server: int) -> None:
        self._asking = asking
        self._server = server
        self._turn = 0
        self._socket: socket.socket | None = None
        self._wire: Any = None
        self._sent_ns = 0
        self._own_ns = 0
        self.waiting = False
        self._due_ns = 0
        self._ping_ns = 0

    def step(self, now_ns: int) -> None:
        """Do the work that is due now: connect, send a query, or send a ping that keeps the session."""
        if self._socket is None:
            if now_ns >= self._due_ns:
                self._connect(now_ns)
            return
        if self._asking.measuring and self._wire.ready and not self.waiting and now_ns >= self._due_ns:
            request = self._asking.request(self._wire, self._turn)
            self._turn += 1
            self.waiting = True
            self._own_ns = self._asking.own_ns
            self._sent_ns = time.monotonic_ns()
            self._send(request)
        elif isinstance(self._wire, Session) and self._wire.ready and now_ns >= self._ping_ns:
            self._ping_ns = now_ns + round(PING_S * 1e9)
            self._send(self._wire.ping())

    def received(self) -> None:
        assert self._socket is not None, "only an open connection is polled"
        try:
            data = self._socket.recv(1 << 20)
            now_ns = time.monotonic_ns()
            answers = self._wire.feed(data) if data else None
        except BlockingIOError:
            return
        except (OSError, WireError):
            answers = None
        if answers is None:
            self._lose()
            return
        for answer in answers:
            if self.waiting and answer.tag == self._asking.tag(self._wire):
                right = answer.error is None and self._asking.expected in answer.body
                self.end("ok" if right else "wrong" if answer.error is None else "refused", now_ns)

    def end(self, outcome: str, now_ns: int) -> None:
        """If a request is in flight, record its sample with this outcome."""
        if self.waiting:
            self.waiting = False
            self._due_ns = now_ns + PAUSE_NS
            # The answer may have arrived just after the poll returned. The time since then may be a delay of
            # this process, not of the server.
            own_ns = self._asking.own_ns - self._own_ns + now_ns - self._asking.polled_ns
            self._asking.samples.append(
                Sample(self._server, self._sent_ns, now_ns - self._sent_ns, own_ns, outcome)
            )

    def _connect(self, now_ns: int) -> None:
        host, _, port = self._asking.plan.servers[self._server].rpartition(":")
        try:
            self._socket = socket.create_connection((host, int(port)), timeout=_CONNECT_S)
        except OSError:
            self._due_ns = now_ns + _CONNECT_AGAIN_NS
            return
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._wire = Session() if self._asking.plan.kind == "jute" else RemotingAnswers()
        self._asking.poller.register(self._socket.fileno(), select.POLLIN)
        self._asking.by_number[self._socket.fileno()] = self
        hello = self._wire.hello()
        if hello:
            self._send(hello)

    def _send(self, data: bytes) -> None:
        assert self._socket is not None, "sent over an open connection only"
        try:
            # The socket's buffer takes the whole request: it has some hundred bytes, and no other request is
            # in flight.
            self._socket.send(data)
        except OSError:
            self._lose()

    def _lose(self) -> None:
        assert self._socket is not None, "an open connection is lost"
        number = self._socket.fileno()
        self._asking.poller.unregister(number)
        del self._asking.by_number[number]
        self._socket.close()
        self._socket = None
        now_ns = time.monotonic_ns()
        self.end("lost", now_ns)
        self._due_ns = now_ns + _CONNECT_AGAIN_NS


class Asking:
    """The connections to all servers, and the loop that serves them.

    Attributes:
        own_ns: Sum of the times, until now, in which this process may have overlooked an answer.
        polled_ns: Instant at which the poll last returned.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.expected = plan.expected.encode()
        self.poller = select.poll()
        self.by_number: dict[int, Line] = {}
        self.samples: list[Sample] = []
        self.own_ns = self.polled_ns = 0
        self.measuring = False
        if plan.kind == "jute":
            paths = plan.paths
            self.request: Callable[[Any, int], bytes] = lambda wire, turn: wire.get(paths[turn % len(paths)])
            self.tag: Callable[[Any], int] = lambda wire: int(wire.tag)
        else:
            frames = [query_frame(topic) for topic in plan.topics]
            self.request = lambda wire, turn: frames[turn % len(frames)]
            self.tag = lambda wire: OPAQUE

    def run(self) -> None:
        lines = [Line(self, server) for server in range(len(self.plan.servers))]
        commands = sys.stdin.fileno()
        self.poller.register(commands, select.POLLIN)
        ends_ns = 0
        before_ns = time.monotonic_ns()
        while True:
            for line in lines:
                line.step(before_ns)
            ready = self.poller.poll(_ROUND_MS)
            now_ns = self.polled_ns = time.monotonic_ns()
            self.own_ns += max(0, now_ns - before_ns - _ROUND_NS)
            for number, _ in ready:
                if number in self.by_number:
                    self.by_number[number].received()
                elif number == commands:
                    word = os.read(commands, 64).strip()
                    if not word:
                        return
                    if word == b"start":
                        self.measuring = True
                        _answer(b"{}")
                    else:
                        self.measuring = False
                        ends_ns = now_ns + _LAST_NS
            if ends_ns and (now_ns >= ends_ns or not any(line.waiting for line in lines)):
                ends_ns = 0
                for line in lines:
                    line.end("unanswered", now_ns)
                samples, self.samples = self.samples, []
                _answer(msgspec.json.encode(samples))
                gc.collect()
            before_ns = time.monotonic_ns()
            self.own_ns += before_ns - now_ns


def _first_line(number: int) -> bytes:
    """Read one line, and no further byte.

    Further bytes must stay unread: the poller does not report bytes that were read already.
    """
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(number, 1)):
        line += byte
    return line


def _answer(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
    plan = msgspec.json.decode(_first_line(sys.stdin.fileno()), type=Plan)
    gc.disable()
    Asking(plan).run()


if __name__ == "__main__":
    main()
