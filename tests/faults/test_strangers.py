"""Input of unknown clients (strangers) must not stop a nameserver, fill its memory or corrupt its state.

The tests cover the port of RocketMQ's protocol, the raft port and HTTP.
"""

from __future__ import annotations

import errno
import json
import pickle
import resource
import socket
import struct
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from routekeeper.bench.ports import HOST
from routekeeper.remoting.addresses import split_address
from routekeeper.remoting.codes import HeaderCodec, RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.fields import RegisterBrokerFields
from routekeeper.remoting.frame import FRAME_SIZE_MAX, encode_frame
from tests.ports import free_port_with
from tests.waiting import wait_until

from . import servers
from .brokers import read_answer

pytestmark = pytest.mark.faults

MIB = 1024 * 1024
DEADLINE_S = 60.0
QUESTION = RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO)


@dataclass(kw_only=True)
class Server:
    """A real nameserver process and its ports."""

    pid: int
    wire: tuple[str, int]
    http: str
    raft: tuple[str, int] | None
    log: Path

    #: Size of the log in bytes when the current test began.
    seen: int = 0

    def rss(self) -> int:
        return servers.memory(self.pid)

    def forget_peak(self) -> None:
        """Reset the peak memory to the present memory, so that :meth:`peak` measures anew."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def peak(self) -> int:
        """Return the peak resident memory in bytes."""
        return servers.memory(self.pid, "VmHWM")

    def log_text(self) -> str:
        """Return the text that the server has logged since the current test began."""
        return self.log.read_bytes()[self.seen :].decode()

    def connect(self, addr: tuple[str, int] | None = None) -> socket.socket:
        return socket.create_connection(addr or self.wire, timeout=DEADLINE_S)

    def ask(self, request: RemotingCommand) -> RemotingCommand:
        with self.connect() as link:
            link.sendall(request.with_opaque(77).encode())
            return read_answer(link)

    def check_healthy(self) -> None:
        answer = self.ask(QUESTION)
        assert (answer.code, answer.opaque) == (ResponseCode.SUCCESS, 77)
        with urllib.request.urlopen(f"http://{self.http}/healthz", timeout=DEADLINE_S) as reply:
            assert reply.status == 200


def closed_by_peer(link: socket.socket) -> bool:
    """Discard the peer's answers, and return True if the peer closes the connection, else False."""
    try:
        while link.recv(65536):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


@pytest.fixture(scope="module", params=["independent", "raft"])
def process(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run one nameserver in each mode.

    All tests of a mode share this nameserver, so no test may leave it damaged.
    """
    raft = (HOST, free_port_with()) if request.param == "raft" else None
    more = () if raft is None else ("--raft", f"{HOST}:{raft[1]}", "--peers", f"{HOST}:{raft[1]}")
    folder = tmp_path_factory.mktemp(request.param)
    with servers.server("nameserver", folder, "--mode", request.param, *more, http=True) as one:
        running = Server(pid=one.pid, wire=split_address(one.listen), http=one.http, raft=raft, log=one.log)
        wait_until(lambda: ready(running), "one member leads itself")
        yield running


#: Mark that runs a test only in independent mode. It is for code that is the same in both modes, because this
#: code runs before a request reaches the mode's own code.
INDEPENDENT = pytest.mark.parametrize("process", ["independent"], indirect=True)


@pytest.fixture
def server(process: Server) -> Iterator[Server]:
    process.seen = process.log.stat().st_size
    yield process
    process.check_healthy()


def ready(server: Server) -> bool:
    try:
        with urllib.request.urlopen(f"http://{server.http}/readyz", timeout=2) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def frame(header: bytes, *, size: int | None = None, word: int | None = None) -> bytes:
    """Return a frame with this header.

    ``size`` and ``word`` may set wrong values in the two length fields.
    """
    return (
        struct.pack(">II", 4 + len(header) if size is None else size, len(header) if word is None else word)
        + header
    )


JSON_105 = b'{"code":105,"flag":0,"language":"JAVA","opaque":1,"version":409,"extFields":{"topic":"T"}}'
BAD_FRAMES = {
    "random": bytes(range(255, 127, -1)) * 4,
    "oversized": struct.pack(">I", FRAME_SIZE_MAX - 3),
    "negative": struct.pack(">i", -5) + b"x" * 64,
    "no-header-word": struct.pack(">I", 2) + b"xx",
    "header-beyond-frame": frame(JSON_105, word=0xFFFFFF),
    "unknown-codec": frame(JSON_105, word=7 << 24 | len(JSON_105)),
    "not-json": frame(b"{code:105"),
    "json-list": frame(b"[105]"),
    "nested-json": frame(b"[" * 100_000 + b"]" * 100_000),
    "code-is-text": frame(b'{"code":"many","opaque":1}'),
    "code-beyond-int32": frame(b'{"code":99999999999,"opaque":1}'),
    "fields-are-a-list": frame(b'{"code":105,"opaque":1,"extFields":[]}'),
    "binary-cut": frame(b"\x00\x69\x00\x01", word=1 << 24 | 4),
    "binary-lengths-lie": frame(struct.pack(">hBhiiii", 105, 0, 409, 1, 0, 0, 2**31 - 1), word=1 << 24 | 25),
    "pickle": pickle.dumps({"type": "append_entries", "term": 10**6}, 2),
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
}


@INDEPENDENT
@pytest.mark.parametrize("name", BAD_FRAMES)
def test_bad_frame_costs_its_connection_only_and_one_log_line(server: Server, name: str) -> None:
    before = server.rss()
    with server.connect() as good:
        with server.connect() as bad:
            # The server answers a request that came before the bad frame.
            bad.sendall(QUESTION.encode() + BAD_FRAMES[name])
            assert read_answer(bad).code == ResponseCode.SUCCESS
            assert closed_by_peer(bad)
        good.sendall(QUESTION.encode())
        assert read_answer(good).code == ResponseCode.SUCCESS
    server.check_healthy()
    wait_until(lambda: "bad frame" in server.log_text(), "a thread of its own writes the log line")
    lines = [line for line in server.log_text().splitlines() if "bad frame" in line]
    assert len(lines) == 1, server.log_text()
    assert "reason=" in lines[0]
    assert "Traceback" not in server.log_text()
    assert server.rss() - before < 40 * MIB


@INDEPENDENT
def test_cut_frame_and_silence_hold_nobody_up(server: Server) -> None:
    whole = QUESTION.encode()
    links = [server.connect() for _ in range(50)]
    for position, link in enumerate(links):
        link.sendall(whole[: 1 + position % (len(whole) - 1)])
    server.check_healthy()
    for link in links:
        link.close()
    server.check_healthy()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"brokerName": "b", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "brokerId": "first"},
        {"brokerName": "b", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "brokerId": str(2**70)},
        {
            "brokerName": "b",
            "brokerAddr": "127.0.0.1:1",
            "clusterName": "c",
            "brokerId": "0",
            "compressed": "7",
        },
    ],
    ids=["missing", "text-for-number", "beyond-int64", "text-for-boolean"],
)
@pytest.mark.parametrize("body", [b"", b"not a body", b'{"topicConfigSerializeWrapper":7}'], ids=len)
def test_wrong_types_in_a_registration_are_answered_or_taken_never_fatal(
    server: Server, fields: dict[str, str], body: bytes
) -> None:
    answer = server.ask(RemotingCommand.request(RequestCode.REGISTER_BROKER, fields, body))
    assert answer.opaque == 77
    if answer.code != ResponseCode.SUCCESS:
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark
    server.check_healthy()
    assert "Traceback" not in server.log_text()


def test_decompression_bomb_is_refused_in_bounded_memory(server: Server) -> None:
    packer = zlib.compressobj(9)
    body = b"".join(packer.compress(bytes(16 * MIB)) for _ in range(32)) + packer.flush()  # 512 MiB of zeros
    assert len(body) < MIB
    fields = RegisterBrokerFields(
        broker_name="bomb", broker_addr="127.0.0.1:1", cluster_name="c", broker_id=0, ha_server_addr="",
        compressed=True,
    )  # fmt: skip
    server.forget_peak()
    before = server.rss()
    answer = server.ask(RemotingCommand.request(RequestCode.REGISTER_BROKER, fields.to_ext(), body))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark
    assert server.peak() - before < 96 * MIB, "the limit's 32 MiB, twice while they are joined"
    server.check_healthy()
    assert "bomb" not in server.ask(QUESTION).body.decode()


@INDEPENDENT
def test_peer_that_never_reads_is_held_back(server: Server) -> None:
    request = RemotingCommand.request(RequestCode.GET_NAMESRV_CONFIG).encode() * 1000
    before = server.rss()
    with server.connect() as deaf:
        deaf.settimeout(1)
        sent = 0
        try:
            while sent < 512 * MIB:
                sent += deaf.send(request)
        except TimeoutError:
            pass
        assert sent < 512 * MIB, "the server took everything from a peer that does not read"
        server.check_healthy()
        assert server.rss() - before < 100 * MIB


@INDEPENDENT
def test_ten_thousand_idle_connections_leave_it_serving(server: Server) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard == resource.RLIM_INFINITY or hard > 10_500, f"this machine allows only {hard} open files"
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    before = server.rss()
    idle: list[socket.socket] = []
    try:
        for _ in range(10_000):
            idle.append(server.connect())
        server.check_healthy()
        assert server.rss() - before < 300 * MIB
        for link in (idle[0], idle[5_000], idle[-1]):
            link.sendall(QUESTION.encode())
            assert read_answer(link).code == ResponseCode.SUCCESS
    finally:
        for link in idle:
            link.close()
    server.check_healthy()


@INDEPENDENT
def test_thousands_of_half_http_requests_do_not_shut_health_out(server: Server) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    host, port = server.http.rsplit(":", 1)
    half: list[socket.socket] = []
    try:
        for _ in range(2_200):
            half.append(server.connect((host, int(port))))
            half[-1].sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ")
        for path in ("healthz", "readyz", "metrics"):
            with urllib.request.urlopen(f"http://{server.http}/{path}", timeout=5) as reply:
                assert reply.status == 200
        wait_until(lambda: closed_by_peer(half[-1]), "half a header has its time only")
    finally:
        for link in half:
            link.close()
    server.check_healthy()
    assert server.log_text().count("http connections are all taken") <= 3


def send_all_and_finish(sock: socket.socket, data: bytes) -> None:
    """Send the data, then shut down the sending direction.

    If the peer closes the connection meanwhile, ignore the error.
    """
    try:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
    except OSError as error:
        # If the peer resets the connection between the two calls, the error is ENOTCONN. Python does not
        # raise it as a ConnectionError.
        if not isinstance(error, ConnectionError) and error.errno != errno.ENOTCONN:
            raise


RAFT_BYTES = {
    # The other bad frames are left out. A member reads each of them as a size and a content, like "not-json".
    **{name: BAD_FRAMES[name] for name in ("random", "oversized", "negative", "no-header-word", "not-json")},
    **{name: BAD_FRAMES[name] for name in ("pickle", "http")},
    "own-pickle": struct.pack(">I", 64) + pickle.dumps(("status",), 2).ljust(64, b"."),
    "readonly-hello": struct.pack(">I", 8) + b"readonly",
    "flood": b"\x00\x00\x00\x10" + b"A" * 8 * MIB,
}


@pytest.mark.parametrize("process", ["raft"], indirect=True)
@pytest.mark.parametrize("name", RAFT_BYTES)
def test_stranger_on_the_raft_port_learns_and_changes_nothing(server: Server, name: str) -> None:
    before, rss = raft_status(server), server.rss()
    with server.connect(server.raft) as stranger:
        send_all_and_finish(stranger, RAFT_BYTES[name])
        assert closed_by_peer(stranger)
    server.check_healthy()
    after = raft_status(server)
    stalled = "journal stalls" in server.log_text()  # then the leader stepped down, and its term changed
    for key in ("members",) if stalled else ("term", "role", "leader", "members"):
        assert after[key] == before[key]
    assert server.rss() - rss < 40 * MIB
    assert "Traceback" not in server.log_text()


def raft_status(server: Server) -> dict[str, object]:
    with urllib.request.urlopen(f"http://{server.http}/v1/status", timeout=DEADLINE_S) as reply:
        status: dict[str, object] = json.load(reply)
    return status


HTTP_BYTES = {
    "random": bytes(range(255, 127, -1)) * 4,
    "long-line": b"GET /" + b"a" * MIB + b" HTTP/1.1\r\n\r\n",
    "long-header": b"GET / HTTP/1.1\r\nX: " + b"a" * MIB + b"\r\n\r\n",
    "many-headers": b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 100_000 + b"\r\n",
    "huge-body": b"POST /v1/topics HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n" + b"x" * MIB,
    "remoting-frame": encode_frame(JSON_105, codec=HeaderCodec.JSON),
    "cut": b"GET /v1/top",
}


@INDEPENDENT
@pytest.mark.parametrize("name", HTTP_BYTES)
def test_bad_http_costs_its_connection_only(server: Server, name: str) -> None:
    host, port = server.http.rsplit(":", 1)
    before = server.rss()
    with server.connect((host, int(port))) as bad:
        send_all_and_finish(bad, HTTP_BYTES[name])
        assert closed_by_peer(bad)
    server.check_healthy()
    assert server.rss() - before < 40 * MIB
    assert "Traceback" not in server.log_text()
