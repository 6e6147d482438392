"""Advice on the design to choose, read from the figures that lie beside a report, without Spark."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from routekeeper.bench.report import answers, words
from routekeeper.bench.report.conditions import Conditions
from routekeeper.bench.report.measures import MAIN_SERIES, MEASURES, Place, Values
from routekeeper.bench.runfolder import Line


class NoReport(Exception):
    """A folder holds no figures of a report that this program understands."""


def advice(folder: Path) -> list[tuple[str, str, str]]:
    """Return for each need that was measured: the need, which designs serve it, and by which figures.

    Args:
        folder: Where a report was written; its ``marts`` hold the values of each run.

    Raises:
        NoReport: If there are none, or the machine was too busy for any advice.
    """
    path = folder / "marts" / "values.parquet"
    found: Values = defaultdict(lambda: defaultdict(dict))
    below: dict[Place, dict[str, float]] = defaultdict(dict)
    planned: set[tuple[Place, str]] = set()
    try:
        for row in pq.read_table(path).to_pylist():
            place = Place(row["series"], row["scenario"], row["case"], row["measure"])
            if place.measure in MEASURES:
                found[place][row["arm"]][row["batch"], row["block"]] = row["value"]
                below[place][row["arm"]] = row["floor"]
                if row["set_by_plan"]:
                    planned.add((place, row["arm"]))
    except (OSError, pa.ArrowInvalid, KeyError) as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else error
        raise NoReport(f"{path} cannot be read: {reason}") from None
    shared = _conditions(folder)
    disturbances = shared.disturbances
    if disturbances:
        raise NoReport(f"the machine was busy, so nothing follows: {'; '.join(disturbances)}")
    table = {row.place: row for row in answers.rows(found, below, shared.crowded, planned)}
    lines = answers.primaries(_lines(folder), MAIN_SERIES, found, shared.crowded, planned)
    return [
        (chosen.need.words, words.choice(chosen), words.because(chosen))
        for chosen in answers.choices(table, MAIN_SERIES, lines)
    ]


def _lines(folder: Path) -> list[Line]:
    """Read the primary lines; none, of a report that did not write them down."""
    try:
        rows = pq.read_table(folder / "marts" / "lines.parquet").to_pylist()
    except (OSError, pa.ArrowInvalid):
        return []
    return [msgspec.convert(row, Line) for row in rows]


def _conditions(folder: Path) -> Conditions:
    """Read what the runs shared the machine with; nothing, of a report that did not write it down."""
    try:
        rows = pq.read_table(folder / "marts" / "conditions.parquet").to_pylist()
    except (OSError, pa.ArrowInvalid):
        rows = []
    return Conditions(
        others_cores={row["run"]: row["others_cores"] for row in rows if row["others_cores"] is not None},
        late_ms={row["run"]: row["late_ms"] for row in rows if row["late_ms"] is not None},
        used_share={row["run"]: share for row in rows if (share := row.get("used_share")) is not None},
    )
