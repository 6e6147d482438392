"""The page of an invented comparison says what the raw events show, and is readable at any width."""

import csv
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec
import pytest
from pyspark.sql import SparkSession

from routekeeper.bench.__main__ import main
from routekeeper.bench.plan import load_plan
from routekeeper.bench.report import answers, measures, words
from routekeeper.bench.report.beside import with_facts
from routekeeper.bench.report.gold import Gold, Reason
from routekeeper.bench.report.job import write_conditions, write_lines, write_values
from routekeeper.bench.report.measures import Place, Values
from routekeeper.bench.report.page import page
from routekeeper.bench.report.silver import Source
from tests.bench import recompute as recomputation
from tests.bench.report.comparison import ARMS, LINES, Compared
from tests.bench.report.test_planted import only

pytestmark = [pytest.mark.spark, pytest.mark.computes]


@pytest.fixture(scope="module")
def root(compared: Compared) -> Path:
    return compared.root


@pytest.fixture(scope="module")
def gold(compared: Compared) -> Gold:
    return compared.gold


@pytest.fixture(scope="module")
def values(gold: Gold) -> Values:
    return measures.values(gold)


def rows_of(root: Path, scenario: str, arm: str, block: int, kind: str) -> list[dict[str, Any]]:
    folder = root / f"runs/series=equal/scenario={scenario}/block={block}/arm={arm}"
    return [json.loads(line) for path in folder.glob(f"{kind}-*") for line in path.read_text().splitlines()]


def failed_sends_by_hand(root: Path, arm: str, block: int) -> float:
    """Return the number of failed sends without retries, counted from raw events.

    In these invented events, a send fails only because of the broker's death.
    """
    ops = rows_of(root, "broker-dies", arm, block, "ops")
    return len([op for op in ops if op["op"] == "send_once" and op["outcome"] != "ok"])


def left_by_clients_by_hand(root: Path, arm: str, block: int) -> float:
    """Return the time in s from a broker's death until the last client stopped listing the broker.

    This function computes the time from raw events, to check the report's own figure.
    """
    (fault,) = rows_of(root, "broker-dies", arm, block, "faults")
    gone: dict[int, int] = {}
    for view in rows_of(root, "broker-dies", arm, block, "views"):
        if view["observer"] == "client" and view.get("brokers") == [0, 2]:
            gone.setdefault(view["index"], view["seen_ns"])
    return (max(gone.values()) - int(fault["begin_ns"])) / 1e9


def slowest_lookup_by_hand(root: Path, arm: str, block: int) -> float:
    (fault,) = rows_of(root, "leader-fails", arm, block, "faults")
    after = [
        op["done_ns"] - op["due_ns"]
        for op in rows_of(root, "leader-fails", arm, block, "ops")
        if op["op"] == "lookup" and fault["begin_ns"] < op["done_ns"] and op["due_ns"] < fault["until_ns"]
    ]
    return float(max(after)) / 1e9


def cpu_by_hand(root: Path, arm: str, block: int) -> float:
    """Return the CPU seconds per minute of all three servers, from their samples at 0 s and at 20 s."""
    used = [row for row in rows_of(root, "quiet", arm, block, "processes") if row["role"] == "nameserver"]
    # The samples are 20 s apart, which is a third of a minute. CPU time is 0 in the first sample, so the last
    # sample is the CPU time of these 20 s.
    return sum(float(row["cpu_ns"]) for row in used) / 1e9 * 3


@pytest.mark.parametrize(
    ("scenario", "case", "measure", "by_hand"),
    [
        ("broker-dies", "kill", "failed_sends_once", failed_sends_by_hand),
        ("broker-dies", "kill", "left_by_clients_s", left_by_clients_by_hand),
        ("leader-fails", "kill", "slowest_lookup_s", slowest_lookup_by_hand),
        ("quiet", None, "cpu_s_per_min", cpu_by_hand),
    ],
)
def test_figures_are_those_of_the_raw_rows(
    root: Path,
    values: Values,
    scenario: str,
    case: str | None,
    measure: str,
    by_hand: Callable[[Path, str, int], float],
) -> None:
    place = Place("equal", scenario, case, measure)
    (row,) = answers.rows({place: values[place]})
    for arm in ARMS:
        expected = [by_hand(root, arm, block) for block in range(1, 7)]
        found = [
            value for (_, block), value in sorted(values[place][arm].items(), key=lambda item: item[0][1])
        ]
        assert found == pytest.approx(expected)
        assert row.arms[arm].middle == pytest.approx(median(expected))


CONTRADICT: Final = (
    "the time in which nameservers list different brokers in a partition "
    "(one or more of them gave no answer for at least 5.08 s with raft)"
)
IDLE: Final = "processor time with 300 idle brokers (each system's own timers)"
HEADLINES: Final = {
    *("left_by_clients_s", "visible_clients_ms_p50", "network_kib_per_s", "newcomer_right_s", "disagree_s"),
    *("announce_again_s", "cpu_s_per_min"),
}
"""Headline measures of the profile ``full`` (the plan of a full comparison)."""


def test_first_screen_is_that_of_an_independent_recomputation(
    root: Path, values: Values, spark: SparkSession, tmp_path: Path
) -> None:
    """Compare the report's figures with those of recompute.py, which imports no code of the report."""
    assert {line.measure for line in load_plan("full").lines} == HEADLINES
    write_values(spark, str(tmp_path), values, {})
    figures = tmp_path / "marts" / "values.csv"

    def recompute() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", recomputation.__file__, str(root), str(figures)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = recompute()
    assert (done.returncode, done.stderr) == (0, ""), done.stdout[-2000:]
    found = recomputation.figures(root)
    said = {(place.scenario, place.case or "", place.measure) for place in values}
    both = {key[:3] for key in found} & said
    assert len(both) >= 12
    assert {measure for _, _, measure in both} >= {*HEADLINES, "unanswering_s"}
    assert f"{len(both)} figures compared, 0 differ" in done.stdout
    with figures.open(newline="") as file:
        rows = list(csv.DictReader(file))
    row = next(row for row in rows if (row["measure"], row["arm"]) == ("announce_again_s", "raft"))
    place = f"kill announce_again_s raft {row['block']}"

    def write(rows: list[dict[str, str]]) -> None:
        with figures.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(row))
            writer.writeheader()
            writer.writerows(rows)

    write([each for each in rows if each is not row])
    incomplete = recompute()
    assert incomplete.returncode == 1
    assert f"{place}: the report has no value" in incomplete.stdout
    row["value"] = "9.0"
    write(rows)
    wrong = recompute()
    assert wrong.returncode == 1
    assert f"{place}: the report says 9, the events " in wrong.stdout


def test_recovery_from_an_election_is_how_long_the_first_request_had_to_wait(values: Values) -> None:
    """Check that the time to recover from an election equals the wait of the slowest look-up.

    A look-up that is due without a leader waits until the next leader is elected.
    """
    again = values[Place("equal", "leader-fails", "kill", "right_again_s")]
    waited = values[Place("equal", "leader-fails", "kill", "slowest_lookup_s")]
    for arm in ("raft", "zookeeper"):
        for block, recovered in again[arm].items():
            assert recovered > 0.5
            assert recovered == pytest.approx(waited[arm][block], abs=0.05)
    assert set(again["independent"].values()) == {0.0}
    (row,) = answers.rows({Place("equal", "leader-fails", "kill", "right_again_s"): again})
    pair = row.pair("raft", "independent")
    assert pair is not None
    assert pair.leaning == "higher"


def test_claims_are_answered_by_what_was_planted(gold: Gold, values: Values) -> None:
    table = {row.place: row for row in answers.rows(values)}
    lines = with_facts(answers.primaries(LINES, values), gold.sources, values)
    found = {claim.letter: answers.answer(claim, table, lines) for claim in answers.CLAIMS}
    assert words.answered(found["a2"]) == (
        "At registering brokers after the leader was killed, raft slower than independent in all 6 rounds."
    )
    assert words.answered(found["b"]).startswith(f"At {IDLE}, ZooKeeper more than")
    assert words.answered(found["c"]) == words.say("by-design")
    assert words.answered(found["d"]) == (
        f"{words.say('by-design')} At dropping a broker that is killed, "
        "ZooKeeper faster than independent in all 6 rounds."
    )
    assert words.sentences(lines) == [
        "Compared with ZooKeeper, independent was better in all 6 rounds at "
        f"{IDLE}; "
        "worse in all 6 rounds at dropping a broker that is killed.",
        f"Compared with independent, raft was better in all 6 rounds at {CONTRADICT}; "
        "worse in all 6 rounds at registering brokers after the leader was killed.",
        "No headline measure compares raft with ZooKeeper.",
    ]
    assert words.chosen(lines, "zookeeper") == [
        "dropping a broker that is killed counts most (ZooKeeper faster than independent in all 6 rounds)"
    ]
    assert len(words.chosen(lines, "independent")) == 2


def test_advice_is_read_from_the_files_beside_the_page(
    spark: SparkSession, gold: Gold, values: Values, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_values(spark, str(tmp_path), values, {})
    lines = with_facts(answers.primaries(LINES, values), gold.sources, values)
    write_lines(spark, str(tmp_path), lines)
    write_conditions(spark, str(tmp_path), gold)
    assert main(["advise", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert f"{CONTRADICT}: raft shorter than independent in all 6 rounds\n" in said
    assert "\n    CPU of all servers: independent " in said
    assert main(["advise", str(tmp_path / "marts")]) == 2
    assert "values.parquet cannot be read" in capsys.readouterr().err


def test_series_and_blocks_are_not_mixed(values: Values) -> None:
    other: Values = {}
    for place, arms in values.items():
        same = Place("equal-undivided", place.scenario, place.case, place.measure)
        other[same] = {arm: {("x", 1): 3 * max(blocks.values())} for arm, blocks in arms.items()}
    both = {**values, **other}
    line = answers.primaries([], both)
    assert line == []
    taken = {
        (each.place.measure, each.arm): each.split
        for each in answers.taken_apart(both, {"equal": 10.0, "equal-undivided": 1.0})
        if each.place.scenario == "broker-dies"
    }
    apart = taken["left_by_clients_s", "independent"]
    assert apart is not None
    assert apart.fixed is not None
    assert apart.scaled is not None
    assert apart.low == pytest.approx(apart.fixed + apart.scaled)


def test_arm_whose_server_died_by_itself_has_lost_the_scenario(gold: Gold) -> None:
    def lost(source: Source) -> Source:
        if (source.scenario, source.arm, source.block) != ("leader-fails", "raft", 3):
            return source
        assert source.manifest is not None
        return replace(source, manifest=msgspec.structs.replace(source.manifest, lost="nameserver-1 died"))

    changed = replace(gold, sources=[lost(source) for source in gold.sources])
    found = measures.values(changed)
    at = "equal", "leader-fails"
    of_raft = [arms["raft"] for place, arms in found.items() if (place.series, place.scenario) == at]
    assert len(of_raft) > 5
    for blocks in of_raft:
        assert [block for (_, block), value in blocks.items() if math.isinf(value)] == [3]
    assert "raft lost" in page(changed, found)


def test_design_that_did_not_run_is_called_not_measured_and_hides_no_result(gold: Gold) -> None:
    line = next(each for each in LINES if each.measure == "announce_again_s")
    line = msgspec.structs.replace(line, arms=("raft", "zookeeper"))
    without = only(gold, lambda source: source.arm != "independent")
    sources = [
        replace(source, manifest=msgspec.structs.replace(source.manifest, lines=[line]))
        for source in without.sources
        if source.manifest is not None
    ]
    without = replace(without, sources=sources)
    whole = re.sub(r"\s+", " ", page(without, measures.values(without)))
    timers = whole[whole.index('id="timers"') : whole.index("<summary>Timers as used")]
    assert "not disturbed" not in timers
    assert timers.count("<td>not measured</td>") == timers.count('<th scope="row">') > 0
    claim = whole[whole.index('id="claim-a2"') : whole.index('id="claim-b"')]
    assert "At registering brokers after the leader was killed, raft faster than ZooKeeper in all" in claim
    assert "independent: not measured" in claim
    assert "0 rounds of independent, 6 rounds of raft and 6 rounds of ZooKeeper" in whole


class Reader(HTMLParser):
    """A parser that collects links, ids, and elements that may load other files."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag in ("script", "link", "img", "iframe", "object") or "src" in found:
            self.loads.append(tag)
        if found.get("id"):
            self.ids.append(str(found["id"]))
        if tag == "a" and str(found.get("href", "")).startswith("#"):
            self.links.append(str(found["href"])[1:])


def test_page_is_small_and_self_contained_and_its_links_lead_somewhere(gold: Gold, values: Values) -> None:
    html = page(gold, values)
    assert len(html.encode()) < 2_000_000
    reader = Reader()
    reader.feed(html)
    assert reader.loads == []
    assert "url(" not in html
    assert len(reader.ids) == len(set(reader.ids))
    assert set(reader.links) <= set(reader.ids)


def test_page_says_which_runs_had_their_links_cut_by_the_kernel(gold: Gold, values: Values) -> None:
    assert "kernel" not in page(gold, values)

    def cut(source: Source) -> Source:
        assert source.manifest is not None
        return replace(source, manifest=msgspec.structs.replace(source.manifest, links="kernel"))

    used = sum(source.left_out is None for source in gold.sources)
    html = page(replace(gold, sources=[cut(source) for source in gold.sources]), values)
    assert (
        f"In {used} of {used} runs the kernel cut the links between network namespaces. Packets vanish there"
        in html
    )
    assert "loopback" not in html


def test_what_runs_in_which_language_stands_beside_processor_time_unfolded(
    gold: Gold, values: Values
) -> None:
    """Check that the page tells which programs run in a JVM, beside the figures of CPU time.

    RocketMQ's own nameserver also runs in a JVM, and it uses about as much CPU time as ZooKeeper. So the
    difference between ZooKeeper and programs in Python does not come from ZooKeeper's design.
    """
    html = page(gold, values)
    claim = html[html.index("A light metadata server is enough") : html.index("A nameserver has little code")]
    unfolded, _, _ = claim.partition("<details")
    assert "ZooKeeper and RocketMQ&#39;s own nameserver run in a Java virtual machine" in unfolded


def test_page_escapes_what_servers_said(gold: Gold, values: Values) -> None:
    left_out = replace(gold.sources[0], left_out="<script>alert(1)</script>")
    said = Reason(
        run=gold.sources[1].run,
        phase="fault",
        op="lookup",
        outcome="error",
        code=None,
        remark="<script>alert(2)</script>",
        n=10**9,
    )
    html = page(replace(gold, sources=[left_out, *gold.sources[1:]], reasons=[said]), values)
    assert "<script" not in html
    for number in (1, 2):
        assert f"&lt;script&gt;alert({number})&lt;/script&gt;" in html


def test_rows_without_a_difference_are_folded_and_have_three_columns(gold: Gold, values: Values) -> None:
    html = page(gold, values)
    section = html[html.index('id="scenario-leader-fails"') : html.index('id="scenario-partition"')]
    folded = section[section.index("<summary>Figures without a difference") :]
    row = re.search(r'<th scope="row">Failed sends, with two retries</th>(.*?)</tr>', folded)
    assert row is not None
    assert row[1].count("<td>0</td>") == 3
