"""Tables that the tests of the report share, because even few rows cost 50 s of processor time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from routekeeper.bench.report.gold import Gold


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> tuple[Gold, list[str]]:
    """The tables of all run folders with planted truths, and the lines that were printed meanwhile."""
    from routekeeper.bench.report.pipeline import compute
    from tests.bench.report import test_files, test_planted

    root = tmp_path_factory.mktemp("results [1]")  # a path that Spark could take for a pattern
    for plant in (*test_planted.PLANTS, test_files.harmed):
        plant(root)
    said: list[str] = []
    out = str(tmp_path_factory.mktemp("out"))
    return compute(spark, [str(root)], out, small=True, progress=said.append), said
