"""Length-prefixed frames: encoding, and an incremental decoder with limits."""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from typing import Final, NamedTuple

from routekeeper.remoting.codes import HeaderCodec
from routekeeper.remoting.errors import LocalProtocolError, RemoteProtocolError

#: Largest frame in bytes, length word included. Source: NettyDecoder, frameMaxLength.
FRAME_SIZE_MAX: Final = 16 * 1024 * 1024
#: Longest header in bytes.
HEADER_SIZE_MAX: Final = 0xFFFFFF
_PREFIX: Final = struct.Struct(">II")
_LENGTH: Final = struct.Struct(">I")


class Frame(NamedTuple):
    """One received frame; its header and body are still encoded."""

    codec: HeaderCodec
    header: bytes
    body: bytes


def encode_frame(header: bytes, body: bytes = b"", *, codec: HeaderCodec) -> bytes:
    """Return one remoting frame, ready for the socket.

    Layout, big-endian::

        size         u32    bytes that follow: 4 + len(header) + len(body)
        header_word  u32    codec in bits 24-31, len(header) in bits 0-23
        header, body

    Raises:
        LocalProtocolError: If the header or the frame is above its limit; nothing was sent.

    Source: RemotingCommand.encode and markProtocolType, RocketMQ 5.3.
    """
    header_size = len(header)
    size = 4 + header_size + len(body)
    if header_size > HEADER_SIZE_MAX or size + 4 > FRAME_SIZE_MAX:
        raise LocalProtocolError(
            f"frame of {size + 4} bytes (header {header_size}) is above the limit of {FRAME_SIZE_MAX}"
        )
    return _PREFIX.pack(size, codec << 24 | header_size) + header + body


def split_frame(data: bytes | bytearray | memoryview, start: int, size: int) -> Frame:
    """Split the frame of ``size`` bytes whose length word begins at ``start``; all its bytes must be present.

    Raises:
        RemoteProtocolError: If the header word does not fit the frame or names an unknown codec.
    """
    if size < 4:
        raise RemoteProtocolError(f"frame of {size} bytes has no header word, at least 4 are needed")
    (word,) = _LENGTH.unpack_from(data, start + 4)
    header_size = word & HEADER_SIZE_MAX
    if header_size > size - 4:
        raise RemoteProtocolError(f"header of {header_size} bytes does not fit its frame of {size}")
    codec = word >> 24
    if codec > HeaderCodec.ROCKETMQ:
        raise RemoteProtocolError(f"unknown header codec {codec}, known are 0 (JSON) and 1 (ROCKETMQ)")
    header_end = start + 8 + header_size
    return Frame(
        HeaderCodec(codec), bytes(data[start + 8 : header_end]), bytes(data[header_end : start + 4 + size])
    )


class FrameDecoder:
    """Incremental decoder, which takes bytes as they arrive and yields whole frames.

    The decoder holds at most one frame of ``frame_size_max`` bytes plus the bytes of one :meth:`feed`. Do not
    use the decoder after an error; close the connection.
    """

    __slots__ = ("_buffer", "_frame_size_max", "_missing")

    def __init__(self, *, frame_size_max: int = FRAME_SIZE_MAX) -> None:
        self._buffer = bytearray()
        self._missing = 0  # number of bytes that the buffer must hold before it contains a whole frame
        self._frame_size_max = frame_size_max

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[Frame]:
        """Yield each frame completed by ``data``.

        Raises:
            RemoteProtocolError: If a frame is above the limit or malformed; all earlier frames were yielded.
        """
        for whole, start, size in self.places(bytes(data)):
            yield split_frame(whole, start, size)

    def places(self, data: bytes) -> Generator[tuple[bytes, int, int], None, None]:
        """Yield the position of each frame that ``data`` completes.

        Each item has three parts. These are the bytes that contain the frame, the position of its length word
        in these bytes, and the value of this word. If the generator is closed early, the next call begins
        with the frames that were not yielded.

        Raises:
            RemoteProtocolError: If a frame is above the limit; all earlier frames were yielded.
        """
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._missing:
                return
            data = bytes(self._buffer)
            self._buffer.clear()
        start, end = 0, len(data)
        self._missing = 4
        try:
            while end - start >= 4:
                (size,) = _LENGTH.unpack_from(data, start)
                if size + 4 > self._frame_size_max:
                    raise RemoteProtocolError(
                        f"frame of {size + 4} bytes is above the limit of {self._frame_size_max}"
                    )
                if end - start - 4 < size:
                    self._missing = size + 4
                    break
                position = start
                start += 4 + size
                yield data, position, size
        finally:
            if start < end:
                self._buffer += data[start:]
