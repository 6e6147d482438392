"""The conclusions on the first screen are rarely false, and only headline measures decide them.

One rule for the headline measures decides all conclusions of the page. Some tests make whole reports from
random values, in which the arms (designs) do not differ at all. The values have difficult distributions, like
the values of real benchmarks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from routekeeper.bench.plan import load_plan
from routekeeper.bench.report import answers, words
from routekeeper.bench.report.answers import ARMS, CLAIMS
from routekeeper.bench.report.measures import Place, Values
from routekeeper.bench.resolution import RESOLUTION_S
from routekeeper.bench.runfolder import Line
from tests.bench.report.test_blocks import DISTRIBUTIONS
from tests.bench.report.test_misled import a_line, values_of

Draw = Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float64]]

REPORTS: Final = 500
LINES: Final = load_plan("full").lines
#: Headline measures with margins near 0, so that even a tiny difference counts. With such margins, the page
#: is most likely to draw a false conclusion.
STRICT: Final = [
    msgspec.structs.replace(line, margin=RESOLUTION_S.get(line.measure, 1e-12)) for line in LINES
]
LARGE: Final = 1e9
PLACES: Final = sorted(
    {
        *(Place(line.series, line.scenario, line.case, line.measure) for line in LINES),
        *(
            Place("equal", each.scenario, each.case, each.measure)
            for claim in CLAIMS
            for each in claim.evidence
            if each.scenario != "idle-300"  # the series "rest" contains this scenario's measures
        ),
    },
    key=lambda place: (place.scenario, place.case or "", place.measure),
)


def alike(draw: Draw, blocks: int) -> list[Values]:
    """Draw reports whose arms do not differ.

    All runs of a round share a random disturbance of the machine.
    """
    rng = np.random.default_rng(23)
    machine = draw(rng, (REPORTS, len(PLACES), 1, blocks))
    drawn = LARGE * (machine + draw(rng, (REPORTS, len(PLACES), len(ARMS), blocks)))
    return [
        {
            place: {
                arm: {("b", block): float(value) for block, value in enumerate(found, 1)}
                for arm, found in zip(ARMS, of_arms, strict=True)
            }
            for place, of_arms in zip(PLACES, report, strict=True)
        }
        for report in drawn
    ]


def conclusions(values: Values, lines: list[Line]) -> list[str]:
    """Return all conclusions of a page: its answer, texts beside claims, advice, and results of measures."""
    primaries = answers.primaries(lines, values)
    # `answers.rows` is needed only for the rows that claims refer to. The conclusions come from the headline
    # measures alone.
    table = {row.place: row for row in answers.rows(values)}
    return [
        *words.sentences(primaries),
        *(words.answered(answers.answer(claim, table, primaries)) for claim in CLAIMS),
        *(text for arm in ARMS for text in words.chosen(primaries, arm)),
        *(words.verdict(line) for line in primaries),
    ]


def is_verdict(said: str) -> bool:
    """Return True if a sentence calls one design better. If designs are equal, such a sentence is false."""
    if re.search(r" was better at | was worse at |; worse at ", said):
        return True
    return re.search(r" (faster|slower|shorter|longer|fewer|more|less) than (?!.* rounds)", said) is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_page_of_arms_that_do_not_differ_says_something_false_in_at_most_three_of_a_hundred(
    name: str,
) -> None:
    reports = alike(DISTRIBUTIONS[name], 10)
    false = sum(any(map(is_verdict, conclusions(values, STRICT))) for values in reports)
    # A page that never calls a design better would be useless, so some reports must do it (more than 0).
    assert 0 < false / len(reports) <= 0.03


def test_page_of_six_rounds_calls_nothing_a_verdict() -> None:
    said = {
        text for values in alike(DISTRIBUTIONS["skewed"], 6)[:200] for text in conclusions(values, STRICT)
    }
    assert [text for text in said if is_verdict(text)] == []
    assert any("in all 6 rounds" in text for text in said)
    assert any("mixed" in text.lower() for text in said)
    for text in said:
        assert "6 rounds" in text or "not clearly" in text or text.startswith("Yes, by design"), text


AT: Final = "at registering brokers after the leader was killed, "


@pytest.mark.parametrize(
    ("raft", "verdict", "winner", "answer"),
    [
        ([2.0] * 10, "raft slower than independent", "independent", "worse at"),
        ([0.5] * 10, "raft faster than independent", "raft", "better at"),
        ([1.05] * 10, "raft and independent are equivalent", None, "as good at"),
        ([2.0] * 9 + [0.9], "raft and independent: unclear", None, "not clearly better or worse at"),
        (
            [2.0] * 9,
            "raft slower than independent in all 9 rounds",
            "independent",
            "worse in all 9 rounds at",
        ),
        (
            [2.0] * 8 + [0.9],
            "mixed: raft faster than independent in 1, slower in 8 of 9 rounds",
            None,
            "not clearly better or worse at",
        ),
    ],
    ids=["better", "worse", "equivalent", "inconclusive", "all of nine", "mixed"],
)
def test_answer_claim_and_choice_say_the_same_by_the_same_rule(
    raft: list[float], verdict: str, winner: str | None, answer: str
) -> None:
    place = Place("equal", "leader-fails", "kill", "announce_again_s")
    values = values_of(place, independent=[1.0] * len(raft), raft=raft)
    lines = answers.primaries([a_line("leader-fails", "kill", "announce_again_s", 0.25)], values)
    table = {row.place: row for row in answers.rows(values)}
    assert words.verdict(lines[0]) == verdict
    said = words.answered(answers.answer(CLAIMS[1], table, lines))
    assert said == f"{AT[0].upper()}{AT[1:]}{verdict}."
    chosen = {arm: words.chosen(lines, arm) for arm in ("independent", "raft")}
    assert [arm for arm, reasons in chosen.items() if reasons] == ([] if winner is None else [winner])
    assert f"raft was {answer} registering brokers after the leader was killed." in words.sentences(lines)[1]


def test_answer_does_not_judge_a_headline_measure_that_has_no_figures() -> None:
    line = a_line("leader-fails", "kill", "announce_again_s", 0.25)
    _, against_independent, _ = words.sentences(answers.primaries([line], {}))
    assert against_independent == (
        "Compared with independent, raft was not judged at registering brokers after the leader was killed."
    )


@pytest.mark.parametrize("independent", [2.9, 0.4])
def test_claim_is_neither_affirmed_nor_denied_by_figures(independent: float) -> None:
    """Check that figures neither prove nor refute a claim that is true by a design's construction.

    For example, the claim that clients of nameservers poll is true, even if figures show that clients learn
    of a change very fast.
    """
    values: Values = {}
    named = []
    for scenario, case, measure in (
        ("rest", None, "network_kib_per_s"),
        ("broker-dies", "kill", "left_by_clients_s"),
    ):
        place = Place("equal", scenario, case, measure)
        values |= values_of(place, independent=[independent] * 10, zookeeper=[1.6] * 10)
        named.append(a_line(scenario, case, measure, 0.5, "zookeeper", "independent"))
    table = {row.place: row for row in answers.rows(values)}
    lines = answers.primaries(named, values)
    claims = {claim.letter: claim for claim in CLAIMS}
    told = {letter: words.answered(answers.answer(claims[letter], table, lines)) for letter in ("b", "d")}
    assert told["b"].startswith("At network use when nobody asks, ZooKeeper ")
    assert told["d"].startswith("Yes, by design: it says how the nameserver is built")
    assert "At dropping a broker that is killed, ZooKeeper " in told["d"]


def test_figure_that_no_line_compares_decides_nothing() -> None:
    """Check that only headline measures decide, even if other measures differ very clearly.

    Headline measures are the comparisons that were named before the runs.
    """
    values: Values = {}
    for place in PLACES:
        values |= values_of(place, independent=[1.0] * 10, raft=[1e6] * 10, zookeeper=[2e6] * 10)
    table = {row.place: row for row in answers.rows(values)}
    for claim in CLAIMS:
        found = answers.answer(claim, table, [])
        assert words.answered(found) in {words.say("by-design"), words.say("described")}
    assert [text for arm in ARMS for text in words.chosen([], arm)] == []
    assert all("no headline measure compares " in text.lower() for text in words.sentences([]))


def test_every_claim_but_that_of_the_design_has_its_primary_lines() -> None:
    for plan in ("compare", "full"):
        about = {(line.scenario, line.case, line.measure) for line in load_plan(plan).lines}
        for claim in CLAIMS:
            mine = {(each.scenario, each.case, each.measure) for each in claim.evidence}
            assert mine & about or claim.by_design
