"""Subcommands of mqadmin for daily work at our own nameserver and broker, also with invalid input."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from routekeeper.bench.timers import divide_periods
from routekeeper.client.blocking import Client
from routekeeper.client.config import ClientConfig, ConsumeFrom, ConsumerConfig
from routekeeper.client.producer import Message
from tests.client.mqadmin import mqadmin
from tests.signals import inherited

#: Separator between two columns in a line of a printed table: two or more blanks.
ROW = re.compile(r"\s{2,}")


def run(nameserver: Any, *argv: str) -> tuple[int, str, str]:
    return mqadmin(*argv, namesrv=nameserver.addr)


def good(nameserver: Any, *argv: str) -> str:
    """Return the output of a subcommand that succeeds."""
    code, out, err = run(nameserver, *argv)
    assert (code, err) == (0, "")
    return out


def create(nameserver: Any, topic: str, queues: int = 1) -> None:
    good(nameserver, "updateTopic", "-c", "DefaultCluster", "-t", topic, "-r", str(queues), "-w", str(queues))


@pytest.fixture
def client(nameserver: Any) -> Iterator[Client]:
    with Client(divide_periods(ClientConfig(nameservers=(nameserver.addr,)), 10)) as started:
        yield started


# Messages ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_messages_of_one_queue_are_printed_and_counted_by_tag(
    nameserver: Any, broker: Any, client: Client
) -> None:
    create(nameserver, "Tagged")
    sender = client.producer("pg")
    for number, tags in enumerate(("B", "A", "A", None)):
        sender.send(Message(topic="Tagged", body=b"body-%d" % number, tags=tags), timeout_s=20)
    command = ("printMsgByQueue", "-t", "Tagged", "-a", "broker-a", "-i", "0")
    assert good(nameserver, *command) == ""
    lines = good(nameserver, *command, "-p", "true", "-d", "true", "-f", "true").splitlines()
    assert [re.search(r"BODY: (.*)", line)[1] for line in lines[:4]] == [f"body-{n}" for n in range(4)]  # type: ignore[index]
    assert all(line.startswith("MSGID: ") and "MessageExt [brokerName=broker-a" in line for line in lines[:4])
    assert lines[4:] == [f"Tag: {'A':<30} Count: 2", f"Tag: {'B':<30} Count: 1"]
    lines = good(nameserver, *command, "-p", "true", "-s", "B").splitlines()
    assert [line.endswith("BODY: NOT PRINT BODY") for line in lines] == [True]
    # "-e 1" ends the search at 1 ms after the start of 1970. All messages were stored after this time.
    assert good(nameserver, *command, "-p", "true", "-e", "1") == ""
    assert len(good(nameserver, *command, "-p", "true", "-b", "1").splitlines()) == 4


@pytest.mark.slow
def test_queues_are_shared_out_among_members_without_gap_or_overlap(nameserver: Any, broker: Any) -> None:
    create(nameserver, "Shared", queues=5)
    shares = json.loads(good(nameserver, "allocateMQ", "-t", "Shared", "-i", "a,b"))["result"]
    queue = {"brokerName": "broker-a", "topic": "Shared"}
    assert shares == {
        "a": [queue | {"queueId": number} for number in (0, 1, 2)],
        "b": [queue | {"queueId": number} for number in (3, 4)],
    }


@pytest.mark.slow
def test_sends_are_measured(nameserver: Any, broker: Any) -> None:
    create(nameserver, "Measured", queues=2)
    lines = good(nameserver, "sendMsgStatus", "-b", "broker-a", "-c", "3", "-s", "50").splitlines()
    assert len(lines) == 3
    form = (
        r"rt=\d+ms, SendResult=SendResult \[sendStatus=SEND_OK, msgId=\w{32}, offsetMsgId=\w{32},"
        r" messageQueue=MessageQueue \[topic=broker-a, brokerName=broker-a, queueId=\d+\],"
        r" queueOffset=\d+, recallHandle=null\]"
    )
    assert all(re.fullmatch(form, line) for line in lines)
    head, *rows, mean = good(nameserver, "checkMsgSendRT", "-t", "Measured", "-a", "4").splitlines()
    assert ROW.split(head) == ["#Broker Name", "#QID", "#Send Result", "#RT"]
    assert [ROW.split(row)[:3] for row in rows] == [["broker-a", str(n % 2), "true"] for n in range(4)]
    assert re.fullmatch(r"Avg RT: \d+\.\d\d", mean)
    assert good(nameserver, "checkMsgSendRT", "-t", "Measured", "-a", "1").endswith("Avg RT: NaN\n")


# Programs that run until they are interrupted ------------------------------------------------------


class Running:
    """A subcommand that runs until SIGINT."""

    def __init__(self, nameserver: Any, *argv: str) -> None:
        # Reset SIGINT to its default action. A shell makes its background jobs ignore SIGINT, and the jobs'
        # child processes inherit this setting. Without the reset, the subcommand might ignore SIGINT.
        with inherited(signal.SIGINT, signal.SIG_DFL):
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "routekeeper.client.mqadmin", *argv, "-n", nameserver.addr],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )

    def line(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline()

    def lines_until(self, end: str) -> list[str]:
        """Return the lines up to and including the first line that contains the text ``end``."""
        found = [self.line()]
        while found[-1] and end not in found[-1]:
            found.append(self.line())
        assert found[-1], (found, self.popen.stderr)
        return found

    def interrupt(self) -> tuple[int, str]:
        """Send SIGINT, and return the exit code and the output on stderr."""
        self.popen.send_signal(signal.SIGINT)
        _, err = self.popen.communicate(timeout=20)
        return self.popen.returncode, err


@pytest.fixture
def start(nameserver: Any) -> Iterator[Callable[..., Running]]:
    """Return a function that starts subcommands. The fixture kills them when the test ends."""
    started: list[Running] = []

    def begin(*argv: str) -> Running:
        started.append(Running(nameserver, *argv))
        return started[-1]

    yield begin
    for running in started:
        running.popen.kill()
        running.popen.communicate()


@pytest.mark.slow
def test_sends_to_a_cluster_are_measured_until_interrupted(
    broker: Any, start: Callable[..., Running]
) -> None:
    running = start("clusterRT", "-a", "3", "-i", "1")
    assert ROW.split(running.line().strip()) == [
        *("#Cluster Name", "#Broker Name", "#RT", "#successCount", "#failCount"),
    ]
    for _ in range(2):
        cluster, name, mean, *counts = ROW.split(running.line().strip())
        assert (cluster, name, counts) == ("DefaultCluster", "broker-a", ["3", "0"])
        assert re.fullmatch(r"\d+\.\d\d", mean)
    assert running.interrupt() == (130, "mqadmin clusterRT: interrupted\n")
    running = start("clusterRT", "-a", "3", "-p", "true", "-m", "room 1")
    form = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\|room 1\|DefaultCluster\|broker-a\|\d+\n"
    assert re.fullmatch(form, running.line())
    assert running.interrupt()[0] == 130


@pytest.mark.slow
def test_monitoring_says_how_far_groups_are_behind_until_interrupted(
    nameserver: Any,
    broker: Any,
    client: Client,
    start: Callable[..., Running],
    eventually: Callable[..., None],
) -> None:
    create(nameserver, "Watched")
    sender = client.producer("pg")
    seen: list[int] = []
    consuming = threading.Event()
    consuming.set()

    def consume(batch: Any) -> None:
        seen.append(len(batch))
        consuming.wait(60)

    group = ConsumerConfig(group="watched", consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer = client.consume(group, {"Watched": "*"}, consume)
    sender.send(Message(topic="Watched", body=b"x"), timeout_s=20)
    eventually(lambda: bool(seen), "consumed")

    def behind(count: int) -> str:
        return f"consumerGroup=watched, topic=Watched, undoneMsgsTotal={count}, undoneMsgsSingleMQ={count}"

    running = start("startMonitoring", "--roundInterval", "1")
    assert running.line() == f"[MONITOR] {'=' * 41}beginRound\n"
    assert running.lines_until("endRound")[-1] == f"[MONITOR] {'=' * 41}endRound\n"
    eventually(lambda: "Diff Total: 0" in run(nameserver, "consumerProgress", "-g", "watched")[1], "stored")
    consuming.clear()
    for _ in range(3):
        sender.send(Message(topic="Watched", body=b"y"), timeout_s=20)
    line = running.lines_until(behind(3))[-1]
    assert line.startswith("[MONITOR] reportUndoneMsgs: UndoneMsgs [consumerGroup=watched, topic=Watched, ")
    assert re.search(r", undoneMsgsDelayTimeMills=\d+\]$", line)
    code, err = running.interrupt()
    assert (code, err) == (130, "mqadmin startMonitoring: interrupted\n")
    consuming.set()
    consumer.close()


# Lists ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("where", ["-b", "-c"])
def test_lists_of_topics_and_groups_are_taken_over(
    nameserver: Any, broker: Any, tmp_path: Path, where: str
) -> None:
    target = (where, broker.addr if where == "-b" else "DefaultCluster")
    topics, groups = tmp_path / "topics.json", tmp_path / "groups.json"
    names = [f"Listed{where[1]}{number}" for number in range(300)]
    topics.write_text(json.dumps([{"topicName": name, "readQueueNums": 3, "perm": 4} for name in names]))
    groups.write_text(json.dumps([{"groupName": name, "retryMaxTimes": 2} for name in names]))
    out = good(nameserver, "updateTopicList", *target, "-f", str(topics))
    said = "submit batch of {} to {} success, please check the result later.\n"
    assert out == said.format("topic config", broker.addr)
    word = "group config" if where == "-b" else "subscription group config"
    out = good(nameserver, "updateSubGroupList", *target, "-f", str(groups))
    assert out == said.format(word, broker.addr)
    exported = json.loads(good(nameserver, "exportMetadata", "-c", "DefaultCluster"))
    for name in names:
        topic, group = exported["topicConfigTable"][name], exported["subscriptionGroupTable"][name]
        assert (topic["readQueueNums"], topic["writeQueueNums"], topic["perm"]) == (3, 16, 4)
        assert group["retryMaxTimes"] == 2


def test_a_setting_that_no_topic_has_is_named(nameserver: Any, broker: Any, tmp_path: Path) -> None:
    file = tmp_path / "topics.json"
    file.write_text('[{"topicName": "Misspelt", "readQueueNum": 3}]')
    code, _, err = run(nameserver, "updateTopicList", "-b", broker.addr, "-f", str(file))
    assert code == 0
    assert "WARNING: unknown topic settings are ignored: readQueueNum; known settings are attributes, " in err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "the file path FILE does not exists"),
        ("", "FILE: JSON of 0 bytes cannot be read: "),
        ("[]", "FILE contains no JSON list of topics"),
        ("{}", "FILE contains no JSON list of topics"),
        ("[1]", "FILE: topic 1: topic config is a JSON int"),
        ('[{"topicName": "A"}, {"perm": 6}]', "FILE: topic 2: topic config has no topicName"),
        ('[{"topicName": "A"}, {"topicName": "A"}]', "FILE: topic 2: 'A' appears twice"),
        ('[{"topicName": "A", "perm": "six"}]', "FILE: topic 1: perm is 'six', allowed: integers"),
        ('[{"topicName": "no good"}]', "list of 1 topics not stored at 1 of 1: "),
    ],
)
def test_a_list_that_is_wrong_is_one_line(
    nameserver: Any, broker: Any, tmp_path: Path, content: str | None, said: str
) -> None:
    file = tmp_path / "list.json"
    if content is not None:
        file.write_text(content)
    code, out, err = run(nameserver, "updateTopicList", "-b", broker.addr, "-f", str(file))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert said.replace("FILE", str(file)) in err


# Exports -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_exports_are_printed_and_written_only_where_asked(
    nameserver: Any, broker: Any, tmp_path: Path
) -> None:
    create(nameserver, "Exported", queues=2)
    for command, name in (
        (("exportConfigs",), "configs.json"),
        (("exportMetrics",), "metrics.json"),
        (("exportMetadata",), "metadata.json"),
        (("exportMetadata", "-t"), "topic.json"),
        (("exportMetadata", "-g"), "subscriptionGroup.json"),
    ):
        printed = good(nameserver, *command, "-c", "DefaultCluster")
        folder = tmp_path / name.partition(".")[0] / "deep"
        out = good(nameserver, *command, "-c", "DefaultCluster", "-f", str(folder))
        assert out == f"export {folder / name} success\n"
        assert [path.name for path in folder.iterdir()] == [name]
        written, shown = json.loads((folder / name).read_text()), json.loads(printed)
        assert list(written) == list(shown)
    configs = json.loads((tmp_path / "configs" / "deep" / "configs.json").read_text())
    assert configs["clusterScale"] == {"namesrvSize": 1, "masterBrokerSize": 1, "slaveBrokerSize": 0}
    # 4.9.7's exportConfigs fails if a broker lacks one of the 16 settings that the command exports.
    assert len(configs["brokerConfigs"]["broker-a"]) == 16
    assert configs["brokerConfigs"]["broker-a"]["brokerClusterName"] == "DefaultCluster"
    metadata = json.loads((tmp_path / "metadata" / "deep" / "metadata.json").read_text())
    assert metadata["topicConfigTable"]["Exported"]["readQueueNums"] == 2
    assert not {"TBW102", "SELF_TEST_TOPIC", "broker-a", "DefaultCluster"} & set(metadata["topicConfigTable"])
    assert "TOOLS_CONSUMER" not in metadata["subscriptionGroupTable"]
    one = json.loads(good(nameserver, "exportMetadata", "-b", broker.addr, "-t"))
    assert set(one) == {"dataVersion", "topicConfigTable"}
    metrics = json.loads((tmp_path / "metrics" / "deep" / "metrics.json").read_text())
    report = metrics["evaluateReport"]["broker-a"]
    assert report["runtimeQuota"]["topicSize"] == len(metadata["topicConfigTable"])
    assert report["runtimeQuota"]["groupSize"] == len(metadata["subscriptionGroupTable"])
    assert set(metrics["totalData"]["totalTps"]) == {
        *("totalNormalInTps", "totalNormalOutTps", "totalTransInTps", "totalScheduleInTps"),
    }


@pytest.mark.slow
def test_topics_of_groups_are_exported_if_they_are_asked_for(
    nameserver: Any, broker: Any, client: Client
) -> None:
    client.consume("exported", {"broker-a": "*"}, lambda batch: None).close()
    command = ("exportMetadata", "-c", "DefaultCluster", "-t")
    assert "%RETRY%exported" not in json.loads(good(nameserver, *command))["topicConfigTable"]
    assert "%RETRY%exported" in json.loads(good(nameserver, *command, "-s"))["topicConfigTable"]


def test_an_export_that_cannot_be_written_says_so(nameserver: Any, broker: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, out, err = run(
        nameserver, "exportConfigs", "-c", "DefaultCluster", "-f", str(tmp_path / "file" / "below")
    )
    assert (code, out) == (1, "")
    assert err == (
        f"mqadmin exportConfigs: {tmp_path}/file/below/configs.json cannot be written: Not a directory\n"
    )


# High availability (HA), and invalid input ---------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("where", ["-b", "-c"])
def test_a_broker_of_ours_is_a_master_without_slaves(nameserver: Any, broker: Any, where: str) -> None:
    target = broker.addr if where == "-b" else "DefaultCluster"
    first, *lines = good(nameserver, "haStatus", where, target).splitlines()
    assert first == ""
    names = [line.partition("\t") for line in lines[:4]]
    assert [(name, value) for name, _, value in names if name != "#MasterCommitLogMaxOffset"] == [
        ("#MasterAddr", broker.addr),
        ("#SlaveNum", "0"),
        ("#InSyncSlaveNum", "0"),
    ]
    assert names[1][2].isdecimal()
    assert lines[4].split()[0] == "#SlaveAddr"
    status = json.loads(good(nameserver, "haStatus", where, target, "-o", "json"))
    assert status[broker.addr]["master"] is True


PRINT = ("printMsgByQueue", "-t", "TBW102", "-a")
ACCOUNT = ("updateAclConfig", "-b", "127.0.0.1:1", "-a", "k", "-s", "s")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([*PRINT, "nobody", "-i", "0"], "The broker[nobody] not exist, or"),
        (
            [*PRINT, "broker-a", "-i", "x"],
            "queueId='x' is not a whole number",
        ),
        (
            [*PRINT, "broker-a", "-i", "0", "-c", "KLINGON"],
            "no known text encoding",
        ),
        ([*PRINT, "broker-a", "-i", "0", "-p", "yes"], "allowed true|false"),
        ([*PRINT, "broker-a", "-i", "0", "-b", "now"], "-b 'now', allowed"),
        (["sendMsgStatus", "-b", "nobody", "-s", "0"], "messageSize=0, allowed 1..41942"),
        (["checkMsgSendRT", "-t", "TBW102", "-a", "0"], "amount=0, allowed 1.."),
        (["checkMsgSendRT", "-t", "a b"], "a b"),
        (["clusterRT", "-c", "Nowhere"], "cluster 'Nowhere' not exist. Make sure the specified clusterName"),
        (["clusterRT", "-i", "0"], "interval=0, allowed 1..86400"),
        (["updateTopicList", "-c", "Nowhere", "-f", "TOPICS"], "no master in cluster 'Nowhere'. Make sure"),
        (
            ["updateTopicList", "-f", "TOPICS"],
            "Missing required option: [-b create topic to which",
        ),
        (["allocateMQ", "-t", "NoTopic", "-i", "a"], "No route info of this topic: NoTopic"),
        (["allocateMQ", "-t", "TBW102", "-i", "a,,b"], "ipList='a,,b', allowed 1..10000 members"),
        (["allocateMQ", "-t", "TBW102", "-i", "a,a"], "each once"),
        (["haStatus"], "no brokers are selected. Give -b or -c"),
        (["haStatus", "-b", "127.0.0.1:1"], "broker 127.0.0.1:1: "),
        (["haStatus", "-c", "Nowhere"], "no master in cluster 'Nowhere'"),
        (["exportConfigs", "-c", "Nowhere"], "no master in cluster 'Nowhere'"),
        (["exportMetadata"], "no brokers are selected. Give -b or -c"),
        (["exportMetadata", "-c", "DefaultCluster", "-t", "-g"], "give one of them, or neither for both"),
        (["exportMetadata", "-c", "DefaultCluster", "-g", "-s"], "-s selects topics"),
        (
            ["exportMetadata", "-b", "127.0.0.1:1"],
            "nothing exported, because a broker gave no",
        ),
        (["queryMsgTraceById", "-i", "AA", "-c", "65"], "maxNum=65, allowed 1..64"),
        (["queryMsgTraceById", "-i", "AA", "-t", "NoTopic"], "No topic route info"),
        (["queryMsgTraceById", "-i", "AA", "-t", "TBW102"], "no trace of message 'AA' in topic 'TBW102'"),
        (
            [*ACCOUNT, "-i", "PUP"],
            "defaultTopicPerm='PUP', a",
        ),
        (
            [*ACCOUNT, "-t", "T"],
            "'T' is not NAME=PERMISSION",
        ),
        (
            [*ACCOUNT, "-g", "G=ALL"],
            "groupPerms: G='ALL', ",
        ),
        (
            [*ACCOUNT, "-m", "y"],
            "admin='y', allowed true",
        ),
        (["deleteAclConfig", "-b", "127.0.0.1:1", "-a", "k"], "account not deleted at 1 of 1: 127.0.0.1:1: "),
        (["getAclConfig", "-b", "127.0.0.1:1"], "broker 127.0.0.1:1: "),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_wrong_input_is_one_line(
    nameserver: Any, broker: Any, tmp_path: Path, argv: list[str], said: str
) -> None:
    file = tmp_path / "topics.json"
    file.write_text('[{"topicName": "A"}]')
    code, _, err = run(nameserver, *(str(file) if word == "TOPICS" else word for word in argv))
    assert code == 1
    assert said in err
    assert err.count("\n") == 1


def test_aliases_of_rocketmq_are_known(nameserver: Any) -> None:
    for alias, name in (
        ("deleteAccessConfig", "deleteAclConfig"),
        ("getAccessConfigSubCommand", "getAclConfig"),
        ("QueryMsgTraceById", "queryMsgTraceById"),
    ):
        assert good(nameserver, "help", alias) == good(nameserver, "help", name)
        assert f"usage: mqadmin {name} " in good(nameserver, "help", alias)
