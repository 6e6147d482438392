"""HTTP servers that answer with odd JSON, too many bytes, or very slowly: mqadmin prints one error line."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from routekeeper.client.fetch import http_fetch
from routekeeper.client.operation import Fetch
from tests.client.mqadmin import mqadmin

Send = Callable[[socket.socket, str], None]


@pytest.fixture
def stranger() -> Iterator[Callable[[Send], str]]:
    """Yield ``stranger(send)``: a function that starts a server and returns the server's address.

    The server calls ``send`` to answer each request.
    """
    listeners: list[socket.socket] = []
    ended = threading.Event()

    def serve(send: Send) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def accept() -> None:
            while not ended.is_set():
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

        def answer(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                head = b""
                while b"\r\n\r\n" not in head:
                    if not (more := connection.recv(65536)):
                        return
                    head += more
                send(connection, head.split()[1].decode().partition("?")[0])
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    # Read until the client closes: closing with unread bytes resets the connection, and the
                    # client loses the answer.
                    pass

        threading.Thread(target=accept, daemon=True).start()
        return f"127.0.0.1:{listener.getsockname()[1]}"

    yield serve
    ended.set()
    for listener in listeners:
        listener.close()


def whole(body: bytes, status: int = 200) -> Send:
    def send(connection: socket.socket, path: str) -> None:
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode() + body)

    return send


def by_path(answers: dict[str, bytes]) -> Send:
    return lambda connection, path: whole(answers[path])(connection, path)


STATUS = (
    b'{"mode":"raft","me":"a:1","role":"leader","term":1,"leader":"a:1","applied_index":1,"commit_index":1,'
    b'"members":["a:1"],"linked":[],"learners":[],"reads_ready":true,"writes_ready":true,"last_contact_ms":1}'
)
ODD = {
    "deep": b"[" * 100_000,
    "deep object": b'{"a":' * 100_000,
    "list": b"[1,2]",
    "null": b"null",
    "nothing": b"",
    "no text": b"\xff\xfe\x00",
    "cut": STATUS[:40],
    "empty": b"{}",
    "NaN": STATUS.replace(b'"term":1', b'"term":NaN'),
    "far number": STATUS.replace(b'"term":1', b'"term":1e999'),
    "many digits": STATUS.replace(b'"term":1', b'"term":' + b"9" * 5000),
    "numbers for texts": STATUS.replace(b'"a:1"', b"[1]"),
    "text for number": STATUS.replace(b'"applied_index":1', b'"applied_index":"x"'),
    "text for list": STATUS.replace(b'"members":["a:1"]', b'"members":"a:1"'),
    "null for list": STATUS.replace(b'"linked":[]', b'"linked":null'),
    "object in list": STATUS.replace(b'["a:1"]', b'[{"a":1}]'),
    "twice": b'{"mode":"raft","mode":[1],"me":2,"me":{}}',
}
COMMANDS = {
    "raftStatus": (),
    "explainRoute": ("-t", "T"),
    "routeDiff": (),
    "addMember": ("-m", "a:1"),
    "removeMember": ("-m", "a:1"),
    "transferLeader": (),
    "snapshotSave": (),
    "snapshotRestore": ("-f", "IMAGE"),
}
#: Odd answers to a subcommand that changes data. They still mean success, because the subcommand needs only
#: the HTTP status and any valid JSON object.
OBJECTS = set(ODD) - {"deep", "deep object", "list", "null", "nothing", "no text", "cut", "NaN"}
CHANGES = set(COMMANDS) - {"raftStatus", "explainRoute", "routeDiff"}
FINE = {
    "raftStatus": {"null for list"},
    "explainRoute": OBJECTS | {"list", "null"},
    **dict.fromkeys(CHANGES, OBJECTS),
}


@pytest.mark.slow
@pytest.mark.parametrize("command", list(COMMANDS))
def test_an_odd_answer_is_one_line(command: str, stranger: Any, tmp_path: Path) -> None:
    image, token = tmp_path / "image", tmp_path / "token"
    image.write_bytes(b"image")
    token.write_text("the-secret-word-of-32-characters\n")
    more = [str(image) if word == "IMAGE" else word for word in COMMANDS[command]]
    for odd, answer in ODD.items():
        address = stranger(whole(answer))
        http = f"{address};{stranger(whole(ODD['list']))}" if command == "routeDiff" else address
        code, _, err = mqadmin(command, "--http", http, "--token-file", str(token), *more)
        if code == 0:
            assert odd in FINE.get(command, set())
            continue
        lines = err.splitlines()
        assert code == 1
        assert 1 <= len(lines) <= 2, odd
        for line in lines:
            assert line.startswith(f"mqadmin {command}: "), odd
            assert len(line) < 500, odd


COMPARED = (
    ("/v1/digest", b'{"digest":[1]}'),
    ("/v1/brokers", b'{"brokers":[1]}'),
    ("/v1/brokers", b'{"brokers":[{"cluster":[]}]}'),
    ("/v1/topics", b'{"topics":[["a"]]}'),
    ("/v1/topics", b'{"topics":{"a":1}}'),
    ("/v1/topics/T/route", b'{"route":[]}'),
    ("/v1/topics/T/route", b"{}"),
    ("/v1/topics/T/route", b"["),
    ("/v1/topics/T/route", b'{"route":{"brokerDatas":[1]}}'),
    ("/v1/topics/T/route", b'{"route":{"brokerDatas":{"a":1},"queueDatas":1}}'),
    ("/v1/topics/T/route", b'{"route":{"brokerDatas":[{}],"queueDatas":[{"brokerName":{}}]}}'),
)


@pytest.mark.slow
def test_an_odd_answer_to_a_comparison_is_one_line(stranger: Any) -> None:
    good = {
        "/v1/digest": b'{"digest":"a"}',
        "/v1/brokers": b'{"brokers":[]}',
        "/v1/topics": b'{"topics":["T"]}',
        "/v1/topics/T/route": b'{"route":{"brokerDatas":[],"queueDatas":[]}}',
    }
    one = stranger(by_path(good))
    for path, odd in COMPARED:
        other = stranger(by_path({**good, "/v1/digest": b'{"digest":"b"}', path: odd}))
        code, _, err = mqadmin("routeDiff", "--http", f"{one};{other}")
        assert code == 1
        assert len(err.splitlines()) == 1, odd
        assert err.startswith("mqadmin routeDiff: "), odd


def test_a_change_whose_answer_cannot_be_read_has_an_unknown_outcome(stranger: Any) -> None:
    code, _, err = mqadmin("transferLeader", "--http", stranger(whole(b"[")))
    assert code == 1
    assert "outcome unknown" in err


def dripping(first: bytes, drop: bytes) -> Send:
    def send(connection: socket.socket, path: str) -> None:
        connection.sendall(first)
        for _ in range(300):
            # Wait, because the test needs a server that answers slowly.
            time.sleep(0.05)
            connection.sendall(drop)

    return send


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "drop"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", b"x", id="body"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: ", b"x", id="header"),
        pytest.param(b"", b"H", id="status"),
        pytest.param(b"", b"HTTP/1.1 100 Continue\r\n\r\n", id="continue"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", id="chunks"),
        pytest.param(b"HTTP/1.1 404 No\r\nContent-Length: 9999\r\n\r\n", b"x", id="refusal"),
    ],
)
def test_a_server_that_drips_holds_nobody_longer_than_the_timeout(
    first: bytes, drop: bytes, stranger: Any
) -> None:
    began = time.monotonic()
    with pytest.raises(OSError, match=r"within 0\.5 s"):
        http_fetch(Fetch(f"http://{stranger(dripping(first, drop))}/", 0.5))
    assert time.monotonic() - began < 5


def test_a_reply_of_a_change_has_a_bound_far_below_a_snapshot(stranger: Any) -> None:
    large = whole(b'{"leader":"' + b"a" * (2 << 20) + b'"}')
    code, _, err = mqadmin("transferLeader", "--http", stranger(large))
    assert code == 1
    assert "1048576 bytes" in err


def cut_off(status: int, body: bytes, *, length: int) -> Send:
    """Return a server that announces ``length`` bytes, sends fewer, and closes the connection."""

    def send(connection: socket.socket, path: str) -> None:
        connection.sendall(f"HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n\r\n".encode() + body)

    return send


def test_a_snapshot_that_is_cut_off_replaces_no_file(stranger: Any, tmp_path: Path) -> None:
    """The former backup is complete, so a part of a new backup must not replace it."""
    backup = tmp_path / "backup"
    backup.write_bytes(b"the former snapshot")
    address = stranger(cut_off(200, b"0123456789", length=1000))
    code, _, err = mqadmin("snapshotSave", "--http", address, "--file", str(backup))
    assert code == 1
    assert "cut off, 990 of its bytes are missing" in err
    assert backup.read_bytes() == b"the former snapshot"
    assert list(tmp_path.iterdir()) == [backup]


@pytest.mark.parametrize("status", [200, 503])
def test_a_reply_that_is_cut_off_is_no_reply(status: int, stranger: Any) -> None:
    page = b"10.0.0.1:9876;10.0.0.2:98"
    with pytest.raises(OSError, match="2 of its bytes are missing"):
        http_fetch(Fetch(f"http://{stranger(cut_off(status, page, length=len(page) + 2))}/", 10.0))


def test_a_reply_above_the_limit_is_named_as_such(stranger: Any) -> None:
    large = stranger(whole(b"x" * 1000))
    with pytest.raises(OSError, match="is above 100 bytes"):
        http_fetch(Fetch(f"http://{large}/", 10.0, reply_max=100))
