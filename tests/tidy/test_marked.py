"""Tests that each test file contains the names of its pytest markers.

``make`` finds the files of a marker by a search for the marker's name in their text.
"""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "tests").rglob("test_*.py"))


@pytest.mark.slow
def test_no_file_imports_its_markers() -> None:
    imported = [
        f"{path.relative_to(ROOT)}: {alias.name}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if re.search(r"pytestmark|(^|_)marks?($|_)", alias.name)
    ]
    assert imported == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "markers"),
    [
        ("one_core", "one_core"),
        ("alone", "alone"),
        ("computes", "computes"),
        ("benchmark-runs", "bench|spark"),
        ("benchmark-alone", "alone"),
        ("benchmark-computes", "computes"),
        ("interop", "interop"),
    ],
)
def test_make_gives_pytest_all_files_of_a_marker(target: str, markers: str) -> None:
    done = subprocess.run(
        ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    named = set(re.findall(r"tests/\S*test_\w+\.py", done.stdout))
    marked = re.compile(rf"\bmark\.({markers})\b")
    assert named == {str(path.relative_to(ROOT)) for path in FILES if marked.search(path.read_text())}
