"""etcd's services over HTTP/2 with prior knowledge, framed by hand: unary gRPC calls, and streams that stay.

Request headers are HPACK literals and static indexes, encoded once per method. Of an answer's headers nothing
is read: a unary call that succeeds has a message before its trailers, one that fails has none.
Source: RFC 9113, RFC 7541, gRPC over HTTP2, etcd's rpc.proto.
"""

from __future__ import annotations

import struct
from typing import Final

from routekeeper.bench.micro.raft.wire import Answer, WireError

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM: Final = 0x1
_ACK: Final = 0x1
_END_HEADERS: Final = 0x4
_INITIAL_WINDOW_SIZE: Final = 4
_DEFAULT_WINDOW: Final = 65_535
_FRAME_MAX: Final = 16_384
#: Bytes that a server may have under way to us; told anew when half of them have arrived.
_OUR_WINDOW: Final = 16 << 20
_MARK_SIZE: Final = 12
_SETTING: Final = struct.Struct(">HI")


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return one HTTP/2 frame: length u24, type u8, flags u8, stream u32, payload."""
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, value: bytes) -> bytes:
    """Return a length-delimited protobuf field."""
    return varint(number << 3 | 2) + varint(len(value)) + value


def number_field(number: int, value: int) -> bytes:
    """Return a protobuf field of a whole number that is not negative."""
    return varint(number << 3) + varint(value)


def fields_of(data: bytes) -> dict[int, int | bytes]:
    """Return the fields of a protobuf message by number, of a repeated one the last.

    Raises:
        WireError: If it holds another type than numbers and bytes, or is cut.
    """
    found: dict[int, int | bytes] = {}
    position = 0

    def number() -> int:
        nonlocal position
        value = shift = 0
        while True:
            if position == len(data):
                raise WireError(f"a cut protobuf message: {data[:40]!r}")
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    while position < len(data):
        key = number()
        if key & 7 == 0:
            found[key >> 3] = number()
        elif key & 7 == 2:
            size = number()
            if position + size > len(data):
                raise WireError(f"a cut protobuf message: {data[:40]!r}")
            found[key >> 3] = data[position : position + size]
            position += size
        else:
            raise WireError(f"protobuf wire type {key & 7}, known are 0 and 2")
    return found


def message(body: bytes) -> bytes:
    """Return a gRPC message: compressed u8 (0), length u32, body."""
    return b"\0" + len(body).to_bytes(4, "big") + body


def request_headers(path: bytes, authority: bytes) -> bytes:
    """Return the HPACK block of a call: static indexes and literals that no table remembers."""

    def literal(start: bytes, value: bytes) -> bytes:
        assert len(value) < 127, "longer strings have longer length prefixes"
        return start + bytes([len(value)]) + value

    return b"".join(
        (
            b"\x83\x86",  # :method POST, :scheme http
            literal(b"\x04", path),
            literal(b"\x01", authority),
            literal(b"\x0f\x10", b"application/grpc"),  # content-type
            literal(b"\x00\x02te", b"trailers"),
        )
    )


def key_of(key: int) -> bytes:
    return b"/bench/%04d" % key


def method(path: bytes) -> bytes:
    return request_headers(path, b"bench")


PUT: Final = method(b"/etcdserverpb.KV/Put")
RANGE: Final = method(b"/etcdserverpb.KV/Range")
LEASE_GRANT: Final = method(b"/etcdserverpb.Lease/LeaseGrant")
LEASE_KEEP_ALIVE: Final = method(b"/etcdserverpb.Lease/LeaseKeepAlive")
WATCH: Final = method(b"/etcdserverpb.Watch/Watch")


class GrpcConnection:
    """One connection: unary calls, and streams of which each message is an answer of its own."""

    def __init__(self) -> None:
        self.ready = True  # prior knowledge: requests may follow the preface at once
        self.tag = -1
        self.out = bytearray()
        self._rest = b""
        self._streams: dict[int, list[bytes]] = {}
        #: Streams that stay open, with what has arrived of their next message and since the window was told.
        self._open: dict[int, bytearray] = {}
        self._open_consumed: dict[int, int] = {}
        self._window = _DEFAULT_WINDOW
        self._stream_window = _DEFAULT_WINDOW
        self._consumed = 0
        self._waiting: list[tuple[int, bytes]] = []  # messages without window, as (stream, rest)

    def hello(self) -> bytes:
        settings = _SETTING.pack(2, 0) + _SETTING.pack(_INITIAL_WINDOW_SIZE, _OUR_WINDOW)  # 2: no push
        more = (_OUR_WINDOW - _DEFAULT_WINDOW).to_bytes(4, "big")
        return PREFACE + frame(_SETTINGS, 0, 0, settings) + frame(_WINDOW_UPDATE, 0, 0, more)

    def call(self, headers: bytes, payload: bytes) -> bytes:
        """Return a unary call; its answer bears the tag."""
        self.tag += 2
        stream = self.tag
        self._streams[stream] = []
        start = frame(_HEADERS, _END_HEADERS, stream, headers)
        size = len(payload)
        if size <= _FRAME_MAX and size <= self._window and size <= self._stream_window and not self._waiting:
            self._window -= size
            return start + frame(_DATA, _END_STREAM, stream, payload)
        if size > self._stream_window:
            raise WireError(
                f"a message of {size} bytes is above the server's stream window of {self._stream_window}"
            )
        self._waiting.append((stream, payload))
        return start + self._released()

    def begin(self, headers: bytes, first: bytes) -> bytes:
        """Return the call of a stream that stays open, and its first message."""
        self.tag += 2
        self._open[self.tag] = bytearray()
        self._open_consumed[self.tag] = 0
        return frame(_HEADERS, _END_HEADERS, self.tag, headers) + self.more(self.tag, first)

    def more(self, stream: int, payload: bytes) -> bytes:
        """Return one more message of an open stream.

        They are few and small: the stream's own window, which the server opens again, is not counted.
        """
        self._window -= len(payload)
        return frame(_DATA, 0, stream, payload)

    def judge(self, body: bytes) -> str | None:
        """Say why a message of an open stream is a failure; None if it is none."""
        return None

    def _released(self) -> bytes:
        """Return the frames of waiting messages for which the connection's window is open."""
        frames = []
        while self._waiting and self._window > 0:
            stream, payload = self._waiting[0]
            size = min(len(payload), _FRAME_MAX, self._window)
            self._window -= size
            last = size == len(payload)
            frames.append(frame(_DATA, _END_STREAM if last else 0, stream, payload[:size]))
            if last:
                del self._waiting[0]
            else:
                self._waiting[0] = stream, payload[size:]
        return b"".join(frames)

    def feed(self, data: bytes) -> list[Answer]:
        if self._rest:
            data = self._rest + data
        answers: list[Answer] = []
        position, end = 0, len(data)
        while end - position >= 9:
            size = int.from_bytes(data[position : position + 3], "big")
            start = position + 9
            after = start + size
            if after > end:
                break
            kind, flags = data[position + 3], data[position + 4]
            if kind == _DATA:
                self._data(data, position, start, after, answers)
            elif kind != _HEADERS:
                self._control(kind, flags, data, position, start, after, answers)
            if flags & _END_STREAM and kind <= _HEADERS:
                stream = int.from_bytes(data[position + 5 : start], "big")
                if self._open.pop(stream, None) is not None:
                    answers.append(Answer(stream, "the stream ended", b""))
                else:
                    parts = self._streams.pop(stream)
                    body = b"".join(parts)[5:]
                    answers.append(Answer(stream, None if parts else "the call failed", body))
            position = after
        self._rest = data[position:]
        return answers

    def _data(self, data: bytes, position: int, start: int, after: int, answers: list[Answer]) -> None:
        stream = int.from_bytes(data[position + 5 : start], "big")
        parts = self._streams.get(stream)
        if parts is not None:
            parts.append(data[start:after])
        else:
            self._arrived(stream, data[start:after], answers)
        self._consumed += after - start
        if self._consumed > _OUR_WINDOW // 2:
            self.out += frame(_WINDOW_UPDATE, 0, 0, self._consumed.to_bytes(4, "big"))
            self._consumed = 0

    def _arrived(self, stream: int, data: bytes, answers: list[Answer]) -> None:
        """Take bytes of an open stream; each message that is complete is an answer."""
        rest = self._open.get(stream)
        if rest is None:
            raise WireError(f"data of stream {stream}, which is not open")
        rest += data
        while len(rest) >= 5 and len(rest) >= (end := 5 + int.from_bytes(rest[1:5], "big")):
            body = bytes(rest[5:end])
            del rest[:end]
            answers.append(Answer(stream, self.judge(body), body))
        self._open_consumed[stream] += len(data)
        if self._open_consumed[stream] > _OUR_WINDOW // 2:
            self.out += frame(_WINDOW_UPDATE, 0, stream, self._open_consumed[stream].to_bytes(4, "big"))
            self._open_consumed[stream] = 0

    def _control(
        self, kind: int, flags: int, data: bytes, position: int, start: int, after: int, answers: list[Answer]
    ) -> None:
        stream = int.from_bytes(data[position + 5 : start], "big")
        if kind == _SETTINGS and not flags & _ACK:
            for at in range(start, after, _SETTING.size):
                name, value = _SETTING.unpack_from(data, at)
                if name == _INITIAL_WINDOW_SIZE:
                    self._stream_window = value
            self.out += frame(_SETTINGS, _ACK, 0, b"")
        elif kind == _PING and not flags & _ACK:
            self.out += frame(_PING, _ACK, 0, data[start:after])
        elif kind == _WINDOW_UPDATE and stream == 0:
            self._window += int.from_bytes(data[start:after], "big")
            self.out += self._released()
        elif kind == _RST_STREAM:
            self._streams.pop(stream, None)
            self._open.pop(stream, None)
            answers.append(Answer(stream, f"stream reset {int.from_bytes(data[start:after], 'big')}", b""))
        elif kind == _GOAWAY:
            raise WireError(f"the server goes away: {data[start:after]!r}")


class GrpcWire(GrpcConnection):
    """See :class:`routekeeper.bench.micro.raft.wire.Wire`.

    Args:
        key: Number of the connection's own key.
        value: What is written, but for its first twelve bytes, which tell the write.
        linearizable: Reads ask the leader; else they are serializable, answered from the member's own state.
    """

    def __init__(self, *, key: int, value: bytes, linearizable: bool = False) -> None:
        super().__init__()
        self._linearizable = linearizable
        put = message(field(1, key_of(key)) + field(2, value))
        at = len(put) - len(value)
        self._put_before, self._put_after = put[:at], put[at + _MARK_SIZE :]
        self._ranges: dict[int, bytes] = {}

    def prepare(self) -> bytes:
        return self.write(0)

    def write(self, number: int) -> bytes:
        return self.call(PUT, b"".join((self._put_before, self.marker(number), self._put_after)))

    def read(self, number: int, key: int) -> bytes:
        asked = self._ranges.get(key)
        if asked is None:
            serializable = b"" if self._linearizable else b"\x38\x01"  # field 7: true
            asked = self._ranges[key] = message(field(1, key_of(key)) + serializable)
        return self.call(RANGE, asked)

    def marker(self, number: int) -> bytes:
        return b"#%010d#" % number
