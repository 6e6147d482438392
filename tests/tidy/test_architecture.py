"""Tests that docs/architecture.md names only existing files.

The docstring of each folder must name all modules of the folder.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_each_file_that_a_walk_enters_is_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`((?:nameserver|broker|remoting|tests)/[\w/]+\.py)`", text)
    assert len(named) > 10
    assert [file for file in named if not (ROOT / file).is_file()] == []
    for alone in re.findall(r"`(\w+\.py)`", text):
        assert [*(ROOT / "nameserver").rglob(alone), *(ROOT / "broker").rglob(alone)], alone


def folders() -> list[Path]:
    """Return all folders with modules of the nameserver and the broker."""
    return sorted(
        path.parent for top in ("nameserver", "broker") for path in (ROOT / top).rglob("__init__.py")
    )


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.relative_to(ROOT).as_posix())
def test_a_folder_says_what_belongs_in_it_and_names_each_module(folder: Path) -> None:
    said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    prose = [part for part in said.split("\n\n")[1:] if not part.startswith("    ")]
    assert prose, "nothing after the first line says what belongs here"
    modules = {path.name for path in folder.glob("*.py")} - {"__init__.py"}
    assert modules - set(re.findall(r"[\w/]+\.py", said)) == set(), "not named"
    named = set(re.findall(r"^ {4}((?:\w+\.py(?:, )?)+)", said, re.MULTILINE))
    assert {file for line in named for file in line.split(", ")} - modules == set(), "named, and not there"
