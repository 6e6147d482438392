"""Spark reads each run only once into the silver tables, which hold cleaned events.

The runs may lie in any storage that Spark can read. No Python runs on Spark's executors.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

import routekeeper.bench.report
from routekeeper.bench.report import silver
from routekeeper.bench.report.silver import Source
from routekeeper.bench.runfolder import write_manifest
from tests.bench.report.planted import PlantedRun

pytestmark = [pytest.mark.spark, pytest.mark.computes]


def looked_up(root: Path, block: int, times: int) -> PlantedRun:
    with PlantedRun(root, scenario="quiet", block=block) as run:
        for number in range(times):
            run.op("lookup", 1.0 + number, 0.001)
    return run


def read_anew(spark: SparkSession, root: str, out: str) -> list[Source]:
    """Update the silver tables in the same way as a report, and return the runs that were read."""
    sources = silver.find(spark, [root])
    new = silver.new_ones(spark, sources, out)
    silver.write_events(spark, new, out)
    silver.note_sources(spark, sources, out)
    return new


def lines(spark: SparkSession, out: str) -> dict[int, int]:
    """Return the number of readable events in each round, by the round's number."""
    rows = silver.line_quality(silver.events(spark, out)).toArrow().to_pylist()
    return {int(row["run"].split("/")[3]): row["lines"] - row["bad"] for row in rows}


def files(out: Path, block: int) -> set[str]:
    return {path.name for path in out.rglob("*.parquet") if f"block={block}" in path.parts}


def test_only_runs_that_are_new_or_were_made_again_are_read(spark: SparkSession, tmp_path: Path) -> None:
    root, out = tmp_path / "runs of [1] day", tmp_path / "out of {it}"
    looked_up(root, 1, 3)
    second = looked_up(root, 2, 4)
    assert len(read_anew(spark, f"file://{root}", f"file://{out}")) == 2
    assert lines(spark, f"file://{out}") == {1: 3, 2: 4}
    before = files(out, 1), files(out, 2)
    # A path without "file://" in front names the same runs, so the report must not read any run again.
    assert read_anew(spark, str(root), str(out)) == []

    second.folder.rename(tmp_path / "set aside")
    again = looked_up(root, 2, 9)
    write_manifest(again.folder, msgspec.structs.replace(again.manifest, attempt=2))
    looked_up(root, 3, 5)
    assert sorted(source.block for source in read_anew(spark, str(root), str(out))) == [2, 3]
    assert lines(spark, str(out)) == {1: 3, 2: 9, 3: 5}
    assert files(out, 1) == before[0]  # the first run's files were not written again
    assert files(out, 2).isdisjoint(before[1])  # the second run's files were replaced

    void = msgspec.structs.replace(again.manifest, attempt=3, void="the proxy is gone")
    write_manifest(again.folder, void)
    assert read_anew(spark, str(root), str(out)) == []
    # the run is now void, so the tables no longer contain its events
    assert lines(spark, str(out)) == {1: 3, 3: 5}


@pytest.fixture
def bucket(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """Yield a folder that Hadoop's mount table puts in place of ``s3a://bucket/store``."""
    context = spark.sparkContext
    conf = context._jsc.hadoopConfiguration()
    settings = {
        "fs.s3a.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme",
        "fs.viewfs.overload.scheme.target.s3a.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        "fs.viewfs.overload.scheme.target.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
        "fs.viewfs.mounttable.bucket.link./store": tmp_path.as_uri(),
    }
    for key, value in settings.items():
        conf.set(key, value)
    yield tmp_path
    for key in settings:
        conf.unset(key)


def test_uri_of_an_object_store_comes_to_hadoop_as_it_was_typed(spark: SparkSession, bucket: Path) -> None:
    """Check that our code passes a URI to Hadoop unchanged.

    It must not make the path absolute, expand patterns, or change ``s3a://`` into ``s3a:/``.
    """
    looked_up(bucket, 1, 3)
    uri, out = "s3a://bucket/store/runs", "s3a://bucket/store/out"
    (found,) = silver.find(spark, [uri])
    assert found.uri.startswith("s3a://bucket/store/runs/series=equal/")
    assert len(read_anew(spark, uri, out)) == 1
    assert lines(spark, out) == {1: 3}
    assert list((bucket / "out" / "silver" / "events").rglob("*.parquet"))
    assert read_anew(spark, uri, out) == []


def test_no_transform_runs_python_on_executors_or_brings_rows_to_the_driver() -> None:
    """Check that no code runs Python on executors, and that only one call fetches tables to the driver.

    The call is ``toArrow``. The size of its tables does not grow with the load.
    """
    forbidden = {"udf", "pandas_udf", "mapInArrow", "mapInPandas", "applyInArrow", "applyInPandas", "rdd"}
    forbidden |= {"collect", "toPandas", "toLocalIterator", "take", "head", "foreach", "foreachPartition"}
    arrow = []
    for path in Path(routekeeper.bench.report.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                assert node.attr not in forbidden, f"{path.name}:{node.lineno} uses {node.attr}"
                if node.attr == "toArrow":
                    arrow.append(path.name)
    assert arrow == ["pipeline.py"]
