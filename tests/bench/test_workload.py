"""Workload files and the order of runs."""

from collections import Counter
from random import Random

import pytest

from bench.__main__ import plans
from bench.run import why_unmeasured
from bench.samples import Fault, FaultKind
from bench.workload import FOLDER, WorkloadError, load_workload, parse_workload, profiles

COMPARE = (FOLDER / "compare.toml").read_text()


@pytest.mark.parametrize("name", profiles())
def test_every_profile_that_comes_with_the_program_is_valid(name: str) -> None:
    assert load_workload(name).measure_s > 0


def test_default_profile_has_both_faults_and_divides_the_documented_timers() -> None:
    workload = load_workload("compare")
    assert [fault.kind for fault in workload.faults] == ["kill_one", "kill_all"]
    assert workload.timers_ms()["registerNameServerPeriod"] == 3_000
    assert workload.timers_ms()["brokerLease"] == 12_000


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "timer_divisor = 10.0",
            "timer_divisor = 0.0",
            "timer_divisor=0 is out of range, allowed are 1 to 100",
        ),
        ("nameservers = 3", "nameservers = 30", "nameservers=30 is out of range, allowed are 1 to 9"),
        ("at_s = 10.5", "at_s = 5.0", "faults.kill_all.at_s=5 is out of range, allowed are 7 to 20"),
        ("down_s = 1.0", "down_s = 6.6", "faults.kill_all.down_s=6.6 is out of range, allowed are 0 to 6.5"),
        ('durability = "journal"', 'durability = "paper"', "durability"),
        ("warmup_s = 2.0", "warm_up_s = 2.0", "warm_up_s"),
        ("[load]", "[load", "line"),
    ],
)
def test_bad_workload_is_refused_by_name_and_range(old: str, new: str, said: str) -> None:
    assert old in COMPARE
    with pytest.raises(WorkloadError, match=said.replace("[", r"\[")):
        parse_workload(COMPARE.replace(old, new))


def test_unknown_profile_names_the_known_ones() -> None:
    with pytest.raises(WorkloadError, match=r"unknown profile 'nope', known are: .*compare"):
        load_workload("nope")


def test_runs_are_interleaved_and_each_mode_begins_about_half_of_the_pairs() -> None:
    schedule = plans(pairs=6, modes=("independent", "raft"), profile="compare", seed=1, command=())
    assert [plan.pair for plan in schedule] == [pair for pair in range(1, 7) for _ in range(2)]
    assert Counter(plan.mode for plan in schedule if plan.order_in_pair == 0) == {"independent": 3, "raft": 3}
    by_pair = {plan.pair: {other.seed for other in schedule if other.pair == plan.pair} for plan in schedule}
    assert all(len(seeds) == 1 for seeds in by_pair.values())
    assert len(set.union(*by_pair.values())) == 6


def test_faults_strike_at_instants_drawn_by_the_seed_within_their_jitter() -> None:
    workload = load_workload("compare")
    drawn = [workload.fault_times_s(Random(seed)) for seed in range(50)]
    assert workload.fault_times_s(Random(7)) == drawn[7]
    for number, fault in enumerate(workload.faults):
        times = [times_s[number] for times_s in drawn]
        assert all(fault.at_s <= at_s <= fault.at_s + fault.jitter_s for at_s in times)
        assert max(times) - min(times) > fault.jitter_s / 2


def _struck(kind: FaultKind, *, end_s: float) -> Fault:
    return Fault(kind=kind, targets=[0], begin_ns=0, end_ns=round(end_s * 1e9))


def test_a_run_whose_faults_the_measured_time_does_not_show_is_void() -> None:
    workload, end_ns = load_workload("compare"), 20_000_000_000
    one, both = _struck("kill_one", end_s=6), _struck("kill_all", end_s=19.9)
    assert why_unmeasured([one, both], workload, measure_end_ns=end_ns) is None
    late = _struck("kill_all", end_s=22.5)
    assert why_unmeasured([one, late], workload, measure_end_ns=end_ns) == (
        "fault kill_all was over 2.5 s after the measured time: measure_s=20 is too short on this machine"
    )
    assert why_unmeasured([one], workload, measure_end_ns=end_ns) == (
        "fault kill_all did not strike before the load ended: measure_s=20 is too short on this machine"
    )
