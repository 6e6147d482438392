"""Program that records the output of Apache's ``mqadmin`` about brokers, groups and messages.

The program also records the answers of the servers.

    python tests/golden/capture_admin.py 4.9.7
    python tests/golden/capture_admin.py 5.3.3

The program writes ``mqadmin/RELEASE-broker.json``, which README.md beside this file describes. It needs the
same tools as ``capture.py``.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
HERE: Final = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from tests.golden.capture import PORTS, Exchange, Stage  # noqa: E402  (run as a script)
from tests.interop.apache import ask, has_route, wait_until  # noqa: E402
from tests.interop.daily import producer_member  # noqa: E402

COMMANDS: Final = (
    "consumerProgress",
    "consumerConnection",
    "producerConnection",
    "brokerStatus",
    "updateSubGroup",
    "deleteSubGroup",
    "resetOffsetByTime",
    "skipAccumulatedMessage",
    "queryMsgById",
    "queryMsgByKey",
    "queryMsgByUniqueKey",
    "queryMsgByOffset",
    "getBrokerConfig",
    "updateBrokerConfig",
    "updateTopicPerm",
    "updateOrderConf",
    "topicClusterList",
    "printMsg",
    "statsAll",
    "consumerStatus",
    "cleanExpiredCQ",
    "cleanUnusedTopic",
    "deleteExpiredCommitLog",
    "getConsumerConfig",
    "brokerConsumeStats",
    "queryCq",
    "cloneGroupOffset",
    "producer",
)

RUNS: Final = """
updateSubGroup-b|updateSubGroup -b BROKER -g Made
updateSubGroup-c|updateSubGroup -c DefaultCluster -g Made -s true -m false -d true -q 2 -r 5 -i 0 -w 1 -a true
updateSubGroup-unknown-cluster|updateSubGroup -c NoCluster -g Made
updateSubGroup-orderly|updateSubGroup -b BROKER -g Orderly -o true
updateSubGroup-policy|updateSubGroup -b BROKER -g Policy -p '{"type":"EXPONENTIAL"}'
updateSubGroup-attributes|updateSubGroup -b BROKER -g Attributed --attributes +a=b
updateSubGroup-nowhere|updateSubGroup -g Made
getConsumerConfig|getConsumerConfig -g Made
getConsumerConfig-unknown|getConsumerConfig -g NoSuchGroup
deleteSubGroup-b|deleteSubGroup -b BROKER -g Made
deleteSubGroup-c|deleteSubGroup -c DefaultCluster -g Made
deleteSubGroup-unknown|deleteSubGroup -b BROKER -g NoSuchGroup
brokerStatus-b|brokerStatus -b BROKER
brokerStatus-c|brokerStatus -c DefaultCluster
getBrokerConfig-b|getBrokerConfig -b BROKER
getBrokerConfig-c|getBrokerConfig -c DefaultCluster
getBrokerConfig-nowhere|getBrokerConfig
updateBrokerConfig-b|updateBrokerConfig -b BROKER -k traceOn -v true
updateBrokerConfig-c|updateBrokerConfig -c DefaultCluster -k traceOn -v true
updateBrokerConfig-all|updateBrokerConfig -c DefaultCluster -a true -k traceOn -v true
updateBrokerConfig-nowhere|updateBrokerConfig -k traceOn -v true
updateTopicPerm-b|updateTopicPerm -b BROKER -t Golden -p 4
updateTopicPerm-b-again|updateTopicPerm -b BROKER -t Golden -p 4
updateTopicPerm-c|updateTopicPerm -c DefaultCluster -t Golden -p 6
updateTopicPerm-unknown|updateTopicPerm -c DefaultCluster -t NoSuchTopic -p 6
updateOrderConf-put|updateOrderConf -t Golden -m put -v broker-a:2
updateOrderConf-get|updateOrderConf -t Golden -m get
updateOrderConf-delete|updateOrderConf -t Golden -m delete
topicClusterList|topicClusterList -t Golden
topicClusterList-unknown|topicClusterList -t NoSuchTopic
queryMsgById|queryMsgById -t Golden -i OFFSETID
queryMsgById-f|queryMsgById -t Golden -i OFFSETID -f UTF-8
queryMsgById-missing|queryMsgById -t Golden -i MISSINGID
queryMsgByKey|queryMsgByKey -t Golden -k key1
queryMsgByKey-none|queryMsgByKey -t Golden -k nokey
queryMsgByUniqueKey|queryMsgByUniqueKey -t Golden -i UNIQUE
queryMsgByUniqueKey-a|queryMsgByUniqueKey -t Golden -i UNIQUE -a
queryMsgByUniqueKey-none|queryMsgByUniqueKey -t Golden -i 7F0000010001000000000000000000AA
queryMsgByOffset|queryMsgByOffset -t Golden -b broker-a -i 0 -o 0
queryMsgByOffset-f|queryMsgByOffset -t Golden -b broker-a -i 0 -o 0 -f UTF-8
queryMsgByOffset-beyond|queryMsgByOffset -t Golden -b broker-a -i 0 -o 99
queryCq|queryCq -t Golden -q 0 -i 0 -c 2 -b BROKER
queryCq-group|queryCq -t Golden -q 0 -i 0 -c 2 -b BROKER -g golden_group
queryCq-unknown|queryCq -t NoSuchTopic -q 0 -i 0 -c 2 -b BROKER
printMsg|printMsg -t Golden
printMsg-d|printMsg -t Golden -d true -s TagA
printMsg-none|printMsg -t NoSuchTopic
consumerProgress|consumerProgress
consumerProgress-g|consumerProgress -g golden_group
consumerProgress-s|consumerProgress -g golden_group -s true
consumerProgress-t|consumerProgress -g golden_group -t Golden
consumerProgress-c|consumerProgress -g golden_group -t Golden -c Golden
consumerProgress-g-unknown|consumerProgress -g NoSuchGroup
consumerConnection|consumerConnection -g golden_group
consumerConnection-b|consumerConnection -g golden_group -b BROKER
consumerConnection-unknown|consumerConnection -g NoSuchGroup
consumerStatus|consumerStatus -g golden_group
consumerStatus-unknown|consumerStatus -g NoSuchGroup
producerConnection-unknown|producerConnection -g NoSuchGroup -t Golden
producerConnection|producerConnection -g producer_group -t Golden
producer|producer -b BROKER
statsAll|statsAll -t Golden
statsAll-a|statsAll -a
brokerConsumeStats|brokerConsumeStats -b BROKER
brokerConsumeStats-l|brokerConsumeStats -b BROKER -l 100
brokerConsumeStats-l-0|brokerConsumeStats -b BROKER -l 0 -t 4000
resetOffsetByTime-online|resetOffsetByTime -g golden_group -t Golden -s 0
resetOffsetByTime-c|resetOffsetByTime -g golden_group -t Golden -s 0 -c Golden
skipAccumulatedMessage-online|skipAccumulatedMessage -g golden_group -t Golden
resetOffsetByTime-now|resetOffsetByTime -g golden_group -t Golden -s now
resetOffsetByTime-unknown-group|resetOffsetByTime -g NoSuchGroup -t Golden -s 0
resetOffsetByTime-unknown-topic|resetOffsetByTime -g golden_group -t NoSuchTopic -s 0
cloneGroupOffset-unknown|cloneGroupOffset -s golden_group -d CloneOf -t Golden -o true
updateSubGroup-clone|updateSubGroup -b BROKER -g CloneOf
cloneGroupOffset|cloneGroupOffset -s golden_group -d CloneOf -t Golden -o true
cleanExpiredCQ-b|cleanExpiredCQ -b BROKER
cleanExpiredCQ-c|cleanExpiredCQ -c DefaultCluster
cleanUnusedTopic-b|cleanUnusedTopic -b BROKER
cleanUnusedTopic-c|cleanUnusedTopic -c DefaultCluster
deleteExpiredCommitLog-b|deleteExpiredCommitLog -b BROKER
deleteExpiredCommitLog-c|deleteExpiredCommitLog -c DefaultCluster
deleteExpiredCommitLog-unknown|deleteExpiredCommitLog -c NoCluster
OFFLINE|
consumerConnection-offline|consumerConnection -g golden_group
consumerStatus-offline|consumerStatus -g golden_group
consumerProgress-g-offline|consumerProgress -g golden_group
resetOffsetByTime-offline|resetOffsetByTime -g golden_group -t Golden -s 0
skipAccumulatedMessage-offline|skipAccumulatedMessage -g golden_group -t Golden
"""

RESET: Final = {"topic": "Golden", "group": "golden_group", "timestamp": "0", "isForce": "true"}
PROBES: Final[tuple[tuple[str, int, dict[str, str]], ...]] = (
    ("runtime info of the broker", 28, {}),
    ("reset, force", 222, RESET),
    ("reset, unknown group", 222, RESET | {"group": "Nobody"}),
    ("status of clients", 223, {"topic": "Golden", "group": "golden_group"}),
    ("status of clients, unknown group", 223, {"topic": "Golden", "group": "Nobody"}),
    ("time span", 303, {"topic": "Golden", "group": "golden_group"}),
    ("time span, unknown topic", 303, {"topic": "NoSuchTopic", "group": "golden_group"}),
    ("correction", 308, {"topic": "Golden", "compareGroup": "golden_group", "filterGroups": ""}),
    ("statistics", 315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "Golden"}),
    ("statistics, unknown key", 315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "NoSuchTopic"}),
    ("statistics, unknown name", 315, {"statsName": "NO_SUCH", "statsKey": "Golden"}),
    ("consume statistics of the broker", 317, {"isOrder": "false"}),
    ("queue entries", 321, {"topic": "Golden", "queueId": "0", "index": "0", "count": "2"}),
    ("queue entries, unknown", 321, {"topic": "NoSuchTopic", "queueId": "0", "index": "0", "count": "2"}),
    ("producers", 328, {}),
    ("topics of a consumer", 343, {"group": "golden_group"}),
    ("subscription of a consumer", 345, {"group": "golden_group", "topic": "Golden"}),
    ("one group's configuration", 352, {"group": "golden_group"}),
    ("an unknown group's configuration", 352, {"group": "NoSuchGroup"}),
    ("clone", 314, {"srcGroup": "golden_group", "destGroup": "Copy", "topic": "Golden", "offline": "true"}),
    ("messages by key", 12, {"topic": "Golden", "key": "key1", "maxNum": "3", "beginTimestamp": "0", "endTimestamp": "9999999999999"}),  # noqa: E501
    ("messages by key, none", 12, {"topic": "Golden", "key": "no", "maxNum": "3", "beginTimestamp": "0", "endTimestamp": "9999999999999"}),  # noqa: E501
)  # fmt: skip


def knows(help_text: str, args: list[str]) -> bool:
    """Return True if the help text of a subcommand names all options of the command line ``args``."""
    given = {arg for arg in args if re.fullmatch(r"-[a-z]|--[a-z]+", arg)}
    return given <= set(re.findall(r"(?<![\w-])(-[a-z]|--[A-Za-z]+)\b", help_text))


def described(exchange: Exchange, folder: str) -> dict[str, Any]:
    """Return one request and its answer as JSON members; bodies are in base64.

    Args:
        folder: Working folder during the recording; recorded bodies contain ``/HOME`` instead of its path.
    """
    request, response = exchange.request, exchange.response
    asked = {
        "of": exchange.receiver,
        "code": request.header["code"],
        "fields": request.header.get("extFields") or {},
        "body": base64.b64encode(request.body).decode(),
    }
    if response is None:
        return asked
    return asked | {
        "answer": response.header["code"],
        "remark": response.header.get("remark"),
        "answer_fields": response.header.get("extFields") or {},
        "answer_body": base64.b64encode(response.body.replace(folder.encode(), b"/HOME")).decode(),
    }


def capture(release: str, folder: Path) -> None:
    stage = Stage(release, "json", folder)
    broker = f"127.0.0.1:{PORTS[release][1]}"
    kept: list[dict[str, Any]] = []
    try:
        stage.start()
        stage.broker("broker-a", "registration", shown=True)
        stage.record.doing("client", "")

        def run(name: str, args: list[str]) -> str:
            stage.record.doing("mqadmin", name)
            result = stage.apache.admin(*args, namesrvs=[stage.namesrv])
            with stage.record.lock:
                asked = [
                    described(exchange, str(folder))
                    for exchange in stage.record.exchanges
                    if exchange.note == name
                    and exchange.sender == "mqadmin"
                    and exchange.request.header["code"] not in (34, 35, 40)
                ]
            kept.append(
                {
                    "name": name,
                    "args": args,
                    "stdout": result.stdout.replace(str(folder), "/HOME"),
                    "stderr": result.stderr.replace(str(folder), "/HOME")[:1500],
                    "asked": asked,
                }
            )
            print(release, name, len(result.stdout), flush=True)
            return result.stdout

        helps = {command: run(f"{command}-h", ["help", command]) for command in COMMANDS}
        run("updateTopic", ["updateTopic", "-b", broker, "-t", "Golden", "-r", "2", "-w", "2"])
        wait_until(lambda: has_route(stage.real_namesrv.addr, "Golden", broker), "route", 40)
        unique = "7F000001000000000000000000000003"
        for number, (body, key, tag) in enumerate(
            (("one", "key1", "TagA"), ("two", "key1", "TagB"), ("three", "key2", "TagA")), 1
        ):
            marks = {"KEYS": key, "UNIQ_KEY": f"{unique[:-1]}{number}", "TAGS": tag}
            properties = "".join(f"{name}\x01{value}\x02" for name, value in marks.items())
            send = dict.fromkeys("efhj", "0") | {"a": "PG", "b": "Golden", "c": "TBW102", "d": "4"}
            send |= {"g": "1700000000000", "i": properties, "k": "false", "m": "false"}
            assert ask(broker, 310, send, body.encode())[0] == 0
        stored = ask(broker, 11, {"consumerGroup": "PROBE", "topic": "Golden", "queueId": "0",
            "queueOffset": "2", "maxMsgNums": "1", "sysFlag": "4", "commitOffset": "0",
            "suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*"})[2]  # fmt: skip
        offset_id = (stored[64:72] + stored[28:36]).hex().upper()
        missing_id = offset_id[:-16] + f"{10**6:016X}"
        consumer = stage.apache.consumer([stage.namesrv], "Golden", "golden_group", 10**6, seconds=500)
        consumer.wait_for("ready")
        wait_until(lambda: ask(broker, 203, {"consumerGroup": "golden_group"})[0] == 0, "online", 40)
        time.sleep(12)  # a consumer stores its offsets for the first time 10 s after its start
        for line in RUNS.strip().splitlines():
            name, _, text = line.partition("|")
            for mark, value in (("BROKER", broker), ("OFFSETID", offset_id), ("MISSINGID", missing_id)):
                text = text.replace(mark, value)
            text = text.replace("UNIQUE", unique)
            if release.startswith("4."):  # no -t in 4.x, because its message ids contain the address
                text = text.replace("queryMsgById -t Golden", "queryMsgById")
            if name == "OFFLINE":
                for note, code, fields in PROBES:
                    answer, header, content = ask(broker, code, fields)
                    kept.append(
                        {
                            "name": f"probe: {note}",
                            "code": code,
                            "fields": fields,
                            "answer": answer,
                            "remark": header.get("remark"),
                            "answer_fields": header.get("extFields") or {},
                            "answer_body": base64.b64encode(
                                content.replace(str(folder).encode(), b"/HOME")
                            ).decode(),
                        }
                    )
                stage.apache.end_clients()
                continue
            args = shlex.split(text)
            if not knows(helps[args[0]], args):
                continue
            if name == "producerConnection":
                with producer_member(broker):
                    run(name, args)
                continue
            run(name, args)
    finally:
        out = HERE / "mqadmin" / f"{release}-broker.json"
        out.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
        stage.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Record Apache's mqadmin and the answers of Apache's broker."
    )
    parser.add_argument("release", choices=sorted(PORTS))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="golden") as folder:
        capture(arguments.release, Path(folder))


if __name__ == "__main__":
    main()
