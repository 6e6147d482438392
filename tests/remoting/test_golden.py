"""Tests with frames recorded from RocketMQ's programs: decoding and encoding give the same bytes again."""

from __future__ import annotations

import base64
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest

from routekeeper.remoting import fields as f
from routekeeper.remoting.bodies import (
    ConsumerIdList,
    ConsumeStats,
    HeartbeatData,
    KVTable,
    LockBatch,
    TopicList,
    TopicStats,
)
from routekeeper.remoting.codes import HeaderCodec, RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand, decode_command
from routekeeper.remoting.frame import Frame, FrameDecoder, encode_frame
from routekeeper.remoting.header import decode_header, encode_header, read_plain
from routekeeper.remoting.message import decode_batch, decode_messages, encode_batch, encode_message
from routekeeper.remoting.registration import body_crc32
from routekeeper.remoting.route import (
    RouteDialect,
    decode_cluster_info,
    decode_route,
    dialect_for,
    encode_route,
)
from tests.registrations import read_registration

FRAMES = Path(__file__).parent.parent / "golden" / "frames"
FILES = sorted(FRAMES.glob("*.jsonl"))


def exchanges(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def frames(path: Path) -> list[tuple[str, bytes]]:
    found = []
    for number, exchange in enumerate(exchanges(path)):
        for kind in ("request", "response"):
            if exchange[kind] is not None:
                label = f"{number} {exchange['name']} {kind} of {exchange['sender']}"
                found.append((label, base64.b64decode(exchange[kind])))
    return found


def split(data: bytes) -> Frame:
    (frame,) = FrameDecoder().feed(data)
    return frame


def test_recordings_of_both_releases_and_both_codecs_exist() -> None:
    assert {"4.9.7-json", "4.9.7-rocketmq", "5.3.3-json", "5.3.3-rocketmq"} <= {path.stem for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_frames_encode_to_the_recorded_bytes_again(path: Path) -> None:
    for label, data in frames(path):
        frame = split(data)
        header = decode_header(frame.header, frame.codec)
        again = encode_header(header, frame.codec)
        if label.endswith("request of probe"):  # a hand-made frame: compare only the decoded content
            assert decode_header(again, frame.codec) == header, label
            continue
        assert encode_frame(again, frame.body, codec=frame.codec) == data, label


@pytest.mark.parametrize("path", [path for path in FILES if "json" in path.stem], ids=lambda path: path.stem)
def test_json_headers_of_apache_are_read_the_short_way(path: Path) -> None:
    for label, data in frames(path):
        frame = split(data)
        if frame.codec is HeaderCodec.JSON and not label.endswith("request of probe"):
            assert read_plain(frame.header).code == decode_header(frame.header, frame.codec).code, label


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_one_stream_of_all_recorded_frames_splits_at_every_byte(path: Path) -> None:
    recorded = [data for _, data in frames(path)][:60]
    decoder = FrameDecoder()
    stream = b"".join(recorded)
    found = [frame for i in range(len(stream)) for frame in decoder.feed(stream[i : i + 1])]
    assert [encode_frame(one.header, one.body, codec=one.codec) for one in found] == recorded


REQUEST_FIELDS: dict[int, type[f.Fields]] = {
    RequestCode.REGISTER_BROKER: f.RegisterBrokerFields,
    RequestCode.UNREGISTER_BROKER: f.UnregisterBrokerFields,
    RequestCode.QUERY_DATA_VERSION: f.QueryDataVersionFields,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: f.GetRouteFields,
    RequestCode.PUT_KV_CONFIG: f.PutKvFields,
    RequestCode.GET_KV_CONFIG: f.KvFields,
    RequestCode.DELETE_KV_CONFIG: f.KvFields,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: f.DeleteTopicInNamesrvFields,
    RequestCode.BROKER_HEARTBEAT: f.BrokerHeartbeatFields,
    RequestCode.UPDATE_AND_CREATE_TOPIC: f.CreateTopicFields,
    RequestCode.PULL_MESSAGE: f.PullMessageFields,
    RequestCode.QUERY_CONSUMER_OFFSET: f.QueryConsumerOffsetFields,
    RequestCode.UPDATE_CONSUMER_OFFSET: f.UpdateConsumerOffsetFields,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: f.SearchOffsetFields,
    RequestCode.GET_MAX_OFFSET: f.QueueFields,
    RequestCode.GET_MIN_OFFSET: f.QueueFields,
    RequestCode.UNREGISTER_CLIENT: f.UnregisterClientFields,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: f.ConsumerGroupFields,
    RequestCode.CONSUMER_SEND_MSG_BACK: f.SendBackFields,
    RequestCode.SEND_MESSAGE: f.SendMessageFields,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: f.ConsumerGroupFields,
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_arguments_of_apache_parse_and_keep_their_spelling(path: Path) -> None:
    seen: Counter[int] = Counter()
    for exchange in exchanges(path):
        kind = REQUEST_FIELDS.get(exchange["code"])
        if kind is None or exchange["sender"] == "probe":
            continue
        command = decode_command(split(base64.b64decode(exchange["request"])))
        again = kind.parse(command.ext_fields).to_ext()
        for name, value in command.ext_fields.items():
            if name in again:
                assert again[name] == value, (exchange["name"], name)
        seen[exchange["code"]] += 1
    assert RequestCode.GET_ROUTEINFO_BY_TOPIC in seen
    assert RequestCode.REGISTER_BROKER in seen


def body_of(exchange: dict[str, Any], kind: str) -> RemotingCommand | None:
    if exchange[kind] is None:
        return None
    return decode_command(split(base64.b64decode(exchange[kind])))


def successes(path: Path, code: int) -> list[tuple[RemotingCommand, RemotingCommand]]:
    found = []
    for exchange in exchanges(path):
        request, response = body_of(exchange, "request"), body_of(exchange, "response")
        if exchange["code"] == code and request and response and response.code == ResponseCode.SUCCESS:
            found.append((request, response))
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_routes_of_apache_decode_and_mean_the_same_when_written_again(path: Path) -> None:
    found = successes(path, RequestCode.GET_ROUTEINFO_BY_TOPIC)
    assert found
    for request, response in found:
        route = decode_route(response.body)
        assert route.queue_datas
        assert route.broker_datas
        accepts = f.GetRouteFields.parse(request.ext_fields).accept_standard_json_only
        dialect = dialect_for(request.version, accept_standard_json_only=accepts)
        assert decode_route(encode_route(route, dialect)) == route
        assert (b'"brokerAddrs":{"' in response.body) == (dialect is RouteDialect.QUOTED)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_registrations_of_apache_brokers_decode(path: Path) -> None:
    found = successes(path, RequestCode.REGISTER_BROKER)
    assert found
    topics = 0
    for request, _ in found:
        fields = f.RegisterBrokerFields.parse(request.ext_fields)
        body = read_registration(request.body, compressed=fields.compressed, version=request.version)
        topics = max(topics, len(body.topics))
        if fields.body_crc32:
            assert body_crc32(request.body) == fields.body_crc32
    assert topics > 5


BODIES: list[tuple[int, str, Any]] = [
    (RequestCode.GET_BROKER_CLUSTER_INFO, "response", decode_cluster_info),
    (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, "response", TopicList.decode),
    (RequestCode.GET_KVLIST_BY_NAMESPACE, "response", KVTable.decode),
    (RequestCode.HEART_BEAT, "request", HeartbeatData.decode),
    (RequestCode.GET_CONSUMER_LIST_BY_GROUP, "response", ConsumerIdList.decode),
    (RequestCode.GET_TOPIC_STATS_INFO, "response", TopicStats.decode),
    (RequestCode.GET_CONSUME_STATS, "response", ConsumeStats.decode),
    (RequestCode.GET_BROKER_RUNTIME_INFO, "response", KVTable.decode),
    (RequestCode.LOCK_BATCH_MQ, "request", LockBatch.decode),
]


@pytest.mark.parametrize(("code", "kind", "decode"), BODIES, ids=lambda value: getattr(value, "name", ""))
def test_bodies_of_apache_decode(code: int, kind: str, decode: Any) -> None:
    count = 0
    for path in FILES:
        for request, response in successes(path, code):
            body = (request if kind == "request" else response).body
            if body:
                decode(body)
                count += 1
    if code in (RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.HEART_BEAT):
        assert count


def test_messages_of_apache_brokers_encode_to_the_recorded_bytes_again() -> None:
    count = 0
    for path in FILES:
        for _, response in successes(path, RequestCode.PULL_MESSAGE):
            messages = list(decode_messages(response.body))
            assert b"".join(encode_message(message) for message in messages) == response.body
            count += len(messages)
    assert count


def test_batches_of_apache_producers_encode_to_the_recorded_bytes_again() -> None:
    count = 0
    for path in FILES:
        for request, _ in successes(path, RequestCode.SEND_BATCH_MESSAGE):
            items = decode_batch(request.body)
            assert encode_batch(items) == request.body
            count += len(items)
    assert count
