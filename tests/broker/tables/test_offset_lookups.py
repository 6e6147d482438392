"""The cost of a search for a group's topics, or a topic's groups, depends only on the results."""

from __future__ import annotations

import time

import pytest

from routekeeper.broker.tables.offsets import ConsumerOffsets

TOPICS, GROUPS = 100, 1000


def filled() -> ConsumerOffsets:
    offsets = ConsumerOffsets()
    for topic in range(TOPICS):
        for group in range(GROUPS):
            offsets.commit(f"T{topic}", f"G{group}", 0, 1)
    return offsets


@pytest.mark.slow
def test_looks_cost_what_they_find() -> None:
    offsets = filled()
    begun = time.process_time()
    assert all(len(offsets.topics_of(f"G{group}")) == TOPICS for group in range(GROUPS))
    assert all(len(offsets.groups_of(f"T{topic}")) == GROUPS for topic in range(TOPICS))
    assert time.process_time() - begun < 0.5


@pytest.mark.slow
def test_removals_cost_what_they_remove() -> None:
    offsets = filled()
    begun = time.process_time()
    for group in range(GROUPS // 2):
        offsets.drop_group(f"G{group}")
    for topic in range(TOPICS):
        offsets.drop_topic(f"T{topic}")
    assert time.process_time() - begun < 0.7
    assert (offsets.pairs(), offsets.size) == ((), 0)
