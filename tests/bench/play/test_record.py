"""The event files of a playground's session tell when each fault began and when it was healed."""

from __future__ import annotations

from pathlib import Path

import pytest

from routekeeper.bench.events import Fault
from routekeeper.bench.play.model import Order
from routekeeper.bench.play.orders import directions
from routekeeper.bench.runfolder import find_run_folders
from tests.bench.lives import rows
from tests.bench.play.recorded import recorded

pytestmark = [pytest.mark.bench, pytest.mark.slow]


def test_a_fault_is_taken_back_by_the_order_that_does_so_whatever_came_between(tmp_path: Path) -> None:
    """Check that "heal" ends the cut, "start" ends the kill, and no command ends the delay and the pause.

    The broker that starts again still has slow links. The session only records the commands and starts no
    process.
    """
    with recorded(tmp_path / "work", "independent") as (played, begin_ns):
        cut, kill = Order(do="cut", target="client-0"), Order(do="kill", target="broker-1")
        slow = Order(do="slow", target="broker-1", delay_ms=200)
        played.strikes(cut, "client-0", directions(cut, "client-0", ""), "", begin_ns + 1)
        played.strikes(kill, "broker-1", [], "broker", begin_ns + 2)
        played.heals(Order(do="heal"), "", begin_ns + 3)
        played.strikes(slow, "broker-1", [], "broker", begin_ns + 4)
        played.heals(Order(do="start", target="broker-1"), "broker-1", begin_ns + 5)
        played.strikes(Order(do="pause", target="broker-2"), "broker-2", [], "broker", begin_ns + 6)
        played.save(tmp_path / "saved")
    (run,) = find_run_folders([tmp_path / "saved"])
    found = rows(run, Fault)
    assert [(each.kind, each.healed_ns and each.healed_ns - begin_ns) for each in found] == [
        ("cable", 3),
        ("kill", 5),
        ("slow", None),
        ("freeze", None),
    ]
    assert [each.until_ns - begin_ns for each in found[:3]] == [2, 4, 6]
    assert found[3].until_ns > found[3].begin_ns
