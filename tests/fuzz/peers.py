"""Inputs for raft links and for HTTP.

The inputs are messages of real peers, and mutations that keep the form of these messages.
"""

from __future__ import annotations

import random
from typing import Any, Final

import msgspec

from routekeeper.nameserver.commands import Batch, DeleteTopic, Proposal, encode_batch, encode_command
from routekeeper.nameserver.raft.consensus import messages
from routekeeper.nameserver.raft.consensus.members import cluster_id, encode_configuration, founding
from routekeeper.nameserver.raft.links.auth import MAGIC
from routekeeper.nameserver.raft.links.transport import APPLICATION, PING, RAFT
from routekeeper.nameserver.replicated import peer_messages
from tests.fuzz.stack import ME, OTHER, THIRD, TOKEN, bodies, framed

_MEMBERS: Final = (ME, OTHER, THIRD)
_HELLO: Final = messages.Greeting(
    instance="i",
    voter=True,
    empty=False,
    election_timeout_ms=1000,
    founders={},
    term=1,
    cluster=cluster_id(_MEMBERS),
    last_term=1,
    last_index=5,
    durability="memory",
)
_COMMAND: Final = encode_command(DeleteTopic(topic="T", cluster_name=None, topic_revision=0))
_ENTRY: Final = encode_batch(Batch(proposals=(Proposal(boot_id=1, sequence=1, command=_COMMAND),)))


def _append(**changes: Any) -> messages.Append:
    usual: dict[str, Any] = {
        "term": 2,
        "seq": 1,
        "commit": 0,
        "prev_index": 1,
        "prev_term": 0,
        "entries": [],
        "last": 1,
        "beat": True,
        "clock": 1.0,
        "echo": None,
        "age": None,
    }
    return messages.Append(**(usual | changes))


_SNAPSHOT: Final = messages.SnapshotPart(
    term=2,
    seq=1,
    index=9,
    index_term=2,
    size=4,
    offset=0,
    data=b"abcd",
    last=9,
    clock=1.0,
    echo=None,
    configuration=encode_configuration(founding(_MEMBERS)),
)
_MESSAGES: Final = (
    messages.PreVote(term=3, last_index=5, last_term=1),
    messages.PreVoteReply(term=3),
    messages.RequestVote(term=3, last_index=5, last_term=1, transfer=True),
    messages.VoteReply(term=3),
    messages.Stale(term=3),
    messages.TimeoutNow(term=3),
    _append(),
    _append(entries=[(2, b"\1" + _ENTRY)], last=2, commit=2),
    messages.AppendReply(term=2, seq=1, state=0, index=2, learner=False, clock=1.0, echo=0.5),
    _SNAPSHOT,
    messages.SnapshotReply(term=2, index=9, offset=4, learner=False, clock=1.0, echo=None),
    messages.Removed(term=2, index=3),
)
#: Messages that nameservers send over raft links for reads, proposals and reports. Each message is an array
#: of its kind and some fields. Mutations make the arrays longer.
_APPLICATION: Final = tuple(
    msgspec.msgpack.encode([kind, *([1, 2, [], [], "x", 0, 0.5][:length])])
    for kind in range(1, 9)
    for length in (1, 3, 5)
)

MEMBER_SEEDS: Final[tuple[bytes, ...]] = (
    framed(bytes((PING,)), bytes((RAFT,)) + messages.encode(_HELLO), bytes((PING,))),
    *(
        framed(bytes((RAFT,)) + messages.encode(_HELLO), bytes((RAFT,)) + messages.encode(message))
        for message in _MESSAGES
    ),
    *(
        framed(
            bytes((RAFT,)) + messages.encode(_HELLO),
            bytes((APPLICATION, peer_messages.FORMAT)) + payload,
        )
        for payload in _APPLICATION[::3]
    ),
)


def _hello(**changes: Any) -> bytes:
    fields = [MAGIC, OTHER, ME, cluster_id(_MEMBERS), bytes(32), True]
    for place, value in changes.items():
        fields[int(place.removeprefix("field"))] = value
    frame = msgspec.msgpack.encode(fields)
    return len(frame).to_bytes(4) + frame


STRANGER_SEEDS: Final[tuple[bytes, ...]] = (
    _hello(),
    _hello() + (32).to_bytes(4) + bytes(32),
    _hello(field1="x" * 400),
    _hello(field3="another"),
    _hello(field4=b""),
    b"\x16\x03\x01\x02\x00" + bytes(64),
    b"\x00\x00\x04\x00" + bytes(1024),
    b"GET / HTTP/1.1\r\n\r\n",
)
DECODER_SEEDS: Final[tuple[bytes, ...]] = (
    *(messages.encode(message) for message in (_HELLO, *_MESSAGES)),
    *(bytes((peer_messages.FORMAT,)) + payload for payload in _APPLICATION),
    _COMMAND,
    _ENTRY,
    encode_configuration(founding(_MEMBERS)),
)

_NUMBERS: Final = (-1, 0, 1, 2, 2**31, 2**63 - 1, 2**64 - 1, 0.5, float("inf"), float("nan"), -1e308)
_ODD: Final[tuple[Any, ...]] = (
    None,
    True,
    "",
    "x" * 5000,
    "\x1b[31m\r\n",
    b"",
    b"\0" * 5000,
    [],
    {},
    [[]] * 500,
    {"a": {}},
)


def change_members(rng: random.Random, data: bytes) -> bytes:
    """Change a value in one frame of the input, or repeat or remove a frame."""
    found = bodies(data)
    if not found:
        return data
    at = rng.randrange(len(found))
    match rng.randrange(5):
        case 0:
            found[at:at] = [found[at]] * rng.choice((1, 1, 30))
        case 1 if len(found) > 1:
            del found[at]
        case _:
            found[at] = found[at][:2] + change_value(rng, found[at][2:])
    return framed(*(body[:60_000] for body in found))[: 64 * 1024]


def change_value(rng: random.Random, payload: bytes) -> bytes:
    """Replace a part of a msgpack value. If the bytes are not msgpack, return them unchanged."""
    try:
        value = msgspec.msgpack.decode(payload)
        return msgspec.msgpack.encode(_changed(rng, value))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError, ValueError, OverflowError):
        return payload


def _changed(rng: random.Random, value: Any) -> Any:
    if isinstance(value, list) and value and rng.randrange(4):
        at = rng.randrange(len(value))
        match rng.randrange(8):
            case 0:
                return [*value[:at], *value[at : at + 1] * rng.choice((2, 100, 3000)), *value[at + 1 :]]
            case 1:
                return value[:at] + value[at + 1 :]
            case _:
                return [*value[:at], _changed(rng, value[at]), *value[at + 1 :]]
    if isinstance(value, int | float) and rng.randrange(4):
        return rng.choice(_NUMBERS)
    return rng.choice(_ODD) if rng.randrange(3) else rng.choice(_NUMBERS)


_PATHS: Final = (
    *("/", "/app.js", "/openapi.json", "/healthz", "/readyz", "/metrics", "/v1/status", "/v1/digest"),
    *("/v1/topics", "/v1/topics/T/route", "/v1/topics/T/explain", "/v1/brokers", "/v1/clusters", "/v1/kv/n"),
    *("/v1/kv", "/v1/kv/n/k"),
    *("/v1/raft/status", "/v1/raft/members", "/v1/raft/members/a:1", "/v1/raft/transfer"),
    *("/v1/raft/snapshot", "/v1/raft/restore", "/x"),
)
_QUERIES: Final = (
    *(
        "",
        "index=0",
        "index=0&wait=1s",
        "index=9223372036854775808",
        "wait=9e99h",
        "consistency=linearizable",
    ),
    *("prefix=T&limit=1", "cluster=c&limit=9", "cursor=" + "A" * 4000, "cursor=WyJUIl0", "limit=10000"),
    *("kinds=topics&last_event_id=1-0-0", "index=999999999999999999&wait=0s"),
    *("consistency=stale", "a=" + "b" * 4000, "%00%ff", "&" * 3000, "index=" + "9" * 5000, "timeout=1ms"),
)
_HEADERS: Final = (
    *("Host: 127.0.0.1", "Host: evil.example", "Host: " + "x" * 7000, f"Authorization: Bearer {TOKEN}"),
    *("Authorization: Bearer x", "Content-Length: 5", "Content-Length: -1", "Content-Length: 99999999999"),
    *("Transfer-Encoding: chunked", "Connection: close", "Expect: 100-continue", "Accept: \x1b[31m"),
    *("Upgrade: websocket", "Range: bytes=0-", "Content-Encoding: gzip", "Content-Type: application/json"),
    *('If-None-Match: W/"0-0-0"', "If-None-Match: " + '"",' * 2000, "Accept-Encoding: gzip;q=1, *;q=0"),
    *("If-Match: *", "Last-Event-ID: 0-0-0", "Accept-Encoding: " + "gzip," * 1500),
    *("X: " + "y" * 8000, "Cookie: " + "a=b; " * 1000, "X-A: 1\r\n" * 200),
)
_BODIES: Final = (
    b"",
    b"hello",
    b'{"address":"a:1"}',
    b'{"to":"a:1"}',
    b"{" * 2000,
    b"5\r\nhello\r\n0\r\n\r\n",
)


def http_request(
    method: str, path: str, *headers: str, query: str = "", body: bytes = b"", sized: bool = True
) -> bytes:
    target = f"{path}?{query}" if query else path
    lines = [
        f"{method} {target} HTTP/1.1",
        *headers,
        *([f"Content-Length: {len(body)}"] if sized and body else []),
    ]
    return "\r\n".join(lines).encode("utf-8", "replace") + b"\r\n\r\n" + body


HTTP_SEEDS: Final[tuple[bytes, ...]] = (
    *(http_request("GET", path, _HEADERS[0]) for path in _PATHS),
    *(
        http_request("POST", path, _HEADERS[0], f"Authorization: Bearer {TOKEN}", body=b'{"address":"a:1"}')
        for path in ("/v1/raft/members", "/v1/raft/transfer", "/v1/raft/snapshot", "/v1/raft/restore")
    ),
    http_request("DELETE", "/v1/raft/members/a:1", _HEADERS[0], f"Authorization: Bearer {TOKEN}"),
)


def change_http(rng: random.Random, data: bytes) -> bytes:
    """Return a changed HTTP request, either alone or after the given request."""
    method = rng.choice(("GET", "GET", "HEAD", "POST", "DELETE", "PUT", "OPTIONS", "x" * 50))
    headers = [_HEADERS[0], *rng.choices(_HEADERS, k=rng.randrange(4))]
    made = http_request(
        method,
        rng.choice(_PATHS),
        *headers[rng.randrange(8) == 0 :],
        query=rng.choice(_QUERIES),
        body=rng.choice(_BODIES),
        sized=bool(rng.randrange(4)),
    )
    return data + made if rng.randrange(3) == 0 else made
