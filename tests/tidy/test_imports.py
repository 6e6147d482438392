"""The rules on who may import what, read from the source; a broken rule is named with file and line."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("remoting", "nameserver", "broker", "client", "bench")
#: What only thin IO code may use: waiting, clocks, threads, sockets, chance.
IMPURE = {"asyncio", "threading", "socket", "time", "random", "select", "selectors", "subprocess", "secrets"}
#: Modules that carry values to and from the world. Everything else in the packages is pure.
IO_MODULES = {
    "remoting": {"transport/"},
    "nameserver": {
        "__main__.py",
        "server.py",
        "http.py",
        "files.py",
        "consistency.py",
        "independent.py",
        "replicated.py",
        "raft/",
    },
    "broker": {
        "__main__.py",
        "server.py",
        "registrar.py",
        "store.py",
        "commit_log.py",
        "consume_queue.py",
        "delay.py",
    },
    "client": {"aio.py", "blocking.py", "mqadmin/"},
}
MAY_IMPORT = {
    "remoting": {"remoting"},
    "nameserver": {"nameserver", "remoting"},
    "broker": {"broker", "remoting"},
    "client": {"client", "remoting"},
    "bench": {"bench", "client", "remoting"},
}


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted module) of each import that runs; type-checking blocks do not."""
    tree = ast.parse(path.read_text(), str(path))
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            skipped.update(id(inner) for part in node.body for inner in ast.walk(part))
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module


def is_io(package: str, path: Path) -> bool:
    inside = path.relative_to(ROOT / package).as_posix()
    return any(
        inside == entry or (entry.endswith("/") and inside.startswith(entry))
        for entry in IO_MODULES.get(package, ())
    )


def violations() -> Iterator[str]:
    for package in PACKAGES:
        for path in sources(package):
            where = path.relative_to(ROOT)
            for line, module in imports(path):
                top = module.split(".")[0]
                if top in PACKAGES and top not in MAY_IMPORT[package]:
                    yield f"{where}:{line}: {package} must not import {module}"
                if top == "pysyncobj" and not where.as_posix().startswith("nameserver/raft/"):
                    yield f"{where}:{line}: only nameserver/raft knows pysyncobj, not {module}"
                if top == "pickle":
                    yield f"{where}:{line}: nothing is pickled or unpickled here"
                if package in IO_MODULES and top in IMPURE and not is_io(package, path):
                    yield f"{where}:{line}: pure module imports {module}"


def test_every_import_keeps_the_rules() -> None:
    assert list(violations()) == []


def test_io_modules_named_by_the_rules_exist() -> None:
    missing = [
        f"{package}/{entry}"
        for package, entries in IO_MODULES.items()
        for entry in entries
        if not (ROOT / package / entry).exists()
    ]
    assert missing == []


def test_only_programs_read_arguments_and_environment() -> None:
    readers = []
    for package in PACKAGES:
        for path in sources(package):
            if path.name == "__main__.py" or "mqadmin" in path.parts or package == "bench":
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute) and ast.unparse(node) in {
                    "sys.argv",
                    "os.environ",
                    "os.getenv",
                }:
                    readers.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert readers == []


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-bench.lock", "requirements-test.lock"])
def test_lock_file_pins_with_hashes_and_names_no_index(name: str) -> None:
    text = (ROOT / name).read_text()
    pins = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert pins
    assert all("==" in pin for pin in pins)
    assert text.count("--hash=sha256:") >= len(pins)
    assert "://" not in text


def test_raft_library_is_pinned_exactly() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "pysyncobj==0.3.17" in project["dependencies"]
