"""Subcommands of RocketMQ's mqadmin that our mqadmin does not have.

The error for such a subcommand says what to do instead. The docs list these subcommands. ``python -m
tests.client.test_mqadmin_absent`` writes the table in the docs.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from routekeeper.client.mqadmin.__main__ import COMMANDS
from tests.client.mqadmin import mqadmin
from tests.golden.starts import RELEASES, recorded_options

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "protocol-differences.md"
BEGIN: Final = "<!-- absent subcommands -->\n"
END: Final = "<!-- end of absent subcommands -->\n"


def lacking() -> dict[str, tuple[str, ...]]:
    """Return the names of the subcommands that our mqadmin lacks, each with the releases that have it."""
    found: dict[str, tuple[str, ...]] = {}
    for release in RELEASES:
        names = {option.program.removeprefix("mqadmin ") for option in recorded_options(release)}
        for name in names - {*COMMANDS, "mqnamesrv", "mqbroker"}:
            found[name] = (*found.get(name, ()), release)
    return dict(sorted(found.items()))


def spellings() -> list[str]:
    """Return every name of these subcommands in RocketMQ's mqadmin, and two names in another letter case."""
    aliases = [
        option.alias
        for release in RELEASES
        for option in recorded_options(release)
        if option.alias and option.program.removeprefix("mqadmin ") in lacking()
    ]
    return [*lacking(), *dict.fromkeys(aliases), "ELECTMASTER", "createuser"]


def parts(line: str) -> tuple[str, str]:
    """Split an error line into two parts: the reason, and the advice on what to do instead."""
    reason, mark, instead = line.partition(": ")[2].rstrip("\n").partition("; instead: ")
    assert mark, line
    return reason, instead


def table() -> str:
    rows = [
        f"| {name} | {', '.join(releases)} | {reason} | {instead} |\n"
        for name, releases in lacking().items()
        for reason, instead in [parts(mqadmin(name)[2])]
    ]
    return "| subcommand | is in | why not here | instead |\n|---|---|---|---|\n" + "".join(rows)


@pytest.mark.parametrize("name", spellings())
def test_a_subcommand_that_is_lacking_says_so(name: str) -> None:
    for argv in ((name,), (name, "-n", "127.0.0.1:9876", "-t", "T"), ("help", name)):
        code, out, err = mqadmin(*argv)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert " is not in RouteKeeper: " in err
        assert err.startswith("mqadmin ")
        assert all(parts(err))


def test_subcommands_that_are_named_instead_exist() -> None:
    for name in lacking():
        line = mqadmin(name)[2]
        assert line.startswith(f"mqadmin {name} is not in RouteKeeper: ")
        named = set(re.findall(r"\b[a-z]+[A-Z]\w*", line)) - {name}
        assert named <= set(COMMANDS), line


def test_there_are_as_many_as_recorded() -> None:
    counts = [sum(release in releases for releases in lacking().values()) for release in RELEASES]
    assert counts == [0, 34]


def test_the_table_of_the_docs_lists_them() -> None:
    have = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    assert have == table(), "write it: python -m tests.client.test_mqadmin_absent"


def test_a_word_that_rocketmq_does_not_know_either_is_no_subcommand() -> None:
    assert mqadmin("createUsers") == (1, "The sub command createUsers not exist.\n", "")


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.partition(END)[2])
