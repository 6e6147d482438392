"""The Makefile prefers an optimised Python interpreter, and tables of results name the interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from routekeeper.bench import interpreter

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("config_args", "prefix", "debian", "known"),
    [
        ("'--enable-optimizations' '--with-lto' '--enable-shared'", "/opt", False, True),
        ("'--enable-optimizations'", "/opt", False, False),
        ("'--prefix=/opt/3.11' '--enable-shared'", "/opt", True, False),
        ("'--with-dbmliborder=bdb:gdbm'", "/usr", True, True),
        ("'--with-dbmliborder=bdb:gdbm'", "/usr", False, False),
    ],
    ids=["both flags", "one flag", "own build on Debian", "Debian's package", "another system's"],
)
def test_build_counts_as_optimised_if_it_is_on_the_list(
    config_args: str, prefix: str, debian: bool, known: bool
) -> None:
    assert bool(interpreter.optimised_by(config_args, prefix, debian=debian)) == known


def a_python(folder: Path, name: str, *, optimised: bool, able: bool = True, version: str = "3.11.2") -> Path:
    """Write a program that answers like a Python interpreter with these properties, and return its path."""
    folder.mkdir(exist_ok=True)
    place = folder / name
    reason = "a reason" if optimised else None
    answer = {
        "path": str(place),
        "version": version,
        "compiler": "GCC",
        "optimised": reason,
        "makes_environments": able,
    }
    place.write_text(f"#!/bin/sh\ncat <<END\n{json.dumps(answer)}\nEND\n")
    place.chmod(0o755)
    return place


@pytest.fixture(autouse=True)
def no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "_USUAL", "/nowhere")


def path_of(tmp_path: Path, *names: str) -> str:
    return os.pathsep.join(str(tmp_path / name) for name in names)


def test_optimised_python_wins_over_one_that_comes_first(tmp_path: Path) -> None:
    a_python(tmp_path / "one", "python3.11", optimised=False)
    wanted = a_python(tmp_path / "two", "python3.11", optimised=True)
    assert interpreter.choose(path_of(tmp_path, "one", "two")) == str(wanted)


def test_python_that_cannot_make_an_environment_or_does_not_run_is_passed_over(tmp_path: Path) -> None:
    a_python(tmp_path / "one", "python3.11", optimised=True, able=False)
    broken = a_python(tmp_path / "two", "python3.11", optimised=True)
    broken.write_text("#!/bin/sh\nexit 127\n")
    wanted = a_python(tmp_path / "three", "python3.11", optimised=False)
    assert interpreter.choose(path_of(tmp_path, "one", "two", "three")) == str(wanted)


def test_newer_python_is_taken_where_there_is_no_python_3_11(tmp_path: Path) -> None:
    a_python(tmp_path / "one", "python3", optimised=True, version="3.10.4")
    wanted = a_python(tmp_path / "two", "python3", optimised=False, version="3.13.0")
    assert interpreter.choose(path_of(tmp_path, "one", "two")) == str(wanted)
    assert interpreter.choose(path_of(tmp_path, "one")) is None


def test_makefile_takes_the_chosen_python_unless_one_is_named(tmp_path: Path) -> None:
    a_python(tmp_path / "one", "python3.11", optimised=False)
    wanted = a_python(tmp_path / "two", "python3.11", optimised=True)
    starter = tmp_path / "starter"
    starter.mkdir()
    (starter / "python3.11").symlink_to(sys.executable)
    path = path_of(tmp_path, "starter", "one", "two") + os.pathsep + os.environ["PATH"]

    def python_of(*words: str) -> str:
        command = ["make", "--silent", "--eval", "show: ; @echo $(PYTHON)", "show", *words]
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))
        }
        environment.pop("PYTHON", None)
        environment["PATH"] = path
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        ).stdout.strip()

    about = json.loads(subprocess.check_output([sys.executable, "-I", interpreter.__file__, "--about"]))
    assert python_of() == (about["path"] if about["optimised"] else str(wanted))
    assert python_of("PYTHON=/some/python") == "/some/python"


def test_table_names_path_version_compiler_and_build() -> None:
    found = {"path": "/usr/bin/python3.11", "version": "3.11.2", "compiler": "GCC 12.2.0", "optimised": None}
    assert interpreter.describe(found) == (
        "3.11.2 (/usr/bin/python3.11, GCC 12.2.0, not known to be optimised)"
    )
    found["optimised"] = "the distribution's package"
    assert interpreter.describe(found).endswith("GCC 12.2.0, optimised (the distribution's package))")


@pytest.mark.parametrize("optimised", [None, "a reason"])
def test_head_of_a_table_warns_of_a_python_that_is_not_optimised(
    optimised: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {**interpreter.about(), "optimised": optimised}
    monkeypatch.setattr(interpreter, "about", lambda: found)
    head, *warning = interpreter.said().splitlines()
    assert head == f"Python {interpreter.describe(found)}"
    assert bool(warning) == (optimised is None)
