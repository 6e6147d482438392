"""Tests that docs/raft-rules.md has every rule of raft mode that the code cites by number."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "raft-rules.md"
FOLDERS = ("remoting", "nameserver", "broker", "client", "bench", "tests")
_RULE = re.compile(r"^## Rule (\d+): \S", flags=re.MULTILINE)
_CITATION = re.compile(r"\brules? (\d+(?:(?:, | and | to |, and )\d+)*)", flags=re.IGNORECASE)


def cited(text: str) -> list[int]:
    """Return the numbers of the rules that a text cites; a text like "3 rules" cites no rule."""
    return [int(number) for group in _CITATION.findall(text) for number in re.findall(r"\d+", group)]


def citations() -> Iterator[tuple[str, int]]:
    """Yield (file and line, number) for each citation of a rule in the sources."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path == Path(__file__):
                continue
            for line, text in enumerate(path.read_text().splitlines(), 1):
                yield from ((f"{path.relative_to(ROOT)}:{line}", number) for number in cited(text))


def test_the_rules_are_numbered_without_a_gap() -> None:
    numbers = [int(number) for number in _RULE.findall(PAGE.read_text())]
    assert numbers == list(range(1, 15))


def test_each_cited_rule_exists() -> None:
    rules = {int(number) for number in _RULE.findall(PAGE.read_text())}
    found = list(citations())
    assert len(found) > 20, "the pattern finds hardly any citation"
    assert [f"{place} cites rule {number}" for place, number in found if number not in rules] == []


def test_a_citation_of_several_rules_is_read_as_all_of_them() -> None:
    assert cited("operations (rules 11 and 14), and Rule 9: no leader; 3 rules of 5") == [11, 14, 9]


def test_other_pages_cite_only_rules_that_exist() -> None:
    rules = {int(number) for number in _RULE.findall(PAGE.read_text())}
    pages = [page for page in sorted((ROOT / "docs").glob("*.md")) if page != PAGE]
    missing = [(page.name, number) for page in pages for number in cited(page.read_text())]
    assert [found for found in missing if found[1] not in rules] == []
