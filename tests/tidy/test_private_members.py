"""A check that tests do not use more private members of our code than before.

Tests should use public names, because private names may change at any time.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CEILING = 180
"""Maximum number of uses of private members in all tests. Lower it when you remove a use."""


def accesses(tree: ast.Module) -> int:
    """Count accesses to private members of objects whose class is not in this file."""
    own, found = set(), []
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                own.add(node.name)
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                own.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                own.add(node.attr)
            case ast.Attribute() if node.attr.startswith("_") and not node.attr.startswith("__"):
                found.append(node.attr)
    return sum(name not in own for name in found)


@pytest.mark.slow
def test_no_more_private_members_are_touched_than_before() -> None:
    found: Counter[str] = Counter()
    for path in sorted((ROOT / "tests").rglob("*.py")):
        found[str(path.relative_to(ROOT))] = accesses(ast.parse(path.read_text()))
    total = found.total()
    most = ", ".join(f"{file}: {number}" for file, number in found.most_common(12))
    assert total <= CEILING, f"{total} private members are touched, {CEILING} were: {most}"


def test_an_access_is_found_and_one_of_the_own_class_is_none() -> None:
    foreign = "def test(engine):\n    assert engine._log\n"
    own = (
        "class A:\n    def f(self):\n        self._x = 1\n    def g(self, other):\n        return other._x\n"
    )
    assert (accesses(ast.parse(foreign)), accesses(ast.parse(own))) == (1, 0)
