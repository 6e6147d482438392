"""Unit costs as slopes of fitted lines, and predictions for mixtures of units.

This module does no I/O and reads no clock.

A unit is a broker, a topic, a client or an event. The cost of one unit is the slope of a line that is fitted
to measurements with different numbers of units. A mixture has all kinds of units together. Its cost is
predicted from the slopes.
"""

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
#: Names of the series that measure mixtures (brokers, topics, clients and events together), in the order of
#: the plan. The mixtures have different proportions of their units.
HELD_OUT: Final = ("held-out", "held-out-2")
SIZES_MIN: Final = 4
"""Least number of different sizes (numbers of units) from which a slope is computed."""
WITHIN: Final = 0.15
"""Largest relative error of a prediction that still counts as accurate."""
#: Units in the order in which their lines are fitted. Topics come first, because the cost of a broker's
#: topics is subtracted from the cost of the broker.
_ORDER: Final[tuple[Unit, ...]] = ("topic", *(unit for unit in UNITS if unit != "topic"))
_NAMES: Final[Mapping[Design, str]] = {
    "independent": "independent",
    "raft": "raft",
    "zookeeper": "ZooKeeper",
}


class NotEnough(ValueError):
    """A figure cannot be computed, because there are too few measurements."""


def line(points: Sequence[tuple[float, float]]) -> Slope:
    """Fit a straight line by least squares.

    Args:
        points: Pairs of a number of units (such as brokers) and the use of a resource with so many units.

    Raises:
        NotEnough: If the points do not have at least two different numbers of units.
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
    """Return the costs of one design, computed from its measurements.

    Raises:
        NotEnough: If a series has fewer than :data:`SIZES_MIN` sizes, or if there is no measurement of the
            servers without brokers and clients.
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
        attempts_max=max(row.attempts for row in mine),
    )


def _point(
    row: Row,
    unit: Unit,
    quantity: Quantity,
    slopes: Mapping[Unit, Mapping[Quantity, Slope]],
    alone: Row,
) -> tuple[float, float] | None:
    """Return one point of a fitted line: the number of units, and the measured use of a resource.

    Return None if the use was not measured.

    - Brokers, topics and clients: the use is per minute. For brokers, the use of their topics is subtracted.
    - Events: the use is for the whole measurement. The use of the servers alone is subtracted.
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
    """Return the number of lookups that changes cause.

    Each watching client of a changed topic reads the topic's route again. Each client uses one topic, and the
    clients are spread evenly over the topics.
    """
    return changes * watching / topics if topics else 0.0


def counts_of(row: Row) -> dict[Unit, float]:
    """Return the number of units of each kind in a measurement.

    The number of lookups includes the lookups that changes cause.
    """
    counts = {unit: row.count(unit) for unit in UNITS}
    counts["lookup"] += lookups_after_changes(
        changes=counts["change"], watching=row.watching, topics=row.topics
    )
    return counts


def predicted(costs: DesignCosts, counts: Mapping[Unit, float], quantity: Quantity) -> float | None:
    """Return the predicted use of a resource by brokers, topics, clients and events together.

    The use is per minute. For memory, it is the number of occupied bytes. Return None if the cost of a unit
    was not measured.
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
    """Return the predicted and the measured use of a mixture (all units together), by quantity."""
    counts = counts_of(row)
    found: dict[Quantity, HeldOut] = {}
    for quantity in QUANTITIES:
        measured, guess = row.use(quantity), predicted(costs, counts, quantity)
        if measured is not None and guess is not None:
            found[quantity] = HeldOut(predicted=guess, measured=measured)
    return found


def told_of_the_mixture(costs: Costs) -> list[str]:
    """Return sentences on the accuracy of the predictions for mixtures (all units together).

    There is one sentence for each design with a relative error above :data:`WITHIN`. Then follows one for
    each design whose servers failed before a measurement succeeded.
    """
    sentences = []
    for design, of_design in costs.designs.items():
        far: dict[str, list[str]] = {}
        for mixture in of_design.held_out:
            for quantity, found in mixture.items():
                if abs(found.error) > WITHIN:
                    words = QUANTITY_WORDS[quantity][0].removesuffix(" of the three servers")
                    far.setdefault(words.removesuffix(" by the three servers"), []).append(
                        f"{found.error:+.0%}"
                    )
        if far:
            errors = "; ".join(f"{words} {' and '.join(each)}" for words, each in far.items())
            sentences.append(
                f"mixtures were predicted with errors of more than {WITHIN:.0%} for {_NAMES[design]}: "
                f"{errors}"
            )
    if not sentences:
        each = "a mixture was" if len(costs.held_out_counts) == 1 else "each mixture was"
        sentences = [f"{each} predicted to within {WITHIN:.0%} of its measured use"]
    return sentences + [
        f"the servers of {_NAMES[design]} failed, and a measurement needed {of_design.attempts_max} attempts"
        for design, of_design in costs.designs.items()
        if of_design.attempts_max > 1
    ]
