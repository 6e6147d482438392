"""mqadmin reports success only for changes that were made at every server, and changes nothing else.

mqadmin must check this, because RocketMQ's servers answer success for some changes that they did not make.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from routekeeper.client.blocking import Client
from routekeeper.client.config import ClientConfig
from routekeeper.client.mqadmin.context import Context
from routekeeper.client.mqadmin.targets import masters_of_cluster
from routekeeper.remoting.bodies import KVTable, MessageQueue, QueueOffsets
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.properties import format_properties
from routekeeper.remoting.route import (
    BrokerData,
    ClusterInfo,
    QueueData,
    RouteDialect,
    TopicRouteData,
    encode_cluster_info,
    encode_route,
)
from tests.client.mqadmin import mqadmin

NAMES: Final = ("broker-a", "broker-b")


class Servers:
    """Two scripted brokers of cluster C with topic T. The server broker-a is the nameserver, too.

    Both brokers answer success to every change, but change nothing.

    Attributes:
        masterless: Name of the broker that has only a slave.
        settings: Settings of the nameserver and of both brokers.
        version: Version number of both brokers.
        topic: Settings of topic T at both brokers. The nameserver always shows permission 4.
        offsets: Table of the groups' offsets, by broker name.
    """

    def __init__(self, new_peer: Callable[[], Any]) -> None:
        self.peers = {name: new_peer() for name in NAMES}
        self.masterless = ""
        self.settings: dict[str, str] = {}
        self.version = 407
        self.topic: dict[str, Any] = {}
        self.offsets: dict[str, str] = dict.fromkeys(NAMES, "{}")
        for name, peer in self.peers.items():
            peer.answer = lambda request, name=name: self.answer(name, request)

    def answer(self, name: str, request: RemotingCommand) -> RemotingCommand:
        return request.reply(body=self.body(name, request))

    def body(self, name: str, request: RemotingCommand) -> bytes:
        brokers = {
            each: BrokerData(
                cluster="C", broker_name=each, broker_addrs={int(each == self.masterless): peer.addr}
            )
            for each, peer in self.peers.items()
        }
        match request.code:
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                info = ClusterInfo(cluster_addr_table={"C": NAMES}, broker_addr_table=brokers)
                return encode_cluster_info(info)
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                queues = tuple(
                    QueueData(broker_name=each, read_queue_nums=4, write_queue_nums=4, perm=4)
                    for each in NAMES
                )
                route = TopicRouteData(queue_datas=queues, broker_datas=tuple(brokers.values()))
                return encode_route(route, RouteDialect.UNQUOTED)
            case RequestCode.GET_BROKER_CONFIG | RequestCode.GET_NAMESRV_CONFIG:
                return format_properties(self.settings).encode()
            case RequestCode.GET_BROKER_RUNTIME_INFO:
                return KVTable(table={"brokerVersion": str(self.version)}).encode()
            case RequestCode.GET_ALL_TOPIC_CONFIG:
                return orjson.dumps({"topicConfigTable": {"T": self.topic}})
            case RequestCode.GET_ALL_CONSUMER_OFFSET:
                return f'{{"dataVersion":{{}},"offsetTable":{self.offsets[name]}}}'.encode()
            case RequestCode.INVOKE_BROKER_TO_RESET_OFFSET:
                queue = MessageQueue(topic="T", broker_name=name, queue_id=1)
                return QueueOffsets(offsets={queue: 5}).encode()
        return b"{}"

    def addr(self, name: str = "broker-b") -> str:
        return str(self.peers[name].addr)

    def sent(self, code: int) -> list[dict[str, str]]:
        """Return the arguments of all requests with this code."""
        return [
            dict(request.ext_fields)
            for peer in self.peers.values()
            for request in peer.requests
            if request.code == code
        ]

    def run(self, *argv: str) -> tuple[int, str, str]:
        return mqadmin(*argv, namesrv=self.addr("broker-a"))


@pytest.fixture
def servers(new_peer: Any) -> Servers:
    return Servers(new_peer)


# resetOffsetByTime ---------------------------------------------------------------------------------


RESET: Final = ("resetOffsetByTime", "-g", "G", "-t", "T", "-s")


@pytest.mark.parametrize(
    ("version", "setting"), [(407, None), (413, None), (435, "false")], ids=["4.9.7", "5.0.0", "switched off"]
)
def test_a_broker_that_would_reset_every_queue_is_not_asked_to_reset_one(
    version: int, setting: str | None, servers: Servers
) -> None:
    servers.version = version
    if setting is not None:
        servers.settings["useServerSideResetOffset"] = setting
    code, out, err = servers.run(*RESET, "0", "-b", servers.addr(), "-q", "1")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert f"nothing was reset: broker {servers.addr()} would ignore -q" in err
    assert servers.sent(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET) == []


@pytest.mark.parametrize("setting", [None, "true"], ids=["RouteKeeper", "RocketMQ 5"])
def test_one_queue_is_reset_at_a_broker_that_obeys_the_queue_id(
    setting: str | None, servers: Servers
) -> None:
    servers.version = 479
    if setting is not None:
        servers.settings["useServerSideResetOffset"] = setting
    code, _, err = servers.run(*RESET, "0", "-b", servers.addr(), "-q", "1")
    assert (code, err) == (0, "")
    (asked,) = servers.sent(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
    assert asked["queueId"] == "1"


def test_a_reset_to_now_is_to_the_end_of_each_queue(servers: Servers) -> None:
    """The command must not send the present time: a 4.9 broker would then reset to the last message."""
    code, out, err = servers.run(*RESET, "now")
    assert (code, err) == (0, "")
    assert "timestamp(string)[now], timestamp(long)[-1]" in out
    asked = servers.sent(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
    assert [one["timestamp"] for one in asked] == ["-1", "-1"]


@pytest.mark.parametrize("text", ["9" * 20, "9" * 5000, "2026-01-01#00:00:00:" + "9" * 20])
def test_a_time_beyond_64_bits_is_refused(text: str, servers: Servers) -> None:
    code, _, err = servers.run(*RESET, text)
    assert (code, err.count("\n")) == (1, 1)
    assert "allowed -1|now|currentTimeMillis|yyyy-MM-dd#HH:mm:ss:SSS" in err
    assert servers.sent(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET) == []


# updateTopicPerm and updateTopic -------------------------------------------------------------------


ORDERED: Final = {
    "topicName": "T",
    "readQueueNums": 3,
    "writeQueueNums": 2,
    "perm": 6,
    "topicSysFlag": 1,
    "order": True,
    "attributes": {"message.type": "FIFO"},
}
PERM: Final = ("updateTopicPerm", "-t", "T", "-p")


def test_a_permission_is_compared_with_the_brokers_and_keeps_all_other_settings(servers: Servers) -> None:
    servers.topic = ORDERED
    code, out, err = servers.run(*PERM, "4", "-b", servers.addr())
    assert (code, err) == (0, "")
    first, second = out.splitlines()
    assert first == f"update topic perm from 6 to 4 in {servers.addr()} success."
    assert "perm=R--," in second
    assert "order=true," in second
    (asked,) = servers.sent(RequestCode.UPDATE_AND_CREATE_TOPIC)
    names = ("topic", "readQueueNums", "writeQueueNums", "perm", "topicSysFlag", "order")
    assert [asked[name] for name in names] == ["T", "3", "2", "4", "1", "true"]
    assert not asked.get("attributes")  # without attributes in the request, the broker keeps all of them
    assert servers.run(*PERM, "6", "-b", servers.addr()) == (0, "new perm equals to the old one!\n", "")
    assert len(servers.sent(RequestCode.UPDATE_AND_CREATE_TOPIC)) == 1


def test_a_broker_that_does_not_have_the_topic_gets_no_permission(servers: Servers) -> None:
    code, out, err = servers.run("updateTopicPerm", "-t", "Other", "-p", "4", "-b", servers.addr())
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert f"broker {servers.addr()}: it does not have topic 'Other'" in err
    assert servers.sent(RequestCode.UPDATE_AND_CREATE_TOPIC) == []


def test_a_permission_at_one_broker_needs_no_other_broker(servers: Servers) -> None:
    servers.topic, servers.masterless = ORDERED, "broker-b"
    code, _, err = servers.run(*PERM, "4", "-b", servers.addr("broker-a"))
    assert (code, err) == (0, "")
    code, _, err = servers.run(*PERM, "4", "-b", servers.addr())
    assert code == 1
    assert "broker not exit or broker is not master" in err


def test_attributes_that_a_broker_drops_are_no_success(servers: Servers) -> None:
    servers.topic = {"topicName": "T", "perm": 6}
    made = ("updateTopic", "-t", "T", "-a", "+message.type=FIFO")
    for target in (("-b", servers.addr()), ("-c", "C")):
        code, out, err = servers.run(*made, *target)
        assert (code, out) == (1, "")
        assert f"broker {servers.addr()} stored the topic without the attributes" in err
    servers.topic = ORDERED
    assert servers.run(*made, "-c", "C")[0] == 0


# Settings ------------------------------------------------------------------------------------------


def both_kinds(servers: Servers) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return ("updateBrokerConfig", "-b", servers.addr()), ("updateNamesrvConfig",)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("traceOff", "true", "ignored the change, because it has no setting 'traceOff'"),
        ("fileReservedTime", "many", "ignored the value 'many': fileReservedTime is '72'"),
    ],
    ids=["unknown key", "unreadable value"],
)
def test_a_setting_that_a_server_ignores_is_no_success(
    key: str, value: str, reason: str, servers: Servers
) -> None:
    servers.settings = {"traceOn": "true", "fileReservedTime": "72"}
    for command in both_kinds(servers):
        code, out, err = servers.run(*command, "-k", key, "-v", value)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert reason in err


@pytest.mark.parametrize(("key", "value"), [("traceOn", "TRUE"), ("fileReservedTime", "072")])
def test_a_server_may_write_a_value_in_its_own_form(key: str, value: str, servers: Servers) -> None:
    servers.settings = {"traceOn": "true", "fileReservedTime": "72"}
    for command in both_kinds(servers):
        code, out, err = servers.run(*command, "-k", key, "-v", value)
        assert (code, err) == (0, "")
        assert "success" in out


def test_a_value_changes_no_second_setting(servers: Servers) -> None:
    servers.settings = {"traceOn": "true"}
    for command in both_kinds(servers):
        for value in ("true\nfileReservedTime=1", "true\rfileReservedTime=1"):
            code, _, err = servers.run(*command, "-k", "traceOn", "-v", value)
            assert (code, "line break" in err) == (1, True)
    assert servers.sent(RequestCode.UPDATE_BROKER_CONFIG) == []
    assert servers.sent(RequestCode.UPDATE_NAMESRV_CONFIG) == []


@pytest.mark.parametrize(("word", "count"), [("false", 1), ("true", 2)])
def test_slaves_are_changed_only_if_asked_for(word: str, count: int, servers: Servers) -> None:
    servers.settings, servers.masterless = {"traceOn": "true"}, "broker-b"
    servers.run("updateBrokerConfig", "-c", "C", "-a", word, "-k", "traceOn", "-v", "true")
    assert len(servers.sent(RequestCode.UPDATE_BROKER_CONFIG)) == count


# cloneGroupOffset ----------------------------------------------------------------------------------


CLONE: Final = ("cloneGroupOffset", "-s", "S", "-d", "D", "-t", "T")


def test_offsets_of_a_group_without_offsets_are_not_cloned(servers: Servers) -> None:
    code, out, err = servers.run(*CLONE)
    assert (code, out) == (1, "")
    reasons = [f"broker {servers.addr(name)}: group 'S' has no offsets of topic 'T'" for name in NAMES]
    assert err.splitlines() == [f"mqadmin cloneGroupOffset: {reason}" for reason in reasons]


def test_a_broker_without_offsets_of_the_group_is_named(servers: Servers) -> None:
    servers.offsets["broker-a"] = '{"T@S":{0:3,1:0},"T@D":{0:3,1:0},"T2@S":{}}'
    code, out, err = servers.run(*CLONE)
    assert (code, "clone group offset success." in out) == (0, True)
    assert f"WARNING: broker {servers.addr()}: group 'S' has no offsets of topic 'T'" in err
    _, out, _ = servers.run(*CLONE, "-O", "json")
    assert json.loads(out)["brokers"] == [servers.addr("broker-a")]


@pytest.mark.parametrize(
    "target",
    ["", ',"T@D":{0:3}', ',"T@D":{0:30,1:40}', ',"T@D":{0:3,1:4}', ',"T@D":{0:0,1:3,2:5}'],
    ids=["nothing", "a part", "other offsets", "one other offset", "more queues"],
)
def test_offsets_that_a_broker_did_not_copy_are_no_success(target: str, servers: Servers) -> None:
    servers.offsets = dict.fromkeys(NAMES, f'{{"T@S":{{0:3,1:0}}{target}}}')
    code, out, err = servers.run(*CLONE)
    assert (code, out, err.count("\n")) == (1, "", 2)
    assert "copied nothing" in err
    assert "-o true" in err


def test_offsets_are_cloned_over_old_ones_while_the_source_group_runs(servers: Servers) -> None:
    def clone(name: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.CLONE_GROUP_OFFSET:
            servers.offsets[name] = '{"T@S":{0:309,1:400},"T@D":{0:305,1:400}}'
        return servers.answer(name, request)

    servers.offsets = dict.fromkeys(NAMES, '{"T@S":{0:300,1:400},"T@D":{0:3,1:4}}')
    for name, peer in servers.peers.items():
        peer.answer = lambda request, name=name: clone(name, request)
    code, out, err = servers.run(*CLONE)
    assert (code, "clone group offset success." in out, err) == (0, True, "")


# Brokers without a master --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argv",
    [
        ("updateTopic", "-t", "T"),
        ("updateTopic", "-t", "T", "-o", "true"),
        ("updateTopicList", "-f", "TOPICS"),
        ("updateSubGroup", "-g", "G"),
        ("deleteSubGroup", "-g", "G"),
        ("deleteTopic", "-t", "T"),
        ("updateBrokerConfig", "-k", "traceOn", "-v", "true"),
        ("updateBrokerConfig", "-a", "true", "-k", "traceOn", "-v", "true"),
        ("cleanExpiredCQ",),
        ("updateAclConfig", "-a", "key", "-s", "secret"),
        ("clusterAclConfigVersion",),
        ("exportConfigs",),
        ("exportMetadata",),
        ("exportMetrics",),
    ],
    ids=" ".join,
)
def test_a_broker_without_a_master_is_named_and_the_cluster_is_not_done(
    argv: tuple[str, ...], servers: Servers, tmp_path: Path
) -> None:
    servers.settings, servers.topic = {"traceOn": "true"}, {"topicName": "T"}
    servers.masterless = "broker-b"
    file = tmp_path / "topics.json"
    file.write_text('[{"topicName": "T"}]')
    words = [str(file) if word == "TOPICS" else word for word in argv]
    code, out, err = servers.run(words[0], "-c", "C", *words[1:])
    assert code == 1
    if argv[0] in ("deleteTopic", "updateAclConfig") or argv[1:3] == ("-a", "true"):
        assert "broker broker-b has no master; only its slaves were asked" in err
        assert "left out" not in err
    else:
        assert "broker broker-b has no master and is left out" in err
    if argv[0].startswith(("export", "clean", "cluster")):
        assert "success" not in out
    if argv[0].startswith("export"):
        assert out == ""
    assert servers.sent(RequestCode.PUT_KV_CONFIG) == []
    assert servers.sent(RequestCode.DELETE_TOPIC_IN_NAMESRV) == []


def test_a_broker_without_addresses_is_left_out_together_with_its_slaves() -> None:
    err = io.StringIO()
    with Client(ClientConfig(nameservers=("127.0.0.1:1",))) as client:
        context = Context(name="x", nameservers=(), client=client, out=io.StringIO(), err=err)
        gone = BrokerData(cluster="C", broker_name="gone", broker_addrs={})
        info = ClusterInfo(cluster_addr_table={"C": ("gone", "unknown")}, broker_addr_table={"gone": gone})
        assert masters_of_cluster(context, info, "C", with_slaves=True) == {}
    assert err.getvalue().count("has no master and is left out") == 2


# Odd values and long runs --------------------------------------------------------------------------


def test_the_text_of_a_list_in_place_of_its_file_is_one_line(servers: Servers) -> None:
    text = json.dumps([{"topicName": f"Topic{number}"} for number in range(99)])
    code, _, err = servers.run("updateTopicList", "-c", "C", "-f", text)
    assert (code, err.count("\n")) == (1, 1)
    assert "File name too long" in err


def test_a_rocketmq_home_that_cannot_be_looked_into_is_like_none(servers: Servers) -> None:
    code, _, err = mqadmin("getNamesrvConfig", namesrv=servers.addr("broker-a"), ROCKETMQ_HOME="x" * 5000)
    assert (code, err) == (0, "")


@pytest.mark.parametrize(
    ("argv", "body"),
    [
        (("brokerConsumeStats", "-b", "BROKER"), b'{"consumeStatsList":5}'),
        (("brokerConsumeStats", "-b", "BROKER"), b'{"consumeStatsList":[{"G":5}]}'),
        (("producer", "-b", "BROKER"), b'{"data":{"G":5}}'),
    ],
)
def test_an_answer_of_another_form_is_one_line(
    argv: tuple[str, ...], body: bytes, new_peer: Callable[..., Any]
) -> None:
    peer = new_peer(lambda request: request.reply(body=body))
    code, _, err = mqadmin(*(peer.addr if word == "BROKER" else word for word in argv))
    assert (code, err.count("\n")) == (1, 1)


def test_a_figure_that_is_no_number_is_0(servers: Servers) -> None:
    figures = {"earliestMessageTimeStamp": "nan", "timerReadBehind": "inf", "msgPutTotalTodayNow": "nan"}
    peer = servers.peers["broker-b"]
    peer.answer = lambda request: request.reply(body=KVTable(table=figures).encode())
    for more in ((), ("-m",)):
        code, out, err = servers.run("clusterList", *more)
        assert (code, err) == (0, "")
        assert "nan" not in out


def test_a_program_that_runs_without_end_keeps_only_its_newest_failures() -> None:
    with Client(ClientConfig(nameservers=("127.0.0.1:1",))) as client:
        context = Context(name="x", nameservers=(), client=client, out=io.StringIO(), err=io.StringIO())
        for number in range(5000):
            context.fail(f"failure {number}")
    assert len(context.failures) <= 1000
    assert context.failed == 5000
    assert context.failures[-1] == "failure 4999"
