"""The page says what its tables say: other tables, other words."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from html import unescape
from pathlib import Path

import msgspec
import pytest

from bench.manifest import Machine, Manifest
from bench.report import render
from bench.report.findings import (
    HEADLINES,
    RULES,
    Comparison,
    Scenario,
    find,
    flagged_generators,
    pairs_of,
    steady_s,
)
from bench.report.intervals import Estimate
from bench.report.marts import (
    Bucket,
    Cost,
    FileLines,
    Marts,
    Outage,
    Outcomes,
    Reason,
    Run,
    Second,
    Visible,
    Window,
)
from bench.report.wording import in_short, number, quantity, sentence, with_interval

S = 1_000_000_000


def manifest(mode: str, pair: int, **fields: object) -> Manifest:
    values: dict[str, object] = {
        "mode": mode,
        "scenario": "compare",
        "rep": pair,
        "pair": pair,
        "order_in_pair": 0,
        "profile": "quick",
        "seed": 1,
        "durability": "fsync" if mode == "raft" else None,
        "nameservers": 3,
        "brokers": 2,
        "timer_divisor": 10.0,
        "timers_ms": {"registerNameServerPeriod": 3000},
        "workload": {"rate": 5},
        "machine": Machine(cpu="cpu <model>", cores=2, memory_bytes=1 << 30, system="system"),
        "versions": {"python": "3.11"},
        "commit": "abc",
        "command": ["mqbench", "compare", "--out", "a b"],
        "started_at": "2026-01-01T00:00:00Z",
        "started_ns": 0,
        "measure_begin_ns": 0,
        "measure_end_ns": 20 * S,
        "ended_ns": 21 * S,
    }
    return msgspec.convert(values | fields, Manifest)


def run(mode: str, pair: int, **fields: object) -> Run:
    return Run(run=f"{mode}/compare/{pair}", folder=Path("r"), manifest=manifest(mode, pair, **fields))


def tables(
    *,
    pairs: int = 5,
    raft_p99_ms: float = 9.0,
    raft_wrong_s: float = 1.0,
    independent_wrong_s: float = 4.0,
    generator_cores: float = 0.3,
    left_out: Sequence[Run] = (),
) -> Marts:
    """Tables of ``pairs`` pairs with one fault each; runs differ a little, so that intervals have width."""
    runs, windows, buckets, outcomes, outages, visible, costs, seconds = [], [], [], [], [], [], [], []
    for pair in range(1, pairs + 1):
        for mode in ("independent", "raft"):
            each = run(mode, pair)
            name = each.run
            runs.append(each)
            windows.append(
                Window(
                    run=name,
                    fault=1,
                    kind="kill_all",
                    role=None,
                    targets=[0, 1, 2],
                    begin_ns=8 * S,
                    end_ns=9 * S,
                    quiet_ns=14 * S,
                    until_ns=20 * S,
                )
            )
            value = (raft_p99_ms if mode == "raft" else 2.0) * (1 + pair / 1000)
            for op in ("route_wire", "register", "send"):
                buckets.append(Bucket(run=name, op=op, measure="latency", value_ns=round(value * 1e6), n=100))
                counts = {"run": name, "op": op, "slowest_ns": 5}
                outcomes.append(
                    Outcomes(**counts, fault=None, steady=True, struck=False, outcome="ok", n=100)  # type: ignore[arg-type]
                )
                outcomes.append(
                    Outcomes(**counts, fault=1, steady=False, struck=op != "send", outcome="ok", n=50)  # type: ignore[arg-type]
                )
            wrong_s = (raft_wrong_s if mode == "raft" else independent_wrong_s) * (1 + pair / 1000)
            outages.append(
                Outage(
                    run=name,
                    fault=1,
                    op="route_wire",
                    struck=True,
                    outage=1,
                    begin_ns=8 * S,
                    end_ns=round((8 + wrong_s) * S),
                    failed=9,
                    wrong=4,
                    unknown=1,
                )
            )
            visible.append(
                Visible(
                    run=name,
                    change=1,
                    begun_ns=S,
                    seen_on=3,
                    nameservers=3,
                    visible_ns=7_000_000,
                    unsure_ns=1_000_000,
                    acked_ns=5_000_000,
                    fault=None,
                    steady=True,
                )
            )
            seconds.append(Second(run=name, op="route_wire", second=3, n=9, ok=8))
            for role, cores in (("nameserver", 0.1), ("generator", generator_cores)):
                costs.append(
                    Cost(
                        run=name,
                        role=role,
                        index=0,
                        cpu_ns=1,
                        alive_ns=1,
                        cores=cores,
                        rss_bytes_max=pair << 20,
                        pids=1,
                    )
                )
    return Marts(
        runs=[*runs, *left_out],
        files=[FileLines(run="raft/compare/1", file="ops-a.jsonl", lines=1234, bad=1)],
        windows=windows,
        histogram=buckets,
        outcomes=outcomes,
        seconds=seconds,
        outages=outages,
        visible=visible,
        costs=costs,
        reasons=[Reason(run="raft/compare/1", op="send", outcome="error", code=1, remark="<script>", n=3)],
    )


def html(marts: Marts) -> str:
    return render.page(marts, find(marts))


def text(markup: str) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", markup)))


def first_screen(marts: Marts) -> str:
    """Its words, without drawing the plots below it."""
    return text(render.first_screen(marts, find(marts)))


def scenario(marts: Marts) -> Scenario:
    (found,) = find(marts)
    return found


def test_the_page_needs_nothing_from_outside_and_runs_nothing() -> None:
    markup = html(tables())
    assert "<script" not in markup
    assert "&lt;script&gt;" in markup  # a remark cannot become markup
    for attribute in re.findall(r'(?:src|href|action)="([^"]*)"', markup):
        assert attribute.startswith("#"), attribute
    assert not re.search(r"@import|url\((?!#)", markup)
    identifiers = re.findall(r'\bid="([^"]+)"', markup)
    assert len(identifiers) == len(set(identifiers))
    for target in re.findall(r'href="#([^"]+)"', markup):
        assert target in identifiers or f"id='{target}'" in markup


def test_the_same_tables_give_the_same_page() -> None:
    first, second = (re.sub(r"f\d+-", "", html(tables())) for _ in range(2))
    assert first == second


def test_the_first_screen_says_what_was_compared() -> None:
    said = first_screen(tables(pairs=4))
    assert "3 nameservers and 2 brokers" in said
    assert "measured for 20 s in each of 8 runs : 4 in independent mode and 4 in raft mode" in said.replace(
        "8 runs:", "8 runs :"
    )
    assert "divided by 10 in both modes" in said
    assert "durability level fsync" in said
    assert "cpu <model>, 2 cores" in said


def test_every_figure_of_the_first_screen_is_one_of_the_comparisons() -> None:
    marts = tables()
    found = scenario(marts)
    markup = render.first_screen(marts, find(marts))
    table = markup[markup.index("headlines") : markup.index("</table>")]
    rows = re.findall(r"<tr><td>([^<]+)</td><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td></tr>", table)
    by_name = {name: key for key, name in HEADLINES.items()}
    assert {by_name[unescape(name)] for name, *_ in rows} == set(HEADLINES) & set(found.comparisons)
    assert len(rows) > 5
    for name, independent, raft, difference in rows:
        each = found.comparisons[by_name[unescape(name)]]
        assert each.independent is not None
        assert each.raft is not None
        assert text(independent).strip() == quantity(each.independent.value, each.unit)
        assert text(raft).strip() == quantity(each.raft.value, each.unit)
        assert each.difference is not None
        if each.verdict in ("raft", "independent"):
            assert each.difference.low is not None
            for value in (each.difference.value, each.difference.low, each.difference.high):
                assert value is not None
                assert quantity(value, each.unit) in text(difference)
        else:
            assert "not shown" in difference or "equal in every pair" in difference


def test_other_data_say_something_else() -> None:
    slower, faster = first_screen(tables(raft_p99_ms=9.0)), first_screen(tables(raft_p99_ms=0.5))
    assert "Registrations must be acknowledged fast independent" in slower
    assert "Registrations must be acknowledged fast raft" in faster
    each = scenario(tables(raft_p99_ms=9.0)).comparisons["latency.p99.register"]
    assert each.raft is not None
    assert each.difference is not None
    for value in (each.raft.value, each.difference.value):
        assert quantity(value, "ms") in slower
        assert quantity(value, "ms") not in faster


def test_equal_modes_show_no_difference_and_that_is_printed() -> None:
    said = first_screen(tables(raft_p99_ms=2.0, raft_wrong_s=4.0))
    assert "raft is better in 0 and independent in 0" in said
    assert "No difference could be shown" in said
    assert "Registrations must be acknowledged fast either" in said
    assert "Raft is better" not in said


def test_a_noisy_difference_is_not_printed_as_one() -> None:
    marts = tables(raft_p99_ms=2.0)
    odd = [
        replace(each, value_ns=each.value_ns * 9) if each.run == "raft/compare/3" else each
        for each in marts.histogram
    ]
    found = scenario(replace(marts, histogram=odd))
    each = found.comparisons["latency.p99.register"]
    assert each.raft is not None
    assert each.independent is not None
    assert each.raft.value > 2 * each.independent.value
    assert each.verdict == "none"


@pytest.mark.parametrize("pairs", [1, 3])
def test_too_few_pairs_give_values_but_no_difference(pairs: int) -> None:
    said = first_screen(tables(pairs=pairs))
    assert "Too few pairs" in said
    assert "9.0" in said
    assert "Registrations must be acknowledged fast cannot be told" in said
    assert "+7" not in said


def test_runs_of_one_mode_only_are_shown_without_a_comparison() -> None:
    marts = tables(pairs=4)
    alone = [each for each in marts.runs if "raft" in each.run]
    found = scenario(replace(marts, runs=alone))
    assert found.pairs == []
    each = found.comparisons["latency.p99.register"]
    assert (each.independent, each.difference, each.verdict) == (None, None, "unpaired")
    assert "not measured" in render.first_screen(marts, [found])


def test_without_a_usable_run_the_page_says_so() -> None:
    broken = Run(run="raft/compare/9", folder=Path("r"), manifest=None, left_out="no manifest.json")
    markup = html(Marts(runs=[broken]))
    assert "No run could be used" in markup
    assert "no manifest.json" in markup


def test_a_run_that_is_left_out_is_in_no_figure_and_is_named() -> None:
    void = Run(
        run="raft/compare/6",
        folder=Path("r"),
        manifest=manifest("raft", 6),
        left_out="the harness voided it: slow disk",
    )
    marts = tables(left_out=[void])
    assert len(scenario(marts).runs) == 10
    assert "1 run of 11 left out of all figures" in first_screen(marts)
    assert "slow disk" in html(marts)


def test_a_busy_generator_flags_its_runs() -> None:
    assert flagged_generators(tables()) == {}
    marts = tables(generator_cores=0.72)
    assert len(flagged_generators(marts)) == 10
    assert "In 10 runs the load generator used more than 60% of a core (up to 72%)" in first_screen(marts)


def test_damaged_lines_are_printed() -> None:
    assert "1,234 lines in 1 file, 1 of them damaged" in text(html(tables()))


def test_a_mode_that_never_failed_counts_as_zero_and_not_as_missing() -> None:
    marts = tables()
    only_raft = [outage for outage in marts.outages if outage.run.startswith("raft")]
    found = scenario(replace(marts, outages=only_raft))
    each = found.comparisons["recovery.kill_all.route_wire.struck"]
    assert each.independent is not None
    assert each.independent.value == 0
    assert each.verdict == "independent"


def test_where_more_is_better_the_mode_with_less_is_not_the_better_one() -> None:
    marts = tables()
    slow = [
        replace(row, n=row.n // 2) if row.run.startswith("raft") and row.outcome == "ok" else row
        for row in marts.outcomes
    ]
    each = scenario(replace(marts, outcomes=slow)).comparisons["throughput.send"]
    assert each.independent is not None
    assert each.raft is not None
    assert each.independent.value == pytest.approx(100 / 14, rel=1e-4)
    assert each.raft.value == pytest.approx(50 / 14, rel=1e-4)
    assert each.verdict == "independent"


def test_a_change_that_never_became_visible_is_endless() -> None:
    marts = tables()
    hidden = [replace(row, visible_ns=None) if row.run.startswith("raft") else row for row in marts.visible]
    changed = replace(marts, visible=hidden)
    each = scenario(changed).comparisons["visible.p99"]
    assert each.verdict == "independent"
    markup = html(changed)
    assert "never seen" in first_screen(changed)
    assert "In raft mode 5 of 5 changes were not seen on all nameservers" in text(markup)


@pytest.mark.parametrize(
    ("hidden", "expected"),
    [
        pytest.param(
            {"independent": 2},
            "not shown at most 0 ms, no lower bound: in 2 of 5 pairs some changes were never seen with "
            "independent no difference",
            id="one side in some pairs",
        ),
        pytest.param(
            {"independent": 1, "raft": 2},
            "not shown no bounds: in 1 of 5 pairs some changes were never seen with independent, in 2 of 5 "
            "pairs some changes were never seen with raft no difference",
            id="both sides in some pairs",
        ),
        pytest.param(
            {"raft": 5},
            "without end no bounds: in 5 of 5 pairs some changes were never seen with raft independent",
            id="one side in every pair",
        ),
    ],
)
def test_an_interval_that_lacks_an_end_says_which_and_why(hidden: dict[str, int], expected: str) -> None:
    marts = tables()

    def seen(row: Visible) -> bool:
        mode, _, pair = row.run.partition("/compare/")
        return int(pair) > hidden.get(mode, 0)

    changed = replace(
        marts, visible=[row if seen(row) else replace(row, visible_ns=None) for row in marts.visible]
    )
    markup = html(changed)
    assert expected in text(markup)
    for sign in ("∞", "inf ", "-inf", "nan"):
        assert sign not in text(markup)


def test_a_sentence_about_an_interval_without_an_end_keeps_the_end_that_there_is() -> None:
    found = Estimate(value=7.0, low=3.0, high=math.inf, runs=5, endless=(0, 1))
    side = Estimate(value=9.0, low=8.0, high=9.5, runs=5)
    each = Comparison(
        key="visible.p99",
        label="visible",
        unit="ms",
        lower_is_better=True,
        independent=side,
        raft=replace(side, value=16.0, high=math.inf),
        difference=found,
        per_run={},
    )
    why = "at least 3.00 ms, no upper bound: in 1 of 5 pairs some changes were never seen with raft"
    assert text(sentence(each, name="visible")).endswith(
        f"Raft: 7.00 ms longer (95 % interval: {why}, 5 pairs)."
    )
    assert in_short(each).endswith(f"; raft longer: {why}")
    assert "8.00 ms to never seen" in text(with_interval(each.raft, "ms"))
    endless = Estimate(value=math.inf, low=-math.inf, high=math.inf, runs=5, endless=(0, 2))
    assert text(with_interval(endless, "ms")) == "never seen no interval: without end in 2 of 5 runs "


def test_pairs_need_both_modes_and_the_same_result_folder() -> None:
    def named(prefix: str, mode: str, pair: int) -> Run:
        return Run(run=f"{prefix}{mode}/compare/{pair}", folder=Path("r"), manifest=manifest(mode, pair))

    runs = [
        named("1:", "raft", 1),
        named("2:", "independent", 1),
        named("1:", "independent", 2),
        named("1:", "raft", 2),
    ]
    assert pairs_of(runs) == [("1:independent/compare/2", "1:raft/compare/2")]


def test_steady_time_leaves_out_faults_and_their_settling() -> None:
    marts = tables(pairs=1)
    assert steady_s(marts.runs[0], marts.windows) == pytest.approx(14.0)
    assert steady_s(marts.runs[0], []) == pytest.approx(20.0)


def test_every_rule_is_decided_by_a_headline() -> None:
    assert {rule.key for rule in RULES} <= set(HEADLINES)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, "0"),
        (3.0, "3.00"),
        (3.14159, "3.14"),
        (31.4159, "31.4"),
        (314.159, "314"),
        (31415.9, "31,416"),
        (0.00314159, "0.00314"),
        (-2.5, "−2.50"),
        (9.999, "10.0"),
        (float("inf"), "∞"),
    ],
)
def test_numbers_have_three_significant_digits(value: float, expected: str) -> None:
    assert number(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, "0 ms"),
        (0.34, "340 µs"),
        (2.1, "2.10 ms"),
        (999.0, "999 ms"),
        (3020.0, "3.02 s"),
        (-1500.0, "−1.50 s"),
    ],
)
def test_times_are_told_in_the_unit_that_reads_best(value: float, expected: str) -> None:
    assert quantity(value, "ms") == expected
