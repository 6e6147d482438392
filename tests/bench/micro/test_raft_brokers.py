"""The raft benchmark's idle brokers and watchers send the right requests and read the answers correctly."""

import json
import struct
from collections.abc import Callable

import pytest

from routekeeper.bench.micro.raft.standing import members_of
from routekeeper.bench.wires.brokers import (
    JuteBroker,
    RemotingBroker,
    ancestors,
    nodes,
    period_s,
)
from routekeeper.bench.wires.jute import JuteSession
from routekeeper.bench.wires.watchers import HttpWatcher, JuteWatcher
from routekeeper.bench.wires.wire import Answer, Conversation, WireError
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import decode_command
from routekeeper.remoting.frame import split_frame

CREATE, GET_DATA, PING = 1, 4, 11


def granted(session: JuteSession, timeout_ms: int) -> None:
    accepted = struct.pack(">iiq", 0, timeout_ms, 99) + b"\0\0\0\x10" + bytes(17)
    session.feed(struct.pack(">i", len(accepted)) + accepted)


def reply(xid: int, error: int = 0, rest: bytes = b"") -> bytes:
    return struct.pack(">iiqi", 16 + len(rest), xid, 5, error) + rest


def event(kind: int = 3) -> bytes:
    return reply(-1, 0, struct.pack(">ii", kind, 3) + b"\0\0\0\x0b/bench-0007")


def created(request: bytes) -> tuple[str, bytes, bool]:
    """Decode a create request, and return the path, the data, and True if the node is ephemeral."""
    size, _, kind = struct.unpack_from(">iii", request)
    assert (len(request), kind) == (4 + size, CREATE)
    at, parts = 12, []
    for _ in range(2):
        length = int.from_bytes(request[at : at + 4], "big")
        parts.append(request[at + 4 : at + 4 + length])
        at += 4 + length
    return parts[0].decode(), parts[1], request[-4:] == b"\0\0\0\1"


def one_by_one(wire: Conversation, data: bytes) -> list[Answer]:
    return [answer for at in range(len(data)) for answer in wire.feed(data[at : at + 1])]


# -- nodes and requests of a broker ------------------------------------------------------------------


def test_nodes_lie_as_metaq_laid_them() -> None:
    assert nodes(7, 1) == {
        "/meta/brokers/topics-pub/orders-0007-000/7-m": b"4",
        "/meta/brokers/topics-sub/orders-0007-000/7-m": b"4",
        "/meta/brokers/ids/7/master": b"meta://10.0.0.8:10911",
    }


def test_ancestors_come_once_and_after_their_parents() -> None:
    assert ancestors(["/a/b/c", "/a/d/e", "/a/b/f"]) == ["/a", "/a/b", "/a/d"]


@pytest.mark.parametrize(("kind", "seconds"), [("remoting", 30.0), ("jute", 40.0)])
def test_heartbeats_come_as_often_as_clients_send_them(kind: str, seconds: float) -> None:
    assert period_s(kind, 120) == seconds


def test_our_brokers_connect_to_every_member_others_to_one_in_turn() -> None:
    assert [list(members_of("remoting", key, 3)) for key in (0, 1)] == [[0, 1, 2], [0, 1, 2]]
    assert [list(members_of("jute", key, 3)) for key in range(4)] == [[0], [1], [2], [0]]


def test_our_broker_registers_and_says_the_same_again() -> None:
    broker = RemotingBroker(key=7, topics=2, timestamp_ms=1_700_000_000_000)
    [[first]] = broker.steps()
    again = broker.heartbeat()
    commands = [decode_command(split_frame(data, 0, len(data) - 4)) for data in (first, again)]
    assert [one.code for one in commands] == [RequestCode.REGISTER_BROKER] * 2
    assert commands[0].body == commands[1].body


# -- brokers and watchers of ZooKeeper ---------------------------------------------------------------


def test_jute_broker_creates_lasting_parents_and_ephemeral_nodes_of_its_own() -> None:
    broker = JuteBroker(key=7, topics=1, lease_s=120)
    assert broker.hello()[16:20] == struct.pack(">i", 120_000)
    granted(broker, 120_000)
    [requests] = broker.steps()
    made = [created(request) for request in requests]
    ephemeral = {path: data for path, data, is_ephemeral in made if is_ephemeral}
    assert ephemeral == nodes(7, 1)
    lasting = [path for path, _, is_ephemeral in made if not is_ephemeral]
    assert lasting == ancestors(list(ephemeral))
    assert [path for path, _, _ in made].index("/meta/brokers/ids/7") < len(lasting)


def test_jute_broker_takes_parents_of_others_but_no_nodes_of_others() -> None:
    broker = JuteBroker(key=7, topics=1, lease_s=120)
    granted(broker, 120_000)
    [requests] = broker.steps()
    of_parent, of_own = 1, len(requests)
    assert one_by_one(broker, reply(of_parent, -110) + reply(of_own, -110)) == [
        Answer(of_parent, None, b""),
        Answer(of_own, "error -110", b""),
    ]


def test_jute_broker_with_a_session_of_another_length_is_an_error() -> None:
    broker = JuteBroker(key=7, topics=1, lease_s=120)
    granted(broker, 40_000)
    with pytest.raises(WireError, match="40000 ms was granted, 120000 were asked for"):
        broker.steps()


def test_jute_heartbeat_is_a_ping_and_is_answered() -> None:
    broker = JuteBroker(key=7, topics=1, lease_s=30)
    granted(broker, 30_000)
    assert broker.heartbeat() == struct.pack(">iii", 8, -2, PING)
    assert one_by_one(broker, reply(-2)) == [Answer(-2, None, b"")]


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
