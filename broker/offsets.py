"""Committed offsets of consumer groups (pure): ``consumerOffset.json``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from routekeeper.remoting.bodies import ConsumerOffsetTable
from routekeeper.remoting.errors import RemoteProtocolError
from routekeeper.remoting.lenient import FILE

_SEPARATOR = "@"


class ConsumerOffsets:
    """Next offset to consume, per topic, group and queue.

    ``changed`` counts modifications, so that a writer knows whether there is anything to store.
    """

    def __init__(self) -> None:
        self._table: dict[tuple[str, str], dict[int, int]] = {}
        self.changed = 0

    def commit(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Store an offset; a lower one than before is accepted, as resets need it."""
        queues = self._table.setdefault((topic, group), {})
        if queues.get(queue_id) != offset:
            queues[queue_id] = offset
            self.changed += 1

    def get(self, topic: str, group: str, queue_id: int) -> int | None:
        return self._table.get((topic, group), {}).get(queue_id)

    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Return each topic with a group that has offsets in it."""
        return tuple(self._table)

    def queues(self, topic: str, group: str) -> Mapping[int, int]:
        return self._table.get((topic, group), {})

    def topics_of(self, group: str) -> tuple[str, ...]:
        return tuple(topic for topic, owner in self._table if owner == group)

    def groups_of(self, topic: str) -> tuple[str, ...]:
        return tuple(group for name, group in self._table if name == topic)

    def keep_within(self, ends: Callable[[str, int], int | None]) -> None:
        """Bring offsets back to where the queues end; forget those of topics that do not exist.

        After a power cut without SYNC_FLUSH the log may be shorter than what was consumed. A consumer that
        went on from there would pass over the messages that come next.

        Args:
            ends: Returns where the queue of a topic ends; None if there is no such topic.
        """
        for (topic, group), queues in list(self._table.items()):
            if ends(topic, 0) is None:
                self._drop([(topic, group)])
                continue
            for queue_id, offset in list(queues.items()):
                self.commit(topic, group, queue_id, min(offset, ends(topic, queue_id) or 0))

    def drop_topic(self, topic: str) -> None:
        self._drop([key for key in self._table if key[0] == topic])

    def drop_group(self, group: str) -> None:
        self._drop([key for key in self._table if key[1] == group])

    def _drop(self, keys: list[tuple[str, str]]) -> None:
        for key in keys:
            del self._table[key]
            self.changed += 1

    def to_table(self) -> ConsumerOffsetTable:
        """Return the answer to request 43, whose encoding is also ``consumerOffset.json``."""
        return ConsumerOffsetTable(
            offsets={f"{topic}{_SEPARATOR}{group}": queues for (topic, group), queues in self._table.items()}
        )

    def load(self, text: str) -> None:
        """Take over a stored file.

        Raises:
            ValueError: If it cannot be read; nothing has changed then.
        """
        try:
            stored = ConsumerOffsetTable.decode(text.encode(), FILE)
        except RemoteProtocolError as error:
            raise ValueError(f"consumerOffset.json: {error}") from None
        table: dict[tuple[str, str], dict[int, int]] = {}
        for key, queues in stored.offsets.items():
            topic, separator, group = key.partition(_SEPARATOR)
            if not separator:
                raise ValueError(f"consumerOffset.json: entry {key!r} is not topic@group")
            table[topic, group] = dict(queues)
        self._table = table
