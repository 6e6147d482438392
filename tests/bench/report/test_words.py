"""What the page says where there is too little to say anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from bench.report import words
from bench.report.answers import LEANING_BLOCKS_MIN, Answer, Choice, Judged, Row, Summary


@dataclass
class Stands:
    """For what these sentences do not look at."""

    words: str = ""


def row(blocks: int) -> Row:
    summary = Summary(middle=1.0, low=1.0, high=1.0, blocks=blocks)
    anything = cast(Any, Stands())
    arms = {"independent": summary, "raft": summary, "zookeeper": summary}
    return Row(place=anything, measure=anything, arms=arms, pairs=[])


@pytest.mark.parametrize(
    ("blocks", "few"), [(1, True), (LEANING_BLOCKS_MIN - 1, True), (LEANING_BLOCKS_MIN, False)]
)
def test_few_blocks_are_not_taken_for_no_difference(blocks: int, few: bool) -> None:
    anything = cast(Any, Stands())
    judged = Judged(evidence=anything, row=row(blocks), for_it=(), against_it=())
    sentence = words.verdict_sentence(Answer(claim=anything, holds="not shown", found=[judged]))
    chosen = words.choice(Choice(need=anything, row=row(blocks), arms=("independent", "raft", "zookeeper")))
    assert sentence.startswith("Too few blocks" if few else "No figure differs")
    assert chosen.startswith("too few blocks" if few else "any: no difference")
