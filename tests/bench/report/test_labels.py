"""The labels of a chart's axis lie within the chart. An image can show a single section of the page.

The section of a scenario is found by the scenario's name.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from routekeeper.bench.report import drawing
from routekeeper.bench.report.picture import NoPicture, picture


def test_t10_labels_of_an_axis_stay_within_the_picture() -> None:
    line = drawing.timeline("raft", {}, from_s=-2.0, until_s=10.0, healed_s=None, what="x")
    assert {tick.label for tick in line.x_ticks} >= {"10 s"}
    for tick in line.x_ticks:
        _is_inside(tick)


def _is_inside(tick: drawing.Tick) -> None:
    width = 6.5 * len(tick.label)
    begin = tick.at - {"start": 0.0, "middle": width / 2, "end": width}[tick.anchor]
    assert begin >= 0
    assert begin + width <= drawing.WIDTH


def test_t10_picture_of_a_scenario_is_asked_for_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = tmp_path / "report.html"
    shown.write_text('<section id="scenario-partition"></section><section id="trust"></section>')
    with pytest.raises(NoPicture, match="no section leader-fails, but scenario-partition, trust"):
        picture(shown, tmp_path / "x.png", width=800, height=600, section="leader-fails")
    monkeypatch.setenv("PATH", str(tmp_path))
    # This error is raised only if the section was found. An unknown section would raise another error.
    with pytest.raises(NoPicture, match="no browser is installed"):
        picture(shown, tmp_path / "x.png", width=800, height=600, section="partition")
