"""The control runs of a comparison work with real processes.

In one control, the same arm (design) runs twice. In the other control, RocketMQ's own nameserver runs with
the same clients.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec
import pytest

from routekeeper.bench import cluster
from routekeeper.bench import session as session_module
from routekeeper.bench.arms.apache import missing
from routekeeper.bench.events import Fault, Operation, View
from routekeeper.bench.plan import PlannedFault, Scenario, load_plan
from routekeeper.bench.runfolder import Arm, read_manifest
from routekeeper.bench.session import Session
from tests.bench.lives import a_turn, hold_brokers, rows, seen_empty

# 900 s, because Maven may have to download jars.
pytestmark = [pytest.mark.bench, pytest.mark.one_core, pytest.mark.timeout(900)]

SCHEDULED: Final = ("lookup", "newcomer", "send", "send_once")
ARMS: Final[tuple[Arm, ...]] = ("independent", "independent-again", "apache")
#: Seconds for which a server is down. A busy machine cannot delay the observer for so long.
DOWN_S: Final = 3.0
#: Factor by which the plan makes times longer, such as the time after a fault (``AFTER_S``).
STRETCH: Final = 20.0
AFTER_S: Final = 0.6
EVERYBODY: Final = [0, 1, 2]


def life(out: Path, arm: Arm) -> list[Path]:
    plan = load_plan("controls")
    timers = msgspec.structs.replace(plan.series[0].timers, divisor=15.0)  # brokers register every 2 s
    fault = PlannedFault(case="one-empty", quiet_s=0.4, jitter_s=0.0, down_s=DOWN_S, after_s=AFTER_S)
    # Three clusters run at the same time, so each gets a third of the load that the plan wants.
    rates = ("lookup_per_s", "newcomer_per_s", "send_per_s", "send_once_per_s", "change_per_s")
    load = msgspec.structs.replace(plan.load, **{rate: getattr(plan.load, rate) / 3 for rate in rates})
    plan = msgspec.structs.replace(
        plan,
        load=load,
        series=[msgspec.structs.replace(plan.series[0], stretch=STRETCH, timers=timers)],
        scenarios=[
            Scenario(name="quiet", quiet_s=1.0 / STRETCH),
            Scenario(name="nameserver-restarts", faults=[fault]),
        ],
    )
    given = a_turn(out, plan, arm, profile="controls", seed=8)

    def progress(step: str) -> None:
        if step == "nameserver-restarts: one-empty":
            hold_brokers(session, lambda index, after_ns: seen_empty(session, index, after_ns, EVERYBODY))

    session = Session(given, progress)
    return session.run()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[Arm, list[Path]]:
    out = tmp_path_factory.mktemp("controls")
    arms = [arm for arm in ARMS if arm != "apache" or missing() is None]
    with ThreadPoolExecutor(len(arms)) as pool, pytest.MonkeyPatch.context() as patch:
        # 300 s, because three clusters start and end at the same time, one of them in JVMs
        patch.setattr(cluster, "RESTART_MAX_S", 300.0)
        patch.setattr(session_module, "GENERATOR_END_S", 300.0)
        return dict(zip(arms, pool.map(lambda arm: life(out, arm), arms), strict=True))


@pytest.mark.parametrize("arm", ARMS)
def test_control_serves_the_load_and_forgets_what_it_knew_when_it_restarts(
    folders: dict[Arm, list[Path]], arm: Arm
) -> None:
    if arm not in folders:
        pytest.skip(f"the arm apache needs {missing()}")
    quiet, restarts = folders[arm]
    manifest = read_manifest(restarts)
    assert (manifest.arm, manifest.lost, manifest.void, manifest.durability) == (arm, None, None, None)
    served = {row.op for row in rows(quiet, Operation) if row.outcome == "ok"}
    assert served == {"lookup", "newcomer", "announce", "send", "send_once"}
    (fault,) = rows(restarts, Fault)
    assert fault.role == "independent"
    target = int(fault.targets[0].removeprefix("nameserver-"))
    shown = [
        row
        for row in sorted(rows(restarts, View), key=lambda row: row.seen_ns)
        if (row.observer, row.index, row.topic) == ("nameserver", target, "bench-0")
        and fault.begin_ns < row.seen_ns < fault.until_ns
    ]
    away = [place for place, row in enumerate(shown) if row.state == "silent"]
    assert away
    answers = [row for row in shown[away[0] + 1 :] if row.state in ("absent", "routed")]
    assert any(row.brokers != EVERYBODY for row in answers), "it came back empty"
    assert answers[-1].brokers == EVERYBODY


@pytest.mark.parametrize("arm", ARMS[:2])
def test_larger_timers_lengthen_the_window_and_not_the_time_for_which_a_server_is_gone(
    folders: dict[Arm, list[Path]], arm: Arm
) -> None:
    (fault,) = rows(folders[arm][1], Fault)
    assert fault.healed_ns is not None
    assert fault.end_ns is not None
    assert DOWN_S <= (fault.healed_ns - fault.begin_ns) / 1e9 < DOWN_S * STRETCH / 2
    assert fault.until_ns - fault.end_ns == pytest.approx(AFTER_S * STRETCH * 1e9, abs=1)


def test_same_arm_twice_gets_the_same_load(folders: dict[Arm, list[Path]]) -> None:
    """Check that look-ups and sends of two runs have the same due times and topics.

    Scenarios do not begin at exactly the same instant, so only the middle of the scenario is compared.
    """
    asked = []
    for arm in ARMS[:2]:
        quiet, _ = folders[arm]
        started_ns = read_manifest(quiet).started_ns
        due = [(row.op, row.due_ns - started_ns, row.topic) for row in rows(quiet, Operation)]
        asked.append({each for each in due if each[0] in SCHEDULED and 1.3e9 < each[1] < 2e9})
    assert len(asked[0]) > 20
    assert asked[0] == asked[1]
