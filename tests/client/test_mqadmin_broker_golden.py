"""Our mqadmin prints the same text as Apache's mqadmin from the same answers of brokers."""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.client.mqadmin import mqadmin
from tests.golden.words import LOST, lost

FOLDER = Path(__file__).resolve().parent.parent / "golden" / "mqadmin"
BROKERS = {"4.9.7": "127.0.0.1:10911", "5.3.3": "127.0.0.1:10921"}
CASES = {
    (release, case["name"]): case
    for release in BROKERS
    for case in json.loads((FOLDER / f"{release}-broker.json").read_text())
    if "args" in case and not case["name"].endswith("-h")
}


#: Recorded commands that end with code 0 in Apache's tool. Our tool prints the reason and ends with code 1.
FAILS: Final = {
    "updateSubGroup-nowhere": "Give -b or -c",
    "updateBrokerConfig-nowhere": "Give -b or -c",
    "getBrokerConfig-nowhere": "Give -b or -c",
    "updateSubGroup-unknown-cluster": "no master in cluster 'NoCluster'",
    "deleteExpiredCommitLog-unknown": "no master in cluster 'NoCluster'",
    "getConsumerConfig-unknown": "no broker knows group 'NoSuchGroup'",
    "queryMsgByOffset-beyond": "no message at offset 99: OFFSET_ILLEGAL, the queue has offsets 0 to 3",
    # In these two commands, Apache's tool uses -c only for light message queues. So it ignored the recorded
    # cluster, although this cluster does not exist.
    "consumerProgress-c": "no master in cluster 'Golden' has topic 'Golden'",
    "resetOffsetByTime-c": "no master in cluster 'Golden' has topic 'Golden'",
}
#: Commands after which our tool asks the broker whether it stored the setting. Apache's tool does not ask, so
#: the command's recording lacks the broker's answer. The value names a command whose recording has it.
LENDERS: Final = {
    "updateSubGroup-orderly": "getConsumerConfig",
    "updateSubGroup-policy": "getConsumerConfig",
    "updateBrokerConfig-b": "getBrokerConfig-b",
    "updateBrokerConfig-c": "getBrokerConfig-b",
    "updateBrokerConfig-all": "getBrokerConfig-b",
}
#: To clone offsets, our tool sends one request (code 314) to the broker. Apache's tool reads the offsets and
#: writes each of them (code 15).
CLONE_GROUP_OFFSET: Final = 314
UPDATE_CONSUMER_OFFSET: Final = 15
VIEW_MESSAGE_BY_ID: Final = 33
#: Codes of two requests that only our tool sends, so no recording has answers to them. Our tool asks for all
#: topics to read a topic's permission, and for the offsets of all groups to check cloned offsets.
ALL_TOPICS: Final = 21
ALL_OFFSETS: Final = 43
CLONED: Final = b'{"offsetTable":{"Golden@golden_group":{0:3,1:0},"Golden@CloneOf":{0:3,1:0}}}'
#: Permission of topic Golden at the broker, in the cases whose permission is not 4.
PERMISSIONS: Final = {"updateTopicPerm-b": 6}
#: Beginnings of the names of cases in which Apache's tool prints a table in the order of a hash table.
UNORDERED: Final = ("getBrokerConfig-",)


def replayed(case: dict[str, Any], their_broker: str, new_peer: Callable[..., Any]) -> tuple[int, str, str]:
    """Run a case at a peer that answers as Apache's servers did.

    The peer gives the recorded answer to the most similar request. If several requests are equally similar,
    the peer gives the answer to the first of them, and then removes this answer.
    """
    peer = new_peer()
    release = next(name for name, addr in BROKERS.items() if addr == their_broker)
    lent = CASES[release, LENDERS[case["name"]]]["asked"] if case["name"] in LENDERS else []
    refused = (one for one in case["asked"] if one["code"] == UPDATE_CONSUMER_OFFSET and one.get("answer"))
    left: dict[int, list[dict[str, Any]]] = {CLONE_GROUP_OFFSET: [next(refused, {"fields": {}})]}
    for asked in (*case["asked"], *lent):
        left.setdefault(asked["code"], []).append(asked)
    left.setdefault(VIEW_MESSAGE_BY_ID, []).append(last_message(release))
    golden = {"topicName": "Golden", "readQueueNums": 2, "writeQueueNums": 2}
    golden["perm"] = PERMISSIONS.get(case["name"], 4)
    topics = json.dumps({"topicConfigTable": {"Golden": golden}}).encode()
    for code, table in ((ALL_TOPICS, topics), (ALL_OFFSETS, CLONED)):
        left.setdefault(code, []).append({"fields": {}, "answer_body": base64.b64encode(table).decode()})

    def answer(request: Any) -> Any:
        given = left.get(request.code)
        place = request.ext_fields.get("offset")
        if not given or (request.code == VIEW_MESSAGE_BY_ID and given[0]["fields"]["offset"] != place):
            return request.reply(1, remark="not recorded")

        def common(asked: dict[str, Any]) -> int:
            return len(asked["fields"].items() & dict(request.ext_fields).items())

        most = max(map(common, given))
        found, *more = (asked for asked in given if common(asked) == most)
        if more:
            given.remove(found)
        body = base64.b64decode(found.get("answer_body", ""))
        return request.reply(
            found.get("answer", 0),
            remark=found.get("remark"),
            ext_fields=found.get("answer_fields") or {},
            body=body.replace(their_broker.encode(), peer.addr.encode()),
        )

    peer.answer = answer
    args = [peer.addr if arg == their_broker else arg for arg in case["args"]]
    if "queryMsgById" in args:
        place = args.index("-i") + 1
        args[place] = moved(args[place], peer.addr)
    code, out, err = mqadmin(*args, namesrv=peer.addr)
    return code, out.replace(peer.addr, their_broker), err


def last_message(release: str) -> dict[str, Any]:
    """Return an answer to the request for one message by its log offset, in the form of recorded answers.

    The recordings do not contain such an answer. So this function takes the bytes of the last message in a
    recorded answer to a pull.
    """
    (pull,) = (asked for asked in CASES[release, "printMsg"]["asked"] if asked["code"] == 11)
    body, start = base64.b64decode(pull["answer_body"]), 0
    while start + (size := struct.unpack_from(">I", body, start)[0]) < len(body):
        start += size
    (place,) = struct.unpack_from(">Q", body, start + 28)
    return {"fields": {"offset": str(place)}, "answer_body": base64.b64encode(body[start:]).decode()}


def moved(message_id: str, addr: str) -> str:
    """Return the id of a message with the same log offset, but with another broker address."""
    host, _, port = addr.rpartition(":")
    return bytes(map(int, host.split("."))).hex().upper() + f"{int(port):08X}" + message_id[16:]


def comparable(text: str, name: str) -> list[str]:
    """Return the lines of an output. Replace parts that cannot be equal, or that differ on purpose."""
    # Apache's tool writes a message's body to a file and prints the file's name. Our tool prints the body.
    # With -f, both tools print the body.
    text = re.sub(r"^Message Body( Path)?: +(?!three$|one$).*\n", "", text, flags=re.MULTILINE)
    if "queryMsg" in name and not name.endswith("-f"):
        text = re.sub(r"^Message Body: .*\n", "", text, flags=re.MULTILINE)
    text = text.replace("]MessageTrack", "]\nMessageTrack")
    # If a message's track is unknown, Apache's tool prints a stack trace as the reason.
    text = re.sub(r"(trackType=UNKNOWN, exceptionDesc=)[^\]]*\]", r"\1WHY]", text)
    # A message contains the real address of its broker. The recorded tool knew only the address of the
    # recording proxy. So its text about the group's consumption differs from ours.
    text = re.sub(r"(consumerGroup=golden_group, )[^\]]*\]", r"\1WHAT]", text)
    # Our tool prints each member's number of queues. Apache's prints the name of the file with the answers.
    text = re.sub(r"(?<=#Version             ).*", "LAST", text)
    text = re.sub(r"^(1 +\d+\.\S+ +V\S+ +).*", r"\1LAST", text, flags=re.MULTILINE)
    # For "now", our tool and Apache's tool 4.9.7 send -1. Apache's tool 5.3.3 sends the present time.
    text = re.sub(r"(timestamp\(string\)\[now\], timestamp\(long\)\[)-?\d+", r"\1NOW", text)
    lines = [line.rstrip() for line in text.strip("\n").splitlines()]
    return sorted(lines) if name.startswith(UNORDERED) else lines


@pytest.mark.parametrize("name", [name for release, name in CASES if release == "5.3.3"])
def test_output_is_that_of_5_3_3(name: str, new_peer: Callable[..., Any]) -> None:
    case = CASES["5.3.3", name]
    code, out, err = replayed(case, BROKERS["5.3.3"], new_peer)
    if name in FAILS:
        check_failure(name, case, code, err)
    elif case["stderr"]:  # if Apache's tool prints a stack trace, ours prints one line
        assert (code, len(err.splitlines())) == (1, 1)
        assert comparable(out, name) == comparable(case["stdout"], name) == []
    else:
        assert (code, err) == (0, "")
        assert comparable(out, name) == comparable(case["stdout"], name)


@pytest.mark.parametrize("name", [name for release, name in CASES if release == "4.9.7"])
def test_what_4_9_7_printed_is_there(name: str, new_peer: Callable[..., Any]) -> None:
    case = CASES["4.9.7", name]
    code, out, err = replayed(case, BROKERS["4.9.7"], new_peer)
    if name in FAILS:
        check_failure(name, case, code, err)
    elif case["stderr"]:
        assert (code, len(err.splitlines())) == (1, 1)
    else:
        assert (code, err) == (0, "")
        have, want = ("\n".join(comparable(text, name)) for text in (out, case["stdout"]))
        assert lost(name, want, have) == []


def check_failure(name: str, case: dict[str, Any], code: int, err: str) -> None:
    assert case["stderr"] == "", "it is no difference any more"
    assert (code, len(err.splitlines())) == (1, 1)
    assert FAILS[name] in err


def test_every_difference_is_one_of_a_run() -> None:
    names = {name for _, name in CASES}
    assert {*FAILS, *LENDERS} <= names
    assert [begin for begin in LOST if not any(name.startswith(begin) for name in names)] == []
