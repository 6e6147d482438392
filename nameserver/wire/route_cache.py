"""Encoded answers to route queries: from the bytes of a request to the bytes of its answer.

Route reads outnumber writes by orders of magnitude, and a client asks for the same topic with the same header
but for the opaque. Two tables follow from that:

- **shared answers**: what an answer in one dialect and header codec ends with (everything after the opaque),
  encoded once for all topics whose routes are made of the same;
- **requests**: a request's bytes but for its opaque, to the answer's pieces. What stands here was read by the
  full parser, twice even: a header is learnt only if the parser reads the same header with another opaque in
  the same place, however it is spelt. A look-up therefore equals a parse; a property test holds it to that.

A client's requests all end alike (release, codec, and as many digits of opaque as in its last request), so a
connection remembers where the opaque of its last request stood, and nothing in the bytes is searched. Topics
on the same brokers with as many queues share one answer, in memory and in the processor's caches.

Both tables are bounded: when they are full, all is forgotten and learnt anew. Nothing here awaits, and
nothing here knows the mode: the view comes from the caller.
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

#: Answers after which a batch is handed back to the connection, which then looks whether its peer reads.
BATCH_MAX: Final = 64
#: Longest request header that is looked up, in bytes; longer ones go the full way.
HEADER_MAX: Final = 1024
#: Bytes of answers after which it is handed back as well.
BATCH_BYTES: Final = 256 * 1024
#: A request that has to be learnt counts as so many that are known: that is what it costs.
_LEARNING: Final = 16
#: Answers above this many bytes go the full way. That of a topic on 5,000 broker names is 1 MB.
TAIL_MAX: Final = 1024 * 1024
#: Bytes of received data that may be one request; real ones take 110 to 250.
_ALONE_MAX: Final = 512
#: Requests known. Learning one costs some 30 us; with fewer than this none is ever learnt twice.
REQUESTS_MAX: Final = 100_000
#: Requests for topics that nobody has, whose names strangers can make up. The oldest is forgotten first.
MISSES_MAX: Final = 4096
#: Answers from the cache after which one is timed. It stands for all since the last one: they are alike.
TIMED_EVERY: Final = 64
#: Bytes held in all: answers, and what is known of requests.
BYTES_MAX: Final = 128 * 1024 * 1024

_OPAQUE: Final = b'"opaque":'
_OPAQUE_SIZE: Final = len(_OPAQUE)
_BINARY_START: Final = RequestCode.GET_ROUTEINFO_BY_TOPIC.to_bytes(2, "big")
#: Most clients write the code first; Python's json.dumps puts a blank behind each colon.
_STARTS: Final = (b'{"code":105,', b'{"code": 105,', _BINARY_START)
#: Headers that begin with another member. The code stands somewhere behind it.
_OTHER_STARTS: Final = tuple(b'{"%c' % first for first in b"eflorsv")
_CODE: Final = re.compile(rb'"code": ?105[,}]')
_DIGITS: Final = re.compile(rb"[1-9][0-9]{0,8}")
_LENGTHS: Final = struct.Struct(">II")
_LENGTH: Final = struct.Struct(">I")
_BINARY_HEADER_OPAQUE: Final = 5  # after code, language and version
_BINARY_OPAQUE: Final = 8 + _BINARY_HEADER_OPAQUE  # in the frame, after its two length words
_BINARY_REST: Final = _BINARY_OPAQUE + 4
_SHARED_COST: Final = 2_000  # bytes that shared content costs beside itself, with its heads and its key
_KNOWN_COST: Final = 600  # bytes that a known request costs beside its own


class _Asked(NamedTuple):
    """All that an answer depends on beside the table and the settings."""

    topic: str
    dialect: RouteDialect
    codec: HeaderCodec
    is_5: bool


@dataclass(slots=True, eq=False)
class _Shared:
    """The end of some answers, after the opaque; one for all topics with equal routes.

    Attributes:
        made_of: Header codec, dialect and the route's shape.
        heads: What answers begin with, before the opaque, by its size.
        users: Requests whose last answer it was: while there are some it is held.
    """

    made_of: tuple[HeaderCodec, RouteDialect, Hashable]
    content: bytes
    heads: dict[int, bytes] = field(default_factory=dict)
    users: int = 0


@dataclass(slots=True, eq=False)
class _Known:
    """The pieces of one answer, brought up to date in place.

    Attributes:
        size: Bytes of the whole request.
        rest_at: Where the bytes behind the opaque begin; counted as :class:`RouteReader` does.
        shared: None: the answer is that nobody has the topic.
        topic_revision: That of the topic which they show.
        revision: That of the table at which they were last found to be right.
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
        """Return whether the topic is as the pieces show it; asked once for each revision of the table."""
        if view.topic_revision(self.asked.topic) != self.topic_revision:
            return False
        self.revision = view.revision
        return True


@dataclass(slots=True, eq=False, kw_only=True)
class _Missing(_Known):
    """The answer that nobody has a topic.

    Its revision stays behind that of every table, so that :meth:`holds` is asked, and counts, each time.

    Attributes:
        looked_at: Revision of the table at which it was last found to be right.
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
    """Answers the route queries of one connection from a cache; remembers how its client writes them."""

    __slots__ = ("_cache", "_opaque_at", "_rest_at")

    starts: Final = (*_STARTS, *_OTHER_STARTS)
    """What the headers of route queries may start with, in JSON and in binary."""

    def __init__(self, cache: RouteCache) -> None:
        self._cache = cache
        # The place of the last request's opaque: in a binary one from its start, else from its end. At first
        # nowhere, so that nothing is found.
        self._opaque_at = self._rest_at = 0

    def whole(self, data: bytes) -> bytes | int | None:
        """Return the answers to ``data`` if it is known route queries of one kind and nothing else.

        This is the way of nearly every request: 0.6 us of CPU for each of 16 in flight, 2.4 us by
        :meth:`leading`. None says nothing about the data: that one does.
        A number is that of the barrier that ``data``, which begins with a route query, must wait for.
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
            # One alone takes 2,900 instructions less than by the loop below, of 16,500 in all.
            known, opaque = known_of(data[:from_opaque] + data[from_rest:]), data[from_opaque:from_rest]
            if (
                known is not None
                and known.size == end
                and known.rest_at == from_rest
                # The parser takes neither blanks nor leading zeros, and 0 itself goes the full way.
                and (is_binary or (opaque.isdigit() and opaque >= b"1"))
                and (cache.longest <= BATCH_BYTES or len(known.tail) <= BATCH_BYTES)
                and (known.revision == revision or known.holds(view))  # the last one: it counts
            ):
                cache.hits += 1
                return known.head + opaque + known.tail
        pieces: list[bytes] = []
        position = 0
        while position + _BINARY_REST < end:
            # The two lower bytes of the length word are all of it in a known request. The whole word is part
            # of the key, so a wrong end finds nothing.
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
                cache.misses = missed  # all are looked up again
                return None
            pieces += (known.head, opaque, known.tail)
            position = stop
        count = len(pieces) // 3
        # More, and longer ones, are not sent at once, but with a look whether their peer reads.
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

        One by one: any mixture, new ones, and those whose topic has changed. Stops at the first frame that is
        anything else, is not whole, or cannot be answered from the table at once (no contact): that one goes
        the full way. Stops also after :data:`BATCH_MAX` and :data:`BATCH_BYTES`; the second
        value says that it did.
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
                    break  # a registration, say
                opaque_at = found + _OPAQUE_SIZE
                if data.startswith(b" ", opaque_at):
                    opaque_at += 1
                # The parser takes no leading zeros, and 0 itself goes the full way.
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
                break  # a blank before the opaque there, behind it here
            if (
                known is not None
                and known.revision != revision
                and not cache.refresh(known, view, len(opaque))
            ):
                cache.forget(key)  # the topic came, or is gone
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
        """Return the number of what a route query that arrives now waits for; 0: nothing."""
        return self._cache.gate()

    def waits(self, data: bytes, position: int) -> int:
        """Return the number of what the route query at ``position`` must wait for; 0: nothing.

        Only of frames that :meth:`leading` has left.
        """
        return self._cache.gate() if _is_query(data, position) else 0


def _is_query(data: bytes, position: int) -> bool:
    """Return whether the frame at ``position`` looks like a route query, as far as it is there."""
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
        gate: Returns the number of the barrier that a route query which ``view`` lets wait must wait for; 0
            if it is to go the full way.
        admits: Says by the arguments and the release of a request whether it may be answered from here, from
            wherever it comes; None: all may. A request that is known is not asked about again.
        knows_misses: Answers for topics that nobody has are held, too; else those queries go the full way.
        clock: Seconds.
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
        #: By their bytes but for the opaque. For readers.
        self.requests: dict[bytes, _Known] = {}
        # By what they are made of, so that what many topics share is encoded once per change of it.
        self._shared: dict[tuple[HeaderCodec, RouteDialect, Hashable], _Shared] = {}
        self._missing: dict[bytes, None] = {}  # requests whose topic nobody has, the oldest first
        #: Bytes held: answers, also such as only a request that is not asked any more still knows, and what
        #: is known of requests.
        self.held_bytes = 0
        #: Bytes of the longest answer that was ever held since all was forgotten. For readers.
        self.longest = 0
        #: Route queries answered from here.
        self.hits = 0
        #: Those of them that said that nobody has the topic.
        self.misses = 0
        #: Times of the answers from here; one in :data:`TIMED_EVERY` is timed, for all of them.
        self.times = Histogram()
        #: Hits from which on the next answer is timed. For readers.
        self.timed_at = 1
        self._timed = 0  # hits that the times count
        #: Requests that had to be parsed to be learnt.
        self.learnt = 0

    @property
    def entries(self) -> int:
        """Requests known."""
        return len(self.requests)

    def reader(self) -> RouteReader:
        """Return what answers the queries of a new connection."""
        return RouteReader(self)

    def time(self, whole: Callable[[bytes], bytes | int | None], data: bytes) -> bytes | int | None:
        """Return what a reader answers to ``data``, and note how long that took."""
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
        """Take one whole frame into the tables and return its answer; None if it goes the full way.

        Args:
            opaque_at: Where the opaque begins in the frame.
            rest_at: As of :class:`_Known`.
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
        """Make an answer say that nobody has the topic."""
        asked = known.asked
        answer = no_route(asked.topic, is_5=asked.is_5)
        before, known.tail = _split_answer_header(asked.codec, answer.code, answer.remark)
        header_size = len(before) + opaque_size + len(known.tail)
        known.head = _LENGTHS.pack(4 + header_size, asked.codec << 24 | header_size) + before
        known.cost += len(known.head) + len(known.tail)
        known.topic_revision = view.topic_revision(asked.topic)
        self.misses += 1

    def refresh(self, known: _Known, view: RouteView, opaque_size: int) -> bool:
        """Make an answer what the table now says; False if it is to be learnt anew, or takes the full way."""
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
        """Return what an answer ends with; None if it must be answered the full way."""
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
        """Have a request hold its last answer no longer; forget the answer after the last one."""
        shared = known.shared
        if shared is not None and self._shared.get(shared.made_of) is shared:
            shared.users -= 1
            if shared.users == 0:
                del self._shared[shared.made_of]
                self.held_bytes -= _SHARED_COST + len(shared.content)

    def forget(self, key: bytes) -> None:
        """Drop what is known of a request."""
        known = self.requests.pop(key, None)
        if known is None:
            return  # all was forgotten since it was found
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
    """Parse a header in full; None if it is no request whose answer depends on what :class:`_Asked` names."""
    try:
        header = decode_header(header_bytes, HeaderCodec(codec))
        fields = GetRouteFields.parse(header.ext_fields or {})
    except (ValueError, RemoteProtocolError, FieldError):  # the first: no codec
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
