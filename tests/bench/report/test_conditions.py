"""The report checks how busy the machine was, and draws no conclusion from disturbed runs."""

from __future__ import annotations

import pytest

from routekeeper.bench.report.conditions import Conditions


def conditions(*, zookeeper_uses: float, others_cores: float = 0.0, late_ms: float = 3.0) -> Conditions:
    """Return the machine's load in ten rounds of two arms (independent and ZooKeeper).

    In all of ZooKeeper's runs, requests are up to 40 ms late.

    Args:
        zookeeper_uses: Share of the machine's CPU that ZooKeeper's own processes and load use, from 0 to 1.
        others_cores: Number of CPU cores that other programs use.
        late_ms: Delay in ms of requests in runs of the independent nameservers.
    """
    runs = {
        arm: [f"b/equal/leader-fails/{block}/{arm}" for block in range(1, 11)]
        for arm in ("independent", "zookeeper")
    }
    return Conditions(
        others_cores={run: others_cores for found in runs.values() for run in found},
        late_ms=dict.fromkeys(runs["zookeeper"], 40.0) | dict.fromkeys(runs["independent"], late_ms),
        used_share=dict.fromkeys(runs["zookeeper"], zookeeper_uses) | dict.fromkeys(runs["independent"], 0.5),
    )


def test_an_arm_that_fills_the_machine_is_not_judged_and_the_others_are() -> None:
    found = conditions(zookeeper_uses=0.95)
    assert found.crowded == {("equal", "leader-fails", "zookeeper"): (10, 10)}
    assert found.disturbances == []


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (conditions(zookeeper_uses=0.85), "40 ms or more after it was due"),
        (conditions(zookeeper_uses=0.95, late_ms=30.0), "30 ms or more after it was due"),
        (conditions(zookeeper_uses=0.95, others_cores=0.5), "used 0.5 cores in the worst run"),
    ],
    ids=["late without being full", "another arm is late", "others compute"],
)
def test_what_no_arm_explains_lets_nothing_be_concluded(found: Conditions, said: str) -> None:
    (reason,) = found.disturbances
    assert said in reason
