"""The queues that a store has opened, by topic and queue id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final

from routekeeper.broker.store.consume_queue import ConsumeQueue
from routekeeper.broker.store.recovery import QueueKey

_NONE: Final[Mapping[int, ConsumeQueue]] = {}


class Queues:
    """Queues in one dict for each topic, so that the queues of a topic are removed at once.

    A topic may have 65,536 queues. To find and remove them one by one would delay all other requests.
    """

    def __init__(self, found: Mapping[QueueKey, ConsumeQueue]) -> None:
        self._by_topic: dict[str, dict[int, ConsumeQueue]] = {}
        self._count = 0
        for (topic, queue_id), queue in found.items():
            self.add(topic, queue_id, queue)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return chain.from_iterable(map(dict.values, self._by_topic.values()))

    def keys(self) -> Iterator[QueueKey]:
        """Return topic and queue id of each queue."""
        return ((topic, queue_id) for topic, queues in self._by_topic.items() for queue_id in queues)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._by_topic.get(topic, _NONE).get(queue_id)

    def of(self, topic: str) -> Mapping[int, ConsumeQueue]:
        """Return the queues of a topic, by queue id."""
        return self._by_topic.get(topic, _NONE)

    def by_topic(self) -> Mapping[str, Mapping[int, ConsumeQueue]]:
        return self._by_topic

    def add(self, topic: str, queue_id: int, queue: ConsumeQueue) -> None:
        queues = self._by_topic.setdefault(topic, {})
        self._count += queue_id not in queues
        queues[queue_id] = queue

    def remove(self, topic: str) -> dict[int, ConsumeQueue]:
        """Remove the queues of a topic, and return them."""
        queues = self._by_topic.pop(topic, {})
        self._count -= len(queues)
        return queues
