"""Encoded answers to route queries: from the bytes of a request to the bytes of its answer.

Route reads outnumber writes by orders of magnitude, and a client repeats a query for a topic with the same
header except for the opaque. So there are two tables:

- **shared answers**: the end of an answer in one dialect and header codec (everything after the opaque),
  encoded once for all topics with equal routes;
- **requests**: from a request's bytes without its opaque to the pieces of its answer. The full parser read
  each of these requests twice: a header is stored only if the parser reads the same header with another
  opaque in the same place, however it is written. A look-up therefore equals a parse; a property test checks
  that.

All requests of a client have the same end (release, codec, and mostly the same number of digits of the
opaque). So a connection remembers the place of the last request's opaque, and no bytes are searched. Topics
on the same brokers with the same numbers of queues share one answer, in memory and in the processor's caches.

Both tables are bounded: when they are full, both are emptied and filled anew. No code here awaits or depends
on the mode: the caller passes the view.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from msgspec.structs import replace

from routekeeper.nameserver.handlers import no_route, route_of
from routekeeper.nameserver.routes.view import RouteView
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.remoting.codes import (
    FLAG_RESPONSE,
    VERSION,
    VERSION_5_0_0,
    HeaderCodec,
    LanguageCode,
    RequestCode,
    ResponseCode,
)
from routekeeper.remoting.errors import FieldError, RemoteProtocolError
from routekeeper.remoting.fields import GetRouteFields
from routekeeper.remoting.header import Header, decode_header, encode_header
from routekeeper.remoting.histogram import Histogram
from routekeeper.remoting.route import RouteDialect, dialect_for, encode_route

#: Number of answers after which a batch returns to the connection, which then checks whether its peer reads.
BATCH_MAX: Final = 64
#: Longest request header in bytes that is looked up; a longer one is parsed in full.
HEADER_MAX: Final = 1024
#: Bytes of answers after which a batch returns, too.
BATCH_BYTES: Final = 256 * 1024
#: A new request counts as this many known ones, because it costs as much CPU.
_LEARNING: Final = 16
#: Answers above this size in bytes are not cached. The answer for a topic on 5,000 broker names has 1 MB.
TAIL_MAX: Final = 1024 * 1024
#: Largest size in bytes of received data that may be one request; real requests have 110 to 250.
_ALONE_MAX: Final = 512
#: Bound of the known requests. To store a new one costs some 30 us; below this bound none is stored twice.
REQUESTS_MAX: Final = 100_000
#: Bound of the known requests for topics that no broker has: strangers can invent names. The oldest is
#: forgotten first.
MISSES_MAX: Final = 4096
#: One of this many cached answers is timed. Its time counts for all since the last timed one.
TIMED_EVERY: Final = 64
#: Bound of the memory in bytes: answers and known requests.
BYTES_MAX: Final = 128 * 1024 * 1024

_OPAQUE: Final = b'"opaque":'
_OPAQUE_SIZE: Final = len(_OPAQUE)
_BINARY_START: Final = RequestCode.GET_ROUTEINFO_BY_TOPIC.to_bytes(2, "big")
#: Most clients write the code first; Python's json.dumps puts a blank behind each colon.
_STARTS: Final = (b'{"code":105,', b'{"code": 105,', _BINARY_START)
#: Start of headers whose first member is not the code; it stands further behind.
_OTHER_STARTS: Final = tuple(b'{"%c' % first for first in b"eflorsv")
_CODE: Final = re.compile(rb'"code": ?105[,}]')
_DIGITS: Final = re.compile(rb"[1-9][0-9]{0,8}")
_LENGTHS: Final = struct.Struct(">II")
_LENGTH: Final = struct.Struct(">I")
_BINARY_HEADER_OPAQUE: Final = 5  # after code, language and version
_BINARY_OPAQUE: Final = 8 + _BINARY_HEADER_OPAQUE  # in the frame, after its two length words
_BINARY_REST: Final = _BINARY_OPAQUE + 4
# Bytes of memory that a shared answer takes in addition to its content, for heads and key.
_SHARED_COST: Final = 2_000
_KNOWN_COST: Final = 600  # bytes of memory that a known request costs in addition to its own


class _Asked(NamedTuple):
    """All values on which an answer depends, beside the table and the settings."""

    topic: str
    dialect: RouteDialect
    codec: HeaderCodec
    is_5: bool


@dataclass(slots=True, eq=False)
class _Shared:
    """The end of some answers, after the opaque; one object for all topics with equal routes.

    Attributes:
        made_of: Header codec, dialect and the route's shape.
        heads: Beginnings of answers, before the opaque, by the size of the opaque.
        users: Number of requests with this as their last answer. The object is kept while there are some.
    """

    made_of: tuple[HeaderCodec, RouteDialect, Hashable]
    content: bytes
    heads: dict[int, bytes] = field(default_factory=dict)
    users: int = 0


@dataclass(slots=True, eq=False)
class _Known:
    """The pieces of one answer, updated in place.

    Attributes:
        size: Size of the whole request in bytes.
        rest_at: Position of the bytes behind the opaque; counted as in :class:`RouteReader`.
        shared: End of the answer; None if no broker has the topic.
        topic_revision: Revision of the topic in this answer.
        revision: Revision of the table at which the answer was last checked.
    """

    asked: _Asked
    size: int
    cost: int
    rest_at: int
    shared: _Shared | None = None
    topic_revision: int = -1
    revision: int = -1
    head: bytes = b""
    tail: bytes = b""

    def holds(self, view: RouteView) -> bool:
        """Return whether the topic still equals the pieces; called once for each revision of the table."""
        if view.topic_revision(self.asked.topic) != self.topic_revision:
            return False
        self.revision = view.revision
        return True


@dataclass(slots=True, eq=False, kw_only=True)
class _Missing(_Known):
    """The answer that no broker has a topic.

    Its revision is below that of every table, so that each query calls :meth:`holds`, which counts it.

    Attributes:
        looked_at: Revision of the table at which the answer was last checked.
    """

    cache: RouteCache
    looked_at: int = -1

    def holds(self, view: RouteView) -> bool:
        if self.looked_at != (revision := view.revision):
            if view.topic_revision(self.asked.topic) != self.topic_revision:
                return False
            self.looked_at = revision
        self.cache.misses += 1
        return True


class RouteReader:
    """Answers the route queries of one connection from a cache; remembers its client's form of requests."""

    __slots__ = ("_cache", "_opaque_at", "_rest_at")

    starts: Final = (*_STARTS, *_OTHER_STARTS)
    """Possible starts of route queries' headers, in JSON and in binary."""

    def __init__(self, cache: RouteCache) -> None:
        self._cache = cache
        # The position of the last request's opaque: in a binary header counted from its start, in JSON from
        # its end. The first value matches no request.
        self._opaque_at = self._rest_at = 0

    def whole(self, data: bytes) -> bytes | int | None:
        """Return the answers to ``data`` if it consists of known route queries of one kind.

        Nearly every request is answered here: 0.6 us of CPU for each of 16 in flight, 2.4 us in
        :meth:`leading`. For None, call :meth:`leading`, which reads any data. A number means: ``data`` begins
        with a route query that must wait for the barrier of this number.
        """
        cache = self._cache
        if cache.hits >= cache.timed_at:
            return cache.time(self.whole, data)
        view = cache.view()
        if view is None:
            # Every linearizable read comes here: waits() would only find the same by one call more.
            return (cache.gate() if data.startswith(_STARTS, 8) else self.waits(data, 0)) or None
        missed = cache.misses
        known_of, revision, end = cache.requests.get, view.revision, len(data)
        from_opaque, from_rest = self._opaque_at, self._rest_at
        is_binary = from_opaque > 0
        if end <= _ALONE_MAX:
            # A lone query takes 2,900 instructions less here than in the loop below, of 16,500 in all.
            known, opaque = known_of(data[:from_opaque] + data[from_rest:]), data[from_opaque:from_rest]
            if (
                known is not None
                and known.size == end
                and known.rest_at == from_rest
                # The parser refuses blanks and leading zeros; 0 itself is parsed in full.
                and (is_binary or (opaque.isdigit() and opaque >= b"1"))
                and (cache.longest <= BATCH_BYTES or len(known.tail) <= BATCH_BYTES)
                # the last query of the batch, whose opaque is remembered
                and (known.revision == revision or known.holds(view))
            ):
                cache.hits += 1
                return known.head + opaque + known.tail
        pieces: list[bytes] = []
        position = 0
        while position + _BINARY_REST < end:
            # In a known request, the upper bytes of the length word are 0. The whole word is part of the key,
            # so a wrong length finds no request.
            stop = position + 4 + (data[position + 2] << 8 | data[position + 3])
            start = position if is_binary else stop
            opaque_at, rest_at = start + from_opaque, start + from_rest
            known, opaque = known_of(data[position:opaque_at] + data[rest_at:stop]), data[opaque_at:rest_at]
            if (
                known is None
                or known.rest_at != from_rest
                or not (known.revision == revision or known.holds(view))
                or not (is_binary or (opaque.isdigit() and opaque >= b"1"))
            ):
                cache.misses = missed  # leading() looks up all these queries again, and counts them
                return None
            pieces += (known.head, opaque, known.tail)
            position = stop
        count = len(pieces) // 3
        # Send more or longer answers in batches, and check between them whether the peer reads.
        if (
            position != end
            or count > BATCH_MAX
            or (count * cache.longest > BATCH_BYTES and sum(map(len, pieces[2::3])) > BATCH_BYTES)
        ):
            cache.misses = missed
            return None
        cache.hits += count
        return b"".join(pieces)

    def leading(self, data: bytes, position: int, answers: list[bytes]) -> tuple[int, bool]:
        """Append the answers of leading route queries in ``data``; return the position after them.

        It reads queries one by one: any mixture, new ones, and those whose topic has changed. It stops at the
        first frame that is no route query, is not complete, or has no immediate answer (no contact): the
        caller parses that frame in full. It also stops after :data:`BATCH_MAX` and :data:`BATCH_BYTES`; then
        the second value is True.
        """
        cache = self._cache
        view = cache.view()
        if view is None:
            return position, False
        revision = view.revision
        end = len(data)
        count = work = size = 0
        while end - position > _BINARY_REST and work < BATCH_MAX and size < BATCH_BYTES:
            stop = position + 4 + _LENGTH.unpack_from(data, position)[0]
            if not position + _BINARY_REST < stop <= end:
                break
            if data[position + 4] == HeaderCodec.JSON:
                found = data.find(_OPAQUE, position, min(stop, position + HEADER_MAX))
                if found < 0 or not _is_query(data, position):
                    break  # such as a registration
                opaque_at = found + _OPAQUE_SIZE
                if data.startswith(b" ", opaque_at):
                    opaque_at += 1
                # The parser refuses leading zeros; 0 itself is parsed in full.
                digits = _DIGITS.match(data, opaque_at, stop)
                if digits is None:
                    break
                rest_at = digits.end()
                self._opaque_at, self._rest_at = opaque_at - stop, rest_at - stop
            else:
                opaque_at, rest_at = position + _BINARY_OPAQUE, position + _BINARY_REST
                self._opaque_at, self._rest_at = _BINARY_OPAQUE, _BINARY_REST
            key = data[position:opaque_at] + data[rest_at:stop]
            opaque = data[opaque_at:rest_at]
            known = cache.requests.get(key)
            if known is not None and known.rest_at != self._rest_at:
                break  # the stored request has a blank before the opaque, this one behind it
            if (
                known is not None
                and known.revision != revision
                and not cache.refresh(known, view, len(opaque))
            ):
                cache.forget(key)  # the topic was added or removed
                known = None
            if known is None:
                known = cache.learn(
                    data[position:stop], key, opaque_at - position, len(opaque), self._rest_at, view
                )
                if known is None:
                    break
                work += _LEARNING
            answers += (known.head, opaque, known.tail)
            position = stop
            count += 1
            work += 1
            size += len(known.tail)
        cache.hits += count
        return position, work >= BATCH_MAX or size >= BATCH_BYTES

    def waits_now(self) -> int:
        """Return the number of the barrier that a route query arriving now must wait for; 0: none."""
        return self._cache.gate()

    def waits(self, data: bytes, position: int) -> int:
        """Return the number of the barrier for the route query at ``position``; 0: none.

        Call it only for frames at which :meth:`leading` stopped.
        """
        return self._cache.gate() if _is_query(data, position) else 0


def _is_query(data: bytes, position: int) -> bool:
    """Return whether the frame at ``position`` looks like a route query; it may be incomplete."""
    if data.startswith(_STARTS, position + 8):
        return True
    if not data.startswith(_OTHER_STARTS, position + 8):
        return False
    (word,) = _LENGTH.unpack_from(data, position + 4)
    return word <= HEADER_MAX and _CODE.search(data, position + 8, position + 8 + word) is not None


@dataclass(kw_only=True, eq=False)
class RouteCache:
    """Known requests and their answers, for all connections.

    Args:
        view: Returns the view with the freshness in force, or None if a read cannot be answered at once. It
            calls :meth:`clear` first when the settings have changed.
        settings: Returns the settings in force.
        gate: Returns the number of the barrier for a route query that ``view`` does not answer; 0 if the
            query must be handled in full.
        admits: Returns, from a request's arguments and release, whether the cache may answer it on every
            connection. None: it may answer all. It is not called again for a known request.
        knows_misses: Also cache answers for topics that no broker has; otherwise these queries are handled in
            full.
        clock: Returns seconds.
    """

    view: Callable[[], RouteView | None]
    settings: Callable[[], NamesrvSettings]
    gate: Callable[[], int]
    clock: Callable[[], float]
    admits: Callable[[Mapping[str, str], int], bool] | None = None
    knows_misses: bool = True
    requests_max: int = REQUESTS_MAX
    misses_max: int = MISSES_MAX
    bytes_max: int = BYTES_MAX

    def __post_init__(self) -> None:
        #: Known requests by their bytes without the opaque. :class:`RouteReader` uses it.
        self.requests: dict[bytes, _Known] = {}
        # By :attr:`_Shared.made_of`, so that content that many topics share is encoded once for each change.
        self._shared: dict[tuple[HeaderCodec, RouteDialect, Hashable], _Shared] = {}
        self._missing: dict[bytes, None] = {}  # requests whose topic no broker has, the oldest first
        #: Memory in bytes: known requests and answers, including answers whose request does not come any
        #: more.
        self.held_bytes = 0
        #: Size in bytes of the longest cached answer since the cache was last emptied. :class:`RouteReader`
        #: uses it.
        self.longest = 0
        #: Route queries answered from here.
        self.hits = 0
        #: Those of these answers that said that no broker has the topic.
        self.misses = 0
        #: Times of cached answers. One in :data:`TIMED_EVERY` is timed, and counts for all of them.
        self.times = Histogram()
        #: Number of hits at which the next answer is timed. :class:`RouteReader` uses it.
        self.timed_at = 1
        self._timed = 0  # number of hits that `times` counts
        #: Number of requests that were parsed and stored.
        self.learnt = 0

    @property
    def entries(self) -> int:
        """Number of known requests."""
        return len(self.requests)

    def reader(self) -> RouteReader:
        """Return the reader for the queries of a new connection."""
        return RouteReader(self)

    def time(self, whole: Callable[[bytes], bytes | int | None], data: bytes) -> bytes | int | None:
        """Return a reader's answers to ``data``, and note the time that they took."""
        self.timed_at = self.hits + TIMED_EVERY
        before, begun = self.hits, self.clock()
        answers = whole(data)
        if self.hits > before:
            self.times.observe(self.clock() - begun, self.hits - self._timed)
            self._timed = self.hits
        else:
            self.timed_at = before
        return answers

    def clear(self) -> None:
        """Forget everything."""
        self._shared.clear()
        self._missing.clear()
        self.requests.clear()
        self.held_bytes = self.longest = 0

    def learn(
        self, frame: bytes, key: bytes, opaque_at: int, opaque_size: int, rest_at: int, view: RouteView
    ) -> _Known | None:
        """Store the request of one complete frame and return its answer; None if it must be handled in full.

        Args:
            opaque_at: Position of the opaque in the frame.
            rest_at: As for :class:`_Known`.
        """
        size, word = _LENGTHS.unpack_from(frame)
        if size != 4 + (word & 0xFFFFFF) or size > HEADER_MAX - 16:
            return None
        asked = _read(frame[8:], word >> 24, opaque_at - 8, opaque_size, self.admits)
        if asked is None:
            return None
        is_missing = view.topic(asked.topic) is None
        if is_missing and not self.knows_misses:
            return None
        if len(self.requests) >= self.requests_max or self.held_bytes > self.bytes_max:
            self.clear()
        cost = _KNOWN_COST + len(frame)
        known = _Known(asked, len(frame), cost, rest_at)
        if is_missing:
            known = _Missing(asked, len(frame), cost, rest_at, cache=self)
            self._miss(known, view, opaque_size)
        elif not self.refresh(known, view, opaque_size):
            return None
        self.held_bytes += known.cost
        self.requests[key] = known
        self.learnt += 1
        if known.shared is None:
            self._missing[key] = None
            if len(self._missing) > self.misses_max:
                self.forget(next(iter(self._missing)))
        return known

    def _miss(self, known: _Known, view: RouteView, opaque_size: int) -> None:
        """Change an answer into the one that no broker has the topic."""
        asked = known.asked
        answer = no_route(asked.topic, is_5=asked.is_5)
        before, known.tail = _split_answer_header(asked.codec, answer.code, answer.remark)
        header_size = len(before) + opaque_size + len(known.tail)
        known.head = _LENGTHS.pack(4 + header_size, asked.codec << 24 | header_size) + before
        known.cost += len(known.head) + len(known.tail)
        known.topic_revision = view.topic_revision(asked.topic)
        self.misses += 1

    def refresh(self, known: _Known, view: RouteView, opaque_size: int) -> bool:
        """Update an answer from the table; False if the request must be stored anew or handled in full."""
        if isinstance(known, _Missing):
            return known.holds(view)
        asked = known.asked
        topic_revision = view.topic_revision(asked.topic)
        if known.topic_revision != topic_revision:
            shared = self._share(asked, view)
            if shared is None:
                return False
            shared.users += 1
            self._release(known)
            known.shared, known.topic_revision = shared, topic_revision
            head = shared.heads.get(opaque_size)
            if head is None:
                before, rest = _ANSWER_HEADERS[asked.codec]
                header_size = len(before) + opaque_size + len(rest)
                size = 4 + len(before) + opaque_size + len(shared.content)
                head = shared.heads[opaque_size] = (
                    _LENGTHS.pack(size, asked.codec << 24 | header_size) + before
                )
            known.head, known.tail = head, shared.content
        known.revision = view.revision
        return True

    def _share(self, asked: _Asked, view: RouteView) -> _Shared | None:
        """Return the end of an answer; None if the request must be handled in full."""
        settings = self.settings()
        shape = view.shape(asked.topic, order_conf=settings.order_message_enable)
        made_of = asked.codec, asked.dialect, shape
        if self.held_bytes > self.bytes_max:
            self.clear()
        shared = self._shared.get(made_of)
        if shared is None:
            route = route_of(view, asked.topic, settings)
            if route is None:
                return None
            _, rest = _ANSWER_HEADERS[asked.codec]
            content = rest + encode_route(route, asked.dialect)
            if len(content) > TAIL_MAX:
                return None
            if self.held_bytes + len(content) > self.bytes_max:
                self.clear()
            shared = self._shared[made_of] = _Shared(made_of, content)
            self.longest = max(self.longest, len(content))
            self.held_bytes += _SHARED_COST + len(content)
        return shared

    def _release(self, known: _Known) -> None:
        """Release a request's last answer; forget the answer when no other request uses it."""
        shared = known.shared
        if shared is not None and self._shared.get(shared.made_of) is shared:
            shared.users -= 1
            if shared.users == 0:
                del self._shared[shared.made_of]
                self.held_bytes -= _SHARED_COST + len(shared.content)

    def forget(self, key: bytes) -> None:
        """Forget a request."""
        known = self.requests.pop(key, None)
        if known is None:
            return  # the cache was emptied since this request was found
        self.held_bytes -= known.cost
        self._missing.pop(key, None)
        self._release(known)


def _read(
    header_bytes: bytes,
    codec: int,
    opaque_at: int,
    opaque_size: int,
    admits: Callable[[Mapping[str, str], int], bool] | None,
) -> _Asked | None:
    """Parse a header in full; None if its answer depends on more than the values in :class:`_Asked`."""
    try:
        header = decode_header(header_bytes, HeaderCodec(codec))
        fields = GetRouteFields.parse(header.ext_fields or {})
    except (ValueError, RemoteProtocolError, FieldError):  # such as an unknown header codec
        return None
    if header.code != RequestCode.GET_ROUTEINFO_BY_TOPIC or header.flag != 0:
        return None
    if fields.topic is None or fields.zone_mode:
        return None
    if admits is not None and not admits(header.ext_fields or {}, header.version):
        return None
    if codec == HeaderCodec.JSON and not _is_opaque(header_bytes, header, opaque_at, opaque_at + opaque_size):
        return None
    dialect = dialect_for(header.version, accept_standard_json_only=fields.accept_standard_json_only)
    return _Asked(fields.topic, dialect, HeaderCodec(codec), header.version >= VERSION_5_0_0)


def _is_opaque(header_bytes: bytes, header: Header, start: int, end: int) -> bool:
    """Return whether the digits from ``start`` to ``end`` are the opaque and nothing else."""
    digits = header_bytes[start:end]
    if header.opaque != int(digits):
        return False
    other = (b"1" if digits[:1] != b"1" else b"2") + digits[1:]
    try:
        changed = decode_header(header_bytes[:start] + other + header_bytes[end:], HeaderCodec.JSON)
    except RemoteProtocolError:
        return False
    return changed == replace(header, opaque=int(other))


def _split_answer_header(codec: HeaderCodec, code: int, remark: str | None) -> tuple[bytes, bytes]:
    """Return the header of an answer, before and after its opaque."""
    whole = encode_header(
        Header(code, LanguageCode.PYTHON.name, VERSION, 1, FLAG_RESPONSE, remark, None), codec
    )
    if codec is HeaderCodec.JSON:
        before, mark, after = whole.partition(_OPAQUE)
        return before + mark, after[1:]
    return whole[:_BINARY_HEADER_OPAQUE], whole[_BINARY_HEADER_OPAQUE + 4 :]


_ANSWER_HEADERS: Final = {
    codec: _split_answer_header(codec, ResponseCode.SUCCESS, None) for codec in HeaderCodec
}
