"""The report does not repeat the wrong statements of an earlier published page.

Each of these statements has a test with planted events.
"""

from __future__ import annotations

import html
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from routekeeper.bench.report import answers, measures, words
from routekeeper.bench.report.advice import NoReport, advice
from routekeeper.bench.report.blocks import Line, differences, estimate, judge
from routekeeper.bench.report.conditions import conditions
from routekeeper.bench.report.gold import Cost, Gold, LateBucket, LinkBytes, Recovery
from routekeeper.bench.report.job import write_conditions, write_lines, write_values
from routekeeper.bench.report.measures import Place
from routekeeper.bench.report.page import page
from routekeeper.bench.report.silver import Source
from routekeeper.bench.runfolder import Line as NamedLine
from tests.bench.report.test_misled import a_line, a_source, gold_of, values_of

SECOND: Final = 10**9


def primary(first: list[float], second: list[float]) -> answers.Primary:
    found = differences(dict(enumerate(first)), dict(enumerate(second)))
    told = estimate(found)
    verdict = judge(
        told, Line(measure="right_again_s", arms=("raft", "independent"), series="equal", margin=0.25)
    )
    pair = answers.Pair(
        arms=("raft", "independent"), found=found, estimate=told, material=0.2, verdict=verdict
    )
    named = NamedLine(
        name="x",
        scenario="leader-fails",
        measure="right_again_s",
        arms=("raft", "independent"),
        unit="s",
        margin=0.25,
    )
    return answers.Primary(named=named, pair=pair)


@pytest.mark.parametrize(
    ("raft", "independent", "said"),
    [
        ([0.0] * 6, [0.0] * 6, "no difference in any of 6 rounds"),
        (
            [0.0, 1, 0, 0, 0, 0],
            [0.0, 0, 1, 0, 0, 0],
            "mixed: raft faster than independent in 1, slower in 1, alike in 4 of 6 rounds",
        ),
        (
            [0.0, 1, 0, 0, 0, 0],
            [0.0] * 6,
            "mixed: raft slower than independent in 1, alike in 5 of 6 rounds",
        ),
        ([math.inf] * 6, [math.inf] * 6, "never in either, in any of 6 rounds"),
        (
            [math.inf] * 3 + [1.0] * 3,
            [1.0] * 3 + [math.inf] * 3,
            "mixed: raft faster than independent in 3, slower in 3 of 6 rounds",
        ),
        (
            [math.inf, 1.0, 2.0, 1.0, 1.0, 1.0],
            [math.inf, 2.0, 1.0, 1.0, 1.0, 1.0],
            "mixed: raft faster than independent in 1, slower in 1, alike in 3, never in either in 1 "
            "of 6 rounds",
        ),
        (
            [math.inf, 1.0, 1.0, 1.0, 1.0, 1.0],
            [math.inf, 1.0, 1.0, 1.0, 1.0, 1.0],
            "mixed: raft and independent alike in 5, never in either in 1 of 6 rounds",
        ),
    ],
)
def test_undecided_line_names_only_what_there_was(
    raft: list[float], independent: list[float], said: str
) -> None:
    assert words.verdict(primary(raft, independent)) == said


@pytest.mark.parametrize(
    ("raft", "independent", "said"),
    [
        ([math.inf] * 6, [math.inf] * 6, "never in either"),
        (
            [math.inf] * 3 + [1.0] * 3,
            [1.0] * 3 + [math.inf] * 3,
            f"median unknown, {words.MINUS} without end to without end",
        ),
    ],
)
def test_interval_says_never_in_either_only_if_no_round_tells_the_designs_apart(
    tmp_path: Path, raft: list[float], independent: list[float], said: str
) -> None:
    gold = gold_of(tmp_path, {"independent": 100, "raft": 100})
    line = a_line("leader-fails", "kill", "right_again_s", 0.25)
    sources = [
        replace(source, manifest=msgspec.structs.replace(source.manifest, lines=[line]))
        for source in gold.sources
        if source.manifest is not None
    ]
    place = Place("equal", "leader-fails", "kill", "right_again_s")
    values = values_of(place, independent=independent, raft=raft)
    whole = page(replace(gold, sources=sources), values)
    assert f"<td>{said}</td>" in whole
    (row,) = answers.rows(values)
    pair = row.pair("raft", "independent")
    assert pair is not None
    assert words.difference(pair, "s").startswith(f"independent: {said.partition(',')[0]}")


@pytest.mark.parametrize(
    ("endless", "said"),
    [(4, "raft more than independent in all 6 rounds, never in 4 of them"), (6, "never in any of them")],
)
def test_never_is_said_of_as_many_blocks_as_it_was_so(endless: int, said: str) -> None:
    raft = [math.inf] * endless + [5.0] * (6 - endless)
    place = Place("equal", "leader-fails", "kill", "right_again_s")
    (row,) = answers.rows(values_of(place, independent=[1.0] * 6, raft=raft))
    pair = row.pair("raft", "independent")
    assert pair is not None
    assert words.leaning(pair, "s").endswith(said)


def test_range_that_begins_below_what_would_be_noticed_says_so() -> None:
    place = Place("equal", "leader-fails", "kill", "right_again_s")
    values = values_of(place, independent=[0.0] * 6, raft=[0.0, 0.0, 0.0, 0.0, 0.0, 3.0])
    rows = answers.rows(values, {place: {"independent": 0.25, "raft": 0.25}})
    assert words.range_of(rows[0].arms["raft"], "s") == "below 250 ms to 3 s"


@pytest.mark.parametrize(
    ("count", "said"), [(0.5, "0.5"), (1.5, "1.5"), (30.5, "30.5"), (7.0, "7"), (1234.0, "1,234")]
)
def test_half_a_message_has_one_digit(count: float, said: str) -> None:
    assert words.quantity(count, "count") == said


def text_of(gold: Gold, section: str, end: str) -> str:
    whole = page(gold, measures.values(gold))
    part = whole[whole.index(f'id="{section}"') : whole.index(f'id="{end}"')]
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", part)))


def test_recovery_without_end_is_not_called_undisturbed(tmp_path: Path) -> None:
    gold = gold_of(tmp_path, {"independent": 100, "raft": 100, "zookeeper": 100})
    endless = [
        replace(row, recovered_ns=None, failed=1) if row.run.endswith("/raft") else row
        for row in gold.recoveries
    ]
    gold = replace(gold, recoveries=endless)
    values = measures.values(gold)
    place = Place("equal", "leader-fails", "kill", "right_again_s")
    assert all(map(math.isinf, values[place]["raft"].values()))
    said = text_of(gold, "timers", "trust")
    assert "Route look-ups right again not disturbed never not disturbed" in said


def test_bytes_to_brokers_are_no_cost_of_nameservers(tmp_path: Path) -> None:
    source = quiet_source(tmp_path)
    links = [
        LinkBytes(run=source.run, dialler=dialler, acceptor=acceptor, covered_ns=10 * SECOND, bytes=each)
        for dialler, acceptor, each in (
            ("side-a", "broker-0", 9_000_000),
            ("side-a", "nameserver-0", 10_240),
            ("nameserver-1", "nameserver-0", 20_480),
        )
    ]
    found = measures.values(Gold(sources=[source], links=links))
    (value,) = found[Place("equal", "quiet", None, "network_kib_per_s")]["raft"].values()
    assert value == pytest.approx(3.0)


def test_page_of_controls_is_not_told_to_compare_nothing(tmp_path: Path) -> None:
    gold = gold_of(tmp_path, {"independent": 100, "independent-again": 100, "apache": 100})
    whole = page(gold, measures.values(gold))
    assert "<h1>Controls of the comparison</h1>" in whole
    assert "Only one design ran" not in whole
    said = text_of(gold, "controls", "trust")
    assert "Apache's own and independent" in said
    assert "independent, again and independent" in said
    assert "none" in said
    assert "Always 0 in both" in said
    one = [source for source in gold.sources if source.block == 1]
    of_one = replace(gold, sources=one)
    assert "too few rounds to tell" in text_of(of_one, "controls", "trust")
    assert "none" not in text_of(of_one, "controls", "trust")


@pytest.mark.parametrize(
    ("apache", "independent", "found"),
    [
        ([0.0] * 10, [0.0] * 10, "zero"),
        ([0.1] * 10, [0.0] * 9 + [0.3], "equal"),
        ([0.1] * 9, [0.2] * 9, "open"),
        ([0.1] * 10, [0.2] * 9 + [0.5], "open"),
        ([0.0] * 10, [0.0] * 9 + [math.inf], "open"),
        ([math.inf] * 10, [math.inf] * 10, "open"),
        ([2.0] * 10, [0.2] * 10, "differs"),
    ],
)
def test_control_counts_as_equal_only_if_something_was_compared_in_ten_rounds(
    apache: list[float], independent: list[float], found: str
) -> None:
    place = Place("equal", "leader-fails", "kill", "right_again_s")
    (row,) = answers.rows(values_of(place, apache=apache, independent=independent))
    pair = row.pair("apache", "independent")
    assert pair is not None
    assert row.control(pair) == found


def beside(tmp_path: Path, again_s: dict[str, float]) -> Gold:
    """Return results of six rounds, in which each arm (design) has its own recovery time.

    Args:
        again_s: Recovery time in s of each arm.
    """
    gold = gold_of(tmp_path, {"independent": 100, "independent-real": 100, "raft": 100, "raft-real": 100})
    return replace(
        gold,
        recoveries=[
            replace(row, recovered_ns=round(again_s[row.run.rpartition("/")[2]] * SECOND))
            for row in gold.recoveries
        ],
    )


def test_page_of_rocketmqs_own_brokers_tells_each_pairs_differences_and_judges_nothing(
    tmp_path: Path,
) -> None:
    again_s = {"independent": 2.0, "independent-real": 5.0, "raft": 3.0, "raft-real": 3.1}
    gold = beside(tmp_path, again_s)
    whole = page(gold, measures.values(gold))
    assert "<h1>Do our brokers and clients behave like RocketMQ's own?</h1>" in whole.replace("&#39;", "'")
    for place in ("claims", "choose", "lines", "controls"):
        assert f'id="{place}"' not in whole, "there is no design to choose"
    said = text_of(gold, "scenario-leader-fails", "timers")
    assert (
        "independent independent, RocketMQ's own raft raft, RocketMQ's own RocketMQ's own minus ours" in said
    )
    row = said[said.index("Route look-ups right again") :]
    assert row.startswith("Route look-ups right again 2 s 5 s 3 s 3.10 s independent: +3 s raft: +100 ms"), (
        row[:300]
    )
    shown = said[: said.index("Figures without a difference")]
    assert "Look-ups that list an unreachable broker" not in shown
    assert "raft minus independent" not in said, "that is what another comparison is for"
    assert "independent minus raft" not in said
    one = replace(gold, sources=[source for source in gold.sources if source.block == 1])
    assert "independent: +3 s" in text_of(one, "scenario-leader-fails", "timers")
    assert "fewer than" not in text_of(one, "scenario-leader-fails", "timers")


def test_difference_is_told_with_its_range() -> None:
    place = Place("equal", "leader-fails", "kill", "right_again_s")

    def told(ours: list[float], real: list[float]) -> str:
        (row,) = answers.rows(values_of(place, **{"raft": ours, "raft-real": real}))
        pair = row.pair("raft-real", "raft")
        assert pair is not None
        return words.difference(pair, "s")

    assert told([1.0, 2.0, 3.0], [1.5, 4.0, 2.0]) == f"raft: +500 ms ({words.MINUS}1 s to +2 s)"
    assert told([1.0, 2.0], [1.0, 2.0]) == "raft: 0 s"
    assert told([1.0], [math.inf]) == "raft: without end"
    assert told([math.inf], [math.inf]) == "raft: never in either"


def quiet_source(root: Path) -> Source:
    return replace(a_source(root, "raft", 1), scenario="quiet", run="b/equal/quiet/1/raft")


def test_servers_are_not_told_apart_where_none_was_struck(tmp_path: Path) -> None:
    gold = gold_of(tmp_path, {"independent": 100, "raft": 100, "zookeeper": 100})

    def of_new_clients(row: Recovery, scope: str) -> Recovery:
        return replace(row, op="newcomer", scope=scope)

    both = [of_new_clients(row, scope) for row in gold.recoveries for scope in ("all", "others")]
    place = Place("equal", "leader-fails", "kill", "newcomer_others_right_s")
    assert place in measures.values(replace(gold, recoveries=both))
    of_broker = [replace(fault, targets=["broker-1"], role="broker") for fault in gold.faults]
    assert place not in measures.values(replace(gold, recoveries=both, faults=of_broker))


def a_cost(run: str, **fields: Any) -> Cost:
    usual: dict[str, Any] = {
        "rss_bytes": 0,
        "pids": 1,
        "processes": 1,
        "busiest": 0.1,
        "died": 0,
    }
    return Cost(run=run, covered_ns=10 * SECOND, **{**usual, **fields})


A_LINE: Final = NamedLine(
    name="Routes are right again",
    scenario="leader-fails",
    case="kill",
    measure="right_again_s",
    arms=("raft", "independent"),
    unit="s",
    margin=0.25,
)


def shared_with(gold: Gold, *, machine_s: float, late_ms: int, runs: int) -> Gold:
    """Return the results with disturbed runs, in which other programs use CPU time and delay operations.

    The first `runs` runs are disturbed. In each run, the machine has 20 core-seconds, of which the run's own
    processes use 5.

    Args:
        machine_s: CPU seconds of the whole machine in a disturbed run, including the run's own 5.
        late_ms: Delay in ms of one in ten operations in a disturbed run.
        runs: Number of disturbed runs.
    """
    costs, lateness = [], []
    for number, source in enumerate(gold.sources):
        disturbed = number < runs
        for role, used in (
            ("machine", machine_s if disturbed else 5.5),
            ("nameserver", 2.0),
            ("generator", 3.0),
        ):
            costs.append(a_cost(source.run, role=role, cpu_ns=round(used * SECOND)))
        for value_ns, n in ((400_000, 900), (late_ms * 10**6 if disturbed else 900_000, 100)):
            lateness.append(LateBucket(run=source.run, phase="quiet", value_ns=value_ns, n=n))
    return replace(gold, costs=costs, lateness=lateness)


@pytest.fixture
def raft_is_slower(tmp_path: Path) -> Gold:
    gold = gold_of(tmp_path, {"independent": 100, "raft": 100, "zookeeper": 100})
    sources = []
    for source in gold.sources:
        assert source.manifest is not None
        sources.append(replace(source, manifest=msgspec.structs.replace(source.manifest, lines=[A_LINE])))
    recoveries = [
        replace(row, recovered_ns=2 * SECOND) if row.run.endswith("/raft") else row for row in gold.recoveries
    ]
    return replace(gold, sources=sources, recoveries=recoveries)


CONCLUSIONS: Final = (
    "raft slower than independent in all 6 rounds",
    "raft was worse in all 6 rounds at",
    "Choose <strong>",
    "more than independent",
)


@pytest.mark.parametrize(
    ("machine_s", "late_ms", "runs"), [(16.0, 1, 4), (6.0, 1, 18), (6.0, 60, 4)], ids=["few", "none", "late"]
)
def test_runs_of_a_quiet_machine_are_judged(
    raft_is_slower: Gold, machine_s: float, late_ms: int, runs: int
) -> None:
    """Check that a few disturbed runs among eighteen do not prevent conclusions."""
    gold = shared_with(raft_is_slower, machine_s=machine_s, late_ms=late_ms, runs=runs)
    whole = page(gold, measures.values(gold))
    assert "The machine was busy" not in whole
    for said in CONCLUSIONS:
        assert said in whole, said


@pytest.mark.parametrize(
    ("machine_s", "late_ms", "said"),
    [
        (16.0, 1, "used 1.1 cores in the worst run and 1.1 in the median one"),
        (6.0, 60, "one operation in 20 60 ms or more after it was due in the worst run, 60 ms"),
    ],
    ids=["others", "late"],
)
def test_nothing_is_concluded_where_the_machine_was_busy(
    raft_is_slower: Gold, machine_s: float, late_ms: int, said: str
) -> None:
    gold = shared_with(raft_is_slower, machine_s=machine_s, late_ms=late_ms, runs=10)
    whole = re.sub(r"\s+", " ", page(gold, measures.values(gold)))
    top = whole[: whole.index('id="claims"')]
    assert "The machine was busy: " in top
    assert said in top
    assert "Do not publish them" in top
    for conclusion in CONCLUSIONS:
        assert conclusion not in whole, conclusion
    assert whole.count("The machine was busy: no conclusion.") == len(answers.CLAIMS)
    assert "unclear: the machine was busy" in whole
    assert "Route look-ups right again" in whole, "figures are shown all the same"


def filled_by(gold: Gold, arm: str, runs: int) -> Gold:
    """Return the results with runs of one arm that use 19 of the machine's 20 core-seconds.

    Args:
        arm: Arm (design) whose servers, load and harness use the CPU.
        runs: Number of rounds, from the first round on, in which the arm's run uses so much CPU.
    """
    costs = []
    for source in gold.sources:
        full = source.arm == arm and source.block <= runs
        for role, used in (("machine", 19.0 if full else 9.0), ("nameserver", 15.9 if full else 5.9)):
            costs.append(a_cost(source.run, role=role, cpu_ns=round(used * SECOND)))
        costs.append(a_cost(source.run, role="generator", cpu_ns=3 * SECOND))
    return replace(gold, costs=costs)


def zookeeper_is_slower(gold: Gold) -> Gold:
    slower = [
        replace(row, recovered_ns=5 * SECOND) if row.run.endswith("/zookeeper") else row
        for row in gold.recoveries
    ]
    line = msgspec.structs.replace(A_LINE, arms=("zookeeper", "independent"))
    sources = [
        replace(source, manifest=msgspec.structs.replace(source.manifest, lines=[line]))
        for source in gold.sources
        if source.manifest is not None
    ]
    return replace(gold, recoveries=slower, sources=sources)


def test_nothing_is_concluded_about_an_arm_whose_own_runs_filled_the_machine(tmp_path: Path) -> None:
    """Check that the page draws no conclusion about ZooKeeper if two of its runs used up all CPU time.

    An earlier version of the page said that ZooKeeper's look-ups waited for an election, but they waited for
    a CPU core.
    """
    slow = zookeeper_is_slower(gold_of(tmp_path, {"independent": 100, "raft": 100, "zookeeper": 100}))
    for runs, judged_too in ((1, True), (2, False)):
        gold = filled_by(slow, "zookeeper", runs)
        whole = re.sub(r"\s+", " ", page(gold, measures.values(gold)))
        assert ("ZooKeeper filled the machine" in whole) is not judged_too
        assert ("not judged: machine full" in whole) is not judged_too
        assert ("ZooKeeper slower than independent in all 6 rounds" in whole) is judged_too
        assert ("ZooKeeper slower than independent in all 6 rounds)" in whole) is judged_too
        assert ("more than independent" in whole) is judged_too
        assert "The machine was busy" not in whole
        assert "<td>5 s" in whole, "the figure is shown all the same"
    assert "(2 of 6 runs)" in whole
    assert "unclear: runs of ZooKeeper filled the machine" in whole


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.computes
def test_advice_leaves_out_an_arm_whose_own_runs_filled_the_machine(tmp_path: Path, spark: Any) -> None:
    gold = gold_of(tmp_path, {"independent": 100, "raft": 100, "zookeeper": 100})
    place = Place("equal", "leader-fails", "kill", "announce_again_s")
    found = values_of(place, independent=[0.0] * 6, raft=[0.0] * 6, zookeeper=[5.0] * 6)
    line = a_line("leader-fails", "kill", "announce_again_s", 0.25, "zookeeper", "independent")
    write_lines(spark, str(tmp_path), answers.primaries([line], found))
    for runs, said in (
        (1, "ZooKeeper slower than independent in all 6 rounds"),
        (2, "unclear: runs of ZooKeeper filled the machine"),
    ):
        full = filled_by(gold, "zookeeper", runs)
        write_values(spark, str(tmp_path), found, {}, conditions(full).crowded)
        write_conditions(spark, str(tmp_path), full)
        ((_, chosen, _),) = advice(tmp_path)
        assert chosen == said


def test_what_an_arm_used_is_judged_on_a_full_machine_too(tmp_path: Path) -> None:
    place = Place("equal", "quiet", None, "cpu_s_per_min")
    values = values_of(place, independent=[5.0] * 6, raft=[5.0] * 6, zookeeper=[90.0] * 6)
    (row,) = answers.rows(values, crowded={("equal", "quiet", "zookeeper")})
    assert row.unjudged == ()
    assert row.differs


@pytest.mark.spark
@pytest.mark.computes
def test_advice_is_not_given_by_a_busy_machine(tmp_path: Path, raft_is_slower: Gold, spark: Any) -> None:
    place = Place("equal", "leader-fails", "kill", "announce_again_s")
    found = values_of(place, independent=[0.0] * 6, raft=[2.0] * 6)
    line = a_line("leader-fails", "kill", "announce_again_s", 0.25, "raft", "independent")
    write_lines(spark, str(tmp_path), answers.primaries([line], found))
    for runs, given in ((0, True), (10, False)):
        gold = shared_with(raft_is_slower, machine_s=16.0, late_ms=1, runs=runs)
        write_values(spark, str(tmp_path), found, {})
        write_conditions(spark, str(tmp_path), gold)
        if given:
            assert advice(tmp_path)
        else:
            with pytest.raises(NoReport, match="the machine was busy, so nothing follows: programs that"):
                advice(tmp_path)


def test_line_whose_arms_never_got_there_in_any_block_is_told_as_never(raft_is_slower: Gold) -> None:
    """Check that the page says "never in either" about two arms (designs) that both never recover.

    Both times are infinite, so they have no difference. An earlier version of the report failed here.
    """
    endless = [replace(row, recovered_ns=None) for row in raft_is_slower.recoveries]
    gold = replace(raft_is_slower, recoveries=endless)
    assert "never in either" in text_of(gold, "method", "scenario-leader-fails")


def test_number_and_unit_are_never_parted_by_the_end_of_a_line(raft_is_slower: Gold) -> None:
    whole = page(raft_is_slower, measures.values(raft_is_slower))
    units = r"(?:µs|ms|s|[KMG]iB|%)(?![\w-])"
    assert len(re.findall(rf"\d\N{{NO-BREAK SPACE}}{units}", whole)) > 20
    assert re.findall(rf"\d\s*?[ \n]{units}", whole) == []


def test_timers_are_named_above_each_table_and_real_ones_stand_beside_the_divided(
    tmp_path: Path, raft_is_slower: Gold
) -> None:
    """The page names the divided timers with which the runs were made, and beside them the undivided timers.

    An earlier version of the page named only the timers of a series of runs whose figures it did not show.
    """
    own = [
        replace(source, series="defaults", run=source.run.replace("/equal/", "/defaults/"))
        for source in raft_is_slower.sources
        if source.block == 1
    ]
    also = [
        replace(row, run=row.run.replace("/equal/", "/defaults/"))
        for row in raft_is_slower.recoveries
        if "/1/" in row.run
    ]
    faults = [
        replace(row, run=row.run.replace("/equal/", "/defaults/"))
        for row in raft_is_slower.faults
        if "/1/" in row.run
    ]
    gold = replace(
        raft_is_slower,
        sources=[*raft_is_slower.sources, *own],
        recoveries=[*raft_is_slower.recoveries, *also],
        faults=[*raft_is_slower.faults, *faults],
    )
    whole = html.unescape(page(gold, measures.values(gold)))
    tables = re.findall(r"<table[^>]*>(<caption>(.*?)</caption>)?(.*?)</table>", whole, re.DOTALL)
    assert len(tables) > 5
    charts = {evidence.words for claim in answers.CLAIMS for evidence in claim.evidence}
    for _, caption, body in tables:
        assert (
            caption.startswith(("Equal timers", "Default timers", "All runs", "Unit costs"))
            or caption in charts
        ), body[:200]
    of_defaults = whole[whole.index('id="series-defaults"') : whole.index('id="trust"')]
    # The text must be once in the heading and once above the table.
    assert of_defaults.count("Default timers of each system") == 2
    assert "Equal timers" not in of_defaults[: of_defaults.index("</section>")]
    assert (
        "2\N{NO-BREAK SPACE}s measured" in whole[whole.index('id="claim-a2"') : whole.index('id="claim-b"')]
    ), "real timers"


def test_first_screen_speaks_to_a_person_who_decides(raft_is_slower: Gold) -> None:
    """Terms of the method, for example "arm", must appear only in the section about the method."""
    for gold in (raft_is_slower, shared_with(raft_is_slower, machine_s=16.0, late_ms=1, runs=10)):
        whole = page(gold, measures.values(gold))
        first = whole[whole.index("<h1>") : whole.index('<section id="method">')]
        said = html.unescape(re.sub(r"<[^>]+>", " ", first)).lower()
        for word in ("series", "block", "blocks", "primary line", "no verdict", "arm", "arms"):
            assert not re.search(rf"\b{word}\b", said), word
        assert whole.count("<dt>Headline measure</dt>") == 1


def test_answer_has_three_sentences_and_each_question_leads_to_its_answer(raft_is_slower: Gold) -> None:
    whole = page(raft_is_slower, measures.values(raft_is_slower))
    answer = re.search(r'<p class="answer">(.*?)</p>', whole, re.DOTALL)
    assert answer is not None
    assert len(re.findall(r"\.(?: |$)", html.unescape(answer[1]))) == 3
    asked = re.findall(r'<li><a href="([^"]+)">[^<]+\?</a></li>', whole)
    assert len(asked) == 10
    assert {place[1:] for place in asked} <= set(re.findall(r'id="([^"]+)"', whole))
    assert "scale.html" not in whole
    beside = page(raft_is_slower, measures.values(raft_is_slower), ["scale.html", "costs.html", "real.html"])
    assert '<a href="scale.html#distance">What changes at my round-trip time?</a>' in beside
    assert '<a href="real.html">RocketMQ&#39;s own brokers and client</a>' in beside
    assert "costs.html" not in beside, "no program makes such a page: unit costs are a section of this one"


def test_choice_says_of_a_headline_measure_without_figures_that_it_cannot_tell(tmp_path: Path) -> None:
    gold = gold_of(tmp_path, {"independent": 100, "raft": 100})
    line = a_line("rest", None, "network_kib_per_s", 1.0)
    sources = [
        replace(source, manifest=msgspec.structs.replace(source.manifest, lines=[line]))
        for source in gold.sources
        if source.manifest is not None
    ]
    whole = text_of(replace(gold, sources=sources), "choose", "questions")
    assert "This page does not tell which is better for network use when nobody asks (" in whole
    assert "Either will do" not in whole


def test_each_table_of_figures_has_three_columns_whatever_was_run(tmp_path: Path) -> None:
    gold = gold_of(tmp_path, {"independent": 100, "raft": 100})
    whole = page(gold, measures.values(gold))
    for head in re.findall(r"<thead><tr>(.*?)</tr></thead>", whole, re.DOTALL):
        if 'class="arm ' in head:
            assert re.findall(r'class="arm (\w+)"', head) == ["independent", "raft", "zookeeper"]
    assert "not measured" in whole
