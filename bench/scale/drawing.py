"""Geometry of the page's curves: numbers become coordinates, from which the template makes SVG.

This module does no I/O and reads no clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from routekeeper.bench.scale.curves import NAMES, Curve, Dot, Question, written

WIDTH: Final = 340
HEIGHT: Final = 220
LEFT: Final = 52
RIGHT: Final = 24
TOP: Final = 10
BOTTOM: Final = 182
#: Smallest distance between two labels of the x-axis, in drawing units.
_LABEL_ROOM: Final = 34.0
_STEPS: Final = (1, 2, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One point of a curve: its median, and the range of its rounds."""

    x: float
    y: float
    low: float
    high: float
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    design: str
    name: str
    path: str
    marks: list[Mark]
    failures: list[float]
    """Coordinates x of points without any successful round, for the marks at the top edge of the drawing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    lines: list[Line]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    x_name: str
    description: str


def picture(question: Question, curves: Sequence[Curve]) -> Picture:
    """Draw the curves of all designs for one question."""
    values = [value for curve in curves for dot in curve.known for value in (dot.low, dot.high)]
    sizes = sorted({dot.x for curve in curves for dot in curve.dots})
    x = _axis(sizes, LEFT + 8, WIDTH - RIGHT, linear=question.linear)
    positive = [value for value in values if value > 0]
    logarithmic = bool(positive) and min(values) > 0 and max(values) / min(values) > 30
    low, high = (min(positive), max(positive)) if logarithmic else (0.0, max([*values, 1e-9]))
    y = _axis([low, high], BOTTOM - 4, TOP + 6, linear=not logarithmic)
    lines = [
        Line(
            design=curve.design,
            name=NAMES[curve.design],
            path="M" + "L".join(f"{x(dot.x):.1f} {y(dot.median):.1f}" for dot in curve.known)
            if curve.known
            else "",
            marks=[_mark(dot, question, curve, x, y) for dot in curve.known],
            failures=[round(x(dot.x), 1) for dot in curve.dots if dot.failures and math.isnan(dot.median)],
        )
        for curve in curves
    ]
    ticks = _log_steps(low, high) if logarithmic else _steps(high)
    return Picture(
        lines=lines,
        x_ticks=_apart([Tick(at=round(x(size), 1), label=f"{size:,g}") for size in sizes]),
        y_ticks=[Tick(at=round(y(value), 1), label=written(value, question.unit)) for value in ticks],
        x_name=question.x_name,
        description=f"{question.title}, over {question.x_name}: "
        + "; ".join(
            f"{NAMES[curve.design]} "
            + ", ".join(f"{dot.x:g}: {written(dot.median, question.unit)}" for dot in curve.known)
            for curve in curves
        ),
    )


def _mark(
    dot: Dot, question: Question, curve: Curve, x: Callable[[float], float], y: Callable[[float], float]
) -> Mark:
    said = f"{NAMES[curve.design]}, {dot.x:,g}: {written(dot.median, question.unit)}"
    return Mark(
        x=round(x(dot.x), 1),
        y=round(y(dot.median), 1),
        low=round(y(dot.low), 1),
        high=round(y(dot.high), 1),
        title=f"{said} ({written(dot.low, question.unit)} to {written(dot.high, question.unit)})",
    )


def _axis(values: Sequence[float], start: float, end: float, *, linear: bool) -> Callable[[float], float]:
    """Return a function that converts a value to a coordinate on a linear or a logarithmic axis."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)

    def place(value: float) -> float:
        if low == high:
            return (start + end) / 2
        if linear:
            share = (value - low) / (high - low)
        else:
            share = math.log(max(value, low) / low) / math.log(high / low)
        return start + share * (end - start)

    return place


def _steps(high: float) -> list[float]:
    """Return round values from 0 up to ``high``, in at most five equal steps."""
    power = 10.0 ** math.floor(math.log10(high / 4))
    step = next(factor * power for factor in (*_STEPS, 10) if high / (factor * power) <= 5)
    return [number * step for number in range(int(high / step + 1e-9) + 1)]


def _log_steps(low: float, high: float) -> list[float]:
    """Return the powers of ten between two values. If there is no such power, return the two values."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    return [10.0**power for power in range(first, last + 1)] or [low, high]


def _apart(ticks: Sequence[Tick]) -> list[Tick]:
    """Return the labels, but omit each label that lies too close to the label before."""
    found: list[Tick] = []
    for tick in ticks:
        if not found or tick.at - found[-1].at >= _LABEL_ROOM:
            found.append(tick)
    return found
