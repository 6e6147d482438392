"""On a Spark cluster, the report computes the same tables as on one machine."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
import pyspark
import pytest

from routekeeper.bench.jre import ensure_java
from tests.bench.report.comparison import Compared
from tests.ports import free_ports

pytestmark = [pytest.mark.spark, pytest.mark.computes]

SPARK: Final = Path(pyspark.__file__).parent / "bin"
JOB: Final = Path(__file__).parents[2] / "bench" / "report" / "job.py"
#: JVM options that start a JVM faster. They switch off optimisations that help only programs that run for
#: minutes.
BRIEF: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
#: Longest wait in s for the start, the end or a sign of life of a JVM. It is long, because these JVMs may get
#: little processor time for minutes (see COMPUTES_S in tests/conftest.py).
WAIT_S: Final = 1000.0


@contextlib.contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """Run a Spark master, and a worker with two cores, and yield the master's URL."""
    port, web, of_worker = free_ports(3)
    url = f"spark://127.0.0.1:{port}"
    host = ["--host", "127.0.0.1"]
    place = ["-c", "2", "-m", "2g", "-d", str(folder / "worker"), "--webui-port", str(of_worker)]
    programs = [
        ["master.Master", *host, "--port", str(port), "--webui-port", str(web)],
        ["worker.Worker", *host, *place, url],
    ]
    daemons = f"{BRIEF} -Dspark.worker.timeout={WAIT_S:.0f}"
    environment = {**os.environ, "SPARK_DAEMON_JAVA_OPTS": daemons, "SPARK_DAEMON_MEMORY": "256m"}
    environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    with contextlib.ExitStack() as stack:
        started = []
        for number, (what, *options) in enumerate(programs):
            log = stack.enter_context((folder / f"program-{number}.log").open("wb"))
            command = [str(SPARK / "spark-class"), f"org.apache.spark.deploy.{what}", *options]
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            started.append(process)
            stack.callback(process.wait, WAIT_S)
            stack.callback(process.terminate)
        deadline = time.monotonic() + WAIT_S
        while not alive_workers(web):
            ended = [process.args for process in started if process.poll() is not None]
            assert not ended, (ended, *(path.read_text() for path in folder.glob("program-*.log")))
            assert time.monotonic() < deadline, "the worker has not come"
            time.sleep(0.1)
        yield url


def alive_workers(port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/", timeout=5) as reply:
            return int(json.load(reply)["aliveworkers"])
    except (OSError, ValueError):  # the master starts its web pages before it can serve JSON
        return 0


def test_submitted_job_computes_the_same_tables_on_executors_of_their_own(
    compared: Compared, tmp_path: Path
) -> None:
    """Use executors without Python and without our files. The report's tasks must not need either of them."""
    ensure_java()
    local = compared.out
    events, out = tmp_path / "events", tmp_path / "out"
    events.mkdir()
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.dir": events.as_uri(),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": BRIEF,
        "spark.executor.extraJavaOptions": BRIEF,
        "spark.executor.cores": "1",  # so that there are two executors
        "spark.executor.memory": "1g",
        "spark.network.timeout": f"{WAIT_S:.0f}s",
        # Begin with both executors, even if one of them starts late.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{WAIT_S:.0f}s",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_PYTHON": "/bin/false",
    }
    with standalone(tmp_path) as master:
        command = [str(SPARK / "spark-submit"), "--master", master]
        for key, value in settings.items():
            command += ["--conf", f"{key}={value}"]
        done = subprocess.run(
            [*command, str(JOB), f"file://{compared.root}", "--out", f"file://{out}"],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == str(out / "report.html")
    assert (out / "report.html").read_text().startswith("<!doctype html>")
    assert executors(events) == {"0", "1"}
    names = sorted(path.name for path in (local / "marts").glob("*.parquet"))
    assert sorted(path.name for path in (out / "marts").glob("*.parquet")) == names
    for name in ("recoveries", "disagreements", "costs", "values"):
        assert rows(local / "marts" / f"{name}.parquet"), f"{name} is empty, so that equal says nothing"
    for name in names:
        assert rows(out / "marts" / name) == rows(local / "marts" / name), name


def executors(events: Path) -> set[str]:
    """Return the ids of the executors that ran tasks, from Spark's event log."""
    (log,) = events.iterdir()
    found = set()
    with log.open() as lines:
        for line in lines:
            if line.startswith('{"Event":"SparkListenerTaskEnd"'):
                found.add(json.loads(line)["Task Info"]["Executor ID"])
    return found


def rows(path: Path) -> list[str]:
    return sorted(repr(tuple(row.values())) for row in pq.read_table(path).to_pylist())
