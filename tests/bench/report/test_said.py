"""The report does not repeat the statements of an earlier page that misled a careful reader."""

from __future__ import annotations

import dataclasses
import html
import math
import re
from pathlib import Path
from typing import Final

import msgspec
import pytest

from routekeeper.bench.plan import load_plan
from routekeeper.bench.report import answers, measures, words
from routekeeper.bench.report.answers import CLAIMS, Summary
from routekeeper.bench.report.gold import Cost, DiskCost, Gold
from routekeeper.bench.report.measures import Place
from routekeeper.bench.report.page import page
from routekeeper.bench.runfolder import AGAIN
from routekeeper.bench.schedule import Comparison
from tests.bench.expected import expected_minutes
from tests.bench.report.test_misled import a_line, gold_of, values_of

AGAIN_S: Final = Place("equal", "leader-fails", "kill", "announce_again_s")


def text_of(whole: str) -> str:
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", whole))).replace(
        "\N{NO-BREAK SPACE}", " "
    )


@pytest.mark.parametrize(
    ("raft", "said"),
    [
        ([1.0] * 6, "no difference in any of 6 rounds"),
        ([1.1] * 6, "raft slower than independent in all 6 rounds, by less than matters"),
        ([0.9] * 3 + [2.0] * 3, "mixed: raft faster than independent in 3, slower in 3 of 6 rounds"),
    ],
)
def test_t10_sentence_and_choice_say_what_their_headline_measure_says(raft: list[float], said: str) -> None:
    values = values_of(AGAIN_S, independent=[1.0] * 6, raft=raft)
    lines = answers.primaries([a_line("leader-fails", "kill", "announce_again_s", 0.25)], values)
    assert words.verdict(lines[0]) == said
    (_, against_independent, _) = words.sentences(lines)
    assert (
        "was not clearly better or worse at registering brokers after the leader was killed."
        in against_independent
    )
    assert words.chosen(lines, "raft") == words.chosen(lines, "independent") == []


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([0.0, 0.0, 0.0276], "all below 250 ms"),
        ([0.0, 0.0, 0.4], "below 250 ms to 400 ms"),
        ([0.4, 0.5, math.inf], "400 to 500 ms, never in 1 of 3"),
        ([math.inf] * 3, ""),
    ],
)
def test_t10_range_begins_below_its_end_and_never_is_counted(found: list[float], said: str) -> None:
    assert words.range_of(answers.summary(found, 0.25), "s") == said


def test_t10_what_never_ended_in_one_round_is_told_in_a_row_and_in_no_range_of_all_arms(
    tmp_path: Path,
) -> None:
    gold = gold_of(tmp_path, {"independent": 100, "raft": 100})
    first = next(row for row in gold.recoveries if row.run.endswith("/1/raft"))
    gold = dataclasses.replace(
        gold,
        recoveries=[
            dataclasses.replace(row, recovered_ns=None) if row is first else row for row in gold.recoveries
        ],
    )
    said = text_of(page(gold, measures.values(gold)))
    assert "never in 1 of 6" in said
    alike = said[said.index("Figures without a difference that matters in every round") :]
    assert "Route look-ups right again" not in alike[: alike.index("What these words mean")]


def test_t10_recovery_that_the_window_cut_off_is_not_called_never(tmp_path: Path) -> None:
    """Check a recovery that had not ended when the observation ended, 10 s after the fault.

    The recovery may end later, so the page must explain that "never" only means "not before the observation
    ended".
    """
    gold = gold_of(tmp_path, {"independent": 100, "raft": 100})
    endless = [dataclasses.replace(row, recovered_ns=None) for row in gold.recoveries]
    gold = dataclasses.replace(gold, recoveries=endless)
    said = text_of(page(gold, measures.values(gold)))
    assert "never right again" not in said
    assert "Route look-ups right again never never" in said
    assert "Never, without end It had not happened when the observation ended" in said


def test_t10_down_time_that_we_chose_is_not_multiplied_by_the_divisor() -> None:
    """Check a recovery of 2.35 s, in which the harness kept the servers down for 2 s.

    These 2 s do not depend on timers. So with RocketMQ's own timers (divisor 1 instead of 60) the recovery
    takes less than 60 times 2.35 s = 141 s.
    """
    place = Place("equal", "nameserver-restarts", "all", "right_again_s")
    values = values_of(place, independent=[2.35] * 6)
    (taken,) = answers.taken_apart(values, {"equal": 60.0}, {place: 2.0})
    assert taken.split is not None
    assert taken.split.low == pytest.approx(2.35)
    assert taken.split.high == pytest.approx(2.0 + 0.35 * 60)


def test_t10_down_time_of_servers_is_what_the_harness_did(tmp_path: Path) -> None:
    gold = gold_of(tmp_path, {"independent": 100, "raft": 100})
    assert measures.downs(gold) == {}, "nothing was taken back"
    gold = dataclasses.replace(
        gold,
        faults=[
            dataclasses.replace(row, healed_ns=3 * 10**9, targets=["nameserver-0"]) for row in gold.faults
        ],
    )
    assert measures.downs(gold)[Place("equal", "leader-fails", "kill", "right_again_s")] == pytest.approx(2.0)


def test_t10_figure_is_told_in_steps_of_the_time_between_two_readings() -> None:
    place = Place("equal", "partition", "1-2", "disagree_s")
    values = values_of(place, independent=[2.913] * 6, raft=[0.0834] * 6)
    (row,) = answers.rows(values)
    assert words.middle_of(row.arms["independent"], "s") == "2.92 s"
    assert words.middle_of(row.arms["raft"], "s") == "80 ms"
    pair = row.pair("raft", "independent")
    assert pair is not None
    assert words.leaning(pair, "s") == "raft 2.82 s less than independent, in all 6 rounds"
    assert words.quantity(0.004, "s", 0.02) == "below 20 ms"


def test_t10_single_run_on_a_busy_machine_is_marked_in_the_list_of_runs(tmp_path: Path) -> None:
    gold = gold_of(tmp_path, {"independent": 100, "raft": 100})
    busy = gold.sources[0].run
    costs = [
        a_cost(source.run, role="machine", cpu_ns=(6 if source.run == busy else 1) * 10**9)
        for source in gold.sources
    ]
    said = text_of(page(dataclasses.replace(gold, costs=costs), measures.values(gold)))
    assert "other programs used 0.6 cores" in said[said.index("Every run") :]
    assert "In 1 of 12 runs other programs used the machine, or the generator sent late" in said
    assert "The machine was busy" not in said


def a_cost(run: str, *, role: str, cpu_ns: int) -> Cost:
    return Cost(
        run=run,
        role=role,
        covered_ns=10 * 10**9,
        cpu_ns=cpu_ns,
        rss_bytes=0,
        pids=1,
        processes=1,
        busiest=None,
        died=0,
    )


# -- the measures that the page shows first (headline measures) ---------------------------------------------

MAY_WIN: Final = {
    ("idle-300", None, "network_kib_per_s"),
    ("broker-dies", "cable", "left_by_clients_s"),
    ("quiet", None, "visible_clients_ms_p50"),
}
"""Headline measures in which ZooKeeper may be better than independent nameservers.

Each measure is a tuple of scenario, case and measure name.
"""


@pytest.mark.parametrize(("name", "number", "may_win", "of_raft"), [("full", 8, 3, 2), ("compare", 6, 2, 1)])
def test_t8_headline_measures_may_be_zookeepers_and_some_compare_raft_mode_with_it(
    name: str, number: int, may_win: int, of_raft: int
) -> None:
    """Check that a plan has headline measures in which ZooKeeper may be better than other designs.

    The plan "compare" lacks two measures of the plan "full", which are about idle brokers and need undivided
    timers.
    """
    lines = load_plan(name).lines
    assert len(lines) == number
    of_zookeeper = {
        (line.scenario, line.case, line.measure)
        for line in lines
        if line.arms == ("zookeeper", "independent")
    }
    assert len(of_zookeeper & MAY_WIN) == may_win
    assert sum(line.arms == ("raft", "zookeeper") for line in lines) == of_raft


def test_t8_each_design_stands_beside_itself_among_the_controls() -> None:
    plan = load_plan("controls")
    assert {*AGAIN.values()} == {"independent", "raft", "zookeeper"}
    for again, arm in AGAIN.items():
        assert {again, arm} <= set(plan.arms)
        assert (again, arm) in answers.CONTROLS


def test_t8_six_rounds_are_no_proof_and_the_page_says_so_once(tmp_path: Path) -> None:
    gold = gold_of(tmp_path, {"independent": 100, "raft": 100, "zookeeper": 100})
    lines = load_plan("full").lines
    gold = dataclasses.replace(
        gold,
        sources=[
            dataclasses.replace(source, manifest=msgspec.structs.replace(source.manifest, lines=lines))
            for source in gold.sources
            if source.manifest is not None
        ],
    )
    said = text_of(page(gold, measures.values(gold)))
    assert said.count("is no proof") == 1
    assert (
        "“In all 6 rounds” is no proof. Where two designs do not differ at all, the chance that at least one "
        "of 8 headline measures agrees in all 6 rounds is 22%."
    ) in said
    assert "no verdict" not in said
    assert words.no_proof(10, 8) == ""


def test_t8_quick_comparison_takes_at_most_twelve_minutes() -> None:
    plan = load_plan("compare")
    asked = Comparison(profile="compare", plan=plan, seed=1, command=["mqbench"])
    assert expected_minutes(asked) <= 12.0


# -- quoted claims about ZooKeeper and nameservers ----------------------------------------------------------


def test_t9_each_quoted_claim_names_its_source_and_the_first_has_two_parts(tmp_path: Path) -> None:
    assert [claim.letter for claim in CLAIMS] == ["a1", "a2", "b", "c", "d"]
    by_letter = {claim.letter: claim for claim in CLAIMS}
    assert [claim.letter for claim in CLAIMS if not claim.source] == ["a2"]
    assert by_letter["a1"].by_design
    assert "controller elects a new master" in by_letter["a1"].caveat
    gold = gold_of(tmp_path, {"independent": 100, "raft": 100, "zookeeper": 100})
    said = text_of(page(gold, measures.values(gold)))
    first = said[said.index("(a1)") : said.index("(a2)")]
    assert "“ZooKeeper can elect masters; RocketMQ's architecture needs no election of masters.”" in first
    assert "Yes, by design" in first
    assert "Source: “Why not ZooKeeper?”" in first
    second = said[said.index("(a2)") : said.index("(b)")]
    assert "Source:" not in second
    assert "Leader killed: look-ups without a cache are right again after" in second


def test_summary_counts_rounds_without_end() -> None:
    found = answers.summary([1.0, 2.0, math.inf])
    assert isinstance(found, Summary)
    assert (found.low, found.high, found.endless) == (1.0, 2.0, 1)


def test_chart_of_memory_says_that_it_is_the_same_with_real_timers(tmp_path: Path) -> None:
    gold = gold_of(tmp_path, {"independent": 100, "raft": 100, "zookeeper": 100})
    sources = [
        dataclasses.replace(source, scenario="quiet", run=source.run.replace("leader-fails", "quiet"))
        for source in gold.sources
    ]
    costs = [
        dataclasses.replace(a_cost(source.run, role="nameserver", cpu_ns=10**9), rss_bytes=50 << 20)
        for source in sources
    ]
    whole = page(Gold(sources=sources, costs=costs), measures.values(Gold(sources=sources, costs=costs)))
    chart = text_of(whole[whole.index('id="claim-c"') : whole.index('id="claim-d"')])
    assert chart.count("the same") == 3
    assert "not run" not in chart


# -- bytes that the whole machine writes to its disk --------------------------------------------------------


@pytest.mark.parametrize(
    ("scenario", "machine_s", "told"), [("idle-300", 1, True), ("idle-300", 6, False), ("quiet", 1, False)]
)
def test_t3_sectors_of_the_device_are_told_only_where_nothing_else_runs(
    tmp_path: Path, scenario: str, machine_s: int, told: bool
) -> None:
    source = dataclasses.replace(gold_of(tmp_path, {"raft": 1}).sources[0], scenario=scenario)
    disk = DiskCost(
        run=source.run, role="machine", covered_ns=60 * 10**9, written_bytes=None, syncs=None, sectors=4096
    )
    cost = a_cost(source.run, role="machine", cpu_ns=machine_s * 10**9)
    values = measures.values(Gold(sources=[source], disks=[disk], costs=[cost]))
    found = {place.measure: blocks["raft"] for place, blocks in values.items()}
    assert ("device_mib_per_min" in found) is told
    if told:
        assert list(found["device_mib_per_min"].values()) == [pytest.approx(2.0)]
