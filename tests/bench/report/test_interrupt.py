"""If Ctrl-C interrupts the making of a report, the program ends its JVM."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.bench.report.planted import PlantedRun

pytestmark = [pytest.mark.spark, pytest.mark.timeout(500)]  # a JVM starts slowly on a busy machine

JVM_S = 120.0


def jvms(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return the JVMs that a process has started for Spark and that still run."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "org.apache.spark.deploy.SparkSubmit" in child.cmdline():
                found.append(child)
    return found


def test_interrupted_while_spark_starts_the_report_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    """Check that the report ends its JVM. A JVM that has just started does not notice the report's end."""
    with PlantedRun(tmp_path, scenario="quiet") as run:
        run.op("lookup", 1.0, 0.001)
    command = [sys.executable, "-m", "routekeeper.bench", "report", str(tmp_path), "--out", f"{tmp_path}/out"]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        deadline = time.monotonic() + JVM_S
        while not (found := jvms(process)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert found, "no JVM was started"
        process.send_signal(signal.SIGINT)  # the signal goes to mqbench only, so mqbench must end the JVM
        assert process.wait(timeout=JVM_S) == 130
        _, alive = psutil.wait_procs(found, timeout=JVM_S)
        assert alive == []
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
