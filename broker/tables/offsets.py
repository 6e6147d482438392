"""Committed offsets of consumer groups: the content of ``consumerOffset.json``.

This module does no I/O and reads no clock.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, NamedTuple

import orjson

from routekeeper.remoting.bodies import ConsumerOffsetTable
from routekeeper.remoting.errors import RemoteProtocolError
from routekeeper.remoting.lenient import FILE

_SEPARATOR = "@"
#: Bytes that the encoded table needs for one pair of topic and group, without the two names. The second
#: number is for one offset, without its queue id.
_PAIR_BYTES = 7
_OFFSET_BYTES = 23
#: Number of offsets above which a pair of topic and group is large. :meth:`ConsumerOffsets.snapshot` runs in
#: the event loop's thread. Therefore it does not encode large pairs. The function that it returns encodes
#: them.
LARGE: Final = 1000
#: The index of topics by group may still list deleted topics. One commit removes a deleted topic from up to
#: this number of groups.
SWEPT: Final = 16
#: Number of topics and offsets that one step of :meth:`ConsumerOffsets.drop_group` removes. A topic with more
#: offsets has a step of its own.
DROPPED: Final = 2000


class _LargePair:
    """Offsets of one large pair of topic and group, encoded at the first read. Any thread may read them."""

    __slots__ = ("_name", "_queues", "_text")

    def __init__(self, name: bytes, queues: dict[int, int]) -> None:
        self._name = name
        self._queues: dict[int, int] | None = queues
        self._text = b""

    def encoded(self) -> bytes:
        queues = self._queues
        if queues is not None:
            self._text = _encode(self._name, queues)
            # Forget the offsets only after the text is stored, because another thread may return the text.
            self._queues = None
        return self._text


def _encode(name: bytes, queues: Mapping[int, int]) -> bytes:
    return name + b":{" + b",".join(b"%d:%d" % entry for entry in queues.items()) + b"}"


def _bytes_of(queue_ids: Collection[int]) -> int:
    """Return the bytes that the encoded table needs for the offsets of these queues."""
    return sum(map(len, map(str, queue_ids))) + _OFFSET_BYTES * len(queue_ids)


class _Deleted(NamedTuple):
    """A deleted topic, and the groups under which the index (topics of each group) may still list it."""

    topic: str
    groups: dict[str, dict[int, int]]
    encoded: dict[str, bytes | _LargePair]


class ConsumerOffsets:
    """Next offset to consume, by topic, group and queue.

    The table also stores the offsets of each pair of topic and group in encoded form. To encode 700,000
    offsets at once would take half a second. The table has an index of the topics by group, because a
    search through all pairs takes some ms.

    Attributes:
        changed: Number of changes since the start. Code that stores the table compares this number with the
            number at the last write.
        size: Upper bound of the encoded table's size in bytes.
    """

    def __init__(self) -> None:
        # One dict contains everything of a topic, so that a deletion of the topic removes it at once.
        self._table: dict[str, dict[str, dict[int, int]]] = {}  # by topic, group and queue
        self._encoded: dict[str, dict[str, bytes | _LargePair]] = {}  # by topic and group
        self._sizes: dict[str, int] = {}  # the part of ``size`` that belongs to each topic
        # Topics of each group, in order of insertion. A topic may have been deleted: see ``_deleted``.
        self._topics: dict[str, dict[str, None]] = {}
        self._deleted: list[_Deleted] = []
        self._stale: dict[tuple[str, str], None] = {}  # pairs changed since they were encoded, oldest first
        self.changed = 0
        self.size = 0

    def commit(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Store an offset, even if it is lower than the current offset. A reset lowers offsets."""
        self.commit_all(topic, group, {queue_id: offset})

    def commit_all(
        self, topic: str, group: str, offsets: Mapping[int, int], *, size_max: int = sys.maxsize
    ) -> bool:
        """Store a group's offsets of several queues: all of them, or none.

        No step of this method calls a Python function for each queue. So the offsets of all 65,536 queues
        that a topic can have take some ms, and need not be divided into steps.

        Args:
            size_max: Largest size of the table in bytes. Offsets that do not enlarge the table are stored in
                any case.

        Returns:
            False if the table would become too large. Then nothing was stored.
        """
        if self._deleted:
            self._sweep()
        queues = self._table.get(topic, {}).get(group)
        new: Collection[int]
        new = offsets.keys() if queues is None else [each for each in offsets if each not in queues]
        if new:
            growth = _bytes_of(new)
            if queues is None:
                growth += len(topic) + len(group) + _PAIR_BYTES
            if self.size + growth > size_max:
                return False
            self.size += growth
            self._sizes[topic] = self._sizes.get(topic, 0) + growth
        elif queues is None or offsets.items() <= queues.items():
            return True  # nothing changes
        if queues is None:
            queues = self._table.setdefault(topic, {})[group] = {}
            self._topics.setdefault(group, {})[topic] = None
        queues.update(offsets)
        self._stale[topic, group] = None
        self.changed += 1
        return True

    def get(self, topic: str, group: str, queue_id: int) -> int | None:
        return self.queues(topic, group).get(queue_id)

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Return all pairs of a topic and a group that has offsets in the topic.

        The table may change during the iteration. Then the iterator may return removed pairs, and may leave
        out new pairs.
        """
        for topic in tuple(self._table):
            for group in self.groups_of(topic):
                yield topic, group

    def queues(self, topic: str, group: str) -> Mapping[int, int]:
        return self._table.get(topic, {}).get(group, {})

    def topics_of(self, group: str) -> tuple[str, ...]:
        topics = self._topics.get(group, {})
        if self._deleted:
            return tuple(topic for topic in topics if group in self._table.get(topic, {}))
        return tuple(topics)

    def groups_of(self, topic: str) -> tuple[str, ...]:
        return tuple(self._table.get(topic, {}))

    def keep_within(self, within: Callable[[str, int, int], int | None]) -> None:
        """Lower each offset above the end of its queue. Remove offsets of missing topics.

        After a power cut, a consumer's offset may lie beyond the end of the log. If the consumer continued
        from its old offset, it would skip the next messages.

        Args:
            within: Function that returns the offset to keep, for a topic, a queue and the current offset. It
                returns None if the topic does not exist.
        """
        for topic, groups in list(self._table.items()):
            if within(topic, 0, 0) is None:
                self.drop_topic(topic)
                continue
            for group, queues in groups.items():
                kept = {queue_id: within(topic, queue_id, at) or 0 for queue_id, at in queues.items()}
                self.commit_all(topic, group, kept)

    def drop_topic(self, topic: str) -> None:
        """Remove all groups' offsets of a topic, in a time that does not depend on the number of groups.

        Each later commit removes some of these groups from the index of topics by group, and frees memory.
        """
        groups = self._table.pop(topic, None)
        if groups is None:
            return
        self._deleted.append(_Deleted(topic, groups, self._encoded.pop(topic, {})))
        self.size -= self._sizes.pop(topic)
        self.changed += 1

    def drop_group(self, group: str) -> Iterator[None]:
        """Remove a group's offsets in steps. Other code may run at each ``yield``.

        A step removes the offsets of one topic, or of several topics with few offsets (see :data:`DROPPED`).
        Offsets that the group commits between two steps may stay.
        """
        cost = 0
        for topic in self.topics_of(group):
            count = 1 + len(self.queues(topic, group))
            if cost and cost + count > DROPPED:
                yield
                cost = 0
            cost += count
            groups = self._table.get(topic, {})
            queues = groups.pop(group, None)
            if queues is None:
                continue  # the topic was deleted between two steps
            size = len(topic) + len(group) + _PAIR_BYTES + _bytes_of(queues)
            self.size -= size
            self._sizes[topic] -= size
            self._encoded.get(topic, {}).pop(group, None)
            if not groups:
                del self._table[topic], self._sizes[topic]
                self._encoded.pop(topic, None)
            self._forget_topic(topic, group)
            self.changed += 1

    def _forget_topic(self, topic: str, group: str) -> None:
        topics = self._topics.get(group, {})
        topics.pop(topic, None)
        if not topics:
            self._topics.pop(group, None)

    def _sweep(self) -> None:
        """Remove a deleted topic from the topics (``_topics``) of up to SWEPT groups.

        The topic stays among a group's topics if the group has offsets of a new topic of the same name.
        """
        topic, groups, encoded = self._deleted[-1]
        for _ in range(min(SWEPT, len(groups))):
            group, _ = groups.popitem()
            encoded.pop(group, None)
            if group not in self._table.get(topic, {}):
                self._forget_topic(topic, group)
        if not groups:
            self._deleted.pop()

    def to_json(self) -> bytes:
        """Return the encoded table."""
        return self.snapshot()()

    def snapshot(self) -> Callable[[], bytes]:
        """Return a function that encodes the current ``consumerOffset.json``.

        The function may run later and in any thread.
        """
        for topic, group in self._stale:
            queues = self._table.get(topic, {}).get(group)
            if queues is None:
                continue  # the pair was removed after its last change
            name = orjson.dumps(f"{topic}{_SEPARATOR}{group}")
            is_large = len(queues) > LARGE
            part = _LargePair(name, queues.copy()) if is_large else _encode(name, queues)
            self._encoded.setdefault(topic, {})[group] = part
        self._stale.clear()
        parts: list[bytes | _LargePair] = []
        for encoded in self._encoded.values():
            parts += encoded.values()

        def encode() -> bytes:
            texts = (part if isinstance(part, bytes) else part.encoded() for part in parts)
            return b'{"offsetTable":{' + b",".join(texts) + b"}}"

        return encode

    def load(self, text: str) -> None:
        """Load a stored file.

        Raises:
            ValueError: If the file cannot be read. The table is then unchanged.
        """
        try:
            stored = ConsumerOffsetTable.decode(text.encode(), FILE)
        except RemoteProtocolError as error:
            raise ValueError(f"consumerOffset.json: {error}") from None
        table: dict[str, dict[str, dict[int, int]]] = {}
        for key, queues in stored.offsets.items():
            topic, separator, group = key.partition(_SEPARATOR)
            if not separator:
                raise ValueError(f"consumerOffset.json: entry {key!r} is not topic@group")
            table.setdefault(topic, {})[group] = dict(queues)
        self._table, self._topics = table, {}
        self._encoded, self._stale, self._sizes, self._deleted = {}, {}, {}, []
        for topic, groups in table.items():
            size = 0
            for group, offsets in groups.items():
                self._topics.setdefault(group, {})[topic] = None
                self._stale[topic, group] = None
                size += len(topic) + len(group) + _PAIR_BYTES + _bytes_of(offsets)
            self._sizes[topic] = size
        self.size = sum(self._sizes.values())
