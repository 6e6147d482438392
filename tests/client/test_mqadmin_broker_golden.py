"""For the same answers, our mqadmin prints the same about brokers, groups and messages as Apache's."""

from __future__ import annotations

import base64
import io
import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from routekeeper.client.mqadmin.__main__ import main
from tests.golden.words import LOST, lost

FOLDER = Path(__file__).resolve().parent.parent / "golden" / "mqadmin"
BROKERS = {"4.9.7": "127.0.0.1:10911", "5.3.3": "127.0.0.1:10921"}
CASES = {
    (release, case["name"]): case
    for release in BROKERS
    for case in json.loads((FOLDER / f"{release}-broker.json").read_text())
    if "args" in case and not case["name"].endswith("-h")
}


#: Runs that Apache's tool ends with 0 and ours with 1 and one line that says why.
FAILS: Final = {
    "updateSubGroup-nowhere": "Give -b or -c",
    "updateBrokerConfig-nowhere": "Give -b or -c",
    "getBrokerConfig-nowhere": "Give -b or -c",
    "updateSubGroup-unknown-cluster": "no master in cluster 'NoCluster'",
    "deleteExpiredCommitLog-unknown": "no master in cluster 'NoCluster'",
    "getConsumerConfig-unknown": "no broker knows group 'NoSuchGroup'",
    "queryMsgByOffset-beyond": "no message at offset 99: OFFSET_ILLEGAL, the queue has offsets 0 to 3",
    # Apache's tool uses -c of these only for light message queues; the recorded cluster does not exist
    "consumerProgress-c": "no master in cluster 'Golden' has topic 'Golden'",
    "resetOffsetByTime-c": "no master in cluster 'Golden' has topic 'Golden'",
}
#: Commands whose recording also answers an additional query of ours: was the setting stored?
LENDERS: Final = {"updateSubGroup-orderly": "getConsumerConfig", "updateSubGroup-policy": "getConsumerConfig"}
#: Apache's tool reads and writes each queue's offset itself, ours has the broker do it.
CLONE_GROUP_OFFSET: Final = 314
UPDATE_CONSUMER_OFFSET: Final = 15
VIEW_MESSAGE_BY_ID: Final = 33
#: Tables that Apache prints in the order of a hash table.
UNORDERED: Final = ("getBrokerConfig-",)


def replayed(case: dict[str, Any], their_broker: str, new_peer: Callable[..., Any]) -> tuple[int, str, str]:
    """Run a case at a peer that answers as Apache's servers did.

    It gives the first answer to the most similar recorded request; each once, if there are several.
    """
    peer = new_peer()
    release = next(name for name, addr in BROKERS.items() if addr == their_broker)
    lent = CASES[release, LENDERS[case["name"]]]["asked"] if case["name"] in LENDERS else []
    refused = (one for one in case["asked"] if one["code"] == UPDATE_CONSUMER_OFFSET and one.get("answer"))
    left: dict[int, list[dict[str, Any]]] = {CLONE_GROUP_OFFSET: [next(refused, {"fields": {}})]}
    for asked in (*case["asked"], *lent):
        left.setdefault(asked["code"], []).append(asked)
    left.setdefault(VIEW_MESSAGE_BY_ID, []).append(last_message(release))

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
    out, err = io.StringIO(), io.StringIO()
    code = main(args, environment={"NAMESRV_ADDR": peer.addr}, out=out, err=err)
    return code, out.getvalue().replace(peer.addr, their_broker), err.getvalue()


def last_message(release: str) -> dict[str, Any]:
    """Return the answer to a question for the last message by its place.

    That request did not pass the recording proxy; the bytes are those of an answer to a pull.
    """
    (pull,) = (asked for asked in CASES[release, "printMsg"]["asked"] if asked["code"] == 11)
    body, start = base64.b64decode(pull["answer_body"]), 0
    while start + (size := struct.unpack_from(">I", body, start)[0]) < len(body):
        start += size
    (place,) = struct.unpack_from(">Q", body, start + 28)
    return {"fields": {"offset": str(place)}, "answer_body": base64.b64encode(body[start:]).decode()}


def moved(message_id: str, addr: str) -> str:
    """Return the id of the same place at another address."""
    host, _, port = addr.rpartition(":")
    return bytes(map(int, host.split("."))).hex().upper() + f"{int(port):08X}" + message_id[16:]


def comparable(text: str, name: str) -> list[str]:
    """Return the lines of an output; mask parts that cannot be equal, or differ on purpose."""
    # Apache's tool writes the body to a file and names it, ours prints it; printed with -f, both have it
    text = re.sub(r"^Message Body( Path)?: +(?!three$|one$).*\n", "", text, flags=re.MULTILINE)
    if "queryMsg" in name and not name.endswith("-f"):
        text = re.sub(r"^Message Body: .*\n", "", text, flags=re.MULTILINE)
    text = text.replace("]MessageTrack", "]\nMessageTrack")
    # why a track is not known, Apache's tool says by a stack trace
    text = re.sub(r"(trackType=UNKNOWN, exceptionDesc=)[^\]]*\]", r"\1WHY]", text)
    # a message names the store in which it is, and the broker that the recorded tool knew was a proxy of it
    text = re.sub(r"(consumerGroup=golden_group, )[^\]]*\]", r"\1WHAT]", text)
    # ours prints each member's number of queues, Apache's names the file into which it wrote the answers
    text = re.sub(r"(?<=#Version             ).*", "LAST", text)
    text = re.sub(r"^(1 +\d+\.\S+ +V\S+ +).*", r"\1LAST", text, flags=re.MULTILINE)
    text = re.sub(r"(timestamp\(string\)\[now\], timestamp\(long\)\[)\d+", r"\1NOW", text)
    lines = [line.rstrip() for line in text.strip("\n").splitlines()]
    return sorted(lines) if name.startswith(UNORDERED) else lines


@pytest.mark.parametrize("name", [name for release, name in CASES if release == "5.3.3"])
def test_output_is_that_of_5_3_3(name: str, new_peer: Callable[..., Any]) -> None:
    case = CASES["5.3.3", name]
    code, out, err = replayed(case, BROKERS["5.3.3"], new_peer)
    if name in FAILS:
        check_failure(name, case, code, err)
    elif case["stderr"]:  # Apache's tool then prints a stack trace, and ends with 0
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
