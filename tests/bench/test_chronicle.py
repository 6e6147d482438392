"""A run's log tells when each scenario began and ended, and why an arm (a design) lost a scenario."""

from __future__ import annotations

from pathlib import Path

from routekeeper.bench.chronicle import Chronicle
from routekeeper.bench.plan import load_plan, scenarios_of
from routekeeper.bench.processes import ArmLost, ClusterError
from tests.bench.lives import a_turn

PLAN = load_plan("smoke")
NAMES = [scenario.name for scenario in scenarios_of(PLAN, PLAN.series[0])]
GIVEN = a_turn(Path("out"), PLAN, "raft", profile="smoke", seed=1)


def begun() -> Chronicle:
    """Return the log of a run whose first scenario has ended and whose second scenario still runs."""
    chronicle = Chronicle(GIVEN)
    chronicle.scenario = NAMES[0]
    chronicle.ends(100, 200)
    chronicle.scenario = NAMES[1]
    return chronicle


def times(chronicle: Chronicle) -> list[tuple[str, int, int]]:
    return [(slot.scenario, slot.begin_ns, slot.end_ns) for slot in chronicle.slots]


def test_smoke_has_scenarios_enough_for_these_tests() -> None:
    assert len(NAMES) >= 3


def test_loss_before_the_first_scenario_is_its_own() -> None:
    chronicle = Chronicle(GIVEN)
    chronicle.loses("nameserver-2 ended with -9")
    assert chronicle.lost == {NAMES[0]: "nameserver-2 ended with -9"}


def test_first_reason_counts() -> None:
    chronicle = begun()
    chronicle.loses("one")
    chronicle.loses("other")
    assert chronicle.lost == {NAMES[1]: "one"}


def test_rest_is_lost_from_the_scenario_under_way_and_what_follows_has_no_time() -> None:
    chronicle = begun()
    chronicle.loses_rest(200, 300, "it does not serve")
    assert times(chronicle) == [
        (NAMES[0], 100, 200),
        (NAMES[1], 200, 300),
        *((name, 300, 300) for name in NAMES[2:]),
    ]
    assert chronicle.lost == dict.fromkeys(NAMES[1:], "it does not serve")
    assert [slot.folder for slot in chronicle.slots] == [GIVEN.folder(name) for name in NAMES]


def test_what_was_lost_before_the_rest_keeps_its_reason() -> None:
    chronicle = begun()
    chronicle.loses("nameserver-0 ended with -9")
    chronicle.loses_rest(200, 300, "it does not serve")
    assert chronicle.lost[NAMES[1]] == "nameserver-0 ended with -9"


def test_arm_loses_by_its_servers_only() -> None:
    chronicle = begun()
    failed = ClusterError("the proxy was silent")
    assert chronicle.loss(ArmLost("it does not serve\nits log"), []) == "it does not serve"
    assert chronicle.loss(failed, []) is None
    assert chronicle.loss(failed, ["nameserver-1 ended with 3"]) == "nameserver-1 ended with 3"
    chronicle.loses("nameserver-0 ended with -9")
    assert chronicle.loss(failed, ["nameserver-1 ended with 3"]) == "nameserver-0 ended with -9"
