"""The simulated watchers send the right requests and read the answers correctly."""

import json
import struct
from collections.abc import Callable

import pytest

from routekeeper.bench.storm.sessions import ancestors
from routekeeper.bench.wires.jute import JuteSession
from routekeeper.bench.wires.watchers import HttpWatcher, JuteWatcher
from routekeeper.bench.wires.wire import Answer, Conversation, WireError

GET_DATA = 4


def granted(session: JuteSession, timeout_ms: int) -> None:
    accepted = struct.pack(">iiq", 0, timeout_ms, 99) + b"\0\0\0\x10" + bytes(17)
    session.feed(struct.pack(">i", len(accepted)) + accepted)


def reply(xid: int, error: int = 0, rest: bytes = b"") -> bytes:
    return struct.pack(">iiqi", 16 + len(rest), xid, 5, error) + rest


def event(kind: int = 3) -> bytes:
    return reply(-1, 0, struct.pack(">ii", kind, 3) + b"\0\0\0\x0b/bench-0007")


def one_by_one(wire: Conversation, data: bytes) -> list[Answer]:
    return [answer for at in range(len(data)) for answer in wire.feed(data[at : at + 1])]


# -- nodes of brokers ------------------------------------------------------------------


def test_ancestors_come_once_and_after_their_parents() -> None:
    assert ancestors(["/a/b/c", "/a/d/e", "/a/b/f"]) == ["/a", "/a/b", "/a/d"]


# -- watchers of ZooKeeper ---------------------------------------------------------------


def test_jute_heartbeat_is_a_ping_and_is_answered() -> None:
    watcher = JuteWatcher(key=7)
    granted(watcher, 30_000)
    assert watcher.ping() == struct.pack(">iii", 8, -2, 11)  # 11 is ping
    assert one_by_one(watcher, reply(-2)) == [Answer(-2, None, b"")]


def test_jute_watcher_reads_again_with_a_new_watch_when_an_event_comes() -> None:
    watcher = JuteWatcher(key=7)
    granted(watcher, 30_000)
    path = b"\0\0\0\x0b/bench-0007"
    assert watcher.watch() == struct.pack(">iii", 8 + 16, 1, GET_DATA) + path + b"\1"
    assert watcher.feed(reply(1, 0, b"old")) == [Answer(1, None, b"old")]
    assert not watcher.out
    assert one_by_one(watcher, event()) == []
    assert bytes(watcher.out) == struct.pack(">iii", 8 + 16, 2, GET_DATA) + path + b"\1"


# -- RouteKeeper's HTTP watchers ---------------------------------------------------------------------


def http(status: int, body: bytes, length_name: str = "Content-Length") -> bytes:
    return f"HTTP/1.1 {status} x\r\nServer: y\r\n{length_name}: {len(body)}\r\n\r\n".encode() + body


def test_http_watcher_asks_beyond_the_index_it_has() -> None:
    watcher = HttpWatcher(key=7, host="127.0.0.1:9880")
    path = "GET /v1/topics/orders-0007-000/route?consistency=stale"
    assert watcher.watch().decode() == f"{path} HTTP/1.1\r\nHost: 127.0.0.1:9880\r\n\r\n"
    body = json.dumps({"index": 41, "route": {}}).encode()
    assert one_by_one(watcher, http(200, body)) == [Answer(1, None, body)]
    assert bytes(watcher.out).decode().startswith(f"{path}&index=41&wait=30s HTTP/1.1\r\n")


def test_http_refusal_is_named() -> None:
    watcher = HttpWatcher(key=7, host="h")
    watcher.watch()
    [answer] = watcher.feed(http(404, b"no route", "content-length"))
    assert answer.error == "HTTP 404: b'no route'"
    assert not watcher.out


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nServer: y", b"nonsense\r\nContent-Length: 0"])
def test_http_answer_without_status_or_length_is_an_error(head: bytes) -> None:
    with pytest.raises(WireError):
        HttpWatcher(key=7, host="h").feed(head + b"\r\n\r\n")


@pytest.mark.parametrize(
    "make",
    [lambda: JuteWatcher(key=1), lambda: HttpWatcher(key=1, host="h")],
)
def test_nothing_is_asked_twice_before_an_answer(
    make: Callable[[], JuteWatcher | HttpWatcher],
) -> None:
    watcher = make()
    assert watcher.watch()
    assert not watcher.out
