"""In CSV tables, text from a server stays text, so that a spreadsheet does not run it as a formula."""

from __future__ import annotations

import csv
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from routekeeper.bench.report.storage import write_table

pytestmark = [pytest.mark.spark, pytest.mark.computes]

FORMULAS = ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1+1", "\r=1+1", '=HYPERLINK("http://h/")')


def test_text_that_a_spreadsheet_would_compute_gets_an_apostrophe_and_numbers_stay_numbers(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = pa.table(
        {
            "remark": [*FORMULAS, "no route", "a=b", None],
            "targets": [[text, "x"] for text in FORMULAS] + [["broker-1"], [], None],
            "low": [-1.5] * 10,
            "code": [-17] * 10,
        }
    )
    write_table(spark, str(tmp_path), "reasons", table)
    with (tmp_path / "reasons.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["remark"] for row in rows] == [*(f"'{text}" for text in FORMULAS), "no route", "a=b", ""]
    assert [row["targets"] for row in rows] == [*(f"'{text} x" for text in FORMULAS), "broker-1", "", ""]
    assert {(row["low"], row["code"]) for row in rows} == {("-1.5", "-17")}


def test_names_of_columns_are_text_as_well(tmp_path: Path, spark: SparkSession) -> None:
    write_table(spark, str(tmp_path), "odd", pa.table({"=cmd": [1]}))
    assert (tmp_path / "odd.csv").read_text().splitlines()[0] == "'=cmd"
