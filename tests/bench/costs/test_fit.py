"""Unit costs from fitted lines equal the known costs, ignore noise and predict combined loads."""

from __future__ import annotations

import math

import msgspec
import pytest

from routekeeper.bench.costs.fit import HELD_OUT, NotEnough, design_costs, held_out, line
from routekeeper.bench.costs.plan import FULL, QUICK, Step, minutes, steps
from routekeeper.bench.costs.units import DESIGNS, UNITS
from tests.bench.costs.rows import CPU_S, all_rows, row


def test_the_costs_that_rows_were_made_of_are_found() -> None:
    found = design_costs("raft", all_rows())
    assert found.alone["cpu_s"] == pytest.approx(CPU_S["alone"])
    for unit in UNITS:
        assert found.slopes[unit]["cpu_s"].slope == pytest.approx(CPU_S[unit]), unit
        assert max(map(abs, found.slopes[unit]["cpu_s"].residuals)) < 1e-9
    assert found.slopes["polling"]["memory_bytes"].slope == pytest.approx(1000)


def test_a_longer_window_of_events_does_not_make_them_dearer() -> None:
    """Check that idle costs of servers do not count as costs of registrations.

    Brokers with more topics take longer to come back, so their time windows contain more idle time of the
    servers.
    """
    rows = [
        row(step, minutes=0.01 * step.topics) if step.comes_back else row(step)
        for step in steps(QUICK, "all")
    ]
    slope = design_costs("raft", rows).slopes["registration"]["cpu_s"].slope
    # The fitted cost contains the idle cost of brokers, but not the idle cost of the servers.
    assert slope == pytest.approx(CPU_S["registration"] + 0.01 * CPU_S["broker"])


def test_residuals_say_how_far_each_point_is_from_the_line() -> None:
    found = line([(0, 1.0), (1, 2.0), (2, 3.5), (3, 4.0)])
    assert found.slope == pytest.approx(1.05)
    assert found.intercept == pytest.approx(1.05)
    assert found.residuals == pytest.approx([-0.05, -0.1, 0.35, -0.2])
    assert found.told


def test_a_slope_that_residuals_could_pretend_counts_as_nothing() -> None:
    found = line([(0, 1.0), (10, 1.3), (20, 0.8), (30, 1.1)])
    assert not found.told
    assert found.cost == 0.0
    falling = line([(0, 4.0), (1, 3.0), (2, 2.0), (3, 1.0)])
    assert falling.cost == 0.0, "nothing costs less than nothing"


def test_a_mixture_is_predicted_from_slopes_alone() -> None:
    rows = all_rows()
    costs = design_costs("raft", rows)
    mixtures = [each for each in rows if each.series in HELD_OUT]
    assert len(mixtures) == len(HELD_OUT) == 2
    for mixture in mixtures:
        assert held_out(costs, mixture)["cpu_s"].error == pytest.approx(0.0, abs=1e-9)
    dearer = msgspec.structs.replace(mixture, cpu_s=[1.25 * used for used in mixture.cpu_s])
    assert held_out(costs, dearer)["cpu_s"].error == pytest.approx(-0.2)


def test_the_mixture_is_no_part_of_any_slope() -> None:
    rows = all_rows()
    odd = [row(Step(series=each.series, seconds=1)) if each.series in HELD_OUT else each for each in rows]
    assert design_costs("raft", odd) == design_costs("raft", rows)


def test_a_quantity_that_was_not_counted_is_left_out_and_nothing_is_predicted_of_it() -> None:
    rows = [msgspec.structs.replace(each, members_bytes=None) for each in all_rows()]
    costs = design_costs("raft", rows)
    assert "network_bytes" not in costs.alone
    assert "network_bytes" not in costs.slopes["broker"]
    assert "network_bytes" not in held_out(costs, rows[-1])


def test_the_two_mixtures_differ_in_their_proportions() -> None:
    """Check the two mixtures, which are runs with brokers, topics, clients and events together.

    One mixture has many topics, and the other mixture has many clients. Both have as many brokers as the
    plan's base case. So an answer to a lookup is as long as in the runs that vary only topics or clients.
    """
    first, second = FULL.mixtures
    assert first.brokers == second.brokers == FULL.base.brokers
    assert first.topics / first.polling > 10 * second.topics / second.polling
    assert second.lookups / second.changes > 5 * first.lookups / first.changes


def test_three_sizes_are_too_few() -> None:
    rows = [each for each in all_rows() if not (each.series == "polling" and each.polling == 10)]
    with pytest.raises(NotEnough, match="polling"):
        design_costs("raft", rows)


@pytest.mark.parametrize("plan", [FULL, QUICK], ids=["full", "quick"])
def test_each_cost_has_four_sizes(plan: object) -> None:
    assert isinstance(plan, type(FULL))
    rows = all_rows(plan)
    for unit in UNITS:
        assert len({each.count(unit) for each in rows if each.series == unit}) >= 4, unit


def test_windows_at_rest_are_whole_periods_and_the_run_takes_at_most_an_hour() -> None:
    for life in FULL.lives:
        for step in steps(FULL, life):
            events = step.changes or step.newcomers or step.lookups or step.comes_back
            if step.series == "held-out" or not events:
                assert math.fmod(step.seconds, FULL.period_s) == 0, step
    assert FULL.period_s == 30.0
    assert minutes(FULL, DESIGNS) <= 60
