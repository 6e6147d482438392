"""Assignment of a topic's queues to the members of a consumer group."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routekeeper.client.rebalance import average_share, reassign

MEMBERS = st.lists(st.text("abcdef@0123", min_size=1), unique=True, min_size=1, max_size=9).map(sorted)


@pytest.mark.parametrize(
    ("queues", "members", "me", "share"),
    [
        pytest.param(8, ["a", "b", "c"], "a", [0, 1, 2], id="first of three gets the remainder"),
        pytest.param(8, ["a", "b", "c"], "b", [3, 4, 5], id="second of three too"),
        pytest.param(8, ["a", "b", "c"], "c", [6, 7], id="third of three"),
        pytest.param(2, ["a", "b", "c"], "c", [], id="more members than queues"),
        pytest.param(4, ["a"], "a", [0, 1, 2, 3], id="alone"),
        pytest.param(4, ["a", "b"], "x", [], id="unknown to the broker yet"),
        pytest.param(0, ["a", "b"], "a", [], id="no queues"),
    ],
)
def test_average_share(queues: int, members: list[str], me: str, share: list[int]) -> None:
    assert list(average_share(range(queues), members, me)) == share


@given(st.integers(0, 60), MEMBERS)
def test_shares_partition_the_queues_contiguously(count: int, members: list[str]) -> None:
    shares = [average_share(range(count), members, me) for me in members]
    assert [queue for share in shares for queue in share] == list(range(count))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(st.lists(st.integers(0, 20)), st.lists(st.integers(0, 20)))
def test_reassign_leads_from_current_to_target(current: list[int], target: list[int]) -> None:
    added, removed = reassign(current, target)
    assert (set(current) | set(added)) - set(removed) == set(target)
    assert not set(added) & set(current)
    assert set(removed) <= set(current)
