"""Lag of consumer groups, in messages and in time; pure.

A broker may have thousands of groups. ``/metrics`` names the groups with the greatest lag, and sums up all
groups. The store time of oldest messages is read for a bounded number of queues.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from routekeeper.broker.store.messages import MessageStore

PAIRS_MAX: Final = 100
"""Bound of the pairs of a topic and a group that are named."""
QUEUES_MAX: Final = 1_000
"""Bound of the queues of these pairs whose oldest message is read."""
KEPT_S: Final = 10.0
"""Seconds after which the oldest messages are read again."""


class Behind(NamedTuple):
    """A group with unconsumed messages in a topic.

    Attributes:
        queues: Queues with messages for it, each with the offset of the next one.
    """

    messages: int
    topic: str
    group: str
    queues: tuple[tuple[int, int], ...]


def most_behind(groups: Iterable[Behind]) -> list[Behind]:
    """Return the pairs to show, the greatest lag first."""
    return heapq.nlargest(PAIRS_MAX, groups)


def behind_in(
    store: MessageStore, topic: str, group: str, offsets: Mapping[int, int], *, queues_max: int = QUEUES_MAX
) -> Behind:
    """Return the lag of a group in a topic."""
    messages = 0
    queues: list[tuple[int, int]] = []
    for queue_id, offset in offsets.items():
        low, high = store.bounds(topic, queue_id)
        if offset < high:
            messages += high - offset
            if len(queues) < queues_max:
                queues.append((queue_id, max(offset, low)))
    return Behind(messages, topic, group, tuple(queues))


def oldest_messages(
    store: MessageStore, groups: Iterable[Behind]
) -> Callable[[], dict[tuple[str, str], int]]:
    """Return a function for any thread: the store time (Unix ms) of the oldest message for each of these.

    A pair whose messages cannot be read is left out. So are all pairs after the first :data:`QUEUES_MAX`
    queues.
    """
    looks, room = [], QUEUES_MAX
    for behind in groups:
        queues = behind.queues[:room]
        room -= len(queues)
        if queues:
            looks.append(((behind.topic, behind.group), store.stored_times(behind.topic, queues)))

    def read() -> dict[tuple[str, str], int]:
        times = {pair: [at for at in look() if at is not None] for pair, look in looks}
        return {pair: min(found) for pair, found in times.items() if found}

    return read
