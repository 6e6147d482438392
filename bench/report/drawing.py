"""Geometry of the page's drawings. Templates make SVG from the coordinates.

This module does no I/O and reads no clock.

Coordinates are units of an SVG view box. In the curves of a timeline, one unit to the right is one bin, and
an SVG transformation stretches the curve to its width. So each point needs only two small whole numbers. This
keeps the page of two thousand runs small.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from routekeeper.bench.report.gold import Bin
from routekeeper.bench.report.measures import Unit
from routekeeper.bench.report.requests import BIN_NS
from routekeeper.bench.report.words import quantity

WIDTH: Final = 320
HEIGHT: Final = 150
LEFT: Final = 40
BOTTOM: Final = 118
"""Lower edge of the curves, in units of the drawing. The failed requests and the time axis lie below it."""
TOP: Final = 8
_FAINTEST: Final = 0.1
"""Least opacity of the mark of failed requests. A fainter mark could not be seen."""
_LOW_MS: Final = 0.3
_HIGH_MS: Final = 10_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A mark on an axis, with its label and the label's anchor.

    A label near an edge is not centred, because it would be cut off.
    """

    at: float
    label: str
    anchor: str = "middle"


_CHARACTER: Final = 6.5
"""Width of a wide character of the labels' font, in units of the drawing."""


def _x_tick(at: float, label: str) -> Tick:
    half = _CHARACTER * len(label) / 2
    anchor = "start" if at < half else "end" if at > WIDTH - half else "middle"
    return Tick(at=at, label=label, anchor=anchor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One design's latency around one fault: a faint line for each run, a strong line for their median."""

    arm: str
    runs: list[str]
    """One SVG path (attribute ``d``) for each run: x counts bins from the fault, y is in drawing units."""
    middle: str
    step: float
    """Width of a bin in units of the drawing. Bins are counted from the start of the fault, which is at
    ``begin``."""
    failed: list[tuple[float, float, float]]
    """Rectangles that show failed requests: x, width, and the share of failed requests of all runs."""
    begin: float
    healed: float | None
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    description: str


def timeline(
    arm: str,
    rows: Mapping[str, Sequence[Bin]],
    *,
    from_s: float,
    until_s: float,
    healed_s: float | None,
    what: str,
) -> Timeline:
    """Draw the panel of one design.

    Args:
        rows: For each run, the bins of one operation around the fault.
        from_s: Start of the time axis in seconds after the fault. All designs share the axis.
        until_s: End of the time axis, in seconds after the fault.
        healed_s: Seconds after which the fault was undone, or None if it was not undone.
    """
    scale = (WIDTH - LEFT - 6) / max(until_s - from_s, 1)
    width = BIN_NS / 1e9

    def x(second: float) -> float:
        return round(LEFT + (second - from_s) * scale, 1)

    by_bin: dict[int, list[Bin]] = defaultdict(list)
    paths = []
    for bins in rows.values():
        points = []
        for row in sorted(bins, key=lambda row: row.bin):
            second = row.bin * width
            if from_s - 1e-9 <= second < until_s:
                by_bin[row.bin].append(row)
                points.append((row.bin, _y(row.slowest_ns / 1e6)))
        paths.append(_path(points))
    middles, failed = [], []
    slowest: dict[str, int] = defaultdict(int)
    for place, same in sorted(by_bin.items()):
        middles.append((place, _y(statistics.median(row.slowest_ns for row in same) / 1e6)))
        for row in same:
            slowest[row.run] = max(slowest[row.run], row.slowest_ns)
        if lost := sum(row.failed for row in same):
            share = max(lost / sum(row.n for row in same), _FAINTEST)
            failed.append((x(place * width), round(width * scale, 1), round(share, 2)))
    worst = statistics.median(slowest.values() or [0]) / 1e6
    hit = len({row.run for same in by_bin.values() for row in same if row.failed})
    return Timeline(
        arm=arm,
        runs=[path for path in paths if path],
        middle=_path(middles),
        step=round(width * scale, 4),
        failed=failed,
        begin=x(0),
        healed=None if healed_s is None or healed_s > until_s else x(healed_s),
        x_ticks=[_x_tick(x(second), f"{second:g} s") for second in _seconds(from_s, until_s)],
        y_ticks=[Tick(at=_y(ms), label=quantity(ms, "ms")) for ms in (1, 10, 100, 1000, 10_000)],
        description=(
            f"{what}, {arm}: the slowest request waited {quantity(worst, 'ms')} in the median run; "
            + (
                f"requests failed or got a wrong answer in {hit} of {len(slowest)} runs"
                if hit
                else "no request failed or got a wrong answer"
            )
        ),
    )


def _seconds(first: float, last: float) -> list[float]:
    step = next((step for step in (1, 2, 5, 10, 20, 60) if (last - first) / step <= 6), 120)
    return [float(second) for second in range(math.ceil(first / step) * step, math.floor(last) + 1, step)]


def _y(ms: float) -> float:
    share = math.log(min(max(ms, _LOW_MS), _HIGH_MS) / _LOW_MS) / math.log(_HIGH_MS / _LOW_MS)
    return round(BOTTOM - share * (BOTTOM - TOP), 1)


def _path(points: Sequence[tuple[int, float]]) -> str:
    """Return an SVG path through the points, each in the middle of its bin. Missing bins leave a gap."""
    parts: list[str] = []
    place_before, y_before, flat = None, 0, 0

    def close_flat() -> None:
        nonlocal flat
        if flat:
            parts.append(f"h{flat}")
        flat = 0

    for place, height in points:
        y = round(height)
        if place_before is None or place != place_before + 1:
            close_flat()
            parts.append(f"M{place + 0.5:g} {y}")
        elif y == y_before:
            flat += 1
        else:
            close_flat()
            # SVG needs no space before a minus sign
            parts.append(f"l1 {y - y_before}" if y > y_before else f"l1{y - y_before}")
        place_before, y_before = place, y
    close_flat()
    return "".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """One design's values of one measure. Each round is a dot on an axis that all designs share."""

    arm: str
    dots: list[float]
    middle: float | None
    endless: int
    """Number of rounds whose time never ended. These rounds have no dot."""
    description: str


STRIP_WIDTH: Final = 160
_MARGIN: Final = 6


def strips(rounds: Mapping[str, Sequence[float]], *, unit: Unit, what: str) -> list[Strip]:
    """Draw one strip for each design, in the given order."""
    finite = {arm: [value for value in found if math.isfinite(value)] for arm, found in rounds.items()}
    reach = max([value for found in finite.values() for value in found], default=0.0) or 1.0
    scale = (STRIP_WIDTH - 2 * _MARGIN) / reach
    drawn = []
    for arm, found in rounds.items():
        middle = statistics.median(found) if found else math.inf
        told = f"median {quantity(middle, unit)} of {len(found)} rounds" if found else "not measured"
        drawn.append(
            Strip(
                arm=arm,
                dots=[round(_MARGIN + value * scale, 1) for value in finite[arm]],
                middle=round(_MARGIN + middle * scale, 1) if math.isfinite(middle) else None,
                endless=len(found) - len(finite[arm]),
                description=f"{what}, {arm}: {told}",
            )
        )
    return drawn
