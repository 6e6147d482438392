"""The open-loop schedule."""

from hypothesis import given
from hypothesis import strategies as st

from bench.pacing import OpenLoop


def drain(loop: OpenLoop) -> list[int]:
    due: list[int] = []
    while (taken := loop.take()) is not None:
        assert taken[0] == len(due)
        due.append(taken[1])
    return due


def test_operations_are_due_at_the_rate_from_the_start() -> None:
    assert drain(OpenLoop(start_ns=100, rate_per_s=4, end_ns=1_000_000_100)) == [
        100,
        250_000_100,
        500_000_100,
        750_000_100,
    ]


def test_rate_of_zero_is_never_due() -> None:
    assert drain(OpenLoop(start_ns=0, rate_per_s=0, end_ns=10**12)) == []


@given(rate=st.floats(0.1, 5_000), seconds=st.floats(0.01, 2))
def test_nothing_is_due_outside_the_window_and_none_is_skipped(rate: float, seconds: float) -> None:
    end_ns = round(seconds * 1e9)
    due = drain(OpenLoop(start_ns=0, rate_per_s=rate, end_ns=end_ns))
    assert all(0 <= instant < end_ns for instant in due)
    assert due == sorted(due)
    assert abs(len(due) - rate * seconds) <= 1
