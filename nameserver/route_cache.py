"""Encoded answers to route queries: from the bytes of a request to the bytes of its answer.

Route reads outnumber writes by orders of magnitude, and a client asks for the same topic with the same header
but for the opaque. Two tables follow from that:

- **tails**: what an answer to one topic, dialect and header codec ends with (everything after the opaque),
  encoded once per topic revision;
- **starts**: the bytes of a request before its opaque, then those after it, to the answer's pieces. What
  stands here was read by the full parser, twice even: a header is learnt only if the parser reads the same
  header with another opaque in the same place. A look-up therefore equals a parse; a property test holds it
  to that.

Both are bounded. Nothing here awaits, and nothing here knows the mode: the view comes from the caller.
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

#: Pieces of answers after which a batch is handed back to the connection, which then looks whether its peer
#: reads. Three pieces make one answer.
PIECES_MAX: Final = 192
#: Longest request header that is looked up, in bytes; longer ones go the full way.
HEADER_MAX: Final = 1024
#: Answers above this many bytes go the full way, so that one batch stays bounded.
TAIL_MAX: Final = 64 * 1024
REQUESTS_MAX: Final = 50_000
TAILS_BYTES_MAX: Final = 128 * 1024 * 1024

_OPAQUE: Final = b'"opaque":'
_START: Final = b'{"code":105,'
_DIGITS: Final = re.compile(rb"[1-9][0-9]{0,8}")
_LENGTHS: Final = struct.Struct(">II")
_BINARY_HEADER_OPAQUE: Final = 5  # after code, language and version
_BINARY_OPAQUE: Final = 8 + _BINARY_HEADER_OPAQUE  # in the frame, after its two length words
_BINARY_REST: Final = _BINARY_OPAQUE + 4
_TAIL_COST: Final = 400  # bytes that a tail costs beside its content


class _Asked(NamedTuple):
    """All that an answer depends on beside the table and the settings."""

    topic: str
    dialect: RouteDialect
    codec: HeaderCodec


class _Line(NamedTuple):
    """The pieces of one answer, known to be right at one table revision."""

    revision: int
    head: bytes
    tail: bytes
    asked: _Asked


class _Tail(NamedTuple):
    """What answers end with, after the opaque, and the topic revision that it shows."""

    topic_revision: int
    header_rest_size: int
    content: bytes


class _Start(NamedTuple):
    """What is known of requests that begin alike, up to their opaque.

    Attributes:
        size: Of the whole frame, in bytes; it follows from the length word, which is part of the start.
        lines: The bytes after the opaque, to the answer.
    """

    size: int
    json: bool
    lines: dict[bytes, _Line]


class RouteCache:
    """Answers leading route queries of received bytes.

    Args:
        view: Returns the view with the freshness in force, or None if a read cannot be answered at once.
        settings: Returns the settings in force; when it returns another object the cache empties itself.
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
        self._settings_seen: NamesrvSettings | None = None
        self._requests_max = requests_max
        self._tails_bytes_max = tails_bytes_max
        self._starts: dict[bytes, _Start] = {}
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

    def answer(self, data: bytes, position: int, answers: list[bytes]) -> int:
        """Append the answers of leading route queries in ``data``; return the position after them.

        Stops at the first frame that is anything else, is not whole, or cannot be answered from the table at
        once (unknown topic, no contact): that one goes the full way.
        """
        # One pass of this loop is the price of a route query: slices and two look-ups, no parsing.
        starts = self._starts
        find = data.find
        end = len(data)
        view: RouteView | None = None
        revision = 0
        count = 0
        while position < end and len(answers) < PIECES_MAX:
            opaque_at = find(_OPAQUE, position, position + HEADER_MAX) + 9
            start = starts.get(data[position:opaque_at])
            if start is not None:
                size, is_json, lines = start
                stop = position + size
                rest_at = find(b",", opaque_at, stop)
            else:
                opaque_at = position + _BINARY_OPAQUE
                start = starts.get(data[position:opaque_at])
                if start is None:
                    if self._learn(data, position):
                        continue
                    break
                size, is_json, lines = start
                stop = position + size
                rest_at = position + _BINARY_REST
            line = lines.get(data[rest_at:stop])
            if line is None:
                if self._learn(data, position):
                    continue
                break
            opaque = data[opaque_at:rest_at]
            # The parser takes neither blanks nor leading zeros, and 0 itself goes the full way.
            if stop > end or (is_json and (opaque < b"1" or not opaque.isdigit())):
                break
            if view is None:
                view = self._view()
                if view is None:
                    break
                revision = view.revision
                if self._settings() is not self._settings_seen:
                    self._forget_all()
                    self._settings_seen = self._settings()
                    continue
            if line.revision != revision:
                fresh = self._line(line.asked, view, len(opaque))
                if fresh is None:
                    del lines[data[rest_at:stop]]
                    self._lines_count -= 1
                    if not lines:
                        starts.pop(data[position:opaque_at], None)
                    break
                line = lines[data[rest_at:stop]] = fresh
            answers += (line.head, opaque, line.tail)
            position = stop
            count += 1
        self.hits += count
        return position

    def _learn(self, data: bytes, position: int) -> bool:
        """Take the frame at ``position`` into the tables; False if it goes the full way.

        After True the next look-up of the same bytes finds it.
        """
        if len(data) - position < 8:
            return False
        size, word = _LENGTHS.unpack_from(data, position)
        is_json = word >> 24 == HeaderCodec.JSON
        if is_json and not data.startswith(_START, position + 8):
            return False  # not a route query as known clients write it
        stop = position + 4 + size
        if stop > len(data) or size != 4 + (word & 0xFFFFFF) or size > HEADER_MAX:
            return False
        asked = _read(data[position + 8 : stop], word >> 24)
        view = self._view()
        if asked is None or view is None:
            return False
        if self._settings() is not self._settings_seen:
            self._forget_all()
            self._settings_seen = self._settings()
        if is_json:
            opaque_at = data.find(_OPAQUE, position, position + HEADER_MAX) + 9
            rest_at = data.find(b",", opaque_at, stop)
        else:
            opaque_at, rest_at = position + _BINARY_OPAQUE, position + _BINARY_REST
        line = self._line(asked, view, rest_at - opaque_at)
        if line is None:
            return False
        if self._lines_count >= self._requests_max:
            self._starts.clear()
            self._lines_count = 0
        start = self._starts.setdefault(
            data[position:opaque_at], _Start(size=size + 4, json=is_json, lines={})
        )
        rest = data[rest_at:stop]
        if rest not in start.lines:
            self._lines_count += 1
        start.lines[rest] = line
        self.learnt += 1
        return True

    def _line(self, asked: _Asked, view: RouteView, opaque_size: int) -> _Line | None:
        """Return the pieces of an answer as the table now is, None if it must be answered the full way."""
        tail = self._tail(asked, view)
        if tail is None:
            return None
        before, _ = _ANSWER_HEADERS[asked.codec]
        header_size = len(before) + opaque_size + tail.header_rest_size
        body_size = len(tail.content) - tail.header_rest_size
        lengths = _LENGTHS.pack(4 + header_size + body_size, asked.codec << 24 | header_size)
        return _Line(revision=view.revision, head=lengths + before, tail=tail.content, asked=asked)

    def _tail(self, asked: _Asked, view: RouteView) -> _Tail | None:
        topic_revision = view.topic_revision(asked.topic)
        tail = self._tails.get(asked)
        if tail is not None and tail.topic_revision == topic_revision:
            return tail
        if tail is not None:
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
            self._forget_all()
        tail = _Tail(topic_revision=topic_revision, header_rest_size=len(rest), content=content)
        self._tails[asked] = tail
        self._tails_bytes += len(content) + _TAIL_COST
        return tail

    def _forget_all(self) -> None:
        self._starts.clear()
        self._tails.clear()
        self._lines_count = 0
        self._tails_bytes = 0


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
