"""The linearizability checker finds planted violations and accepts good histories.

It also agrees with a simple check that tries every order of the calls.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.history import Call, Operation, Outcome, as_promised
from tests.linearizability import Undecided, check


def read(value: object, begun: float, ended: float, key: str = "k") -> Call:
    return Call(key=key, operation=Operation.READ, value=value, begun=begun, ended=ended)


def write(value: object, begun: float, ended: float, key: str = "k", outcome: Outcome = Outcome.OK) -> Call:
    return Call(key=key, operation=Operation.WRITE, value=value, begun=begun, ended=ended, outcome=outcome)


def unknown(value: object, begun: float, key: str = "k") -> Call:
    return write(value, begun, begun, key, Outcome.UNKNOWN)


def failed(value: object, begun: float, ended: float) -> Call:
    return write(value, begun, ended, outcome=Outcome.FAILED)


GOOD = {
    "nothing": [],
    "read of the initial value": [read(None, 0, 1)],
    "read after write": [write(1, 0, 1), read(1, 2, 3)],
    "read during write may see either": [write(1, 0, 9), read(None, 1, 2), read(1, 3, 4)],
    "two writers that overlap": [write(1, 0, 9), write(2, 0, 9), read(2, 10, 11), read(2, 12, 13)],
    "write seen before it is acknowledged": [write(1, 0, 100), read(1, 1, 2), read(1, 3, 4)],
    "unknown write that took effect late": [unknown(1, 0), write(2, 5, 6), read(2, 7, 8), read(1, 50, 51)],
    "unknown write that never took effect": [unknown(1, 0), write(2, 5, 6), read(2, 7, 8)],
    "failed write that nobody sees": [write(1, 0, 1), failed(2, 2, 3), read(1, 4, 5)],
    "deleting": [write(1, 0, 1), write(None, 2, 3), read(None, 4, 5)],
    "calls that touch overlap": [write(1, 0, 1), read(None, 1, 2)],
    "equal values twice": [write(1, 0, 1), write(2, 2, 3), write(1, 4, 5), read(1, 6, 7)],
    "keys know nothing of each other": [write(1, 0, 1, "a"), read(None, 2, 3, "b")],
}

BAD = {
    "acknowledged write lost": [write(1, 0, 1), read(None, 2, 3)],
    "stale read": [write(1, 0, 1), write(2, 2, 3), read(1, 4, 5)],
    "value out of nowhere": [write(1, 0, 1), read(7, 2, 3)],
    "failed write applied": [write(1, 0, 1), failed(2, 2, 3), read(2, 4, 5)],
    "write applied twice": [write(1, 0, 1), write(2, 2, 3), read(2, 4, 5), read(1, 6, 7)],
    "reads go back during a write": [write(1, 0, 9), read(1, 1, 2), read(None, 3, 4)],
    "unknown write seen, then gone": [write(1, 0, 1), unknown(2, 2), read(2, 3, 4), read(1, 5, 6)],
    "unknown write seen before it began": [read(1, 0, 1), unknown(1, 2)],
    "two readers disagree on the order": [
        write(1, 0, 9),
        write(2, 0, 9),
        read(1, 1, 2),
        read(2, 3, 4),
        read(1, 10, 11),
    ],
    "deleted value returns": [write(1, 0, 1), write(None, 2, 3), read(1, 4, 5)],
    "only one key of two": [write(1, 0, 1, "a"), read(1, 2, 3, "a"), write(1, 0, 1, "b"), read(2, 2, 3, "b")],
}


@pytest.mark.parametrize("history", GOOD.values(), ids=GOOD)
def test_good_history_is_linearizable(history: list[Call]) -> None:
    assert check(history) == ()


@pytest.mark.parametrize("history", BAD.values(), ids=BAD)
def test_bad_history_is_not_linearizable(history: list[Call]) -> None:
    (violation,) = check(history)
    assert violation.stuck
    assert "is not linearizable" in str(violation)


def test_violation_names_what_cannot_come_next() -> None:
    first, second, stale = write(1, 0, 1), write(2, 2, 3), read(1, 4, 5)
    (violation,) = check([first, second, stale])
    assert violation.explained == (first, second)
    assert violation.stuck == (stale,)


def test_initial_values_count() -> None:
    assert check([read(5, 0, 1)], initial={"k": 5}) == ()
    assert check([read(None, 0, 1)], initial={"k": 5})


def test_reads_may_lag_by_what_was_promised_and_no_more() -> None:
    history = [write(1, 0, 1), write(2, 2, 3)]
    late = read(1, 4, 5)
    assert check(as_promised([*history, replace(late, lag=2)])) == ()
    assert check(as_promised([*history, replace(late, lag=0.5)]))
    assert check(as_promised([*history, replace(late, lag=2), late])), "the other read promised more"


def test_search_without_an_answer_is_not_taken_for_one() -> None:
    crowd: list[Call] = [write(n, 0, 100) for n in range(12)]
    # No order of the calls explains these two reads, but the check needs a long search to prove this.
    crowd += [read(n, 101 + n, 101.5 + n) for n in (3, 4)]
    with pytest.raises(Undecided):
        check(crowd, configurations_max=500)
    assert check(crowd)


def test_long_history_of_a_few_callers_is_quick() -> None:
    rng, history, value, now = random.Random(1), [], 0, 0.0
    for n in range(3000):
        now += 1.0
        slack = rng.uniform(0, 1.5)
        if rng.random() < 0.5:
            value = n
            history.append(write(n, now - slack, now + 0.4 + slack))
        else:
            history.append(read(value, now - 0.01, now + 0.01))
        now += 3.0
    assert check(history, initial={"k": 0}) == ()
    history.append(read(-1, now + 9, now + 10))
    assert len(check(history, initial={"k": 0})) == 1


# -- compared with the definition of linearizability ---------------------------------------------------------


def is_linearizable(calls: list[Call]) -> bool:
    """Return True if some order of the calls agrees with their times and results.

    Try every order, with every subset of the writes that have no known outcome.
    """
    sure = [c for c in calls if c.outcome is Outcome.OK]
    maybe = [c for c in calls if c.outcome is Outcome.UNKNOWN and c.operation is Operation.WRITE]
    for size in range(len(maybe) + 1):
        for chosen in itertools.combinations(maybe, size):
            if any(_explains(order) for order in itertools.permutations([*sure, *chosen])):
                return True
    return False


def _explains(order: tuple[Call, ...]) -> bool:
    for early, late in itertools.combinations(order, 2):
        if late.outcome is Outcome.OK and late.ended < early.begun:
            return False
    value: object = None
    for call in order:
        if call.operation is Operation.WRITE:
            value = call.value
        elif call.value != value:
            return False
    return True


@st.composite
def tiny_histories(draw: st.DrawFn) -> list[Call]:
    calls = []
    for _ in range(draw(st.integers(1, 6))):
        begun = draw(st.integers(0, 8))
        calls.append(
            Call(
                key="k",
                operation=draw(st.sampled_from(Operation)),
                value=draw(st.sampled_from([None, 1, 2])),
                begun=begun,
                ended=begun + draw(st.integers(0, 6)),
                outcome=draw(st.sampled_from([Outcome.OK, Outcome.OK, Outcome.OK, *Outcome])),
            )
        )
    return calls


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(tiny_histories())
def test_checker_agrees_with_the_definition(history: list[Call]) -> None:
    assert (check(history) == ()) == is_linearizable(history)
