"""Slopes from rows, and the use that they predict for a mixture (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from routekeeper.bench.costs.units import (
    EVENTS,
    QUANTITIES,
    QUANTITY_WORDS,
    STANDING,
    UNITS,
    Costs,
    Design,
    DesignCosts,
    HeldOut,
    Quantity,
    Row,
    Slope,
    Unit,
)

ALONE: Final = "alone"
#: Series of the mixtures, in the plan's order; they differ in their proportions.
HELD_OUT: Final = ("held-out", "held-out-2")
SIZES_MIN: Final = 4
"""Least number of sizes for a slope."""
WITHIN: Final = 0.15
"""Predictions with a larger relative error are named in the text about the mixtures."""
#: Topics come first: a broker has a few topics, whose cost is subtracted from its own.
_ORDER: Final[tuple[Unit, ...]] = ("topic", *(unit for unit in UNITS if unit != "topic"))


class NotEnough(ValueError):
    """There are too few rows for a figure."""


def line(points: Sequence[tuple[float, float]]) -> Slope:
    """Return the straight line with the smallest sum of squared residuals.

    Raises:
        NotEnough: If there are fewer than two sizes.
    """
    sizes = [x for x, _ in points]
    uses = [y for _, y in points]
    if len(set(sizes)) < 2:
        raise NotEnough(f"a slope needs two sizes, there are {sorted(set(sizes))}")
    mean_x, mean_y = sum(sizes) / len(sizes), sum(uses) / len(uses)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x in sizes)
    intercept = mean_y - slope * mean_x
    residuals = [y - (intercept + slope * x) for x, y in points]
    return Slope(
        sizes=sizes,
        uses=uses,
        slope=slope,
        intercept=intercept,
        residuals=residuals,
        told=slope * (max(sizes) - min(sizes)) > 2 * max(map(abs, residuals)),
    )


def design_costs(design: Design, rows: Iterable[Row]) -> DesignCosts:
    """Return the costs that follow from the rows of one design.

    Raises:
        NotEnough: If a series has fewer than :data:`SIZES_MIN` sizes, or a part is missing.
    """
    mine = [row for row in rows if row.design == design]
    alone = [row for row in mine if row.series == ALONE]
    if not alone:
        raise NotEnough(f"{design}: no row of the servers alone")
    slopes: dict[Unit, dict[Quantity, Slope]] = {}
    for unit in _ORDER:
        series = [row for row in mine if row.series == unit]
        slopes[unit] = {}
        for quantity in QUANTITIES:
            if quantity == STANDING and unit in EVENTS:
                continue
            points = [
                point
                for row in series
                if (point := _point(row, unit, quantity, slopes, alone[0])) is not None
            ]
            if len({size for size, _ in points}) >= SIZES_MIN:
                slopes[unit][quantity] = line(points)
        if "cpu_s" not in slopes[unit]:
            raise NotEnough(f"{design}, {unit}: {len(series)} windows, {SIZES_MIN} sizes are needed")
    return DesignCosts(
        alone={
            quantity: sum(uses) / len(uses)
            for quantity in QUANTITIES
            if (uses := [use for row in alone if (use := row.use(quantity)) is not None])
        },
        resident_alone_bytes=float(sum(alone[0].resident_bytes)),
        slopes={unit: slopes[unit] for unit in UNITS},
        held_out=[],
        others_cores_max=max(row.others_cores for row in mine),
    )


def _point(
    row: Row,
    unit: Unit,
    quantity: Quantity,
    slopes: Mapping[Unit, Mapping[Quantity, Slope]],
    alone: Row,
) -> tuple[float, float] | None:
    """Return a row's size and use: per minute for units at rest, per window for events; None if not counted.

    For events, the use of the servers alone is subtracted; for brokers, the use of their topics.
    """
    use, base = row.use(quantity), alone.use(quantity)
    if use is None or base is None:
        return None
    if unit in EVENTS:
        minutes = row.seconds / 60.0
        return round(row.count(unit) * minutes), (use - base) * minutes
    if unit == "broker" and quantity in slopes["topic"]:
        use -= row.pairs * slopes["topic"][quantity].cost
    return row.count(unit), use


def lookups_after_changes(*, changes: float, watching: float, topics: float) -> float:
    """Return how many lookups changes cause: each watching client of a changed topic reads it again.

    Clients are spread evenly over the topics, one topic each.
    """
    return changes * watching / topics if topics else 0.0


def counts_of(row: Row) -> dict[Unit, float]:
    """Return the numbers of a row, with the lookups that its changes cause."""
    counts = {unit: row.count(unit) for unit in UNITS}
    counts["lookup"] += lookups_after_changes(
        changes=counts["change"], watching=row.watching, topics=row.topics
    )
    return counts


def predicted(costs: DesignCosts, counts: Mapping[Unit, float], quantity: Quantity) -> float | None:
    """Return the predicted use of a mixture; None if a part of it was not counted.

    It is the use of a minute, or for memory the use at any time.
    """
    if quantity not in costs.alone:
        return None
    total = costs.alone[quantity]
    for unit, count in counts.items():
        if quantity == STANDING and unit in EVENTS:
            continue
        if count:
            if quantity not in costs.slopes[unit]:
                return None
            total += count * costs.slopes[unit][quantity].cost
    return total


def held_out(costs: DesignCosts, row: Row) -> dict[Quantity, HeldOut]:
    """Return the prediction for a mixture beside the measurement."""
    counts = counts_of(row)
    found: dict[Quantity, HeldOut] = {}
    for quantity in QUANTITIES:
        measured, guess = row.use(quantity), predicted(costs, counts, quantity)
        if measured is not None and guess is not None:
            found[quantity] = HeldOut(predicted=guess, measured=measured)
    return found


def told_of_the_mixture(costs: Costs) -> list[str]:
    """Return a text on how well the mixtures were predicted; it names predictions that are far off."""
    far = [
        f"{design}, {QUANTITY_WORDS[quantity][0]}: {found.error:+.0%}"
        for design, of_design in costs.designs.items()
        for mixture in of_design.held_out
        for quantity, found in mixture.items()
        if abs(found.error) > WITHIN
    ]
    if far:
        return [f"a mixture was predicted with an error of more than {WITHIN:.0%}: {each}" for each in far]
    each = "a mixture was" if len(costs.held_out_counts) == 1 else "each mixture was"
    return [f"{each} predicted to within {WITHIN:.0%} of its measured use"]
