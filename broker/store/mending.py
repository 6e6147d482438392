"""Repair of damaged queue entries, by a search for their messages between the nearest intact entries.

An entry that was read from a file is trusted only if it agrees with the log. This means that the record to
which it points has the entry's topic, queue and queue offset. Entries that this process appended itself need
no such check. A search may read 256 MiB of the log. Therefore a search is done in slices, and each call of a
reader does one slice. Until the search ends, readers get the error :class:`Mending`.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Callable, Collection, Generator, Iterator
from itertools import pairwise
from typing import Final

from routekeeper.broker.errors import Refusal
from routekeeper.broker.store.commit_log import CommitLog, Part
from routekeeper.broker.store.consume_queue import ENTRY, ConsumeQueue, Entry
from routekeeper.broker.store.log_scan import (
    RECORD_MAX,
    Damage,
    Padding,
    Record,
    positions,
    read_indexed,
    scan,
    stored_at,
)
from routekeeper.broker.store.recovery import Holes
from routekeeper.remoting.codes import ResponseCode

logger = logging.getLogger(__name__)

#: Number of entries before a damaged entry, and after it, among which a search looks for an intact entry.
_REACH: Final = 4096
#: Largest number of log bytes that are searched for one sequence of damaged entries. The slices of such a
#: search take one second of the event loop's time in total.
_SEARCHED_MAX: Final = 256 << 20
#: Number of work units in one slice of a search. A slice takes 5 ms. Each of these actions costs one unit:
#: - to compare an entry with the log;
#: - to decode a record;
#: - to read :data:`_BYTES` of the log.
SLICE: Final = 1024
_BYTES: Final = 4096
#: Number of bytes of the log that a search reads in one call.
_PART_BYTES: Final = 256 << 10
#: Number of positions with a record's magic that may be tried for one work unit.
_TRIES: Final = 4
#: Number of entries that are read or written in one call, and the work units that this call costs. Checks of
#: the entries cost extra units.
_BLOCK: Final = 256
_BLOCK_WORK: Final = 16
#: Largest number of items in each of two tables:
#: - sequences of entries whose messages were not found, so that no pull searches for them again;
#: - repaired entries that could not be written to their file.
LOST_RUNS_MAX: Final = 10_000
#: Entry to return for a lost message.
_LOST: Final = Entry(0, 0, 0)

_Work = Generator[None, None, None]


class Mending(Refusal):
    """The broker still searches the log for messages of damaged entries, so the reader must try again."""

    def __init__(self, topic: str, queue_id: int) -> None:
        super().__init__(
            ResponseCode.SYSTEM_BUSY,
            f"damaged entries of queue {queue_id} of topic {topic} are being searched in the log: try again",
        )


class _Search:
    """A search for the messages of adjacent damaged entries. The entry at ``index`` caused the search."""

    __slots__ = ("index", "queue", "work")

    def __init__(self, queue: ConsumeQueue, index: int, work: _Work) -> None:
        self.queue = queue
        self.index = index
        self.work = work


class Mender:
    """Check and repair of queue entries that were read from files. Only the store's thread may use it.

    Args:
        tags_code: Function that computes the tag code in a queue entry from the message in the log.
        holes: Start and end offset of each missing part of the log. An entry that points there is trusted.

    Attributes:
        damaged: Number of damaged entries found so far.
    """

    def __init__(self, log: CommitLog, tags_code: Callable[[Record], int], *, holes: Holes) -> None:
        self.damaged = 0
        self._holes = holes
        self._log = log
        self._tags_code = tags_code
        self._left = 0  # work units that the current reader may still use
        # True after the current reader has advanced a search. The first step of a reader gets at least
        # SLICE / 4 work units, so that each reader brings a search nearer to its end.
        self._has_advanced = True
        self._search: _Search | None = None
        self._searches_ended = 0
        self._lost: dict[ConsumeQueue, list[tuple[int, int]]] = {}  # indexes (first, last) of lost entries
        self._lost_runs = 0
        self._is_full = False
        self._unwritten: dict[tuple[ConsumeQueue, int], Entry] = {}

    def allow(self) -> None:
        """Allow the following calls to use :data:`SLICE` work units in total."""
        self._left, self._has_advanced = SLICE, False

    def forget(self, queues: Collection[ConsumeQueue]) -> None:
        """Abandon the search in deleted queues, because new queues may soon use files of the same names."""
        if self._search is not None and self._search.queue in queues:
            self._search = None
        if self._lost:  # skip slow comparisons if possible, because a topic can have 65,536 queues
            for queue in self._lost.keys() & queues:
                self._lost_runs -= len(self._lost.pop(queue))

    def checked(self, topic: str, queue_id: int, queue: ConsumeQueue, index: int, block: bytes) -> bytes:
        """Return encoded entries of a file. Damaged entries are replaced by entries made from the log.

        Raises:
            Mending: If the search for damaged entries' messages takes longer than one slice.
        """
        entries, before, end = list(map(Entry._make, ENTRY.iter_unpack(block))), -1, self._log.max_offset
        doubtful = []
        for at, entry in enumerate(entries):
            if before < entry.log_offset and is_plausible(entry, end):
                before = entry.log_offset
            else:
                doubtful.append(at)
        if not doubtful:
            return block
        ended = self._searches_ended
        for at in doubtful:
            if self._searches_ended != ended:  # a search that ended here may have repaired later entries, too
                ended, following = self._searches_ended, queue.read(index + at, len(entries) - at)
                entries[at : at + len(following)] = following
            entries[at] = self._found(topic, queue_id, queue, index + at, entries[at]) or _LOST
        return b"".join(ENTRY.pack(*entry) for entry in entries)

    def find(self, topic: str, queue_id: int, queue: ConsumeQueue, index: int) -> Entry | None:
        """Return the correct entry at an index, or None if the message is lost. Repair the queue's file.

        Raises:
            Mending: If the search takes longer than one slice.
        """
        entry = queue.get(index)
        return None if entry is None else self._found(topic, queue_id, queue, index, entry)

    def _found(
        self, topic: str, queue_id: int, queue: ConsumeQueue, index: int, entry: Entry
    ) -> Entry | None:
        """Return ``entry`` if it is correct, otherwise a repaired entry, or None if the message is lost."""
        is_searched = False
        while True:
            if self.is_sound(topic, queue_id, index, entry):
                return entry
            if (kept := self._unwritten.get((queue, index))) is not None:
                return kept
            if is_searched or self._is_lost(queue, index):
                return None
            if self._lost_runs >= LOST_RUNS_MAX:
                if not self._is_full:
                    logger.error(
                        "damaged queue entries are searched no more, too many are lost runs=%s", LOST_RUNS_MAX
                    )
                self._is_full = True
                return None
            is_searched = self._advance(topic, queue_id, queue, index)
            entry = queue.get(index) or entry

    def _advance(self, topic: str, queue_id: int, queue: ConsumeQueue, index: int) -> bool:
        """Advance the running search. If none is running, begin a search for this entry.

        Return True if the search for this entry is over.
        """
        search = self._search
        if search is None:
            search = self._search = _Search(queue, index, self._searching(topic, queue_id, queue, index))
        if not self._has_advanced:
            self._left = max(self._left, SLICE // 4, 1)
        self._has_advanced = True
        if self._left > 0 and self._is_over(search):
            return search.queue is queue and search.index == index
        raise Mending(topic, queue_id)

    def _is_over(self, search: _Search) -> bool:
        """Do the next slice (limited amount of work) of a search. Return True if the search is over.

        Raises:
            OSError: If the disk cannot be read. A later reader begins this search again.
        """
        self._search = None
        for _ in search.work:
            self._search = search
            return False
        self._searches_ended += 1
        return True

    def is_sound(self, topic: str, queue_id: int, index: int, entry: Entry) -> bool:
        """Return True if an entry can be trusted: the log confirms it, or its message was removed or lost."""
        if not is_plausible(entry, self._log.max_offset):
            return False
        begin, end = entry.log_offset, entry.log_offset + entry.size
        if entry.size == 0 or begin < self._log.min_offset:
            return True
        if any(begin < hole_end and end > hole_begin for hole_begin, hole_end in self._holes):
            return True
        self._left -= 1
        stored = stored_at(
            self._log.read,
            topic=topic,
            queue_id=queue_id,
            queue_offset=index,
            log_offset=entry.log_offset,
            size=entry.size,
        )
        return stored is not None

    # Search for messages -------------------------------------------------------------------------

    def _searching(self, topic: str, queue_id: int, queue: ConsumeQueue, index: int) -> _Work:
        """Find the messages of adjacent damaged entries, and repair the entries.

        Yield whenever the work units of the present reader are used up.
        """
        first, begin = yield from self._sound_before(topic, queue_id, queue, index)
        last, end = yield from self._sound_after(topic, queue_id, queue, index)
        found: dict[int, Entry] = {}
        position, stop = begin, min(end, begin + _SEARCHED_MAX)
        while position < stop:
            position = self._scan(topic, queue_id, range(first, last + 1), position, stop, found)
            if self._left <= 0:
                yield
        self.damaged += last - first + 1
        logger.error(
            "queue entries damaged topic=%s queue=%s first=%s last=%s found=%s searched=%s-%s",
            *(topic, queue_id, first, last, len(found), begin, end),
        )
        yield from self._repair(queue, found)
        self._note_lost(queue, first, last, sorted(found))

    def _sound_before(
        self, topic: str, queue_id: int, queue: ConsumeQueue, index: int
    ) -> Generator[None, None, tuple[int, int]]:
        """Return two numbers: the index of the first damaged entry in a sequence, and a log offset.

        The sequence contains the damaged entry at ``index``. The search for messages begins at the returned
        log offset. It lies after the nearest earlier message that has an intact entry.
        """
        low, first = max(queue.min_index, index - _REACH), None
        for end in range(index, low, -_BLOCK):
            begin = max(end - _BLOCK, low)
            block = list(self._entries(queue, begin, end))
            for at in range(end - 1, begin - 1, -1):
                entry = block[at - begin]
                if entry is not None and self.is_sound(topic, queue_id, at, entry):
                    sound = max(entry.log_offset + entry.size, self._log.min_offset)
                    return (at + 1 if first is None else first), sound
                if first is None and self._is_lost(queue, at):
                    first = at + 1  # the message of this entry is known to be lost, so do not search for it
            if self._left <= 0:
                yield
        return (low if first is None else first), self._log.min_offset

    def _sound_after(
        self, topic: str, queue_id: int, queue: ConsumeQueue, index: int
    ) -> Generator[None, None, tuple[int, int]]:
        """Return two numbers: the index of the last damaged entry in a sequence, and a log offset.

        The sequence contains the damaged entry at ``index``. The log offset is that of the first message
        after the sequence, at which the search for messages ends.
        """
        high, last = min(queue.max_index, index + 1 + _REACH), None
        for begin in range(index + 1, high, _BLOCK):
            for at, entry in enumerate(self._entries(queue, begin, min(begin + _BLOCK, high)), begin):
                if entry is not None and self.is_sound(topic, queue_id, at, entry):
                    return (at - 1 if last is None else last), entry.log_offset
                if last is None and self._is_lost(queue, at):
                    last = at - 1
            if self._left <= 0:
                yield
        return (high - 1 if last is None else last), self._log.max_offset

    def _entries(self, queue: ConsumeQueue, begin: int, end: int) -> Iterator[Entry | None]:
        """Yield the entries from index ``begin`` to ``end``, or None for an entry that the files lack."""
        self._left -= _BLOCK_WORK
        while begin < end:
            entries: list[Entry | None] = [*queue.read(begin, end - begin)]
            yield from entries or (None,)
            begin += len(entries) or 1

    def _scan(
        self, topic: str, queue_id: int, wanted: range, position: int, stop: int, found: dict[int, Entry]
    ) -> int:
        """Search the log from ``position`` on for messages of a queue, and put their entries into ``found``.

        Return the log offset at which the search must continue.
        """
        part = self._log.part(position, _PART_BYTES)
        if part is None:
            return stop
        at, base, data = 0, part.begin, part.data
        behind = part.file_end if part.following is None else part.following
        after_file = stop if part.following is None else part.following
        while self._left > 0 and base + at < stop:
            record = next(scan(data, at, base=base))
            # Accept padding only if it reaches the file's end, because damaged bytes may look like it.
            if isinstance(record, Padding) and record.end == behind:
                return after_file
            if isinstance(record, Padding | Damage):
                if part.cuts(at):
                    break
                resume = self._past_damage(part, at)
                if resume is None:
                    return after_file
                at = resume
                continue
            message, size = record
            self._left -= 1 + size // _BYTES
            is_its = message.topic == topic and message.queue_id == queue_id
            if is_its and message.queue_offset in wanted:
                found[message.queue_offset] = Entry(base + at, size, self._tags_code(message))
            at += size
        return base + at

    def _past_damage(self, part: Part, at: int) -> int | None:
        """Return the position of the first intact record after the damage at ``at``, in the data of ``part``.

        The search ends early at a record that ``part`` cuts, or if it has used up its work units (``_left``).
        Then return the position at which it must continue. Return None if the file has no further record.
        """
        data, base = part.data, part.begin
        limit = min(len(data), at + 1 + self._left * _BYTES)
        tries = self._left * _TRIES
        for position in positions(data, at + 1, end=limit):
            tries -= 1
            if tries < 0 or part.cuts(position) or read_indexed(data, position, base=base) is not None:
                reached = position
                break
        else:
            # The search finds a record only if its magic (bytes 4 to 7) lies before the limit. A record whose
            # magic lies later may begin in the last 8 bytes before the limit, so continue there.
            is_end = base + limit == part.file_end
            reached = limit if is_end else max(limit - 8, at + 1)
        self._left -= 1 + (reached - at) // _BYTES + (self._left * _TRIES - tries) // _TRIES
        return None if base + reached == part.file_end else reached

    def _repair(self, queue: ConsumeQueue, found: dict[int, Entry]) -> _Work:
        """Write entries to the queue's files. Keep entries in memory if the disk refuses the write."""
        if len(self._unwritten) + len(found) > LOST_RUNS_MAX:
            self._unwritten.clear()  # free this memory, because a later reader can find the entries again
        indexes = sorted(found)
        cuts = [at for at, (one, next_) in enumerate(pairwise(indexes), 1) if next_ != one + 1]
        for begin, end in pairwise([0, *cuts, len(indexes)]):
            for at in range(begin, end, _BLOCK):
                some = indexes[at : min(at + _BLOCK, end)]
                self._left -= _BLOCK_WORK
                if not queue.overwrite(some[0], [found[index] for index in some]):
                    self._unwritten |= {(queue, index): found[index] for index in some}
                if self._left <= 0:
                    yield

    # Lost messages -------------------------------------------------------------------------------

    def _is_lost(self, queue: ConsumeQueue, index: int) -> bool:
        runs = self._lost.get(queue)
        if runs is None:
            return False
        at = bisect.bisect_right(runs, index, key=_first_of)
        return at > 0 and index <= runs[at - 1][1]

    def _note_lost(self, queue: ConsumeQueue, first: int, last: int, found: list[int]) -> None:
        """Remember which entries from ``first`` to ``last`` were not found, up to the limit LOST_RUNS_MAX."""
        new = [
            (before + 1, after - 1)
            for before, after in pairwise([first - 1, *found, last + 1])
            if before + 1 < after
        ]
        del new[LOST_RUNS_MAX - self._lost_runs :]
        if new:
            runs = self._lost.setdefault(queue, [])
            at = bisect.bisect_right(runs, first, key=_first_of)
            runs[at:at] = new
            self._lost_runs += len(new)


def _first_of(run: tuple[int, int]) -> int:
    return run[0]


def is_plausible(entry: Entry, end: int) -> bool:
    """Return True if an entry may be correct. The log, which ends at ``end``, is not read.

    An entry of zeros is not correct. It comes from a part of a file that was never written.
    """
    log_offset, size, _ = entry
    if size == 0:
        return 0 < log_offset <= end
    return 0 < size <= RECORD_MAX and 0 <= log_offset <= end - size
