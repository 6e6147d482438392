"""The Spark session of a report, and a function that ends the report after an interrupt."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from pyspark.sql import SparkSession

from routekeeper.bench.jre import ensure_java

_INTERRUPTED: Final = 130  # exit code as shells report it: 128 + SIGINT
_END_S: Final = 3.0
SMALL_BYTES: Final = 256 * 2**20
"""Size of events in bytes. A report of fewer bytes ends before the JVM's optimising compiler (C2) could save
time."""
COMPRESSED_TIMES: Final = 10
"""Largest ratio of the size of uncompressed events to the size of their compressed file, as an estimate."""

_LAPTOP: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    # Limits for a task's result that is sent to the driver directly (in bytes), and for a message (in MiB).
    # Spark stores a larger result first, and may lose it before the driver fetches it. For 389 MiB of events,
    # the tables make a result of 107 MB.
    "spark.task.maxDirectResultSize": "1g",
    "spark.rpc.message.maxSize": "1024",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.showConsoleProgress": "false",
    # Python fetches each table over a socket of its own. On a busy machine the JVM may be late.
    "spark.python.authenticate.socketTimeout": "10m",
    "spark.log.level": "ERROR",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
}
"""Spark settings for this machine. They do not apply to a chosen Spark master, which has its own settings."""


_SMALL: Final = {
    # Use only the JVM's fast compiler (C1). The JVM then reserves 48 MiB for code by default, and the plans
    # of one report fill these 48 MiB. So reserve more.
    "spark.driver.extraJavaOptions": (
        "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -Xms1g -Xmn512m"
    ),
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
    # With these two settings, one task reads many tiny files, and writes one file for each run.
    "spark.sql.files.openCostInBytes": "32768",
    "spark.sql.files.minPartitionNum": "1",
    # Keep one writer per run open. Otherwise Spark sorts the rows by run before it writes them.
    "spark.sql.maxConcurrentOutputFileWriters": "1000",
}
"""Further Spark settings for little data, for which Spark spends more time on plans than on rows."""


def is_small(roots: Sequence[str]) -> bool:
    """Return True if all events are on this machine's disk, with a total size below ``SMALL_BYTES``."""
    size = 0
    for root in roots:
        if "://" in root or root.startswith("file:"):
            return False
        for path in Path(root).rglob("*.jsonl*"):
            size += path.stat().st_size * (1 if path.suffix == ".jsonl" else COMPRESSED_TIMES)
            if size > SMALL_BYTES:
                return False
    return True


def open_session(*, small: bool = False) -> SparkSession:
    """Return the active Spark session. If there is none, start one on Spark's master or on this machine.

    Args:
        small: True for little data (see :func:`is_small`). It has an effect only if Spark runs on this
            machine.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    # Workers must use this Python. The default, the first python3 on PATH, may be another version.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("mqbench report").config("spark.sql.session.timeZone", "UTC")
    if not submitted():
        ensure_java()
        if "master" not in os.environ.get("PYSPARK_SUBMIT_ARGS", ""):
            # without this, Spark prints a warning about the host's name
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            for key, value in (_LAPTOP | (_SMALL if small else {})).items():
                builder = builder.config(key, value)
    handler = signal.getsignal(signal.SIGINT)
    session = builder.getOrCreate()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)  # set our handler again, because Spark has replaced it
    return session


def in_one_process(master: str) -> bool:
    """Return True if executors of a Spark master run within the driver's process."""
    return master == "local" or master.startswith("local[")


def submitted() -> bool:
    """Return True if spark-submit has started this program. Then spark-submit controls the JVM, too."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def interrupted(number: int, frame: object) -> NoReturn:
    """Handle a signal: end Spark's JVM and workers, and then this process.

    An exception is not enough, for two reasons. A JVM that is just starting would wait for this process for
    ever. During a call into the JVM, an exception would cause many other exceptions, each with its own
    traceback.
    """
    import psutil  # psutil may be missing under spark-submit, where nothing calls this function

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    children = psutil.Process().children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.terminate()
    for child in psutil.wait_procs(children, timeout=_END_S)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    os._exit(_INTERRUPTED)
