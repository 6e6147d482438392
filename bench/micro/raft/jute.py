"""ZooKeeper's client protocol: session handshake, create, setData, getData, ping; big-endian throughout.

Every packet is a u32 of its length and its bytes. Requests start with ``xid i32, type i32``, answers with
``xid i32, zxid i64, err i32``. Source: zookeeper.jute, ClientCnxn and Watcher of ZooKeeper 3.9.
"""

from __future__ import annotations

import struct
from typing import Final

from routekeeper.bench.micro.raft.wire import Answer, WireError

SESSION_TIMEOUT_MS: Final = 30_000
_CREATE: Final = 1
_GET_DATA: Final = 4
_SET_DATA: Final = 5
_PING: Final = 11
_EVENT_XID: Final = -1
_PING_XID: Final = -2
_EPHEMERAL: Final = 1
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


class JuteSession:
    """One session: its handshake, its requests, and answers, events and pings told apart.

    Args:
        timeout_ms: Asked for; the server may grant another one.
    """

    def __init__(self, timeout_ms: int = SESSION_TIMEOUT_MS) -> None:
        self.ready = False
        self.tag = 0
        self.out = bytearray()
        #: What the server has granted.
        self.timeout_ms = 0
        self._asked_ms = timeout_ms
        self._rest = b""
        self._may_exist: set[int] = set()

    def hello(self) -> bytes:
        return packet(_CONNECT.pack(0, 0, self._asked_ms, 0) + text(bytes(16)) + b"\0")

    def request(self, kind: int, body: bytes) -> bytes:
        self.tag += 1
        return _REQUEST.pack(8 + len(body), self.tag, kind) + body

    def create(self, path: bytes, value: bytes, *, ephemeral: bool = False, may_exist: bool = False) -> bytes:
        """Return the request for a new node that everybody may do everything with."""
        acl = struct.pack(">ii", 1, _ALL_PERMISSIONS) + text(b"world") + text(b"anyone")
        flags = struct.pack(">i", _EPHEMERAL if ephemeral else 0)
        data = self.request(_CREATE, text(path) + text(value) + acl + flags)
        if may_exist:
            self._may_exist.add(self.tag)
        return data

    def get(self, path: bytes, *, watch: bool = False) -> bytes:
        return self.request(_GET_DATA, text(path) + (b"\1" if watch else b"\0"))

    def ping(self) -> bytes:
        return _REQUEST.pack(8, _PING_XID, _PING)

    def event(self) -> None:
        """Take note that a watch has fired."""

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
        _, _, timeout_ms, session = _CONNECTED.unpack_from(data, position)
        if timeout_ms <= 0 or not session:
            raise WireError("the session was refused")
        self.timeout_ms = timeout_ms
        self.ready = True


class JuteWire(JuteSession):
    """See :class:`routekeeper.bench.micro.raft.wire.Wire`.

    Args:
        key: Number of the connection's own node.
        value: What is written, but for its first twelve bytes, which tell the write.
    """

    def __init__(self, *, key: int, value: bytes) -> None:
        super().__init__()
        self._path, self._value = path_of(key), value
        path = text(self._path)
        # setData: path, data, version (-1: any)
        body = path + text(value) + struct.pack(">i", -1)
        self._set_size = 8 + len(body)
        at = len(path) + 4
        self._set_before, self._set_after = body[:at], body[at + _MARK_SIZE :]
        self._gets: dict[int, bytes] = {}

    def prepare(self) -> bytes:
        return self.create(self._path, self._value, may_exist=True)

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
