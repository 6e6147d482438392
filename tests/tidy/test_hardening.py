"""Tests that each fixed defect of PySyncObj has a script or a test that shows it.

A further test case must switch the fix off, so that the script or test then fails.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

NUMBERS = range(1, 39)
ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests" / "nameserver" / "raft"
PAGE = ROOT / "docs" / "pysyncobj-defects.md"
_ENTRY = re.compile(r"^## D(\d+)\n\n((?:.+\n)+)", flags=re.MULTILINE)
_PLACE = re.compile(r"`([^`]+)`")
SHOWN_BY = "Shown by "


def entries() -> dict[int, tuple[str, str]]:
    """Return two texts for each defect in the document: its description, and the tests that show it."""
    found = _ENTRY.findall(PAGE.read_text())
    assert len({number for number, _ in found}) == len(found), "a defect has two entries"
    parts = {int(number): " ".join(text.split()).partition(SHOWN_BY) for number, text in found}
    return {number: (defect, shown) for number, (defect, _, shown) in parts.items()}


def trees() -> Iterator[ast.Module]:
    for path in sorted(TESTS.glob("test_*.py")):
        yield ast.parse(path.read_text(), str(path))


def named_tests() -> set[str]:
    return {
        node.name
        for tree in trees()
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def switched_off() -> set[int]:
    """Return the numbers of the defects whose fix a test switches off.

    The numbers are in lists named ``SWITCHED_OFF``, and in names of tests.
    """
    found = {
        int(number)
        for test in named_tests()
        for number in re.findall(r"^test_d(\d+)_with(?:out)?_.*_is_found_wrong$", test)
    }
    for tree in trees():
        for node in tree.body:
            if (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and node.target.id == "SWITCHED_OFF"
                and isinstance(node.value, ast.List)
            ):
                for case in node.value.elts:
                    assert isinstance(case, ast.Tuple)
                    (number,) = re.findall(r"^d(\d+)\b", ast.literal_eval(case.elts[0]))
                    found.add(int(number))
    return found


def exists(place: str) -> bool:
    """Return True if a path below ``routekeeper.nameserver`` is a module, or a name in a module."""
    path, names = "routekeeper.nameserver", place.split(".")
    while names and importlib.util.find_spec(f"{path}.{names[0]}") is not None:
        path, names = f"{path}.{names[0]}", names[1:]
        if not hasattr(importlib.import_module(path), "__path__"):
            break
    module = importlib.import_module(path)
    found: object = module
    for name in names:
        # Look up a name only in the object itself, because an inherited name is defined in another place.
        if name not in vars(found):
            return False
        found = vars(found)[name]
    return path != "routekeeper.nameserver" and getattr(found, "__module__", path) in (path, None)


def test_each_defect_is_named_with_a_scenario_and_a_place() -> None:
    assert list(entries()) == list(NUMBERS)
    for number, (text, _) in entries().items():
        assert len(_PLACE.sub("", text).split()) >= 8, f"D{number}: {text}"
        assert _PLACE.search(text), f"D{number} names nothing that closes it"


def test_each_place_that_closes_a_defect_is_there() -> None:
    gone = [
        f"D{number}: {place}"
        for number, (text, _) in entries().items()
        for place in _PLACE.findall(text)
        if not exists(place)
    ]
    assert gone == []


@pytest.mark.slow
def test_each_defect_is_shown_by_scripts_and_tests_of_its_number() -> None:
    there = named_tests() | {path.name for path in (TESTS / "testdata").glob("*.txt")}
    for number, (_, shown) in entries().items():
        names = _PLACE.findall(shown)
        assert names, f"D{number} is shown by nothing"
        assert sorted(set(names) - there) == [], f"D{number}"
        assert all(re.search(rf"(^|_)d{number}_", name) for name in names), f"D{number}: {names}"
    scripts = {name for name in there if re.match(r"d\d+_.*\.txt$", name)}
    assert scripts <= {name for _, shown in entries().values() for name in _PLACE.findall(shown)}


@pytest.mark.slow
def test_each_defect_has_a_case_in_which_its_fix_is_switched_off() -> None:
    assert sorted(switched_off()) == list(NUMBERS)
