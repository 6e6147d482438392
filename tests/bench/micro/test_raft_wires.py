"""The raft benchmark's load generator encodes requests and reads answers correctly in each protocol."""

import struct
from collections.abc import Callable

import pytest

from routekeeper.bench.wires.jute import JuteWire
from routekeeper.bench.wires.remoting_wire import RemotingWire, topic_name, value_of
from routekeeper.bench.wires.wire import Answer, Wire, WireError
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand, decode_command
from routekeeper.remoting.fields import RegisterBrokerFields
from routekeeper.remoting.frame import split_frame
from routekeeper.remoting.registration import body_crc32
from tests.registrations import read_registration

VALUE = bytes(range(200))


def remoting() -> RemotingWire:
    return RemotingWire(key=7, topics=10, timestamp_ms=1_700_000_000_000)


def connected_jute() -> JuteWire:
    wire = JuteWire(key=7, value=VALUE)
    accepted = struct.pack(">iiq", 0, 30_000, 99) + b"\0\0\0\x10" + bytes(17)
    assert wire.feed(struct.pack(">i", len(accepted)) + accepted) == []
    assert wire.ready
    return wire


def command(data: bytes) -> RemotingCommand:
    size = int.from_bytes(data[:4], "big")
    assert len(data) == 4 + size
    return decode_command(split_frame(data, 0, size))


def reply(request: RemotingCommand, code: int, body: bytes = b"", remark: str | None = None) -> bytes:
    return request.reply(code, body=body, remark=remark).encode()


def one_by_one(wire: Wire, data: bytes) -> list[Answer]:
    return [answer for at in range(len(data)) for answer in wire.feed(data[at : at + 1])]


# -- RocketMQ's remoting protocol (RouteKeeper's nameservers) ----------------------------------------


def test_remoting_write_is_a_full_registration_with_one_topic_changed() -> None:
    wire = remoting()
    before = command(wire.prepare())
    after = command(wire.write(13))
    assert after.code == RequestCode.REGISTER_BROKER
    fields = RegisterBrokerFields.parse(after.ext_fields)
    assert (fields.broker_name, fields.broker_id) == ("broker-0007", 0)
    assert fields.body_crc32 == body_crc32(after.body)
    old, new = (read_registration(one.body, compressed=False, version=one.version) for one in (before, after))
    assert len(new.topics) == 10
    assert new.topics.keys() == old.topics.keys()
    changed = [numbers for name, numbers in new.topics.items() if numbers != old.topics[name]]
    assert [(one.topic_name, one.read_queue_nums, one.write_queue_nums) for one in changed] == [
        (topic_name(7, 3), value_of(13), value_of(13))
    ]
    assert new.data_version.counter - old.data_version.counter == 13
    assert (after.opaque, wire.tag) == (before.opaque + 1, after.opaque)


def test_remoting_read_asks_for_the_topic_that_the_write_changed() -> None:
    asked = command(remoting().read(13, 4))
    assert (asked.code, asked.ext_fields) == (RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic_name(4, 3)})


def test_remoting_values_differ_from_the_base_and_their_predecessors() -> None:
    values = [value_of(number) for number in range(20_000)]
    assert set(values[1:]) <= set(range(1001, 10_000))
    assert values[0] == 1000
    assert all(a != b for a, b in zip(values, values[10:], strict=False))


def test_remoting_answers_are_told_apart_and_refusals_named() -> None:
    wire = remoting()
    first, second = command(wire.prepare()), command(wire.read(1, 7))
    data = reply(second, ResponseCode.SUCCESS, b"route") + reply(first, 1, remark="[NO_QUORUM]")
    assert one_by_one(wire, data) == [
        Answer(second.opaque, None, b"route"),
        Answer(first.opaque, "code 1: [NO_QUORUM]", b""),
    ]


# -- jute, the protocol of ZooKeeper -----------------------------------------------------------------


def test_jute_session_begins_with_an_empty_session_and_password() -> None:
    assert JuteWire(key=1, value=VALUE).hello().hex() == (
        "0000002d00000000000000000000000000007530000000000000000000000010" + "00" * 17
    )


def test_jute_refused_session_is_an_error() -> None:
    refused = struct.pack(">iiq", 0, 0, 0) + b"\0\0\0\x10" + bytes(17)
    with pytest.raises(WireError):
        JuteWire(key=1, value=VALUE).feed(struct.pack(">i", len(refused)) + refused)


def test_jute_requests_have_known_bytes() -> None:
    wire = connected_jute()
    path = b"\0\0\0\x0b/bench-0007"
    assert wire.prepare() == (
        struct.pack(">iii", 8 + 15 + 204 + 31, 1, 1)
        + (path + b"\0\0\0\xc8" + VALUE)
        + bytes.fromhex("000000010000001f00000005")
        + b"world"
        + b"\0\0\0\x06anyone"
        + b"\0\0\0\0"
    )
    assert wire.write(42) == (
        struct.pack(">iii", 8 + 15 + 204 + 4, 2, 5)
        + (path + b"\0\0\0\xc8" + b"#0000000042#" + VALUE[12:] + b"\xff\xff\xff\xff")
    )
    assert wire.read(42, 7) == struct.pack(">iii", 8 + 15 + 1, 3, 4) + path + b"\0"


def test_jute_answers_carry_xid_error_and_data() -> None:
    wire = connected_jute()
    wire.prepare()

    def packet(xid: int, error: int, rest: bytes = b"") -> bytes:
        return struct.pack(">iiqi", 16 + len(rest), xid, 5, error) + rest

    event = packet(-1, 0, b"event")
    data = packet(1, -110) + event + packet(2, 0, b"data") + packet(3, -101)
    assert one_by_one(wire, data) == [
        Answer(1, None, b""),  # prepare() ignores error -110 (node exists): an earlier run created the node
        Answer(2, None, b"data"),
        Answer(3, "error -101", b""),
    ]


@pytest.mark.parametrize("make", [remoting, connected_jute])
def test_marker_tells_one_write_from_all_others(make: Callable[[], Wire]) -> None:
    wire = make()
    wire.prepare()
    request = wire.write(77)
    other = wire.marker(78)
    assert other not in request
    assert wire.marker(77) in request
