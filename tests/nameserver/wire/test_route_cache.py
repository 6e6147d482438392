"""Tests of the cache of encoded routes.

The cache either answers exactly as the full parser and the handlers do, or it leaves the request to them.
"""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from routekeeper.nameserver.commands import DeleteTopic, RegisterBroker, TopicQueues
from routekeeper.nameserver.handlers import decide
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.routes.view import RouteView
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.nameserver.types import Answer, BrokerAddr, BrokerKey, BrokerName, ClusterName
from routekeeper.nameserver.verdicts import Applied
from routekeeper.nameserver.wire import route_cache
from routekeeper.nameserver.wire.route_cache import BATCH_BYTES, BATCH_MAX, TAIL_MAX, RouteCache, RouteReader
from routekeeper.remoting.codes import HeaderCodec
from routekeeper.remoting.command import RemotingCommand, decode_command
from routekeeper.remoting.errors import RemoteProtocolError
from routekeeper.remoting.frame import FrameDecoder, encode_frame
from routekeeper.remoting.header import Header, encode_header
from routekeeper.remoting.route import DataVersion, RouteDialect, TopicRouteData, encode_route
from routekeeper.remoting.transport.inbox import Inbox

SETTINGS = NamesrvSettings()
#: Settings of hypothesis without a time limit for each example, because a machine may be slow.
BUSY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def register(table: RouteTable, name: str, topics: tuple[str, ...], *, counter: int = 1) -> None:
    broker = BrokerKey(ClusterName("C"), BrokerAddr(f"10.0.0.1:{len(name)}"))
    verdict = table.apply(
        RegisterBroker(
            cluster_name=broker.cluster_name,
            broker_name=BrokerName(name),
            broker_addr=broker.broker_addr,
            broker_id=0,
            ha_server_addr="10.0.0.1:2",
            data_version=DataVersion(counter=counter),
            topics=tuple(
                TopicQueues(topic=topic, read_queue_nums=4, write_queue_nums=4, perm=6) for topic in topics
            ),
            incremental=False,
            filter_servers=None,
            mappings=(),
            lease_ms=120_000,
            enable_acting_master=None,
            zone_name=None,
            delete_absent=False,
            record_revision=table.revision,
            name_revision=table.revision,
        )
    )
    assert isinstance(verdict, Applied)


def table_of(*topics: str) -> RouteTable:
    table = RouteTable()
    register(table, "b", topics)
    return table


def cache_of(table: RouteTable, **changes: Any) -> RouteCache:
    return RouteCache(
        view=lambda: table.view, settings=lambda: SETTINGS, gate=lambda: 0, clock=lambda: 0.0, **changes
    )


def request(
    topic: str | None = "T",
    opaque: int = 7,
    *,
    version: int = 479,
    codec: HeaderCodec = HeaderCodec.JSON,
    code: int = 105,
    flag: int = 0,
    body: bytes = b"",
    **ext: str,
) -> bytes:
    arguments = {"topic": topic, **ext} if topic is not None else ext
    header = Header(code, "JAVA", version, opaque, flag, None, arguments or None)
    return encode_frame(encode_header(header, codec), body, codec=codec)


def in_full(table: RouteTable, data: bytes) -> bytes:
    """Answer one frame with the full parser and the handlers."""
    (frame,) = FrameDecoder().feed(data)
    command = decode_command(frame)
    answer = decide(table.view, command, SETTINGS, uptime_s=0.0)
    assert isinstance(answer, Answer)
    reply = command.reply(answer.code, remark=answer.remark, ext_fields=answer.ext_fields, body=answer.body)
    return reply.encode()


def lead(reader: RouteReader, data: bytes, answers: list[bytes]) -> int:
    """Let the cache answer the requests at the beginning of ``data``, in several calls.

    Return the position after the last answered request.
    """
    position, enough = reader.leading(data, 0, answers)
    while enough and position < len(data):
        position, enough = reader.leading(data, position, answers)
    return position


def check(cache: RouteCache, table: RouteTable, frames: list[bytes]) -> int:
    """Check that the cache answers a stream of requests like the full parser.

    Return the number of requests that it answered.
    """
    data = b"".join(frames)
    answers: list[bytes] = []
    reader = cache.reader()
    position = lead(reader, data, answers)
    taken = 0
    while sum(map(len, frames[:taken])) < position:
        taken += 1
    assert sum(map(len, frames[:taken])) == position, "it stops at the edge of a frame"
    expected = b"".join(in_full(table, frame) for frame in frames[:taken])
    assert b"".join(answers) == expected
    whole = reader.whole(data)  # None if a request has another form than the reader expects
    assert whole is None or (whole == expected and taken == len(frames))
    return taken


def new_cache_asked(table: RouteTable, frames: list[bytes]) -> RouteCache:
    """Return a new cache that has answered only these frames, so that it contains no other entries."""
    cache = cache_of(table)
    assert check(cache, table, frames) == len(frames)
    return cache


topics = st.sampled_from(["T", "U", "%RETRY%g", "gone", "Ünï", 'quo"te', "back\\slash", '"opaque":5,'])
requests = st.builds(
    request,
    topic=topics,
    opaque=st.integers(-(2**31), 2**31 - 1) | st.integers(0, 1200),
    version=st.sampled_from([121, 317, 401, 409, 479]),
    codec=st.sampled_from(HeaderCodec),
    code=st.sampled_from([105] * 8 + [106]),
    flag=st.sampled_from([0] * 8 + [1, 2]),
    body=st.sampled_from([b""] * 8 + [b"x"]),
)
LISTED = ("T", "U", "%RETRY%g", "Ünï", 'quo"te', "back\\slash", '"opaque":5,')


@pytest.mark.slow
@BUSY
@given(st.lists(st.lists(requests, min_size=1, max_size=6), min_size=1, max_size=6))
def test_any_stream_is_answered_as_the_full_parser_answers_it(streams: list[list[bytes]]) -> None:
    table = table_of(*LISTED)
    cache = cache_of(table)
    for frames in streams:
        check(cache, table, frames)
        check(cache, table, frames)  # now the cache has learnt the requests


Step = list[bytes] | tuple[str, str] | str
steps: st.SearchStrategy[Step] = st.one_of(
    st.lists(requests, min_size=1, max_size=6),
    st.lists(st.builds(request, st.sampled_from(["T", "U"]), st.integers(100, 999)), min_size=1, max_size=6),
    st.lists(
        st.builds(
            request,
            st.sampled_from(["T", "U"]),
            st.integers(-(2**31), 2**31 - 1),
            codec=st.just(HeaderCodec.ROCKETMQ),
        ),
        min_size=1,
        max_size=6,
    ),
    st.tuples(st.sampled_from(["register", "delete"]), st.sampled_from(["T", "U"])),
    st.just("clear"),
)


@pytest.mark.slow
@BUSY
@given(st.lists(steps, min_size=1, max_size=20), st.booleans())
def test_a_connection_is_answered_as_the_full_parser_answers_it_while_topics_change(
    script: list[Step], small: bool
) -> None:
    table = table_of(*LISTED)
    cache = cache_of(table, **({"requests_max": 3, "bytes_max": 30_000} if small else {}))
    readers = [cache.reader(), cache.reader()]
    for number, step in enumerate(script):
        if step == "clear":
            cache.clear()
        elif isinstance(step, tuple):
            if step[0] == "register":
                register(table, f"b{number}" * (1 + number), (step[1],))
            else:
                table.apply(DeleteTopic(topic=step[1], cluster_name=None, topic_revision=table.revision))
        else:
            assert not isinstance(step, str)
            data = b"".join(step)
            for reader in readers * 2:
                whole = reader.whole(data)
                if whole is not None:
                    assert whole == b"".join(in_full(table, frame) for frame in step)
                lead(reader, data, [])


@pytest.mark.parametrize("codec", HeaderCodec)
@pytest.mark.parametrize("version", [317, 479])
@pytest.mark.parametrize("count", [1, 2, BATCH_MAX, BATCH_MAX + 1])
def test_known_requests_of_one_kind_are_answered_whole(codec: HeaderCodec, version: int, count: int) -> None:
    table = table_of("T", "U")
    cache = cache_of(table)
    teacher, reader = cache.reader(), cache.reader()
    frames = [request("TU"[i % 2], 100 + i, version=version, codec=codec) for i in range(count)]
    for frame in frames[:2]:
        for any_reader in (teacher, reader):
            assert lead(any_reader, frame, []) == len(frame)
    before = cache.hits
    whole = reader.whole(b"".join(frames))
    if count > BATCH_MAX:
        assert whole is None
        assert cache.hits == before
    else:
        assert whole == b"".join(in_full(table, frame) for frame in frames)
        assert cache.hits == before + count


@pytest.mark.parametrize("codec", HeaderCodec)
@pytest.mark.parametrize("count", [1, 2])
def test_what_is_known_is_not_answered_once_its_topic_has_changed(codec: HeaderCodec, count: int) -> None:
    table = table_of("T", "U")
    cache = cache_of(table)
    reader = cache.reader()
    frames = [request("T", 100 + i, codec=codec) for i in range(count)]
    data = b"".join(frames)
    for name in ("b2", "b3!", "b4!!"):
        lead(reader, data, [])
        assert reader.whole(data) == b"".join(in_full(table, frame) for frame in frames)
        register(table, name, ("T",))
        assert reader.whole(data) is None


def test_topics_alike_share_one_answer_and_none_stays_unused() -> None:
    table = table_of(*(f"T{i}" for i in range(20)))
    cache = cache_of(table)
    for i in range(20):
        assert check(cache, table, [request(f"T{i}", 100)]) == 1
    size = len(in_full(table, request("T0", 100)))
    assert cache.held_bytes < 2 * size + 2_000 + 20 * (400 + 600 + 200)
    for i in range(20):
        table.apply(DeleteTopic(topic=f"T{i}", cluster_name=None, topic_revision=table.revision))
        assert check(cache, table, [request(f"T{i}", 100)]) == 1
    assert cache.held_bytes == new_cache_asked(table, [request(f"T{i}", 100) for i in range(20)]).held_bytes


def test_answer_that_topics_share_is_encoded_once_per_change(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = []

    def encode(route: TopicRouteData, dialect: RouteDialect) -> bytes:
        encoded.append(dialect)
        return encode_route(route, dialect)

    monkeypatch.setattr("routekeeper.nameserver.wire.route_cache.encode_route", encode)
    topics = tuple(f"T{i}" for i in range(20))
    table = table_of(*topics)
    cache = cache_of(table)
    frames = [request(topic) for topic in topics]
    check(cache, table, frames)
    assert len(encoded) == 1
    register(table, "b", topics[1:], counter=2)
    check(cache, table, frames)
    assert len(encoded) == 1, "nothing changed but a version"
    register(table, "b2", topics[10:])
    check(cache, table, frames)
    assert len(encoded) == 2
    cache.clear()
    check(cache, table, frames)
    assert len(encoded) == 4


alike = st.lists(
    st.tuples(st.sampled_from(LISTED), st.integers(100, 999)), min_size=1, max_size=BATCH_MAX + 4
)


@BUSY
@given(alike, st.sampled_from([317, 479]))
def test_batches_of_one_lane_are_answered_as_the_full_parser_answers_them(
    asked: list[tuple[str, int]], version: int
) -> None:
    table = table_of(*LISTED)
    cache = cache_of(table)
    frames = [request(topic, opaque, version=version) for topic, opaque in asked]
    for _ in range(3):
        assert check(cache, table, frames) >= min(len(frames), BATCH_MAX) or any(
            topic.startswith('"') or "\\" in topic for topic, _ in asked
        )


@BUSY
@given(st.data())
def test_damaged_bytes_of_a_known_request_are_never_taken_for_it(data: st.DataObject) -> None:
    table = table_of("T", "U")
    cache = cache_of(table)
    opaques = st.integers(10, 99)
    codec = data.draw(st.sampled_from(HeaderCodec))
    count = data.draw(st.integers(1, 3))
    frames = [
        request(data.draw(st.sampled_from(["T", "U"])), data.draw(opaques), codec=codec) for _ in range(count)
    ]
    for _ in range(2):
        check(cache, table, frames)
    stream = bytearray(b"".join(frames))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(stream) - 1))
        kind = data.draw(st.sampled_from(["change", "remove", "insert"]))
        byte = data.draw(st.sampled_from([*b'0123456789,:"{}\x00\x01 -.e\\', 0xFF]))
        if kind == "change":
            stream[at] = byte
        elif kind == "remove":
            del stream[at]
        else:
            stream.insert(at, byte)
    damaged = bytes(stream)
    answers: list[bytes] = []
    reader = cache.reader()
    lead(reader, b"".join(frames), [])
    whole = reader.whole(damaged)
    position = lead(reader, damaged, answers)
    assert whole is None or (position == len(damaged) and whole == b"".join(answers))
    expected = []
    decoder = FrameDecoder()
    try:
        for frame in decoder.feed(damaged[:position]):
            expected.append(in_full(table, encode_frame(frame.header, frame.body, codec=frame.codec)))
    except RemoteProtocolError:
        pytest.fail("the parser refuses what the cache took")
    assert len(list(decoder.feed(request()))) == 1, "it stopped at the edge of a frame"
    assert b"".join(answers) == b"".join(expected)


OPAQUES = ["0", "007", "1.5", '"7"', "-3", "  7", "2147483648", "1e3", "null", "true", "+7", "१२३"]


@pytest.mark.parametrize("text", OPAQUES)
@pytest.mark.parametrize("batch", [1, 3])
def test_opaque_as_only_the_parser_judges_it_is_left_to_the_parser(text: str, batch: int) -> None:
    table = table_of("T")
    cache = cache_of(table)
    size = len(text.encode())
    known = request("T", int("9" * min(size, 9)))
    for _ in range(2):
        check(cache, table, [known] * batch)
    header = known[8:].replace(b"9" * min(size, 9), text.encode(), 1)
    data = encode_frame(header, codec=HeaderCodec.JSON)
    for frames in ([data], [known, data], [data, known], [data] * 3):
        answers: list[bytes] = []
        reader = cache.reader()
        lead(reader, known, [])
        assert reader.whole(b"".join(frames)) is None
        position = lead(reader, b"".join(frames), answers)
        assert position == len(b"".join(frames[: frames.index(data)]))


AMBIGUOUS = {
    "in the arguments": b'{"code":105,"extFields":{"opaque":5,"topic":"T"},"flag":0,"version":479}',
    "in both places": b'{"code":105,"extFields":{"opaque":5,"topic":"T"},"flag":0,"opaque":6,"version":479}',
    "twice": b'{"code":105,"extFields":{"topic":"T"},"opaque":5,"opaque":6,"version":479}',
    "nested": b'{"code":105,"x":{"opaque":5,"y":1},"extFields":{"topic":"T"},"version":479}',
    "last member": b'{"code":105,"extFields":{"topic":"T"},"version":479,"opaque":5}',
    "escaped name": b'{"code":105,"extFields":{"topic":"T"},"opaqu\\u0065":5,"version":479}',
}


@pytest.mark.parametrize("header", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_header_whose_opaque_is_somewhere_else_is_answered_rightly_or_left(header: bytes) -> None:
    table = table_of("T")
    cache = cache_of(table)
    frames = [
        encode_frame(header.replace(b"5", digit), codec=HeaderCodec.JSON) for digit in (b"5", b"6", b"7")
    ]
    for _ in range(3):
        for frame in frames:
            check(cache, table, [frame])
        check(cache, table, frames)


@pytest.mark.parametrize("size", [0, 3])
def test_frame_that_is_shorter_than_any_query_is_left_to_the_parser(size: int) -> None:
    """The cache leaves a frame to the parser if its length word is smaller than any query.

    Any client may send the bytes of a query after such a length word.
    """
    query = request("T", codec=HeaderCodec.ROCKETMQ)
    inbox = Inbox(
        frame_size_max=1 << 20, fast_path=cache_of(table_of("T")).reader(), park=lambda number: None
    )
    inbox.receive(size.to_bytes(4) + query[4:])
    with pytest.raises(RemoteProtocolError):
        inbox.next([])


def test_header_with_digits_in_the_place_of_another_ones_opaque_is_left_to_the_parser() -> None:
    table = table_of("T")
    reader = cache_of(table).reader()
    first = b'{"code":105,"opaque":55,"extFields":{"topic":"T"},"version":479}'
    last = b'{"code":105,"extFields":{"topic":"T"},"opaque":55}'
    moved = b'{"code":105,"opaque":,"extFields":{"topic":"T"},"version":47955}'
    for header in (first, last):
        frame = encode_frame(header, codec=HeaderCodec.JSON)
        assert lead(reader, frame, []) == len(frame)
    data = encode_frame(moved, codec=HeaderCodec.JSON)
    assert reader.whole(data) is None
    assert lead(reader, data, []) == 0


def test_bytes_that_are_fewer_than_their_length_word_says_are_not_answered() -> None:
    """The cache does not answer a frame whose last byte is missing.

    The cache knows a query whose opaque has one digit more than the opaque of the tested query. The tested
    query has the length word of the known query, so its frame is one byte too short.
    """
    table = table_of("T")
    cache = cache_of(table)
    of_two_digits = cache.reader()
    assert lead(of_two_digits, request("T", 77), []) > 0
    data = request("T", 777)
    assert lead(cache.reader(), data, []) == len(data)
    assert of_two_digits.whole(data.replace(b"777", b"77")) is None


def test_answer_follows_every_change_of_the_topic() -> None:
    table = table_of("T", "U")
    cache = cache_of(table)
    frames = [request("T", 123), request("U", 124), request("T", 125)]
    assert check(cache, table, frames) == 3
    register(table, "b2", ("T",))
    assert check(cache, table, frames) == 3
    assert check(cache, table, [request("T", 126, codec=HeaderCodec.ROCKETMQ)]) == 1
    learnt = cache.learnt
    assert check(cache, table, frames) == 3
    assert cache.learnt == learnt
    table.apply(DeleteTopic(topic="T", cluster_name=None, topic_revision=table.revision))
    assert check(cache, table, frames) == 3
    assert check(cache, table, [request("U", 127), request("T", 128)]) == 2
    register(table, "b3", ("T",))
    assert check(cache, table, frames) == 3


def test_nothing_is_answered_while_a_read_must_wait() -> None:
    table = table_of("T")
    views: list[RouteView | None] = [table.view, None]
    cache = RouteCache(view=lambda: views[0], settings=lambda: SETTINGS, gate=lambda: 0, clock=lambda: 0.0)
    assert lead(cache.reader(), request(), []) > 0
    views.reverse()
    assert lead(cache.reader(), request(), []) == 0


def test_settings_show_after_clear() -> None:
    table = table_of("T")
    current = [SETTINGS]
    cache = RouteCache(
        view=lambda: table.view, settings=lambda: current[0], gate=lambda: 0, clock=lambda: 0.0
    )
    check(cache, table, [request()])
    current[0] = replace(SETTINGS, order_message_enable=True)
    reader = cache.reader()
    lead(reader, request(), [])
    assert reader.whole(request()) is not None
    cache.clear()
    assert (cache.entries, cache.held_bytes) == (0, 0)
    assert reader.whole(request()) is None
    check(cache, table, [request()])
    assert cache.entries == 1


def test_zone_mode_and_query_without_a_topic_go_the_full_way() -> None:
    table = table_of("T")
    cache = cache_of(table)
    for data in (request("T", __ZONE_MODE="true", __ZONE_NAME="z"), request(None)):
        assert lead(cache.reader(), data, []) == 0
    assert cache.entries == 0


def test_long_batch_is_handed_back_in_parts() -> None:
    table = table_of("T")
    cache = cache_of(table)
    check(cache, table, [request("T", 100)])
    frames = [request("T", 100 + i) for i in range(BATCH_MAX * 2 + 5)]
    data = b"".join(frames)
    position, parts, answers = 0, [], []
    while position < len(data):
        part: list[bytes] = []
        position, _ = cache.reader().leading(data, position, part)
        parts.append(len(part) // 3)
        answers += part
    assert parts == [BATCH_MAX, BATCH_MAX, 5]
    assert b"".join(answers) == b"".join(in_full(table, frame) for frame in frames)


def test_unfinished_frame_is_left_at_every_cut() -> None:
    table = table_of("T")
    cache = cache_of(table)
    frame = request("T", 123)
    check(cache, table, [frame, frame])
    for cut in range(len(frame)):
        answers: list[bytes] = []
        assert lead(cache.reader(), frame + frame[:cut], answers) == len(frame)
        assert lead(cache.reader(), frame[:cut], []) == 0
        assert b"".join(answers) == in_full(table, frame)


def test_tables_stay_within_their_bounds() -> None:
    table = table_of(*(f"T{i}" for i in range(50)))
    cache = cache_of(table, requests_max=20, bytes_max=100_000)
    for i in range(50):
        for codec in HeaderCodec:
            assert check(cache, table, [request(f"T{i}", 100, codec=codec)]) == 1
            assert cache.entries <= 20
            assert cache.held_bytes <= 100_000 + 5_000


def test_topic_that_has_gone_is_answered_when_the_cache_is_above_its_bound() -> None:
    table = table_of("T", "U")
    cache = cache_of(table, bytes_max=1)
    assert check(cache, table, [request("T", 100)]) == 1
    table.apply(DeleteTopic(topic="T", cluster_name=None, topic_revision=table.revision))
    assert check(cache, table, [request("T", 101)]) == 1


def test_of_vanished_topics_only_the_last_ones_stay_known() -> None:
    table = RouteTable()
    register(table, "b", ("keep",))
    cache = cache_of(table, misses_max=10)
    for i in range(30):
        register(table, "b", ("keep", f"T{i}"), counter=i + 2)
        for codec in HeaderCodec:
            assert check(cache, table, [request(f"T{i}", 100, codec=codec)]) == 1
        table.apply(DeleteTopic(topic=f"T{i}", cluster_name=None, topic_revision=table.revision))
        for codec in HeaderCodec:
            assert check(cache, table, [request(f"T{i}", 100, codec=codec)]) == 1
    assert cache.entries == 10
    last = [request(f"T{i}", 100, codec=codec) for i in range(25, 30) for codec in HeaderCodec]
    assert cache.held_bytes == new_cache_asked(table, last).held_bytes


def wide(names: int, topic: str = "T", table: RouteTable | None = None) -> RouteTable:
    """Return a route table in which the topic has queues at ``names`` broker names."""
    table = RouteTable() if table is None else table
    for i in range(names):
        register(table, "b" * (i + 1), (topic,))
    return table


def test_route_of_many_broker_names_is_known_like_any_other() -> None:
    """The cache also answers queries for routes with many broker names.

    An earlier version did not store routes above 64 KiB (320 broker names). For such routes, the full parser
    takes 1,000 times as long as the cache.
    """
    table = wide(400)
    cache = cache_of(table)
    assert len(in_full(table, request("T"))) > 64 * 1024
    assert check(cache, table, [request("T", 100), request("T", 101)]) == 2
    assert cache.entries == 1


def test_route_too_large_to_be_kept_goes_the_full_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_cache, "TAIL_MAX", 64 * 1024)
    assert TAIL_MAX > 64 * 1024
    cache = cache_of(wide(400))
    assert lead(cache.reader(), request("T"), []) == 0


@pytest.mark.parametrize("codec", HeaderCodec)
def test_batch_of_long_answers_is_handed_back_before_it_is_much(codec: HeaderCodec) -> None:
    table = wide(400)
    cache = cache_of(table)
    frames = [request("T", 100 + i, codec=codec) for i in range(40)]
    check(cache, table, frames[:1])
    data = b"".join(frames)
    reader = cache.reader()
    lead(reader, frames[0], [])
    assert reader.whole(data) is None
    answers: list[bytes] = []
    position, enough = reader.leading(data, 0, answers)
    assert enough
    assert 0 < position < len(data)
    assert sum(map(len, answers)) < BATCH_BYTES + 2 * len(in_full(table, frames[0]))


def test_few_requests_are_learnt_in_one_batch() -> None:
    table = table_of(*(f"T{i}" for i in range(50)))
    cache = cache_of(table)
    data = b"".join(request(f"T{i}", 100) for i in range(50))
    _, enough = cache.reader().leading(data, 0, [])
    assert enough
    assert cache.learnt < 8


@pytest.mark.parametrize("codec", HeaderCodec)
def test_requests_are_learnt_once_until_they_are_more_than_are_kept(codec: HeaderCodec) -> None:
    table = table_of("T")
    cache = cache_of(table, requests_max=60)
    shapes = [request("T", 100, codec=codec, padding="x" * i) for i in range(61)]
    for _ in range(4):
        for shape in shapes[:60]:
            assert check(cache, table, [shape]) == 1
    assert cache.learnt == cache.entries == 60
    assert check(cache, table, [shapes[60], shapes[0]]) == 2
    assert (cache.learnt, cache.entries) == (62, 2)


def test_what_old_answers_hold_is_counted_and_bounded() -> None:
    """Old requests and old answers count towards the limit of the cache, so that it forgets them.

    In this test, each request is sent only once, and each answer soon becomes invalid.
    """
    table = wide(100)
    cache = cache_of(table, bytes_max=2_000_000)
    for round_ in range(60):
        # Send each request only once, and change the table after each request. So no later request replaces a
        # stored answer.
        assert check(cache, table, [request("T", 100, padding="x" * round_)]) == 1
        register(table, "m" * (500 + round_), ("T",))
        held = {id(known.tail): known.tail for known in cache.requests.values()}
        assert sum(map(len, held.values())) <= cache.held_bytes <= 2_000_000 + 50_000
    cache.clear()
    assert cache.held_bytes == 0


@pytest.mark.parametrize("codec", HeaderCodec)
def test_what_is_counted_of_many_small_requests_is_about_what_they_hold(codec: HeaderCodec) -> None:
    table = table_of("T")
    cache = cache_of(table)
    frames = [request("T", 100, codec=codec, padding=str(number)) for number in range(3000)]
    tracemalloc.start()
    try:
        for frame in frames:
            lead(cache.reader(), frame, [])
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert cache.learnt == 3000
    assert cache.held_bytes > 0.6 * held


def test_shapes_that_routes_have_no_more_are_forgotten() -> None:
    """The cache must forget the answer to a route that has changed.

    An earlier version stored up to 10,000 such answers, and no limit counted their bytes.
    """
    table = wide(50)
    cache = cache_of(table)
    for round_ in range(20):
        assert check(cache, table, [request("T", 100)]) == 1
        register(table, "m" * (100 + round_), ("T",))
    assert check(cache, table, [request("T", 100)]) == 1
    assert cache.held_bytes == new_cache_asked(table, [request("T", 100)]).held_bytes


@pytest.mark.parametrize("codec", HeaderCodec)
@pytest.mark.parametrize("count", [1, 2])
def test_known_query_is_answered_at_once_while_other_topics_change(codec: HeaderCodec, count: int) -> None:
    table = table_of("T", "U")
    reader = cache_of(table).reader()
    frames = [request("TU"[i], 100 + i, codec=codec) for i in range(count)]
    data = b"".join(frames)
    lead(reader, data, [])
    for name in ("b2", "b3!", "b4!!"):
        register(table, name, ("another",))
        assert reader.whole(data) == b"".join(in_full(table, frame) for frame in frames)


def in_json(**members: Any) -> bytes:
    return json.dumps(members).encode()


#: Headers of route queries as clients in several languages write them. The opaque is always 55.
SPELLINGS = {
    "Python's json.dumps": in_json(
        code=105, language="PYTHON", version=479, opaque=55, flag=0, extFields={"topic": "T"}
    ),
    "Go": b'{"code":105,"language":"GO","version":317,"opaque":55,"flag":0,"extFields":{"topic":"T"}}',
    "C++, names sorted": b'{"code":105,"extFields":{"topic":"T"},"language":"CPP","opaque":55,"version":0}\n',
    "Node, the code last": b'{"opaque":55,"flag":0,"language":"JAVA","extFields":{"topic":"T"},"code":105}',
    "a blank behind the opaque": b'{"code":105,"opaque":55 ,"extFields":{"topic":"T"},"version":479}',
    "the opaque last": b'{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":55}',
    "blanks, arguments first": in_json(extFields={"topic": "T"}, version=479, code=105, flag=0, opaque=55),
}
#: Headers of queries that the cache leaves to the full parser.
UNUSUAL = {"one name a line": b'{\n "code": 105,\n "opaque": 55,\n "extFields": {"topic": "T"}\n}'}


@pytest.mark.parametrize("header", SPELLINGS.values(), ids=SPELLINGS)
def test_query_is_answered_from_its_bytes_however_its_header_is_spelt(header: bytes) -> None:
    table = table_of("T")
    cache = cache_of(table)
    reader = cache.reader()
    inbox = Inbox(frame_size_max=1 << 20, fast_path=reader, park=lambda number: None)
    for opaque in (b"10", b"98"):
        data = encode_frame(header.replace(b"55", opaque), codec=HeaderCodec.JSON)
        answers: list[bytes] = []
        assert inbox.receive(data)
        assert inbox.next(answers) is None, "it is not left to the parser"
        assert b"".join(answers) == in_full(table, data)
    assert cache.learnt == 1
    assert inbox.straight
    assert reader.whole(data) == in_full(table, data)


@pytest.mark.parametrize("header", (SPELLINGS | UNUSUAL).values(), ids=SPELLINGS | UNUSUAL)
@pytest.mark.parametrize(
    "change", [(b"105", b"106"), (b"105", b"1050"), (b'"topic"', b'"zopic"'), (b"55", b"-5")]
)
def test_other_request_in_any_spelling_is_left_to_the_parser(
    header: bytes, change: tuple[bytes, bytes]
) -> None:
    table = table_of("T")
    cache = cache_of(table)
    reader = cache.reader()
    lead(reader, encode_frame(header, codec=HeaderCodec.JSON), [])
    data = encode_frame(header.replace(*change), codec=HeaderCodec.JSON)
    inbox = Inbox(frame_size_max=1 << 20, fast_path=reader, park=lambda number: None)
    assert reader.whole(data) is None
    inbox.receive(data)
    assert isinstance(inbox.next([]), RemotingCommand)


@pytest.mark.parametrize("codec", HeaderCodec)
@pytest.mark.parametrize("version", [317, 479])
@pytest.mark.parametrize("topic", ["gone", "Ünï", 'quo"te', "back\\slash", "%RETRY%g", "T" * 200])
def test_query_for_a_topic_that_nobody_has_is_answered_from_its_bytes(
    codec: HeaderCodec, version: int, topic: str
) -> None:
    table = table_of("another")
    cache = cache_of(table)
    reader = cache.reader()
    for opaque in (100, 101):
        data = request(topic, opaque, version=version, codec=codec)
        answers: list[bytes] = []
        assert lead(reader, data, answers) == len(data)
        assert b"".join(answers) == in_full(table, data)
    assert cache.learnt == 1
    assert reader.whole(data) == in_full(table, data)
    batch = b"".join(request(topic, 100 + i, version=version, codec=codec) for i in range(3))
    answered = b"".join(
        in_full(table, request(topic, 100 + i, version=version, codec=codec)) for i in range(3)
    )
    assert reader.whole(batch) == answered


def test_answer_that_a_topic_is_unknown_is_forgotten_when_it_comes() -> None:
    table = table_of("another")
    cache = cache_of(table)
    reader = cache.reader()
    data = request("T")
    for name in ("b2", "b3!"):
        lead(reader, data, [])
        assert reader.whole(data) == in_full(table, data)
        register(table, name, ("U" + name,))
        assert reader.whole(data) == in_full(table, data), "other topics do not matter"
        register(table, name + "?", ("T",))
        assert reader.whole(data) is None
        assert check(cache, table, [data]) == 1
        assert cache.held_bytes == new_cache_asked(table, [data]).held_bytes
        table.apply(DeleteTopic(topic="T", cluster_name=None, topic_revision=table.revision))
        assert reader.whole(data) is None
        assert check(cache, table, [data]) == 1
    assert cache.entries == 1


def test_names_that_strangers_make_up_push_no_known_topic_out() -> None:
    table = table_of("T")
    cache = cache_of(table, misses_max=1_000)
    check(cache, table, [request("T", 100)])
    learnt = cache.learnt
    for number in range(5_000):
        reader = cache.reader()
        data = request(f"made up {number}", 100)
        assert lead(reader, data, []) == len(data)
    assert check(cache, table, [request("T", 101)]) == 1
    assert cache.learnt == learnt + 5_000, "T was not learnt anew"
    assert cache.entries <= 1 + 1_000
    assert cache.held_bytes < 5_000_000
