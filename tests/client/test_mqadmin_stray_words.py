"""Words that belong to no option: a subcommand that changes data refuses them, any other only warns."""

from __future__ import annotations

from typing import Any

import pytest

from routekeeper.client.mqadmin.__main__ import COMMANDS
from routekeeper.client.mqadmin.options import Command, UsageError, parse
from tests.client.mqadmin import mqadmin as run

CHANGING = {
    *("updateTopic", "deleteTopic", "updateTopicPerm", "updateOrderConf"),
    *("updateSubGroup", "deleteSubGroup", "resetOffsetByTime", "skipAccumulatedMessage", "cloneGroupOffset"),
    *("updateBrokerConfig", "cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"),
    *("updateKvConfig", "deleteKvConfig", "updateNamesrvConfig", "wipeWritePerm", "addWritePerm"),
    *("sendMsgStatus", "checkMsgSendRT", "clusterRT", "updateTopicList", "updateSubGroupList"),
    *("exportConfigs", "exportMetadata", "exportMetrics"),
    *("updateAclConfig", "deleteAclConfig", "updateGlobalWhiteAddr"),
    *("sendMessage", "addMember", "removeMember", "transferLeader", "snapshotSave", "snapshotRestore"),
}
"""Subcommands that change data on a server or write a file."""


def required(command: Command) -> list[str]:
    """Return a command line with all options that the subcommand requires."""
    groups: set[str] = set()
    argv = []
    for option in command.all_options:
        if option.required or (option.group is not None and option.group not in groups):
            groups.add(option.group or "")
            argv += [option.flag, "x"] if option.value else [option.flag]
    return argv


@pytest.mark.parametrize("name", sorted(CHANGING))
def test_a_subcommand_that_changes_something_refuses_stray_words(name: str) -> None:
    command = COMMANDS[name]
    parse(command, required(command))
    with pytest.raises(UsageError, match="Unrecognized argument: stray"):
        parse(command, [*required(command), "stray"])


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - CHANGING))
def test_a_subcommand_that_only_reads_takes_stray_words_and_returns_them(name: str) -> None:
    command = COMMANDS[name]
    args = parse(command, ["before", *required(command), "behind", "it"])
    assert args.words == ("before", "behind", "it")
    with pytest.raises(UsageError, match="Unrecognized option: -Z"):
        parse(command, [*required(command), "-Z"])


def test_the_warning_names_each_word(nameserver: Any) -> None:
    asked = ("topicList", "-n", nameserver.addr)
    code, out, err = run(*asked, "-c", "DefaultCluster", "a\nb")
    assert (code, out) == run(*asked, "-c")[:2]
    assert code == 0
    assert err.splitlines() == [
        "mqadmin topicList: WARNING: 'DefaultCluster' belongs to no option and is ignored",
        "mqadmin topicList: WARNING: 'a\\nb' belongs to no option and is ignored",
    ]
