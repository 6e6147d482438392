"""Each closed defect of the library has its scenario, tests, and a case with its fix switched off."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from routekeeper.nameserver.raft.consensus import hardening

NUMBERS = range(1, 38)
TESTS = Path(__file__).resolve().parents[1] / "nameserver" / "raft"
_ENTRY = re.compile(r"^D(\d+)\n((?:    .*\n)+)", flags=re.MULTILINE)


def entries() -> dict[int, str]:
    """Each defect's text in the module, in one line."""
    found = _ENTRY.findall(hardening.__doc__ or "")
    assert len({number for number, _ in found}) == len(found), "a defect has two entries"
    return {int(number): " ".join(text.split()) for number, text in found}


def trees() -> Iterator[ast.Module]:
    for path in sorted(TESTS.glob("test_*.py")):
        yield ast.parse(path.read_text(), str(path))


def named_tests() -> set[str]:
    return {
        node.name
        for tree in trees()
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def switched_off() -> set[int]:
    """Numbers of the cases in the lists of that name, and of tests that say so themselves."""
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


def exists(reference: str) -> bool:
    """Whether a dotted name is defined where it says: ``.x`` is a module beside hardening.

    A path from ``nameserver`` on names its module first; whatever else there is, is in hardening itself.
    """
    names = reference.split(".")
    if names[:2] == ["routekeeper", "nameserver"]:
        path, names = "routekeeper.nameserver", names[1:]
        while names and importlib.util.find_spec(path) is not None:
            module, names = importlib.import_module(path), names[1:]
            if not names or not hasattr(module, "__path__"):
                break
            path = f"{path}.{names[0]}"
    elif names[0] == "":
        module, names = importlib.import_module(f"{hardening.__package__}.{names[1]}"), names[2:]
    else:
        module = hardening
    found: object = module
    for name in names:
        # Only its own: what a class inherits is closed elsewhere. Private names are mangled: _SyncObj__x.
        if name not in vars(found):
            return False
        found = vars(found)[name]
    return getattr(found, "__module__", module.__name__) == module.__name__


def test_each_defect_is_named_with_a_scenario_and_a_place() -> None:
    assert list(entries()) == list(NUMBERS)
    for number, text in entries().items():
        words = re.sub(r":\w+:`[^`]*`|``[^`]*``", "", text).split()
        assert len(words) >= 8, f"D{number}: {text}"
        assert re.search(r":\w+:`|``", text), f"D{number} names nothing that closes it"


def test_each_place_that_closes_a_defect_is_there() -> None:
    gone = [
        f"D{number}: {reference}"
        for number, text in entries().items()
        for reference in re.findall(r":\w+:`([^`]*)`|``(nameserver[^`]*)``", text)
        for reference in [reference[0] or reference[1]]
        if not exists(reference)
    ]
    assert gone == []


@pytest.mark.slow
@pytest.mark.parametrize("what", ["a test", "a case in which its fix is switched off"])
def test_each_defect_has(what: str) -> None:
    tested = {int(number) for test in named_tests() for number in re.findall(r"_d(\d+)(?=_)", test)}
    found = tested if what == "a test" else switched_off()
    assert sorted(set(NUMBERS) - found) == []
    assert sorted(found - set(NUMBERS)) == []
