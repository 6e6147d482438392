"""A cache of encoded answers to route queries. It finds an answer by the bytes of the request.

Route reads are far more frequent than writes. A client repeats its query for a topic with the same header,
except for the opaque (the number that matches an answer to its request). So the cache consists of two tables:

- **shared answers**: the end of an answer (everything after the opaque) in one dialect and header codec. This
  end is encoded once for all topics with equal routes.
- **requests**: the pieces of an answer, found by the bytes of its request without the opaque.

If the cache cannot answer a request, the server's parser for all requests decodes it, and the handler of its
request code answers it. The texts in this file call it the ordinary parser.

Before a request is stored, the ordinary parser reads it twice: as received, and with another opaque at the
same position. The request is stored only if both headers are equal except for the opaque. So a look-up in the
cache gives the same result as the parser, however a client writes its JSON. A property test checks that.

The header of a client's requests has the same parts after the opaque, and the opaque mostly has the same
number of digits. So a connection remembers the position of the opaque in the last request, and mostly need
not search for it. Topics on the same brokers with the same numbers of queues share one answer, which saves
memory and CPU cache.

Both tables are bounded: when they are full, both are emptied and filled anew. No code in this module awaits.
The code is the same in independent mode and in raft mode: the caller passes the view (the route table as
readers see it).
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

#: Number of answers after which a batch ends. The connection then checks that the client reads its answers.
BATCH_MAX: Final = 64
#: Largest size in bytes of a request header that the cache reads. The ordinary parser decodes a request with
#: a longer header, and the handler of its request code answers it.
HEADER_MAX: Final = 1024
#: Number of bytes of answers after which a batch ends.
BATCH_BYTES: Final = 256 * 1024
#: In a batch, a request that is not in the cache counts as this many cached requests, because it costs as
#: much CPU.
_LEARNING: Final = 16
#: Largest answer in bytes that is cached. The answer for a topic on 5,000 broker names has 1 MB.
TAIL_MAX: Final = 1024 * 1024
#: Largest size in bytes of received data that is first looked up as one request.
#: Requests have 110 to 250 bytes.
_ALONE_MAX: Final = 512
#: Largest number of known (stored) requests. Storing a request costs some 30 us of CPU. If clients send at
#: most this many different requests, each is stored only once.
REQUESTS_MAX: Final = 100_000
#: Largest number of known requests for topics that no broker has. Clients can invent any number of topic
#: names, so this number is bounded. Above this number, the oldest such request is forgotten.
MISSES_MAX: Final = 4096
#: The cache measures the time of one answer after this number of answers. The measured time counts for all
#: answers since the last measured answer.
TIMED_EVERY: Final = 64
#: Largest memory in bytes of answers and known requests together.
BYTES_MAX: Final = 128 * 1024 * 1024

_OPAQUE: Final = b'"opaque":'
_OPAQUE_SIZE: Final = len(_OPAQUE)
_BINARY_START: Final = RequestCode.GET_ROUTEINFO_BY_TOPIC.to_bytes(2, "big")
#: Starts of headers whose first member is the code. Python's json.dumps writes a blank after each colon.
_STARTS: Final = (b'{"code":105,', b'{"code": 105,', _BINARY_START)
#: Starts of JSON headers whose first member is not the code; the code comes later in the header.
_OTHER_STARTS: Final = tuple(b'{"%c' % first for first in b"eflorsv")
_CODE: Final = re.compile(rb'"code": ?105[,}]')
_DIGITS: Final = re.compile(rb"[1-9][0-9]{0,8}")
_LENGTHS: Final = struct.Struct(">II")
_LENGTH: Final = struct.Struct(">I")
# Position of the opaque in a binary header: after code, language and version.
_BINARY_HEADER_OPAQUE: Final = 5
# Position of the opaque in a frame with a binary header. The header comes after two length words.
_BINARY_OPAQUE: Final = 8 + _BINARY_HEADER_OPAQUE
_BINARY_REST: Final = _BINARY_OPAQUE + 4
# Bytes of memory that a shared answer takes in addition to its content: its heads and its key.
_SHARED_COST: Final = 2_000
_KNOWN_COST: Final = 600  # bytes of memory that a known request takes in addition to its own bytes


class _Asked(NamedTuple):
    """The values in a request on which its answer depends.

    The answer also depends on the table and on the settings.
    """

    topic: str
    dialect: RouteDialect
    codec: HeaderCodec
    is_5: bool


@dataclass(slots=True, eq=False)
class _Shared:
    """The end of an answer, that is, everything after the opaque. Topics with equal routes share one object.

    Attributes:
        made_of: Header codec, dialect and the route's shape, from which the content was made.
        heads: Beginnings of answers, that is, everything before the opaque, by the size of the opaque in
            bytes.
        users: Number of known requests that use this object. At 0, the object is forgotten.
    """

    made_of: tuple[HeaderCodec, RouteDialect, Hashable]
    content: bytes
    heads: dict[int, bytes] = field(default_factory=dict)
    users: int = 0


@dataclass(slots=True, eq=False)
class _Known:
    """A request that the cache has stored, and the pieces of its answer, which are updated in place.

    Attributes:
        size: Size of the whole request in bytes.
        cost: Bytes of memory that are counted for the request.
        rest_at: Position of the first byte after the opaque. In a binary header, the position counts from the
            start of the request. In JSON, the position is negative and counts from the end of the request.
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
        """Return True if the stored answer is still right. One call for each table revision is enough."""
        if view.topic_revision(self.asked.topic) != self.topic_revision:
            return False
        self.revision = view.revision
        return True


@dataclass(slots=True, eq=False, kw_only=True)
class _Missing(_Known):
    """A stored request for a topic that no broker has.

    Its ``revision`` is below the revision of every table. So each query calls :meth:`holds`, which counts the
    query.

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
    """Reader of one connection's route queries, which it answers from a cache.

    The reader remembers where the client's last request had its opaque.
    """

    __slots__ = ("_cache", "_opaque_at", "_rest_at")

    starts: Final = (*_STARTS, *_OTHER_STARTS)
    """Possible first bytes of a route query's header, in JSON and in binary."""

    def __init__(self, cache: RouteCache) -> None:
        self._cache = cache
        # Start and end of the last request's opaque. In a binary header, positions count from the start of
        # the request; in JSON, they are negative and count from the request's end. The first values match no
        # request.
        self._opaque_at = self._rest_at = 0

    def whole(self, data: bytes) -> bytes | int | None:
        """Return the answers to ``data`` if it consists of known route queries.

        Each query must have its opaque at the remembered position, see the module docstring.

        This method answers nearly every request. With 16 requests in flight, a request takes 0.6 us of CPU in
        this method, and 2.4 us in :meth:`leading`.

        Returns:
            The answers. A number if ``data`` begins with a route query that must wait for the barrier of this
            number. None if the caller must call :meth:`leading`, which handles any data.
        """
        cache = self._cache
        if cache.hits >= cache.timed_at:
            return cache.time(self.whole, data)
        view = cache.view()
        if view is None:
            # Every linearizable read comes here. If its header begins in one of the usual ways, there is no
            # need to call waits().
            return (cache.gate() if data.startswith(_STARTS, 8) else self.waits(data, 0)) or None
        missed = cache.misses
        known_of, revision, end = cache.requests.get, view.revision, len(data)
        from_opaque, from_rest = self._opaque_at, self._rest_at
        is_binary = from_opaque > 0
        if end <= _ALONE_MAX:
            # This block handles a single query. It saves 2,900 of the 16,500 processor instructions that the
            # loop below would need.
            known, opaque = known_of(data[:from_opaque] + data[from_rest:]), data[from_opaque:from_rest]
            if (
                known is not None
                and known.size == end
                and known.rest_at == from_rest
                # In JSON, the opaque of the request must consist of digits, the first of which is not 0. The
                # ordinary parser refuses other numbers, such as 012. It accepts the opaque 0, so it handles
                # requests with this opaque.
                and (is_binary or (opaque.isdigit() and opaque >= b"1"))
                and (cache.longest <= BATCH_BYTES or len(known.tail) <= BATCH_BYTES)
                # This check must come last, because holds() may count the query as answered.
                and (known.revision == revision or known.holds(view))
            ):
                cache.hits += 1
                return known.head + opaque + known.tail
        pieces: list[bytes] = []
        position = 0
        while position + _BINARY_REST < end:
            # In a known request, the upper two bytes of the length word are 0. The whole length word is part
            # of the key, so a request with a wrong length is not found.
            stop = position + 4 + (data[position + 2] << 8 | data[position + 3])
            start = position if is_binary else stop
            opaque_at, rest_at = start + from_opaque, start + from_rest
            known = known_of(data[position:opaque_at] + data[rest_at:stop])
            if (
                known is None
                or known.rest_at != from_rest
                or not (known.revision == revision or known.holds(view))
            ):
                cache.misses = missed  # undo the count, because leading() looks up all these queries again
                return None
            pieces += (known.head, data[opaque_at:rest_at], known.tail)
            position = stop
        opaques = pieces[1::3]
        count = len(opaques)
        # More or larger answers must be sent in batches. Between two batches, the connection checks that the
        # client reads its answers.
        if (
            position != end
            or count > BATCH_MAX
            or not (is_binary or (b"".join(opaques).isdigit() and min(opaques) >= b"1"))
            or (count * cache.longest > BATCH_BYTES and sum(map(len, pieces[2::3])) > BATCH_BYTES)
        ):
            cache.misses = missed
            return None
        cache.hits += count
        return b"".join(pieces)

    def leading(self, data: bytes, position: int, answers: list[bytes]) -> tuple[int, bool]:
        """Answer the route queries from ``position`` on; return the position after the last of them.

        This method appends the answers to ``answers``, and reads queries one by one. So it also handles
        queries with the opaque at another position, new queries, and queries whose topic has changed. It
        stops at the first frame that

        - is no route query, or
        - is not complete, or
        - has no immediate answer, because this nameserver has no contact with a leader.

        The caller must handle that frame without this cache. The method also stops after :data:`BATCH_MAX`
        answers or :data:`BATCH_BYTES` bytes of answers. The second return value is then True.
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
                    break  # another request, for example a registration
                opaque_at = found + _OPAQUE_SIZE
                if data.startswith(b" ", opaque_at):
                    opaque_at += 1
                # The pattern matches no opaque that begins with 0, because the ordinary parser refuses
                # leading zeros. A request with the opaque 0 does not match either; the ordinary parser reads
                # this request.
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
                # The two requests have the same key, but not the same opaque position: the stored request has
                # a blank before the opaque, and this request has a blank after it.
                break
            if (
                known is not None
                and known.revision != revision
                and not cache.refresh(known, view, len(opaque))
            ):
                cache.forget(key)  # the topic was added or removed: store the request anew
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
        """Return the number of the read barrier for a route query that arrives now; 0 for no barrier."""
        return self._cache.gate()

    def waits(self, data: bytes, position: int) -> int:
        """Return the number of the read barrier for the route query at ``position``; 0 for no barrier.

        This method does not look into the cache. So call it only for frames at which :meth:`leading` stopped.
        """
        return self._cache.gate() if _is_query(data, position) else 0


def _is_query(data: bytes, position: int) -> bool:
    """Return True if the frame at ``position`` looks like a route query; the frame may be incomplete."""
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
        view: Returns a view that is as fresh as the settings require, or None if a read cannot be answered at
            once. If the settings have changed, this function first calls :meth:`clear`.
        settings: Returns the settings in force.
        gate: Called for a route query that the cache has not answered. Returns the number of the barrier
            that the query must wait for; 0 if it need not wait, because its handler can answer it now.
        admits: Called with a new request's arguments and release. Returns True if the cache may answer the
            request on every connection. If None, the cache may answer all requests.
        knows_misses: True if the cache also stores answers for topics that no broker has. If False, the
            handler of route queries answers each query for such a topic.
        clock: Returns the time in seconds.
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
        #: Known requests by their bytes, which do not include the opaque. :class:`RouteReader` reads this
        #: mapping.
        self.requests: dict[bytes, _Known] = {}
        # Ends of answers by :attr:`_Shared.made_of`. Topics with equal routes share an end, so it is encoded
        # once for each change.
        self._shared: dict[tuple[HeaderCodec, RouteDialect, Hashable], _Shared] = {}
        self._missing: dict[bytes, None] = {}  # known requests whose topic no broker has, the oldest first
        #: Bytes of memory that known requests and answers take.
        self.held_bytes = 0
        #: Size in bytes of the longest cached answer since the cache was last emptied.
        self.longest = 0
        #: Number of route queries answered from this cache.
        self.hits = 0
        #: Number of answers from this cache which say that no broker has the topic.
        self.misses = 0
        #: Times of cached answers in seconds. Among :data:`TIMED_EVERY` answers, the time of one answer is
        #: measured, and counts for all of them.
        self.times = Histogram()
        #: When :attr:`hits` reaches this number, the time of the next answer is measured.
        self.timed_at = 1
        self._timed = 0  # number of hits that are counted in ``times``
        #: Number of requests that were parsed and stored.
        self.learnt = 0

    @property
    def entries(self) -> int:
        """Number of known requests."""
        return len(self.requests)

    def reader(self) -> RouteReader:
        """Return a reader for the queries of a new connection."""
        return RouteReader(self)

    def time(self, whole: Callable[[bytes], bytes | int | None], data: bytes) -> bytes | int | None:
        """Return the result of ``whole(data)``, see :meth:`RouteReader.whole`, and record its time."""
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
        """Forget all requests and answers."""
        self._shared.clear()
        self._missing.clear()
        self.requests.clear()
        self.held_bytes = self.longest = 0

    def learn(
        self, frame: bytes, key: bytes, opaque_at: int, opaque_size: int, rest_at: int, view: RouteView
    ) -> _Known | None:
        """Store the request of one complete frame and return it with its answer.

        Return None if the cache must not answer the request. The handler then answers it.

        Args:
            opaque_at: Position of the opaque in the frame.
            rest_at: Position of the first byte after the opaque, counted as in :class:`_Known`.
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
        """Give a request the pieces of the answer "no broker has the topic".

        Args:
            opaque_size: Size of the opaque in bytes. The answer begins with its length, which depends on it.
        """
        asked = known.asked
        answer = no_route(asked.topic, is_5=asked.is_5)
        before, known.tail = _split_answer_header(asked.codec, answer.code, answer.remark)
        header_size = len(before) + opaque_size + len(known.tail)
        known.head = _LENGTHS.pack(4 + header_size, asked.codec << 24 | header_size) + before
        known.cost += len(known.head) + len(known.tail)
        known.topic_revision = view.topic_revision(asked.topic)
        self.misses += 1

    def refresh(self, known: _Known, view: RouteView, opaque_size: int) -> bool:
        """Update an answer from the table.

        Return False if the update is not possible. The request must then be stored anew, or its handler must
        answer it.

        Args:
            opaque_size: Size of the opaque in bytes. The answer begins with its length, which depends on it.
        """
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
        """Return the part of an answer after the opaque.

        Return None if there is no route, or if this part is too large to be cached.
        """
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
        """Forget the shared part of a request's answer, unless other requests still use this part."""
        shared = known.shared
        if shared is not None and self._shared.get(shared.made_of) is shared:
            shared.users -= 1
            if shared.users == 0:
                del self._shared[shared.made_of]
                self.held_bytes -= _SHARED_COST + len(shared.content)

    def forget(self, key: bytes) -> None:
        """Forget a known request."""
        known = self.requests.pop(key, None)
        if known is None:
            return  # the cache was emptied after the caller found this request
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
    """Decode a request's header with the ordinary parser.

    Return None if the header is invalid or the request is no route query. Also return None if the answer
    depends on more than the values in :class:`_Asked`.
    """
    try:
        header = decode_header(header_bytes, HeaderCodec(codec))
        fields = GetRouteFields.parse(header.ext_fields or {})
    except (ValueError, RemoteProtocolError, FieldError):  # the header may have an unknown codec
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
    """Return True if the header's digits from ``start`` to ``end`` are the opaque.

    To test this, change the digits and decode the header again: only the opaque may differ.
    """
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
    """Return an answer's header in two parts: before and after its opaque."""
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
