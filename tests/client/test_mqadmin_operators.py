"""Operators' daily work with our mqadmin, our nameserver and our broker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from routekeeper.bench.timers import divide_periods
from routekeeper.client.blocking import Client
from routekeeper.client.config import ClientConfig, ConsumeFrom, ConsumerConfig
from routekeeper.client.mqadmin.__main__ import COMMANDS
from routekeeper.client.mqadmin.group_admin import held_twice
from routekeeper.client.mqadmin.tracks import kind_of
from routekeeper.client.producer import Message
from routekeeper.client.queue_reader import ReceivedMessage
from routekeeper.remoting.bodies import ConsumerConnection, MessageQueue, SubscriptionData
from tests.client.mqadmin import mqadmin
from tests.ports import free_addresses

#: Subcommands about brokers, groups and messages that both Apache's tool and our tool have.
ASKED = (
    *("consumerProgress", "consumerConnection", "producerConnection", "brokerStatus"),
    *("updateSubGroup", "deleteSubGroup", "resetOffsetByTime", "skipAccumulatedMessage"),
    *("queryMsgById", "queryMsgByKey", "queryMsgByUniqueKey", "queryMsgByOffset", "getBrokerConfig"),
    *("updateBrokerConfig", "updateTopicPerm", "updateOrderConf", "topicClusterList", "printMsg"),
    *("statsAll", "consumerStatus", "cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"),
    *("getConsumerConfig", "brokerConsumeStats", "queryCq", "cloneGroupOffset", "producer"),
)


class Tool:
    """A runner of subcommands, which must succeed unless the test expects a failure."""

    def __init__(self, namesrv: str, topic: str = "") -> None:
        self.namesrv = namesrv
        self.topic = topic

    def run(self, *argv: str) -> tuple[int, str, str]:
        return mqadmin(*argv, namesrv=self.namesrv)

    def ok(self, *argv: str) -> str:
        code, out, err = self.run(*argv)
        assert (code, err) == (0, ""), out
        return out

    def json(self, *argv: str, flag: str = "-o") -> Any:
        return json.loads(self.ok(*argv, flag, "json"))

    def fails(self, *argv: str) -> str:
        code, _, err = self.run(*argv)
        assert code == 1
        assert len(err.splitlines()) == 1
        return err


@pytest.fixture
def tool(nameserver: Any, broker: Any, eventually: Callable[..., None], tmp_path: Path) -> Tool:
    made = Tool(nameserver.addr, f"Daily-{tmp_path.name}"[:60])
    made.ok("updateTopic", "-b", broker.addr, "-t", made.topic, "-r", "2", "-w", "2")
    eventually(lambda: made.run("topicRoute", "-t", made.topic)[0] == 0, "routed")
    return made


def send(tool: Tool, *bodies: str) -> list[dict[str, Any]]:
    return [
        tool.json(
            "sendMessage",
            "-t",
            tool.topic,
            "-p",
            body,
            "-k",
            f"{body} all",
            "-c",
            "TagA",
            "-b",
            "broker-a",
            "-i",
            "0",
        )
        for body in bodies
    ]


@pytest.mark.slow
def test_groups_are_made_shown_and_removed(tool: Tool, broker: Any) -> None:
    out = tool.ok("updateSubGroup", "-b", broker.addr, "-g", "Made", "-r", "5")
    assert out.startswith(f"create subscription group to {broker.addr} success.\nSubscriptionGroupConfig{{groupName=Made, ")  # fmt: skip  # noqa: E501
    assert "retryMaxTimes=5, " in out
    tool.ok("updateSubGroup", "-c", "DefaultCluster", "-g", "Made", "-r", "6")
    shown = tool.ok("getConsumerConfig", "-g", "Made")
    assert shown.splitlines()[0] == f"{'=' * 29}DefaultCluster:broker-a{'=' * 29}"
    assert f"{'retryMaxTimes':<40}=  6" in shown
    assert tool.json("getConsumerConfig", "-g", "Made")[0]["retryMaxTimes"] == 6
    assert tool.ok("deleteSubGroup", "-c", "DefaultCluster", "-g", "Made", "-r", "true") == (
        f"delete subscription group [Made] from broker [{broker.addr}] in cluster [DefaultCluster] success.\n"
    )
    assert "'Made'" in tool.fails("getConsumerConfig", "-g", "Made")
    assert "'NoCluster'" in tool.fails("updateSubGroup", "-c", "NoCluster", "-g", "Made")
    assert "allowed 0..1024" in tool.run("updateSubGroup", "-b", broker.addr, "-g", "Made", "-q", "1025")[2]


def test_messages_are_found_in_every_way(tool: Tool, broker: Any) -> None:
    one, two = send(tool, "one", "two")
    for argv in (
        ("queryMsgById", "-i", one["offsetMsgId"]),
        ("queryMsgByUniqueKey", "-t", tool.topic, "-i", one["msgId"]),
        ("queryMsgByOffset", "-t", tool.topic, "-b", "broker-a", "-i", "0", "-o", "0"),
    ):
        out = tool.ok(*argv)
        shown = f"{'OffsetID:':<20} {one['offsetMsgId']}\n" in out
        assert shown == (argv[0] != "queryMsgByUniqueKey")
        assert f"{'Keys:':<20} [one all]\n" in out
        assert out.endswith("\n\n\nWARN: No Consumer\n\n")
        assert f"{'Message Body:':<20} one\n" in out
        flag = "-O" if argv[0] == "queryMsgByOffset" else "-o"
        (found,) = tool.json(*argv, flag=flag)
        assert (found["body"], found["tags"], found["queueOffset"]) == ("one", "TagA", 0)
    rows = tool.ok("queryMsgByKey", "-t", tool.topic, "-k", "all").splitlines()
    assert [row.split() for row in rows[1:]] == [[one["msgId"], "0", "0"], [two["msgId"], "0", "1"]]
    assert [row["body"] for row in tool.json("queryMsgByKey", "-t", tool.topic, "-k", "two")] == ["two"]
    assert "'nokey'" in tool.fails("queryMsgByKey", "-t", tool.topic, "-k", "nokey")
    assert "no message" in tool.fails("queryMsgByUniqueKey", "-t", tool.topic, "-i", "00")
    assert "no message" in tool.fails("queryMsgById", "-i", f"{two['offsetMsgId'][:-1]}1")
    assert "0 to 2" in tool.fails(
        "queryMsgByOffset", "-t", tool.topic, "-b", "broker-a", "-i", "0", "-o", "9"
    )
    printed = tool.ok("printMsg", "-t", tool.topic)
    assert printed.count("MSGID: ") == 2
    assert " BODY: two" in printed
    assert "NOT PRINT BODY" in tool.ok("printMsg", "-t", tool.topic, "-d", "false", "-s", "TagA")
    assert tool.json("printMsg", "-t", tool.topic, "-s", "TagB") == []
    in_utf_16 = [row["body"] for row in tool.json("printMsg", "-t", tool.topic, "-c", "UTF-16BE")]
    assert in_utf_16 == [text.encode().decode("utf-16-be", "replace") for text in ("one", "two")]
    assert [row["body"] for row in tool.json("printMsg", "-t", tool.topic, "-d", "false")] == [None, None]
    entries = tool.json("queryCq", "-t", tool.topic, "-q", "0", "-i", "0", "-c", "5")
    assert [entry["tagsCode"] for entry in entries["queueData"]] == [2598919, 2598919]
    assert "max: 2, min: 0\n" in tool.ok("queryCq", "-t", tool.topic, "-q", "0", "-i", "0", "-b", broker.addr)


def test_a_broker_name_without_a_queue_reads_all_queues_of_the_broker(tool: Tool) -> None:
    for number in ("0", "1"):
        body = f"in queue {number}"
        tool.ok("sendMessage", "-t", tool.topic, "-p", body, "-b", "broker-a", "-i", number)
    command = ("consumeMessage", "-t", tool.topic, "-b")
    out = tool.ok(*command, "broker-a")
    assert [out.count(f"BODY: in queue {number}") for number in (0, 1)] == [1, 1]
    assert "in queue 0" not in tool.ok(*command, "broker-a", "-i", "1")
    assert "The broker[nobody] not exist" in tool.fails(*command, "nobody")


def test_offsets_are_reset_skipped_and_cloned(tool: Tool, broker: Any) -> None:
    send(tool, "one", "two", "three")
    tool.ok("updateSubGroup", "-b", broker.addr, "-g", "Lag")
    out = tool.ok("skipAccumulatedMessage", "-g", "Lag", "-t", tool.topic)
    assert [line.split() for line in out.splitlines()] == [
        ["#brokerName", "#queueId", "#offset"],
        ["broker-a", "0", "3"],
        ["broker-a", "1", "0"],
    ]
    first = tool.ok("resetOffsetByTime", "-g", "Lag", "-t", tool.topic, "-s", "0").splitlines()
    assert first[0] == (
        f"start reset consumer offset by specified, group[Lag], topic[{tool.topic}], force[true],"
        " timestamp(string)[0], timestamp(long)[0]"
    )
    assert first[2].split() == ["broker-a", "0", "0"]
    (found,) = tool.json(
        "queryMsgByOffset", "-t", tool.topic, "-b", "broker-a", "-i", "0", "-o", "0", flag="-O"
    )
    (track,) = found["messageTracks"]
    assert (track["consumerGroup"], track["trackType"]) == ("Lag", "UNKNOWN")
    assert track["exceptionDesc"] == "no route of its retry topic: perhaps it never had a member"
    (one,) = tool.json(
        *("resetOffsetByTime", "-g", "Lag", "-t", tool.topic, "-s", "0"),
        *("-b", broker.addr, "-q", "0", "-o", "2"),
        flag="-O",
    )
    assert (one["queueId"], one["offset"]) == (0, 2)
    code, out, err = tool.run("resetOffsetByTime", "-g", "NoSuchGroup", "-t", tool.topic, "-s", "0")
    assert (code, out, "NoSuchGroup" in err) == (1, "", True)
    assert "success" in tool.ok("cloneGroupOffset", "-s", "Lag", "-d", "Twin", "-t", tool.topic, "-o", "true")
    stats = tool.json("brokerConsumeStats", "-b", broker.addr, flag="-O")
    assert {(row["group"], row["consumerOffset"]) for row in stats["queues"] if row["queueId"] == 0} >= {("Lag", 2)}  # fmt: skip  # noqa: E501
    assert "\nDiff Total: " in tool.ok("brokerConsumeStats", "-b", broker.addr, "-l", "1")
    rows = tool.json("statsAll", "-t", tool.topic)
    assert {row["group"]: row["accumulation"] for row in rows} == {"Lag": 1, "Twin": 1}
    assert tool.ok("statsAll", "-t", tool.topic).startswith("#Topic ")


def test_an_id_from_a_producer_without_its_topic_is_told_from_the_other_kind(tool: Tool) -> None:
    (sent,) = send(tool, "one")
    assert "one" in tool.ok("queryMsgById", "-i", sent["msgId"], "-t", tool.topic)
    err = tool.fails("queryMsgById", "-i", sent["msgId"])
    assert "-t TOPIC" in err
    assert "producer" in err


@pytest.mark.parametrize("subcommand", ["wipeWritePerm", "addWritePerm"])
def test_an_address_where_a_broker_name_belongs_is_a_failure(
    subcommand: str, tool: Tool, broker: Any
) -> None:
    err = tool.fails(subcommand, "-b", broker.addr)
    assert f"{broker.addr!r}" in err
    assert "clusterList" in err


def test_a_reset_to_minus_one_is_to_the_end(tool: Tool, broker: Any) -> None:
    send(tool, "one", "two")
    tool.ok("updateSubGroup", "-b", broker.addr, "-g", "Behind")
    tool.ok("resetOffsetByTime", "-g", "Behind", "-t", tool.topic, "-s", "0")
    lines = tool.ok("resetOffsetByTime", "-g", "Behind", "-t", tool.topic, "-s", "-1").splitlines()
    assert lines[0].endswith(" timestamp(string)[-1], timestamp(long)[-1]")
    assert [line.split()[1:] for line in lines[2:]] == [["0", "2"], ["1", "0"]]
    assert "'-2'" in tool.fails("resetOffsetByTime", "-g", "Behind", "-t", tool.topic, "-s", "-2")


@pytest.mark.parametrize(
    ("members", "passed", "kind"),
    [
        ({}, False, "NOT_CONSUME_YET"),
        ({}, True, "CONSUMED"),
        (
            {"subscriptions": {"T": SubscriptionData(topic="T", sub_string="A", tags=("A",))}},
            True,
            "CONSUMED",
        ),
        (
            {"subscriptions": {"T": SubscriptionData(topic="T", sub_string="B", tags=("B",))}},
            True,
            "CONSUMED_BUT_FILTERED",
        ),
        ({"message_model": "BROADCASTING"}, False, "CONSUME_BROADCASTING"),
        ({"consume_type": "CONSUME_ACTIVELY"}, False, "PULL"),
    ],
)
def test_what_became_of_a_message_in_a_group(members: dict[str, Any], passed: bool, kind: str) -> None:
    queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
    message = ReceivedMessage(
        topic="T",
        body=b"",
        message_id="",
        offset_message_id="",
        queue=queue,
        queue_offset=0,
        commit_log_offset=0,
        born_ms=0,
        store_ms=0,
        reconsume_times=0,
        flag=0,
        sys_flag=0,
        born_host="",
        store_host="",
        properties={"TAGS": "A"},
    )
    assert kind_of(ConsumerConnection(**members), message, passed=passed) == kind


@pytest.mark.slow
def test_members_and_producers_are_shown(tool: Tool, broker: Any, eventually: Callable[..., None]) -> None:
    config = divide_periods(ClientConfig(nameservers=(tool.namesrv,)), 10)
    with Client(config) as started:
        sent = started.producer("pg").send(Message(topic=tool.topic, body=b"x"))
        seen: list[int] = []
        group = ConsumerConfig(group="seen", consume_from=ConsumeFrom.FIRST_OFFSET)
        started.consume(group, {tool.topic: "*"}, lambda batch: seen.append(len(batch)))
        eventually(lambda: bool(seen), "consumed")
        client_id = started.core.client_id
        eventually(lambda: client_id in tool.run("producer", "-b", broker.addr)[1], "producer known")
        assert "producer group (pg) instance : " in tool.ok("producer", "-b", broker.addr)
        assert tool.ok("producerConnection", "-g", "pg", "-t", tool.topic).startswith(f"0001  {client_id}")
        assert "nobody" in tool.fails("producerConnection", "-g", "nobody", "-t", tool.topic)
        status = tool.ok("consumerStatus", "-g", "seen")
        assert client_id in status
        assert "Same subscription in the same group of consumer" in status
        assert "mqTable" in tool.json("consumerStatus", "-g", "seen")[client_id]
        (row,) = [row for row in tool.json("consumerProgress") if row["group"] == "seen"]
        assert (row["count"], row["consumeType"], row["messageModel"]) == (
            1,
            "CONSUME_PASSIVELY",
            "CLUSTERING",
        )
        line = next(line for line in tool.ok("consumerProgress").splitlines() if line.startswith("seen "))
        assert line.split()[1:5] == ["1", "V5_3_3", "PUSH", "CLUSTERING"]
        query = ("queryMsgById", "-i", sent.offset_message_id)
        track = "MessageTrack [consumerGroup=seen, trackType={}, exceptionDesc={}]"
        eventually(lambda: track.format("CONSUMED", "null") in tool.ok(*query), "the offset is at the broker")
        # The members of the group are connected, so the broker notifies them of the reset. The members then
        # continue at the new offsets.
        tool.ok("resetOffsetByTime", "-g", "seen", "-t", tool.topic, "-s", "0")
        eventually(lambda: len(seen) == 2, "consumed again")
    assert "'seen'" in tool.fails("consumerStatus", "-g", "seen")
    assert track.format("NOT_ONLINE", "no member is online") in tool.ok(*query)
    (found,) = tool.json(*query)
    assert found["messageTracks"] == [
        {"consumerGroup": "seen", "trackType": "NOT_ONLINE", "exceptionDesc": "no member is online"}
    ]


def test_a_queue_that_two_members_have_is_named() -> None:
    queue, other = '{"queueId":0}', '{"queueId":1}'
    assert held_twice([{"mqTable": {queue: {}}}, {"mqTable": {other: {}}}, {}]) == []
    assert held_twice([{"mqTable": {queue: {}, other: {}}}, {"mqTable": {other: {}}}]) == [other]


def test_topics_and_brokers_are_changed(tool: Tool, broker: Any, eventually: Callable[..., None]) -> None:
    out = tool.ok("updateTopicPerm", "-b", broker.addr, "-t", tool.topic, "-p", "4")
    assert out.startswith(
        f"update topic perm from 6 to 4 in {broker.addr} success.\nTopicConfig [topicName={tool.topic},"
    )
    eventually(lambda: '"perm":4' in tool.ok("topicRoute", "-t", tool.topic), "routed")
    assert tool.ok("updateTopicPerm", "-c", "DefaultCluster", "-t", tool.topic, "-p", "4") == (
        "new perm equals to the old one!\n"
    )
    assert "allowed 2|4|6" in tool.fails("updateTopicPerm", "-b", broker.addr, "-t", tool.topic, "-p", "7")
    assert "no master in cluster" in tool.fails(
        *("updateTopicPerm", "-c", "NoCluster", "-t", tool.topic, "-p", "6")
    )
    assert tool.ok("topicClusterList", "-t", tool.topic) == "DefaultCluster\n"
    assert tool.json("topicClusterList", "-t", tool.topic) == ["DefaultCluster"]
    conf = ("updateOrderConf", "-t", tool.topic, "-m")
    assert tool.ok(*conf, "put", "-v", "broker-a:2") == f"update orderConf success. topic=[{tool.topic}], orderConf=[broker-a:2]\n"  # fmt: skip  # noqa: E501
    assert tool.ok(*conf, "get") == f"get orderConf success. topic=[{tool.topic}], orderConf=[broker-a:2] \n"
    assert tool.ok(*conf, "delete") == f"delete orderConf success. topic=[{tool.topic}]\n"
    assert "no order configuration" in tool.fails(*conf, "get")
    assert "allowed put|get|delete" in tool.fails(*conf, "drop")
    changed = tool.ok("updateBrokerConfig", "-b", broker.addr, "-k", "traceOn", "-v", "false")
    assert changed == f"update broker config success, {broker.addr}\n"
    assert tool.json("getBrokerConfig", "-b", broker.addr)[broker.addr]["traceOn"] == "false"
    assert "black list" in tool.fails("updateBrokerConfig", "-b", broker.addr, "-k", "brokerName", "-v", "x")
    assert "line break" in tool.fails("updateBrokerConfig", "-b", broker.addr, "-k", "a=b", "-v", "x")
    for name in ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"):
        for target in (("-b", broker.addr), ("-c", "DefaultCluster"), ()):
            assert tool.ok(name, *target) == "success\n"
        (addr,) = free_addresses(1)  # no server listens at this address
        code, out, err = tool.run(name, "-b", addr)
        assert (code, out, addr in err) == (1, "false\n", True)


def test_a_member_consumes_a_message_on_demand(
    tool: Tool, broker: Any, eventually: Callable[..., None]
) -> None:
    (sent,) = send(tool, "again")
    config = divide_periods(ClientConfig(nameservers=(tool.namesrv,)), 10)
    with Client(config) as started:
        seen: list[bytes] = []
        group = ConsumerConfig(group="direct", consume_from=ConsumeFrom.FIRST_OFFSET)
        started.consume(
            group, {tool.topic: "*"}, lambda batch: seen.extend(message.body for message in batch)
        )
        eventually(lambda: seen == [b"again"], "consumed")
        member = ("-g", "direct", "-d", started.core.client_id)
        for number, (command, message_id) in enumerate(
            (("queryMsgById", "offsetMsgId"), ("queryMsgByUniqueKey", "msgId")), 2
        ):
            out = tool.ok(command, "-t", tool.topic, "-i", sent[message_id], *member)
            assert "consumeResult=CR_SUCCESS, remark=" in out
            assert seen == [b"again"] * number
        progress = ("consumerProgress", "-g", "direct", "-t", tool.topic)
        rows = [line.split() for line in tool.ok(*progress, "-s", "true").splitlines()[1:3]]
        host = started.core.client_id.partition("@")[0]
        assert [row[5] for row in rows] == [host] * 2
        shown = tool.json(*progress, "-s", "true", "-c", "DefaultCluster")
        assert {(row["topic"], row["clientIp"]) for row in shown["queues"]} == {(tool.topic, host)}
        assert "'Elsewhere'" in tool.fails(*progress, "-c", "Elsewhere")
    assert "give -g" in tool.fails("consumerProgress", "-s", "true")
    assert "belong together" in tool.fails("queryMsgById", "-i", sent["offsetMsgId"], "-g", "direct")
    # The commit log has no message at the position that this id contains, so mqadmin searches for a message
    # with this unique id.
    assert "Message Body:" in tool.ok("queryMsgById", "-t", tool.topic, "-i", sent["msgId"])


def test_bodies_are_shown_in_the_encoding_named(tool: Tool) -> None:
    (sent,) = send(tool, "gr\u00fcn")
    by_id = ("queryMsgById", "-i", sent["offsetMsgId"])
    assert f"{'Message Body:':<20} gr\u00fcn\n" in tool.ok(*by_id)
    assert f"{'Message Body:':<20} gr\u00c3\u00bcn\n" in tool.ok(*by_id, "-f", "ISO-8859-1")
    offset = ("queryMsgByOffset", "-t", tool.topic, "-b", "broker-a", "-i", "0", "-o", "0")
    assert tool.json(*offset, "-f", "GBK", flag="-O")[0]["body"] == "gr\u00fcn".encode().decode(
        "GBK", "replace"
    )
    assert "bodyFormat='none' is no known text encoding" in tool.fails(*by_id, "-f", "none")


def test_a_cluster_chooses_among_the_brokers_of_a_topic(tool: Tool, broker: Any) -> None:
    (sent,) = send(tool, "one")
    tool.ok("updateSubGroup", "-b", broker.addr, "-g", "Chosen")
    for argv in (
        ("queryMsgByKey", "-t", tool.topic, "-k", "one"),
        ("queryMsgByUniqueKey", "-t", tool.topic, "-i", sent["msgId"]),
        ("resetOffsetByTime", "-t", tool.topic, "-g", "Chosen", "-s", "0"),
        ("skipAccumulatedMessage", "-t", tool.topic, "-g", "Chosen"),
    ):
        tool.ok(*argv, "-c", "DefaultCluster")
        assert f"no master in cluster 'Elsewhere' has topic '{tool.topic}'" in tool.fails(*argv, "-c", "Elsewhere")  # fmt: skip  # noqa: E501


def test_settings_of_groups_that_a_broker_drops_are_named(tool: Tool, broker: Any) -> None:
    for argv, name in (
        (("-p", '{"type":"EXPONENTIAL"}'), "groupRetryPolicy"),
        (("--attributes", "+a=b"), "attributes"),
    ):
        code, out, err = tool.run("updateSubGroup", "-b", broker.addr, "-g", "Dropped", *argv)
        assert (code, f"did not keep {name}: it does not know this setting" in err) == (1, True)
        assert "SubscriptionGroupConfig{" in out
    policy = tool.run("updateSubGroup", "-b", broker.addr, "-g", "Dropped", "-p", '{"type":"LINEAR"}')[2]
    assert "allowed types EXPONENTIAL|CUSTOMIZED" in policy


def test_the_time_limit_of_a_question_is_the_one_given(new_peer: Callable[..., Any], nameserver: Any) -> None:
    silent = new_peer(lambda request: None)
    begin = time.monotonic()
    err = Tool(nameserver.addr).fails("brokerConsumeStats", "-b", silent.addr, "-t", "300")
    assert "no answer within the deadline" in err
    assert time.monotonic() - begin < 4


def test_each_of_them_prints_json() -> None:
    assert [name for name in ASKED if "output" not in {o.long for o in COMMANDS[name].all_options}] == []


@pytest.mark.slow
def test_what_was_changed_is_told_as_json(tool: Tool, broker: Any, eventually: Callable[..., None]) -> None:
    at_broker = ("-b", broker.addr)
    made = tool.json("updateSubGroup", *at_broker, "-g", "Json", "-r", "3", flag="-O")
    assert (made["brokers"], made["group"]["retryMaxTimes"]) == ([broker.addr], 3)
    (queue, other) = tool.json("skipAccumulatedMessage", "-g", "Json", "-t", tool.topic)
    assert [(one["brokerName"], one["queueId"], one["offset"]) for one in (queue, other)] == [
        ("broker-a", 0, 0),
        ("broker-a", 1, 0),
    ]
    clone = ("cloneGroupOffset", "-s", "Json", "-d", "JsonTwin", "-t", tool.topic)
    assert tool.json(*clone, flag="-O") == {
        "srcGroup": "Json",
        "destGroup": "JsonTwin",
        "topic": tool.topic,
        "brokers": [broker.addr],
    }
    removed = tool.json("deleteSubGroup", *at_broker, "-g", "Json")
    assert removed == {"group": "Json", "brokers": [broker.addr]}
    changed = tool.json("updateBrokerConfig", *at_broker, "-k", "traceOn", "-v", "true")
    assert changed == {"key": "traceOn", "value": "true", "brokers": [broker.addr]}
    for name in ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"):
        assert tool.json(name, *at_broker) == {broker.addr: True}
        code, out, _ = tool.run(name, "-b", "127.0.0.1:1", "-o", "json")
        assert (code, json.loads(out)) == (1, {"127.0.0.1:1": False})
    perm = ("updateTopicPerm", *at_broker, "-t", tool.topic, "-p")
    change = {"brokerName": "broker-a", "brokerAddr": broker.addr}
    assert tool.json(*perm, "4") == [change | {"from": 6, "to": 4}]
    eventually(lambda: '"perm":4' in tool.ok("topicRoute", "-t", tool.topic), "routed")
    assert tool.json(*perm, "4") == [change | {"from": 4, "to": 4}]
    order = ("updateOrderConf", "-t", tool.topic, "-m")
    known = {"topic": tool.topic, "orderConf": "broker-a:2"}
    assert tool.json(*order, "put", "-v", "broker-a:2") == known
    assert tool.json(*order, "get") == known
    assert tool.json(*order, "delete") == known | {"orderConf": None}
    config = divide_periods(ClientConfig(nameservers=(tool.namesrv,)), 10)
    with Client(config) as started:
        tool.ok(*perm, "6")
        eventually(lambda: '"perm":6' in tool.ok("topicRoute", "-t", tool.topic), "routed")
        started.producer("json-pg").send(Message(topic=tool.topic, body=b"x"))
        client_id = started.core.client_id
        eventually(lambda: client_id in tool.run("producer", *at_broker)[1], "producer known")
        (member,) = tool.json("producerConnection", "-g", "json-pg", "-t", tool.topic)
        assert (member["clientId"], member["clientAddr"][:10]) == (client_id, "127.0.0.1:")
        listed = tool.json("producer", *at_broker)["json-pg"]
        assert [one["clientId"] for one in listed] == [client_id]
