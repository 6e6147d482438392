"""Tests that all files, markers and make targets in HACKING.md exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "HACKING.md").read_text()


def test_each_file_and_folder_exists() -> None:
    named = re.findall(r"`((?:\w+/)+(?:[\w.-]+)?)`", TEXT) + re.findall(r"\]\(([\w/.-]+)\)", TEXT)
    assert len(named) > 25
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_each_target_of_make_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"^make ([\w-]+)|`make ([\w-]+)`", TEXT, re.MULTILINE))
    assert {first or second for first, second in named} - targets == set()


def test_each_marker_of_pytest_is_explained() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"][
        "markers"
    ]
    names = {line.partition(":")[0] for line in declared}
    assert {name for name in names if f"`{name}`" not in TEXT} == set()
