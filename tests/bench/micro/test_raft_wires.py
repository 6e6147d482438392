"""What the raft benchmark's load generator says in three protocols, and how it reads the answers."""

import struct
from collections.abc import Callable

import pytest

from routekeeper.bench.micro.raft.grpc import (
    PREFACE,
    GrpcWire,
    field,
    frame,
    message,
    request_headers,
    varint,
)
from routekeeper.bench.micro.raft.jute import JuteWire
from routekeeper.bench.micro.raft.remoting_wire import RemotingWire, topic_name, value_of
from routekeeper.bench.micro.raft.wire import Answer, Wire, WireError
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


# -- remoting ----------------------------------------------------------------------------------------


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


def test_remoting_heartbeat_repeats_the_last_registration() -> None:
    wire = remoting()
    written, again = command(wire.write(5)), command(wire.heartbeat())
    assert (again.body, again.ext_fields) == (written.body, written.ext_fields)
    assert again.opaque != written.opaque


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


# -- jute --------------------------------------------------------------------------------------------


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
        Answer(1, None, b""),  # the node is there from an earlier run
        Answer(2, None, b"data"),
        Answer(3, "error -101", b""),
    ]


# -- gRPC --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "encoded"), [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02")])
def test_varint(value: int, encoded: str) -> None:
    assert varint(value).hex() == encoded


def test_grpc_headers_are_static_indexes_and_literals() -> None:
    assert request_headers(b"/p", b"a") == (
        b"\x83\x86\x04\x02/p\x01\x01a\x0f\x10\x10application/grpc\x00\x02te\x08trailers"
    )


def test_grpc_begins_with_preface_settings_and_a_wider_window() -> None:
    hello = GrpcWire(key=1, value=VALUE).hello()
    assert hello.startswith(PREFACE + bytes.fromhex("00000c040000000000000200000000000401000000"))
    assert hello.endswith(bytes.fromhex("00000408000000000000ff0001"))


def test_grpc_put_has_known_bytes() -> None:
    wire = GrpcWire(key=7, value=VALUE)
    body = message(b"\x0a\x0b/bench/0007" + b"\x12\xc8\x01" + b"#0000000042#" + VALUE[12:])
    headers = request_headers(b"/etcdserverpb.KV/Put", b"bench")
    assert wire.write(42) == frame(1, 0x4, 1, headers) + frame(0, 0x1, 1, body)
    assert wire.tag == 1


@pytest.mark.parametrize(("linearizable", "flag"), [(False, b"\x38\x01"), (True, b"")])
def test_grpc_range_asks_for_its_freshness(linearizable: bool, flag: bytes) -> None:
    wire = GrpcWire(key=7, value=VALUE, linearizable=linearizable)
    assert wire.read(1, 3).endswith(frame(0, 0x1, 1, message(field(1, b"/bench/0003") + flag)))


def test_grpc_answers_pass_in_pieces_and_failed_calls_are_named() -> None:
    wire = GrpcWire(key=7, value=VALUE)
    wire.write(1), wire.write(2)
    data = frame(1, 0x4, 1, b"h") + frame(0, 0, 1, message(b"answer")) + frame(1, 0x5, 1, b"t")
    data += frame(1, 0x5, 3, b"trailers only")
    assert one_by_one(wire, data) == [Answer(1, None, b"answer"), Answer(3, "the call failed", b"")]


def test_grpc_settings_and_pings_are_acknowledged_once() -> None:
    wire = GrpcWire(key=7, value=VALUE)
    assert (
        wire.feed(
            frame(4, 0, 0, b"") + frame(4, 1, 0, b"") + frame(6, 0, 0, b"12345678") + frame(6, 1, 0, bytes(8))
        )
        == []
    )
    assert bytes(wire.out) == frame(4, 1, 0, b"") + frame(6, 1, 0, b"12345678")


def test_grpc_message_waits_for_the_window_in_frames_that_fit() -> None:
    wire = GrpcWire(key=7, value=bytes(40_000))
    first, second = wire.write(1), wire.write(2)
    sizes = [size for data in (first, second) for kind, size in frames(data) if kind == 0]
    assert sum(sizes) == 65_535
    assert max(sizes) == 16_384
    wire.feed(frame(8, 0, 0, (100_000).to_bytes(4, "big")))
    rest = [size for kind, size in frames(bytes(wire.out)) if kind == 0]
    assert sum(sizes) + sum(rest) == 2 * (40_000 + len(message(field(1, b"/bench/0007"))) + 4)


def frames(data: bytes) -> list[tuple[int, int]]:
    found, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 3], "big")
        found.append((data[at + 3], size))
        at += 9 + size
    return found


def test_grpc_window_is_told_anew_when_half_is_used() -> None:
    wire = GrpcWire(key=7, value=VALUE)
    wire.read(1, 7)
    wire.feed(frame(0, 0, 1, bytes(8 << 20)))
    assert not wire.out
    wire.feed(frame(0, 0, 1, b"x"))
    assert bytes(wire.out) == frame(8, 0, 0, ((8 << 20) + 1).to_bytes(4, "big"))


def test_grpc_goaway_and_reset_are_failures() -> None:
    wire = GrpcWire(key=7, value=VALUE)
    wire.write(1)
    assert wire.feed(frame(3, 0, 1, b"\0\0\0\x07")) == [Answer(1, "stream reset 7", b"")]
    with pytest.raises(WireError):
        wire.feed(frame(7, 0, 0, bytes(8)))


@pytest.mark.parametrize("make", [remoting, connected_jute, lambda: GrpcWire(key=7, value=VALUE)])
def test_marker_tells_one_write_from_all_others(make: Callable[[], Wire]) -> None:
    wire = make()
    wire.prepare()
    request = wire.write(77)
    other = wire.marker(78)
    assert other not in request
    assert wire.marker(77) in request
