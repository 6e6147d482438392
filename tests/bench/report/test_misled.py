"""The report does not repeat the misleading statements of the first report.

These statements have the numbers C1 to C11. This module has the tests that need no Spark job. Other tests are
in other modules:

- C1: test_requests_that_waited_and_then_succeeded_are_the_outage,
  test_outage_lasts_until_an_answer_came_not_until_the_last_failed_request_was_due
- C2: test_users_stay_until_the_end_and_a_linger
- C3: test_sends_do_not_wait_for_routes (live)
- C4: test_lateness_inside_the_fault_window_is_told_and_how_many_waited_for_a_user
- C5: test_reports_that_change_nothing_are_no_changes_around_a_fault
- C10: test_blocks.py (coverage, A/A, percentiles, void runs),
  test_arm_whose_server_died_by_itself_has_lost_the_scenario,
  test_process_starts_are_part_of_the_cost_and_a_death_by_itself_is_noticed,
  test_arms_of_a_block_get_the_same_load (live)
- C11: test_nothing_lies_outside_a_screen_of_this_width
"""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Final

import msgspec
import pytest

from routekeeper.bench.plan import load_plan
from routekeeper.bench.report import answers, measures, words
from routekeeper.bench.report.gold import Back, Fault, Gold, LeftOut, Recovery, VisibleBucket
from routekeeper.bench.report.measures import Place, Values
from routekeeper.bench.report.page import page
from routekeeper.bench.report.silver import Source
from routekeeper.bench.runfolder import Arm, read_manifest
from routekeeper.bench.runfolder import Line as NamedLine
from tests.bench.report.planted import PlantedRun

BLOCKS = range(1, 7)


def values_of(place: Place, **arms: list[float]) -> Values:
    return {
        place: {
            arm: {("b", block): value for block, value in enumerate(found, 1)} for arm, found in arms.items()
        }
    }


def a_source(root: Path, arm: Arm, block: int) -> Source:
    with PlantedRun(root, scenario="leader-fails", arm=arm, block=block) as run:
        pass
    return Source(
        run=f"b/equal/leader-fails/{block}/{arm}",
        uri="",
        base="",
        batch="b",
        series="equal",
        scenario="leader-fails",
        block=block,
        arm=arm,
        manifest=read_manifest(run.folder),
    )


def gold_of(root: Path, served: dict[Arm, int]) -> Gold:
    """Return results of six rounds, whose arms differ only in the number of look-ups after the fault."""
    sources = [a_source(root, arm, block) for arm in served for block in BLOCKS]
    return Gold(
        sources=sources,
        faults=[
            Fault(
                run=source.run,
                fault=0,
                kind="kill",
                case="kill",
                role="leader",
                targets=["nameserver-0"],
                from_ns=0,
                begin_ns=10**9,
                healed_ns=None,
                end_ns=None,
                until_ns=11 * 10**9,
            )
            for source in sources
        ],
        recoveries=[
            Recovery(
                run=source.run,
                fault=0,
                op="lookup",
                scope="all",
                n=served[source.manifest.arm],
                right=served[source.manifest.arm],
                stale=0,
                missing=0,
                ghost=0,
                refused=0,
                failed=0,
                waited=0,
                late=0,
                queued=0,
                behind_ns=0,
                first_ns=None,
                recovered_ns=0,
                slowest_ns=10**6,
                lateness_ns=0,
                gap_ns=25_000_000,
            )
            for source in sources
            if source.manifest is not None
        ],
    )


def test_changes_count_as_visible_only_while_the_harness_reads_the_servers(tmp_path: Path) -> None:
    """In the scenario "quiet", nothing reads the servers, so the page must not say when changes showed."""
    before_faults = a_source(tmp_path, "raft", 1)
    quiet = dataclasses.replace(before_faults, run="b/equal/quiet/1/raft", scenario="quiet")
    gold = Gold(sources=[before_faults, quiet])
    for source, phase, took_ms, n in (before_faults, "reference", 6, 100), (quiet, "quiet", 5_000, 300):
        for observer in "nameserver", "client":
            took_ns = took_ms * 10**6
            gold.visible.append(
                VisibleBucket(
                    run=source.run,
                    observer=observer,
                    phase=phase,
                    fault=None,
                    measure="visible",
                    value_ns=took_ns,
                    n=n,
                )
            )
    found = measures.values(gold)
    assert found[Place("equal", "quiet", None, "visible_ms_p50")] == {"raft": {("b", 1): 6}}
    assert found[Place("equal", "quiet", None, "visible_clients_ms_p50")] == {"raft": {("b", 1): 5_000}}


def test_c6_how_much_of_a_fixed_schedule_was_served_is_no_figure(tmp_path: Path) -> None:
    gold = gold_of(tmp_path, {"independent": 10_000, "raft": 10_001, "zookeeper": 10_002})
    rows = answers.rows(measures.values(gold), measures.floors(gold))
    assert rows
    for row in rows:
        assert {pair.leaning for pair in row.pairs} == {"none"}
        assert {value for pair in row.pairs for value in pair.found} == {0.0}
    html = page(gold, measures.values(gold)).lower()
    assert "throughput" not in html
    assert "/s better" not in html


def a_line(scenario: str, case: str | None, measure: str, margin: float, *arms: Arm) -> NamedLine:
    first, second = arms or ("raft", "independent")
    unit = measures.MEASURES[measure].unit
    return NamedLine(
        name=f"{measure} of {first}",
        scenario=scenario,
        case=case,
        measure=measure,
        arms=(first, second),
        unit=unit,
        margin=margin,
    )


def test_c7_a_fifth_of_a_mebibyte_is_no_recommendation() -> None:
    place = Place("equal", "quiet", None, "rss_mib")
    values = values_of(place, independent=[150.0] * 6, raft=[150.2] * 6)
    table = {row.place: row for row in answers.rows(values)}
    lines = answers.primaries([a_line("quiet", None, "rss_mib", 64)], values)
    said = "raft more than independent in all 6 rounds, by less than matters"
    assert words.verdict(lines[0]) == said
    assert words.chosen(lines, "raft") == words.chosen(lines, "independent") == []
    judged = next(claim for claim in answers.CLAIMS if claim.letter == "c")
    assert said in words.answered(answers.answer(judged, table, lines))


@pytest.mark.parametrize(
    ("times", "marked"),
    [
        ([2.05, 1.97, 2.0, 2.06, 1.94, 2.03], True),  # all times are close to 2 s, the length of the fault
        ([2.05, 1.97, 2.0, 2.06, 1.94, 2.2], False),  # the time of one round is not close to 2 s
        ([19.3] * 6, True),  # close to 20 s, the length of the scenario
        # These values are close to 20 ms, the interval at which observers send queries. But observers do not
        # measure these values, so the plan did not set them.
        ([0.0203] * 6, False),
        ([0.6, 0.5, 0.7, 0.4, 0.6, 0.5], False),
        ([0.0] * 6, False),
    ],
)
def test_t4_a_time_that_the_plan_set_is_marked_and_concludes_nothing(
    tmp_path: Path, times: list[float], marked: bool
) -> None:
    """The report measures the time until brokers can register again.

    Sometimes this time only shows the length of the fault, which the plan sets. Check that the report then
    marks the time and draws no conclusion from it.
    """
    gold = gold_of(tmp_path, {"independent": 1, "raft": 1})
    gold = dataclasses.replace(
        gold, faults=[dataclasses.replace(row, healed_ns=3 * 10**9) for row in gold.faults]
    )
    place = Place("equal", "leader-fails", "kill", "announce_again_s")
    values = values_of(place, independent=[0.5, 0.1, 0.3, 0.4, 0.2, 0.6], raft=times)
    planned = measures.set_by_plan(gold, values)
    assert planned == ({(place, "raft")} if marked else set())
    (row,) = answers.rows(values, planned=planned)
    assert row.set_by_plan == (("raft",) if marked else ())
    assert (row.pairs == []) == marked
    named = [a_line("leader-fails", "kill", "announce_again_s", 0.25)]
    (line,) = answers.primaries(named, values, planned=planned)
    said = "unclear: the times of raft only show a length that the plan sets"
    assert (words.verdict(line) == said) == marked
    if marked:
        assert line.winner is None
        assert "set by the plan" in page(gold, values)


def test_t7_a_margin_below_what_the_measure_can_show_concludes_nothing() -> None:
    """Check that a margin of 200 ms is too small to conclude anything.

    The report counts a recovery below 250 ms as no disturbance, so it cannot see a difference of 200 ms.
    """
    place = Place("equal", "leader-fails", "kill", "right_again_s")
    values = values_of(place, independent=[0.0] * 10, raft=[0.21] * 10)
    for margin, said in (
        (0.2, "unclear: the measure cannot show differences below 0.25 s"),
        (0.25, "raft and independent are equivalent"),
    ):
        (line,) = answers.primaries([a_line("leader-fails", "kill", "right_again_s", margin)], values)
        assert words.verdict(line).startswith(said)
        assert line.winner is None


def test_c7_one_clear_figure_is_not_outvoted_by_many_small_ones() -> None:
    """Check the answer to a claim with three figures: raft is much better in one of them.

    In the other two figures, independent is better by less than the margin. The answer must name all three
    results, and must not count the two small differences against the large one.
    """
    values: Values = {}
    named = []
    for measure, scenario, case, independent, raft in (
        ("cpu_s_per_min", "quiet", None, 3.0, 3.1),
        ("newcomer_right_s", "nameserver-restarts", "one-empty", 1.0, 1.1),
        ("disagree_s", "partition", "1-2", 3.0, 0.0),
    ):
        place = Place("equal", scenario, case, measure)
        values |= values_of(place, independent=[independent] * 6, raft=[raft] * 6)
        named.append(a_line(scenario, case, measure, measures.MEASURES[measure].material))
    table = {row.place: row for row in answers.rows(values)}
    claim = next(claim for claim in answers.CLAIMS if claim.letter == "b")
    lines = answers.primaries(named, values)
    said = words.answered(answers.answer(claim, table, lines))
    assert said.count("by less than matters") == 2
    assert said.count("raft shorter than independent in all 6 rounds") == 1


def test_tests_that_are_named_here_as_being_elsewhere_exist() -> None:
    assert __doc__ is not None
    named = set(re.findall(r"\btest_\w+\b(?!\.py)", __doc__))
    sources = [path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py")]
    assert len(named) > 9
    assert {name for name in named if not any(f"def {name}(" in source for source in sources)} == set()


@pytest.mark.parametrize("name", ["compare", "full"])
def test_c8_what_the_claims_rest_on_is_done_by_the_plan(name: str) -> None:
    """Check that the plan contains the faults that the claims need, and clients that notice the faults.

    Brokers must die, and a nameserver must restart empty. New clients must query the restarted nameserver.
    """
    plan = load_plan(name)
    done: set[tuple[str, str | None]] = {
        (scenario.name, fault.case) for scenario in plan.scenarios for fault in scenario.faults
    }
    done |= {(scenario.name, None) for scenario in plan.scenarios}
    assert ("broker-dies", "kill") in done
    assert ("nameserver-restarts", "one-empty") in done
    assert plan.load.newcomer_per_s > 0
    for line in plan.lines:
        assert (line.scenario, line.case) in done
        assert line.measure in measures.MEASURES


def test_c9_timers_that_were_not_divided_are_not_called_so(tmp_path: Path) -> None:
    gold = gold_of(tmp_path, {"independent": 100, "raft": 100, "zookeeper": 100})
    html = page(gold, measures.values(gold)).replace("\N{NO-BREAK SPACE}", " ")
    timers = html[html.index('id="timers"') : html.index('id="trust"')]
    assert "<td>electionTimeout</td><td>300 ms, as documented</td><td>300 ms</td>" in timers
    assert "<td>registerNameServerPeriod</td><td>3 s, divided</td><td>30 s</td>" in timers
    assert "a tenth" not in html


@pytest.mark.parametrize(("kind", "told"), [("kill", True), ("partition", False)])
def test_broker_that_is_cut_off_from_one_nameserver_is_not_told_as_dead(
    tmp_path: Path, kind: str, told: bool
) -> None:
    gold = gold_of(tmp_path, {"raft": 100})
    gold.faults[:] = [
        dataclasses.replace(fault, kind=kind, targets=["broker-0", "nameserver-0"]) for fault in gold.faults
    ]
    for fault in gold.faults:
        left = LeftOut(run=fault.run, fault=0, observer="nameserver", index=1, left_out_ns=None)
        gold.left_out.append(left)
        gold.back.append(Back(run=fault.run, fault=0, observer="nameserver", index=1, back_ns=None))
    found = {place.measure for place in measures.values(gold)}
    names = {"left_by_nameservers_s", "back_by_nameservers_s"}
    assert found & names == (names if told else set())


def test_c9_recovery_is_fixed_and_scaled_part_and_told_for_the_defaults() -> None:
    """Check that the report splits a recovery into a fixed time (0.3 s) and a lease (5 s with divisor 1).

    In the test's data, the recovery takes 0.8 s with timers divided by 10, and 5.3 s with divisor 1.
    """
    at_ten = Place("equal", "broker-dies", "kill", "left_by_clients_s")
    at_one = Place("equal-undivided", "broker-dies", "kill", "left_by_clients_s")
    values = values_of(at_ten, raft=[0.8] * 6) | values_of(at_one, raft=[5.3] * 6)
    (taken,) = answers.taken_apart(values, {"equal": 10.0, "equal-undivided": 1.0})
    assert taken.split is not None
    assert taken.split.fixed == pytest.approx(0.3)
    assert taken.split.scaled == pytest.approx(5.0)
    assert taken.split.low == taken.split.high == pytest.approx(5.3)


TIMERS: Final = {"equal": 60.0, "equal-tenth": 10.0, "equal-undivided": 1.0}


def test_c9_difference_that_chance_may_explain_is_not_multiplied() -> None:
    """Check recovery times with two divisors of the timers, whose difference may be chance.

    The medians of the two divisors differ (1.02 s, 1.26 s), but the ranges of their rounds overlap. So the
    report must count the whole time as independent of the timers.
    """
    at = {"equal": [0.83, 1.02, 1.28], "equal-tenth": [0.82, 1.26, 1.27]}
    values: Values = {}
    for series, rounds in at.items():
        values |= values_of(Place(series, "broker-dies", "kill", "left_by_clients_s"), raft=rounds)
    (taken,) = answers.taken_apart(values, TIMERS)
    assert taken.split is not None
    assert taken.split.fixed == pytest.approx(1.14)
    assert taken.split.scaled == 0
    assert taken.split.low == taken.split.high == pytest.approx(1.14)


def of_timers(measure: str, **series: float) -> Values:
    """Return one arm's recovery times in several series. A keyword is a series' name without "equal-"."""
    values: Values = {}
    for name, seconds in series.items():
        whole = "equal" if name == "equal" else f"equal-{name}"
        values |= values_of(Place(whole, "broker-dies", "kill", measure), raft=[seconds] * 2)
    return values


def test_c9_recovery_at_the_defaults_is_predicted_and_then_compared_with_what_was_measured() -> None:
    """Check a predicted recovery time of 120.3 s, which is 0.3 s with any timers plus a lease of 120 s.

    The report predicts this time from recoveries with timers divided by 60 and by 10. The recovery time that
    was measured with undivided timers is 118 s.
    """
    values = of_timers("left_by_clients_s", equal=2.3, tenth=12.3, undivided=118.0)
    (taken,) = answers.taken_apart(values, TIMERS)
    assert taken.split is not None
    assert taken.split.fixed == pytest.approx(0.3)
    assert taken.split.scaled == pytest.approx(120.0)
    # The prediction must use only the runs that have divided timers. The run of 118 s has undivided timers.
    assert taken.split.low == pytest.approx(120.3)
    assert taken.is_prediction
    assert taken.off == pytest.approx(-2.3)
    assert words.off_by(-2.3, 120.3) == "2.30 s less than predicted (2%)"
    unchecked = of_timers("left_by_clients_s", equal=2.3, undivided=118.0)
    (taken,) = answers.taken_apart(unchecked, {"equal": 60.0, "equal-undivided": 1.0})
    assert not taken.is_prediction
    assert taken.off is None
    never = of_timers("left_by_clients_s", equal=2.3, tenth=12.3, undivided=math.inf)
    (taken,) = answers.taken_apart(never, TIMERS)
    assert taken.off == math.inf
    assert words.off_by(math.inf, 120.3) == "it never ended"


def test_c9_times_of_a_partition_are_not_taken_apart_because_the_harness_cut_and_healed_it() -> None:
    values = values_of(Place("equal", "partition", "1-2", "disagree_s"), raft=[3.0] * 6)
    assert answers.taken_apart(values, {"equal": 60.0}) == []


def test_c9_page_shows_the_prediction_beside_the_measurement(tmp_path: Path) -> None:
    gold = gold_of(tmp_path, {"raft": 100, "independent": 100})
    sources, faults, recoveries = [], [], []
    for series, divisor, seconds in (
        ("equal", 60.0, 2.3),
        ("equal-tenth", 10.0, 12.3),
        ("equal-undivided", 1.0, 118.0),
    ):
        for source in gold.sources:
            assert source.manifest is not None
            sources.append(
                dataclasses.replace(
                    source,
                    series=series,
                    run=source.run.replace("/equal/", f"/{series}/"),
                    manifest=msgspec.structs.replace(source.manifest, divisor=divisor),
                )
            )
        for fault in gold.faults:
            faults.append(dataclasses.replace(fault, run=fault.run.replace("/equal/", f"/{series}/")))
        for row in gold.recoveries:
            run = row.run.replace("/equal/", f"/{series}/")
            recoveries.append(dataclasses.replace(row, run=run, recovered_ns=round(seconds * 1e9)))
    changed = dataclasses.replace(gold, sources=sources, faults=faults, recoveries=recoveries)
    whole = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page(changed, measures.values(changed))))
    assert "120 s 300 ms fixed, 120 s by timers measured: 118 s, 2.30 s less than predicted (2%)" in whole
    assert "timers divided by 60 and 10" in whole
    assert "the error of the prediction" in whole
