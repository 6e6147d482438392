"""Tests of the encoding of messages, batches, properties, message ids and JSON bodies of requests."""

from __future__ import annotations

import zlib

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routekeeper.remoting import bodies as b
from routekeeper.remoting import message as m
from routekeeper.remoting.codes import LanguageCode
from routekeeper.remoting.errors import LocalProtocolError, RemoteProtocolError

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
names = texts.filter(bool)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
hosts = st.builds(
    m.Host, ip=st.ip_addresses().map(str).filter(lambda ip: "%" not in ip), port=st.integers(0, 65535)
)
messages = st.builds(
    m.StoredMessage,
    topic=texts | st.just("t" * 128),
    queue_id=int32,
    body=st.binary(max_size=50),
    properties=texts,
    flag=int32,
    queue_offset=int64,
    physical_offset=int64,
    sys_flag=st.sampled_from([0, 1, 4, 8, 0x300]),
    born_timestamp=int64,
    born_host=hosts,
    store_timestamp=int64,
    store_host=hosts,
    reconsume_times=int32,
    prepared_transaction_offset=int64,
    crc=st.integers(1, 2**31 - 1),
)


def without_host_bits(message: m.StoredMessage) -> dict[str, object]:
    values = {name: getattr(message, name) for name in m.StoredMessage.__struct_fields__}
    values["sys_flag"] = message.sys_flag & ~(m.SYS_BORN_HOST_V6 | m.SYS_STORE_HOST_V6)
    return values


@pytest.mark.slow
@given(st.lists(messages, max_size=3))
def test_messages_survive_encoding(found: list[m.StoredMessage]) -> None:
    data = b"".join(map(m.encode_message, found))
    assert list(map(without_host_bits, m.decode_messages(data))) == list(map(without_host_bits, found))


@given(messages, st.data())
def test_truncated_message_is_refused(message: m.StoredMessage, data: st.DataObject) -> None:
    whole = m.encode_message(message)
    with pytest.raises(RemoteProtocolError):
        m.decode_message(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(messages, st.integers(0, 200), st.integers(0, 255))
def test_damaged_message_is_refused_or_read_but_raises_nothing_else(
    message: m.StoredMessage, at: int, value: int
) -> None:
    data = bytearray(m.encode_message(message))
    data[at % len(data)] = value
    try:
        list(m.decode_messages(bytes(data)))
    except RemoteProtocolError:
        pass


def test_offsets_inside_a_message_are_the_documented_ones() -> None:
    data = m.encode_message(m.StoredMessage(topic="T", queue_id=1, body=b"abc", reconsume_times=7))
    assert int.from_bytes(data[72:76], "big") == 7
    assert int.from_bytes(data[84:88], "big") == 3
    assert int.from_bytes(data[4:8], "big") == 0xDAA320A7


def test_properties_above_the_limit_are_not_encoded() -> None:
    with pytest.raises(LocalProtocolError):
        m.encode_message(m.StoredMessage(topic="T", queue_id=0, body=b"", properties="x" * 32768))
    with pytest.raises(LocalProtocolError):
        m.encode_batch([m.BatchItem(body=b"", properties="x" * 32768)])


@given(
    st.lists(st.builds(m.BatchItem, body=st.binary(max_size=20), properties=texts, flag=int32), max_size=4)
)
def test_batch_survives_encoding(items: list[m.BatchItem]) -> None:
    data = m.encode_batch(items)
    assert m.decode_batch(data) == items
    if data:
        with pytest.raises(RemoteProtocolError):
            m.decode_batch(data[:-1])


@given(
    st.lists(st.builds(m.BatchItem, body=st.binary(max_size=9), properties=texts, flag=int32), min_size=1),
    st.integers(0, 200),
    st.integers(0, 255),
)
def test_damaged_batch_is_refused_or_read_but_raises_nothing_else(
    items: list[m.BatchItem], at: int, value: int
) -> None:
    data = bytearray(m.encode_batch(items))
    data[at % len(data)] = value
    try:
        m.decode_batch(bytes(data))
    except RemoteProtocolError:
        pass


plain = names.filter(lambda text: "\x01" not in text and "\x02" not in text)


@given(st.dictionaries(plain, plain, max_size=4))
def test_properties_survive_with_and_without_the_last_separator(properties: dict[str, str]) -> None:
    text = m.encode_properties(properties)
    assert m.decode_properties(text) == properties
    assert m.decode_properties(text.removesuffix("\x02")) == properties
    joined = m.join_properties(text.removesuffix("\x02"), m.encode_properties({"Z": "z"}))
    assert m.decode_properties(joined) == {**properties, "Z": "z"}


def test_last_of_equal_properties_wins_and_halves_are_dropped() -> None:
    assert m.decode_properties("A\x011\x02A\x012\x02B\x01\x02\x01c\x02D\x02") == {"A": "2"}


@pytest.mark.parametrize("properties", [{"A": "x\x02y"}, {"A\x01B": "x"}, {"A\x02B": "x"}])
def test_separator_that_would_change_a_property_is_refused(properties: dict[str, str]) -> None:
    with pytest.raises(LocalProtocolError):
        m.encode_properties(properties)


def test_ids_and_hashes_are_those_of_java() -> None:
    assert m.offset_message_id(m.Host("127.0.0.1", 20911), 0) == "7F000001000051AF0000000000000000"
    assert m.tag_hash("TagA") == 2598919
    assert m.tag_hash("order-created") == -392709271
    assert m.tag_hash("") == 0
    assert m.tag_hash("😀") == 1772899
    identity = m.unique_message_id(ip="10.0.0.1", pid=1, source_hash=2, ms_of_month=3, counter=65537)
    assert identity == "0A000001000100000002000000030001"


@given(hosts, st.integers(0, 2**63 - 1))
def test_offset_message_id_reads_back(host: m.Host, offset: int) -> None:
    assert m.parse_offset_message_id(m.offset_message_id(host, offset)) == (host, offset)


@pytest.mark.parametrize("text", ["", "xyz", "00", "7F000001000051AF00000000000000", "zz" * 16])
def test_bad_message_id_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        m.parse_offset_message_id(text)


@pytest.mark.parametrize(
    ("expression", "tags"),
    [(None, ()), ("*", ()), ("", ()), ("A", ("A",)), (" A || B||A ", ("A", "B")), ("A|B", ("A|B",))],
)
def test_subscription_expression(expression: str | None, tags: tuple[str, ...]) -> None:
    assert m.parse_subscription(expression) == tags


def test_subscription_of_separators_only_is_refused() -> None:
    with pytest.raises(LocalProtocolError):
        m.parse_subscription("||")


def test_compressed_body_inflates_within_its_limit_only() -> None:
    body = bytes(1000)
    small = m.compress_body(body)
    assert m.decompress_body(small, m.SYS_COMPRESSED) == body
    assert m.decompress_body(small, m.SYS_COMPRESSED | 3 << 8) == body
    assert m.decompress_body(small, 0) == small
    for data, flags in ((zlib.compress(bytes(10**8)), 1), (small[:-4], 1), (b"x", 1), (small, 1 | 1 << 8)):
        with pytest.raises(RemoteProtocolError):
            m.decompress_body(data, flags)


QUEUE = b.MessageQueue(topic="T", broker_name="b", queue_id=1)
SUBSCRIPTION = b.SubscriptionData(
    topic="T", sub_string="A || B", tags=("A", "B"), codes=(65, -66), sub_version=5
)
CLIENT = b.ClientConnection(client_id="c", client_addr="a:1", language=LanguageCode.GO, version=317)
SAMPLES = [
    b.TopicList(topics=("a", "é"), broker_addr="a:1"),
    b.KVTable(table={"k": "v"}),
    b.GroupList(groups=("g",)),
    b.ConsumerIdList(consumer_ids=("a", "b")),
    b.HeartbeatData(
        client_id="c",
        consumers=(b.ConsumerData(group_name="g", subscriptions=(SUBSCRIPTION,)),),
        producer_groups=("p",),
    ),
    b.SubscriptionGroupConfig(group_name="g", consume_enable=False, retry_max_times=3),
    b.SubscriptionGroupTable(groups={"g": b.SubscriptionGroupConfig(group_name="g")}),
    b.ProducerConnection(connections=(CLIENT,)),
    b.ConsumerConnection(connections=(CLIENT,), subscriptions={"T": SUBSCRIPTION}),
    b.LockBatch(consumer_group="g", client_id="c", queues=(QUEUE,)),
    b.LockBatchResponse(locked=(QUEUE,)),
    b.ConsumerOffsetTable(offsets={"T@g": {0: 5, 1: 2**40}}),
    b.DelayOffsetTable(offsets={1: 10}),
    b.QueueOffsets(offsets={QUEUE: 4}),
    b.TopicStats(offsets={QUEUE: b.TopicOffset(min_offset=1, max_offset=2, last_update_timestamp=3)}),
    b.ConsumeStats(offsets={QUEUE: b.ConsumeOffset(broker_offset=5, pull_offset=4)}, consume_tps=1.5),
]


@pytest.mark.parametrize("value", SAMPLES, ids=lambda value: type(value).__name__)
def test_body_survives_encoding(value: b.TopicList) -> None:
    data = value.encode()
    assert type(value).decode(data) == value
    for cut in range(len(data)):
        with pytest.raises(RemoteProtocolError):
            type(value).decode(data[:cut])


@pytest.mark.parametrize("kind", [type(value) for value in SAMPLES], ids=lambda kind: kind.__name__)
@given(data=st.sampled_from([b"[]", b"null", b"3", b'"x"', b'{"table":[]}', b'{"offsetTable":{"x":1}}']))
def test_body_of_another_kind_is_refused_or_empty(kind: type[b.TopicList], data: bytes) -> None:
    try:
        kind.decode(data)
    except RemoteProtocolError:
        pass


def test_queue_keys_are_raw_objects_and_read_in_every_form() -> None:
    value = b.QueueOffsets(offsets={QUEUE: 4})
    assert value.encode() == b'{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"T"}:4}}'
    quoted = b'{"offsetTable":{"{\\"brokerName\\":\\"b\\",\\"queueId\\":1,\\"topic\\":\\"T\\"}":4}}'
    pairs = b'{"offsetTable":[[{"brokerName":"b","queueId":1,"topic":"T"},4]]}'
    for_cpp = b'{"offsetTable":[{"brokerName":"b","queueId":1,"topic":"T","offset":4}]}'
    for data in (quoted, pairs, for_cpp):
        assert b.QueueOffsets.decode(data) == value


def test_heartbeat_whose_names_begin_with_capitals_is_read_as_java_reads_it() -> None:
    body = {
        "ClientID": "c",
        "ConsumerDataSet": [
            {
                "ConsumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "ConsumeType": "CONSUME_ACTIVELY",
                "GroupName": "G",
                "MessageModel": "BROADCASTING",
                "SubscriptionDataSet": [
                    {
                        "Topic": "T",
                        "ExpressionType": "TAG",
                        "SubString": "A || B",
                        "TagsSet": ["A", "B"],
                        "CodeSet": ["65", "66"],
                        "ClassFilterMode": False,
                        "FilterClassSource": None,
                        "SubVersion": 638_000_000_000_000_000,
                    }
                ],
                "UnitMode": True,
            }
        ],
        "ProducerDataSet": [{"GroupName": "P"}],
    }
    subscription = b.SubscriptionData(
        topic="T",
        sub_string="A || B",
        tags=("A", "B"),
        codes=(65, 66),
        sub_version=638_000_000_000_000_000,
    )
    consumer = b.ConsumerData(
        group_name="G",
        consume_type="CONSUME_ACTIVELY",
        message_model="BROADCASTING",
        consume_from_where="CONSUME_FROM_FIRST_OFFSET",
        subscriptions=(subscription,),
        unit_mode=True,
    )
    expected = b.HeartbeatData(client_id="c", consumers=(consumer,), producer_groups=("P",))
    assert b.HeartbeatData.decode(orjson.dumps(body)) == expected


FROM_WHERE = [
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("consumeType", 0, "CONSUME_ACTIVELY"),
        ("consumeType", 1, "CONSUME_PASSIVELY"),
        ("consumeType", "consume_actively", "CONSUME_ACTIVELY"),
        ("consumeType", "CONSUME_POP", "CONSUME_POP"),
        ("messageModel", 0, "BROADCASTING"),
        ("messageModel", 1, "CLUSTERING"),
        ("messageModel", "Broadcasting", "BROADCASTING"),
        ("messageModel", 2, "2"),
        ("messageModel", -1, "-1"),
        ("messageModel", True, "true"),
        ("messageModel", None, "CLUSTERING"),
        *(("consumeFromWhere", number, name) for number, name in enumerate(FROM_WHERE)),
    ],
)
def test_choice_is_read_from_its_number_or_its_name_in_any_case(
    name: str, value: object, expected: str
) -> None:
    read = b.ConsumerData.from_json({"groupName": "g", name: value}).to_json()
    assert read == b.ConsumerData(group_name="g").to_json() | {name: expected}


def test_statistics_of_many_queues_are_read() -> None:
    progress = b.ConsumeOffset(
        broker_offset=2**40, consumer_offset=2**40, pull_offset=2**40, last_timestamp=2**40
    )
    offsets = {
        b.MessageQueue(topic="TopicOfAnOrderService", broker_name="broker-a", queue_id=number): progress
        for number in range(30_000)
    }
    value = b.ConsumeStats(offsets=offsets)
    assert len(value.encode()) > 4 << 20
    assert b.ConsumeStats.decode(value.encode()) == value
