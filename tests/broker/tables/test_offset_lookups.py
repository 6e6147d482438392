"""The cost of a search for a group's topics, or a topic's groups, depends only on the number of results."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from routekeeper.broker.tables.offsets import ConsumerOffsets
from tests.cost import least_cpu_s, on_this_machine

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

    def look() -> None:
        assert all(len(offsets.topics_of(f"G{group}")) == TOPICS for group in range(GROUPS))
        assert all(len(offsets.groups_of(f"T{topic}")) == GROUPS for topic in range(TOPICS))

    allowed = on_this_machine(0.5)
    assert least_cpu_s(lambda: look, below=allowed) < allowed


@pytest.mark.slow
def test_removals_cost_what_they_remove() -> None:
    def removals() -> Callable[[], None]:
        offsets = filled()

        def remove() -> None:
            for group in range(GROUPS // 2):
                list(offsets.drop_group(f"G{group}"))
            for topic in range(TOPICS):
                offsets.drop_topic(f"T{topic}")
            assert (tuple(offsets.pairs()), offsets.size) == ((), 0)

        return remove

    allowed = on_this_machine(0.7)
    assert least_cpu_s(removals, below=allowed) < allowed
