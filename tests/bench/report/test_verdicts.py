"""The words of the first screen and the choices: how often they are false, and what they may rest on.

All that the page concludes comes from one rule over the primary lines. Here whole reports are drawn in which
the arms do not differ at all (A/A), from distributions as bad as benchmarks have them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from routekeeper.bench.plan import load_plan
from routekeeper.bench.report import answers, words
from routekeeper.bench.report.answers import ARMS, CLAIMS, NEEDS
from routekeeper.bench.report.measures import Place, Values
from routekeeper.bench.resolution import RESOLUTION_S
from routekeeper.bench.runfolder import Line
from tests.bench.report.test_blocks import DISTRIBUTIONS
from tests.bench.report.test_misled import a_line, values_of

Draw = Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float64]]

REPORTS: Final = 500
LINES: Final = load_plan("compare").lines
#: The hardest of all: anything that differs would matter, and what is drawn is large beside it.
STRICT: Final = [
    msgspec.structs.replace(line, margin=RESOLUTION_S.get(line.measure, 1e-12)) for line in LINES
]
LARGE: Final = 1e9
PLACES: Final = sorted(
    {
        *(Place("equal", line.scenario, line.case, line.measure) for line in LINES),
        *(Place("equal", each.scenario, each.case, each.measure) for each in NEEDS),
        *(
            Place("equal", each.scenario, each.case, each.measure)
            for claim in CLAIMS
            for each in claim.evidence
        ),
    },
    key=lambda place: (place.scenario, place.case or "", place.measure),
)


def alike(draw: Draw, blocks: int) -> list[Values]:
    """Draw reports whose arms do not differ: what befell the machine in a block is common, else nothing."""
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
    """Return all that a page concludes: words beside claims, choices, primary lines."""
    primaries = answers.primaries(lines, "equal", values)
    # Rows are looked up by the claims' and needs' places; what they say comes from the lines alone.
    table = {row.place: row for row in answers.rows(values)}
    return [
        *(words.holds(answers.answer(claim, table, "equal", primaries)) for claim in CLAIMS),
        *(words.choice(each) for each in answers.choices(table, "equal", primaries) if each.lines),
        *(words.verdict(line) for line in primaries),
    ]


def is_verdict(said: str) -> bool:
    """Return whether a sentence says that one arm is better than another; it is false where all are alike."""
    if said.startswith(("Holds", "Does not hold", "True", "Not later than elsewhere.")):
        return True
    return (" is better than " in said or " rather than " in said) and "no verdict" not in said


@pytest.mark.slow
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_page_of_arms_that_do_not_differ_says_something_false_in_at_most_three_of_a_hundred(
    name: str,
) -> None:
    reports = alike(DISTRIBUTIONS[name], 10)
    false = sum(any(map(is_verdict, conclusions(values, STRICT))) for values in reports)
    assert 0 < false / len(reports) <= 0.03  # 0 would mean that nothing is ever called different


def test_page_of_six_blocks_calls_nothing_a_verdict() -> None:
    said = {
        text for values in alike(DISTRIBUTIONS["skewed"], 6)[:200] for text in conclusions(values, STRICT)
    }
    assert [text for text in said if is_verdict(text)] == []
    assert any("in 6 of 6 blocks" in text for text in said)
    assert any("mixed" in text.lower() for text in said)
    for text in said:
        assert "no verdict" in text or text in ("It holds by design.",), text


@pytest.mark.parametrize(
    ("raft", "verdict", "holds", "choice"),
    [
        ([2.0] * 10, "independent is better than raft", "Holds.", "independent rather than raft"),
        ([0.5] * 10, "raft is better than independent", "Does not hold.", "raft rather than independent"),
        (
            [1.05] * 10,
            "equivalent: the difference is too small to matter",
            "No difference that matters.",
            "raft or independent: the difference is too small to matter",
        ),
        (
            [2.0] * 9 + [0.9],
            "inconclusive",
            "Not shown either way.",
            "not decided between raft and independent",
        ),
        (
            [2.0] * 9,
            "raft higher than independent in 9 of 9 blocks; no verdict",
            "So it was in 9 of 9 blocks; no verdict.",
            "independent rather than raft in 9 of 9 blocks: no verdict",
        ),
        (
            [2.0] * 8 + [0.9],
            "mixed: raft lower than independent in 1, higher in 8 of 9 blocks; no verdict",
            "Mixed; no verdict.",
            "mixed between raft and independent: no verdict",
        ),
    ],
    ids=["better", "worse", "equivalent", "inconclusive", "all of nine", "mixed"],
)
def test_line_claim_and_choice_say_the_same_by_the_same_rule(
    raft: list[float], verdict: str, holds: str, choice: str
) -> None:
    place = Place("equal", "leader-fails", "kill", "announce_again_s")
    values = values_of(place, independent=[1.0] * len(raft), raft=raft)
    lines = answers.primaries([a_line("leader-fails", "kill", "announce_again_s", 0.25)], "equal", values)
    table = {row.place: row for row in answers.rows(values)}
    (chosen,) = answers.choices(table, "equal", lines)
    assert words.verdict(lines[0]) == verdict
    assert words.holds(answers.answer(CLAIMS[0], table, "equal", lines)) == holds
    assert words.choice(chosen) == choice


def test_figure_that_no_line_compares_decides_nothing() -> None:
    """However clear it is: only what was named before anything ran does."""
    values: Values = {}
    for place in PLACES:
        values |= values_of(place, independent=[1.0] * 10, raft=[1e6] * 10, zookeeper=[2e6] * 10)
    table = {row.place: row for row in answers.rows(values)}
    for claim in CLAIMS:
        found = answers.answer(claim, table, "equal", [])
        assert words.holds(found) in ("It holds by design.", "Described only: no primary line compares it.")
    for chosen in answers.choices(table, "equal", []):
        assert words.choice(chosen).startswith("described only: raft ")


def test_every_claim_but_that_of_the_design_has_its_primary_lines() -> None:
    for plan in ("compare", "full"):
        about = {(line.scenario, line.case, line.measure) for line in load_plan(plan).lines}
        for claim in CLAIMS:
            mine = {(each.scenario, each.case, each.measure) for each in claim.evidence}
            assert bool(mine & about) is not claim.by_design
