"""RocketMQ's full registrations (request 103) and route queries (request 105), as version 5.3.3 sends them.

A write is a broker's full registration: JSON headers, the CRC of the body, and a JSON body with all topics.
Each write changes one topic and the DataVersion. The registration is encoded once. For each write, five
numbers of fixed width are replaced in the encoded bytes.
"""

from __future__ import annotations

import struct
from typing import Final

import orjson

from routekeeper.bench.wires.wire import Answer, WireError
from routekeeper.remoting.codes import HeaderCodec, RequestCode
from routekeeper.remoting.fields import RegisterBrokerFields
from routekeeper.remoting.frame import encode_frame
from routekeeper.remoting.header import Header, encode_header
from routekeeper.remoting.registration import RegisterBody, body_crc32, encode_register_body
from routekeeper.remoting.route import DataVersion, TopicConfig

VERSION: Final = 479
CLUSTER: Final = "bench"
_FIRST_OPAQUE: Final = 100_000_000
_FIRST_COUNTER: Final = 100_000_000
#: Number of queues that every topic has before its first write. Later numbers of queues are larger, and also
#: have four digits.
_BASE: Final = 1000
_VALUES: Final = 8999
_LENGTHS: Final = struct.Struct(">II")
_CRC_MARK: Final = 1_111_111_111


def topic_name(key: int, topic: int) -> str:
    return f"orders-{key:04d}-{topic:03d}"


def broker_addr(key: int) -> str:
    return f"10.0.{key // 250}.{key % 250 + 1}:10911"


def value_of(number: int) -> int:
    """Return the number of queues to which write ``number`` sets the changed topic.

    Write 0 is the first registration, made by :meth:`RemotingWire.prepare`.
    """
    return _BASE + 1 + (number - 1) % _VALUES if number else _BASE


class RemotingAnswers:
    """Decoder of answers with JSON headers. It is a :class:`routekeeper.bench.wires.wire.Conversation`."""

    def __init__(self) -> None:
        self.ready = True
        self.tag = _FIRST_OPAQUE
        self.out = bytearray()
        self._rest = b""

    def hello(self) -> bytes:
        return b""

    def feed(self, data: bytes) -> list[Answer]:
        if self._rest:
            data = self._rest + data
        answers = []
        position, end = 0, len(data)
        while end - position >= 8:
            size, word = _LENGTHS.unpack_from(data, position)
            after = position + 4 + size
            if after > end:
                break
            if word >> 24 != HeaderCodec.JSON:
                raise WireError(f"answer in header codec {word >> 24}, asked in JSON")
            body_at = position + 8 + word
            header = orjson.loads(memoryview(data)[position + 8 : body_at])
            error = f"code {header['code']}: {header.get('remark')}" if header["code"] else None
            answers.append(Answer(header["opaque"], error, data[body_at:after]))
            position = after
        self._rest = data[position:]
        return answers


class RemotingWire(RemotingAnswers):
    """A broker's connection to one nameserver (see :class:`routekeeper.bench.wires.wire.Wire`).

    Args:
        key: Number of the broker.
        topics: Number of the broker's topics.
        timestamp_ms: Timestamp of the broker's DataVersion. A later run must use a later timestamp.
    """

    def __init__(self, *, key: int, topics: int, timestamp_ms: int) -> None:
        super().__init__()
        self._topics = topics
        self._queries: dict[tuple[int, int], tuple[bytes, bytes]] = {}
        body = encode_register_body(
            RegisterBody(
                data_version=DataVersion(timestamp=timestamp_ms, counter=_FIRST_COUNTER),
                topic_configs=tuple(
                    TopicConfig(
                        topic_name=topic_name(key, topic), read_queue_nums=_BASE, write_queue_nums=_BASE
                    )
                    for topic in range(topics)
                ),
                filter_servers=(),
            ),
            compressed=False,
            version=VERSION,
        )
        fields = RegisterBrokerFields(
            broker_name=f"broker-{key:04d}",
            broker_addr=broker_addr(key),
            cluster_name=CLUSTER,
            ha_server_addr=f"10.0.{key // 250}.{key % 250 + 1}:10912",
            broker_id=0,
            body_crc32=_CRC_MARK,
        )
        header = _header(RequestCode.REGISTER_BROKER, fields.to_ext())
        frame = encode_frame(header, body, codec=HeaderCodec.JSON)
        self._frame = bytearray(frame)
        self.body_size = len(body)
        self._body_at = len(frame) - len(body)
        self._opaque_at = frame.index(b"%d" % _FIRST_OPAQUE)
        self._crc_at = frame.index(b"%d" % _CRC_MARK)
        self._counter_at = frame.index(b'"counter":', self._body_at) + len(b'"counter":')
        self._reads_at = _positions(frame, b'"readQueueNums":', self._body_at)
        self._writes_at = _positions(frame, b'"writeQueueNums":', self._body_at)
        assert len(self._reads_at) == len(self._writes_at) == topics

    def prepare(self) -> bytes:
        return self._register(0)

    def write(self, number: int) -> bytes:
        topic = number % self._topics
        value = b"%d" % value_of(number)
        frame = self._frame
        at = self._reads_at[topic]
        frame[at : at + 4] = value
        at = self._writes_at[topic]
        frame[at : at + 4] = value
        return self._register(number)

    def _register(self, number: int) -> bytes:
        at = self._counter_at
        self._frame[at : at + 9] = b"%d" % (_FIRST_COUNTER + number)
        crc = body_crc32(bytes(memoryview(self._frame)[self._body_at :]))
        at = self._crc_at
        # Pad with blanks after the closing quote, because the frame's length must not change. Leading zeros
        # are not possible, because Java writes the number without them.
        self._frame[at : at + 11] = (b'%d"' % crc).ljust(11)
        self.tag += 1
        at = self._opaque_at
        self._frame[at : at + 9] = b"%d" % self.tag
        return bytes(self._frame)

    def read(self, number: int, key: int) -> bytes:
        topic = number % self._topics
        query = self._queries.get((key, topic))
        if query is None:
            header = _header(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic_name(key, topic)})
            before, _, after = encode_frame(header, codec=HeaderCodec.JSON).partition(b"%d" % _FIRST_OPAQUE)
            query = self._queries[key, topic] = before, after
        self.tag += 1
        return b"%b%d%b" % (query[0], self.tag, query[1])

    def marker(self, number: int) -> bytes:
        return b'"readQueueNums":%d,' % value_of(number)


def _header(code: RequestCode, ext: dict[str, str]) -> bytes:
    header = Header(code, "JAVA", VERSION, _FIRST_OPAQUE, 0, None, ext)
    return encode_header(header, HeaderCodec.JSON)


def _positions(frame: bytes, mark: bytes, start: int) -> list[int]:
    found = []
    while (at := frame.find(mark, start)) >= 0:
        start = at + len(mark)
        found.append(start)
    return found
