"""ZooKeeper sessions for load programs. kazoo encodes the requests, and the load program sends them.

A packet is a length as a u32, followed by this number of bytes. Requests start with ``xid i32, type i32``.
Answers start with ``xid i32, zxid i64, err i32``. Source: ClientCnxn and Watcher of ZooKeeper 3.9.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from kazoo.protocol.serialization import Connect, Create, GetData, Ping, SetData, write_buffer
from kazoo.security import OPEN_ACL_UNSAFE

from routekeeper.bench.wires.wire import Answer, WireError

SESSION_TIMEOUT_MS: Final = 30_000
_EVENT_XID: Final = -1
_PING_XID: Final = -2
_NODE_EXISTS: Final = -110
_LENGTH: Final = struct.Struct(">i")
_REQUEST: Final = struct.Struct(">iii")
_REPLY: Final = struct.Struct(">iiqi")
_MARK_SIZE: Final = 12


def path_of(key: int) -> str:
    return f"/bench-{key:04d}"


class JuteSession:
    """One ZooKeeper session: its handshake, its requests, and the decoding of answers, events and pings."""

    def __init__(self) -> None:
        self.ready = False
        self.tag = 0
        self.out = bytearray()
        self._rest = b""
        self._may_exist: set[int] = set()

    def hello(self) -> bytes:
        return self._hello(0, bytes(16))

    def _hello(self, session: int, password: bytes) -> bytes:
        body = Connect(0, 0, SESSION_TIMEOUT_MS, session, password, False).serialize()
        return bytes(write_buffer(body))  # kazoo's format of a buffer is that of a packet: length, then bytes

    def request(self, asked: Any) -> bytes:
        """Return the bytes of a request object of kazoo, numbered with the next xid."""
        self.tag += 1
        body = bytes(asked.serialize())
        return _REQUEST.pack(8 + len(body), self.tag, asked.type) + body

    def get(self, path: str, *, watch: bool = False) -> bytes:
        return self.request(GetData(path, watch))

    def ping(self) -> bytes:
        return _REQUEST.pack(8, _PING_XID, Ping.type)

    def event(self) -> None:
        """Handle the event of a watch that has fired. Subclasses that set watches override this method."""

    def feed(self, data: bytes) -> list[Answer]:
        if self._rest:
            data = self._rest + data
        answers = []
        position, end = 0, len(data)
        while end - position >= 4:
            after = position + 4 + _LENGTH.unpack_from(data, position)[0]
            if after > end:
                break
            if not self.ready:
                self._connected(data, position)
            else:
                _, xid, _, error = _REPLY.unpack_from(data, position)
                if xid == _EVENT_XID:
                    self.event()
                else:
                    if error == _NODE_EXISTS and xid in self._may_exist:
                        error = 0
                    answers.append(
                        Answer(xid, f"error {error}" if error else None, data[position + 20 : after])
                    )
            position = after
        self._rest = data[position:]
        return answers

    def _connected(self, data: bytes, position: int) -> None:
        found, _ = Connect.deserialize(data, position + 4)
        if found.time_out <= 0 or not found.session_id:
            raise WireError("the session was refused")
        self.ready = True


class JuteWire(JuteSession):
    """One session that writes its own node (see :class:`routekeeper.bench.wires.wire.Wire`).

    Args:
        key: Number of the session's own node.
        value: The value to write. Its first twelve bytes are replaced by the number of the write.
    """

    def __init__(self, *, key: int, value: bytes) -> None:
        super().__init__()
        self._path, self._value = path_of(key), value
        body = bytes(SetData(self._path, value, -1).serialize())  # -1: accept any version of the node
        self._set_size = 8 + len(body)
        at = body.index(value)
        self._set_before, self._set_after = body[:at], body[at + _MARK_SIZE :]
        self._gets: dict[int, bytes] = {}

    def prepare(self) -> bytes:
        data = self.request(Create(self._path, self._value, OPEN_ACL_UNSAFE, 0))
        self._may_exist.add(self.tag)
        return data

    def write(self, number: int) -> bytes:
        self.tag += 1
        head = _REQUEST.pack(self._set_size, self.tag, SetData.type)
        return b"".join((head, self._set_before, self.marker(number), self._set_after))

    def read(self, number: int, key: int) -> bytes:
        self.tag += 1
        body = self._gets.get(key)
        if body is None:
            body = self._gets[key] = bytes(GetData(path_of(key), None).serialize())
        return _REQUEST.pack(8 + len(body), self.tag, GetData.type) + body

    def marker(self, number: int) -> bytes:
        return b"#%010d#" % number
