"""After too few rounds, the page does not say that there is no difference between designs."""

from __future__ import annotations

import pytest

from routekeeper.bench.report import answers, words
from routekeeper.bench.report.answers import LEANING_BLOCKS_MIN
from routekeeper.bench.report.measures import Place
from tests.bench.report.test_misled import a_line, values_of


@pytest.mark.parametrize(
    ("blocks", "few"), [(1, True), (LEANING_BLOCKS_MIN - 1, True), (LEANING_BLOCKS_MIN, False)]
)
def test_few_blocks_are_not_taken_for_no_difference(blocks: int, few: bool) -> None:
    place = Place("equal", "leader-fails", "kill", "announce_again_s")
    values = values_of(place, independent=[1.0] * blocks, raft=[1.0] * blocks)
    table = {row.place: row for row in answers.rows(values)}
    lines = answers.primaries([a_line("leader-fails", "kill", "announce_again_s", 0.25)], values)
    answer = answers.answer(answers.CLAIMS[1], table, lines)
    said = "too few rounds" if few else "no difference in any"
    assert words.verdict(lines[0]).startswith(said)
    assert said in words.answered(answer)
