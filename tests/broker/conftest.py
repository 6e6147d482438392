"""Fixtures: a raw connection, a nameserver that records requests, a broker process."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pytest

from routekeeper.broker.tables.state import BrokerState
from routekeeper.remoting.codes import HeaderCodec
from routekeeper.remoting.command import RemotingCommand, decode_command
from routekeeper.remoting.frame import FrameDecoder
from routekeeper.remoting.route import TopicConfig
from tests import standstill
from tests.broker.states import state_in

WAIT_S = 60.0


class Wire:
    """A plain socket that sends and receives frames, without the client package."""

    def __init__(self, addr: str) -> None:
        host, _, port = addr.rpartition(":")
        self.socket = socket.create_connection((host.strip("[]"), int(port)), timeout=WAIT_S)
        self._decoder = FrameDecoder()
        self._frames: list[RemotingCommand] = []
        self._opaque = 0
        self.requests: list[RemotingCommand] = []

    def send(self, command: RemotingCommand) -> int:
        self._opaque += 1
        self.socket.sendall(command.with_opaque(self._opaque).encode())
        return self._opaque

    def receive(self, timeout_s: float = WAIT_S) -> RemotingCommand:
        deadline = time.monotonic() + timeout_s
        while not self._frames:
            self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionError("closed by the broker")
            self._frames += map(decode_command, self._decoder.feed(data))
        return self._frames.pop(0)

    def answer(self, opaque: int, timeout_s: float = WAIT_S) -> RemotingCommand:
        while True:
            command = self.receive(timeout_s)
            if command.is_response:
                assert command.opaque == opaque
                return command
            self.requests.append(command)

    def call(
        self,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        codec: HeaderCodec = HeaderCodec.JSON,
        timeout_s: float = WAIT_S,
    ) -> RemotingCommand:
        request = RemotingCommand(code=code, ext_fields=ext or {}, body=body, codec=codec)
        return self.answer(self.send(request), timeout_s)

    def send_message(
        self,
        topic: str,
        body: bytes,
        *,
        queue_id: int = 0,
        properties: str = "",
        code: int = 310,
        **changes: str,
    ) -> RemotingCommand:
        ext = {
            "a": "PG",
            "b": topic,
            "c": "TBW102",
            "d": "4",
            "e": str(queue_id),
            "f": "0",
            "g": "1700000000000",
            "h": "0",
            "i": properties,
            "j": "0",
            "k": "false",
            "m": "true" if code == 320 else "false",
        }
        return self.call(code, ext | changes, body)

    def pull(
        self,
        topic: str,
        offset: int,
        *,
        queue_id: int = 0,
        group: str = "G",
        expression: str = "*",
        sys_flag: int = 4,
        suspend_ms: int = 0,
        **changes: str,
    ) -> int:
        ext = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": str(queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": "32",
            "sysFlag": str(sys_flag),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(suspend_ms),
            "subscription": expression,
            "subVersion": "0",
            "expressionType": "TAG",
        }
        return self.send(RemotingCommand.request(11, ext | changes))

    def close(self) -> None:
        self.socket.close()


class RecordingNameserver:
    """A fake nameserver that records requests and answers them.

    Attributes:
        answering: While this event is not set, no request is answered.
        answers: Answers by request code. A request whose code is not in it is answered with success.
    """

    def __init__(self) -> None:
        self.answering = threading.Event()
        self.answering.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.addr = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.requests: queue.Queue[RemotingCommand] = queue.Queue()
        self.answers: dict[int, RemotingCommand] = {}
        self._sockets: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def expect(self, code: int, *, timeout_s: float = WAIT_S) -> RemotingCommand:
        deadline = time.monotonic() + timeout_s
        while True:
            command = self.requests.get(timeout=max(deadline - time.monotonic(), 0.001))
            if command.code == code:
                return command

    def drop_connections(self) -> None:
        for accepted in self._sockets:
            try:
                accepted.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the connection is closed already

    def close(self) -> None:
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # on some systems, shutdown() of a listening socket fails
        self._listener.close()
        self.answering.set()
        self.drop_connections()
        self._thread.join(WAIT_S)

    def _accept(self) -> None:
        workers = []
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                break
            self._sockets.append(accepted)
            worker = threading.Thread(target=self._serve, args=(accepted,), daemon=True)
            worker.start()
            workers.append(worker)
        for worker in workers:
            worker.join(WAIT_S)

    def _serve(self, accepted: socket.socket) -> None:
        decoder = FrameDecoder()
        with accepted:
            while True:
                try:
                    data = accepted.recv(1 << 16)
                except OSError:
                    return
                if not data:
                    return
                for frame in decoder.feed(data):
                    command = decode_command(frame)
                    self.requests.put(command)
                    self.answering.wait(WAIT_S)
                    canned = self.answers.get(command.code)
                    reply = (
                        command.reply()
                        if canned is None
                        else command.reply(canned.code, ext_fields=canned.ext_fields, body=canned.body)
                    )
                    try:
                        accepted.sendall(reply.encode())
                    except OSError:
                        return


@dataclass
class BrokerProcess:
    """One running ``mqbroker``."""

    process: subprocess.Popen[str]
    addr: str
    ready_line: str
    store: Path
    log: Path
    wires: list[Wire] = field(default_factory=list)

    def wire(self) -> Wire:
        wire = Wire(self.addr)
        self.wires.append(wire)
        return wire

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(WAIT_S)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)


class StartBroker(Protocol):
    def __call__(
        self,
        *flags: str,
        store: Path | None = None,
        namesrv: str = "",
        prefix: tuple[str, ...] = (),
    ) -> BrokerProcess: ...


@contextlib.contextmanager
def brokers_in(folder: Path) -> Iterator[StartBroker]:
    """Yield a function that starts brokers, which end with the context. Their files are in ``folder``."""
    running: list[BrokerProcess] = []

    def start(
        *flags: str, store: Path | None = None, namesrv: str = "", prefix: tuple[str, ...] = ()
    ) -> BrokerProcess:
        store = store or folder / "store"
        log = folder / f"broker-{len(running)}.log"
        name = () if "--name" in flags else ("--name", "broker-a")
        with log.open("w") as stderr:
            process = subprocess.Popen(
                [
                    *prefix,
                    sys.executable,
                    "-m",
                    "routekeeper.broker",
                    "--listen",
                    "127.0.0.1:0",
                    "--store",
                    str(store),
                    *name,
                    "-n",
                    namesrv,
                    *flags,
                ],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        assert process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], WAIT_S)
        line = process.stdout.readline().strip() if readable else ""
        if not line.startswith("mqbroker ready"):
            process.kill()
            process.wait()
            process.stdout.close()
            raise AssertionError(f"not ready: {line!r}\n{log.read_text()}")
        addr = line.split("listen=")[1].split()[0]
        broker = BrokerProcess(process, addr, line, store, log)
        running.append(broker)
        return broker

    try:
        yield start
    finally:
        for broker in running:
            for wire in broker.wires:
                wire.close()
            if broker.process.poll() is None:
                broker.process.kill()
                broker.process.wait(WAIT_S)
            assert broker.process.stdout is not None
            broker.process.stdout.close()


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[StartBroker]:
    """Return a function that starts brokers, which end with the test."""
    with brokers_in(tmp_path) as start:
        yield start


@pytest.fixture
def state(tmp_path: Path) -> Iterator[BrokerState]:
    """Yield the state of a broker with one topic, ``T``. No server serves it."""
    made = state_in(tmp_path, TopicConfig(topic_name="T"))
    yield made
    made.store.log.close()


@dataclass
class Started:
    """A server that was started in a folder, as from a shell. It may not be ready yet.

    Attributes:
        line: First line of its standard output, or empty if the server printed no line in time.
    """

    process: subprocess.Popen[str]
    line: str
    log: Path

    @property
    def addr(self) -> str:
        return self.line.split("listen=")[1].split()[0]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)


class StartIn(Protocol):
    def __call__(self, folder: Path, program: str, *flags: str) -> Started: ...


@pytest.fixture
def start_in(tmp_path: Path) -> Iterator[StartIn]:
    """Return a function that starts servers in a folder with only their flags. They stop with the test."""
    running: list[Started] = []

    def start(folder: Path, program: str, *flags: str) -> Started:
        folder.mkdir(exist_ok=True)
        log = tmp_path / f"{program.rpartition('.')[2]}-{len(running)}.log"
        command = [sys.executable, "-m", program, "--listen", "127.0.0.1:0", *flags]
        environment = {key: text for key, text in os.environ.items() if key != "NAMESRV_ADDR"}
        with log.open("w") as stderr:
            process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True
            )
        assert process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], WAIT_S)
        started = Started(process, process.stdout.readline() if readable else "", log)
        standstill.watch(process.pid)
        running.append(started)
        return started

    yield start
    for started in running:
        if started.process.poll() is None:
            started.process.kill()
            started.process.wait(WAIT_S)
        standstill.forget(started.process.pid)
        assert started.process.stdout is not None
        started.process.stdout.close()


@pytest.fixture
def nameserver() -> Iterator[RecordingNameserver]:
    server = RecordingNameserver()
    yield server
    server.close()


@pytest.fixture
def connect() -> Iterator[Callable[[str], Wire]]:
    wires: list[Wire] = []

    def open_wire(addr: str) -> Wire:
        wires.append(Wire(addr))
        return wires[-1]

    yield open_wire
    for wire in wires:
        wire.close()


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Run one broker for all tests of a module. Each test must use its own topics and groups."""
    with brokers_in(tmp_path_factory.mktemp("shared")) as start:
        broker = start("--set", "messageDelayLevel=1s 2s 1s 1s 1h", "--set", "maxMessageSize=100000")
        yield broker
        for wire in broker.wires:
            wire.close()
        assert broker.process.poll() is None, broker.log.read_text()
        assert broker.stop() == 0
        assert "Traceback" not in broker.log.read_text()


@pytest.fixture
def wire(shared_broker: BrokerProcess) -> Wire:
    return shared_broker.wire()
