"""Report tables that many tests share.

They are computed only once, because a Spark job needs 50 s of CPU time even for few events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from routekeeper.bench.report.gold import Gold


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> tuple[Gold, list[str]]:
    """Return the report's tables of all planted run folders, and the lines that their Spark job printed."""
    from routekeeper.bench.report.pipeline import compute
    from tests.bench.report import test_files, test_planted

    # Spark reads "[1]" in a path as a pattern, unless the report escapes the brackets.
    root = tmp_path_factory.mktemp("results [1]")
    for plant in (*test_planted.PLANTS, test_files.harmed):
        plant(root)
    said: list[str] = []
    out = str(tmp_path_factory.mktemp("out"))
    return compute(spark, [str(root)], out, small=True, progress=said.append), said
