"""ZooKeeper's client protocol: session handshake, create, setData, getData; big-endian throughout.

Every packet is a u32 of its length and its bytes. Requests start with ``xid i32, type i32``, answers with
``xid i32, zxid i64, err i32``. No session of the load is silent for
long enough to need a ping. Source: zookeeper.jute and ClientCnxn of ZooKeeper 3.8.
"""

from __future__ import annotations

import struct
from typing import Final

from bench.micro.raft.wire import Answer, WireError

SESSION_TIMEOUT_MS: Final = 30_000
_CREATE: Final = 1
_GET_DATA: Final = 4
_SET_DATA: Final = 5
_EVENT_XID: Final = -1
_NODE_EXISTS: Final = -110
_ALL_PERMISSIONS: Final = 31
_LENGTH: Final = struct.Struct(">i")
_REQUEST: Final = struct.Struct(">iii")
_REPLY: Final = struct.Struct(">iiqi")
#: protocol version, last zxid seen, timeout in ms, session id, password, read-only
_CONNECT: Final = struct.Struct(">iqiq")
#: packet length, protocol version, timeout in ms granted (0: refused), session id; the password follows
_CONNECTED: Final = struct.Struct(">iiiq")
_MARK_SIZE: Final = 12


def packet(payload: bytes) -> bytes:
    return _LENGTH.pack(len(payload)) + payload


def text(value: bytes) -> bytes:
    return _LENGTH.pack(len(value)) + value


def path_of(key: int) -> bytes:
    return b"/bench-%04d" % key


class JuteWire:
    """See :class:`bench.micro.raft.wire.Wire`.

    Args:
        key: Number of the connection's own node.
        value: What is written, but for its first twelve bytes, which tell the write.
    """

    def __init__(self, *, key: int, value: bytes) -> None:
        self.ready = False
        self.tag = 0
        self.out = bytearray()
        self._rest = b""
        self._first = value[:_MARK_SIZE]
        path = text(path_of(key))
        # setData: path, data, version (-1: any)
        body = path + text(value) + struct.pack(">i", -1)
        self._set_size = 8 + len(body)
        at = len(path) + 4
        self._set_before, self._set_after = body[:at], body[at + _MARK_SIZE :]
        acl = struct.pack(">ii", 1, _ALL_PERMISSIONS) + text(b"world") + text(b"anyone")
        self._create = path + text(value) + acl + struct.pack(">i", 0)
        self._gets: dict[int, bytes] = {}
        self._create_tag = 0

    def hello(self) -> bytes:
        return packet(_CONNECT.pack(0, 0, SESSION_TIMEOUT_MS, 0) + text(bytes(16)) + b"\0")

    def prepare(self) -> bytes:
        self.tag += 1
        self._create_tag = self.tag
        return _REQUEST.pack(8 + len(self._create), self.tag, _CREATE) + self._create

    def write(self, number: int) -> bytes:
        self.tag += 1
        head = _REQUEST.pack(self._set_size, self.tag, _SET_DATA)
        return b"".join((head, self._set_before, self.marker(number), self._set_after))

    def read(self, number: int, key: int) -> bytes:
        self.tag += 1
        body = self._gets.get(key)
        if body is None:
            body = self._gets[key] = text(path_of(key)) + b"\0"  # no watch
        return _REQUEST.pack(8 + len(body), self.tag, _GET_DATA) + body

    def marker(self, number: int) -> bytes:
        return b"#%010d#" % number

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
                if xid != _EVENT_XID:
                    if xid == self._create_tag and error == _NODE_EXISTS:
                        error = 0
                    answers.append(
                        Answer(xid, f"error {error}" if error else None, data[position + 20 : after])
                    )
            position = after
        self._rest = data[position:]
        return answers

    def _connected(self, data: bytes, position: int) -> None:
        _, _, timeout_ms, session = _CONNECTED.unpack_from(data, position)
        if timeout_ms <= 0 or not session:
            raise WireError("the session was refused")
        self.ready = True
