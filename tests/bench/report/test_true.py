"""The page no longer has sentences that are false for some data.

A critical reader found such sentences on an earlier page. Each test uses data for which one of these
sentences was false.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

import msgspec
import pytest

from routekeeper.bench.plan import SWEEPS
from routekeeper.bench.report import answers, measures, words
from routekeeper.bench.report.answers import TEXTS
from routekeeper.bench.report.beside import with_facts
from routekeeper.bench.report.gold import Backward, Gold, Observed
from routekeeper.bench.report.measures import MEASURES, Place, Values
from routekeeper.bench.report.page import page
from routekeeper.bench.report.used_timers import LEADER_LOOK_MS, LOOK_MS, used_timers
from routekeeper.bench.runfolder import Arm, Line, Manifest, Timer
from routekeeper.bench.timers import documented_timers
from routekeeper.nameserver.liveness import CLOCK_PERIOD_S
from routekeeper.nameserver.replicated.reporter import REPORT_PERIOD_S
from tests.bench import recompute
from tests.bench.report.planted import PlantedRun
from tests.bench.report.test_misled import a_line, gold_of, values_of
from tests.bench.report.test_said import AGAIN_S, text_of

THREE: Final[dict[Arm, int]] = {"independent": 100, "raft": 100, "zookeeper": 100}


def with_timers(gold: Gold, *, session_ms: float = 2000.0, tick_ms: float = 150.0) -> Gold:
    """Return the runs of `gold` with timers of the profile ``full``, which divides RocketMQ's timers by 60.

    Args:
        session_ms: Timeout of ZooKeeper's sessions in ms.
        tick_ms: ZooKeeper's tick in ms.
    """

    def timers(manifest: Manifest) -> dict[str, Timer]:
        documented = documented_timers(60.0)
        if manifest.arm != "zookeeper":
            election = Timer(used_ms=500, documented_ms=500)
            return documented | ({"raftElectionTimeoutMs": election} if manifest.arm == "raft" else {})
        return {
            "sessionTimeout": Timer(used_ms=session_ms, scaled=session_ms == 2000.0),
            "pollNameServerInterval": documented["pollNameServerInterval"],
            "tickTime": Timer(used_ms=tick_ms, documented_ms=2000),
            "syncLimit": Timer(used_ms=5 * tick_ms, documented_ms=10_000),
        }

    sources = []
    for source in gold.sources:
        assert source.manifest is not None
        manifest = msgspec.structs.replace(source.manifest, divisor=60.0, timers=timers(source.manifest))
        sources.append(dataclasses.replace(source, manifest=manifest))
    return dataclasses.replace(gold, sources=sources)


def with_lines(gold: Gold, values: Values, *lines: Line) -> tuple[Gold, Values]:
    """Return the runs with these headline measures in their plan, and return `values` unchanged."""
    sources = []
    for source in gold.sources:
        assert source.manifest is not None
        manifest = msgspec.structs.replace(source.manifest, lines=list(lines))
        sources.append(dataclasses.replace(source, manifest=manifest))
    return dataclasses.replace(gold, sources=sources), values


# -- what the page says about timers ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tick_ms", "reason"),
    [
        (150.0, "set to match raft mode's election time-out"),
        (2000.0, "as documented"),
        (100.0, "set by the plan"),
    ],
)
def test_a_tick_is_told_as_it_was_set(tmp_path: Path, tick_ms: float, reason: str) -> None:
    """Check that the page gives the right reason for the value of ZooKeeper's tick.

    An earlier page said "as it is" even beside a tick that the plan had changed.
    """
    gold = with_timers(gold_of(tmp_path, THREE), tick_ms=tick_ms)
    rows = {name: used for name, used, _ in used_timers(gold.sources, "equal")}
    for timer in ("tickTime (ZooKeeper)", "syncLimit (ZooKeeper)"):
        assert rows[timer].endswith(reason)
    said = text_of(page(gold, measures.values(gold)))
    assert "as it is" not in said
    assert "Election time-outs are not divided" not in said


def test_a_session_is_called_equal_to_the_lease_only_if_it_is(tmp_path: Path) -> None:
    for session_ms, reason in ((2000.0, "equal to RocketMQ's lease"), (500.0, "set by the plan")):
        gold = with_timers(gold_of(tmp_path / reason, THREE), session_ms=session_ms)
        rows = {name: used for name, used, _ in used_timers(gold.sources, "equal")}
        assert rows["sessionTimeout (ZooKeeper)"].endswith(reason)
        told = "ZooKeeper's session time-out is as long as RocketMQ's lease"
        assert (told in text_of(page(gold, measures.values(gold)))) == (session_ms == 2000.0)


def test_periods_that_no_plan_divides_are_told(tmp_path: Path) -> None:
    """Check the page's text on the time between two searches for silent brokers.

    A plan divides RocketMQ's timers: here 5 s between two searches become 83.3 ms. Plans cannot change the
    250 ms of our nameservers, because this time is a constant of the program.
    """
    assert LOOK_MS == 1000 * CLOCK_PERIOD_S
    assert LEADER_LOOK_MS == 1000 * REPORT_PERIOD_S
    gold = with_timers(gold_of(tmp_path, THREE))
    rows = {name: used for name, used, _ in used_timers(gold.sources, "equal")}
    assert rows["scanNotActiveBrokerInterval"] == (
        "83.3 ms, divided; our nameservers look for silent brokers every 250 ms, raft's leader every 1 s, "
        "which no plan divides"
    )
    assert "less 10 to 400 ms" in rows["ping of a session (ZooKeeper)"]


def beside(gold: Gold, series: str, **changed: object) -> Gold:
    """Return the runs of `gold` and a copy of each run. The copies belong to another series.

    Args:
        series: Name of the other series.
        changed: Fields of the manifest that differ in the copies.
    """
    sources = []
    for source in gold.sources:
        assert source.manifest is not None
        manifest = msgspec.structs.replace(source.manifest, **changed)
        run = source.run.replace("/equal/", f"/{series}/")
        sources.append(dataclasses.replace(source, series=series, run=run, manifest=manifest))
    return dataclasses.replace(gold, sources=[*gold.sources, *sources])


def test_a_value_of_zookeeper_with_undivided_timers_names_its_session(tmp_path: Path) -> None:
    """Check that the table names the session timeout (30 s or 120 s) beside each time of ZooKeeper.

    An earlier version of the table had times of both timeouts in one line, and named neither timeout.
    """
    gold = with_timers(gold_of(tmp_path, THREE))
    defaults = {"sessionTimeout": Timer(used_ms=30_000)}
    at_60, at_10, at_1 = (
        values_of(
            Place(series, "broker-dies", "cable", "left_by_clients_s"),
            **dict.fromkeys(("independent", "zookeeper"), [found] * 6),
        )
        for series, found in (("equal", 2.1), ("equal-tenth", 12.1), ("defaults", 33.0))
    )
    assert "(session 120 s)" not in text_of(page(gold, at_60)), "one divisor predicts nothing"
    said = text_of(page(beside(gold, "equal-tenth", divisor=10.0), at_60 | at_10))
    assert "120 s (session 120 s)" in said
    assert "Real timers" not in said
    said = text_of(page(beside(gold, "defaults", divisor=1.0, timers=defaults), at_60 | at_1))
    assert "33 s measured (session 30 s)" in said
    assert "With RocketMQ's own timers" not in said
    assert "ZooKeeper's session time-out is then 120 s." in said


def test_a_recovery_that_ends_while_a_server_is_down_is_not_its_down_time() -> None:
    """Check a recovery after 0.46 s, while the harness keeps the killed server down for 2 s.

    The recovery did not wait for the killed server, so its 0.46 s may depend on timers. The page must not
    give 0.46 s as the exact time with undivided timers.
    """
    values = values_of(AGAIN_S, zookeeper=[0.46] * 6, raft=[2.3] * 6)
    taken = {each.arm: each.split for each in answers.taken_apart(values, {"equal": 60.0}, {AGAIN_S: 2.0})}
    bounds = {arm: (split.low, split.high) for arm, split in taken.items() if split is not None}
    assert bounds["zookeeper"] == pytest.approx((0.46, 27.6))
    assert bounds["raft"] == pytest.approx((2.3, 20.0))


def test_chance_is_told_for_each_number_of_rounds(tmp_path: Path) -> None:
    """Check that the page counts pairs of figures separately for each number of rounds.

    By chance alone, the same design is better in all three rounds in one of four pairs of figures. The same
    design is better in all ten rounds in only one of 512 pairs.
    """
    gold = gold_of(tmp_path, THREE)
    values: Values = {}
    for series, rounds in (("equal", 10), ("equal-described", 6), ("equal-lengths", 3)):
        place = Place(series, "broker-dies", "cable", "left_by_clients_s")
        values |= values_of(place, independent=[1.0] * rounds, zookeeper=[1.0] * rounds)
    said = text_of(page(gold, values))
    told = "one in 512 agrees in all 10 rounds and one in 32 agrees in all 6 rounds by chance"
    assert "This page says of 2 pairs of figures whether they differ in every round. Of pairs" in said
    assert told in said


# -- what the page says about its method and its figures ----------------------------------------------------


def test_faults_are_not_said_to_come_at_the_same_instants(tmp_path: Path) -> None:
    """Check that the page does not say that faults come at the same instants in all designs.

    In one round the leader was killed 47.0, 47.8 and 54.5 s after the start, depending on the design.
    """
    gold = gold_of(tmp_path, THREE)
    said = text_of(page(gold, measures.values(gold)))
    assert "same instants" not in said
    assert "the same faults in the same order" in said


@pytest.mark.parametrize(
    ("text", "true", "false"),
    [
        (MEASURES["left_by_nameservers_s"].meaning, "any observed topic", "any topic"),
        (MEASURES["back_by_nameservers_s"].meaning, "all its observed topics", "all its topics"),
        (MEASURES["cpu_s_per_min"].meaning, "load, if it has one", "includes the scenario's load"),
        (MEASURES["network_kib_per_s"].meaning, "without the headers of TCP and IP", "all bytes"),
        (words.SCENARIO_QUESTIONS["quiet"], "the seconds before each fault", "while nothing fails"),
        (words.CASE_NOTES["nameserver-restarts/one-empty"], "reads its disk", "is not the leader"),
        (words.CASE_NOTES["partition/1-2"], "some of the simulated brokers", "half of the clients"),
        (TEXTS["sentences"]["full"], "Its requests", "Requests of every design"),
        (TEXTS["sentences"]["lost"], "in round {round}: {why}.", "died by itself"),
    ],
)
def test_a_text_holds_for_every_run(text: str, true: str, false: str) -> None:
    """Check that each text has its present words (``true``), which are true for every run.

    The earlier words (``false``) were untrue for some runs, or said more than was observed.
    """
    assert true in text
    assert false not in text


def test_a_rate_of_processor_time_is_not_read_as_a_rate_of_time() -> None:
    assert words.quantity(2.0, "s/min") == "2 s CPU/min"


def test_servers_that_never_went_back_are_told_with_what_was_compared(tmp_path: Path) -> None:
    """Check that the page says what it did not compare, for example answers to clients."""
    gold = gold_of(tmp_path, THREE)
    rows = [
        Backward(run=source.run, fault=0, compared=7, fell=0, relisted=0, servers=0, longest_ns=0)
        for source in gold.sources
    ]
    gold = dataclasses.replace(gold, backward=rows)
    said = text_of(page(gold, measures.values(gold)))
    assert "126 comparisons in 18 runs found nothing older. It did not compare answers to clients." in said
    assert "No server's answer was older" not in said


def test_exactness_of_readings_is_the_measured_one(tmp_path: Path) -> None:
    """Check that the page states the measured time between two readings of a server's list.

    An earlier version of the page always said 20 ms, although the readings were 22 to 39 ms apart.
    """
    gold = gold_of(tmp_path, THREE)
    apart = [
        Observed(run=source.run, observer="nameserver", apart_ns=apart_ns)
        for source, apart_ns in zip(gold.sources, [22_000_000] * 17 + [39_000_000], strict=True)
    ]
    gold = dataclasses.replace(gold, observed=apart)
    said = text_of(page(gold, measures.values(gold)))
    assert "to within 22 ms when the list of a server changed, and to within 39 ms in the worst run" in said
    assert "Readings are 20 ms apart" not in MEASURES["visible_ms_p50"].meaning


def test_a_broker_that_came_back_in_an_earlier_scenario_has_not_just_returned(tmp_path: Path) -> None:
    """Check that recompute.py counts an answer as wrong if it lacks a broker that returned long before.

    An answer may lack a broker that has just returned. But this broker returned in an earlier scenario. An
    earlier version of recompute.py excused such answers in the later scenario, too.
    """
    with PlantedRun(tmp_path, scenario="broker-dies", session="one", seconds=10) as run:
        run.broker(1, "down", 4.0)
        run.broker(1, "up", 6.0)
        run.op("lookup", 1.0, 0.001)
    with PlantedRun(tmp_path, scenario="nameserver-restarts", session="one", begin_s=20.0, seconds=10) as run:
        run.fault(24.0, 29.0, case="all")
        for due in (25.0, 26.0, 27.0):
            run.op("lookup", due, 0.001, brokers=[0, 2] if due == 25.0 else [0, 1, 2])
    found = recompute.figures(tmp_path)
    assert found["nameserver-restarts", "all", "missing_lookups", "raft", 1] == 1


# -- conclusions that the page draws from headline measures -------------------------------------------------


@pytest.mark.parametrize(
    ("raft", "said", "choice"),
    [
        ([1.05] * 10, "as good at", "Either will do"),
        ([1.0] * 5 + [2.0] * 5, "not clearly better or worse at", "does not tell which is better"),
        ([1.05] * 6, "not clearly better or worse at", "does not tell which is better"),
    ],
    ids=["equivalent", "inconclusive", "few rounds"],
)
def test_either_will_do_only_where_both_are_equivalent(
    tmp_path: Path, raft: list[float], said: str, choice: str
) -> None:
    """Check that only measures with equivalent results are listed below "Either will do".

    An earlier page listed a measure with an unclear result there.
    """
    gold, values = with_lines(
        gold_of(tmp_path, THREE),
        values_of(AGAIN_S, independent=[1.0] * len(raft), raft=raft),
        a_line("leader-fails", "kill", "announce_again_s", 0.25),
    )
    whole = page(gold, values)
    assert f"{said} registering brokers" in text_of(whole)
    chosen = text_of(whole[whole.index('id="choose"') : whole.index('id="questions"')])
    both = {"Either will do", "does not tell which is better"}
    assert {text for text in both if text in chosen} == {choice}


@pytest.mark.parametrize(
    ("scenario", "case", "measure", "words_of"),
    [
        ("partition", "1-2", "disagree_s", ("shorter", "longer")),
        ("broker-dies", "cable", "given_up_s", ("shorter", "longer")),
        ("leader-fails", "kill", "announce_again_s", ("faster", "slower")),
        ("broker-dies", "kill", "left_by_clients_s", ("faster", "slower")),
    ],
)
def test_a_harm_is_shorter_and_a_recovery_is_faster(
    scenario: str, case: str, measure: str, words_of: tuple[str, str]
) -> None:
    """Check that the page calls a time of disagreement shorter or longer, not faster or slower.

    An earlier version of the page said that nameservers "agreed faster".
    """
    line = a_line(scenario, case, measure, 0.5)
    for raft, word in zip((0.3, 4.0), words_of, strict=True):
        values = values_of(Place("equal", scenario, case, measure), independent=[2.0] * 6, raft=[raft] * 6)
        (found,) = answers.primaries([line], values)
        assert words.verdict(found) == f"raft {word} than independent in all 6 rounds"


@pytest.mark.parametrize(
    ("zookeeper", "rounds", "verdict"),
    [
        (0.49, 10, "unclear: raft's times of 0 may be up to 0.25 s"),
        (0.51, 10, "raft faster than ZooKeeper"),
        (0.49, 6, "unclear: raft's times of 0 may be up to 0.25 s"),
        (0.51, 6, "raft faster than ZooKeeper in all 6 rounds"),
        (0.24, 10, "raft and ZooKeeper are equivalent"),
    ],
)
def test_a_time_of_0_is_better_only_if_the_time_that_it_may_hide_is_too(
    zookeeper: float, rounds: int, verdict: str
) -> None:
    """Check recoveries that the report counts as 0 s because they took less than 0.25 s.

    Each of these recoveries may have taken up to 0.25 s. So the page must call a design faster only if this
    is true with 0.25 s, too.
    """
    values = values_of(AGAIN_S, raft=[0.0] * rounds, zookeeper=[zookeeper] * rounds)
    line = a_line("leader-fails", "kill", "announce_again_s", 0.25, "raft", "zookeeper")
    (found,) = answers.primaries([line], values)
    assert words.verdict(found) == verdict
    (found,) = answers.primaries([line], values, floors={AGAIN_S: {"raft": 0.4}})
    assert found.winner is None, "no request was due for 0.4 s"


@pytest.mark.parametrize(("floor", "winner"), [(0.2, "raft and ZooKeeper are equivalent"), (0.6, "unclear")])
def test_times_of_0_are_equivalent_only_if_they_hide_no_more_than_matters(floor: float, winner: str) -> None:
    values = values_of(AGAIN_S, raft=[0.0] * 10, zookeeper=[0.0] * 10)
    line = a_line("leader-fails", "kill", "announce_again_s", 0.25, "raft", "zookeeper")
    (found,) = answers.primaries([line], values, floors={AGAIN_S: {"raft": floor}})
    assert words.verdict(found).startswith(winner)


def test_a_difference_from_a_time_of_0_says_that_it_is_below_the_resolution(tmp_path: Path) -> None:
    gold, values = with_lines(
        gold_of(tmp_path, THREE),
        values_of(AGAIN_S, raft=[0.0] * 6, zookeeper=[0.55] * 6),
        a_line("leader-fails", "kill", "announce_again_s", 0.25, "raft", "zookeeper"),
    )
    said = text_of(page(gold, values))
    told = f"median {words.MINUS}550 ms, {words.MINUS}550 ms to {words.MINUS}550 ms"
    assert f"{told}; a value of 0 is below 250 ms (raft)" in said


def swept(measure: str, *, of_half_s: float = 0.0, of_raft_s: float = 0.0) -> Values:
    """Return times of disagreement between nameservers, for partitions of 1, 3, 4 and 8 s.

    Independent nameservers disagree for one second less than the partition lasts.

    Args:
        of_half_s: Seconds that are added to the length of the partition of 1 s.
        of_raft_s: Seconds for which servers in raft mode disagree in a partition of any length.
    """
    values: Values = {}
    lengths = {"half": 1.0 + of_half_s, "twice": 4.0, "four": 8.0}
    for series, case, length in (
        ("equal", "1-2", 3.0),
        *(("equal-lengths", case, lengths[ends]) for case, (_, ends) in SWEEPS.items()),
    ):
        place = Place(series, "partition", case, measure)
        values |= values_of(place, independent=[length - 1.0] * 10, raft=[of_raft_s] * 10)
    return values


@pytest.mark.parametrize(
    ("measure", "half_s", "raft_s", "verdict"),
    [
        (
            *("disagree_s", 0.0, 0.0),
            "independent as long as the cut lasts beyond the lease of two undivided minutes, raft not at all",
        ),
        (
            *("disagree_s", 0.1, 0.01),
            "independent as long as the cut lasts, raft for 10 ms at most",
        ),
        ("disagree_s", 0.0, 0.3, "unclear: the times of independent only show a length that the plan sets"),
        ("agree_s", 0.0, 0.0, "unclear: the times of independent only show a length that the plan sets"),
    ],
    ids=["never", "below a reading", "both", "recovery"],
)
def test_a_harm_as_long_as_the_cut_is_a_result_if_the_other_design_has_none(
    measure: str, half_s: float, raft_s: float, verdict: str
) -> None:
    """Check a time of independent nameservers that grows with the length of the partition.

    If it is a time of disagreement, and raft mode's time is near 0 s, the page must call raft mode better. An
    earlier version of the page called this result unclear, because it applied the rule for recoveries. By
    this rule, nothing follows from a time that grows with the partition.
    """
    values = swept(measure, of_half_s=half_s, of_raft_s=raft_s)
    planned = {(place, "independent") for place in values}
    (found,) = answers.primaries([a_line("partition", "1-2", measure, 0.5)], values, planned=planned)
    assert words.verdict(found) == verdict
    assert (found.winner == "raft") == ("lasts" in verdict)


def test_a_harm_in_a_cut_of_one_length_is_not_judged() -> None:
    place = Place("equal", "partition", "1-2", "disagree_s")
    values = values_of(place, independent=[3.0] * 10, raft=[0.0] * 10)
    line = a_line("partition", "1-2", "disagree_s", 0.5)
    (found,) = answers.primaries([line], values, planned={(place, "independent")})
    assert found.found == "set by the plan"


def facts(gold: Gold, values: Values, line: Line) -> str:
    (found,) = with_facts(answers.primaries([line], values), gold.sources, values)
    return words.topic(found)


def test_silence_of_servers_stands_beside_their_disagreement(tmp_path: Path) -> None:
    gold = gold_of(tmp_path, THREE)
    line = a_line("partition", "1-2", "disagree_s", 0.5)
    values = values_of(
        Place("equal", "partition", "1-2", "disagree_s"), independent=[2.0] * 6, raft=[0.0] * 6
    )
    topic = "the time in which nameservers list different brokers in a partition"
    assert facts(gold, values, line) == topic
    place = Place("equal", "partition", "1-2", "unanswering_s")
    values |= values_of(place, independent=[0.0] * 6, raft=[2.4] * 6, zookeeper=[2.6] * 6)
    told = "one or more of them gave no answer for at least 2.40 s with raft"
    assert facts(gold, values, line) == f"{topic} ({told})"


def test_watches_are_compared_with_polls_and_not_two_kinds_of_servers(tmp_path: Path) -> None:
    gold = with_timers(gold_of(tmp_path, THREE))
    values = values_of(Place("equal", "quiet", None, "visible_clients_ms_p50"), zookeeper=[18.0] * 6)
    topic = "telling clients of a changed topic"
    told = "by watches instead of polls every 500 ms, 30 s undivided"
    watching = a_line("quiet", None, "visible_clients_ms_p50", 100, "zookeeper", "independent")
    assert facts(gold, values, watching) == f"{topic} ({told})"
    polling = a_line("quiet", None, "visible_clients_ms_p50", 100, "raft", "independent")
    assert facts(gold, values, polling) == topic


@pytest.mark.parametrize(
    ("measure", "shown_ms", "marked"),
    [
        ("visible_ms_p50", 20.4, True),
        ("visible_ms_p50", 19_900.0, False),
        ("visible_ms_p50", 11_950.0, True),
        ("visible_ms_p50", 18.0, False),
        ("visible_clients_ms_p50", 20.0, False),
    ],
)
def test_a_time_in_ms_may_be_set_by_the_plan_too(
    tmp_path: Path, measure: str, shown_ms: float, marked: bool
) -> None:
    """Check that the report compares times in ms, too, with the times that the plan sets.

    An earlier version of the report compared only times in s. Observers read servers every 20 ms, so a time
    of 20 ms may come from the plan. Clients report changes at once, so a time of 20 ms that clients measure
    does not come from the plan.
    """
    gold = gold_of(tmp_path, THREE)
    place = Place("equal", "leader-fails", None, measure)
    values = values_of(place, independent=[shown_ms] * 6, raft=[5.0] * 6)
    sources = []
    for source in gold.sources:
        assert source.manifest is not None
        end_ns = source.manifest.measure_begin_ns + 12 * 10**9
        manifest = msgspec.structs.replace(source.manifest, measure_end_ns=end_ns)
        sources.append(dataclasses.replace(source, manifest=manifest))
    found = measures.set_by_plan(dataclasses.replace(gold, sources=sources), values)
    assert found == ({(place, "independent")} if marked else set())


def test_a_rate_says_by_what_its_timers_were_divided(tmp_path: Path) -> None:
    """Check that the page names the divisor of a rate's timers.

    With timers divided by 60, brokers register every 0.5 s and not every 30 s, so the traffic is 60 times as
    high.
    """
    gold = with_timers(gold_of(tmp_path, THREE))
    line = a_line("rest", None, "network_kib_per_s", 5, "zookeeper", "independent")
    assert facts(gold, {}, line) == "network use when nobody asks (with timers divided by 60)"
    undivided = [
        dataclasses.replace(each, manifest=msgspec.structs.replace(each.manifest, divisor=1.0))
        for each in gold.sources
        if each.manifest is not None
    ]
    gold = dataclasses.replace(gold, sources=undivided)
    assert facts(gold, {}, line) == "network use when nobody asks"


@pytest.mark.parametrize(("session_ms", "told"), [(2000.0, True), (500.0, False)])
def test_a_killed_broker_is_told_with_the_session_that_the_plan_chose(
    tmp_path: Path, session_ms: float, told: bool
) -> None:
    """Check that the page names ZooKeeper's session timeout beside the time until it dropped a killed broker.

    ZooKeeper dropped the broker after 2.1 s only because the plan sets the session timeout to 2 s. With a
    usual timeout of 30 s and RocketMQ's own timers, both designs take about the same time.
    """
    line = a_line("broker-dies", "kill", "left_by_clients_s", 0.5, "zookeeper", "independent")
    gold, values = with_lines(
        with_timers(gold_of(tmp_path, THREE), session_ms=session_ms),
        values_of(
            Place("equal", "broker-dies", "kill", "left_by_clients_s"),
            independent=[0.4] * 6,
            zookeeper=[2.1] * 6,
        ),
        line,
    )
    said = text_of(page(gold, values))
    beside_it = "dropping a broker that is killed (ZooKeeper's session time-out is RocketMQ's lease)"
    assert (beside_it in said) is told
    sentence = "follows from its session time-out, which was set equal to RocketMQ's lease, 120 s undivided."
    assert (sentence in said) is told
    if told:
        gold = beside(gold, "defaults", divisor=1.0, timers={"sessionTimeout": Timer(used_ms=30_000)})
        values |= values_of(
            Place("defaults", "broker-dies", "kill", "left_by_clients_s"),
            independent=[28.0],
            zookeeper=[33.0],
        )
        assert (
            "With a session of 30 s and each system's own timers, the last client dropped it after these "
            "times: ZooKeeper 33 s and independent 28 s."
        ) in text_of(page(gold, values))


def test_a_headline_measure_is_read_from_its_own_series_and_says_its_timers(tmp_path: Path) -> None:
    """Check that the page says which timers were used for the measure of idle brokers.

    The measure comes from a series with undivided timers. With divided timers, idle brokers would send more
    often, which would multiply their traffic.
    """
    line = a_line("idle-300", None, "network_kib_per_s", 5, "zookeeper", "independent")
    line = msgspec.structs.replace(line, series="rest")
    places = [Place(series, "idle-300", None, "network_kib_per_s") for series in ("rest", "equal-described")]
    values = values_of(places[0], independent=[36.0] * 10, zookeeper=[3.0] * 10)
    values |= values_of(places[1], independent=[1.0] * 10, zookeeper=[3.0] * 10)
    gold, _ = with_lines(with_timers(gold_of(tmp_path, THREE)), values, line)
    gold = beside(gold, "rest", divisor=1.0)
    whole = page(gold, values)
    said = text_of(whole)
    topic = "network use of 300 idle brokers (each system's own timers)"
    assert f"At {topic}, ZooKeeper less than independent." in said
    assert f"independent was worse at {topic}." in said
    chart = text_of(whole[whole.index('id="claim-b"') : whole.index('id="claim-c"')])
    assert "36 KiB/s the same" in chart
    section = whole[whole.index('id="scenario-idle-300"') :]
    assert (
        "<caption>Default timers of each system, nobody asks</caption>"
        in section[: section.index("</section>")]
    )
    assert "Default timers of each system, nobody asks. Headline measures:" in said
    assert "divided by 60)" not in said


def test_the_answer_says_nothing_that_was_not_compared() -> None:
    """Check that the page makes no statement about look-ups if no look-ups were compared.

    An earlier version of the page always said that nameservers answer look-ups without ZooKeeper.
    """
    first, *_ = words.sentences([])
    assert first == "No headline measure compares independent with ZooKeeper."
