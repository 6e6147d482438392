"""The daily work of operators as a list of ``mqadmin`` runs, and the comparison of two tools' outputs."""

from __future__ import annotations

import json
import re
import shlex
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.client.mqadmin import mqadmin

from .apache import START_S, AdminResult, Apache, ask, wait_until
from .ours import routed_topic

TOPIC: Final = "Golden"
GROUP: Final = "golden_group"
UNIQUE: Final = "7F000001000000000000000000000003"

PRODUCERS: Final = "producer_group"

#: One run of mqadmin per line: its name and its command line. Names of runs and the cluster's name are the
#: same as in tests/golden/capture_admin.py.
ONLINE: Final = """
producerConnection|producerConnection -g producer_group -t Golden
updateSubGroup-b|updateSubGroup -b BROKER -g Made
updateSubGroup-c|updateSubGroup -c DefaultCluster -g Made -s true -m false -d true -q 2 -r 5 -i 0 -w 1 -a true
getConsumerConfig|getConsumerConfig -g Made
deleteSubGroup-b|deleteSubGroup -b BROKER -g Made
brokerStatus-b|brokerStatus -b BROKER
getBrokerConfig|getBrokerConfig -b BROKER
updateBrokerConfig-b|updateBrokerConfig -b BROKER -k traceOn -v true
updateTopicPerm-b|updateTopicPerm -b BROKER -t Golden -p 4
updateTopicPerm-b-again|updateTopicPerm -b BROKER -t Golden -p 4
updateTopicPerm-back|updateTopicPerm -b BROKER -t Golden -p 6
updateTopicPerm-unknown|updateTopicPerm -c DefaultCluster -t NoSuchTopic -p 6
updateOrderConf-put|updateOrderConf -t Golden -m put -v broker-a:2
updateOrderConf-get|updateOrderConf -t Golden -m get
updateOrderConf-delete|updateOrderConf -t Golden -m delete
topicClusterList|topicClusterList -t Golden
queryMsgById|queryMsgById -t Golden -i OFFSETID
queryMsgByKey|queryMsgByKey -t Golden -k key1
queryMsgByUniqueKey|queryMsgByUniqueKey -t Golden -i UNIQUE
queryMsgByOffset|queryMsgByOffset -t Golden -b broker-a -i 0 -o 0
queryCq|queryCq -t Golden -q 0 -i 0 -c 2 -b BROKER
queryCq-unknown|queryCq -t NoSuchTopic -q 0 -i 0 -c 2 -b BROKER
printMsg|printMsg -t Golden
consumerProgress|consumerProgress
consumerProgress-g|consumerProgress -g golden_group
consumerProgress-s|consumerProgress -g golden_group -s true
consumerProgress-g-unknown|consumerProgress -g NoSuchGroup
consumerConnection|consumerConnection -g golden_group
consumerConnection-b|consumerConnection -g golden_group -b BROKER
consumerConnection-unknown|consumerConnection -g NoSuchGroup
consumerStatus|consumerStatus -g golden_group
producer|producer -b BROKER
producerConnection-unknown|producerConnection -g NoSuchGroup -t Golden
statsAll|statsAll -t Golden
brokerConsumeStats|brokerConsumeStats -b BROKER
updateSubGroup-clone|updateSubGroup -b BROKER -g CloneOf
cloneGroupOffset|cloneGroupOffset -s golden_group -d CloneOf -t Golden -o true
cleanExpiredCQ-b|cleanExpiredCQ -b BROKER
cleanUnusedTopic-b|cleanUnusedTopic -b BROKER
deleteExpiredCommitLog-b|deleteExpiredCommitLog -b BROKER
"""
#: Run these commands after all others, because Java's consumer resets its offsets only 10 s after the
#: request.
RESETTING: Final = """
resetOffsetByTime-online|resetOffsetByTime -g golden_group -t Golden -s 0
skipAccumulatedMessage-online|skipAccumulatedMessage -g golden_group -t Golden
resetOffsetByTime-unknown-group|resetOffsetByTime -g NoSuchGroup -t Golden -s 0
"""
OFFLINE: Final = """
consumerConnection-offline|consumerConnection -g golden_group
resetOffsetByTime-offline|resetOffsetByTime -g golden_group -t Golden -s 0
skipAccumulatedMessage-offline|skipAccumulatedMessage -g golden_group -t Golden
consumerProgress-g-offline|consumerProgress -g golden_group
"""
#: Runs that print a table of a broker's state or settings; tests compare only the names in the table.
TABLES: Final = ("brokerStatus-b", "getBrokerConfig")
#: Runs whose output from our tool has the wording of 5.x, even for 4.x brokers. Words of 4.9's output may be
#: missing in our output only if tests/golden/words.py lists them.
IN_WORDS_OF_5: Final = (
    *("updateSubGroup", "getConsumerConfig", "updateTopicPerm", "consumerProgress-", "resetOffsetByTime"),
)
#: Runs whose output differs between our broker and a 4.x broker. The difference concerns a group that has no
#: offset in one of a topic's queues. Our broker and 5.x brokers reset such a group, but a 4.x broker does
#: not.
RESETS: Final = ("resetOffsetByTime", "skipAccumulatedMessage")
#: Runs that print the same lines for each broker. Compare each line once, because Apache's deployment has one
#: broker more than ours.
OF_A_CLUSTER: Final = ("updateSubGroup-c", "getConsumerConfig")
#: Runs that list all groups and topics; tests compare only lines about the group of the tests.
LISTINGS: Final = ("statsAll", "brokerConsumeStats", "consumerProgress")
#: Function that runs mqadmin with a subcommand and its options as arguments.
Tool = Callable[..., AdminResult]


def our_tool(namesrv: str) -> Tool:
    """Return a function that runs our mqadmin in this process, with ``namesrv`` as NAMESRV_ADDR."""
    return lambda *args: AdminResult(args, *mqadmin(*args, namesrv=namesrv))


def apaches_tool(apache: Apache, namesrv: str, session: str) -> Tool:
    """Return a function that runs Apache's mqadmin with ``-n namesrv`` in a session of ``apache``."""
    return lambda *args: apache.admin(*args, namesrvs=[namesrv], session=session)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A broker with three messages in one queue, and a Java consumer that subscribes to none of them."""

    namesrv: str
    broker: str
    offset_id: str
    release: str

    def script(self, text: str) -> Iterator[tuple[str, list[str]]]:
        """Yield the name and the arguments of each run in ``text``, with this broker's address and ids."""
        for line in filter(None, text.splitlines()):
            name, _, words = line.partition("|")
            words = words.replace("BROKER", self.broker).replace("UNIQUE", UNIQUE)
            words = words.replace("OFFSETID", self.offset_id)
            if self.release.startswith("4."):  # 4.x has no -t here, because the message id is sufficient
                words = words.replace("queryMsgById -t Golden", "queryMsgById")
            yield name, shlex.split(words)


@contextmanager
def stage(
    apache: Apache, namesrv: str, broker: str, folder: Path
) -> Iterator[tuple[Stage, Callable[[], None]]]:
    """Yield the prepared broker as a :class:`Stage`, and a function that ends its consumer."""
    routed_topic([namesrv], broker, TOPIC, queues=2)
    for number, (body, key, tag) in enumerate(
        ((b"one", "key1", "TagA"), (b"two", "key1", "TagB"), (b"three", "key2", "TagA")), 1
    ):
        marks = {"KEYS": key, "UNIQ_KEY": f"{UNIQUE[:-1]}{number}", "TAGS": tag}
        properties = "".join(f"{name}\x01{value}\x02" for name, value in marks.items())
        fields = dict.fromkeys("efhj", "0") | {"a": "PG", "b": TOPIC, "c": "TBW102", "d": "4"}
        fields |= {"g": "1700000000000", "i": properties, "k": "false", "m": "false"}
        code, answer, _ = ask(broker, 310, fields, body)
        assert code == 0, answer
    queue = {"topic": TOPIC, "queueId": "0"}

    def listed() -> bool:
        return bool(ask(broker, 30, queue)[1]["extFields"]["offset"] == "3")

    wait_until(listed, "the messages to be listed")
    folder.mkdir()
    enough = folder / "enough"
    consumer = apache.consumer([namesrv], TOPIC, GROUP, f"@{enough}", seconds=500)
    members = ExitStack()

    def consumed() -> bool:
        code, answer, _ = ask(broker, 14, queue | {"consumerGroup": GROUP})
        return code == 0 and answer["extFields"]["offset"] == "3"

    def end() -> None:
        if not enough.exists():
            partial = folder / "partial"
            partial.write_text("0")
            partial.rename(enough)
            consumer.wait(START_S)
            wait_until(lambda: ask(broker, 203, {"consumerGroup": GROUP})[0] != 0, "the group offline")

    try:
        members.enter_context(producer_member(broker))
        wait_until(consumed, "the group to have passed the messages", START_S)
        yield (
            Stage(
                namesrv=namesrv, broker=broker, offset_id=answer["extFields"]["msgId"], release=apache.release
            ),
            end,
        )
    finally:
        members.close()
        end()


@contextmanager
def producer_member(broker: str) -> Iterator[None]:
    """Keep a member of a producer group connected to a broker, with a heartbeat every 20 s."""
    header = json.dumps({"code": 34, "language": "JAVA", "version": 479, "opaque": 1, "flag": 0}).encode()
    member = {"clientID": "192.0.2.2@golden", "producerDataSet": [{"groupName": PRODUCERS}]}
    body = json.dumps(member | {"consumerDataSet": []}).encode()
    frame = struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body
    host, _, port = broker.rpartition(":")
    ended = threading.Event()
    with socket.create_connection((host, int(port)), 15) as connection:

        def beat() -> None:
            while True:
                connection.sendall(frame)
                assert connection.recv(65536), "the heartbeat was not answered"
                if ended.wait(20):
                    return

        beats = threading.Thread(target=beat)
        beats.start()
        try:
            yield
        finally:
            ended.set()
            beats.join(20)


_MASKS: Final = tuple(
    (re.compile(pattern), mark)
    for pattern, mark in (
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(,\d+)?", "DATE"),
        (r"\b\d+\.\d+\.\d+\.\d+@\d+#\d+\b", "CLIENT"),
        (r"\b\d+\.\d+\.\d+\.\d+:\d+\b", "ADDR"),
        (r"\b[0-9A-F]{32}\b", "ID"),
        (r"\b1[67]\d{11}\b", "MS"),
        (r"(?<![\d.])\d+\.\d+(?![\d.])", "RATE"),
        # A 5.x broker adds two properties to each message: message sizes and log offsets differ from 4.x.
        (r"(storeSize=|commitLogOffset=|CommitLog Offset: +|physicOffset=|physicSize=)\d+", r"\1PLACE"),
    )
)
_PROPERTIES: Final = re.compile(r"(Properties: +|properties=)\{([^{}]*)\}")
_OF_5: Final = ("MSG_REGION=", "TRACE_ON=")
#: Lines that tests do not compare, because they differ between the tools or brokers. These are lines about
#: other groups, other brokers, and the file to which a tool writes a message body.
_ELSEWHERE: Final = re.compile(
    rf"MessageTrack \[consumerGroup=(?!{GROUP},)|See https:|Message Body|(Consume )?Diff Total|%RETRY%"
    r"|=+DefaultCluster:"
)
#: Line about one member of a consumer group. The tools differ at the end of this line. Our tool prints a
#: number of queues; Apache's tool prints the name of the file with the member's answer.
_MEMBER: Final = re.compile(r"(#Index #ClientId #Version|\d+ CLIENT V\S+) .*")


def comparable(name: str, text: str) -> list[str]:
    """Return the lines of the output ``text`` that must be equal for both tools.

    - Fixed words replace values that vary between runs, such as dates, rates, addresses, ids and log offsets.
    - The properties of a message are sorted, without the two properties that only 5.x brokers add.
    - Lines about other groups and brokers are left out.

    Args:
        name: Name of the run that printed ``text``; some runs need further changes of their lines.
    """
    for pattern, mark in _MASKS:
        text = pattern.sub(mark, text)
    text = _PROPERTIES.sub(_sorted_properties, text).replace("]MessageTrack", "]\nMessageTrack")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    kept = [line for line in lines if line and not _ELSEWHERE.match(line)]
    if name.startswith("updateTopicPerm"):  # our tool keeps the flag that Apache's updateOrderConf has set
        kept = [line.replace("order=true", "order=false") for line in kept]
    if name == "consumerStatus":
        kept = [_MEMBER.sub(r"\1", line) for line in kept]
    if name in LISTINGS:
        kept = [line for line in kept if line.startswith("#") or f" {GROUP} " in f" {line} "]
    if name == "statsAll":  # leave out counters, because brokers sample them at different times
        kept = [" ".join(line.split()[:5]) for line in kept]
    return list(dict.fromkeys(kept)) if name in OF_A_CLUSTER else kept


def _sorted_properties(found: re.Match[str]) -> str:
    names = sorted(part for part in found[2].split(", ") if not part.startswith(_OF_5))
    return f"{found[1]}{{{', '.join(names)}}}"


def names_in(text: str) -> set[str]:
    """Return all names in an output whose lines are ``name: value`` or ``name=value``."""
    return {re.split(r"[:=]", line, maxsplit=1)[0].strip() for line in text.splitlines() if line.strip()}
