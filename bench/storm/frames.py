"""Registrations of many brokers with many topics, encoded before the measurement starts.

This module does no I/O and reads no clock.

All brokers have the same topics, as in a real installation. Their registrations differ only in the header and
the DataVersion. So the bytes of the topics are in memory only once, and each broker adds some hundred bytes.
Without this, 300 registrations of 1.7 MB would take 500 MB of memory.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final

import orjson

from routekeeper.bench.wires.remoting_wire import CLUSTER, VERSION, broker_addr
from routekeeper.remoting.codes import HeaderCodec, RequestCode
from routekeeper.remoting.fields import RegisterBrokerFields
from routekeeper.remoting.frame import encode_frame
from routekeeper.remoting.header import Header, encode_header
from routekeeper.remoting.registration import RegisterBody, encode_register_body
from routekeeper.remoting.route import DataVersion, TopicConfig

#: Request number (opaque) of every frame. One number is enough, because a connection has one request in
#: flight.
OPAQUE: Final = 100_000_000
QUEUES: Final = 8
_SIZE: Final = struct.Struct(">I")
_CRC_SIGN: Final = 0x7FFFFFFF
_BEST: Final = 9
#: First bytes of a zlib stream with the best compression level.
_ZLIB: Final = b"\x78\xda"
_JSON_TOPICS: Final = b',"topicConfigTable":'


def topic_name(number: int) -> str:
    return f"topic-{number:06d}"


def broker_name(key: int) -> str:
    return f"storm-{key:04d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """The parts of a registration's body that are the same for all brokers.

    Attributes:
        before: Bytes before the DataVersion.
        shared: Bytes after the DataVersion; deflated if ``compressed``.
        plain: The inflated bytes of ``shared`` if ``compressed``; otherwise empty.
    """

    compressed: bool
    before: bytes
    shared: bytes
    plain: bytes


def make_topics(names: list[str], *, compressed: bool, queues: int = QUEUES) -> Topics:
    content = RegisterBody(
        data_version=DataVersion(),
        topic_configs=tuple(
            TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues) for name in names
        ),
        filter_servers=(),
    )
    body = encode_register_body(content, compressed=compressed, version=VERSION)
    if not compressed:
        at = body.index(_JSON_TOPICS)
        version = orjson.dumps(content.data_version.to_json())
        before, rest = body[: at - len(version)], body[at:]
        assert body[at - len(version) : at] == version, "the DataVersion stands before the topics"
        return Topics(compressed=False, before=before, shared=rest, plain=b"")
    plain = zlib.decompress(body)
    plain = plain[_SIZE.size + _SIZE.unpack_from(plain)[0] :]
    deflate = zlib.compressobj(_BEST, wbits=-zlib.MAX_WBITS)
    shared = deflate.compress(plain) + deflate.flush()
    return Topics(compressed=True, before=b"", shared=shared, plain=plain)


def register_frame(key: int, topics: Topics, version: DataVersion) -> tuple[bytes, ...]:
    """Return a broker's registration (request 103) in pieces; the piece ``topics.shared`` is not copied."""
    body: tuple[bytes, ...]
    if topics.compressed:
        written = version.encode()
        plain = _SIZE.pack(len(written)) + written
        deflate = zlib.compressobj(_BEST, wbits=-zlib.MAX_WBITS)
        # After a full flush, the output ends on a byte boundary, and the compressor forgets the earlier
        # bytes. So the bytes that follow can be deflated separately.
        start = _ZLIB + deflate.compress(plain) + deflate.flush(zlib.Z_FULL_FLUSH)
        check = zlib.adler32(topics.plain, zlib.adler32(plain))
        body = start, topics.shared, _SIZE.pack(check)
    else:
        body = topics.before + orjson.dumps(version.to_json()), topics.shared
    crc = 0
    for piece in body:
        crc = zlib.crc32(piece, crc)
    addr = broker_addr(key)
    fields = RegisterBrokerFields(
        broker_name=broker_name(key),
        broker_addr=addr,
        cluster_name=CLUSTER,
        ha_server_addr=addr,
        broker_id=0,
        compressed=topics.compressed,
        body_crc32=crc & _CRC_SIGN,
    )
    head = _frame(RequestCode.REGISTER_BROKER, fields.to_ext())
    size = len(head) - _SIZE.size + sum(map(len, body))
    return _SIZE.pack(size) + head[_SIZE.size :], *body


def query_frame(topic: str) -> bytes:
    """Return a request for a route (request 105), byte for byte as a client of RocketMQ 5.3.3 sends it."""
    return _frame(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})


def _frame(code: RequestCode, ext: dict[str, str]) -> bytes:
    header = Header(code, "JAVA", VERSION, OPAQUE, 0, None, ext)
    return encode_frame(encode_header(header, HeaderCodec.JSON), codec=HeaderCodec.JSON)
