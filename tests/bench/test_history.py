"""Recorded calls are prepared correctly for the linearizability check.

They are split by key, and a read that may be stale gets an earlier start. Calls with impossible times are
refused.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.history import Call, Operation, Outcome, as_promised, by_key


def call(key: str, operation: Operation, begun: float, ended: float, outcome: Outcome = Outcome.OK) -> Call:
    return Call(key=key, operation=operation, value=1, begun=begun, ended=ended, outcome=outcome)


def test_history_is_split_by_key_in_order_of_first_appearance() -> None:
    calls = [call(key, Operation.READ, 0, 1) for key in "bab"]
    assert {key: len(found) for key, found in by_key(calls).items()} == {"b": 2, "a": 1}
    assert list(by_key(calls)) == ["b", "a"]


def test_only_reads_may_lag_and_each_by_its_own_promise() -> None:
    read, write = call("k", Operation.READ, 5, 6), call("k", Operation.WRITE, 5, 6)
    history = [replace(read, lag=2), replace(write, lag=2), read]
    assert [c.begun for c in as_promised(history)] == [3, 5, 5]


def test_answer_before_the_request_is_refused() -> None:
    with pytest.raises(ValueError, match="before it began"):
        call("k", Operation.READ, 2, 1)


def test_end_of_an_unknown_call_means_nothing() -> None:
    assert "unknown" in str(call("k", Operation.WRITE, 2, 1, Outcome.UNKNOWN))
