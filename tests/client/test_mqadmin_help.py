"""Our subcommands about brokers, groups and messages have the options and help texts of Apache's tool."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from routekeeper.client.mqadmin.__main__ import COMMANDS
from tests.client.mqadmin import mqadmin

FOLDER = Path(__file__).resolve().parent.parent / "golden" / "mqadmin"
#: Descriptions that Apache's tool printed, recorded by release and subcommand.
HELPS = {
    release: {
        case["args"][1]: case["stdout"]
        for case in json.loads((FOLDER / f"{release}-broker.json").read_text())
        if case["name"].endswith("-h")
    }
    for release in ("4.9.7", "5.3.3")
}
#: Our subcommands for which the topic (-t) is optional, because a message id is enough. 5.3's tool requires
#: -t, and 4.9's subcommand has no option -t.
TOPIC_OPTIONAL = ("queryMsgById",)
#: Options of 4.9's tool that mean something else in 5.3's tool. Our tool uses the meaning of 5.3.
GIVEN_UP = {("resetOffsetByTime", "c", "cplus")}


@pytest.mark.parametrize("command", sorted(HELPS["5.3.3"]))
def test_a_subcommand_is_described_as_by_apaches_tool(command: str) -> None:
    code, out, err = mqadmin("help", command)
    assert (code, err) == (0, "")
    assert out == mqadmin(command, "-h")[1]
    have, _, _ = out.partition("\nOptions of RouteKeeper:\n")
    want = HELPS["5.3.3"][command].rstrip("\n") + "\n"
    if command in TOPIC_OPTIONAL:
        have, want = (" ".join(text.split()) for text in (have, want))
        want = want.replace(" -t <arg>", " [-t <arg>]", 1)
    assert have == want


@pytest.mark.parametrize("command", sorted(HELPS["4.9.7"]))
def test_every_option_of_4_9_is_known(command: str) -> None:
    known = {(option.short, option.long.strip(), option.value) for option in COMMANDS[command].all_options}
    listed = re.findall(r"^ -(\w),--(\w+)(  ?<arg>)?", HELPS["4.9.7"][command], re.MULTILINE)
    assert listed
    kept = [found for found in listed if (command, *found[:2]) not in GIVEN_UP]
    assert {(short, long, bool(value)) for short, long, value in kept} <= known


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["queryMsgById", "-i", "00", "-s", "true"], "-s is not offered: "),
        (["queryMsgById", "-i", "00", "-u", "unit"], "-u is not offered: this client does not support units"),
        (["printMsg", "-t", "T", "-l", "Parent"], "-l is not offered: "),
    ],
)
def test_an_option_that_cannot_be_served_is_refused(argv: list[str], reason: str) -> None:
    code, _, err = mqadmin(*argv)
    assert code == 1
    assert err.startswith(reason)


@pytest.mark.parametrize(
    "argv",
    [
        ["updateSubGroup", "-g", "G"],
        ["deleteSubGroup", "-g", "G"],
        ["getBrokerConfig"],
        ["updateBrokerConfig", "-k", "a", "-v", "b"],
    ],
    ids=lambda argv: argv[0],
)
def test_what_changes_brokers_asks_which(argv: list[str]) -> None:
    code, out, err = mqadmin(*argv)
    assert (code, out) == (1, "")
    assert "Give -b or -c" in err
