"""The table of test runs in docs/protocol-differences.md matches the tests.

``python -m tests.client.test_mqadmin_table`` writes the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from routekeeper.client.mqadmin.__main__ import COMMANDS
from tests.client.test_mqadmin_broker_golden import CASES, FAILS
from tests.client.test_mqadmin_operators import ASKED
from tests.interop.daily import IN_WORDS_OF_5, LISTINGS, OFFLINE, ONLINE, RESETS, RESETTING, TABLES

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "protocol-differences.md"
BEGIN: Final = "<!-- table -->\n"
END: Final = "<!-- end of table -->\n"
HEADER: Final = (
    "| subcommand | live runs | recorded 5.3.3 | recorded 4.9.7 | not as there | live is compared |\n"
    "|---|---|---|---|---|---|\n"
)


def live_runs() -> dict[str, list[str]]:
    """Return the names of the test runs against running servers, by subcommand."""
    found: dict[str, list[str]] = {name: [] for name in ASKED}
    for line in (ONLINE + RESETTING + OFFLINE).strip().splitlines():
        name, _, words = line.partition("|")
        if name:
            found[words.split()[0]].append(name)
    return found


def how(runs: Iterable[str]) -> str:
    """Return a text for the table: the parts of the output that the given runs compare."""
    notes = []
    if any(run in TABLES for run in runs):
        notes.append("names only, those that ours tells")
    if any(run in LISTINGS for run in runs):
        notes.append("rows of the group only")
    if any(run.startswith(RESETS) for run in runs):
        notes.append("Apache's 4.9.7 at ours not")
    if any(run.startswith(IN_WORDS_OF_5) for run in runs):
        notes.append("ours at 4.9.7 by words")
    return "; ".join(notes) or "every line"


def table() -> str:
    recorded = Counter((release, case["args"][0]) for (release, _), case in CASES.items())
    otherwise = Counter(CASES["5.3.3", name]["args"][0] for name in FAILS)
    rows = [
        f"| {name} | {len(runs)} | {recorded['5.3.3', name]} | {recorded['4.9.7', name]}"
        f" | {otherwise[name] or ''} | {how(runs)} |\n"
        for name, runs in live_runs().items()
    ]
    return HEADER + "".join(rows)


def test_the_table_is_what_the_tests_run() -> None:
    have = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    assert have == table(), "write it: python -m tests.client.test_mqadmin_table"


def test_each_subcommand_has_run_in_each_way() -> None:
    assert set(ASKED) <= set(COMMANDS)
    assert [name for name, runs in live_runs().items() if not runs] == []
    for release in ("4.9.7", "5.3.3"):
        assert [name for name in ASKED if name not in asked_of(release)] == []
    ours = "".join(
        (Path(__file__).parent / f"test_mqadmin_{name}.py").read_text() for name in ("operators", "groups")
    ).partition("\nclass Tool")[2]
    assert [name for name in ASKED if f'"{name}"' not in ours] == []


def asked_of(release: str) -> set[str]:
    return {case["args"][0] for (of, _), case in CASES.items() if of == release}


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.partition(END)[2])
