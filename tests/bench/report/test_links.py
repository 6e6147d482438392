"""Each link from the report page to another page in its folder names an id that the other page has."""

from __future__ import annotations

import re

from routekeeper.bench.report.answers import TEXTS
from routekeeper.bench.report.page import NEIGHBOURS
from routekeeper.bench.scale.points import Point
from routekeeper.bench.scale.report import page_of
from tests.bench.test_scale_curves import far, order, row, storm


def test_each_place_on_another_page_is_one_that_this_page_has() -> None:
    places = [place for _, several in TEXTS["asked"] for place in several if not place.startswith("#")]
    assert {place.partition("#")[0] for place in places} <= set(NEIGHBOURS)
    points = (storm(100), far(5.0), Point(part="number", kind="number", name="3 servers", servers=3))
    scale = page_of([(order(each.part), [row(each, "raft", change_leader_ms=2.0)]) for each in points])
    ids = set(re.findall(r'id="([^"]+)"', scale))
    wanted = {place.partition("#")[2] for place in places if place.startswith("scale.html#")}
    assert wanted
    assert wanted <= ids
