"""Encoded answers to route queries: from the bytes of a request to the bytes of its answer.

Route reads outnumber writes by orders of magnitude, and a client asks for the same topic with the same header
but for the opaque. Two tables follow from that:

- **tails**: what an answer to one topic, dialect and header codec ends with (everything after the opaque),
  encoded once per topic revision;
- **lanes**: a request's bytes around its opaque, to the answer's pieces. What stands here was read by the
  full parser, twice even: a header is learnt only if the parser reads the same header with another opaque in
  the same place. A look-up therefore equals a parse; a property test holds it to that.

A client's requests all end alike (release, codec, and as many digits of opaque as in its last request): that
is a lane. A batch of one lane's requests is cut apart and looked up by a few calls for all of them together.

Both tables are bounded. Nothing here awaits, and nothing here knows the mode: the view comes from the caller.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from nameserver.config import NamesrvSettings
from nameserver.route_table import RouteView
from remoting.codes import FLAG_RESPONSE, VERSION, HeaderCodec, LanguageCode, RequestCode, ResponseCode
from remoting.errors import FieldError, RemoteProtocolError
from remoting.fields import GetRouteFields
from remoting.header import Header, decode_header, encode_header
from remoting.route import RouteDialect, dialect_for, encode_route

#: Answers after which a batch is handed back to the connection, which then looks whether its peer reads.
BATCH_MAX: Final = 64
#: Longest request header that is looked up, in bytes; longer ones go the full way.
HEADER_MAX: Final = 1024
#: Answers above this many bytes go the full way, so that one batch stays bounded.
TAIL_MAX: Final = 64 * 1024
REQUESTS_MAX: Final = 50_000
TAILS_BYTES_MAX: Final = 128 * 1024 * 1024

_OPAQUE: Final = b'"opaque":'
_OPAQUE_SIZE: Final = len(_OPAQUE)
_START: Final = b'{"code":105,'
_DIGITS: Final = re.compile(rb"[1-9][0-9]{0,8}")
_LENGTHS: Final = struct.Struct(">II")
_LENGTH: Final = struct.Struct(">I")
_BINARY_HEADER_OPAQUE: Final = 5  # after code, language and version
_BINARY_OPAQUE: Final = 8 + _BINARY_HEADER_OPAQUE  # in the frame, after its two length words
_BINARY_REST: Final = _BINARY_OPAQUE + 4
_BINARY_MARK: Final = bytes((HeaderCodec.ROCKETMQ,))  # fifth byte of a binary frame
_TAIL_COST: Final = 400  # bytes that a tail costs beside its content


class _Asked(NamedTuple):
    """All that an answer depends on beside the table and the settings."""

    topic: str
    dialect: RouteDialect
    codec: HeaderCodec


class _Tail(NamedTuple):
    """What answers end with, after the opaque, and the topic revision that it shows."""

    topic_revision: int
    header_rest_size: int
    content: bytes


class _Line:
    """The pieces of one answer, right at one table revision; brought up to date in place."""

    __slots__ = ("asked", "head", "revision", "tail")

    def __init__(self, revision: int, head: bytes, tail: bytes, asked: _Asked) -> None:
        self.revision = revision
        self.head = head
        self.tail = tail
        self.asked = asked


class _Lane:
    """Requests that end alike after an opaque of one number of digits.

    Attributes:
        starts: The bytes before the opaque, length words included, to the answer.
        joints: The same, behind the end of the request before: what lies between two opaques of a batch.
    """

    __slots__ = ("joints", "starts")

    def __init__(self) -> None:
        self.starts: dict[bytes, _Line] = {}
        self.joints: dict[bytes, _Line] = {}


class RouteCache:
    """Answers leading route queries of received bytes.

    Args:
        view: Returns the view with the freshness in force, or None if a read cannot be answered at once. It
            calls :meth:`clear` first when the settings have changed.
        settings: Returns the settings in force.
    """

    def __init__(
        self,
        *,
        view: Callable[[], RouteView | None],
        settings: Callable[[], NamesrvSettings],
        requests_max: int = REQUESTS_MAX,
        tails_bytes_max: int = TAILS_BYTES_MAX,
    ) -> None:
        self._view = view
        self._settings = settings
        self._requests_max = requests_max
        self._tails_bytes_max = tails_bytes_max
        self._lanes: dict[tuple[int, bytes], _Lane] = {}
        self._binary: dict[bytes, _Line] = {}
        self._tails: dict[_Asked, _Tail] = {}
        self._lines_count = 0
        self._tails_bytes = 0
        #: Route queries answered from here.
        self.hits = 0
        #: Requests that had to be parsed to be learnt.
        self.learnt = 0

    @property
    def entries(self) -> int:
        """Requests known."""
        return self._lines_count

    @property
    def tails_bytes(self) -> int:
        """Bytes of encoded answers held."""
        return self._tails_bytes

    def clear(self) -> None:
        """Forget everything."""
        self._tails.clear()
        self._tails_bytes = 0
        self._forget_requests()

    def answer(self, data: bytes, position: int, answers: list[bytes]) -> int:
        """Append the answers of leading route queries in ``data``; return the position after them.

        Stops at the first frame that is anything else, is not whole, or cannot be answered from the table at
        once (unknown topic, no contact): that one goes the full way. Stops also after :data:`BATCH_MAX`.
        """
        view = self._view()
        if view is None:
            return position
        revision = view.revision
        if position == 0 and data[4:5] == _BINARY_MARK:
            line = self._binary.get(data[:_BINARY_OPAQUE] + data[_BINARY_REST:])
            if line is not None and line.revision == revision:
                answers += (line.head, data[_BINARY_OPAQUE:_BINARY_REST], line.tail)
                self.hits += 1
                return len(data)
        elif position == 0:
            # The end of the last request names the lane, if there is one. This is the way of nearly every
            # request, so it works on whole batches and bytes only.
            mark_at = data.rfind(_OPAQUE)
            opaque_at = mark_at + _OPAQUE_SIZE
            rest_at = data.find(b",", opaque_at)
            lane = self._lanes.get((rest_at - opaque_at, data[rest_at:]))
            if lane is not None:
                if data.find(_OPAQUE) == mark_at:
                    line = lane.starts.get(data[:mark_at])
                    opaque = data[opaque_at:rest_at]
                    # The parser takes neither blanks nor leading zeros, and 0 itself goes the full way.
                    if line is not None and line.revision == revision and opaque.isdigit() and opaque >= b"1":
                        answers += (line.head, opaque, line.tail)
                        self.hits += 1
                        return len(data)
                elif self._answer_batch(data, rest_at - opaque_at, lane, revision, answers):
                    return len(data)
        return self._answer_each(data, position, answers, view)

    def _answer_batch(
        self, data: bytes, digits: int, lane: _Lane, revision: int, answers: list[bytes]
    ) -> bool:
        """Answer a batch that consists of requests of one lane and nothing else; False if it is none."""
        start, *joints = data.split(_OPAQUE, BATCH_MAX + 1)
        if len(joints) > BATCH_MAX:
            return False
        first = lane.starts.get(start)
        if first is None:
            return False
        lines = [first]
        # Each joint but the last is an opaque, the end of its request, and the start of the next request.
        joint_of = lane.joints
        try:
            lines += [joint_of[joint[digits:]] for joint in joints[:-1]]
        except KeyError:
            return False
        opaques = [joint[:digits] for joint in joints]
        if min(opaques) < b"1" or not b"".join(opaques).isdigit():
            return False
        pieces: list[bytes] = []
        for line, opaque in zip(lines, opaques, strict=True):
            if line.revision != revision:
                return False
            pieces += (line.head, opaque, line.tail)
        answers += pieces
        self.hits += len(lines)
        return True

    def _answer_each(self, data: bytes, position: int, answers: list[bytes], view: RouteView) -> int:
        """Answer leading requests one by one: any mixture, new ones, and those whose topic has changed."""
        revision = view.revision
        end = len(data)
        count = 0
        while end - position > _BINARY_REST and count < BATCH_MAX:
            stop = position + 4 + _LENGTH.unpack_from(data, position)[0]
            if stop > end:
                break
            line: _Line | None
            if data[position + 4] == HeaderCodec.JSON:
                opaque_at = data.find(_OPAQUE, position, position + HEADER_MAX) + _OPAQUE_SIZE
                rest_at = data.find(b",", opaque_at, stop)
                opaque = data[opaque_at:rest_at]
                lane = self._lanes.get((rest_at - opaque_at, data[rest_at:stop]))
                start = data[position : opaque_at - _OPAQUE_SIZE]
                line = lane.starts.get(start) if lane is not None else None
                if line is not None and (not opaque.isdigit() or opaque < b"1"):
                    break
            else:
                opaque_at, rest_at = position + _BINARY_OPAQUE, position + _BINARY_REST
                opaque = data[opaque_at:rest_at]
                line = self._binary.get(data[position:opaque_at] + data[rest_at:stop])
            if line is None:
                line = self._learn(data, position, stop, opaque_at, rest_at, view)
                if line is None:
                    break
            elif line.revision != revision and not self._refresh(line, view, len(opaque)):
                self._forget(data, position, stop, opaque_at, rest_at)  # the topic is gone
                break
            answers += (line.head, opaque, line.tail)
            position = stop
            count += 1
        self.hits += count
        return position

    def _learn(
        self, data: bytes, position: int, stop: int, opaque_at: int, rest_at: int, view: RouteView
    ) -> _Line | None:
        """Take one whole frame into the tables and return its answer; None if it goes the full way."""
        size, word = _LENGTHS.unpack_from(data, position)
        is_json = word >> 24 == HeaderCodec.JSON
        if is_json and not data.startswith(_START, position + 8):
            return None  # not a route query as known clients write it
        if size != 4 + (word & 0xFFFFFF) or size > HEADER_MAX - 16:
            return None
        asked = _read(data[position + 8 : stop], word >> 24)
        if asked is None:
            return None
        line = _Line(-1, b"", b"", asked)
        if not self._refresh(line, view, rest_at - opaque_at):
            return None
        if self._lines_count >= self._requests_max:
            self._forget_requests()
        rest = data[rest_at:stop]
        if is_json:
            start = data[position : opaque_at - _OPAQUE_SIZE]
            lane = self._lanes.setdefault((rest_at - opaque_at, rest), _Lane())
            lane.starts[start] = lane.joints[rest + start] = line
        else:
            self._binary[data[position:opaque_at] + rest] = line
        self._lines_count += 1
        self.learnt += 1
        return line

    def _refresh(self, line: _Line, view: RouteView, opaque_size: int) -> bool:
        """Make an answer what the table now says; False if it must be answered the full way."""
        asked = line.asked
        tail = self._tail(asked, view)
        if tail is None:
            return False
        if line.tail is not tail.content:
            before, _ = _ANSWER_HEADERS[asked.codec]
            header_size = len(before) + opaque_size + tail.header_rest_size
            body_size = len(tail.content) - tail.header_rest_size
            lengths = _LENGTHS.pack(4 + header_size + body_size, asked.codec << 24 | header_size)
            line.head, line.tail = lengths + before, tail.content
        line.revision = view.revision
        return True

    def _tail(self, asked: _Asked, view: RouteView) -> _Tail | None:
        topic_revision = view.topic_revision(asked.topic)
        tail = self._tails.get(asked)
        if tail is not None:
            if tail.topic_revision == topic_revision:
                return tail
            self._tails_bytes -= len(tail.content) + _TAIL_COST
            del self._tails[asked]
        settings = self._settings()
        route = view.route(
            asked.topic,
            acting_master=settings.support_acting_master,
            order_conf=settings.order_message_enable,
        )
        if route is None:
            return None
        _, rest = _ANSWER_HEADERS[asked.codec]
        content = rest + encode_route(route, asked.dialect)
        if len(content) > TAIL_MAX:
            return None
        if self._tails_bytes + len(content) > self._tails_bytes_max:
            self.clear()
        tail = _Tail(topic_revision=topic_revision, header_rest_size=len(rest), content=content)
        self._tails[asked] = tail
        self._tails_bytes += len(content) + _TAIL_COST
        return tail

    def _forget(self, data: bytes, position: int, stop: int, opaque_at: int, rest_at: int) -> None:
        rest = data[rest_at:stop]
        if self._binary.pop(data[position:opaque_at] + rest, None) is None:
            key = rest_at - opaque_at, rest
            lane = self._lanes[key]
            start = data[position : opaque_at - _OPAQUE_SIZE]
            del lane.starts[start], lane.joints[rest + start]
            if not lane.starts:
                del self._lanes[key]
        self._lines_count -= 1

    def _forget_requests(self) -> None:
        self._lanes.clear()
        self._binary.clear()
        self._lines_count = 0


def _read(header_bytes: bytes, codec: int) -> _Asked | None:
    """Parse a header in full; None if it is no request whose answer depends on what :class:`_Asked` names."""
    if codec not in (HeaderCodec.JSON, HeaderCodec.ROCKETMQ):
        return None
    try:
        header = decode_header(header_bytes, HeaderCodec(codec))
        fields = GetRouteFields.parse(header.ext_fields or {})
    except (RemoteProtocolError, FieldError):
        return None
    if header.code != RequestCode.GET_ROUTEINFO_BY_TOPIC or header.flag != 0:
        return None
    if fields.topic is None or fields.zone_mode:
        return None
    if codec == HeaderCodec.JSON and not _opaque_is_where_it_seems(header_bytes, header):
        return None
    dialect = dialect_for(header.version, accept_standard_json_only=fields.accept_standard_json_only)
    return _Asked(fields.topic, dialect, HeaderCodec(codec))


def _opaque_is_where_it_seems(header_bytes: bytes, header: Header) -> bool:
    """Whether exchanging the digits after the first ``"opaque":`` exchanges the opaque and nothing else."""
    before, mark, after = header_bytes.partition(_OPAQUE)
    digits, comma, rest = after.partition(b",")
    if not comma or not _DIGITS.fullmatch(digits) or header.opaque != int(digits):
        return False
    other = (b"1" if digits[:1] != b"1" else b"2") + digits[1:]
    try:
        changed = decode_header(before + mark + other + comma + rest, HeaderCodec.JSON)
    except RemoteProtocolError:
        return False
    return changed == header._replace(opaque=int(other))


def _split_answer_header(codec: HeaderCodec) -> tuple[bytes, bytes]:
    """Return the header of a successful answer, before and after its opaque."""
    whole = encode_header(
        Header(ResponseCode.SUCCESS, LanguageCode.PYTHON, VERSION, 1, FLAG_RESPONSE, None, None), codec
    )
    if codec is HeaderCodec.JSON:
        before, mark, after = whole.partition(_OPAQUE)
        return before + mark, after[1:]
    return whole[:_BINARY_HEADER_OPAQUE], whole[_BINARY_HEADER_OPAQUE + 4 :]


_ANSWER_HEADERS: Final = {codec: _split_answer_header(codec) for codec in HeaderCodec}
