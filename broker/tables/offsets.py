"""Committed offsets of consumer groups: the content of ``consumerOffset.json`` (no I/O, no clock)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import orjson

from routekeeper.remoting.bodies import ConsumerOffsetTable
from routekeeper.remoting.errors import RemoteProtocolError
from routekeeper.remoting.lenient import FILE

_SEPARATOR = "@"
#: Bytes that the encoded table needs for one pair of topic and group, without the two names; and for one
#: offset, without its queue id.
_PAIR_BYTES = 7
_OFFSET_BYTES = 23


class ConsumerOffsets:
    """Next offset to consume, by topic, group and queue.

    The table also stores the offsets of each pair of topic and group in encoded form, because encoding
    700,000 offsets at once would take half a second. The table has indexes of the pairs by topic and by
    group, because a search through all pairs takes some ms.

    Attributes:
        changed: Number of changes since the start. Code that stores the table compares this number with the
            number at the last write.
        size: Upper bound of the encoded table's size in bytes.
    """

    def __init__(self) -> None:
        self._table: dict[tuple[str, str], dict[int, int]] = {}
        self._encoded: dict[tuple[str, str], bytes] = {}
        self._groups: dict[str, dict[str, None]] = {}  # groups of each topic, in order of insertion
        self._topics: dict[str, dict[str, None]] = {}  # topics of each group, in order of insertion
        self._stale: dict[tuple[str, str], None] = {}  # pairs changed since they were encoded, oldest first
        self.changed = 0
        self.size = 0

    def growth(self, topic: str, group: str, queue_id: int) -> int:
        """Return an upper bound of the bytes that a commit adds to the encoded table.

        The result is 0 if the group already has an offset in this queue.
        """
        queues = self._table.get((topic, group))
        if queues is None:
            return len(topic) + len(group) + _PAIR_BYTES + len(str(queue_id)) + _OFFSET_BYTES
        return 0 if queue_id in queues else len(str(queue_id)) + _OFFSET_BYTES

    def commit(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Store an offset, even if it is lower than the present offset: a reset lowers offsets."""
        self.size += self.growth(topic, group, queue_id)
        queues = self._table.get((topic, group))
        if queues is None:
            queues = self._table[topic, group] = {}
            self._list(topic, group)
        if queues.get(queue_id) != offset:
            queues[queue_id] = offset
            self._stale[topic, group] = None
            self.changed += 1

    def get(self, topic: str, group: str, queue_id: int) -> int | None:
        return self._table.get((topic, group), {}).get(queue_id)

    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Return all pairs of a topic and a group that has offsets in the topic."""
        return tuple(self._table)

    def queues(self, topic: str, group: str) -> Mapping[int, int]:
        return self._table.get((topic, group), {})

    def topics_of(self, group: str) -> tuple[str, ...]:
        return tuple(self._topics.get(group, ()))

    def groups_of(self, topic: str) -> tuple[str, ...]:
        return tuple(self._groups.get(topic, ()))

    def keep_within(self, ends: Callable[[str, int], int | None]) -> None:
        """Lower each offset beyond the end of its queue to that end; remove offsets of missing topics.

        After a power cut without SYNC_FLUSH, a consumer's offset may lie beyond the end of the log. If the
        consumer continued from its old offset, it would skip the next messages.

        Args:
            ends: Function that returns the end of a topic's queue; None if the topic does not exist.
        """
        for (topic, group), queues in list(self._table.items()):
            if ends(topic, 0) is None:
                self._drop([(topic, group)])
                continue
            for queue_id, offset in list(queues.items()):
                self.commit(topic, group, queue_id, min(offset, ends(topic, queue_id) or 0))

    def drop_topic(self, topic: str) -> None:
        self._drop([(topic, group) for group in self.groups_of(topic)])

    def drop_group(self, group: str) -> None:
        self._drop([(topic, group) for topic in self.topics_of(group)])

    def _drop(self, keys: list[tuple[str, str]]) -> None:
        for topic, group in keys:
            queues = self._table.pop((topic, group))
            for listed, name, other in ((self._groups, topic, group), (self._topics, group, topic)):
                del listed[name][other]
                if not listed[name]:
                    del listed[name]
            self._encoded.pop((topic, group), None)
            self._stale.pop((topic, group), None)
            self.size -= len(topic) + len(group) + _PAIR_BYTES
            self.size -= sum(len(str(queue_id)) + _OFFSET_BYTES for queue_id in queues)
            self.changed += 1

    def _list(self, topic: str, group: str) -> None:
        self._groups.setdefault(topic, {})[group] = None
        self._topics.setdefault(group, {})[topic] = None

    def to_json(self) -> bytes:
        """Return the encoded table, which answers request 43 (GET_ALL_CONSUMER_OFFSET)."""
        return self.snapshot()()

    def snapshot(self) -> Callable[[], bytes]:
        """Return a function that encodes the present ``consumerOffset.json``.

        The function may run later and in any thread.
        """
        for topic, group in self._stale:
            name = orjson.dumps(f"{topic}{_SEPARATOR}{group}")
            queues = b",".join(b"%d:%d" % entry for entry in self._table[topic, group].items())
            self._encoded[topic, group] = name + b":{" + queues + b"}"
        self._stale.clear()
        parts = tuple(self._encoded.values())
        return lambda: b'{"offsetTable":{' + b",".join(parts) + b"}}"

    def load(self, text: str) -> None:
        """Load a stored file.

        Raises:
            ValueError: If the file cannot be read; the table is then unchanged.
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
        self._groups, self._topics = {}, {}
        for topic, group in table:
            self._list(topic, group)
        self._encoded, self._stale = {}, dict.fromkeys(table)
        self.size = sum(
            len(topic)
            + len(group)
            + _PAIR_BYTES
            + sum(len(str(queue_id)) + _OFFSET_BYTES for queue_id in queues)
            for (topic, group), queues in table.items()
        )
