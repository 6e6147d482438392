"""Compression of message bodies with zlib, LZ4 and Zstandard; the decompressed size is limited.

Java's producers write a zlib stream, an LZ4 frame, or a Zstandard frame. The header of their Zstandard frame
may lack the decompressed size.
Source: ZlibCompressor, Lz4Compressor and ZstdCompressor of RocketMQ 5.3.
"""

from __future__ import annotations

import zlib
from typing import Final

from routekeeper.remoting.errors import LocalProtocolError, RemoteProtocolError

#: Values of the compression method, which is bits 8 to 10 of a message's system flag. Senders before 5.0
#: write 0 for zlib. Source: CompressionType.
LZ4: Final = 1
ZSTANDARD: Final = 2
ZLIB: Final = 3


def deflate(body: bytes, method: int, *, level: int) -> bytes:
    """Return ``body`` compressed.

    Args:
        level: Compression level from 0 to 9, as in zlib; LZ4 ignores the level.

    Raises:
        LocalProtocolError: If the method is unknown.
    """
    # Import lz4 and zstandard only where they are used. Most programs never need them, and importing them
    # takes longer than importing most of this package.
    match method:
        case 0 | 3:
            return zlib.compress(body, level)
        case 1:
            import lz4.frame

            small: bytes = lz4.frame.compress(body)
            return small
        case 2:
            import zstandard

            small = zstandard.ZstdCompressor(level=level).compress(body)
            return small
    raise LocalProtocolError(f"compression method {method}, allowed are 0 to 3")


def inflate(body: bytes, method: int, *, size_max: int) -> bytes:
    """Return the decompressed ``body``; the result never takes more than ``size_max`` bytes of memory.

    Raises:
        RemoteProtocolError: If the method is unknown, if the body is no complete stream of this method, or if
            the decompressed body is larger than ``size_max``.
    """
    match method:
        case 0 | 3:
            plain = _inflate_zlib(body, size_max)
        case 1:
            plain = _inflate_lz4(body, size_max)
        case 2:
            plain = _inflate_zstandard(body, size_max)
        case _:
            raise RemoteProtocolError(
                f"body is compressed by method {method}, known are 0 and 3 (zlib), 1 (LZ4), 2 (Zstandard)"
            )
    if len(plain) > size_max:
        raise RemoteProtocolError(f"body of {len(body)} bytes inflates above the limit of {size_max}")
    return plain


def _inflate_zlib(body: bytes, size_max: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(body, size_max + 1)
    except zlib.error as error:
        raise RemoteProtocolError(f"body of {len(body)} bytes is no zlib stream: {error}") from None
    if not stream.eof and len(plain) <= size_max:
        raise RemoteProtocolError(f"zlib stream of {len(body)} bytes ends early")
    return plain


def _inflate_lz4(body: bytes, size_max: int) -> bytes:
    import lz4.frame

    stream = lz4.frame.LZ4FrameDecompressor()
    try:
        plain: bytes = stream.decompress(body, max_length=size_max + 1)
    except RuntimeError as error:
        raise RemoteProtocolError(f"body of {len(body)} bytes is no LZ4 frame: {error}") from None
    if not stream.eof and len(plain) <= size_max:
        raise RemoteProtocolError(f"LZ4 frame of {len(body)} bytes ends early")
    return plain


def _inflate_zstandard(body: bytes, size_max: int) -> bytes:
    import zstandard

    try:
        stated = zstandard.frame_content_size(body)  # -1 if the header does not state the size
        # Refuse the body here. Otherwise the library would allocate the stated size, even above
        # max_output_size.
        if stated > size_max:
            raise RemoteProtocolError(
                f"body of {len(body)} bytes inflates to {stated}, above the limit of {size_max}"
            )
        if stated == 0:
            return b""
        plain: bytes = zstandard.ZstdDecompressor().decompress(body, max_output_size=size_max)
        return plain
    except zstandard.ZstdError as error:
        raise RemoteProtocolError(
            f"body of {len(body)} bytes is no Zstandard frame of at most {size_max} bytes: {error}"
        ) from None
