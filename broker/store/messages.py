"""The message store: one commit log, the consume queues that point into the log, and their recovery.

A message is stored as soon as it is in the log. Its queue entry follows at once in memory, and later in the
queue's file. The checkpoint has the log offset up to which the files of all queues are complete and synced.
Therefore, after a start, the store reads the log only from that offset on.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from routekeeper.broker.errors import FULL, Refused, StoreUnavailable, refused_for
from routekeeper.broker.store.commit_log import CommitLog
from routekeeper.broker.store.consume_queue import (
    ENTRY,
    ENTRY_SIZE,
    ConsumeQueue,
    Entry,
    Unwritten,
    write_entries,
)
from routekeeper.broker.store.files import DISK, Disk, make_directories, read_whole, remove_tree
from routekeeper.broker.store.log_scan import (
    HEAD_SIZE,
    Record,
    first_stored_at,
    is_record_of,
    read_record,
    size_of_record,
    stored_at,
)
from routekeeper.broker.store.mending import Mender, is_plausible
from routekeeper.broker.store.message_index import FILE_MESSAGES, MessageIndex
from routekeeper.broker.store.queues import Queues
from routekeeper.broker.store.recovery import Checkpoint, Holes, QueueKey, Recovery, sum_of_lengths
from routekeeper.broker.store.steps import Steps, no_work, run_here
from routekeeper.remoting.errors import LocalProtocolError
from routekeeper.remoting.message import Host, StoredMessage, encode_placed

logger = logging.getLogger(__name__)

#: Name of the checkpoint's file.
CHECKPOINT: Final = "checkpoint"
#: First part of the name of an empty file. The second part is the offset at which the log begins (20 digits).
BEGIN: Final = "commitlog-begins-"
_BEGIN_DIGITS: Final = 20
_BEGIN_NAME: Final = re.compile(rf"{BEGIN}[0-9]{{{_BEGIN_DIGITS}}}")
#: Largest number of queues with a cached block of entries: the block that was read last. A consumer that is
#: behind will next read the following entries of this block.
_BLOCKS_MAX: Final = 256
#: Largest number of queues whose missing messages are logged. Each queue is logged only once, because each
#: later pull may meet the same error.
_LOST_SAID_MAX: Final = 1000
#: Number of queues that one step of a checkpoint writes, or one step of a removal checks. One queue may take
#: some ms.
_QUEUES_AT_ONCE: Final = 64
#: Number of queues of deleted topics whose memory one step frees.
_FREED_AT_ONCE: Final = 2000
#: Least number of bytes of queue entries that one pull reads. Source: DefaultMessageStore.getMessage.
_SCAN_BYTES_MIN: Final = 16_000
#: Largest number of messages in a batch whose keys are indexed when they are stored. The messages of a larger
#: batch are indexed soon afterwards, in steps, because each message may have 64 keys.
INDEXED_AT_ONCE: Final = 16


class GetStatus(Enum):
    """Outcomes of reading a queue. The names are the remarks in RocketMQ's answers to pulls."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


class Batch(msgspec.Struct, frozen=True):
    """Result of reading a queue. ``body`` has the messages in the commit log's format."""

    status: GetStatus
    next_begin: int
    min_offset: int
    max_offset: int
    body: bytes = b""
    count: int = 0


class Placed(NamedTuple):
    """The position of a stored message in its queue and in the log."""

    queue_offset: int
    physical_offset: int


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is not in the commit log yet. Its fields are named as in ``StoredMessage``.

    Attributes:
        tags_code: Tag code of the queue entry, by which messages are filtered. In the schedule topic, the
            delivery time in Unix ms.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: str
    tags_code: int
    born_host: Host
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointWork:
    """The data of one checkpoint. The event loop's thread collects the data, and another thread writes them.

    Attributes:
        doomed: Deleted topics whose queue files are removed first. Each topic has the number of its deletion,
            counted since the start.
        counted: Sum of the queues of each topic that ``checkpoint`` counts.
    """

    entries: tuple[tuple[QueueKey, ConsumeQueue, Unwritten], ...]
    doomed: tuple[tuple[str, int], ...]
    counted: Mapping[str, int]
    checkpoint: Checkpoint


def read_checkpoint(disk: Disk, directory: Path) -> Checkpoint | None:
    """Return a store's last checkpoint, or None if it is unusable. Without it, the queues must be rebuilt."""
    try:
        content = read_whole(disk, directory / CHECKPOINT)
        return Checkpoint.parse(content.decode())
    except FileNotFoundError:
        return None
    except ValueError as error:
        logger.warning("checkpoint ignored error=%s", error)
        return None


def find_begin(disk: Disk, directory: Path) -> tuple[Path | None, int]:
    """Return the file whose name says where the log begins, and that offset. Without it, return (None, 0).

    If somebody copied another such file into the directory, the lower offset counts. Then no file of the log
    is removed by mistake.
    """
    found = sorted(name for name in disk.names(directory) if _BEGIN_NAME.fullmatch(name))
    return (directory / found[0], int(found[0].removeprefix(BEGIN))) if found else (None, 0)


def _nothing() -> None:
    return None


def _are_records_of(topic: str, queue_id: int, body: bytes, wanted: Sequence[tuple[int, Entry]]) -> bool:
    """Return True if ``body`` has exactly the records to which the ``wanted`` entries point, in order."""
    at = 0
    for index, (log_offset, size, _) in wanted:
        record = body[at : at + size]
        at += size
        if not is_record_of(
            record, topic=topic, queue_id=queue_id, queue_offset=index, log_offset=log_offset
        ):
            return False
    return at == len(body)


def _same(entry: Entry | None) -> Entry | None:
    return entry


class MessageStore:
    """Messages on disk. One thread calls all methods, except where a docstring allows another thread.

    Args:
        directory: Folder of ``consumequeue``, ``index`` and ``checkpoint``, and of ``commitlog`` unless
            ``log_directory`` is set.
        boot: Id of the machine's current boot, or empty if unknown.
        log_directory: Folder of the commit log, if it is not in ``directory``.
        store_host: Address to which clients can connect. It is part of each record and of each message id.
        tags_code: Function that computes the tag code in a queue entry from the message in the log.
        born_at: Function that returns the log offset from which on a topic's messages are valid. It returns
            None if no message is valid.
        index_messages: Largest number of messages in one index file.

    Attributes:
        deletions: Number of topics deleted since the start.
        queue_counts: For each topic, the highest id of a queue that had messages at the start, plus 1.
        index: Index of messages by key.

    Raises:
        StoreDamaged: If the files cannot be used without losing messages.
    """

    def __init__(
        self,
        directory: Path,
        *,
        log_file_size: int,
        queue_file_size: int,
        store_host: Host,
        tags_code: Callable[[Record], int],
        born_at: Callable[[str], int | None],
        boot: str,
        skip_damage: bool = False,
        log_directory: Path | None = None,
        index_messages: int = FILE_MESSAGES,
        disk: Disk = DISK,
    ) -> None:
        self._disk = disk
        self._born_at = born_at
        self._queue_root = directory / "consumequeue"
        self._checkpoint_path = directory / CHECKPOINT
        self._queue_file_size = queue_file_size
        self._file_size = log_file_size
        self._store_host = store_host
        self._boot = boot
        self.deletions = 0
        self._confirmed = -1  # no version of the topic table is known to be on disk yet
        self._topics_counter = 0
        self._blocks: dict[ConsumeQueue, tuple[int, bytes]] = {}
        # Queues of deleted topics. Their memory is freed later, in steps. A topic can have 65,536 queues.
        self._deleted: list[dict[int, ConsumeQueue]] = []
        self._lost_said: set[QueueKey] = set()
        self._queue_failure: str | None = None
        self._queue_refused = Refused.DISK_FAILED
        self._checkpointed: Checkpoint | None = None
        self._queues_from = 0  # queue files whose entries all point below this log offset were removed
        self._is_keeping = False  # True while old log files stay because of delayed messages
        make_directories(disk, directory)
        disk.sync_directory(directory)  # an earlier process may have failed to sync new file names
        self._begin_path, begin = find_begin(disk, directory)
        checkpoint = read_checkpoint(disk, directory)
        if checkpoint is not None:
            self._topics_counter = checkpoint.topics_counter
            if begin > checkpoint.log_offset:
                # The name of the file ``self._begin_path`` states where the log begins. In one store, the log
                # never begins above the checkpoint's offset. So this file must come from another store, such
                # as a newer copy.
                logger.warning("begin of the log ignored file=%s checkpoint=%s", begin, checkpoint.log_offset)
                begin = 0
            checkpoint = replace(checkpoint, log_min=max(checkpoint.log_min, begin))
        self.log = CommitLog(
            log_directory or directory / "commitlog",
            file_size=log_file_size,
            disk=disk,
            keep_from=0 if checkpoint is None else checkpoint.log_min,
        )
        recovery = Recovery(
            disk=disk,
            log=self.log,
            queue_root=self._queue_root,
            queue_file_size=queue_file_size,
            checkpoint=checkpoint,
            boot=boot,
            born_at=born_at,
            tags_code=tags_code,
            skip_damage=skip_damage,
        )
        recovery.run()
        self._covered = recovery.covered
        # Topics and queues whose files must be removed. Each has the number of its deletion, or -1 if it was
        # deleted before the start.
        self._doomed: dict[str, int] = dict.fromkeys(recovery.doomed, -1)
        # The checkpoint on disk if the queue files fit it, and the sum of each topic's queues in it.
        self._durable = checkpoint if recovery.counted is not None else None
        self._counted: Mapping[str, int] = recovery.counted or {}
        try:
            self.note_begin(self.log.min_offset)
        except OSError:
            # Do not start if the file's name still states a higher offset: the next start would remove log
            # files below that offset.
            if begin > self.log.min_offset:
                raise
        self._given_up = self.log.holes()
        self._mender = Mender(self.log, tags_code, holes=self._given_up)
        self._queues = Queues(recovery.queues)
        self.queue_counts: dict[str, int] = {}
        for (topic, queue_id), queue in recovery.queues.items():
            # A crash may leave a queue's file without valid entries. Such a file does not prove that the
            # topic exists. Otherwise a deleted topic would come back.
            if queue.max_index:
                self.queue_counts[topic] = max(self.queue_counts.get(topic, 0), queue_id + 1)
        self._begin()
        self.index = MessageIndex(disk, directory / "index", self.log, file_messages=index_messages)

    def _begin(self) -> None:
        """Write a checkpoint with the id of the current boot, before the first message is stored."""
        work = self.prepare_checkpoint()
        assert work is not None
        try:
            self.write_checkpoint(work)
        except (OSError, StoreUnavailable) as error:
            logger.error("checkpoint failed, no messages are taken error=%s", error)
            self.finish_checkpoint(work, failure=error)
        else:
            self.finish_checkpoint(work)

    @property
    def given_up(self) -> Holes:
        """Start and end offset of each missing part of the log that an operator has given up."""
        return tuple(hole for hole in self._given_up if hole[1] > self.log.min_offset)

    @property
    def damaged_entries(self) -> int:
        """Number of damaged entries found in files of queues since the start."""
        return self._mender.damaged

    @property
    def refusing(self) -> str | None:
        """Reason why the store accepts no messages, or None if it accepts them."""
        return self._queue_failure or self.log.broken or self.log.refused

    # Writing -------------------------------------------------------------------------------------

    def put(self, draft: Draft, *, now_ms: int) -> Placed:
        """Store one message.

        Raises:
            StoreUnavailable: If the message cannot be written. No part of the message was stored.
            LocalProtocolError: If a part of the message is too large.
        """
        queue = self._queue_for(draft)
        offset, log = queue.max_index, self.log
        start = log.max_offset
        record = encode_placed(draft, offset, start, now_ms, self._store_host)
        size = len(record)
        self._check_size(size)
        reserved = log.reserve(size)
        if reserved != start:
            record = encode_placed(draft, offset, reserved, now_ms, self._store_host)
        log.append(record)
        queue.append(reserved, size, draft.tags_code)
        self.index.note(draft.topic, draft.properties, reserved, reserved + size, now_ms)
        return Placed(offset, reserved)

    def put_all(self, drafts: Sequence[Draft], *, now_ms: int) -> list[Placed]:
        """Store messages of one queue with consecutive offsets, either all of them or none.

        Raises:
            StoreUnavailable: If the messages cannot be written. None of the messages was stored.
            LocalProtocolError: If a part of a message is too large, or if all messages together do not fit in
                one log file.
        """
        queue = self._queue_for(drafts[0])
        start = self.log.max_offset
        records = self._encode(drafts, queue.max_index, start, now_ms)
        size = sum(map(len, records))
        self._check_size(size)
        reserved = self.log.reserve(size)
        if reserved != start:
            records = self._encode(drafts, queue.max_index, reserved, now_ms)
        self.log.append(records[0] if len(records) == 1 else b"".join(records))
        placed = []
        topic, note, later = drafts[0].topic, self.index.note, len(drafts) > INDEXED_AT_ONCE
        for draft, record in zip(drafts, records, strict=True):
            placed.append(Placed(queue.max_index, reserved))
            queue.append(reserved, len(record), draft.tags_code)
            end = reserved + len(record)
            note(topic, draft.properties, reserved, end, now_ms, later=later)
            reserved = end
        return placed

    def _queue_for(self, draft: Draft) -> ConsumeQueue:
        if self._queue_failure is not None:
            raise StoreUnavailable(self._queue_failure, reason=self._queue_refused)
        queue = self._queues.get(draft.topic, draft.queue_id)
        return self._open_queue(draft.topic, draft.queue_id) if queue is None else queue

    def _check_size(self, size: int) -> None:
        if size + 8 > self._file_size:
            raise LocalProtocolError(f"records of {size} bytes do not fit a log file of {self._file_size}")

    def _encode(self, drafts: Sequence[Draft], first: int, offset: int, now_ms: int) -> list[bytes]:
        records = []
        for index, draft in enumerate(drafts, first):
            record = encode_placed(draft, index, offset, now_ms, self._store_host)
            records.append(record)
            offset += len(record)
        return records

    # Reading -------------------------------------------------------------------------------------

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int,
        bytes_max: int,
        codes: Collection[int] | None = None,
    ) -> Batch:
        """Read messages, starting at a queue offset.

        Args:
            bytes_max: Largest number of bytes. The first message is returned even if it is larger.
            codes: Wanted tag codes, or None for all messages.

        Raises:
            Mending: If entries are damaged, and the search for their messages has not finished.

        Source: DefaultMessageStore.getMessage, RocketMQ 4.9.4 and later.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            # The queue has no messages yet. RocketMQ would create the queue now, and give the same answer.
            return Batch(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        low, high = queue.min_index, queue.max_index
        if high == 0:
            return Batch(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
        if offset < low:
            return Batch(GetStatus.OFFSET_TOO_SMALL, low, low, high)
        if offset == high:
            return Batch(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        if offset > high:
            return Batch(GetStatus.OFFSET_OVERFLOW_BADLY, queue.within(offset), low, high)
        wide = max(_SCAN_BYTES_MIN // ENTRY_SIZE, count_max)
        # If the consumer wants all messages, read one entry per message. If the first message is lost, read
        # more entries, so that the pull can go on after lost messages.
        data = self._entries_at(topic, queue_id, queue, offset, count_max if codes is None else wide)
        if codes is None and data and ENTRY.unpack_from(data)[1] <= 0:
            data = self._entries_at(topic, queue_id, queue, offset, wide)
        if not data:
            return Batch(GetStatus.OFFSET_FOUND_NULL, min(offset + 1, high), low, high)
        runs: list[tuple[int, int]] = []  # log offset and size of each group of adjacent records
        run_begin = run_end = -1
        count = size = 0
        next_begin = offset
        log_min = self.log.min_offset
        gone = False
        for log_offset, record_size, tags_code in ENTRY.iter_unpack(data):
            if record_size <= 0 or log_offset < log_min:
                gone = gone or record_size > 0
            elif codes is None or tags_code in codes:
                if count and (count >= count_max or size + record_size > bytes_max):
                    break
                if log_offset != run_end:
                    if run_begin >= 0:
                        runs.append((run_begin, run_end - run_begin))
                    run_begin = log_offset
                run_end = log_offset + record_size
                count += 1
                size += record_size
            next_begin += 1
        if run_begin >= 0:
            runs.append((run_begin, run_end - run_begin))
        body = self.log.read_all(runs)
        if len(body) != size or not queue.holds(offset):
            wanted = [
                (index, entry)
                for index, entry in enumerate(map(Entry._make, ENTRY.iter_unpack(data)), offset)
                if index < next_begin
                and entry.size > 0
                and entry.log_offset >= log_min
                and (codes is None or entry.tags_code in codes)
            ]
            if len(body) != size or not _are_records_of(topic, queue_id, body, wanted):
                found = self._read_what_is_there(topic, queue_id, queue, wanted, codes)
                body, count = b"".join(found), len(found) or count
        if body:
            return Batch(GetStatus.FOUND, next_begin, low, high, body, count)
        status = GetStatus.MESSAGE_WAS_REMOVING if gone or count else GetStatus.NO_MATCHED_MESSAGE
        return Batch(status, next_begin, low, high)

    def _read_what_is_there(
        self,
        topic: str,
        queue_id: int,
        queue: ConsumeQueue,
        wanted: Sequence[tuple[int, Entry]],
        codes: Collection[int] | None,
    ) -> list[bytes]:
        """Return the wanted records that the log still has. Report missing records, once for each queue.

        Args:
            wanted: Queue offset and entry of each wanted record.
        """
        found, lost = [], []
        self._mender.allow()
        for index, entry in wanted:
            record, sound = self._record_of(topic, queue_id, queue, index, entry)
            if record is None:
                lost.append(index)
            elif codes is None or sound.tags_code in codes:
                found.append(record)
        key = topic, queue_id
        if lost and key not in self._lost_said and len(self._lost_said) < _LOST_SAID_MAX:
            self._lost_said.add(key)
            logger.error(
                "messages missing in the log topic=%s queue=%s first=%s last=%s count=%s",
                *(topic, queue_id, lost[0], lost[-1], len(lost)),
            )
        return found

    def _record_of(
        self, topic: str, queue_id: int, queue: ConsumeQueue, index: int, entry: Entry
    ) -> tuple[bytes | None, Entry]:
        """Return the record for an entry, or None if the log lacks it. Also return the repaired entry."""
        record = self._record_at(topic, queue_id, index, entry)
        if record is None:
            mended = self._mended(topic, queue_id, queue, index, entry)
            if mended is not None:
                entry, record = mended, self._record_at(topic, queue_id, index, mended)
        return record, entry

    def _record_at(self, topic: str, queue_id: int, index: int, entry: Entry) -> bytes | None:
        if entry.size <= 0 or not is_plausible(entry, self.log.max_offset):
            return None
        record = self.log.read(entry.log_offset, entry.size)
        if record is not None and is_record_of(
            record, topic=topic, queue_id=queue_id, queue_offset=index, log_offset=entry.log_offset
        ):
            return record
        return None

    def _mended(
        self, topic: str, queue_id: int, queue: ConsumeQueue, index: int, entry: Entry
    ) -> Entry | None:
        """Return the repaired entry for an entry that points to a wrong record, or None without a repair."""
        mended = None if queue.holds(index) else self._mender.find(topic, queue_id, queue, index)
        return None if mended == entry else mended

    def _entries_at(
        self, topic: str, queue_id: int, queue: ConsumeQueue, offset: int, count: int
    ) -> bytes | bytearray:
        """Return up to ``count`` encoded entries from an offset on, but none after the end of a file."""
        if queue.holds(offset):
            return queue.read_bytes(offset, count)
        first, block = self._blocks.get(queue, (0, b""))
        begin = (offset - first) * ENTRY_SIZE
        if begin < 0 or len(block) - begin < min(count, queue.max_index - offset) * ENTRY_SIZE:
            # Read more entries than needed, because a consumer that is behind will ask for the next messages.
            self._mender.allow()
            block = bytes(queue.read_bytes(offset, max(_SCAN_BYTES_MIN // ENTRY_SIZE, count)))
            block = self._mender.checked(topic, queue_id, queue, offset, block)
            begin = 0
            if queue not in self._blocks and len(self._blocks) >= _BLOCKS_MAX:
                del self._blocks[next(iter(self._blocks))]
            self._blocks[queue] = (offset, block)
        return block[begin : begin + count * ENTRY_SIZE]

    def message_at(self, physical_offset: int) -> StoredMessage | None:
        """Return the message whose record starts at a log offset, or None if no record starts there."""
        if physical_offset < 0:
            return None
        size = size_of_record(self.log.read(physical_offset, HEAD_SIZE), physical_offset)
        data = self.log.read(physical_offset, size) if size else None
        found = read_record(data, 0, base=physical_offset) if data else None
        return None if found is None else found[0]

    def counts(self, topic: str, physical_offset: int) -> bool:
        """Return True if a message belongs to the existing topic, not to a deleted topic of the same name."""
        born = self._born_at(topic)
        return born is not None and physical_offset >= born

    def message_in_queue(self, topic: str, queue_id: int, offset: int) -> StoredMessage | None:
        """Return the message at a queue offset, or None if there is no message.

        Raises:
            Mending: If the message's entry is damaged, and the search for the message has not finished.
        """
        self._mender.allow()
        queue = self._queues.get(topic, queue_id)
        entry = queue.get(offset) if queue is not None else None
        return None if entry is None else self.message_of(topic, queue_id, offset, entry)

    def message_of(self, topic: str, queue_id: int, offset: int, entry: Entry) -> StoredMessage | None:
        """Return the message for a queue entry that the caller has read, or None if it is lost or damaged.

        Raises:
            Mending: If the entry is damaged, and the search for its message has not finished.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None or (entry.size == 0 and entry.log_offset > 0):
            return None
        record, sound = self._record_of(topic, queue_id, queue, offset, entry)
        found = None if record is None else read_record(record, 0, base=sound.log_offset)
        return None if found is None else found[0]

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the (min, max) offsets of a queue, or (0, 0) for a queue that never had messages."""
        queue = self._queues.get(topic, queue_id)
        return (0, 0) if queue is None else (queue.min_index, queue.max_index)

    def within(self, topic: str, queue_id: int, offset: int) -> int:
        """Return ``offset``, lowered as :meth:`ConsumeQueue.within` does if it is above the queue's end."""
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else queue.within(offset)

    def entries(self, topic: str, queue_id: int, offset: int, count: int) -> list[Entry]:
        """Return up to ``count`` decoded queue entries, from an offset on.

        Raises:
            Mending: If entries are damaged, and the search for their messages has not finished.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return []
        offset = max(offset, queue.min_index)
        data = queue.read_bytes(offset, count)
        if not queue.holds(offset):
            self._mender.allow()
            data = self._mender.checked(topic, queue_id, queue, offset, bytes(data))
        return list(map(Entry._make, ENTRY.iter_unpack(data)))

    def store_timestamp(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return the store time (Unix ms) of the message at a queue offset, or None if there is no message.

        Raises:
            Mending: If the message's entry is damaged, and the search for the message has not finished.
        """
        self._mender.allow()
        return self._time_at(topic, queue_id, offset)

    def _time_at(self, topic: str, queue_id: int, offset: int) -> int | None:
        queue = self._queues.get(topic, queue_id)
        entry = queue.get(offset) if queue is not None else None
        if queue is None or entry is None or (entry.size == 0 and entry.log_offset > 0):
            return None
        stored = self._time_of(self.log.read, topic, queue_id, offset, entry)
        if stored is None:
            mended = self._mended(topic, queue_id, queue, offset, entry)
            stored = self._time_of(self.log.read, topic, queue_id, offset, mended)
        return stored

    def stored_times(self, topic: str, places: Sequence[tuple[int, int]]) -> Callable[[], list[int | None]]:
        """Return a function that reads messages' store times (Unix ms), or None for a missing message.

        Any thread may call that function.

        Args:
            places: Queue id and queue offset of each message.
        """
        looks = self._looks(topic, places)

        def read() -> list[int | None]:
            return [
                self._time_of(self.log.read_anywhere, topic, queue_id, offset, look())
                for (queue_id, offset), look in zip(places, looks, strict=True)
            ]

        return read

    def _looks(self, topic: str, places: Sequence[tuple[int, int]]) -> list[Callable[[], Entry | None]]:
        """Return a function for each message in ``places``, which returns the queue entry, or None.

        Any thread may call these functions.

        Args:
            places: Queue id and queue offset of each message.
        """
        # Look up entries in memory now, because only this thread may read them. The returned functions look
        # up the other entries in files.
        looks: list[Callable[[], Entry | None]] = []
        for queue_id, offset in places:
            queue = self._queues.get(topic, queue_id)
            if queue is None or not queue.min_index <= offset < queue.max_index:
                looks.append(_nothing)
            elif queue.holds(offset):
                looks.append(partial(_same, queue.get(offset)))
            else:
                looks.append(partial(queue.get, offset))
        return looks

    def _time_of(
        self,
        read: Callable[[int, int], bytes | None],
        topic: str,
        queue_id: int,
        offset: int,
        entry: Entry | None,
    ) -> int | None:
        """Return the store time of an entry's message, or None if the entry is damaged.

        Never repair an entry here. This method runs in any thread, but only the store's thread may repair.
        """
        if entry is None or entry.size <= 0 or not is_plausible(entry, self.log.max_offset):
            return None
        return stored_at(
            read,
            topic=topic,
            queue_id=queue_id,
            queue_offset=offset,
            log_offset=entry.log_offset,
            size=entry.size,
        )

    def offset_at_time(self, topic: str, queue_id: int, timestamp: int, *, upper: bool = False) -> int:
        """Return the offset of the first message stored at or after ``timestamp`` (Unix ms).

        If there is no such message, return the offset of the last message.

        Args:
            upper: True to return the last offset instead of the first, if several messages were stored in the
                millisecond ``timestamp``.

        Raises:
            Mending: If an entry is damaged, and the search for its message has not finished.
        """
        self._mender.allow()
        low, end = self.bounds(topic, queue_id)
        if low == end:
            return low
        high = end
        while low < high:
            middle = (low + high) // 2
            stored = self._time_at(topic, queue_id, middle)
            if stored is None or stored < timestamp or (upper and stored == timestamp):
                low = middle + 1
            else:
                high = middle
        if upper and low > self.bounds(topic, queue_id)[0]:
            before = self._time_at(topic, queue_id, low - 1)
            if before == timestamp:
                low -= 1
        return min(low, end - 1)

    def earliest_time(self, topic: str, queue_id: int) -> int:
        """Return the store time (Unix ms) of the first message of a queue, or -1 if there is no message."""
        stored = self.store_timestamp(topic, queue_id, self.bounds(topic, queue_id)[0])
        return -1 if stored is None else stored

    def earliest_log_time(self) -> int:
        """Return the store time (Unix ms) of the log's first message, or -1. Any thread may call this."""
        stored = first_stored_at(self.log.read_anywhere, self.log.min_offset)
        return -1 if stored is None else stored

    def queues_of(self, topic: str) -> tuple[int, ...]:
        """Return the ids of those queues of a topic that have or had messages."""
        return tuple(sorted(number for number, queue in self._queues.of(topic).items() if queue.max_index))

    def disk_space(self) -> tuple[int, int]:
        """Return size and free space of the log's file system, in bytes, or zeros if unknown."""
        return self._disk.space(self.log.directory)

    def disk_used(self) -> float:
        """Return the used share of the log's file system, from 0 to 1, or -1 if unknown."""
        size, free = self.disk_space()
        return 1 - free / size if size else -1.0

    # Deletion and checkpoints --------------------------------------------------------------------

    def delete_topic(self, topic: str) -> None:
        """Delete a topic's queues. The topic's records stay in the log until their log files are removed."""
        deleted = self._queues.remove(topic)
        self._mender.forget(deleted.values())
        self._deleted.append(deleted)
        self.deletions += 1
        self._doomed[topic] = self.deletions

    def confirm_topics(self, counter: int, deletions: int) -> None:
        """Note which version of the topic table is now on disk.

        Args:
            counter: Counter of that version. Later checkpoints contain this counter.
            deletions: Number of the last deletion in that version. Queue files of topics that were deleted up
                to this number may be removed.
        """
        self._topics_counter = max(self._topics_counter, counter)
        self._confirmed = max(self._confirmed, deletions)

    def remove_old_files(
        self, *, before: float, count_max: int = sys.maxsize, keep_from: int = sys.maxsize
    ) -> Steps:
        """Remove the oldest log files, and queue files whose entries all point into removed log files.

        This method needs no free space on the disk. Otherwise a full disk would never be cleaned. If some
        file of an earlier call still cannot be removed, no further messages are removed.

        Args:
            before: Only log files last written before this time (Unix s) are removed.
            count_max: Largest number of log files to remove.
            keep_from: Log offset of a message that must stay. Its log file and later files are not removed.

        Raises:
            OSError, StoreUnavailable: If the disk failed. Messages in files that stay are still readable.
        """
        # Try files of earlier calls first. If such a file stays on the disk, removing further messages may
        # free no room, so that call after call would remove messages in vain.
        yield self.log.remove_dropped
        old: int = yield lambda: self.log.first_kept(before, count_max)
        kept = self.log.start_of_file(keep_from)
        if kept < old and not self._is_keeping:
            logger.warning("old log files kept for delayed messages begins=%s ends=%s", kept, old)
        self._is_keeping = kept < old
        # Keep the log files above the checkpoint's offset. Queue entries of their messages may be in memory
        # only. After a crash, a start needs these messages to compute the next offset of each queue.
        offset = min(old, kept, self.log.start_of_file(self._covered))
        if offset > self.log.min_offset:
            yield self.log.flush  # a delayed message may be removed only when its delivered copy is on disk
            queues = tuple(self._queues)
            firsts: list[int] = yield lambda: [queue.first_in_files(offset) for queue in queues]
            yield partial(self.note_begin, offset)
            # Remove entries from the queues before the log removes their messages. Requests that are served
            # between two steps then find the message of each entry.
            for number, (queue, first) in enumerate(zip(queues, firsts, strict=True), 1):
                queue.raise_min(first, offset)
                if number % _QUEUES_AT_ONCE == 0:
                    yield no_work
            count = self.log.drop_before(offset)
            logger.info("log files removed count=%s min_offset=%s", count, offset)
        yield from self._remove_dropped_files()

    def _remove_dropped_files(self) -> Steps:
        """Remove the files of messages that are no longer in the log. A failure keeps no other file.

        Raises:
            OSError: If a file cannot be removed.
        """
        works: list[Callable[[], Any]] = [self.log.remove_dropped]
        works += [partial(self._disk.remove, path) for path in self.index.drop_before(self.log.min_offset)]
        offset = self.log.min_offset
        if offset > self._queues_from:
            self._queues_from = offset
            works += [queue.remove_old_files for queue in self._queues]
        failure = None
        for work in works:
            try:
                yield work
            except FileNotFoundError:
                pass  # somebody else has removed the file
            except OSError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def note_begin(self, offset: int) -> None:
        """Store durably that the log begins at ``offset``. Any thread may call this.

        The offset is part of a file's name, because renaming this file needs no free space. Writing a
        checkpoint does need free space. Log files below the offset may then be removed. If a power cut brings
        them back, the next start removes them again.

        Raises:
            OSError: If the disk failed.
        """
        path = self._checkpoint_path.with_name(f"{BEGIN}{offset:0{_BEGIN_DIGITS}d}")
        former = self._begin_path
        if former is not None and former != path:
            try:
                self._disk.rename(former, path)
            except FileNotFoundError:  # somebody removed the file: create a new one
                former = None
        if former is None:
            self._disk.close(self._disk.open(path, empty=True))
        self._begin_path = path
        self._disk.sync_directory(path.parent)

    def flush_log(self) -> int:
        """Sync the log, and return the offset below which messages survive a power cut.

        Any thread may call this method.

        Raises:
            StoreUnavailable: If the disk failed.
        """
        return self.log.flush()

    def checkpoint(self) -> Steps:
        """Write a checkpoint, and entries that are not in files yet. Never run two calls at the same time.

        After a failure, the store accepts no messages until a checkpoint works again.
        """
        work = self.prepare_checkpoint()
        if work is None:
            return
        try:
            yield from self._writing(work)
        except (OSError, StoreUnavailable) as error:
            if self._queue_failure is None:
                logger.error("checkpoint failed, no messages are taken error=%s", error)
            self.finish_checkpoint(work, failure=error)
            return
        if self._queue_failure is not None:
            logger.info("checkpoint works again")
        self.finish_checkpoint(work)
        while self._deleted:
            yield no_work
            queues = self._deleted[-1]
            for _ in range(min(_FREED_AT_ONCE, len(queues))):
                queues.popitem()
            if not queues:
                self._deleted.pop()

    def prepare_checkpoint(self) -> CheckpointWork | None:
        """Collect the data that a checkpoint has to write, or None if nothing has changed.

        Also return None while a topic's deletion is not on disk. After a crash, the topic would exist again,
        and its files must then be unchanged.
        """
        if any(number > self._confirmed for number in self._doomed.values()):
            return None
        counted = {
            topic: sum([queue.weighed_length for queue in queues.values()])
            for topic, queues in self._queues.by_topic().items()
        }
        checkpoint = Checkpoint(
            log_offset=self.log.max_offset,
            queue_entries=sum_of_lengths(counted.values()),
            log_min=self.log.min_offset,
            boot=self._boot,
            topics_counter=self._topics_counter,
            given_up=self.given_up,
        )
        if checkpoint == self._checkpointed and not self._doomed:
            return None
        entries = tuple(
            ((topic, queue_id), queue, work)
            for topic, queues in self._queues.by_topic().items()
            for queue_id, queue in queues.items()
            if (work := queue.unwritten()) is not None
        )
        return CheckpointWork(entries, tuple(self._doomed.items()), counted, checkpoint)

    def write_checkpoint(self, work: CheckpointWork) -> None:
        """Write and sync log, queue entries and checkpoint in one call.

        Raises:
            OSError, StoreUnavailable: If the disk failed. The caller must then collect the data again.
        """
        run_here(self._writing(work))

    def _writing(
        self, work: CheckpointWork, *, is_late: Callable[[], bool] = bool
    ) -> Generator[Callable[[], Any], Any, bool]:
        """Write log, queue entries and checkpoint in steps. Return False if ``is_late`` ended the work."""
        yield self.log.flush
        if work.doomed:
            yield from self._removing(work)
        # Forget these deletions even if a later step fails. Otherwise the next checkpoint would remove the
        # files that this checkpoint writes for new topics of the same names.
        for topic, deletion in work.doomed:
            if self._doomed.get(topic) == deletion:
                del self._doomed[topic]
        for start in range(0, len(work.entries), _QUEUES_AT_ONCE):
            if is_late():
                return False
            part = work.entries[start : start + _QUEUES_AT_ONCE]
            yield partial(self._write_queues, part)
            # Note these queues as written now, so that no later checkpoint writes the same entries again.
            self._note_written(part)
        yield partial(work.checkpoint.write, self._disk, self._checkpoint_path)
        return True

    def _removing(self, work: CheckpointWork) -> Steps:
        """Remove the queue files of deleted topics, after a checkpoint that does not count them.

        The files do not fit the former checkpoint any more as soon as one of them is removed. If the broker
        crashed then, the next start would build all queues anew from the log. A queue whose messages have all
        expired would then begin at 0 again, and its consumers would skip new messages.
        """
        if self._durable is not None:
            names = dict(work.doomed)
            counted = {topic: part for topic, part in self._counted.items() if topic not in names}
            # Only the former checkpoint's part of the log has all entries in files.
            checkpoint = replace(
                work.checkpoint,
                log_offset=self._durable.log_offset,
                queue_entries=sum_of_lengths(counted.values()),
                boot=self._durable.boot,
                deleted=tuple(dict.fromkeys([*self._durable.deleted, *names])),
            )
            try:
                yield partial(checkpoint.write, self._disk, self._checkpoint_path)
                self._durable, self._counted = checkpoint, counted
            except OSError as error:
                if error.errno not in FULL:
                    raise
                # On a full disk only the removal may make room for a checkpoint. If the broker crashes before
                # it has written one, the next start builds all queues anew.
                self._durable = None
        yield partial(self._remove_trees, [self._queue_root / name for name, _ in work.doomed])

    def _remove_trees(self, paths: Sequence[Path]) -> None:
        for path in paths:
            remove_tree(self._disk, path)
        for parent in dict.fromkeys(path.parent for path in paths):
            if self._disk.is_there(parent):
                self._disk.sync_directory(parent)

    def _write_queues(self, entries: Sequence[tuple[QueueKey, ConsumeQueue, Unwritten]]) -> None:
        for _, _, unwritten in entries:
            write_entries(self._disk, unwritten)

    def _note_written(self, entries: Sequence[tuple[QueueKey, ConsumeQueue, Unwritten]]) -> None:
        for key, queue, unwritten in entries:
            if self._queues.get(*key) is queue:
                queue.written(unwritten)

    def finish_checkpoint(
        self, work: CheckpointWork, *, failure: OSError | StoreUnavailable | None = None
    ) -> None:
        """Note the outcome of :meth:`write_checkpoint`. After a failure the store accepts no messages."""
        if failure is not None:
            reason = failure.strerror if isinstance(failure, OSError) else failure
            self._queue_failure = f"cannot write queue files: {reason}"
            self._queue_refused = refused_for(failure)
            self._checkpointed = None
            return
        self._queue_failure = None
        self._checkpointed = work.checkpoint
        self._covered = work.checkpoint.log_offset
        self._durable, self._counted = work.checkpoint, work.counted

    def close(self) -> None:
        """Write a last checkpoint and close the files.

        Raises:
            OSError, StoreUnavailable: If the disk failed.
        """
        try:
            for step in self.closing(bool):
                step()
        finally:
            self.log.close()

    def closing(self, is_late: Callable[[], bool]) -> Steps:
        """Write a last checkpoint in steps, and close the files.

        Args:
            is_late: Function that is called between steps. As soon as it returns True, no further queue files
                are written.

        Raises:
            OSError, StoreUnavailable: If the disk failed.
        """
        work = self.prepare_checkpoint()
        if work is not None:
            if (yield from self._writing(work, is_late=is_late)):
                self.finish_checkpoint(work)
            else:
                logger.warning(
                    "files of some queues not written at the end, the next start reads the log offset=%s",
                    self.log.min_offset if self._checkpointed is None else self._checkpointed.log_offset,
                )
        yield self.log.close

    # Helper methods ------------------------------------------------------------------------------

    @property
    def queue_count(self) -> int:
        """Number of queues that the store has opened: queues with messages, and reserved empty queues."""
        return len(self._queues)

    def queue_keys(self) -> tuple[QueueKey, ...]:
        """Return topic and queue id of each queue that the store has opened."""
        return tuple(self._queues.keys())

    def has_queue(self, topic: str, queue_id: int) -> bool:
        """Return True if the store has opened this queue: it has messages, or it was reserved."""
        return self._queues.get(topic, queue_id) is not None

    def reserve_queue(self, topic: str, queue_id: int) -> None:
        """Open a queue before its first message. The queue gets a file only after a message is stored."""
        self._open_queue(topic, queue_id)

    def _open_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        directory = self._queue_root / topic / str(queue_id)
        queue = ConsumeQueue(directory, file_size=self._queue_file_size, disk=self._disk)
        self._queues.add(topic, queue_id, queue)
        return queue
