"""The report's Spark session has settings that fit the amount of data and the kind of Spark cluster."""

import subprocess
import sys
from pathlib import Path

import pytest

from routekeeper.bench.report.session import SMALL_BYTES, in_one_process, is_small


def test_events_up_to_the_limit_are_few_however_many_files_they_fill(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with (tmp_path / f"{name}.jsonl").open("wb") as file:
            file.truncate(SMALL_BYTES // 2)  # a sparse file, which has a size but uses no disk space
    (tmp_path / "page.html").write_bytes(bytes(1000))  # not an event file, so its size must not count
    assert is_small([str(tmp_path)])
    with (tmp_path / "c.jsonl").open("wb") as file:
        file.truncate(1)
    assert not is_small([str(tmp_path)])


@pytest.mark.parametrize("root", ["s3a://bucket/runs", "hdfs:///runs", "file:/tmp", "file:///tmp"])
def test_what_lies_behind_a_uri_is_never_few(root: str) -> None:
    """Check that data behind a URI is never small, because its size is unknown until Spark lists it."""
    assert not is_small([root])


@pytest.mark.parametrize(
    ("master", "one"),
    [
        ("local", True),
        ("local[1]", True),
        ("local[*]", True),
        ("local[2,4]", True),
        ("local-cluster[2,1,1024]", False),
        ("spark://127.0.0.1:7077", False),
        ("yarn", False),
        ("k8s://https://127.0.0.1:443", False),
    ],
)
def test_only_local_masters_keep_executors_in_the_drivers_process(master: str, one: bool) -> None:
    """Check that a local Spark session runs its tasks in the driver's process, but a cluster does not.

    On a cluster, an executor may be lost. Then data that only the executor's memory holds is lost, too.
    """
    assert in_one_process(master) is one


_LARGE_RESULT = """
from routekeeper.bench.report.session import open_session

spark = open_session()
spark.sparkContext.setLogLevel("INFO")
# Use digests, because Spark compresses results: 154 MB of digests still have half of that afterwards. The
# tables of 389 MiB of events made a result of 107 MB.
digests = "array_join(transform(sequence(1, 1200000), i -> sha2(string(i), 512)), '')"
(row,) = spark.range(1, numPartitions=1).selectExpr(f"{digests} AS text").collect()
print(len(row.text))
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.computes
def test_what_a_task_found_is_part_of_its_answer() -> None:
    """Check that the result of a task goes directly to the driver.

    If an executor stored the result until the driver fetched it, the loss of the executor would fail the
    report.
    """
    done = subprocess.run([sys.executable, "-c", _LARGE_RESULT], capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(1_200_000 * 128)], done.stderr[-4000:]
    assert "bytes result sent to driver" in done.stderr
    assert "sent via BlockManager" not in done.stderr
