"""Servers for tests of the client: scripted servers on sockets, and our own servers as processes."""

from __future__ import annotations

import asyncio
import base64
import http.server
import json
import random
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import routekeeper.client.aio
import routekeeper.client.blocking
from routekeeper.client.config import ClientConfig
from routekeeper.client.consumer import ConsumeResult
from routekeeper.client.core import ClientCore
from routekeeper.client.operation import Operation
from routekeeper.client.queue_reader import ReceivedMessage
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand, decode_command
from routekeeper.remoting.errors import RemotingError
from routekeeper.remoting.frame import FrameDecoder
from routekeeper.remoting.route import (
    BrokerData,
    QueueData,
    RouteDialect,
    TopicConfig,
    TopicRouteData,
    encode_route,
)
from routekeeper.remoting.transport.server import Connection, Handler, RemotingServer
from tests.waiting import wait_until

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
Answer = RemotingCommand | Awaitable[RemotingCommand | None] | None


class _AnyCode(Mapping[int, Handler]):
    """A handler table that has the same handler for every code."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    def __getitem__(self, code: int) -> Handler:
        return self._handler

    def __iter__(self) -> Iterator[int]:
        return iter(())

    def __len__(self) -> int:
        return 0


class Peer:
    """A server on a real socket, whose answers the test decides.

    The function ``answer`` returns the answer to a request, or None for no answer. If the code of a request
    is in ``hang_up``, the server closes the connection instead of answering.
    """

    def __init__(self, answer: Callable[[RemotingCommand], Answer] | None = None) -> None:
        self.answer = answer or (lambda request: request.reply())
        self.hang_up: set[int] = set()
        self.hang_up_once: set[int] = set()
        self.requests: list[RemotingCommand] = []
        self._member: Connection | None = None
        self._addr: Future[str] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        self.addr = self._addr.result(timeout=10)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            server = RemotingServer(handlers=_AnyCode(self._handle), group=group)
            self._addr.set_result(await server.start("127.0.0.1", 0))
            await self._stop.wait()
            await server.close(drain_s=0)

    def _handle(self, connection: Connection, request: RemotingCommand) -> Answer:
        if request.code == RequestCode.HEART_BEAT:
            self._member = connection
        self.requests.append(request)
        if request.code in self.hang_up | self.hang_up_once:
            self.hang_up_once.discard(request.code)
            connection.abort()
            return None
        return self.answer(request)

    def push(self, request: RemotingCommand) -> None:
        """Send a request to the client whose heartbeat came last, over the heartbeat's connection."""
        assert self._loop is not None
        assert self._member is not None
        self._loop.call_soon_threadsafe(self._member.notify, request)

    def ask(self, request: RemotingCommand) -> RemotingCommand:
        """Send a request to the client whose heartbeat came last, and return the client's answer."""
        assert self._loop is not None
        assert self._member is not None
        answer = asyncio.run_coroutine_threadsafe(self._member.invoke(request, timeout_s=20), self._loop)
        return answer.result(timeout=30)

    def codes(self) -> list[int]:
        return [request.code for request in self.requests]

    def close(self) -> None:
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=10)


@pytest.fixture
def new_peer() -> Iterator[Callable[..., Peer]]:
    """Yield a function that starts scripted servers. The servers end with the test."""
    peers: list[Peer] = []

    def make(answer: Callable[[RemotingCommand], Answer] | None = None) -> Peer:
        peers.append(Peer(answer))
        return peers[-1]

    yield make
    for peer in peers:
        peer.close()


@pytest.fixture
def route_body() -> Callable[..., bytes]:
    """Return a function that encodes simple routes.

    An argument ``broker_name=addr`` adds a broker with the address of its master.
    """

    def encode(queues: int = 4, perm: int = 6, **brokers: str) -> bytes:
        names = {name.replace("_", "-"): addr for name, addr in brokers.items()}
        route = TopicRouteData(
            queue_datas=tuple(
                QueueData(broker_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
                for name in names
            ),
            broker_datas=tuple(
                BrokerData(cluster="C", broker_name=name, broker_addrs={0: addr})
                for name, addr in names.items()
            ),
        )
        return encode_route(route, RouteDialect.UNQUOTED)

    return encode


@pytest.fixture
def peer(
    new_peer: Callable[..., Peer], answers: Callable[..., Any], route_body: Callable[..., bytes]
) -> Peer:
    """Return a scripted server that is nameserver and broker of topic T, and answers success to requests."""
    made = new_peer()
    made.answer = answers({"T": route_body(broker_a=made.addr)})
    return made


Runner = Callable[..., Any]


@pytest.fixture(params=["aio", "blocking"])
def run(request: pytest.FixtureRequest) -> Runner:
    """Return ``run(config, build)``, which runs the operation that ``build(core)`` makes.

    Each test runs twice: with the blocking client and with the asyncio client.
    """

    def blocking(config: ClientConfig, build: Callable[[ClientCore], Operation[Any]]) -> Any:
        started = routekeeper.client.blocking.Client(config, rng=random.Random(1))
        try:
            return started.run(build(started.core))
        finally:
            started.close()

    def aio(config: ClientConfig, build: Callable[[ClientCore], Operation[Any]]) -> Any:
        async def main() -> Any:
            async with routekeeper.client.aio.Client(config, rng=random.Random(1)) as started:
                return await started.run(build(started.core))

        # The test must get the operation's own exception, not the ExceptionGroup of a task group.
        return asyncio.run(main())

    return aio if request.param == "aio" else blocking


@pytest.fixture
def eventually() -> Callable[..., None]:
    """Return ``eventually(condition, what)``: a function that waits for a condition, up to a deadline."""
    return wait_until


@pytest.fixture
def http_page() -> Iterator[Callable[[str], str]]:
    """Yield ``http_page(text)``: a function that serves a page with this text, and returns its address."""
    servers: list[http.server.ThreadingHTTPServer] = []

    def serve(text: str) -> str:
        class Page(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/nsaddr"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


class Golden:
    """Recorded answers of Apache's servers to Apache's mqadmin, replayed to our mqadmin."""

    def __init__(self, release: str) -> None:
        self._answers: dict[tuple[str, int, str], RemotingCommand] = {}
        for line in (GOLDEN / "frames" / f"{release}-json.jsonl").read_text().splitlines():
            exchange = json.loads(line)
            if exchange["response"] is None:
                continue
            request, response = (
                decode_command(next(FrameDecoder().feed(base64.b64decode(exchange[side]))))
                for side in ("request", "response")
            )
            key = (exchange["receiver"], request.code, _subject(request))
            for known in (key, (exchange["receiver"], request.code, "")):
                former = self._answers.get(known)
                if former is None or (former.code != 0 and response.code == 0):
                    self._answers[known] = response

    def answer(self, request: RemotingCommand, *roles: str) -> RemotingCommand:
        """Return Apache's recorded answer to a request with the same code, topic, queue and offset.

        If there is none, return Apache's answer to any request with the same code.
        """
        for role in roles:
            for subject in (_subject(request), ""):
                found = self._answers.get((role, request.code, subject))
                if found is not None:
                    return request.reply(
                        found.code, remark=found.remark, ext_fields=found.ext_fields, body=found.body
                    )
        raise AssertionError(f"no recorded answer to {request.code} {dict(request.ext_fields)}")


def _subject(request: RemotingCommand) -> str:
    topic = request.ext_fields.get("topic") or request.ext_fields.get("brokerName") or ""
    return f"{topic}/{request.ext_fields.get('queueId', '')}/{request.ext_fields.get('queueOffset', '')}"


@pytest.fixture(scope="session")
def golden_5() -> Golden:
    return Golden("5.3.3")


class Process:
    """One of our own servers as a process. It prints ``addr`` and ``facts`` in one line when it is ready."""

    def __init__(self, module: str, *args: str, log: Path) -> None:
        self._log = log.open("wb")
        self.popen = subprocess.Popen(
            [sys.executable, "-m", module, *args], stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        self.facts = dict(part.split("=", 1) for part in line.split() if "=" in part)
        if "listen" not in self.facts:
            self.stop()
            pytest.fail(f"{module} did not start: {line!r} {log.read_text()[-2000:]}")
        self.addr = self.facts["listen"]

    def stop(self) -> None:
        self.popen.terminate()
        try:
            self.popen.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        assert self.popen.stdout is not None
        self.popen.stdout.close()
        self._log.close()


def is_routed(client: routekeeper.client.blocking.Client, topic: str) -> bool:
    """Return True if a nameserver has a route of the topic."""
    try:
        return bool(client.route(topic).queue_datas)
    except RemotingError:
        return False


def create_topic(
    client: routekeeper.client.blocking.Client, broker: Process, topic: str, *, queues: int = 1
) -> None:
    """Create a topic at the broker, and wait until a nameserver has the topic's route."""
    config = TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues)
    client.run(client.admin.create_topic(broker.addr, config))
    wait_until(lambda: is_routed(client, topic), f"the route of {topic}")


class Sink:
    """A listener that records its messages, and refuses every message with the body ``refused``."""

    def __init__(self, refused: bytes = b"") -> None:
        self.messages: list[ReceivedMessage] = []
        self._refused = refused
        self._lock = threading.Lock()

    def __call__(self, batch: Sequence[ReceivedMessage]) -> ConsumeResult:
        with self._lock:
            self.messages += batch
        if any(message.body == self._refused for message in batch):
            return ConsumeResult.RECONSUME_LATER
        return ConsumeResult.SUCCESS

    def bodies(self) -> list[bytes]:
        with self._lock:
            return [message.body for message in self.messages]


@pytest.fixture(scope="module")
def nameserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """Run our nameserver in independent mode."""
    folder = tmp_path_factory.mktemp("nameserver")
    process = Process(
        "routekeeper.nameserver",
        "--listen",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
        "--data",
        str(folder / "data"),
        log=folder / "log",
    )
    yield process
    process.stop()


@pytest.fixture(scope="module")
def broker(nameserver: Process, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """Run our broker, registered with :func:`nameserver`."""
    folder = tmp_path_factory.mktemp("broker")
    process = Process(
        "routekeeper.broker",
        "-n",
        nameserver.addr,
        "--listen",
        "127.0.0.1:0",
        "--name",
        "broker-a",
        "--store",
        str(folder / "store"),
        "--set",
        "messageDelayLevel=1s 1s 1s 2s",  # level 3, which delays a first retry, is 1 s instead of 10 s
        log=folder / "log",
    )
    with routekeeper.client.blocking.Client(ClientConfig(nameservers=(nameserver.addr,))) as started:
        wait_until(
            lambda: "broker-a" in started.run(started.admin.cluster_info()).broker_addr_table, "it registers"
        )
    yield process
    process.stop()


@pytest.fixture
def answers() -> Callable[..., Callable[[RemotingCommand], Answer]]:
    """Return ``answers(routes)``, which makes a script for :class:`Peer`.

    The script answers route requests from ``routes`` by topic, and all other requests with success.
    """

    def script(routes: Mapping[str, bytes]) -> Callable[[RemotingCommand], Answer]:
        def answer(request: RemotingCommand) -> Answer:
            if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
                body = routes.get(request.ext_fields["topic"])
                return (
                    request.reply(17, remark="No topic route info")
                    if body is None
                    else request.reply(body=body)
                )
            return request.reply()

        return answer

    return script
