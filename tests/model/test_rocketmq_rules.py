"""Tests that our route table follows the rules of RocketMQ 5.3.3, except for documented differences."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import Final

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis.errors import NoSuchExample

from routekeeper.nameserver.commands import written_and_read
from routekeeper.nameserver.handlers import Renewal, answer_for, decide
from routekeeper.nameserver.liveness import Liveness
from routekeeper.nameserver.modes.serving import decide_received
from routekeeper.nameserver.registration import Registration, decode_registration
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.nameserver.types import Answer, ConnectionId, Request
from routekeeper.nameserver.verdicts import Applied, NoChange
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.steps import finish

from .rocketmq_rules import DIFFERENCES, TOPICS, RocketMQ, Seen, Step, request_of, seen, sequences

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "protocol-differences.md"
SECTION: Final = "## Nameserver, both modes\n"
SETTINGS: Final = NamesrvSettings()
ORIGIN: Final = ConnectionId(1)


def ids_of_rows() -> list[str]:
    """Return the ids of the documented differences, from the table in the section SECTION of PAGE."""
    section = PAGE.read_text().partition(SECTION)[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    cells = [row[3].strip() for row in rows[2:] if len(row) > 3]
    found = [re.fullmatch(r"`([a-z0-9-]+)`", cell) for cell in cells]
    assert all(found), f"{PAGE.name}: an id in the fourth column is one word in backticks, not {cells}"
    return [match[1] for match in found if match is not None]


ROWS: Final = ids_of_rows()


class Ours:
    """A nameserver that has one route table.

    Args:
        whole: If True, apply each registration as a whole. A group does this if a member knows only the first
            format of commands. If False, apply only the difference from the table.
    """

    def __init__(self, *, whole: bool) -> None:
        self.whole = whole
        self.table = RouteTable()
        self.liveness = Liveness()  # its clock never advances, so each older version counts as late

    def take(self, step: Step) -> Seen:
        answer = self._answer(request_of(step))
        return seen(answer.code, dict(answer.ext_fields), [self.table.view.route(topic) for topic in TOPICS])

    def _answer(self, request: Request) -> Answer:
        view = self.table.view
        if request.code == RequestCode.REGISTER_BROKER:
            decoded = decode_registration(request)
            assert isinstance(decoded, Registration), decoded
            self.liveness.registering(decoded.broker, ORIGIN)
            differences = not self.whole
            decision = finish(
                decide_received(self.table, self.liveness, decoded, ORIGIN, SETTINGS, differences=differences)
            )
        else:
            decided = decide(view, request, SETTINGS, uptime_s=1000.0)
            if isinstance(decided, Answer):
                return decided
            decision = decided  # type: ignore[assignment]
        if isinstance(decision, Renewal):
            return decision.answer
        _, command = finish(written_and_read(decision))
        verdict = self.table.apply(command)
        assert isinstance(verdict, Applied | NoChange), verdict
        return answer_for(command, verdict, SETTINGS)


def first_difference(steps: list[Step], rules: RocketMQ) -> str | None:
    """Return a text about the first step for which our nameserver and ``rules`` give different results.

    A step is a request. The text has the step and both results. Return None if all results are equal.
    """
    short, whole = Ours(whole=False), Ours(whole=True)
    for number, step in enumerate(steps):
        expected, found = rules.take(step), short.take(step)
        assert whole.take(step) == found, f"step {number}, {step}, is applied otherwise as a difference"
        if found != expected:
            return f"step {number}, {step}\nby the rules: {expected}\nhere:         {found}"
    return None


def test_each_row_has_an_id_that_the_model_knows() -> None:
    assert len(set(ROWS)) == len(ROWS), ROWS
    assert set(ROWS) <= DIFFERENCES, f"{PAGE.name}: no rule of the model is called {set(ROWS) - DIFFERENCES}"
    assert set(ROWS) >= DIFFERENCES, "the model knows a rule that no row has"


@pytest.mark.slow
@settings(max_examples=400)
@given(sequences())
def test_every_difference_from_rocketmq_has_a_row(steps: list[Step]) -> None:
    differs = first_difference(steps, RocketMQ(ROWS))
    assert differs is None, f"no row of {PAGE.name} explains {differs}"


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
def test_difference_of_each_row_occurs(row: str) -> None:
    others = [each for each in ROWS if each != row]

    def differs(steps: list[Step]) -> bool:
        return first_difference(steps, RocketMQ(others)) is not None

    generate = settings(max_examples=2000, phases=[Phase.generate])
    try:
        find(sequences(), differs, settings=generate, random=Random(1))
    except NoSuchExample:
        pytest.fail(f"{PAGE.name}: the difference of {row} never occurs", pytrace=False)
