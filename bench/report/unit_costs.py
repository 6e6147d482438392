"""The small table on the report page that shows the last published unit costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from routekeeper.bench.costs.advice import DESIGN_WORDS
from routekeeper.bench.costs.fit import told_of_the_mixture
from routekeeper.bench.costs.published import PUBLISHED, load_costs
from routekeeper.bench.costs.units import AT_REST, WORDS, Costs, Design, Quantity, Unit

#: Maps each quantity of the table to a divisor and a unit. The table shows the cost, divided by the divisor.
COLUMNS: Final[dict[Quantity, tuple[float, str]]] = {
    "cpu_s": (1e-3, "ms CPU"),
    "network_bytes": (1e3, "kB network"),
    "memory_bytes": (1e3, "kB memory"),
}


def unit_costs(path: Path = PUBLISHED) -> Mapping[str, Any] | None:
    """Return the table: its heading, its designs, and a row for each unit of work. None without a file."""
    if not path.is_file():
        return None
    costs = load_costs(path)
    return {
        "made": f"Published {costs.date}, {costs.machine.cpu}, {costs.machine.cores} cores: not of this run.",
        "mixture": told_of_the_mixture(costs),
        "designs": [DESIGN_WORDS[design] for design in costs.designs],
        "rows": [
            (
                f"{WORDS[unit]}, {'a minute' if unit in AT_REST else 'each'}",
                [_cell(costs, unit, design) for design in costs.designs],
            )
            for unit in WORDS
        ],
    }


def _cell(costs: Costs, unit: Unit, design: Design) -> str:
    slopes = costs.designs[design].slopes[unit]
    parts = [
        f"{slopes[quantity].cost / scale:,.3g} {name}"
        if slopes[quantity].told
        else f"no {name.partition(' ')[2]} measurable"
        for quantity, (scale, name) in COLUMNS.items()
        if quantity in slopes
    ]
    return "; ".join(parts)
