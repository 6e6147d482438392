"""The walks of docs/architecture.md enter files that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_each_file_that_a_walk_enters_is_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`((?:nameserver|remoting|tests)/[\w/]+\.py)`", text)
    assert len(named) > 10
    assert [file for file in named if not (ROOT / file).is_file()] == []
    for alone in re.findall(r"`(\w+\.py)`", text):
        assert list((ROOT / "nameserver").rglob(alone)), alone
