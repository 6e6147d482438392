"""From the same bytes of Apache's servers, our mqadmin prints the same text as Apache's mqadmin 5.3.3."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from routekeeper.client.mqadmin.__main__ import COMMANDS
from routekeeper.remoting.codes import RequestCode
from tests.client.mqadmin import mqadmin as run

FOLDER = Path(__file__).resolve().parent.parent / "golden" / "mqadmin" / "5.3.3"
CASES: dict[str, dict[str, Any]] = {
    case["name"]: case for case in json.loads((FOLDER / "index.json").read_text())
}
DESCRIBED = sorted(name for name in COMMANDS if f"{name}-h" in CASES)
assert len(DESCRIBED) == 14, "each of these has a recorded help"


def recorded(name: str) -> str:
    return (FOLDER / f"{name}.txt").read_text()


def apaches(name: str) -> list[str]:
    """Return the arguments of a recorded run, without the address of its nameserver."""
    args = list(CASES[name]["args"])
    if "-n" in args:
        position = args.index("-n")
        del args[position : position + 2]
    return args


@pytest.mark.parametrize("name", DESCRIBED)
def test_help_begins_with_apaches_text(name: str) -> None:
    code, out, err = run(name, "-h")
    assert (code, err) == (0, "")
    assert out.startswith(recorded(f"{name}-h"))
    rest = out.removeprefix(recorded(f"{name}-h"))
    assert rest == "" or rest.startswith("\nOptions of RouteKeeper:\n")
    assert run("help", name)[1] == out


@pytest.mark.parametrize(
    "name", sorted(name for name in CASES if name.endswith("-missing") or "unknown-flag" in name)
)
def test_wrong_command_lines_are_refused_in_the_same_words(name: str) -> None:
    code, out, err = run(*CASES[name]["args"])
    assert code == 1
    assert err.strip() == CASES[name]["stderr"].strip()
    assert out.startswith(recorded(name))


def test_no_target_is_named_like_apache_does() -> None:
    _, _, err = run(*CASES["updateTopic-no-target"]["args"])
    assert err.strip() == CASES["updateTopic-no-target"]["stderr"].strip()


def test_overview_lists_subcommands_in_apaches_layout() -> None:
    code, out, _ = run()
    theirs = recorded("no-arguments").splitlines()
    ours = out.splitlines()
    assert code == 0
    of_4 = (
        "updateAclConfig",
        "deleteAclConfig",
        "updateGlobalWhiteAddr",
        "clusterAclConfigVersion",
        "getAclConfig",
    )
    own = [line for line in ours if line not in theirs and not line.strip().startswith(of_4)]
    assert len(own) == 8
    assert all(line.endswith("(RouteKeeper, over HTTP).") for line in own)
    assert (
        "   explainRoute                        Explain why a topic has the route it has, or none"
        " (RouteKeeper, over HTTP)." in own
    )
    assert run("noSuchCommand") == (1, recorded("unknown-subcommand"), "")


@pytest.fixture
def apache(new_peer: Callable[..., Any], golden_5: Any) -> str:
    """Return the address of a peer whose answers are recordings of Apache's nameserver and broker.

    The peer puts its own address in place of the recorded nameserver's address.
    """
    peer = new_peer()
    changes = b""

    def answer(request: Any) -> Any:
        nonlocal changes
        found = golden_5.answer(request, "namesrv", "broker")
        body = re.sub(rb"127\.0\.0\.1:10921", peer.addr.encode(), found.body)
        if request.code == RequestCode.UPDATE_NAMESRV_CONFIG:
            changes += request.body
        if request.code == RequestCode.GET_NAMESRV_CONFIG:
            body += b"\n" + changes  # the recorded settings lack the changes that this test makes
        return request.reply(found.code, remark=found.remark, ext_fields=found.ext_fields, body=body)

    peer.answer = answer
    return str(peer.addr)


def masked(text: str, addr: str = "") -> str:
    """Mask values that differ between runs: ids, addresses, times."""
    if addr:
        text = text.replace(addr, "ADDR")
    text = text.replace("127.0.0.1:10921", "ADDR").replace("127.0.0.1:9877", "ADDR")
    text = re.sub(r"\b[0-9A-F]{32}\b", "ID", text)
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", "TIME", text)


@pytest.mark.parametrize(
    "name",
    [
        "updateTopic-b",
        "updateTopic-b-order",
        "updateTopic-c",
        "updateTopic-c-order",
        "topicRoute",
        "topicRoute-l",
        "topicStatus-empty",
        "sendMessage-queue",
        "updateKvConfig",
        "deleteKvConfig",
        "wipeWritePerm",
        "addWritePerm",
        "updateNamesrvConfig",
        "deleteTopic",
    ],
)
def test_output_is_apaches(name: str, apache: str) -> None:
    argv = [apache if arg == "127.0.0.1:10921" else arg for arg in apaches(name)]
    code, out, err = run(*argv, namesrv=apache)
    assert (code, err) == (0, "")
    # mqadmin pads columns by the length of the address, which depends on the port number. So compare without
    # padding.
    shape = re.compile(r"(ADDR\}?) +")
    assert shape.sub(r"\1 ", masked(out, apache)) == shape.sub(r"\1 ", masked(recorded(name)))


@pytest.mark.parametrize("name", ["topicList", "getNamesrvConfig"])
def test_unordered_output_has_apaches_lines(name: str, apache: str) -> None:
    code, out, _ = run(*apaches(name), namesrv=apache)
    assert code == 0
    theirs = {
        line
        for line in masked(recorded(name)).splitlines()
        if "/HOME" not in line and "listenPort" not in line
    }
    ours = set(masked(out, apache).splitlines())
    if name == "getNamesrvConfig":
        assert {line.split("=")[0] for line in ours} >= {line.split("=")[0] for line in theirs}
        assert len(theirs & ours) > 30
    else:
        assert {line for line in theirs if line.startswith("rmq") or line == "broker-a"} <= ours


def test_cluster_list_columns_are_apaches(apache: str) -> None:
    code, out, _ = run("clusterList", namesrv=apache)
    head, row = out.splitlines()
    their_head, their_row = recorded("clusterList").splitlines()
    assert code == 0
    assert head == their_head

    def parts(line: str) -> list[str]:
        text = re.sub(
            r"[\d.]+( +)[\d.]+( +true)$", r"HOURS\1RATIO\2", line.replace(apache, "ADDR".ljust(len(apache)))
        )
        return text.replace("127.0.0.1:10921", "ADDR".ljust(15)).split()

    assert parts(row) == parts(their_row)
    assert len(row) == len(their_row)


def test_cluster_list_m_columns_are_apaches(apache: str) -> None:
    _, out, _ = run("clusterList", "-m", namesrv=apache)
    head, row = out.splitlines()
    their_head, their_row = recorded("clusterList-m").splitlines()
    assert head == their_head
    assert len(row) == len(their_row)
    assert row[:50] == their_row[:50]


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (
            ["topicRoute", "-t", "NoSuchTopic"],
            "CODE: 17 DESC: No topic route info in name server for the topic",
        ),
        (
            ["updateTopic", "-b", "{addr}", "-t", "TBW102"],
            "CODE: 29 DESC: The topic[TBW102] is conflict with system",
        ),
        (
            ["updateTopic", "-b", "{addr}", "-t", "X", "-r", "many"],
            "readQueueNums='many' is not a whole number",
        ),
        (["updateTopic", "-b", "{addr}", "-t", "X", "-w", "0"], "writeQueueNums=0, allowed 1..65536"),
        (["updateTopic", "-b", "{addr}", "-t", "X", "-p", "9"], "perm='9', allowed 2 (W), 4 (R), 6 (RW)"),
        (["updateTopic", "-b", "{addr}", "-t", "X", "-o", "yes"], "order='yes', allowed true|false"),
        (["updateTopic", "-c", "NoCluster", "-t", "X"], "no master in cluster 'NoCluster'"),
        (["deleteTopic", "-c", "NoCluster", "-t", "X"], "no broker in cluster 'NoCluster'"),
        (
            ["sendMessage", "-t", "TopicC", "-p", "x", "-i", "1"],
            "Broker name must be set if the queue is chosen!",
        ),
        (["sendMessage", "-t", "TopicC", "-p", "x", "-b", "nobody"], "The broker[nobody] not exist"),
        (["topicRoute", "-t", "TopicC", "-o", "xml"], "output='xml', allowed json"),
        (["consumeMessage", "-t", "TopicC", "-c", "0"], "MessageNumber=0, allowed 1.."),
    ],
)
def test_failures_say_what_was_wrong_on_one_line_and_exit_1(argv: list[str], text: str, apache: str) -> None:
    code, out, err = run(*[arg.format(addr=apache) for arg in argv], namesrv=apache)
    assert (code, out) == (1, "")
    assert text in err
    assert err.count("\n") == 1


def test_consumed_messages_are_printed_as_apache_prints_them(apache: str) -> None:
    code, out, err = run(
        "consumeMessage", "-t", "TopicC", "-b", "broker-a", "-i", "1", "-c", "1", namesrv=apache
    )
    assert (code, err) == (0, "")
    line = next(line for line in out.splitlines() if line.startswith("MSGID"))
    theirs = next(line for line in recorded("consumeMessage-queue").splitlines() if line.startswith("MSGID"))

    def shape(text: str) -> str:
        text = re.sub(r"\b[0-9A-F]{32}\b", "ID", text)
        text = re.sub(r"(born|store)(Timestamp=|Host=/[\d.]+:)\d+", r"\1\2N", text)
        return re.sub(r"(storeSize|commitLogOffset)=\d+", r"\1=N", text)

    assert shape(line) == shape(theirs)


@pytest.mark.parametrize(
    "argv",
    [
        ["topicRoute", "-t", "TopicC"],
        ["clusterList"],
        ["topicList"],
        ["topicStatus", "-t", "TopicC"],
        ["getNamesrvConfig"],
        ["sendMessage", "-t", "TopicC", "-p", "x"],
    ],
)
def test_json_output_is_one_document(argv: list[str], apache: str) -> None:
    code, out, _ = run(*argv, "-o", "json", namesrv=apache)
    assert code == 0
    assert json.loads(out)
    assert out.count("\n") == 1


def test_a_nameserver_that_does_not_answer_is_named_and_the_others_are_told(apache: str) -> None:
    code, out, err = run("wipeWritePerm", "-b", "broker-a", "-n", f"{apache};127.0.0.1:1")
    assert code == 1
    assert f"in name server[{apache}] OK, " in out
    assert "in name server[127.0.0.1:1] Failed" in out
    assert "127.0.0.1:1" in err

    code, out, err = run(
        "updateKvConfig", "-s", "GOLDEN_NS", "-k", "color", "-v", "g", "-n", f"127.0.0.1:1;{apache}"
    )
    assert (code, out) == (1, "")
    assert "name server[127.0.0.1:1] failed" in err
    assert "done at 1 of 2 name servers" in err


def test_without_any_nameserver_the_setting_is_named() -> None:
    code, _, err = run("topicList")
    assert code == 1
    assert "NAMESRV_ADDR" in err
