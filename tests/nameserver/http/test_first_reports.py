"""Tests of ``/readyz`` of a nameserver that has just started.

With ``needWaitForService``, such a nameserver refuses route queries until brokers have had time to register.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.nameserver.test_main import started
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.one_core]

RAFT = ("--mode", "raft", "--raft", "127.0.0.1:0", "--peers", "127.0.0.1:0")
WAITS = ("--needWaitForService", "true", "--waitSecondsForService", "3600")


def readiness(http: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{http}/readyz", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)["detail"]


@pytest.mark.parametrize("mode", [(), RAFT], ids=["independent", "raft"])
def test_readyz_is_503_while_route_queries_are_refused_for_the_first_reports(
    tmp_path: Path, mode: tuple[str, ...]
) -> None:
    with started(tmp_path, "--http", "127.0.0.1:0", *mode, *WAITS) as (_, ready), BlockingClient() as client:
        addr, http = ready["listen"], ready["http"]
        change = RemotingCommand.request(318, {}, b"waitSecondsForService=3599")
        wait_until(lambda: client.invoke(addr, change).code == 0, "the group has a leader")
        query = RemotingCommand.request(105, {"topic": "T"})
        wait_until(lambda: client.invoke(addr, query).remark == "name server not ready", "no other reason")
        wait_until(lambda: readiness(http)[1].startswith("reads cannot be served"), "writes are served")
        code, detail = readiness(http)
        assert code == 503
        assert "first reports of brokers" in detail
        assert "needWaitForService" in detail
        with urllib.request.urlopen(f"http://{http}/v1/status", timeout=10) as answer:
            status = json.load(answer)
        assert (status["reads_ready"], status["writes_ready"]) == (False, True)
        enough = RemotingCommand.request(318, {}, b"waitSecondsForService=0")
        assert client.invoke(addr, enough).code == 0
        assert client.invoke(addr, query).code == 17
        assert readiness(http) == (200, "ready\n")
