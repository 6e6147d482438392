"""Simulated clients that watch for changes, in ZooKeeper's protocol and over HTTP.

A ZooKeeper watch reports one change of a node. The client's next read fetches the new value and sets a new
watch. Our nameserver can notify clients only over HTTP. It answers a query with ``index`` and ``wait`` when
the topic changes, and the client then sends the next query. RocketMQ's clients and our clients do not use
this query, because they ask for routes every 30 s. (The nameserver sends request 905, a notification over the
remoting protocol, only to brokers.)

This module does no I/O and reads no clock.
"""

from __future__ import annotations

import re
from typing import Final

import orjson

from routekeeper.bench.wires.jute import JuteSession, path_of
from routekeeper.bench.wires.remoting_wire import topic_name
from routekeeper.bench.wires.wire import Answer, WireError

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_STATUS: Final = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_HEAD_END: Final = b"\r\n\r\n"


class JuteWatcher(JuteSession):
    """A session that watches one node."""

    def __init__(self, *, key: int) -> None:
        super().__init__()
        self._path = path_of(key)

    def watch(self) -> bytes:
        return self.get(self._path, watch=True)

    def event(self) -> None:
        self.out += self.watch()


class HttpWatcher:
    """Blocking queries for the route of one topic."""

    def __init__(self, *, key: int, topic: int = 0, host: str) -> None:
        self.ready = True
        self.tag = 0
        self.out = bytearray()
        self._rest = b""
        self._path = f"/v1/topics/{topic_name(key, topic)}/route?consistency=stale"
        self._host = host

    def hello(self) -> bytes:
        return b""

    def watch(self) -> bytes:
        return self._ask("")

    def _ask(self, beyond: str) -> bytes:
        self.tag += 1
        return f"GET {self._path}{beyond} HTTP/1.1\r\nHost: {self._host}\r\n\r\n".encode()

    def feed(self, data: bytes) -> list[Answer]:
        self._rest += data
        answers = []
        while (end := self._rest.find(_HEAD_END)) >= 0:
            head = self._rest[:end]
            status, length = _STATUS.match(head), _LENGTH.search(head)
            if status is None or length is None:
                raise WireError(f"an HTTP answer without status or length: {head[:80]!r}")
            start = end + len(_HEAD_END)
            after = start + int(length[1])
            if after > len(self._rest):
                break
            body = self._rest[start:after]
            self._rest = self._rest[after:]
            if status[1] == b"200":
                answers.append(Answer(self.tag, None, body))
                self.out += self._ask(f"&index={orjson.loads(body)['index']}&wait=30s")
            else:
                answers.append(Answer(self.tag, f"HTTP {status[1].decode()}: {body[:200]!r}", b""))
        return answers


#: A connection that receives every change of one broker or node. Each answer has the current content. The
#: first answer has the content at the start of the watch.
WatchWire = HttpWatcher | JuteWatcher
