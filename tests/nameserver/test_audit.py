"""Tests of the audit log, which has a line for each change that an operator requests.

If very many changes arrive, the log leaves out some lines, and states how many it left out.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from routekeeper.nameserver.types import Answer, Request
from routekeeper.nameserver.wire.audit_log import AuditLog, result_of
from routekeeper.remoting.audit_log import LINES_PER_HOST
from tests.nameserver.http.test_server_http import running


def deletion(topic: str = "T") -> Request:
    return Request(code=216, ext_fields={"topic": topic, "clusterName": "C", "x": "y"})


@pytest.fixture
def line_of(caplog: pytest.LogCaptureFixture) -> Callable[[Request, Answer], str]:
    """Return a function that writes the audit line of a request and its answer, and returns the line."""

    def line_of(request: Request, answer: Answer) -> str:
        async def main() -> None:
            AuditLog().request("10.0.0.1:5", request, answer)

        with caplog.at_level(logging.INFO, "routekeeper.nameserver.audit"):
            asyncio.run(main())
        return caplog.records[-1].getMessage()

    return line_of


def test_line_says_who_what_and_result(line_of: Callable[[Request, Answer], str]) -> None:
    assert line_of(deletion(), Answer()) == (
        "audit peer=10.0.0.1:5 change=DELETE_TOPIC_IN_NAMESRV topic=T clusterName=C result=applied"
    )


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (Answer(), "applied"),
        (Answer(code=1, remark="[NO_QUORUM] no leader"), "not-applied"),
        (Answer(code=1, remark="[OUTCOME_UNKNOWN] no verdict"), "unknown"),
        (Answer(code=17, remark="no such topic"), "refused(17)"),
    ],
)
def test_outcomes_are_kept_apart(answer: Answer, word: str) -> None:
    assert result_of(answer) == word


def test_long_names_are_cut(line_of: Callable[[Request, Answer], str]) -> None:
    line = line_of(deletion("x" * 100_000), Answer())
    assert len(line) < 400


def test_name_cannot_pass_for_another_field(line_of: Callable[[Request, Answer], str]) -> None:
    line = line_of(deletion("T result=applied"), Answer(code=1))
    assert line.split(" clusterName")[0].endswith('topic="T result=applied"')


def test_changes_over_wire_and_http_are_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with running(tmp_path) as ns:
            await ns.ask(100, namespace="N", key="k", value="secret")
            await ns.ask(102, namespace="N", key="k")
            await ns.ask(205, brokerName="b")
            await ns.ask(327, brokerName="b")
            await ns.ask(216, topic="T")
            await ns.ask(217, topic="U", body=b"[]")
            await ns.ask(318, b"enableTopicList=false\n")
            await ns.ask(105, topic="T")
            async with ns.web.post(f"http://{ns.http}/v1/raft/transfer") as answer:
                assert answer.status >= 400
            for _ in range(100):
                await ns.ask(216, topic="T")

    with caplog.at_level(logging.INFO, "routekeeper.nameserver.audit"):
        asyncio.run(main())
    lines = [
        record.getMessage() for record in caplog.records if record.name == "routekeeper.nameserver.audit"
    ]
    found = [
        re.findall(r"change=(.*?)(?: [a-zA-Z]+=| result)", line)[0] for line in lines if "change=" in line
    ]
    assert found[:8] == [
        *("PUT_KV_CONFIG", "DELETE_KV_CONFIG", "WIPE_WRITE_PERM_OF_BROKER", "ADD_WRITE_PERM_OF_BROKER"),
        *("DELETE_TOPIC_IN_NAMESRV", "REGISTER_TOPIC_IN_NAMESRV", "UPDATE_NAMESRV_CONFIG"),
        "POST /v1/raft/transfer",
    ]
    assert all(re.match(r"audit peer=127\.0\.0\.1:\d+ ", line) for line in lines[:8])
    assert "secret" not in " ".join(lines)
    assert len(lines) == LINES_PER_HOST + 1
    assert lines[-1] == f"audit lines left out suppressed={108 - LINES_PER_HOST}"
