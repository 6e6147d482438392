"""Advice on the choice of a design (independent mode, raft mode or ZooKeeper).

The advice is made without Spark, from the tables that the report's job has written beside the page.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from routekeeper.bench.report import answers, words
from routekeeper.bench.report.conditions import Conditions
from routekeeper.bench.report.measures import MEASURES, Place, Values
from routekeeper.bench.runfolder import Line


class NoReport(Exception):
    """The folder has no figures that this program can read, or its figures allow no advice."""


def advice(folder: Path) -> list[tuple[str, str, str]]:
    """Return for each headline measure its subject, its result, and the medians of the designs.

    Args:
        folder: Folder of a report. Its subfolder ``marts`` has the values of each run.

    Raises:
        NoReport: If the folder has no values, or if the machine was too busy for any advice.
    """
    tables: dict[str, list[dict[str, Any]]] = {}
    found: Values = defaultdict(lambda: defaultdict(dict))
    planned: set[tuple[Place, str]] = set()
    below: dict[Place, dict[str, float]] = defaultdict(dict)
    try:
        for name in ("values", "conditions", "lines"):
            path = folder / "marts" / f"{name}.parquet"
            tables[name] = pq.read_table(path).to_pylist()
        for row in tables["values"]:
            place = Place(row["series"], row["scenario"], row["case"], row["measure"])
            if place.measure in MEASURES:
                found[place][row["arm"]][row["batch"], row["block"]] = row["value"]
                below[place][row["arm"]] = row["floor"]
                if row["set_by_plan"]:
                    planned.add((place, row["arm"]))
        shared = Conditions(
            **{
                name: {row["run"]: value for row in tables["conditions"] if (value := row[name]) is not None}
                for name in ("others_cores", "late_ms", "used_share")
            }
        )
        facts = [row.pop("beside") for row in tables["lines"]]
    except (OSError, pa.ArrowInvalid, KeyError) as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else error
        raise NoReport(f"{path} cannot be read: {reason}") from None
    if disturbances := shared.disturbances:
        raise NoReport(f"the machine was busy, so nothing follows: {'; '.join(disturbances)}")
    named = [msgspec.convert(row, Line) for row in tables["lines"]]
    lines = answers.primaries(named, found, shared.crowded, planned, below)
    lines = [replace(line, beside=fact) for line, fact in zip(lines, facts, strict=True)]
    return [(words.topic(line), words.verdict(line), words.values(found, line)) for line in lines]
