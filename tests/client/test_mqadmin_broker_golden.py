"""Our mqadmin prints of brokers, groups and messages what Apache's 5.3.3 printed, given the same answers."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client.mqadmin.__main__ import main

FILE = Path(__file__).resolve().parent.parent / "golden" / "mqadmin" / "5.3.3-broker.json"
CASES = {case["name"]: case for case in json.loads(FILE.read_text())}
THEIR_BROKER = "127.0.0.1:10921"
#: What is the same to the byte.
SAME = (
    "updateSubGroup-b",
    "updateSubGroup-c",
    "getConsumerConfig",
    "deleteSubGroup-b",
    "deleteSubGroup-c",
    "brokerStatus-b",
    "brokerStatus-c",
    "updateBrokerConfig-b",
    "updateBrokerConfig-c",
    "updateTopicPerm-b",
    "updateTopicPerm-b-again",
    "updateTopicPerm-c",
    "updateOrderConf-put",
    "updateOrderConf-get",
    "updateOrderConf-delete",
    "topicClusterList",
    "queryMsgByKey",
    "queryCq",
    "consumerConnection",
    "consumerConnection-b",
    "consumerProgress",
    "consumerProgress-g",
    "consumerProgress-g-offline",
    "producer",
    "brokerConsumeStats",
    "resetOffsetByTime-online",
    "skipAccumulatedMessage-online",
    "resetOffsetByTime-offline",
    "cleanExpiredCQ-b",
    "cleanExpiredCQ-c",
    "cleanUnusedTopic-b",
    "deleteExpiredCommitLog-b",
    "deleteExpiredCommitLog-c",
)


def replayed(case: dict[str, Any], new_peer: Callable[..., Any]) -> tuple[int, str, str]:
    """Run a case at a peer that answers as Apache's servers did; the last answer to a code is given again."""
    peer = new_peer()
    left: dict[int, list[dict[str, Any]]] = {}
    for asked in case["asked"]:
        left.setdefault(asked["code"], []).append(asked)

    def answer(request: Any) -> Any:
        given = left.get(request.code)
        if not given:
            return request.reply(0)
        same = [one for one in given if one["fields"].get("topic") == request.ext_fields.get("topic")]
        found = (same or given)[0]
        if len(given) > 1:
            given.remove(found)
        body = base64.b64decode(found.get("answer_body", ""))
        return request.reply(
            found.get("answer", 0),
            remark=found.get("remark"),
            ext_fields=found.get("answer_fields") or {},
            body=body.replace(THEIR_BROKER.encode(), peer.addr.encode()),
        )

    peer.answer = answer
    args = [peer.addr if arg == THEIR_BROKER else arg for arg in case["args"]]
    out, err = io.StringIO(), io.StringIO()
    code = main(args, environment={"NAMESRV_ADDR": peer.addr}, out=out, err=err)
    return code, out.getvalue().replace(peer.addr, THEIR_BROKER), err.getvalue()


def lines(text: str) -> list[str]:
    """Return what is not blank; a column's width around an address depends on the address's length."""
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("name", SAME)
def test_output_is_apaches(name: str, new_peer: Callable[..., Any]) -> None:
    code, out, err = replayed(CASES[name], new_peer)
    assert (code, err) == (0, "")
    assert lines(out) == lines(CASES[name]["stdout"])
