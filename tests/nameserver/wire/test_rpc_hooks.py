"""Tests of hooks. A hook is an operator's own code that sees every request and may refuse it.

If a hook fails, only its request may fail.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.faults.servers import refusal
from tests.nameserver.test_main import started
from tests.nameserver.wire.test_cluster_test import figure
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.one_core]

HOOKS = """
import os, time
from msgspec.structs import replace
from routekeeper import RequestRefused

def note(*words):
    with open(os.environ["HOOK_NOTES"], "a") as notes:
        print(*words, file=notes, flush=True)

class Guard:
    def before_request(self, remote, request):
        note("before", request.code, remote)
        if request.code == 206:
            raise RequestRefused(16, "lists are not for everybody")
        if request.ext_fields.get("topic") == "Old":
            return replace(request, ext_fields={**request.ext_fields, "topic": "New"})
        return request

    def after_response(self, remote, request, response):
        note("after", request.code, response.code)

class Fails(Guard):
    def before_request(self, remote, request):
        if request.code == 105:
            raise KeyError("the operator's own")
        return request

    def after_response(self, remote, request, response):
        raise KeyError("the operator's own")

class Slow(Guard):
    def before_request(self, remote, request):
        time.sleep(0.3 if request.code == 206 else 0)
        return request

class ChangesCode(Guard):
    def before_request(self, remote, request):
        return replace(request, code=206) if request.code == 102 else request

class Awaits(Guard):
    async def before_request(self, remote, request):
        return request
"""
RAFT = ("--mode", "raft", "--raft", "127.0.0.1:0", "--peers", "127.0.0.1:0")


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the hooks to a folder where the server finds them.

    Return the file to which the hooks write their calls.
    """
    (tmp_path / "operators").mkdir()
    (tmp_path / "operators" / "operators_hooks.py").write_text(HOOKS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "operators"))
    monkeypatch.setenv("HOOK_NOTES", str(tmp_path / "notes.txt"))
    (tmp_path / "notes.txt").touch()
    return tmp_path / "notes.txt"


def hook(name: str) -> tuple[str, str]:
    return "--rpc-hook", f"operators_hooks:{name}"


@pytest.mark.parametrize("mode", [(), RAFT], ids=["independent", "raft"])
def test_a_hook_sees_refuses_and_changes_requests(tmp_path: Path, notes: Path, mode: tuple[str, ...]) -> None:
    with (
        started(tmp_path, "--http", "127.0.0.1:0", *mode, *hook("Guard")) as (_, ready),
        BlockingClient() as client,
    ):
        refused = client.invoke(ready["listen"], RemotingCommand.request(206))
        assert (refused.code, refused.remark) == (16, "lists are not for everybody")
        route = RemotingCommand.request(105, {"topic": "T"})
        wait_until(lambda: client.invoke(ready["listen"], route).code == 17, "the group has a leader")
        notes.write_text("")
        # If there is a hook, the cache of encoded routes must not answer any query, not even a query that it
        # knows.
        assert [client.invoke(ready["listen"], route).code for _ in range(5)] == [17] * 5
        lines = notes.read_text().splitlines()
        assert [line.split()[:2] for line in lines[::2]] == [["before", "105"]] * 5
        assert lines[1::2] == ["after 105 17"] * 5
        renamed = client.invoke(ready["listen"], RemotingCommand.request(105, {"topic": "Old"}))
        assert "topic: New" in (renamed.remark or "")
        name = "operators_hooks:Guard"
        assert figure(ready["http"], f'mqnamesrv_rpc_hook_refused_total{{hook="{name}"}}') == 1
        assert figure(ready["http"], f'mqnamesrv_rpc_hook_errors_total{{hook="{name}"}}') == 0
        fields = {
            "brokerName": "a",
            "brokerAddr": "127.0.0.1:1",
            "clusterName": "c",
            "haServerAddr": "127.0.0.1:2",
            "brokerId": "0",
            "compressed": "false",
            "bodyCrc32": "0",
        }
        for _ in range(3):  # repeated requests take another code path; hooks must see them, too
            assert client.invoke(ready["listen"], RemotingCommand.request(103, fields)).code == 0
        assert notes.read_text().count("after 103 0") == 3


def test_a_hook_that_fails_or_changes_more_than_arguments_refuses_its_request(
    tmp_path: Path, notes: Path
) -> None:
    hooks = (*hook("Fails"), *hook("Guard"), *hook("ChangesCode"))
    with (
        started(tmp_path, "--http", "127.0.0.1:0", *hooks) as (_, ready),
        BlockingClient() as client,
    ):
        refused = client.invoke(ready["listen"], RemotingCommand.request(105, {"topic": "T"}))
        assert (refused.code, refused.remark) == (1, "hook operators_hooks:Fails failed")
        assert client.invoke(ready["listen"], RemotingCommand.request(319)).code == 0
        # The hook fails three times: before and after request 105, and after request 319.
        assert figure(ready["http"], 'mqnamesrv_rpc_hook_errors_total{hook="operators_hooks:Fails"}') == 3
        assert "before 319" in notes.read_text(), "the next hook is asked, too"
        log = tmp_path / "stderr.txt"
        wait_until(lambda: "hook failed hook=operators_hooks:Fails" in log.read_text(), "it is logged")
        delete = RemotingCommand.request(102, {"namespace": "n", "key": "k"})
        assert client.invoke(ready["listen"], delete).code == 1


def test_a_slow_hook_is_named_and_leaves_most_of_the_time_to_others(tmp_path: Path, notes: Path) -> None:
    with (
        started(tmp_path, "--http", "127.0.0.1:0", *hook("Slow")) as (_, ready),
        BlockingClient() as client,
    ):
        codes = [client.invoke(ready["listen"], RemotingCommand.request(206)).code for _ in range(10)]
        assert codes[0] == 0
        assert codes.count(2) >= 7, "its share is used up, so requests are refused instead of served late"
        overloads = figure(ready["http"], "mqnamesrv_rpc_hook_overloads_total")
        assert overloads == codes.count(2)
        assert figure(ready["http"], 'mqnamesrv_rpc_hook_slow_total{hook="operators_hooks:Slow"}') >= 1
        log = tmp_path / "stderr.txt"
        wait_until(lambda: "slow hook hook=operators_hooks:Slow" in log.read_text(), "it is logged")
        ask = RemotingCommand.request(319)
        wait_until(lambda: client.invoke(ready["listen"], ask).code == 0, "requests are served again")


@pytest.mark.parametrize(
    ("program", "name", "why"),
    [
        ("nameserver", "operators_hooks", "is not MODULE:CLASS"),
        ("broker", "nowhere:Guard", "ModuleNotFoundError"),
        ("nameserver", "operators_hooks:Nobody", "AttributeError"),
        ("broker", "operators_hooks:Awaits", "is a coroutine"),
        ("nameserver", "os:getpid", "has no method before_request"),
        ("broker", "operators_hooks:Guard,operators_hooks:Guard", "named twice"),
    ],
)
def test_a_hook_that_cannot_be_used_refuses_the_start(
    tmp_path: Path, notes: Path, program: str, name: str, why: str
) -> None:
    said = refusal(program, tmp_path, "--rpc-hook", name)
    assert re.fullmatch(rf"mq\w+: --rpc-hook .*{re.escape(why)}.*", said.splitlines()[-1])
