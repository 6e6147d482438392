"""In an unusual environment, the report still works, or one line says why it cannot work.

Examples are settings for another Spark or Java, other locales, and a user without a name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import pytest

from routekeeper.bench import compare
from routekeeper.bench.plan import load_plan, only_scenarios
from routekeeper.bench.schedule import Comparison, blocks_of
from tests.bench.report.planted import PlantedRun

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]

NAMELESS: Final = ("unshare", "--user", "--map-user=12345", "--map-group=12345")
"""Command prefix that runs a program with a user id for which the system has no user name."""


def mqbench(
    *words: str | Path,
    before: tuple[str, ...] = (),
    environment: Mapping[str, str | None] | None = None,
) -> tuple[int, list[str]]:
    """Run mqbench, and return its exit code and the lines that it printed on stderr.

    Args:
        words: Arguments of mqbench.
        before: Words in front of mqbench's command, for example to run it as another user.
        environment: Variables to set. A variable with the value None is removed.
    """
    given = {**os.environ, **(environment or {})}
    done = subprocess.run(
        [*before, sys.executable, "-m", "routekeeper.bench", *map(str, words)],
        env={name: value for name, value in given.items() if value is not None},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    return done.returncode, done.stderr.splitlines()


def a_run(root: Path, seed: int = 7) -> None:
    with PlantedRun(root, scenario="quiet", arm="independent", listed=True, seed=seed) as run:
        run.op("lookup", 1.0, 0.001)


def a_comparison(out: Path) -> None:
    """Write a complete comparison that has only one run."""
    plan = only_scenarios(load_plan("smoke"), ["quiet"])
    plan = msgspec.structs.replace(plan, arms=["independent"])
    comparison = Comparison(profile="smoke", plan=plan, seed=4, command=["mqbench"], given=None)
    compare.begin(out, comparison)
    ((turn,),) = blocks_of(plan, comparison.seed)
    a_run(out, turn.seed - 1)  # PlantedRun adds the round's number (here 1) to the seed


def foreign(folder: Path) -> dict[str, str | None]:
    """Return environment variables of other Spark and Java programs, which mqbench must ignore."""
    folder.mkdir()
    (folder / "core-site.xml").write_text(
        "<configuration><property><name>fs.defaultFS</name><value>hdfs://nowhere:1</value></property>"
        "</configuration>"
    )
    (folder / "spark-defaults.conf").write_text("spark.master spark://nowhere:7077\n")
    return {
        "SPARK_HOME": str(folder / "spark"),
        "SPARK_CONF_DIR": str(folder),
        "SPARK_LOCAL_IP": "203.0.113.1",
        "SPARK_LOCAL_DIRS": "/proc/nowhere",
        "SPARK_DIST_CLASSPATH": str(folder / "*"),
        "HADOOP_CONF_DIR": str(folder),
        "YARN_CONF_DIR": str(folder),
        "PYSPARK_SUBMIT_ARGS": "--master yarn pyspark-shell",
        "PYSPARK_PYTHON": str(folder / "python"),
        "PYSPARK_DRIVER_PYTHON": "jupyter",
        "JAVA_TOOL_OPTIONS": "-XX:NoSuchOption",
        "_JAVA_OPTIONS": "-Xmx16m",
        "LC_ALL": "C",
        "LANG": "tr_TR.UTF-8",
        "HOME": None,
        "XDG_CACHE_HOME": None,
    }


@pytest.mark.spark
@pytest.mark.computes
def test_report_is_made_whatever_spark_java_and_locale_the_shell_names(tmp_path: Path) -> None:
    root, out = tmp_path / "Läufe", tmp_path / "Bericht ı"
    a_run(root)
    code, said = mqbench("report", root, "--out", out, environment=foreign(tmp_path / "foreign"))
    assert code == 0, said[-20:]
    assert (out / "report.html").stat().st_size > 10_000


@pytest.mark.spark
@pytest.mark.computes
def test_report_that_fails_prints_one_line_and_the_command_that_makes_it(tmp_path: Path) -> None:
    out = tmp_path / "out of it"
    a_comparison(out)
    (out / "report.html").mkdir()  # a folder with the page's name makes writing the page fail
    code, said = mqbench("compare", "--resume", out)
    assert code == 1
    assert not [line for line in said if "Traceback" in line]
    assert [line for line in said if line.startswith("mqbench report: ") and "report.html" in line]
    command = f"mqbench report '{out}/runs' --out '{out}'"
    assert said[-1] == f"mqbench: the runs are kept; to make their page, run: {command}"


def test_spark_that_does_not_start_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        '#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "17.0.1"\' >&2 && exit\n'
        "echo no room for a heap >&2\nexit 1\n"
    )
    java.chmod(0o755)
    words = ("compare", "--profile", "smoke", "--out", tmp_path / "out")
    code, said = mqbench(*words, environment={"JAVA_HOME": str(java.parent.parent)})
    assert code == 1
    assert said == ["mqbench: Spark, which makes the report, does not start: no room for a heap"]
    assert not list((tmp_path / "out").rglob("runs"))


@pytest.mark.parametrize("command", ["compare", "report"])
def test_user_without_a_name_is_told_so_before_anything_is_measured(tmp_path: Path, command: str) -> None:
    """Spark's JVM does not start for a user without a name. mqbench must say so before it measures anything.

    The command ``docker run --user 12345`` makes such a user.
    """
    if shutil.which("unshare") is None or subprocess.run([*NAMELESS, "true"], check=False).returncode != 0:
        pytest.skip("this system lets nobody be a user without a name")
    a_run(tmp_path)
    words: dict[str, tuple[str | Path, ...]] = {
        "compare": ("compare", "--profile", "smoke", "--out", tmp_path / "out"),
        "report": ("report", tmp_path, "--out", tmp_path / "out"),
    }
    code, said = mqbench(*words[command], before=NAMELESS, environment={"HOME": None})
    assert code == 2
    assert said == [
        "mqbench: user 12345 has no entry in the system's list of users (/etc/passwd), which Spark needs: "
        "add one, or run as another user"
    ]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["compare", "report"])
@pytest.mark.parametrize("kind", ["file", "below a file", "not to be written"])
def test_out_that_cannot_be_a_folder_is_told_at_once(tmp_path: Path, command: str, kind: str) -> None:
    a_run(tmp_path)
    file = tmp_path / "page.html"
    file.write_text("somebody's")
    out, why = {
        "file": (file, "this is a file; name a folder"),
        "below a file": (file / "out", "Not a directory"),
        "not to be written": (Path("/proc/out"), "No such file or directory"),
    }[kind]
    words = ("compare", "--profile", "smoke") if command == "compare" else ("report", tmp_path)
    code, said = mqbench(*words, "--out", out)
    assert code == 2
    assert said == [f"mqbench: --out {out}: {why}"]
    assert file.read_text() == "somebody's"
