"""The report page has a table of the unit costs that were published last."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from routekeeper.bench.costs.units import UNITS
from routekeeper.bench.report.page import environment
from routekeeper.bench.report.unit_costs import unit_costs
from tests.bench.costs.rows import invented


def test_the_table_has_each_unit_of_each_design_with_date_and_machine(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_bytes(msgspec.json.encode(invented()))
    found = unit_costs(path)
    assert found is not None
    assert found["made"] == "Published 2026-11-26 20:00 UTC, Invented, 2 cores: not of this run."
    assert found["designs"] == ["independent", "raft", "ZooKeeper"]
    rows = dict(found["rows"])
    assert len(rows) == len(UNITS)
    assert rows["a broker at rest, a minute"][0] == (
        "2.12 ms CPU; no network measurable; no memory measurable"
    )
    assert rows["a route change, each"][2] == "3 ms CPU; no network measurable"


def section(found: Mapping[str, Any] | None) -> str:
    """Return the rendered section of the report page that contains the table of unit costs."""
    made = environment()
    assert made.loader is not None
    source = made.loader.get_source(made, "page.html.j2")[0]
    head = source.splitlines()[0]
    begin = source.index("{%- if unit_costs %}")
    end = source.index("{%- endif %}", begin) + len("{%- endif %}")
    return made.from_string(f"{head}\n{source[begin:end]}").render(unit_costs=found)


def test_the_page_shows_published_costs_and_says_that_they_are_of_another_run(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_bytes(msgspec.json.encode(invented()))
    html = section(unit_costs(path))
    assert "Published 2026-11-26 20:00 UTC, Invented, 2 cores: not of this run." in html
    assert "Each mixture was predicted to within 15% of its measured use." in html
    assert html.count("<tr>") == 1 + len(UNITS)
    assert '<th scope="col">ZooKeeper</th>' in html


def test_the_page_names_a_prediction_that_is_far_off(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_bytes(msgspec.json.encode(invented(mixture_times=1.25)))
    html = section(unit_costs(path))
    assert "Mixtures were predicted with errors of more than 15% for raft: CPU -20%" in html
    path.write_bytes(msgspec.json.encode(invented(mixture_times=1.1)))
    assert "errors of more than" not in section(unit_costs(path))


def test_without_published_costs_the_page_has_no_table(tmp_path: Path) -> None:
    assert unit_costs(tmp_path / "costs.json") is None
    assert section(None).strip() == ""
