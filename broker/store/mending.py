"""Finds the messages of damaged queue entries again, in the log between the intact entries around them.

An entry of a file is trusted only if the log agrees: the record that it points to must have its topic, queue
and queue offset. Entries that this process appended itself need no such check.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from routekeeper.broker.store.commit_log import CommitLog
from routekeeper.broker.store.consume_queue import ENTRY, ConsumeQueue, Entry
from routekeeper.broker.store.log_scan import (
    RECORD_MAX,
    Damage,
    Padding,
    Record,
    find_record,
    scan,
    stored_at,
)
from routekeeper.broker.store.recovery import Holes

logger = logging.getLogger(__name__)

#: Number of entries on each side of a damaged one that are searched for an intact one.
_REACH: Final = 4096
#: Bound of the bytes of the log that are searched for one run of damaged entries: this takes a second of the
#: loop.
_SEARCHED_MAX: Final = 256 << 20
#: Bound of the remembered entries whose messages were not found, so that no pull searches for them again.
_UNFOUND_MAX: Final = 10_000
#: The entry of a lost message.
_LOST: Final = Entry(0, 0, 0)


class Mender:
    """Checks and repairs queue entries that were read from files, in the store's thread.

    Args:
        tags_code: Computes the entry's code for a message in the log.
        holes: Begin and end of each part that the log lacks: an entry that points there may be intact.

    Attributes:
        damaged: Number of damaged entries found so far.
    """

    def __init__(self, log: CommitLog, tags_code: Callable[[Record], int], *, holes: Holes) -> None:
        self.damaged = 0
        self._holes = holes
        self._log = log
        self._tags_code = tags_code
        self._unfound: set[tuple[str, int, int]] = set()

    def checked(self, topic: str, queue_id: int, queue: ConsumeQueue, index: int, block: bytes) -> bytes:
        """Return encoded entries of a file; damaged ones are replaced by entries from the log."""
        entries, before, end = list(map(Entry._make, ENTRY.iter_unpack(block))), -1, self._log.max_offset
        doubtful = []
        for at, entry in enumerate(entries):
            if before < entry.log_offset and is_plausible(entry, end):
                before = entry.log_offset
            else:
                doubtful.append(at)
        if not doubtful:
            return block
        for at in doubtful:
            entries[at] = self.find(topic, queue_id, queue, index + at) or _LOST
        return b"".join(ENTRY.pack(*entry) for entry in entries)

    def find(self, topic: str, queue_id: int, queue: ConsumeQueue, index: int) -> Entry | None:
        """Return the correct entry at an index, and repair its file; None if its message is lost."""
        if (topic, queue_id, index) in self._unfound:
            return None
        entry = queue.get(index)
        if entry is None or self.is_sound(topic, queue_id, index, entry):
            return entry
        first, begin = self._sound_before(topic, queue_id, queue, index)
        last, end = self._sound_after(topic, queue_id, queue, index)
        found = self._search(topic, queue_id, first, last, begin, end)
        self.damaged += last - first + 1
        logger.error(
            "queue entries damaged topic=%s queue=%s first=%s last=%s found=%s searched=%s-%s",
            *(topic, queue_id, first, last, len(found), begin, end),
        )
        for at in range(first, last + 1):
            if at in found:
                queue.overwrite(at, found[at])
            elif len(self._unfound) < _UNFOUND_MAX:
                self._unfound.add((topic, queue_id, at))
        return found.get(index)

    def is_sound(self, topic: str, queue_id: int, index: int, entry: Entry) -> bool:
        """Return whether the log has an entry's message at its offset, or the message is known to be lost."""
        if not is_plausible(entry, self._log.max_offset):
            return False
        begin, end = entry.log_offset, entry.log_offset + entry.size
        if entry.size == 0 or begin < self._log.min_offset:
            return True
        if any(begin < hole_end and end > hole_begin for hole_begin, hole_end in self._holes):
            return True
        stored = stored_at(
            self._log.read,
            topic=topic,
            queue_id=queue_id,
            queue_offset=index,
            log_offset=entry.log_offset,
            size=entry.size,
        )
        return stored is not None

    def _sound_before(self, topic: str, queue_id: int, queue: ConsumeQueue, index: int) -> tuple[int, int]:
        """Return the first entry of a damaged run, and the log offset behind the message before it."""
        low = max(queue.min_index, index - _REACH)
        for at in range(index - 1, low - 1, -1):
            entry = queue.get(at)
            if entry is not None and self.is_sound(topic, queue_id, at, entry):
                return at + 1, max(entry.log_offset + entry.size, self._log.min_offset)
        return low, self._log.min_offset

    def _sound_after(self, topic: str, queue_id: int, queue: ConsumeQueue, index: int) -> tuple[int, int]:
        """Return the last entry of a damaged run, and the log offset of the message behind it."""
        high = min(queue.max_index, index + 1 + _REACH)
        for at in range(index + 1, high):
            entry = queue.get(at)
            if entry is not None and self.is_sound(topic, queue_id, at, entry):
                return at - 1, entry.log_offset
        return high - 1, self._log.max_offset

    def _search(
        self, topic: str, queue_id: int, first: int, last: int, begin: int, end: int
    ) -> dict[int, Entry]:
        """Return entries of a queue by index, made from a part of the log."""
        found: dict[int, Entry] = {}
        end = min(end, begin + _SEARCHED_MAX)
        for base, _, data in self._log.contents(begin):
            resume: int | None = max(begin - base, 0)
            while resume is not None and base + resume < end:
                at, resume = resume, None
                for record in scan(data, at, base=base):
                    if isinstance(record, Damage):
                        resume = find_record(data, record.offset - base + 1, base=base)
                        break
                    if isinstance(record, Padding) or base + at >= end:
                        break
                    message, size = record
                    is_its = message.topic == topic and message.queue_id == queue_id
                    if is_its and first <= message.queue_offset <= last:
                        found[message.queue_offset] = Entry(base + at, size, self._tags_code(message))
                    at += size
            if base + len(data) >= end:
                break
        return found


def is_plausible(entry: Entry, end: int) -> bool:
    """Return whether an entry can be correct in a log with this end; an entry of zeros was never written."""
    log_offset, size, _ = entry
    if size == 0:
        return 0 < log_offset <= end
    return 0 < size <= RECORD_MAX and 0 <= log_offset <= end - size
