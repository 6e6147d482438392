"""Lag of consumer groups, in messages and in time.

A broker may have thousands of groups. ``/metrics`` lists only the groups with the greatest lag, and the sum
of all groups. For the lag in time, the broker reads the store times of the oldest unconsumed messages, in a
bounded number of queues.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from routekeeper.broker.store.messages import MessageStore

PAIRS_MAX: Final = 100
"""Largest number of pairs of a topic and a group that ``/metrics`` lists."""
QUEUES_MAX: Final = 1_000
"""Largest number of queues whose oldest unconsumed message is read, for all listed pairs together."""
KEPT_S: Final = 10.0
"""Seconds after which ``/metrics`` reads the store times of the oldest unconsumed messages again."""


class Behind(NamedTuple):
    """The lag of a group in a topic.

    Attributes:
        queues: Queue id and offset of the group's next message, for each queue with unconsumed messages.
    """

    messages: int
    topic: str
    group: str
    queues: tuple[tuple[int, int], ...]


def most_behind(groups: Iterable[Behind]) -> list[Behind]:
    """Return the topic and group pairs that ``/metrics`` lists, the greatest lag first."""
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
    """Return a function that reads the store times (Unix ms) of groups' oldest unconsumed messages.

    The function may run in any thread. It returns one time for each pair of a topic and a group. A pair has
    no time if its messages cannot be read, or if the pairs before it have :data:`QUEUES_MAX` queues in total.
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
