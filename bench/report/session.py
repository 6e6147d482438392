"""The Spark session of a report, and the end of the report by an interrupt."""

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
"""Size of events in bytes. Below this size a report ends before the JVM's optimising compiler (C2) could
save time."""
COMPRESSED_TIMES: Final = 10
"""Largest ratio of the size of uncompressed events to the size of their compressed file, as an estimate."""

_LAPTOP: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    # Largest result of a task in bytes that reaches the driver directly, and largest message in MiB. Spark
    # stores a larger result first, and a stored result can be lost before the driver fetches it. The tables
    # of 389 MiB of events make a result of 107 MB.
    "spark.task.maxDirectResultSize": "1g",
    "spark.rpc.message.maxSize": "1024",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
}
"""Spark settings for this machine. They do not apply to a chosen Spark master, which has its own settings."""


_SMALL: Final = {
    # With the fast compiler C1 as the only compiler, the JVM reserves only 48 MiB for code by default. The
    # plans of one report fill these 48 MiB.
    "spark.driver.extraJavaOptions": (
        "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -Xms1g -Xmn512m"
    ),
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
    # Let one task read many tiny files, and make one file for each run.
    "spark.sql.files.openCostInBytes": "32768",
    "spark.sql.files.minPartitionNum": "1",
    # Keep one writer per run open; otherwise Spark sorts the rows by run before it writes them.
    "spark.sql.maxConcurrentOutputFileWriters": "1000",
}
"""Further Spark settings for little data, for which Spark spends more time on plans than on rows."""


def is_small(roots: Sequence[str]) -> bool:
    """Return True if all events are on this machine's disk, and have fewer than ``SMALL_BYTES`` bytes."""
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
    """Return the active session, or start a session: on the given Spark master, otherwise on this machine.

    Args:
        small: True for little data; see :func:`is_small`. Has an effect only if Spark runs on this machine.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    # Without this setting, workers start the first python3 on PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("mqbench report").config("spark.sql.session.timeZone", "UTC")
    if not submitted():
        ensure_java()
        if "master" not in os.environ.get("PYSPARK_SUBMIT_ARGS", ""):
            # avoids Spark's warning about the host's name
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            for key, value in (_LAPTOP | (_SMALL if small else {})).items():
                builder = builder.config(key, value)
    handler = signal.getsignal(signal.SIGINT)
    session = builder.getOrCreate()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)  # put our handler back: Spark has replaced it
    return session


def in_one_process(master: str) -> bool:
    """Return True if executors of a Spark master run within the driver's process."""
    return master == "local" or master.startswith("local[")


def submitted() -> bool:
    """Return True if spark-submit runs this program; the JVM then belongs to spark-submit."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def interrupted(number: int, frame: object) -> NoReturn:
    """End Spark's JVM and workers, then this process; a signal may call this function at any time.

    An ordinary exception does not suffice. A starting JVM would wait for this process for ever. An exception
    during a call into the JVM would cause many other exceptions, each with its traceback.
    """
    import psutil  # import here: under spark-submit psutil may be missing, and this function is not used

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    children = psutil.Process().children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.terminate()
    for child in psutil.wait_procs(children, timeout=_END_S)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    os._exit(_INTERRUPTED)
