"""Tests that the charts of the report page show the right times, runs and medians. They read the SVG."""

from __future__ import annotations

import math
import re
from pathlib import Path
from statistics import median
from typing import Final

import pytest

from routekeeper.bench.report import drawing, measures
from routekeeper.bench.report.gold import Bin, Gold
from routekeeper.bench.report.page import environment, page
from tests.bench.report.test_misled import gold_of

MS: Final = 10**6
ROUNDED: Final = 0.5
"""Largest allowed difference between two heights. A chart rounds a height to a whole unit of the drawing."""


def points(path: str) -> list[tuple[float, float]]:
    """Return the points of an SVG path that consists of the commands M, l and h."""
    found: list[tuple[float, float]] = []
    for letter, text in re.findall(r"([Mlh])([^Mlh]*)", path):
        numbers = [float(each) for each in re.findall(r"-?[0-9.]+", text)]
        if letter == "M":
            found.append((numbers[0], numbers[1]))
        elif letter == "l":
            found.append((found[-1][0] + numbers[0], found[-1][1] + numbers[1]))
        else:
            for _ in range(int(numbers[0])):
                found.append((found[-1][0] + 1, found[-1][1]))
    return found


def height(ms: float) -> float:
    """Return the height of a latency in a chart, whose logarithmic scale goes from 0.3 ms up to 10 s."""
    share = math.log(ms / 0.3) / math.log(10_000 / 0.3)
    return drawing.BOTTOM - share * (drawing.BOTTOM - drawing.TOP)


def bins(run: str, slowest_ms: dict[int, float], failed: tuple[int, ...] = ()) -> list[Bin]:
    return [
        Bin(
            run=run,
            fault=0,
            op="lookup",
            bin=place,
            n=4,
            right=4 - 2 * (place in failed),
            failed=2 * (place in failed),
            slowest_ns=round(ms * MS),
        )
        for place, ms in slowest_ms.items()
    ]


def three_runs() -> dict[str, list[Bin]]:
    """Return requests of three runs in time bins of 0.1 s, from 1 s before the fault to 3 s after it.

    In run ``a`` no request was due from 0.5 to 0.7 s.
    """
    found = {}
    for run, ms in (("a", 2.0), ("b", 5.0), ("c", 50.0)):
        slow = {place: ms * (10 if place >= 0 else 1) for place in range(-10, 30)}
        if run == "a":
            del slow[5], slow[6]
        found[run] = bins(run, slow, failed=(2, 3))
    return found


def test_line_stands_where_its_requests_were_due_and_gaps_stay_gaps() -> None:
    drawn = drawing.timeline("raft", three_runs(), from_s=-1, until_s=3, healed_s=2, what="Look-ups")
    first, second, _ = (points(path) for path in drawn.runs)
    # The fault is at x = 0. Each time bin has width 1, and its point is drawn at the middle of the bin.
    assert [x for x, _ in second] == [place + 0.5 for place in range(-10, 30)]
    assert [y for x, y in second if x < 0] == pytest.approx([height(5.0)] * 10, abs=ROUNDED)
    assert [y for x, y in second if x > 0] == pytest.approx([height(50.0)] * 30, abs=ROUNDED)
    assert {5.5, 6.5}.isdisjoint(x for x, _ in first)
    assert drawn.runs[0].count("M") == 2
    assert drawn.healed is not None
    assert drawn.healed - drawn.begin == pytest.approx(20 * drawn.step, abs=0.1)
    zero = next(tick for tick in drawn.x_ticks if tick.label == "0 s")
    assert zero.at == drawn.begin
    strip = [x for x, _, _ in drawn.failed]
    assert strip == pytest.approx([drawn.begin + place * drawn.step for place in (2, 3)], abs=0.1)
    assert [share for _, _, share in drawn.failed] == [0.5, 0.5]


def test_strong_line_is_the_median_of_the_runs() -> None:
    rows = three_runs()
    drawn = drawing.timeline("raft", rows, from_s=-1, until_s=3, healed_s=None, what="Look-ups")
    assert drawn.healed is None
    shown = dict(points(drawn.middle))
    for place in range(-10, 30):
        same = [row.slowest_ns / MS for run in rows.values() for row in run if row.bin == place]
        assert shown[place + 0.5] == pytest.approx(height(median(same)), abs=ROUNDED)


def test_failures_and_waits_at_different_instants_are_in_the_picture_and_its_text() -> None:
    """Check that the text and the marks count each run's own failures and longest wait.

    Each of six runs has one slow request in a time bin of its own. In two runs this request fails.
    """
    rows = {
        str(run): bins(str(run), {place: 2000.0 if place == run else 1.0 for place in range(10)}, failed)
        for run, failed in enumerate([(0,), (1,), (), (), (), ()])
    }
    drawn = drawing.timeline("raft", rows, from_s=0, until_s=1, healed_s=None, what="Look-ups")
    assert drawn.description == (
        "Look-ups, raft: the slowest request waited 2 s in the median run; "
        "requests failed or got a wrong answer in 2 of 6 runs"
    )
    assert [x for x, _, _ in drawn.failed] == pytest.approx([drawn.begin, drawn.begin + drawn.step], abs=0.1)
    assert min(opacity for _, _, opacity in drawn.failed) >= 0.08


def test_panels_of_a_page_are_aligned_at_the_fault_with_every_run_faint_and_the_median_strong(
    tmp_path: Path,
) -> None:
    gold = gold_of(tmp_path, {"independent": 100, "raft": 100, "zookeeper": 100})
    slow = {"independent": 1.0, "raft": 20.0, "zookeeper": 300.0}
    # Number of each arm's first time bin. Bin 0 begins at the fault.
    first = {"independent": -4, "raft": -9, "zookeeper": -1}
    drawn = [
        row
        for source in gold.sources
        for row in bins(source.run, dict.fromkeys(range(first[source.arm], 100), slow[source.arm]))
    ]
    gold = Gold(sources=gold.sources, faults=gold.faults, recoveries=gold.recoveries, timelines=drawn)
    whole = page(gold, measures.values(gold))
    section = whole[whole.index('id="scenario-leader-fails"') : whole.index('id="timers"')]
    panels = re.findall(r'<svg class="(\w+)"(.*?)</svg>', section, re.DOTALL)[:3]
    assert [arm for arm, _ in panels] == ["independent", "raft", "zookeeper"]
    begins = {re.search(r'class="fault" d="M([0-9.]+)', svg)[1] for _, svg in panels}  # type: ignore[index]
    moved = {re.search(r"translate\(([0-9.]+) 0\) scale", svg)[1] for _, svg in panels}  # type: ignore[index]
    assert len(begins) == 1
    assert moved == begins
    for arm, svg in panels:
        assert svg.count('class="run"') == 6
        (middle,) = re.findall(r'class="middle" d="([^"]*)"', svg)
        assert {y for _, y in points(middle)} == {round(height(slow[arm]))}
    opacity = re.search(r"svg \.run \{[^}]*opacity: ([0-9.]+)", whole)
    assert opacity is not None
    assert float(opacity[1]) < 0.5
    widths = {
        name: float(re.search(rf"svg \.{name} \{{[^}}]*stroke-width: ([0-9.]+)", whole)[1])  # type: ignore[index]
        for name in ("run", "middle")
    }
    assert widths["middle"] >= 2 * widths["run"]


def test_dots_are_the_rounds_of_each_design_on_one_axis_from_nought() -> None:
    rounds = {"independent": [0.0, 1.0, 2.0], "raft": [4.0, 4.0, math.inf], "zookeeper": []}
    first, second, third = drawing.strips(rounds, unit="s", what="Registrations")
    begin, per_second = first.dots[0], (second.dots[0] - first.dots[0]) / 4
    assert first.dots == pytest.approx([begin, begin + per_second, begin + 2 * per_second], abs=0.1)
    assert first.middle == pytest.approx(begin + per_second, abs=0.1)
    assert (len(second.dots), second.endless) == (2, 1)
    assert (third.dots, third.middle, third.endless) == ([], None, 0)
    assert all(0 <= x <= drawing.STRIP_WIDTH for x in (*first.dots, *second.dots))
    assert first.description == "Registrations, independent: median 1 s of 3 rounds"
    assert third.description == "Registrations, zookeeper: not measured"


def test_dots_on_the_page_are_as_many_as_rounds() -> None:
    (drawn,) = drawing.strips({"raft": [0.5, 0.6, 0.7, math.inf]}, unit="s", what="x")
    macro = environment().from_string(
        '{% from "macros.html.j2" import strip with context %}{{ strip(drawn) }}'
    )
    svg = macro.render(drawn=drawn, main_timers="")
    assert svg.count("<circle") == 3
    assert "1 without end" in svg
    assert 'role="img" aria-label="x, raft: median 650 ms of 4 rounds"' in svg
