"""Requests over sockets against a running broker, in raw frames."""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from pathlib import Path
from typing import Any

import pytest
import uvloop

from routekeeper.broker.config import BrokerConfig
from routekeeper.broker.requests.handlers import Outcome, serve
from routekeeper.broker.server import process
from routekeeper.broker.server.process import BrokerServer
from routekeeper.broker.tables.state import BrokerState, Call
from routekeeper.remoting.bodies import (
    ConsumerConnection,
    ConsumerData,
    ConsumerIdList,
    ConsumerOffsetTable,
    ConsumeStats,
    GroupList,
    HeartbeatData,
    KVTable,
    LockBatch,
    LockBatchResponse,
    MessageQueue,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicList,
    TopicStats,
)
from routekeeper.remoting.codes import HeaderCodec
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.fields import PullMessageFields
from routekeeper.remoting.message import (
    BatchItem,
    decode_messages,
    decode_properties,
    encode_batch,
    parse_offset_message_id,
    tag_hash,
)
from routekeeper.remoting.route import TopicConfig
from routekeeper.remoting.transport.aio import RemotingClient
from tests.broker.conftest import BrokerProcess, Wire


def create_topic(
    wire: Wire, topic: str, *, queues: int = 4, perm: int = 6, **changes: str
) -> RemotingCommand:
    ext = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": str(perm),
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    return wire.call(17, ext | changes)


def heartbeat(
    wire: Wire, client_id: str, group: str, *topics: str, producer: str = "", **changes: str
) -> RemotingCommand:
    subscriptions = tuple(SubscriptionData(topic=topic, sub_version=5) for topic in topics)
    consumers = (ConsumerData(group_name=group, subscriptions=subscriptions),) if group else ()
    data = HeartbeatData(
        client_id=client_id, consumers=consumers, producer_groups=(producer,) if producer else ()
    )
    return wire.call(34, body=data.encode())


def pulled(wire: Wire, topic: str, offset: int = 0, **more: Any) -> tuple[int, list[bytes], int]:
    answer = wire.answer(wire.pull(topic, offset, **more))
    messages = [message.body for message in decode_messages(answer.body)]
    return answer.code, messages, int(answer.ext_fields["nextBeginOffset"])


# Sending -----------------------------------------------------------------------------------------


def test_first_send_creates_the_topic_and_answers_all_that_producers_read(
    wire: Wire, shared_broker: BrokerProcess
) -> None:
    answer = wire.send_message(
        "Created", b"hello", queue_id=3, properties="TAGS\x01A\x02WAIT\x01true\x02UNIQ_KEY\x01U1"
    )
    assert answer.code == 0
    assert answer.remark is None
    fields = answer.ext_fields
    assert (fields["queueId"], fields["queueOffset"], fields["transactionId"]) == ("3", "0", "U1")
    assert (fields["MSG_REGION"], fields["TRACE_ON"]) == ("DefaultRegion", "true")
    host, offset = parse_offset_message_id(fields["msgId"])
    assert str(host) == shared_broker.addr
    (message,) = decode_messages(wire.call(33, {"offset": str(offset)}).body)
    assert message.body == b"hello"
    assert decode_properties(message.properties) == {
        "TAGS": "A",
        "UNIQ_KEY": "U1",
        "CLUSTER": "DefaultCluster",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    config = TopicConfig.from_json(json.loads(wire.call(351, {"topic": "Created"}).body))
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (4, 4, 6)


def test_v1_send_uses_long_names(wire: Wire) -> None:
    ext = {
        "producerGroup": "PG",
        "topic": "V1",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "1",
        "sysFlag": "0",
        "bornTimestamp": "5",
        "flag": "7",
        "properties": "",
        "reconsumeTimes": "0",
        "unitMode": "false",
    }
    assert wire.call(10, ext, b"x").code == 0
    answer = wire.answer(wire.pull("V1", 0, queue_id=1))
    (message,) = decode_messages(answer.body)
    assert (message.flag, message.born_timestamp) == (7, 5)


def test_batch_is_stored_as_messages_with_their_own_ids(wire: Wire) -> None:
    body = encode_batch(
        [
            BatchItem(body=b"a", properties="UNIQ_KEY\x01U1\x02TAGS\x01A"),
            BatchItem(body=b"b", properties="UNIQ_KEY\x01U2"),
        ]
    )
    answer = wire.send_message("Batch", body, code=320, properties="UNIQ_KEY\x01UB\x02WAIT\x01true\x02")
    assert (answer.code, answer.ext_fields["queueOffset"]) == (0, "0")
    assert answer.ext_fields["transactionId"] == "UB"
    ids = answer.ext_fields["msgId"].split(",")
    found = list(decode_messages(wire.answer(wire.pull("Batch", 0)).body))
    assert [message.offset_message_id for message in found] == ids
    assert [message.body for message in found] == [b"a", b"b"]
    assert [decode_properties(message.properties)["UNIQ_KEY"] for message in found] == ["U1", "U2"]
    assert [message.queue_offset for message in found] == [0, 1]


def test_compressed_body_stays_compressed(wire: Wire) -> None:
    body = zlib.compress(b"x" * 5000, 5)
    assert wire.send_message("Compressed", body, f="769").code == 0
    (message,) = decode_messages(wire.answer(wire.pull("Compressed", 0)).body)
    assert message.body == body
    assert message.sys_flag == 769


def test_queue_id_below_zero_lets_the_broker_choose(wire: Wire) -> None:
    chosen = {wire.send_message("Choose", b"x", queue_id=-1).ext_fields["queueId"] for _ in range(8)}
    assert chosen == {"0", "1", "2", "3"}


@pytest.mark.parametrize(
    ("topic", "changes", "code", "remark"),
    [
        ("bad name", {}, 29, "illegal characters"),
        ("x" * 128, {}, 29, "longer than"),
        ("SCHEDULE_TOPIC_XXXX", {}, 16, "is forbidden"),
        ("NoTemplate", {"c": "Missing"}, 17, "apply first please"),
        ("NoInherit", {"c": "BenchmarkTest"}, 17, "apply first please"),
        ("Refused", {"e": "4"}, 29, "queueId[4] is illegal"),
        ("Refused", {"i": "TRAN_MSG\x01true\x02"}, 16, "transaction message is forbidden"),
        ("Refused", {"i": "TIMER_DELAY_MS\x015000\x02"}, 1, "timerWheelEnable"),
        ("Refused", {"e": "x"}, 1, "e"),
        ("Refused", {"i": "K\x01" + "v" * 40_000}, 13, "properties"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_refused_send_says_why_and_keeps_region(
    wire: Wire, topic: str, changes: dict[str, Any], code: int, remark: str
) -> None:
    answer = wire.send_message(topic, b"x", **changes)
    assert answer.code == code
    assert remark in (answer.remark or "")
    assert answer.ext_fields["MSG_REGION"] == "DefaultRegion"
    assert answer.ext_fields["TRACE_ON"] == "true"


def test_body_above_the_limit_is_refused(wire: Wire) -> None:
    answer = wire.send_message("Large", b"x" * 100_001)
    assert answer.code == 13
    assert "100001" in (answer.remark or "")
    assert wire.send_message("Large", b"x" * 100_000).code == 0


@pytest.mark.parametrize("body", [b"", b"\x00\x00", b"\xff" * 40])
def test_malformed_batch_is_refused_and_nothing_stored(wire: Wire, body: bytes) -> None:
    answer = wire.send_message("BadBatch", body, code=320)
    assert answer.code == 13
    assert wire.call(30, {"topic": "BadBatch", "queueId": "0"}).ext_fields["offset"] == "0"


@pytest.mark.parametrize(
    ("properties", "code", "remark"),
    [
        ("TRAN_MSG\x01true\x02", 16, "transaction message is forbidden"),
        ("K\x01v\x02TRAN_MSG\x01TRUE", 16, "transaction message is forbidden"),
        ("TIMER_DELIVER_MS\x014102444800000\x02", 1, "timerWheelEnable"),
        ("TIMER_DELAY_MS\x015000\x02", 1, "timerWheelEnable"),
        ("TIMER_DELAY_SEC\x015\x02", 1, "timerWheelEnable"),
        ("DELAY\x0118\x02", 13, "delayed messages"),
    ],
)
def test_batch_with_one_message_that_is_refused_alone_is_refused_as_a_whole(
    wire: Wire, properties: str, code: int, remark: str
) -> None:
    batch = encode_batch([BatchItem(body=b"usual"), BatchItem(body=b"other", properties=properties)])
    answer = wire.send_message("RefusedBatch", batch, code=320)
    assert answer.code == code
    assert remark in (answer.remark or "")
    assert wire.call(30, {"topic": "RefusedBatch", "queueId": "0"}).ext_fields["offset"] == "0"


@pytest.mark.parametrize("properties", ["TRAN_MSG\x01false\x02", "DELAY\x010\x02", "X_DELAY\x0118\x02"])
def test_batch_with_properties_that_only_resemble_refused_ones_is_stored(wire: Wire, properties: str) -> None:
    batch = encode_batch([BatchItem(body=b"x", properties=properties)])
    assert wire.send_message("AllowedBatch", batch, code=320).code == 0


def test_empty_body_is_accepted(wire: Wire) -> None:
    assert wire.send_message("Empty", b"").code == 0


def test_binary_request_gets_a_binary_answer(wire: Wire) -> None:
    answer = wire.call(30, {"topic": "T", "queueId": "0"}, codec=HeaderCodec.ROCKETMQ)
    assert answer.codec is HeaderCodec.ROCKETMQ
    assert answer.ext_fields == {"offset": "0"}


def test_oneway_send_is_stored_and_not_answered(wire: Wire) -> None:
    wire.send_message("Oneway", b"0")
    ext = {"a": "PG", "b": "Oneway", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0"}
    wire.send(RemotingCommand.request(310, ext, b"1", oneway=True))
    assert wire.send_message("Oneway", b"2").ext_fields["queueOffset"] == "2"


@pytest.mark.parametrize("code", [37, 323, 999])
def test_unknown_code_is_answered_as_not_supported(wire: Wire, code: int) -> None:
    answer = wire.call(code)
    assert (answer.code, answer.remark) == (3, f" request type {code} not supported")


# Pulling -----------------------------------------------------------------------------------------


def test_pull_statuses_and_their_offsets(wire: Wire) -> None:
    create_topic(wire, "Pull")
    assert pulled(wire, "Pull", 0) == (19, [], 0)
    assert pulled(wire, "Pull", 5) == (21, [], 0)
    for number in range(3):
        wire.send_message("Pull", b"%d" % number, properties="TAGS\x01A")
    assert pulled(wire, "Pull", 0) == (0, [b"0", b"1", b"2"], 3)
    assert pulled(wire, "Pull", 1) == (0, [b"1", b"2"], 3)
    assert pulled(wire, "Pull", 3) == (19, [], 3)
    assert pulled(wire, "Pull", 9) == (21, [], 0)
    assert pulled(wire, "Pull", -1) == (21, [], 0)
    assert pulled(wire, "Pull", 0, expression="B || C") == (20, [], 3)
    assert pulled(wire, "Pull", 0, expression="B || A") == (0, [b"0", b"1", b"2"], 3)
    assert pulled(wire, "Pull", 0, maxMsgNums="2") == (0, [b"0", b"1"], 2)
    answer = wire.answer(wire.pull("Pull", 3))
    assert answer.remark == "OFFSET_OVERFLOW_ONE"
    assert {"suggestWhichBrokerId", "minOffset", "maxOffset"} <= set(answer.ext_fields)


def test_pull_answers_at_most_32_messages_and_256_kib(wire: Wire) -> None:
    for _ in range(40):
        wire.send_message("Limits", b"x")
    assert len(pulled(wire, "Limits", 0, maxMsgNums="1000")[1]) == 32
    for _ in range(5):
        wire.send_message("Limits", b"x" * 90_000, queue_id=1)
    assert len(pulled(wire, "Limits", 0, queue_id=1)[1]) == 2


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"queueId": "4"}, 29, "illegal"),
        ({"queueId": "-1"}, 29, "illegal"),
        ({"consumerGroup": "bad group"}, 26, "does not exist"),
        ({"sysFlag": "0"}, 24, "group info not exist"),
        ({"subscription": "||"}, 23, "parse"),
        ({"expressionType": "SQL92", "subscription": "a > 1"}, 1, "SQL92"),
        ({"queueOffset": "x"}, 1, "queueOffset"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_refused_pull_says_why(wire: Wire, changes: dict[str, Any], code: int, remark: str) -> None:
    create_topic(wire, "PullChecks")
    answer = wire.answer(wire.pull("PullChecks", 0, **changes))
    assert answer.code == code
    assert remark in (answer.remark or "")


def test_unknown_topic_is_not_pulled(wire: Wire) -> None:
    answer = wire.answer(wire.pull("Unknown", 0))
    assert (answer.code, "not exist" in (answer.remark or "")) == (17, True)


def test_topic_without_read_permission_is_not_pulled(wire: Wire) -> None:
    create_topic(wire, "WriteOnly", perm=2)
    assert wire.answer(wire.pull("WriteOnly", 0)).code == 16


def test_pull_without_subscription_uses_the_registered_one(wire: Wire) -> None:
    for tag in ("A", "B"):
        wire.send_message("Registered", tag.encode(), properties=f"TAGS\x01{tag}")
    subscription = SubscriptionData(
        topic="Registered", sub_string="B", tags=("B",), codes=(tag_hash("B"),), sub_version=7
    )
    data = HeartbeatData(
        client_id="c", consumers=(ConsumerData(group_name="GR", subscriptions=(subscription,)),)
    )
    assert wire.call(34, body=data.encode()).code == 0
    assert pulled(wire, "Registered", 0, group="GR", sys_flag=0, subVersion="7") == (0, [b"B"], 2)
    newer = wire.answer(wire.pull("Registered", 0, group="GR", sys_flag=0, subVersion="8"))
    assert newer.code == 25
    other = wire.answer(wire.pull("Created", 0, group="GR", sys_flag=0))
    assert other.code in (17, 24)


def test_waiting_pull_is_woken_by_a_message(wire: Wire, shared_broker: BrokerProcess) -> None:
    create_topic(wire, "Wake")
    other = shared_broker.wire()
    waiting = wire.pull("Wake", 0, sys_flag=6, suspend_ms=15_000)
    # The pull waits for queue 0, so a message in queue 1 does not end its wait.
    assert other.send_message("Wake", b"other queue", queue_id=1).code == 0
    assert other.send_message("Wake", b"here").code == 0
    answer = wire.answer(waiting, 5.0)
    assert [message.body for message in decode_messages(answer.body)] == [b"here"]


def test_requests_behind_a_waiting_pull_are_answered(wire: Wire) -> None:
    create_topic(wire, "Behind")
    waiting = wire.pull("Behind", 0, sys_flag=6, suspend_ms=15_000)
    wire.send(RemotingCommand.request(30, {"topic": "Behind", "queueId": "0"}))
    assert wire.receive().ext_fields == {"offset": "0"}
    wire.send(
        RemotingCommand.request(
            310, {"a": "P", "b": "Behind", "c": "", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0"}, b"x"
        )
    )
    answers = {wire.receive().opaque for _ in range(2)}
    assert waiting in answers


def test_waiting_pull_ends_on_time(wire: Wire) -> None:
    create_topic(wire, "Ends")
    started = time.monotonic()
    assert pulled(wire, "Ends", 0, sys_flag=6, suspend_ms=300) == (19, [], 0)
    assert 0.25 < time.monotonic() - started < 10.0


def test_pulls_whose_time_is_over_when_they_are_parked_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waiting time of a pull may already have run out when the broker parks the pull.

    The broker then sets a timer that is due at once. For a timer of less than 0.5 ms, uvloop returns a handle
    without the method ``when()``. So the broker must not ask the handle for the timer's due time.
    """

    def slow(state: BrokerState, call: Call) -> Outcome:
        time.sleep(0.002)  # delay each request, as a busy machine does
        return serve(state, call)

    async def main() -> None:
        stop = asyncio.Event()
        bound: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        fields = PullMessageFields(
            consumer_group="G",
            topic="SELF_TEST_TOPIC",
            queue_id=0,
            queue_offset=0,
            max_msg_nums=32,
            sys_flag=6,
            suspend_timeout_ms=1,
            subscription="*",
        )
        pull = RemotingCommand.request(11, fields.to_ext())
        async with asyncio.TaskGroup() as group, RemotingClient() as client:
            config = BrokerConfig(listen_port=0)
            group.create_task(BrokerServer(config, tmp_path).run(stop, bound.set_result))
            addr = await bound
            answers = await asyncio.gather(*(client.invoke(addr, pull) for _ in range(3)))
            stop.set()
        assert [answer.code for answer in answers] == [19, 19, 19]

    monkeypatch.setattr(process, "serve", slow)
    uvloop.run(main())


@pytest.mark.slow
def test_waiting_pull_steps_over_other_tags(wire: Wire, shared_broker: BrokerProcess) -> None:
    create_topic(wire, "Tags")
    other = shared_broker.wire()
    waiting = wire.pull("Tags", 0, sys_flag=6, suspend_ms=1500, expression="A")
    for _ in range(3):
        other.send_message("Tags", b"b", properties="TAGS\x01B")
    answer = wire.answer(waiting)
    # No message matched in time. The next offset lies after the three messages, so the consumer does not
    # read them again.
    assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (20, "3")
    waiting = wire.pull("Tags", 3, sys_flag=6, suspend_ms=15_000, expression="A")
    other.send_message("Tags", b"b", properties="TAGS\x01B")
    other.send_message("Tags", b"a", properties="TAGS\x01A")
    answer = wire.answer(waiting, 5.0)
    assert [message.body for message in decode_messages(answer.body)] == [b"a"]
    assert answer.ext_fields["nextBeginOffset"] == "5"


def test_pull_commits_the_offset_it_carries(wire: Wire) -> None:
    wire.send_message("Commit", b"x")
    wire.answer(wire.pull("Commit", 0, group="GC", sys_flag=5, commitOffset="1"))
    answer = wire.call(14, {"consumerGroup": "GC", "topic": "Commit", "queueId": "0"})
    assert answer.ext_fields == {"offset": "1"}
    wire.answer(wire.pull("Commit", 0, group="GC", sys_flag=5, commitOffset="-5"))
    answer = wire.call(14, {"consumerGroup": "GC", "topic": "Commit", "queueId": "0"})
    assert answer.ext_fields == {"offset": "1"}


# Offsets -----------------------------------------------------------------------------------------


def test_offsets_are_stored_and_found(wire: Wire) -> None:
    create_topic(wire, "Offsets")
    where = {"consumerGroup": "GO", "topic": "Offsets", "queueId": "1"}
    assert wire.call(14, where).ext_fields == {"offset": "0"}  # a new group starts at 0 in a new queue
    missing = wire.call(14, where | {"setZeroIfNotFound": "false"})
    assert missing.code == 22
    batch = encode_batch(BatchItem(body=b"x") for _ in range(7))
    assert wire.send_message("Offsets", batch, code=320, queue_id=1).code == 0
    assert wire.call(15, where | {"commitOffset": "7"}).code == 0
    assert wire.call(14, where).ext_fields == {"offset": "7"}
    table = ConsumerOffsetTable.decode(wire.call(43).body)
    assert table.offsets["Offsets@GO"] == {1: 7}


def test_offset_of_a_deleted_topic_does_not_skip_messages_of_a_topic_of_the_same_name(wire: Wire) -> None:
    for _ in range(3):
        wire.send_message("Stale", b"old")
    where = {"consumerGroup": "GS", "topic": "Stale", "queueId": "0"}
    assert wire.call(15, where | {"commitOffset": "3"}).code == 0
    wire.call(215, {"topic": "Stale"})
    create_topic(wire, "Stale")
    assert wire.call(15, where | {"commitOffset": "3"}).code == 0  # the consumer has not noticed the deletion
    assert wire.call(14, where).ext_fields == {"offset": "0"}
    wire.answer(wire.pull("Stale", 0, group="GS", sys_flag=5, commitOffset="3"))
    assert wire.call(14, where).ext_fields == {"offset": "0"}
    wire.send_message("Stale", b"new")
    assert pulled(wire, "Stale", 0, group="GS") == (0, [b"new"], 1)
    assert wire.call(15, where | {"commitOffset": "3"}).code == 0
    assert wire.call(14, where).ext_fields == {"offset": "0"}
    moved = wire.answer(wire.pull("Stale", 3, group="GS"))
    assert (moved.code, moved.ext_fields["nextBeginOffset"]) == (21, "0")


def test_held_pull_of_a_deleted_topic_is_answered_at_once_with_offset_0(
    wire: Wire, shared_broker: BrokerProcess
) -> None:
    wire.send_message("HeldDeleted", b"old")
    waiting = wire.pull("HeldDeleted", 1, sys_flag=6, suspend_ms=15_000)
    assert shared_broker.wire().call(215, {"topic": "HeldDeleted"}).code == 0
    answer = wire.answer(waiting, 5.0)
    assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (21, "0")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "Unknown"}, 17),
        ({"queueId": "-1"}, 29),
        ({"queueId": "65536"}, 29),
        ({"commitOffset": "-1"}, 29),
        ({"consumerGroup": "a b"}, 26),
        ({"commitOffset": "x"}, 1),
    ],
    ids=lambda value: str(value),
)
def test_bad_offset_is_not_stored(wire: Wire, changes: dict[str, str], code: int) -> None:
    create_topic(wire, "BadOffsets")
    where = {"consumerGroup": "GB", "topic": "BadOffsets", "queueId": "0", "commitOffset": "1"}
    assert wire.call(15, where | changes).code == code


def test_bounds_and_search_by_time(wire: Wire) -> None:
    for _ in range(3):
        wire.send_message("Bounds", b"x")
    where = {"topic": "Bounds", "queueId": "0"}
    assert wire.call(30, where).ext_fields == {"offset": "3"}
    assert wire.call(31, where).ext_fields == {"offset": "0"}
    assert int(wire.call(32, where).ext_fields["timestamp"]) > 1_700_000_000_000
    assert wire.call(32, {"topic": "Nothing", "queueId": "0"}).ext_fields == {"timestamp": "-1"}
    assert wire.call(29, where | {"timestamp": "0"}).ext_fields == {"offset": "0"}
    assert wire.call(29, where | {"timestamp": "99999999999999"}).ext_fields == {"offset": "2"}


# Clients and groups ------------------------------------------------------------------------------


def test_heartbeat_registers_creates_the_retry_topic_and_notifies_first(
    wire: Wire, shared_broker: BrokerProcess
) -> None:
    opaque = wire.send(
        RemotingCommand.request(
            34,
            body=HeartbeatData(
                client_id="c1",
                consumers=(ConsumerData(group_name="GH", subscriptions=(SubscriptionData(topic="T"),)),),
            ).encode(),
        )
    )
    first, second = wire.receive(), wire.receive()
    assert (first.code, first.is_oneway, first.ext_fields) == (40, True, {"consumerGroup": "GH"})
    assert (second.opaque, second.code, second.version) == (opaque, 0, 479)
    assert wire.call(351, {"topic": "%RETRY%GH"}).code == 0
    assert ConsumerIdList.decode(wire.call(38, {"consumerGroup": "GH"}).body).consumer_ids == ("c1",)
    other = shared_broker.wire()
    heartbeat(other, "c2", "GH", "T")
    assert wire.receive().code == 40
    ids = ConsumerIdList.decode(wire.call(38, {"consumerGroup": "GH"}).body).consumer_ids
    assert ids == ("c1", "c2")
    heartbeat(other, "c2", "GH", "T")  # nothing changed, so the members get no notice (code 40)
    assert other.call(35, {"clientID": "c2", "consumerGroup": "GH"}).code == 0
    assert wire.receive().code == 40
    assert ConsumerIdList.decode(wire.call(38, {"consumerGroup": "GH"}).body).consumer_ids == ("c1",)


def test_closed_connection_leaves_its_group(wire: Wire, shared_broker: BrokerProcess) -> None:
    heartbeat(wire, "c1", "GX", "T")
    other = shared_broker.wire()
    heartbeat(other, "c2", "GX", "T")
    assert wire.receive().code == 40
    other.close()
    assert wire.receive().code == 40
    assert ConsumerIdList.decode(wire.call(38, {"consumerGroup": "GX"}).body).consumer_ids == ("c1",)


def test_group_without_members_is_named(wire: Wire) -> None:
    listed = wire.call(38, {"consumerGroup": "GN"})
    assert (listed.code, listed.remark) == (1, "no consumer for this group, GN")
    connections = wire.call(203, {"consumerGroup": "GN"})
    assert (connections.code, connections.remark) == (206, "the consumer group[GN] not online")
    assert wire.call(204, {"producerGroup": "PN"}).code == 1


def test_connections_are_listed(wire: Wire) -> None:
    heartbeat(wire, "c1", "GL", "T", producer="PL")
    consumer = ConsumerConnection.decode(wire.call(203, {"consumerGroup": "GL"}).body)
    assert [connection.client_id for connection in consumer.connections] == ["c1"]
    assert set(consumer.subscriptions) == {"T"}
    assert wire.call(204, {"producerGroup": "PL"}).code == 0


def test_queues_are_locked_for_one_client(wire: Wire) -> None:
    queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)

    def lock(client_id: str) -> tuple[MessageQueue, ...]:
        body = LockBatch(consumer_group="GLock", client_id=client_id, queues=(queue,)).encode()
        return LockBatchResponse.decode(wire.call(41, body=body).body).locked

    assert lock("c1") == (queue,)
    assert lock("c2") == ()
    body = LockBatch(consumer_group="GLock", client_id="c1", queues=(queue,)).encode()
    assert wire.call(42, body=body).code == 0
    assert lock("c2") == (queue,)


def test_groups_are_configured_and_deleted(wire: Wire) -> None:
    config = SubscriptionGroupConfig(group_name="GA", consume_enable=False)
    assert wire.call(200, body=config.encode()).code == 0
    assert SubscriptionGroupTable.decode(wire.call(201).body).groups["GA"] == config
    create_topic(wire, "ForGA")
    assert wire.answer(wire.pull("ForGA", 0, group="GA")).code == 16
    assert wire.call(207, {"groupName": "GA", "cleanOffset": "true"}).code == 0
    assert "GA" not in SubscriptionGroupTable.decode(wire.call(201).body).groups


@pytest.mark.parametrize("count", [-1, 1025, 2_000_000_000])
def test_group_with_a_queue_count_outside_its_range_is_refused(wire: Wire, count: int) -> None:
    before = wire.call(201).body
    answer = wire.call(200, body=SubscriptionGroupConfig(group_name="GMany", retry_queue_nums=count).encode())
    assert (answer.code, answer.remark) == (29, f"group 'GMany': retryQueueNums {count} is outside 0..1024")
    assert wire.call(201).body == before


def test_client_config_is_checked(wire: Wire) -> None:
    for kind, code in (("TAG", 0), ("SQL92", 1)):
        subscription = {"topic": "T", "subString": "a", "expressionType": kind}
        body = json.dumps({"clientId": "c", "group": "G", "subscriptionData": subscription}).encode()
        assert wire.call(46, body=body).code == code


@pytest.mark.parametrize("code", [34, 41, 42, 200, 18])
@pytest.mark.parametrize("body", [b"", b"{", b"7", b'{"clientID":[]}', b"\xff\xfe"], ids=range(5))
def test_malformed_body_is_an_error_answer(wire: Wire, code: int, body: bytes) -> None:
    answer = wire.call(code, body=body)
    assert answer.code in (1, 29)
    assert answer.remark
    assert wire.call(30, {"topic": "T", "queueId": "0"}).code == 0


# Retry, dead letters, delay ----------------------------------------------------------------------


def send_back(wire: Wire, message_id: str, group: str, **changes: str) -> RemotingCommand:
    _, offset = parse_offset_message_id(message_id)
    ext = {"offset": str(offset), "group": group, "delayLevel": "0", "maxReconsumeTimes": "16"}
    return wire.call(36, ext | changes)


def wait_for_message(wire: Wire, topic: str, offset: int = 0) -> RemotingCommand:
    return wire.answer(wire.pull(topic, offset, sys_flag=6, suspend_ms=10_000), 12.0)


@pytest.mark.slow
def test_message_sent_back_returns_after_its_delay(wire: Wire) -> None:
    sent = wire.send_message(
        "Back", zlib.compress(b"x" * 100), f="1", properties="TAGS\x01A\x02UNIQ_KEY\x01U"
    )
    heartbeat(wire, "c", "GBack", "Back")
    started = time.monotonic()
    assert send_back(wire, sent.ext_fields["msgId"], "GBack").code == 0
    answer = wait_for_message(wire, "%RETRY%GBack")
    assert time.monotonic() - started > 0.9  # a first retry has delay level 3, here 1 s
    (message,) = decode_messages(answer.body)
    properties = decode_properties(message.properties)
    assert properties["RETRY_TOPIC"] == "Back"
    assert properties["ORIGIN_MESSAGE_ID"] == sent.ext_fields["msgId"]
    assert properties["UNIQ_KEY"] == "U"
    assert (message.reconsume_times, message.sys_flag, message.body) == (1, 1, zlib.compress(b"x" * 100))
    # A message that is sent back again, now from the retry topic, keeps the id of the original message.
    assert send_back(wire, message.offset_message_id, "GBack").code == 0
    (again,) = decode_messages(wait_for_message(wire, "%RETRY%GBack", 1).body)
    assert again.reconsume_times == 2
    assert decode_properties(again.properties)["ORIGIN_MESSAGE_ID"] == sent.ext_fields["msgId"]
    assert decode_properties(again.properties)["RETRY_TOPIC"] == "Back"


@pytest.mark.parametrize(
    "changes", [{"delayLevel": "-1"}, {"maxReconsumeTimes": "0"}], ids=["level", "times"]
)
def test_message_goes_to_the_dead_letters(wire: Wire, changes: dict[str, str]) -> None:
    group = "GDead" + next(iter(changes))
    sent = wire.send_message("Dead", b"x")
    assert send_back(wire, sent.ext_fields["msgId"], group, **changes).code == 0
    (message,) = decode_messages(wait_for_message(wire, f"%DLQ%{group}").body)
    assert message.body == b"x"
    assert decode_properties(message.properties)["RETRY_TOPIC"] == "Dead"


def test_send_to_retry_topic_after_too_many_times_is_dead(wire: Wire) -> None:
    answer = wire.send_message("%RETRY%GSend", b"x", j="17", l="16")
    assert answer.code == 0
    (message,) = decode_messages(wait_for_message(wire, "%DLQ%GSend").body)
    assert message.reconsume_times == 17
    assert wire.send_message("%RETRY%GSend", b"y", j="3", l="16").code == 0
    (message,) = decode_messages(wait_for_message(wire, "%RETRY%GSend").body)
    assert message.reconsume_times == 3


def test_message_given_up_by_a_group_that_consumes_in_order_is_dead_at_once(wire: Wire) -> None:
    # A client of a group that consumes in order gives a message up. It sends the number of tries (j), which
    # is equal to the limit (l). For any other group, the broker would permit one more try.
    queue = {"topic": "Ordered", "brokerName": "broker-a", "queueId": 0}
    body = json.dumps({"consumerGroup": "GOrder", "clientId": "c", "mqSet": [queue]}).encode()
    assert wire.call(41, body=body).code == 0
    assert wire.send_message("%RETRY%GOrder", b"x", j="3", l="3").code == 0
    (message,) = decode_messages(wait_for_message(wire, "%DLQ%GOrder").body)
    assert message.body == b"x"
    assert wire.call(42, body=body).code == 0
    assert wire.send_message("%RETRY%GOrder", b"y", j="3", l="3").code == 0
    (message,) = decode_messages(wait_for_message(wire, "%RETRY%GOrder").body)
    assert message.body == b"y"


def test_sendback_of_an_unknown_message_is_refused(wire: Wire) -> None:
    answer = wire.call(36, {"offset": "123456789", "group": "GU", "delayLevel": "0"})
    assert (answer.code, answer.remark) == (1, "look message by offset failed, 123456789")


@pytest.mark.slow
def test_delayed_message_appears_later_in_its_own_queue(wire: Wire) -> None:
    create_topic(wire, "Delayed")
    started = time.monotonic()
    answer = wire.send_message("Delayed", b"x", queue_id=2, properties="DELAY\x012\x02TAGS\x01A\x02")
    assert (answer.code, answer.ext_fields["queueId"]) == (0, "2")
    (offset,) = wire.call(30, {"topic": "Delayed", "queueId": "2"}).ext_fields.values()
    assert offset == "0" or time.monotonic() - started > 1.8
    found = wire.answer(
        wire.pull("Delayed", 0, queue_id=2, sys_flag=6, suspend_ms=10_000, expression="A"), 12.0
    )
    assert time.monotonic() - started > 1.8
    (message,) = decode_messages(found.body)
    assert (message.topic, message.queue_id, message.body) == ("Delayed", 2, b"x")


# Topics and inspection ---------------------------------------------------------------------------


def test_topic_is_created_changed_and_deleted(wire: Wire) -> None:
    assert create_topic(wire, "Life", queues=2).code == 0
    before = json.loads(wire.call(21).body)["dataVersion"]
    assert create_topic(wire, "Life", queues=2).code == 0
    assert json.loads(wire.call(21).body)["dataVersion"] == before
    assert create_topic(wire, "Life", queues=3, perm=4, order="true").code == 0
    table = json.loads(wire.call(21).body)
    assert TopicConfig.from_json(table["topicConfigTable"]["Life"]) == TopicConfig(
        topic_name="Life", read_queue_nums=3, write_queue_nums=3, perm=4, order=True
    )
    assert table["dataVersion"]["counter"] == before["counter"] + 1
    wire.call(15, {"consumerGroup": "GLife", "topic": "Life", "queueId": "0", "commitOffset": "1"})
    assert wire.call(215, {"topic": "Life"}).code == 0
    assert wire.call(351, {"topic": "Life"}).code == 17
    assert "Life@GLife" not in ConsumerOffsetTable.decode(wire.call(43).body).offsets
    assert wire.call(215, {"topic": "Life"}).code == 0


def test_topic_deleted_and_created_again_is_empty(wire: Wire) -> None:
    wire.send_message("Again", b"old")
    wire.call(215, {"topic": "Again"})
    create_topic(wire, "Again")
    assert pulled(wire, "Again", 0) == (19, [], 0)
    wire.send_message("Again", b"new")
    assert pulled(wire, "Again", 0) == (0, [b"new"], 1)


@pytest.mark.parametrize(
    ("topic", "changes", "remark"),
    [
        ("TBW102", {}, "conflict with system topic"),
        ("bad name", {}, "illegal characters"),
        ("Perm", {"perm": "9"}, "perm 9"),
        ("Many", {"readQueueNums": "70000"}, "70000"),
        ("Attr", {"attributes": "x"}, "neither"),
        ("Filter", {"topicFilterType": "ANY_TAG"}, "'ANY_TAG': allowed are SINGLE_TAG, MULTI_TAG"),
    ],
)
def test_refused_topic_says_why(wire: Wire, topic: str, changes: dict[str, str], remark: str) -> None:
    numbers = {"readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
    answer = wire.call(17, {"topic": topic, "defaultTopic": "TBW102"} | numbers | changes)
    assert answer.code == 29
    assert remark in (answer.remark or "")


def test_topics_are_created_from_a_list_all_or_none(wire: Wire) -> None:
    good = [TopicConfig(topic_name=f"List{number}").to_json() for number in range(3)]
    bad = [*good, TopicConfig(topic_name="TBW102").to_json()]
    assert wire.call(18, body=json.dumps({"topicConfigList": bad}).encode()).code == 29
    assert wire.call(351, {"topic": "List0"}).code == 17
    assert wire.call(18, body=json.dumps({"topicConfigList": good}).encode()).code == 0
    assert wire.call(351, {"topic": "List2"}).code == 0


def test_topic_and_consume_statistics(wire: Wire) -> None:
    for _ in range(3):
        wire.send_message("Stats", b"x", queue_id=1)
    stats = TopicStats.decode(wire.call(202, {"topic": "Stats"}).body)
    queue = MessageQueue(topic="Stats", broker_name="broker-a", queue_id=1)
    assert len(stats.offsets) == 4
    assert (stats.offsets[queue].min_offset, stats.offsets[queue].max_offset) == (0, 3)
    assert stats.offsets[queue].last_update_timestamp > 1_700_000_000_000
    wire.call(15, {"consumerGroup": "GS", "topic": "Stats", "queueId": "1", "commitOffset": "2"})
    consume = ConsumeStats.decode(wire.call(208, {"consumerGroup": "GS"}).body)
    assert (consume.offsets[queue].broker_offset, consume.offsets[queue].consumer_offset) == (3, 2)
    assert GroupList.decode(wire.call(300, {"topic": "Stats"}).body).groups == ("GS",)
    missing = wire.call(202, {"topic": "NoSuchTopic"})
    assert (missing.code, missing.remark) == (17, "topic[NoSuchTopic] not exist")


def test_system_topics_and_runtime_figures(wire: Wire) -> None:
    assert "TBW102" in TopicList.decode(wire.call(305).body).topics
    table = KVTable.decode(wire.call(28).body).table
    needed = {
        "brokerVersionDesc",
        "putTps",
        "getTransferedTps",
        "sendThreadPoolQueueSize",
        "pullThreadPoolQueueSize",
        "sendThreadPoolQueueHeadWaitTimeMills",
        "pullThreadPoolQueueHeadWaitTimeMills",
        "pageCacheLockTimeMills",
        "earliestMessageTimeStamp",
        "commitLogDiskRatio",
        "msgPutTotalTodayNow",
    }
    assert needed <= set(table)
    assert len(table["putTps"].split()) == 3


def test_settings_are_read_and_changed_within_the_allow_list(wire: Wire) -> None:
    answer = wire.call(26)
    assert "brokerName=broker-a\n" in answer.body.decode()
    counter = json.loads(answer.ext_fields["version"])["counter"]
    refused = wire.call(25, body=b"storePathRootDir=/tmp/x\ntraceOn=false\n")
    assert refused.code == 16
    assert "traceOn=true\n" in wire.call(26).body.decode()
    assert wire.call(25, body=b"traceOn=perhaps\n").code == 29
    long = wire.call(25, body=b"traceOn=false\n" + b"=\n" * 8192)
    assert (long.code, long.remark) == (29, "settings of 16398 bytes: allowed are 16384")
    assert wire.call(25, body=b"shortPollingTimeMills=900\n").code == 0
    changed = wire.call(26)
    assert "shortPollingTimeMills=900\n" in changed.body.decode()
    assert json.loads(changed.ext_fields["version"])["counter"] == counter + 1


def test_offset_without_a_message_is_named(wire: Wire) -> None:
    answer = wire.call(33, {"offset": "1"})
    assert (answer.code, answer.remark) == (1, "can not find message by the offset, 1")
