"""Lag of consumer groups, in messages and in time; pure.

A broker may have thousands of groups. Those that are behind most are named, all of them are summed up, and
the time at which their oldest messages were stored is read of a bounded number of queues.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from routekeeper.broker.store.messages import MessageStore

PAIRS_MAX: Final = 100
"""Pairs of a topic and a group that are named."""
QUEUES_MAX: Final = 1_000
"""Queues of these whose oldest message is looked for."""
KEPT_S: Final = 10.0
"""Seconds after which the messages are looked for again."""


class Behind(NamedTuple):
    """A group that is behind in a topic.

    Attributes:
        queues: Those that have messages for it, each with the offset of the next one.
    """

    messages: int
    topic: str
    group: str
    queues: tuple[tuple[int, int], ...]


def most_behind(groups: Iterable[Behind]) -> list[Behind]:
    """Return the pairs to show, those that are behind most first."""
    return heapq.nlargest(PAIRS_MAX, groups)


def behind_in(
    store: MessageStore, topic: str, group: str, offsets: Mapping[int, int], *, queues_max: int = QUEUES_MAX
) -> Behind:
    """Return how far a group is behind in a topic."""
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

    A pair whose messages cannot be read is left out, and so are those behind :data:`QUEUES_MAX` queues.
    """
    looks, room = [], QUEUES_MAX
    for behind in groups:
        queues = behind.queues[:room]
        room -= len(queues)
        if queues:
            looks.append(((behind.topic, behind.group), store.times_stored(behind.topic, queues)))

    def read() -> dict[tuple[str, str], int]:
        times = {pair: [at for at in look() if at is not None] for pair, look in looks}
        return {pair: min(found) for pair, found in times.items() if found}

    return read
