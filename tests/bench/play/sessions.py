"""A playground that runs as a separate process. Tests use it over HTTP, in the same way as its page does."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import psutil

from routekeeper.bench.play.model import (
    Broker,
    Change,
    Client,
    Design,
    Done,
    Link,
    Order,
    Server,
    State,
)
from tests.waiting import wait_until

READY: Final = "mqbench play ready http="
#: Time limit in s for the start of a playground's designs on a busy machine.
STARTED_S: Final = 240.0

T = TypeVar("T")


class Session:
    """The process of a playground.

    Attributes:
        addr: ``host:port`` of the playground's page.
        said: Text that the process wrote to stderr. It is empty until the process has ended.
    """

    def __init__(self, *words: str, out: Path, environment: Mapping[str, str] | None = None) -> None:
        self.said = ""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "routekeeper.bench", "play", "--no-open", "--out", str(out), *words],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            # All processes get the test's folder as TMPDIR. Their command lines name files in this folder, so
            # the test can find processes that still run.
            env={**os.environ, "TMPDIR": str(out), **(environment or {})},
        )
        assert self.process.stdout is not None
        self.first_line = self.process.stdout.readline().rstrip("\n")
        self.addr = self.first_line.removeprefix(READY)

    def errors(self) -> str:
        """Return the text that the process has written to stderr so far, without moving the file's position.

        The process uses the same file position. If this method moved it, the process would write its next
        text at a wrong place in the file.
        """
        file = self._errors.fileno()
        return os.pread(file, os.fstat(file).st_size, 0).decode()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait until the process has ended, and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(STARTED_S)
        assert self.process.stdout is not None
        if not self.process.stdout.closed:
            self.said = self.errors()
            self.process.stdout.close()
            self._errors.close()
        return code

    def children(self) -> list[psutil.Process]:
        """Return all descendants of the process."""
        return psutil.Process(self.process.pid).children(recursive=True)

    # -- HTTP requests to the playground ------------------------------------------------------------------

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        # The timeout is long, because a request for other timers is answered only after all designs have
        # restarted.
        connection = http.client.HTTPConnection(self.addr, timeout=STARTED_S)
        try:
            connection.request(method, path, body, dict(headers or {}))
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def state(self) -> State:
        status, body = self.ask("GET", "/v1/state")
        assert status == 200
        return msgspec.json.decode(body, type=State)

    def post(self, path: str, body: object = None) -> tuple[int, bytes]:
        return self.ask("POST", path, msgspec.json.encode(body), {"Content-Type": "application/json"})

    def do(self, order: Order) -> Done:
        status, body = self.post("/v1/actions", order)
        assert status == 200, body
        return msgspec.json.decode(body, type=Done)

    @contextlib.contextmanager
    def events(self, last: str | None = None) -> Iterator[Iterator[tuple[str, str, Any]]]:
        """Open the page's stream of server-sent events, and yield an iterator over (event, id, data)."""
        connection = http.client.HTTPConnection(self.addr, timeout=60)
        connection.request("GET", "/v1/events", headers={} if last is None else {"Last-Event-ID": last})
        reply = connection.getresponse()
        assert reply.status == 200

        def each() -> Iterator[tuple[str, str, Any]]:
            fields: dict[str, str] = {}
            while line := reply.readline():
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name:
                    fields[name] = value
                elif fields:
                    yield fields["event"], fields.get("id", ""), json.loads(fields["data"])
                    fields = {}

        try:
            yield each()
        finally:
            connection.close()

    # -- the state that the page shows --------------------------------------------------------------------

    def design(self, name: str) -> Design:
        return next(each for each in self.state().designs if each.name == name)

    def await_started(self) -> State:
        """Wait until observations after this call show every design whole (see :func:`is_whole`)."""
        since_ms = self.state().at_ms
        lacks: list[str] = []

        def started() -> bool:
            state = self.state()
            for design in state.designs:
                assert design.phase != "failed", design.reason
            lacks[:] = [
                f"{design.name}: {each}" for design in state.designs for each in lacking(design, since_ms)
            ]
            return not lacks

        try:
            wait_until(started, "every design is whole", within_s=STARTED_S, every_s=0.1)
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *lacks, self.errors()])) from None
        return self.state()

    def shows(
        self, name: str, condition: Callable[[Design], T], what: str, *, within_s: float = STARTED_S
    ) -> T:
        """Wait until a condition is true for the shown state of a design, and return the condition's result.

        Args:
            condition: Function of the design's state. Its first true result is returned.
        """
        return wait_until(lambda: condition(self.design(name)), what, within_s=within_s, every_s=0.05)


def is_whole(design: Design, *, since_ms: int = 0) -> bool:
    """Return True if every process runs, every link is open, and every client gets the right answer.

    Args:
        since_ms: Time in ms. Only answers to clients and states of servers that are newer than this time
            count.
    """
    return not lacking(design, since_ms)


def lacking(design: Design, since_ms: int = 0) -> list[str]:
    """Return a text for each process or link that keeps a design from being whole (see :func:`is_whole`)."""
    if design.phase != "running":
        return [f"it is {design.phase}"]
    lacks = [f"{each.name} is {each.life}" for each in design.brokers if each.life != "up"]
    for server in design.servers:
        is_known = (server.read_ms or 0) >= since_ms and len(server.brokers) == len(design.brokers)
        if not (server.life == "up" and server.answers and server.serves and is_known):
            lacks.append(f"at {since_ms} ms and later: {server}")
    lacks += [
        f"at {since_ms} ms and later: {each}"
        for each in design.clients
        if each.last is None or each.last.verdict != "right" or each.last.sent_ms < since_ms
    ]
    lacks += [
        str(each)
        for each in design.links
        if (each.forward, each.back, each.forward_ms, each.back_ms) != ("open", "open", 0, 0)
    ]
    return lacks


def server(design: Design, name: str) -> Server:
    return next(each for each in design.servers if each.name == name)


def broker(design: Design, name: str) -> Broker:
    return next(each for each in design.brokers if each.name == name)


def client(design: Design, name: str) -> Client:
    return next(each for each in design.clients if each.name == name)


def link(design: Design, dialler: str, acceptor: str) -> Link:
    return next(each for each in design.links if (each.dialler, each.acceptor) == (dialler, acceptor))


@contextlib.contextmanager
def session(*words: str, out: Path, environment: Mapping[str, str] | None = None) -> Iterator[Session]:
    """Run a playground. At the end, stop the playground and all processes that it started."""
    made = Session(*words, out=out, environment=environment)
    try:
        yield made
    finally:
        children = made.children() if made.process.poll() is None else []
        made.end()
        _, left = psutil.wait_procs(children, timeout=10)
        for each in left:
            each.kill()


def mend(played: Session) -> None:
    """Heal all links and start all stopped processes, and then wait until every design is whole.

    Do nothing if every design is whole (see :func:`is_whole`).
    """
    # This state shows every fault that a test has caused, because the playground answers a command only after
    # the state shows the command's fault.
    if all(map(is_whole, played.state().designs)):
        return
    played.do(Order(do="heal"))
    for design in played.state().designs:
        down = [each.name for each in design.servers if each.life == "down"]
        down += [each.name for each in design.brokers if each.life == "down"]
        for name in down:
            played.do(Order(do="start", target=name, designs=[design.name]))
    played.await_started()


def at_once(folder: Path) -> int:
    """Rewrite a saved session so that all its changes happen at its start, and return the last change's id.

    A page that replays the session then shows the last state at once.
    """
    file = folder / "session.jsonl"
    begin, *lines = file.read_bytes().splitlines()
    changes = [msgspec.json.decode(line, type=Change) for line in lines]
    early = [msgspec.json.encode(msgspec.structs.replace(change, at_ms=0)) for change in changes]
    file.write_bytes(b"".join(line + b"\n" for line in (begin, *early)))
    return changes[-1].id


def ended(pids: list[psutil.Process], within_s: float = 20.0) -> list[psutil.Process]:
    """Wait at most `within_s` seconds until processes have ended, and return the processes that still run."""
    deadline = time.monotonic() + within_s
    return psutil.wait_procs(pids, timeout=max(0.0, deadline - time.monotonic()))[1]
