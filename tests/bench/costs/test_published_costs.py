"""The unit costs that the package installs are computed from the published measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import pytest

from routekeeper.bench.costs.published import load_costs
from routekeeper.bench.costs.run import complete_rows, load, result
from routekeeper.bench.costs.units import DESIGNS, UNITS, Costs, Design, Unit

MEASURED: Final = Path(__file__).parents[3] / "docs" / "results" / "costs"
EVENTS: Final[dict[Unit, str]] = {
    "registration": "registrations",
    "change": "changes",
    "newcomer": "newcomers",
    "lookup": "lookups",
}


@pytest.fixture(scope="module")
def installed() -> Costs:
    return load_costs(None)


def test_installed_costs_are_computed_from_the_published_measurements(installed: Costs) -> None:
    run = load(MEASURED)
    again = result(run, complete_rows(MEASURED, run))
    again = msgspec.structs.replace(again, machine=installed.machine, versions=installed.versions)
    assert again == installed
    assert not installed.quick
    assert set(installed.designs) == set(DESIGNS)
    assert all(set(costs.slopes) == set(UNITS) for costs in installed.designs.values())


@pytest.mark.parametrize("design", DESIGNS)
def test_cpu_per_event_is_the_slope_that_numpy_finds(installed: Costs, design: Design) -> None:
    """The published CPU time of an event is the slope of a line through the measured CPU times.

    The test fits this line by numpy, without the program's own functions.
    """
    rows = [
        row
        for line in (MEASURED / "rows.jsonl").read_bytes().splitlines()
        if (row := msgspec.json.decode(line))["design"] == design
    ]
    (alone,) = (row for row in rows if row["series"] == "alone")
    alone_cores = sum(alone["cpu_s"]) / alone["seconds"]
    for unit, name in EVENTS.items():
        windows = [row for row in rows if row["series"] == unit]
        used = [sum(row["cpu_s"]) - alone_cores * row["seconds"] for row in windows]
        slope, _ = np.polyfit([row[name] for row in windows], used, deg=1)
        assert installed.designs[design].slopes[unit]["cpu_s"].slope == pytest.approx(slope, rel=1e-6), unit
