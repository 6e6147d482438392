"""Tests of the limits on names, addresses and numbers in requests and bodies."""

from __future__ import annotations

import inspect
import struct

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routekeeper.remoting import fields as module
from routekeeper.remoting.bodies import HeartbeatData, LockBatch, SubscriptionData
from routekeeper.remoting.bounds import (
    ADDR_MAX,
    ARGUMENTS_MAX,
    CHOICE_MAX,
    CLIENT_ID_MAX,
    GROUPS_MAX,
    NAME_MAX,
    REQUEST_HEADER_MAX,
    SUBSCRIPTIONS_MAX,
    TAGS_MAX,
    TOPIC_NAME_MAX,
    is_address,
)
from routekeeper.remoting.codes import HeaderCodec
from routekeeper.remoting.command import RemotingCommand, read_command
from routekeeper.remoting.errors import FieldError, RemoteProtocolError
from routekeeper.remoting.fields import Fields, RegisterBrokerFields
from routekeeper.remoting.frame import encode_frame
from routekeeper.remoting.route import decode_queue_datas, decode_route
from routekeeper.remoting.transport import split_address
from tests.cost import least_cpu_s, on_this_machine

LONG = "x" * 2_000_000
NAMES = (
    dict.fromkeys(("topic", "defaultTopic", "originTopic"), TOPIC_NAME_MAX)
    | dict.fromkeys(("brokerName", "clusterName", "cluster", "__ZONE_NAME"), NAME_MAX)
    | dict.fromkeys(("group", "groupName", "consumerGroup", "producerGroup"), NAME_MAX)
    | dict.fromkeys(("clientID", "clientId"), CLIENT_ID_MAX)
)
ADDRESSES = {"brokerAddr", "haServerAddr"}


def arguments() -> list[tuple[type[Fields], str, str]]:
    """Return (class, argument, test id) for each argument of a request that is a name or an address."""
    return [
        (kind, declared.encode_name, f"{kind.__name__}.{declared.encode_name}")
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, Fields) and kind is not Fields and "Response" not in kind.__name__
        for declared in msgspec.structs.fields(kind)
        if declared.encode_name in NAMES or declared.encode_name in ADDRESSES
    ]


def filled(kind: type[Fields], name: str, value: str) -> dict[str, str]:
    others = {declared.encode_name: "1" for declared in msgspec.structs.fields(kind)}
    return others | dict.fromkeys(ADDRESSES, "a:1") | {name: value}


ARGUMENTS = arguments()


@pytest.mark.parametrize(
    ("kind", "name"), [entry[:2] for entry in ARGUMENTS], ids=[entry[2] for entry in ARGUMENTS]
)
def test_each_name_of_each_request_has_a_length_that_is_said(kind: type[Fields], name: str) -> None:
    most = NAMES.get(name, ADDR_MAX)
    fits = "x" * most if name in NAMES else "x" * (most - 6) + ":65535"
    kind.parse(filled(kind, name, fits))
    with pytest.raises(FieldError, match=f"argument {name} is 'x.*at most {most} characters") as caught:
        kind.parse(filled(kind, name, "x" + fits))
    assert len(str(caught.value)) < 300
    with pytest.raises(FieldError, match=f"at most {most} characters") as caught:
        kind.parse(filled(kind, name, LONG))
    assert len(str(caught.value)) < 300


def test_names_are_found() -> None:
    assert len(ARGUMENTS) > 40


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0.1:10911",
        "broker-a.prod_1.svc.cluster.local:1",
        "[::1]:65535",
        "[fe80::1%eth0]:10911",
        "fe80::1:10911",
        "h" * NAME_MAX + ":10911",
    ],
)
def test_addresses_of_brokers_are_taken(text: str) -> None:
    assert is_address(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a:",
        ":1",
        "a:0",
        "a:65536",
        "a:99999",
        "a:" + "9" * 5000,
        "a:+1",
        "a:1 ",
        "a b:1",
        "a\r\nb:1",
        "a\x1b[31m:1",
        "[::1:1",
        "a:\u0661",
        "\u00e9:1",
        "a/b:1",
        "a,b:1",
        "h" * (NAME_MAX + 1) + ":10911",
    ],
    ids=ascii,
)
def test_what_nobody_could_dial_is_no_address(text: str) -> None:
    assert not is_address(text)
    ext = {"brokerName": "b", "clusterName": "c", "brokerId": "0", "brokerAddr": text, "haServerAddr": text}
    if text:
        with pytest.raises(FieldError, match=r"argument brokerAddr .* allowed: host:port"):
            RegisterBrokerFields.parse(ext)
        with pytest.raises(FieldError, match=r"argument haServerAddr .* allowed: host:port"):
            RegisterBrokerFields.parse(ext | {"brokerAddr": "a:1"})


# Headers ---------------------------------------------------------------------------------------------


def request_of(ext: dict[str, str], codec: HeaderCodec) -> bytes:
    return RemotingCommand(code=105, ext_fields=ext, codec=codec).encode()


@pytest.mark.parametrize("codec", HeaderCodec)
def test_a_request_has_a_bounded_number_of_arguments(codec: HeaderCodec) -> None:
    ext = {f"a{i}": "" for i in range(ARGUMENTS_MAX)}
    fits = request_of(ext, codec)
    assert read_command(fits, 0, len(fits) - 4).ext_fields == ext
    exceeds = request_of(ext | {"b": ""}, codec)
    with pytest.raises(RemoteProtocolError, match=f"arguments or more, allowed are {ARGUMENTS_MAX}"):
        read_command(exceeds, 0, len(exceeds) - 4)


@pytest.mark.parametrize("codec", HeaderCodec)
def test_a_requests_header_has_a_bounded_size(codec: HeaderCodec) -> None:
    empty = len(request_of({"a": ""}, codec)) - 8
    fits = request_of({"a": "x" * (REQUEST_HEADER_MAX - empty)}, codec)
    assert len(read_command(fits, 0, len(fits) - 4).ext_fields["a"]) == REQUEST_HEADER_MAX - empty
    exceeds = request_of({"a": "x" * (REQUEST_HEADER_MAX - empty + 1)}, codec)
    with pytest.raises(RemoteProtocolError, match=f"{REQUEST_HEADER_MAX + 1} bytes is above the limit"):
        read_command(exceeds, 0, len(exceeds) - 4)


def test_many_arguments_of_a_binary_header_are_not_all_read() -> None:
    entries = b"".join(struct.pack(">h", 4) + b"%04x" % i + struct.pack(">i", 0) for i in range(60_000))
    header = struct.pack(">hBhiiii", 105, 0, 409, 1, 0, 0, len(entries)) + entries
    frame = encode_frame(header, codec=HeaderCodec.ROCKETMQ)
    with pytest.raises(RemoteProtocolError, match=f"header has {ARGUMENTS_MAX + 1} arguments or more"):
        read_command(frame, 0, len(frame) - 4)


def test_a_name_that_a_binary_header_repeats_counts_each_time() -> None:
    entries = (struct.pack(">h", 1) + b"a" + struct.pack(">i", 0)) * (ARGUMENTS_MAX + 1)
    header = struct.pack(">hBhiiii", 105, 0, 409, 1, 0, 0, len(entries)) + entries
    frame = encode_frame(header, codec=HeaderCodec.ROCKETMQ)
    with pytest.raises(RemoteProtocolError, match=f"header has {ARGUMENTS_MAX + 1} arguments or more"):
        read_command(frame, 0, len(frame) - 4)


@pytest.mark.parametrize("name", ["code", "version", "opaque", "flag", "remark"])
@pytest.mark.parametrize(
    "value",
    [b'"' + b"9" * 500_000 + b'"', b'"' + b"x" * 500_000 + b'"', b"[" * 1000 + b"]" * 1000, b'{"a":[1]}'],
    ids=["digits", "text", "deep", "object"],
)
def test_what_is_wrong_with_a_header_is_said_in_a_line(name: str, value: bytes) -> None:
    frame = encode_frame(b'{"code":105,"more":1,"%b":%b}' % (name.encode(), value), codec=HeaderCodec.JSON)
    if name == "remark" and value[:1] == b'"':
        assert read_command(frame, 0, len(frame) - 4).remark
        return
    with pytest.raises(RemoteProtocolError, match=name) as caught:
        read_command(frame, 0, len(frame) - 4)
    assert len(str(caught.value)) < 200


# Bodies ----------------------------------------------------------------------------------------------


def heartbeat(**members: object) -> bytes:
    return orjson.dumps({"clientID": "c"} | members)


def subscribed(**members: object) -> bytes:
    """Return a heartbeat with one subscription."""
    subscriptions = [{"topic": "t"} | members]
    return heartbeat(consumerDataSet=[{"groupName": "g", "subscriptionDataSet": subscriptions}])


def subscribed_often(count: int, **members: object) -> bytes:
    """Return a heartbeat of two groups, each with ``count`` subscriptions."""
    subscriptions = [{"topic": f"t{number}"} | members for number in range(count)]
    return heartbeat(
        consumerDataSet=[{"groupName": name, "subscriptionDataSet": subscriptions} for name in "gh"]
    )


BODIES = {
    "client id": (
        heartbeat(clientID="c" * CLIENT_ID_MAX),
        heartbeat(clientID="c" * (CLIENT_ID_MAX + 1)),
        "clientID",
    ),
    "consumers": (
        heartbeat(consumerDataSet=[{"groupName": f"g{i}"} for i in range(GROUPS_MAX)]),
        heartbeat(consumerDataSet=[{"groupName": f"g{i}"} for i in range(GROUPS_MAX + 1)]),
        f"consumerDataSet has {GROUPS_MAX + 1} entries",
    ),
    "producers": (
        heartbeat(producerDataSet=[{"groupName": f"g{i}"} for i in range(GROUPS_MAX)]),
        heartbeat(producerDataSet=[{"groupName": f"g{i}"} for i in range(GROUPS_MAX + 1)]),
        f"producerDataSet has {GROUPS_MAX + 1} entries",
    ),
    "group": (
        heartbeat(consumerDataSet=[{"groupName": "g" * NAME_MAX}]),
        heartbeat(consumerDataSet=[{"groupName": "g" * (NAME_MAX + 1)}]),
        f"groupName has {NAME_MAX + 1} characters",
    ),
    "subscribed topic": (
        heartbeat(
            consumerDataSet=[{"groupName": "g", "subscriptionDataSet": [{"topic": "t" * TOPIC_NAME_MAX}]}]
        ),
        heartbeat(
            consumerDataSet=[
                {"groupName": "g", "subscriptionDataSet": [{"topic": "t" * (TOPIC_NAME_MAX + 1)}]}
            ]
        ),
        f"topic has {TOPIC_NAME_MAX + 1} characters",
    ),
    "subscriptions": (
        subscribed_often(SUBSCRIPTIONS_MAX // 2),
        subscribed_often(SUBSCRIPTIONS_MAX // 2 + 1),
        f"subscriptionDataSet of all groups has {SUBSCRIPTIONS_MAX + 2} entries",
    ),
    "tags": (
        subscribed(tagsSet=[""] * TAGS_MAX),
        subscribed(tagsSet=[""] * (TAGS_MAX + 1)),
        f"tagsSet has {TAGS_MAX + 1} entries in all subscriptions",
    ),
    "codes of tags": (
        subscribed(codeSet=[0] * TAGS_MAX),
        subscribed(codeSet=[0] * (TAGS_MAX + 1)),
        f"codeSet has {TAGS_MAX + 1} entries in all subscriptions",
    ),
    "codes of several subscriptions": (
        subscribed_often(2, codeSet=[0] * (TAGS_MAX // 4)),
        subscribed_often(3, codeSet=[0] * (TAGS_MAX // 4)),
        f"codeSet has {TAGS_MAX * 3 // 2} entries in all subscriptions",
    ),
    "expression type": (
        subscribed(expressionType="x" * CHOICE_MAX),
        subscribed(expressionType="x" * CHOICE_MAX + "\U0001f600"),
        f"expressionType 'x{{40}}' .*{CHOICE_MAX + 1} characters, allowed are {CHOICE_MAX}",
    ),
} | {
    name: (
        heartbeat(consumerDataSet=[{"groupName": "g", name: "x" * CHOICE_MAX}]),
        heartbeat(consumerDataSet=[{"groupName": "g", name: "x" * (CHOICE_MAX + 1)}]),
        f"{name} 'x{{40}}' .*{CHOICE_MAX + 1} characters, allowed are {CHOICE_MAX}",
    )
    for name in ("consumeType", "messageModel", "consumeFromWhere")
}


@pytest.mark.parametrize(("fits", "exceeds", "said"), BODIES.values(), ids=BODIES)
def test_each_bound_of_a_heartbeat_holds(fits: bytes, exceeds: bytes, said: str) -> None:
    HeartbeatData.decode(fits)
    with pytest.raises(RemoteProtocolError, match=said):
        HeartbeatData.decode(exceeds)


def test_codes_of_a_single_subscription_have_a_bound() -> None:
    SubscriptionData.from_json({"topic": "t", "codeSet": [0] * TAGS_MAX})
    with pytest.raises(RemoteProtocolError, match=f"codeSet has {TAGS_MAX + 1} entries"):
        SubscriptionData.from_json({"topic": "t", "codeSet": [0] * (TAGS_MAX + 1)})


@pytest.mark.parametrize("client_id", [b"clientID", b"ClientID"])
@pytest.mark.parametrize(
    "member", [{"codeSet": [0] * 30_000}, {"tagsSet": [""] * 20_000}], ids=["codes", "tags"]
)
def test_heartbeat_of_the_largest_size_is_refused_at_little_cost(
    member: dict[str, list[object]], client_id: bytes
) -> None:
    body = subscribed_often(8, **member).replace(b"clientID", client_id)
    assert 900_000 < len(body) < 1 << 20

    def read() -> None:
        with pytest.raises(RemoteProtocolError, match="entries in all subscriptions"):
            HeartbeatData.decode(body)

    # The limit is 30 ms on the usual machine. To read all entries before the refusal would take 80 ms.
    allowed = on_this_machine(0.03)
    assert least_cpu_s(lambda: read, below=allowed) < allowed


def test_names_in_a_lock_have_bounds() -> None:
    body = {"consumerGroup": "g", "clientId": "c", "mqSet": [{"topic": "t", "brokerName": "b", "queueId": 0}]}
    LockBatch.decode(orjson.dumps(body))
    for name, most in (("consumerGroup", NAME_MAX), ("clientId", CLIENT_ID_MAX)):
        with pytest.raises(RemoteProtocolError, match=f"{name} has {most + 1} characters"):
            LockBatch.decode(orjson.dumps(body | {name: "x" * (most + 1)}))


@pytest.mark.parametrize("read", [decode_queue_datas, decode_route])
@pytest.mark.parametrize("name", ["readQueueNums", "writeQueueNums"])
def test_queue_counts_of_a_route_have_a_range(read: object, name: str) -> None:
    assert callable(read)
    read(orjson.dumps({"queueDatas": [{"brokerName": "b", name: 2**31 - 1}]}))
    for count in (-1, 2**31, "9" * 5000):
        with pytest.raises(RemoteProtocolError, match=f"allowed: integers from 0 to {2**31 - 1}"):
            read(orjson.dumps({"queueDatas": [{"brokerName": "b", name: count}]}))


@given(st.from_regex(r"[a-z:\[\]0-9.]{0,20}:[0-9]{1,6}", fullmatch=True))
def test_an_address_that_is_taken_can_be_split(text: str) -> None:
    if is_address(text):
        host, port = split_address(text)
        assert host
        assert 1 <= port <= 65_535
