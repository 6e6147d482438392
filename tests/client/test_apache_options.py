"""Our mqadmin's options, compared with the options of Apache's mqadmin, and command lines from users."""

from __future__ import annotations

import pytest

from routekeeper.client.mqadmin.__main__ import COMMANDS
from routekeeper.client.mqadmin.options import parse
from tests.client.mqadmin import mqadmin
from tests.golden.starts import RELEASES, recorded_options

OURS = {
    *("raftStatus", "addMember", "removeMember", "transferLeader", "snapshotSave", "snapshotRestore"),
    *("explainRoute", "routeDiff"),
}
"""Subcommands that RocketMQ does not have."""

ON_PURPOSE = {
    ("4.9.7", "brokerStatus", "b"): "5.3.3 requires one of -b and -c; 4.9.7 fails without them, too",
    ("4.9.7", "brokerStatus", "c"): "as -b",
    ("4.9.7", "resetOffsetByTime", "c"): "4.9.7 has a flag for clients in C++; in 5.3.3 it is the cluster",
    ("5.3.3", "queryMsgById", "t"): "4.9.7 has no -t, so command lines of before have none",
}
"""Intended differences from a RocketMQ release: (release, subcommand, option) and the reason."""


@pytest.mark.parametrize("release", RELEASES)
def test_subcommands_have_the_options_of_apache(release: str) -> None:
    differing, commands = {}, set()
    for option in recorded_options(release):
        program, _, name = option.program.partition(" ")
        if program != "mqadmin" or name not in COMMANDS:
            continue
        commands.add(name)
        known = {name.lower(), COMMANDS[name].alias.lower()}
        assert not option.alias or option.alias.lower() in known, f"{name}: ours has no alias {option.alias}"
        ours = {of.name: of for of in COMMANDS[name].all_options}.get(option.short or option.long)
        theirs = (option.long, option.argument, option.required)
        if ours is None or (ours.long, ours.value, ours.required or ours.group is not None) != theirs:
            differing[release, name, option.short] = option
    expected = {key for key in ON_PURPOSE if key[0] == release}
    assert set(differing) == expected, [differing[key] for key in set(differing) - expected]
    assert len(commands) >= 35


def test_every_subcommand_of_ours_is_apaches_or_listed() -> None:
    names = {option.program for release in RELEASES for option in recorded_options(release)}
    assert {name for name in COMMANDS if f"mqadmin {name}" not in names} == OURS


@pytest.mark.parametrize("name", ["updatetopic", "UPDATETOPIC"])
def test_subcommands_are_found_whatever_their_case(name: str) -> None:
    expected = mqadmin("help", "updateTopic")
    assert expected[1].startswith("usage: mqadmin updateTopic")
    assert mqadmin("help", name) == expected == mqadmin(name, "-h")


def test_long_names_stand_behind_one_dash_too() -> None:
    args = parse(COMMANDS["updateTopic"], ["-namesrvAddr", "a:1", "-topic", "T", "-clusterName=C"])
    assert (args.text("n"), args.text("t"), args.text("c")) == ("a:1", "T", "C")
    assert parse(COMMANDS["updateTopic"], ["-topics", "-c", "C"]).text("t") == "opics"
