"""Tests of the bodies of routes, of the cluster table, and of registrations."""

from __future__ import annotations

import random
import re
import struct
import tracemalloc
import zlib
from collections.abc import Mapping
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routekeeper.remoting.bounds import ADDR_MAX, FILTER_SERVERS_MAX, TOPIC_NAME_MAX
from routekeeper.remoting.errors import LocalProtocolError, RemoteProtocolError
from routekeeper.remoting.lenient import DEPTH_MAX
from routekeeper.remoting.registration import (
    MAPPING_INFOS_MAX,
    REGISTER_INFLATED_MAX,
    REGISTER_RATIO_MAX,
    PlainRegistration,
    RegisterBody,
    TopicNumbers,
    body_crc32,
    encode_register_body,
    read_any_json,
    read_plain_json,
    reading_registration,
)
from routekeeper.remoting.route import (
    BrokerData,
    ClusterInfo,
    DataVersion,
    QueueData,
    RouteDialect,
    TopicConfig,
    TopicRouteData,
    decode_cluster_info,
    decode_queue_datas,
    decode_route,
    dialect_for,
    encode_cluster_info,
    encode_route,
)
from tests.cost import least_cpu_s
from tests.registrations import read_registration

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=10)
words = texts.filter(lambda text: " " not in text)
int32 = st.integers(-(2**31), 2**31 - 1)
queue_nums = st.integers(0, 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
brokers = st.builds(
    BrokerData,
    cluster=texts,
    broker_name=texts,
    broker_addrs=st.dictionaries(st.integers(0, 2**40), texts, max_size=3),
    enable_acting_master=st.booleans(),
    zone_name=st.none() | texts,
)
queues = st.builds(
    QueueData,
    broker_name=texts,
    read_queue_nums=queue_nums,
    write_queue_nums=queue_nums,
    perm=int32,
    topic_sys_flag=int32,
)
routes = st.builds(
    TopicRouteData,
    queue_datas=st.lists(queues, max_size=3).map(tuple),
    broker_datas=st.lists(brokers, max_size=3).map(tuple),
    filter_server_table=st.dictionaries(
        texts, st.none() | st.lists(texts, max_size=2).map(tuple), max_size=2
    ),
    order_topic_conf=st.none() | texts,
    topic_queue_mapping_by_broker=st.none()
    | st.dictionaries(texts, st.dictionaries(texts, st.integers(0, 9), max_size=2), max_size=2),
)
versions = st.builds(DataVersion, state_version=int64, timestamp=int64, counter=int64)
configs = st.builds(
    TopicConfig,
    topic_name=words,
    read_queue_nums=queue_nums,
    write_queue_nums=queue_nums,
    perm=int32,
    topic_filter_type=st.sampled_from(["SINGLE_TAG", "MULTI_TAG"]),
    attributes=st.dictionaries(texts, texts, max_size=2),
)
register_bodies = st.builds(
    RegisterBody,
    data_version=versions,
    topic_configs=st.lists(configs, max_size=4, unique_by=lambda config: config.topic_name).map(tuple),
    filter_servers=st.lists(texts, max_size=2).map(tuple),
    mapping_infos=st.dictionaries(words, st.just(None), max_size=2).map(
        lambda topics: {topic: {"topic": topic, "epoch": 1} for topic in topics}
    ),
)


@given(routes, st.sampled_from(RouteDialect))
def test_route_survives_encoding(route: TopicRouteData, dialect: RouteDialect) -> None:
    assert decode_route(encode_route(route, dialect)) == route


@given(routes)
def test_quoted_route_is_json_in_ascii_with_sorted_members(route: TopicRouteData) -> None:
    body = encode_route(route, RouteDialect.QUOTED)
    assert body.isascii()
    members = orjson.loads(body)
    assert list(members) == sorted(members)


def route_of(addrs: dict[int, str]) -> TopicRouteData:
    return TopicRouteData(
        queue_datas=(QueueData(broker_name="b", read_queue_nums=4, write_queue_nums=8, perm=6),),
        broker_datas=(BrokerData(cluster="c", broker_name="b", broker_addrs=addrs),),
    )


def test_route_bytes_are_those_of_java() -> None:
    route = route_of({1: "10.0.0.2:1", 0: "10.0.0.1:1"})
    assert encode_route(route, RouteDialect.QUOTED) == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:1","1":"10.0.0.2:1"},"brokerName":"b","cluster":"c",'
        b'"enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"b","perm":6,'
        b'"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":8}]}'
    )
    unquoted = encode_route(route, RouteDialect.UNQUOTED)
    assert b'"brokerAddrs":{0:"10.0.0.1:1",1:"10.0.0.2:1"}' in unquoted
    assert b'"topicSynFlag":0,"topicSysFlag":0' in unquoted


def test_client_go_cuts_addresses_out_of_the_text() -> None:
    # client-go cuts the raw text of brokerAddrs at "," and at the first ":", and removes the quotes.
    for dialect in RouteDialect:
        body = encode_route(route_of({0: "10.0.0.1:1", 1: "[::1]:2"}), dialect).decode()
        match = re.search(r'"brokerAddrs":\{(.*?)\}', body)
        assert match
        pairs = [part.split(":", 1) for part in match[1].split(",")]
        assert {int(k.strip('"')): v.strip('"') for k, v in pairs} == {0: "10.0.0.1:1", 1: "[::1]:2"}


@pytest.mark.parametrize(
    ("version", "accepts", "expected"),
    [
        (400, False, RouteDialect.UNQUOTED),
        (401, False, RouteDialect.QUOTED),
        (317, True, RouteDialect.QUOTED),
        (479, False, RouteDialect.QUOTED),
        (-1, False, RouteDialect.UNQUOTED),
    ],
)
def test_dialect_follows_the_callers_release(version: int, accepts: bool, expected: RouteDialect) -> None:
    assert dialect_for(version, accept_standard_json_only=accepts) is expected


def test_queue_data_of_client_go_and_4_8_is_read() -> None:
    body = b'{"queueDatas":[{"brokerName":"b","perm":"6","topicSynFlag":2}]}'
    (data,) = decode_queue_datas(body)
    assert (data.perm, data.topic_sys_flag) == (6, 2)


@given(st.lists(brokers, max_size=3, unique_by=lambda data: data.broker_name))
def test_cluster_info_survives_encoding(datas: list[BrokerData]) -> None:
    info = ClusterInfo(
        broker_addr_table={data.broker_name: data for data in datas},
        cluster_addr_table={"c": tuple(data.broker_name for data in datas)},
    )
    assert decode_cluster_info(encode_cluster_info(info)) == info


def read(data: bytes, *, compressed: bool = False, version: int = 479, **limits: Any) -> PlainRegistration:
    """Read a registration as a nameserver does.

    Then set each topic's name to its key in the topic table, because the nameserver takes it from there.
    """
    found = read_registration(data, compressed=compressed, version=version, **limits)
    return msgspec.structs.replace(found, topics=named(found.topics))


def named(topics: Mapping[str, TopicNumbers]) -> dict[str, TopicNumbers]:
    return {name: msgspec.structs.replace(numbers, topic_name=name) for name, numbers in topics.items()}


def meant(body: RegisterBody) -> PlainRegistration:
    """Return the part of a registration that a nameserver stores."""
    return PlainRegistration(
        body.data_version,
        {
            config.topic_name: TopicNumbers(
                config.topic_name, config.read_queue_nums, config.write_queue_nums, config.perm
            )
            for config in body.topic_configs
        },
        body.filter_servers,
        body.mapping_infos,
    )


@given(register_bodies, st.booleans(), st.booleans())
def test_registration_survives_encoding(body: RegisterBody, compressed: bool, mislabelled: bool) -> None:
    data = encode_register_body(body, compressed=compressed, version=479)
    label = compressed and not mislabelled
    assert read(data, compressed=label) == meant(body)
    if not compressed:
        assert (read_plain_json(data) is None) is bool(body.mapping_infos)


def test_registration_of_the_oldest_senders_is_read() -> None:
    body = RegisterBody(topic_configs=(TopicConfig(topic_name="T"),))
    data = encode_register_body(body, compressed=False, version=36)
    assert b"topicConfigSerializeWrapper" not in data
    assert read(data, version=36) == meant(body)
    # The sender gives an old version number but sends the newer form of the body. Our nameserver registers
    # the topics; Apache's nameserver loses them.
    newer = encode_register_body(body, compressed=False, version=479)
    assert read(newer, version=36) == meant(body)


def sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def plain(*, topics: tuple[bytes, ...] = (b"T 4 5 6 SINGLE_TAG",), count: int | None = None) -> bytes:
    number = len(topics) if count is None else count
    return b"".join((sized(b'{"counter":1}'), struct.pack(">i", number), *map(sized, topics), sized(b"[]")))


def test_compressed_registration_of_4_9_has_five_parts_and_no_mappings() -> None:
    body = read(zlib.compress(plain()), compressed=True, version=409)
    assert body.topics == {"T": TopicNumbers("T", 4, 5, 6)}
    # Our nameserver also reads the same body from a 5.x sender. Apache's 5.x nameserver would demand the
    # mapping section.
    assert read(zlib.compress(plain()), compressed=True) == body


BAD_BODIES: dict[str, tuple[bytes, bool]] = {
    "no JSON": (b"abc", False),
    "array": (b"[]", False),
    "topic without name": (b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"":{}}}}', False),
    "queue number too large": (
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"readQueueNums":2147483648}}}}',
        False,
    ),
    "version no number": (b'{"topicConfigSerializeWrapper":{"dataVersion":{"counter":"x"}}}', False),
    "filter servers no list": (b'{"filterServerList":{"a":1}}', False),
    "mapping too deep": (
        b'{"topicConfigSerializeWrapper":{"topicQueueMappingInfoMap":{"T":'
        + b'{"a":' * 300
        + b"1"
        + b"}" * 300
        + b"}}}",
        False,
    ),
    "no zlib": (b"abc", True),
    "zlib cut": (zlib.compress(plain())[:-5], True),
    "negative count": (zlib.compress(plain(count=-1)), True),
    "count above content": (zlib.compress(plain(count=2)), True),
    "count above limit": (zlib.compress(plain(count=2**31 - 1)), True),
    "four parts": (zlib.compress(plain(topics=(b"T 4 5 6",))), True),
    "no numbers": (zlib.compress(plain(topics=(b"T a b c SINGLE_TAG",))), True),
    "not UTF-8": (zlib.compress(plain(topics=(b"\xff 4 5 6 SINGLE_TAG",))), True),
    "part past the end": (zlib.compress(struct.pack(">i", 10**6) + b"{}"), True),
}


@pytest.mark.parametrize(("data", "compressed"), BAD_BODIES.values(), ids=BAD_BODIES)
def test_bad_registration_is_refused(data: bytes, compressed: bool) -> None:
    with pytest.raises(RemoteProtocolError):
        read(data, compressed=compressed)


@given(st.binary(max_size=80), st.booleans())
def test_garbage_registration_is_refused_or_read_but_raises_nothing_else(
    data: bytes, compressed: bool
) -> None:
    try:
        read(zlib.compress(data) if compressed else data, compressed=compressed)
    except RemoteProtocolError:
        pass


oddities = st.sampled_from(
    [
        None,
        True,
        "",
        "7",
        "x",
        7,
        -1,
        7.0,
        7.5,
        2**31,
        2**63,
        2**64 - 1,
        -(2**31) - 1,
        [],
        ["a"],
        [1],
        {},
        {"a": 1},
    ]
)
odd_topics = st.dictionaries(
    st.sampled_from(["topicName", "readQueueNums", "writeQueueNums", "perm", "topicSysFlag", "more"]),
    oddities,
    max_size=4,
)
odd_wrappers = st.dictionaries(
    st.sampled_from(["counter", "timestamp", "stateVersion"]), oddities, max_size=2
).flatmap(
    lambda version: st.fixed_dictionaries(
        {
            "topicConfigTable": st.dictionaries(st.sampled_from(["", "T", "U"]), odd_topics, max_size=2)
            | oddities
        },
        optional={"dataVersion": st.just(version) | oddities, "topicQueueMappingInfoMap": oddities},
    )
)
odd_bodies = st.fixed_dictionaries(
    {"topicConfigSerializeWrapper": odd_wrappers | oddities}, optional={"filterServerList": oddities}
)


@given(odd_bodies | odd_wrappers)
def test_odd_registration_that_the_plain_reader_reads_is_read_alike_by_the_tolerant_one(body: object) -> None:
    data = orjson.dumps(body)
    plainly = read_plain_json(data)
    if plainly is not None:
        tolerantly = read_any_json(data, version=479)
        assert msgspec.structs.replace(plainly, topics=named(plainly.topics)) == tolerantly


def test_plain_reader_does_not_check_members_that_a_nameserver_does_not_use() -> None:
    data = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"topicFilterType":[]}}}}'
    assert read(data) == meant(RegisterBody(topic_configs=(TopicConfig(topic_name="T"),)))
    with pytest.raises(RemoteProtocolError):
        read_any_json(data, version=479)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        zlib.compress(plain())[:-3],
        zlib.compress(plain(topics=(b"T 4 5 6 SINGLE_TAG",) * 200)[:-500]),
        b"{topicConfigSerializeWrapper:{}}",
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":06}}}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"\xff":{}}}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{},"a":' + b"[" * 5000 + b"]" * 5000 + b"}}",
    ],
    ids=["empty", "zlib cut", "inflated cut", "bare words", "leading zero", "not UTF-8", "deep"],
)
def test_unusual_registration_is_left_to_the_tolerant_reader(data: bytes) -> None:
    assert read_plain_json(data) is None


def test_registration_above_the_limit_is_left_to_the_tolerant_reader() -> None:
    table = RegisterBody(topic_configs=tuple(TopicConfig(topic_name=f"T{i}") for i in range(3)))
    data = encode_register_body(table, compressed=False, version=479)
    assert read_plain_json(data, topics_max=3) is not None
    assert read_plain_json(data, topics_max=2) is None


@pytest.mark.parametrize(("start", "end"), [(b'{"a":', b"}"), (b"[", b"]")], ids=["objects", "arrays"])
def test_what_is_skipped_may_be_nested_as_deep_as_what_is_read(start: bytes, end: bytes) -> None:
    def body(levels: int) -> bytes:
        later = start * levels + b"1" + end * levels
        return b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"later":%b,"more":"%b"}}}}' % (
            later,
            b"x" * 2048,
        )

    assert read(body(DEPTH_MAX - 4)).topics == {"T": TopicNumbers("T")}
    with pytest.raises(RemoteProtocolError, match=f"nested deeper than {DEPTH_MAX} levels"):
        read(body(DEPTH_MAX - 3))


def test_more_topics_than_allowed_are_refused_before_they_are_read() -> None:
    most, data = (json_body({f"{i:x}": {} for i in range(count)}) for count in (100_000, 400_000))

    def refused() -> None:
        with pytest.raises(RemoteProtocolError, match="more than the 100000 topics allowed"):
            read(data)

    # To read as many topics as are allowed takes three times as long as to refuse four times as many.
    allowed = least_cpu_s(lambda: lambda: read(most), below=0.0)
    assert least_cpu_s(lambda: refused, below=allowed) < allowed


@pytest.mark.slow
def test_decompression_bomb_is_refused_at_the_limit() -> None:
    bomb = zlib.compress(bytes(200_000_000), 9)
    assert len(bomb) < 256 * 1024
    with pytest.raises(RemoteProtocolError, match="inflates above the limit of 1000000"):
        read(bomb, compressed=True, inflated_max=1_000_000)
    limit = REGISTER_RATIO_MAX * (len(bomb) + 64)
    assert limit < REGISTER_INFLATED_MAX
    with pytest.raises(RemoteProtocolError, match=f"inflates above the limit of {limit}"):
        read(bomb, compressed=True)


@pytest.mark.parametrize("length", [6, 40, 127])
def test_real_registrations_stay_below_the_limits_of_compression(length: int) -> None:
    body = RegisterBody(
        topic_configs=tuple(TopicConfig(topic_name=f"{i:0{length}d}") for i in range(20_000)),
        filter_servers=(),
    )
    data = encode_register_body(body, compressed=True, version=479)
    assert len(read(data, compressed=True).topics) == 20_000
    plain_size = len(zlib.decompress(data))
    assert plain_size < REGISTER_RATIO_MAX * len(data) / 2, "real ones come close to the limit"


def test_one_name_said_often_costs_what_its_bytes_allow() -> None:
    padding = b"U 4 5 6 SINGLE_TAG " + orjson.dumps({"a": random.Random(1).randbytes(8000).hex()})
    data = zlib.compress(plain(topics=(b"T 4 5 6 SINGLE_TAG",) * 49_999 + (padding,)), 9)
    with pytest.raises(RemoteProtocolError, match=f"50000 topics, allowed are 0 to {64 + len(data) // 2}"):
        read(data, compressed=True)


@pytest.mark.parametrize("size", [-1, -20, -(2**31), 19, 1000, 2**31 - 1])
def test_a_last_topic_that_does_not_end_where_the_data_does_is_refused(size: int) -> None:
    whole = plain()
    data = whole[: whole.index(b"T 4 5 6")] + b"T 4 5 6 SINGLE_TAG"
    at = data.index(b"T 4 5 6") - 4
    assert data[at : at + 4] == b"\0\0\0\x12"
    with pytest.raises(RemoteProtocolError, match="end"):
        read(zlib.compress(data[:at] + size.to_bytes(4, signed=True) + data[at + 4 :]), compressed=True)


def test_long_attributes_of_topics_are_not_kept() -> None:
    """Attributes of topics must not stay in memory: a hostile sender may send long attributes."""
    bodies = [
        zlib.compress(plain(topics=(b'T 4 5 6 SINGLE_TAG {"a":"%04d%b"}' % (number, b"x" * 4000),)))
        for number in range(1000)
    ]
    tracemalloc.start()
    try:
        for body in bodies:
            read(body, compressed=True)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1_000_000


def json_body(topics: dict[str, Any], **members: Any) -> bytes:
    return orjson.dumps(
        {"topicConfigSerializeWrapper": {"topicConfigTable": topics} | members, "filterServerList": []}
    )


LIMITS: dict[str, tuple[bytes, bytes, str]] = {
    "name": (
        json_body({"x" * TOPIC_NAME_MAX: {}}),
        json_body({"x" * (TOPIC_NAME_MAX + 1): {}}),
        f"{TOPIC_NAME_MAX + 1} characters, allowed are 1 to {TOPIC_NAME_MAX}",
    ),
    "stated name": (
        json_body({"T": {"topicName": "x" * TOPIC_NAME_MAX}}),
        json_body({"T": {"topicName": "x" * (TOPIC_NAME_MAX + 1)}}),
        f"{TOPIC_NAME_MAX + 1} characters",
    ),
    "name in words": (
        zlib.compress(plain(topics=(b"x" * TOPIC_NAME_MAX + b" 1 1 6 S",))),
        zlib.compress(plain(topics=(b"T 1 1 6 S", b"x" * (TOPIC_NAME_MAX + 1) + b" 1 1 6 S"))),
        f"{TOPIC_NAME_MAX + 1} characters",
    ),
    "no name in words": (zlib.compress(plain()), zlib.compress(plain(topics=(b" 1 1 6 S",))), "0 characters"),
    "read queues": (
        json_body({"T": {"readQueueNums": 2**31 - 1}}),
        json_body({"T": {"readQueueNums": 2**31}}),
        f"readQueueNums is '{2**31}', allowed: integers from ",
    ),
    "write queues": (
        json_body({"T": {"writeQueueNums": 0}}),
        json_body({"T": {"writeQueueNums": -1}}),
        "writeQueueNums is -1",
    ),
    "queues in words": (
        zlib.compress(plain(topics=(b"T 0 2147483647 6 S",))),
        zlib.compress(plain(topics=(b"T 0 -1 6 S",))),
        "writeQueueNums is -1",
    ),
    "digits in words": (
        zlib.compress(plain(topics=(b"T 0 " + b"0" * 18 + b"1 6 S",))),
        zlib.compress(plain(topics=(b"T 0 " + b"0" * 5000 + b"1 6 S",))),
        "writeQueueNums is '0000",
    ),
    "static topics": (
        json_body({}, topicQueueMappingInfoMap={f"T{i}": {} for i in range(MAPPING_INFOS_MAX)}),
        json_body({}, topicQueueMappingInfoMap={f"T{i}": {} for i in range(MAPPING_INFOS_MAX + 1)}),
        f"{MAPPING_INFOS_MAX + 1} mapping infos",
    ),
    "nested info": (
        json_body({}, topicQueueMappingInfoMap={"T": {"topic": "T", "currIdMap": {"0": 1}}}),
        json_body({}, topicQueueMappingInfoMap={"T": {"topic": "T", "currIdMap": {"0": {}}}}),
        "currIdMap is nested",
    ),
    "filter servers": (
        orjson.dumps(orjson.loads(json_body({})) | {"filterServerList": ["a"] * FILTER_SERVERS_MAX}),
        orjson.dumps(orjson.loads(json_body({})) | {"filterServerList": ["a"] * (FILTER_SERVERS_MAX + 1)}),
        f"{FILTER_SERVERS_MAX + 1} entries",
    ),
    "filter server": (
        orjson.dumps(orjson.loads(json_body({})) | {"filterServerList": ["a" * ADDR_MAX]}),
        orjson.dumps(orjson.loads(json_body({})) | {"filterServerList": ["a" * (ADDR_MAX + 1)]}),
        f"longest of {ADDR_MAX + 1} characters",
    ),
    "filter servers in words": (
        zlib.compress(plain()),
        zlib.compress(plain()[:-6] + sized(orjson.dumps(["a"] * (FILTER_SERVERS_MAX + 1)))),
        f"{FILTER_SERVERS_MAX + 1} entries",
    ),
    "unusual and large": (
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":"6"}}}, "a":"%b"}'
        % (b"x" * 2_000_000),
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":"6"}}}, "a":"%b"}'
        % (b"x" * 2_100_000),
        "above the limit of 2097152",
    ),
}


@pytest.mark.parametrize(("fits", "exceeds", "said"), LIMITS.values(), ids=LIMITS)
def test_each_limit_of_a_registration_holds(fits: bytes, exceeds: bytes, said: str) -> None:
    read(fits)
    with pytest.raises(RemoteProtocolError, match=said):
        read(exceeds)


def test_static_topics_of_a_large_broker_are_read() -> None:
    infos = b",".join(
        b'"T%d":{"bname":"b","currIdMap":{0:0,1:1,2:2,3:3},"dirty":false,"epoch":7,"scope":"__global__","topic":"T%d",'
        b'"totalQueues":8}' % (i, i)
        for i in range(2000)
    )
    body = json_body({f"T{i}": {"topicName": f"T{i}"} for i in range(8000)}, topicQueueMappingInfoMap={})
    body = body.replace(b'"topicQueueMappingInfoMap":{}', b'"topicQueueMappingInfoMap":{%b}' % infos)
    found = read(body)
    assert (len(found.topics), len(found.mapping_infos)) == (8000, 2000)
    assert found.mapping_infos["T7"]["currIdMap"] == {"0": 0, "1": 1, "2": 2, "3": 3}


def incompressible(size: int, seed: int) -> str:
    """Return text that zlib only halves; better compressible text could exceed the ratio limit."""
    return random.Random(seed).randbytes(size // 2).hex()


def with_mappings(count: int, size: int) -> bytes:
    """Return a compressed registration with mapping infos of about ``size`` bytes each."""
    infos = {
        f"T{number}": {"topic": f"T{number}", "epoch": 1, "scope": incompressible(size, number)}
        for number in range(count)
    }
    body = RegisterBody(topic_configs=(), filter_servers=(), mapping_infos=infos)
    return encode_register_body(body, compressed=True, version=479)


def test_mapping_infos_of_a_compressed_registration_are_read_in_steps_and_bounded() -> None:
    steps = reading_registration(with_mappings(60, 32_000), compressed=True, version=479)
    assert sum(1 for _ in steps) >= 10
    with pytest.raises(RemoteProtocolError, match="mapping infos have more than the 2097152 bytes allowed"):
        read(with_mappings(70, 32_000), compressed=True)


def test_long_attributes_of_a_compressed_topic_are_read_in_steps_and_bounded() -> None:
    def body(count: int, size: int) -> bytes:
        topics = tuple(
            TopicConfig(topic_name=f"T{number}", attributes={"+a": incompressible(size, number)})
            for number in range(count)
        )
        return encode_register_body(RegisterBody(topic_configs=topics), compressed=True, version=479)

    steps = reading_registration(body(100, 16_000), compressed=True, version=479)
    assert sum(1 for _ in steps) >= 10
    with pytest.raises(RemoteProtocolError, match="bytes after its name, allowed: at most 16384"):
        read(body(1, 17_000), compressed=True)


def test_too_many_topics_are_refused_in_both_forms() -> None:
    topics = tuple(TopicConfig(topic_name=f"T{i}") for i in range(3))
    body = RegisterBody(topic_configs=topics, filter_servers=())
    for compressed in (False, True):
        data = encode_register_body(body, compressed=compressed, version=479)
        assert read(data, compressed=compressed, topics_max=3) == meant(body)
        with pytest.raises(RemoteProtocolError, match="3 topics"):
            read(data, compressed=compressed, topics_max=2)


def test_name_with_a_blank_cannot_travel_compressed() -> None:
    body = RegisterBody(topic_configs=(TopicConfig(topic_name="a b"),))
    with pytest.raises(LocalProtocolError):
        encode_register_body(body, compressed=True, version=479)


def test_crc_is_masked_to_31_bits() -> None:
    data = next(bytes((i,)) for i in range(256) if zlib.crc32(bytes((i,))) >= 2**31)
    assert body_crc32(data) == zlib.crc32(data) - 2**31


@given(versions, versions)
def test_contained_means_no_part_greater(one: DataVersion, other: DataVersion) -> None:
    greater = (
        one.state_version > other.state_version
        or one.timestamp > other.timestamp
        or one.counter > other.counter
    )
    assert one.contained_in(other) is not greater
    assert DataVersion.decode(one.encode()) == one


@pytest.mark.parametrize("value", [[], "x", 3, {"counter": 2**63}, {"timestamp": 1.5}])
def test_bad_data_version_is_refused(value: Any) -> None:
    with pytest.raises(RemoteProtocolError):
        DataVersion.from_json(value)
