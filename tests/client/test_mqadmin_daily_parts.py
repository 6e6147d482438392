"""Subcommands for operators' daily work, tested with scripted brokers that fail and without brokers."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from routekeeper.client.blocking import Client
from routekeeper.client.config import ClientConfig
from routekeeper.client.mqadmin.context import Context
from routekeeper.client.mqadmin.ha import status_text
from routekeeper.client.mqadmin.measure import mean_text
from routekeeper.client.mqadmin.message_trace import Trace, Unreadable, decode_traces
from routekeeper.client.mqadmin.monitoring import member_lines, moved_text
from routekeeper.client.mqadmin.targets import ask_together
from routekeeper.client.operation import Operation, Sleep
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.route import BrokerData, ClusterInfo, encode_cluster_info
from tests.client.mqadmin import mqadmin

NAMES = ("broker-a", "broker-b", "broker-c")


class Cluster:
    """Three scripted brokers of one cluster. The first broker is the nameserver, too.

    Attributes:
        answers: Function that makes every broker's answer to a request. By default, the answer is success.
        of_b: Function that makes broker-b's answers. If it is None, ``answers`` makes these answers, too.
    """

    def __init__(self, new_peer: Callable[[], Any]) -> None:
        self.peers = {name: new_peer() for name in NAMES}
        self.answers: Callable[[RemotingCommand], Any] = lambda request: request.reply()
        self.of_b: Callable[[RemotingCommand], Any] | None = None
        for name, peer in self.peers.items():
            peer.answer = lambda request, name=name: self._answer(name, request)

    def _answer(self, name: str, request: RemotingCommand) -> Any:
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            brokers = {
                each: BrokerData(cluster="C", broker_name=each, broker_addrs={0: peer.addr})
                for each, peer in self.peers.items()
            }
            info = ClusterInfo(cluster_addr_table={"C": tuple(NAMES)}, broker_addr_table=brokers)
            return request.reply(body=encode_cluster_info(info))
        if name == "broker-b" and self.of_b is not None:
            return self.of_b(request)
        return self.answers(request)

    def addr(self, name: str) -> str:
        return str(self.peers[name].addr)

    def sent(self, code: int) -> list[RemotingCommand]:
        return [request for peer in self.peers.values() for request in peer.requests if request.code == code]

    def run(self, *argv: str) -> tuple[int, str, str]:
        return mqadmin(*argv, namesrv=self.addr("broker-a"))


@pytest.fixture
def cluster(new_peer: Any) -> Cluster:
    return Cluster(new_peer)


CHANGES = {
    "updateTopicList": (
        ("-f", "FILE"),
        "submit batch of topic config to {} success, please check the result later.",
        "list of 1 topics not stored",
    ),
    "updateAclConfig": (
        ("-a", "key-of-one", "-s", "secret-of-one"),
        "create or update plain access config to {} success.",
        "account not changed",
    ),
    "deleteAclConfig": (
        ("-a", "key-of-one"),
        "delete plain access config account from {} success.",
        "account not deleted",
    ),
    "updateGlobalWhiteAddr": (
        ("-g", "10.0.0.*"),
        "update global white remote addresses to {} success.",
        "white addresses not changed",
    ),
}


def with_topics(request: RemotingCommand) -> RemotingCommand:
    """Answer like a broker that already has topic A, which the topic file of the test names."""
    if request.code == RequestCode.GET_ALL_TOPIC_CONFIG:
        table = {"A": {"topicName": "A", "readQueueNums": 16, "writeQueueNums": 16, "perm": 6}}
        return request.reply(body=json.dumps({"topicConfigTable": table}).encode())
    return request.reply()


@pytest.mark.parametrize("command", CHANGES)
@pytest.mark.parametrize("unknown", [False, True], ids=["refused", "hung-up"])
def test_a_change_goes_on_after_a_broker_that_fails_and_names_it(
    cluster: Cluster, tmp_path: Path, command: str, unknown: bool
) -> None:
    file = tmp_path / "topics.json"
    file.write_text('[{"topicName": "A"}]')
    options, done, failed = CHANGES[command]
    cluster.answers = with_topics
    if unknown:
        code = {"updateTopicList": 18, "updateAclConfig": 50, "deleteAclConfig": 51}.get(command, 53)
        cluster.peers["broker-b"].hang_up.add(code)
    else:
        cluster.of_b = lambda request: request.reply(ResponseCode.NO_PERMISSION, remark="not today")
    code, out, err = cluster.run(command, "-c", "C", *(w.replace("FILE", str(file)) for w in options))
    assert code == 1
    assert out.splitlines() == [done.format(cluster.addr(name)) for name in ("broker-a", "broker-c")]
    addr = cluster.addr("broker-b")
    if unknown:
        begin = (
            f"mqadmin {command}: {failed}, or outcome unknown, at 1 of 3: {addr}: connection to {addr} was"
        )
        assert err.startswith(begin), err
    else:
        assert err == f"mqadmin {command}: {failed} at 1 of 3: {addr}: CODE: 16 DESC: not today\n"
    assert err.count("\n") == 1


def test_a_list_of_which_a_broker_leaves_out_the_changed_ones_is_sent_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    # If one topic of the sent list is unchanged, RocketMQ 5.3 answers success but changes no topic of the
    # list.
    table: dict[str, Any] = {"Old": {"topicName": "Old"}}

    def answer(request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.UPDATE_AND_CREATE_TOPIC_LIST:
            asked = json.loads(request.body)["topicConfigList"]
            if not any(one["topicName"] in table for one in asked):
                table.update({one["topicName"]: one for one in asked})
        if request.code == RequestCode.GET_ALL_TOPIC_CONFIG:
            return request.reply(body=json.dumps({"topicConfigTable": table}).encode())
        return request.reply()

    cluster.answers = answer
    file = tmp_path / "topics.json"
    file.write_text('[{"topicName": "Old"}, {"topicName": "New"}]')
    code, _, err = cluster.run("updateTopicList", "-b", cluster.addr("broker-c"), "-f", str(file))
    assert (code, err, set(table)) == (0, "", {"Old", "New"})
    lists = [json.loads(request.body)["topicConfigList"] for request in cluster.sent(18)]
    assert [[one["topicName"] for one in each] for each in lists] == [["Old", "New"], ["New"]]


def test_a_broker_that_says_success_and_keeps_nothing_is_named(cluster: Cluster, tmp_path: Path) -> None:
    def answer(request: RemotingCommand) -> RemotingCommand:
        return request.reply(body=b"{}")

    cluster.answers = answer
    file = tmp_path / "groups.json"
    file.write_text(json.dumps([{"groupName": f"G{number}"} for number in range(5)]))
    code, out, err = cluster.run("updateSubGroupList", "-b", cluster.addr("broker-c"), "-f", str(file))
    assert (code, out) == (1, "")
    assert err.endswith("it did not store 'G0', 'G1', 'G2' and 2 more, or only in part\n")


def test_attributes_of_a_list_are_edits(cluster: Cluster, tmp_path: Path) -> None:
    def answer(request: RemotingCommand) -> RemotingCommand:
        kept = {"topicName": "A", "attributes": {"message.type": "FIFO"}}
        table = {"A": kept, "B": kept | {"topicName": "B"}}
        return request.reply(body=json.dumps({"topicConfigTable": table}).encode())

    cluster.answers = answer
    addr, file = cluster.addr("broker-c"), tmp_path / "topics.json"
    file.write_text('[{"topicName": "A", "attributes": {"+message.type": "FIFO", "-other": ""}}]')
    assert cluster.run("updateTopicList", "-b", addr, "-f", str(file))[0] == 0
    file.write_text('[{"topicName": "B", "attributes": {"-message.type": ""}}]')
    code, _, err = cluster.run("updateTopicList", "-b", addr, "-f", str(file))
    assert (code, "did not store 'B'" in err) == (1, True)


def test_many_brokers_are_asked_within_one_time(new_peer: Any) -> None:
    waited: list[float] = []

    def ask(place: str, left_s: float) -> Operation[str]:
        waited.append(left_s)
        yield Sleep(min(left_s, 1.2))
        return place

    places = [f"broker-{number}" for number in range(60)]
    with Client(ClientConfig(nameservers=(new_peer().addr,))) as client:
        context = Context(name="x", nameservers=(), client=client, out=io.StringIO(), err=io.StringIO())
        found, failures = ask_together(context, places, ask, within_s=2.0)
    # each broker appears once, in the order of the list
    assert [*found, *failures] == places
    assert found
    assert {str(error) for error in failures.values()} == {"not asked, because the limit of 2 s was over"}
    assert max(waited) <= 2.0


def test_an_export_lacks_no_broker(cluster: Cluster, tmp_path: Path) -> None:
    cluster.answers = lambda request: request.reply(body=b"brokerName=x\n")
    cluster.of_b = lambda request: request.reply(ResponseCode.SYSTEM_ERROR, remark="not today")
    code, out, err = cluster.run("exportConfigs", "-c", "C", "-f", str(tmp_path / "folder"))
    assert (code, out, list(tmp_path.iterdir())) == (1, "", [])
    addr = cluster.addr("broker-b")
    assert err == (
        "mqadmin exportConfigs: nothing exported, because a broker gave no answer at 1 of 3:"
        f" {addr}: CODE: 1 DESC: not today\n"
    )


def test_queues_of_all_brokers_are_added_up(cluster: Cluster) -> None:
    def answer(request: RemotingCommand) -> RemotingCommand:
        topic = {"topicName": "T", "readQueueNums": 2, "writeQueueNums": 3, "perm": 6}
        tables: dict[int, Any] = {
            RequestCode.GET_ALL_TOPIC_CONFIG: {"topicConfigTable": {"T": topic, "Own": topic}},
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: {"topicList": ["Own"]},
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: {
                "subscriptionGroupTable": {"G": {"groupName": "G", "retryQueueNums": 1, "of5": True}}
            },
        }
        return request.reply(body=json.dumps(tables[request.code]).encode())

    cluster.answers = answer
    code, out, _ = cluster.run("exportMetadata", "-c", "C")
    found = json.loads(out)
    assert code == 0
    assert found["topicConfigTable"] == {
        "T": {"topicName": "T", "readQueueNums": 6, "writeQueueNums": 9, "perm": 6}
    }
    assert found["subscriptionGroupTable"]["G"] == {"groupName": "G", "retryQueueNums": 3, "of5": True}


# ACL 1.0 -------------------------------------------------------------------------------------------


def test_an_account_is_sent_as_4_9_reads_it(cluster: Cluster) -> None:
    code, _, _ = cluster.run(
        *("updateAclConfig", "-b", cluster.addr("broker-c"), "-a", "key-of-one", "-s", "secret-of-one"),
        *("-w", "10.0.0.*", "-i", "DENY", "-u", "SUB", "-t", "A=PUB|SUB,B=DENY", "-g", "G=SUB", "-m", "true"),
    )
    (request,) = cluster.sent(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG)
    assert (code, dict(request.ext_fields)) == (
        0,
        {
            "accessKey": "key-of-one",
            "secretKey": "secret-of-one",
            "admin": "true",
            "whiteRemoteAddress": "10.0.0.*",
            "defaultTopicPerm": "DENY",
            "defaultGroupPerm": "SUB",
            "topicPerms": "A=PUB|SUB,B=DENY",
            "groupPerms": "G=SUB",
        },
    )
    cluster.run("updateAclConfig", "-b", cluster.addr("broker-b"), "-a", "key", "-s", "secret")
    *_, request = cluster.sent(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG)
    plain = {"accessKey": "key", "secretKey": "secret", "admin": "false"}
    assert plain in [dict(one.ext_fields) for one in cluster.sent(50)]


def test_accounts_and_versions_are_shown_as_by_4_9(cluster: Cluster) -> None:
    account = {
        "accessKey": "key-of-one",
        "secretKey": "secret-of-one",
        "admin": True,
        "topicPerms": ["A=SUB"],
    }
    body = {"globalWhiteAddrs": ["10.0.0.*", "::1"], "plainAccessConfigs": [account]}
    version = {"counter": 3, "timestamp": 1_700_000_000_000}

    def answer(request: RemotingCommand) -> RemotingCommand:
        files = {"/conf/plain_acl.yml": version}
        ext = {
            "clusterName": "C",
            "brokerName": "broker-c",
            "brokerAddr": "192.0.2.1:1",
            "version": json.dumps(version),
            "allAclFileVersion": json.dumps(files),
        }
        return request.reply(ext_fields=ext, body=json.dumps(body).encode())

    cluster.answers = answer
    addr = cluster.addr("broker-c")
    code, out, err = cluster.run("getAclConfig", "-b", addr)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "",
        "globalWhiteRemoteAddresses: [10.0.0.*, ::1]",
        "",
        "accounts:",
        "  accessKey         : key-of-one",
        "  secretKey         : secret-of-one",
        "  whiteRemoteAddress: ",
        "  admin             : true",
        "  defaultTopicPerm  : ",
        "  defaultGroupPerm  : ",
        "  topicPerms        : [A=SUB]",
        "  groupPerms        : ",
        "",
    ]
    code, out, _ = cluster.run("clusterAclConfigVersion", "-c", "C")
    head, *rows, last = out.splitlines()
    assert head.split("  ")[0] == "#Cluster Name"
    assert rows[0].split()[:5] == ["C", "broker-c", "192.0.2.1:1", "/conf/plain_acl.yml", "3"]
    assert (len(rows), last) == (3, "get cluster's plain access config version success.")
    code, out, _ = cluster.run("clusterAclConfigVersion", "-b", addr)
    assert out.splitlines()[1:] == ["get broker's plain access config version success."]
    assert json.loads(cluster.run("getAclConfig", "-b", addr, "-o", "json")[1])[addr]["accounts"] == [account]


@pytest.mark.parametrize("body", [b"[]", b'{"plainAccessConfigs": [1]}', b'{"globalWhiteAddrs": [1]}', b"{"])
def test_accounts_in_another_form_are_one_line(cluster: Cluster, body: bytes) -> None:
    cluster.answers = lambda request: request.reply(body=body)
    code, out, err = cluster.run("getAclConfig", "-b", cluster.addr("broker-c"))
    assert (code, out, err.count("\n")) == (1, "", 1)


# Traces --------------------------------------------------------------------------------------------


def record(*fields: object) -> str:
    return "\x01".join(map(str, fields)) + "\x02"


SENT = ("Pub", 1_700_000_000_000, "DefaultRegion", "pg", "T", "ID", "tag", "key", "10.0.0.1:1", 5, 12, 0)


@pytest.mark.parametrize(
    ("fields", "success"),
    [
        ((*SENT, "true"), True),
        ((*SENT, "false"), False),
        ((*SENT, "OFFSETID", "true"), True),
        ((*SENT, "OFFSETID", "false"), False),
        ((*SENT, "OFFSETID", "true", "10.0.0.2"), True),
        (SENT, True),
    ],
    ids=["13", "13-failed", "14", "14-failed", "15", "12"],
)
def test_a_send_is_read_in_every_form(fields: tuple[object, ...], success: bool) -> None:
    assert list(decode_traces(record(*fields).encode(), "ID")) == [
        Trace(
            kind="Pub",
            message_id="ID",
            group="pg",
            time_ms=1_700_000_000_000,
            cost_ms=12,
            success=success,
        )
    ]


def test_only_consumptions_of_the_message_are_read() -> None:
    body = (
        record("SubBefore", 1, "R", "g", "REQ", "ID", 0, "key")
        + record("SubAfter", "REQ", "ID", 7, "false", "key", 1, 1_700_000_000_001, "g")
        + record("SubAfter", "REQ", "OTHER", 7, "true", "key", 0, 1_700_000_000_001, "g")
        + record("SubAfter", "REQ", "ID", 8, "true", "key", 0)
        + record("EndTransaction", "x")
        + record("Recall")
        + "\x02"
    )
    first, second = decode_traces(body.encode(), "ID")
    assert first == Trace(
        kind="SubAfter", message_id="ID", group="g", time_ms=1_700_000_000_001, cost_ms=7, success=False
    )
    assert second == Trace(kind="SubAfter", message_id="ID", group=None, time_ms=0, cost_ms=8, success=True)


@pytest.mark.parametrize(
    "text",
    [record("Pub", 1, "R"), record(*SENT[:10], "soon", 0, "true"), record("SubAfter", "REQ", "ID", "x")],
)
def test_a_record_that_is_cut_is_said_and_hides_no_other(text: str) -> None:
    found = list(decode_traces((text + record(*SENT, "true")).encode(), "ID"))
    assert [type(one) for one in found] == [Unreadable, Trace]


def test_bytes_of_strangers_are_no_traces() -> None:
    assert list(decode_traces(b"\xff\x01\x02\x02\x01Pub", "ID")) == []
    assert list(decode_traces(b"", "ID")) == []


# Members of groups ---------------------------------------------------------------------------------

NOW = 1_700_000_000_000
QUEUE = '{"brokerName":"b","queueId":1,"topic":"T"}'


def info(*, topic: str = "T", orderly: bool = False, age_ms: int = 200_000, **queue: Any) -> dict[str, Any]:
    return {
        "properties": {
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_CONSUMEORDERLY": str(orderly).lower(),
            "PROP_CONSUMER_START_TIMESTAMP": str(NOW - age_ms),
        },
        "subscriptionSet": [{"topic": topic, "subString": "*"}],
        "mqTable": {QUEUE: queue} if queue else {},
    }


@pytest.mark.parametrize(
    ("infos", "lines"),
    [
        ({}, []),
        ({"a": info(), "b": info()}, []),
        ({"a": info(), "b": info(topic="Other")}, ["Subscription different"]),
        ({"a": info(age_ms=1000), "b": info(topic="Other")}, []),
        ({"a": info(lastConsumeTimestamp=NOW - 61_000, cachedMsgCount=0)}, []),
        (
            {"a": info(lastConsumeTimestamp=NOW - 61_000, cachedMsgCount=1)},
            [
                "ClientId: a, a MessageQueue [topic=T, brokerName=b, queueId=1] can't consume for a while,"
                " maybe blocked, 61000ms"
            ],
        ),
        (
            {"a": info(orderly=True, locked=False, lastLockTimestamp=NOW - 5)},
            ["ClientId: a, a MessageQueue [topic=T, brokerName=b, queueId=1] can't lock for a while, 5ms"],
        ),
        (
            {"a": info(orderly=True, locked=True, droped=True, tryUnlockTimes=2)},
            ["ClientId: a, a MessageQueue [topic=T, brokerName=b, queueId=1] unlock 2 times, still failed"],
        ),
        ({"a": info(orderly=True, locked=True, droped=True, tryUnlockTimes=0)}, []),
    ],
)
def test_members_that_stand_still_are_named(infos: dict[str, Any], lines: list[str]) -> None:
    assert list(member_lines(infos, now_ms=NOW)) == lines


def test_an_offset_that_was_moved_is_told_in_rocketmqs_words() -> None:
    event = {
        "consumerGroup": "G",
        "messageQueue": {"topic": "T", "brokerName": "b", "queueId": 1},
        "offsetRequest": 5,
        "offsetNew": 9,
    }
    assert moved_text(json.dumps(event).encode()) == (
        "OffsetMovedEvent [consumerGroup=G, messageQueue=MessageQueue [topic=T, brokerName=b, queueId=1],"
        " offsetRequest=5, offsetNew=9]"
    )


# High availability (HA) and mean values ------------------------------------------------------------


def test_slaves_and_masters_of_others_are_shown() -> None:
    slave = {
        "addr": "10.0.0.2:1",
        "slaveAckOffset": 90,
        "diff": 10,
        "inSync": False,
        "transferredByteInSecond": 2048,
        "transferFromWhere": 95,
    }
    text = status_text(
        "10.0.0.1:2",
        {"master": True, "masterCommitLogMaxOffset": 100, "inSyncSlaveNums": 0, "haConnectionInfo": [slave]},
    )
    assert text.splitlines()[-1].split() == ["10.0.0.2:1", "90", "10", "2.00", "Fall", "Behind", "95"]
    assert text.splitlines()[1:5] == [
        "#MasterAddr\t10.0.0.1:2",
        "#MasterCommitLogMaxOffset\t100",
        "#SlaveNum\t1",
        "#InSyncSlaveNum\t0",
    ]
    client = {"masterAddr": "10.0.0.1:3", "maxOffset": 7, "transferredByteInSecond": 512}
    text = status_text("10.0.0.2:1", {"master": False, "haClientRuntimeInfo": client})
    lines = [line.partition("\t") for line in text.splitlines()[1:]]
    assert [(name, value) for name, _, value in lines if "Time" not in name] == [
        ("#MasterAddr", "10.0.0.1:3"),
        ("#CommitLogMaxOffset", "7"),
        ("#TransferSpeed(KB/s)", "0.50"),
        ("#MasterFlushOffset", "0"),
    ]


def test_the_first_send_is_no_part_of_the_mean() -> None:
    assert (mean_text([900, 1, 2]), mean_text([900])) == ("1.50", "NaN")
