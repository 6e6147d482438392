"""The message store: one commit log, the consume queues that index it, and their recovery.

A message is stored once it is in the log; its queue entry follows at once in memory and later in the queue's
file. The checkpoint says up to which log offset the files of all queues are complete and synced, so that a
start reads the log only from there.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from mmap import mmap
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from broker.commit_log import CommitLog
from broker.consume_queue import ENTRY_SIZE, ConsumeQueue, Entry, Unwritten, write_entries
from broker.errors import StoreDamaged, StoreUnavailable
from broker.files import load_or_backup, write_atomic
from broker.recovery import Damage, Padding, find_record, read_record, scan
from remoting.errors import LocalProtocolError
from remoting.message import Host, StoredMessage, decode_message, encode_message

logger = logging.getLogger(__name__)

#: Bytes of queue entries that one pull looks through at least. Source: DefaultMessageStore.getMessage.
_SCAN_BYTES_MIN: Final = 16_000
#: Longest gap in a queue that recovery fills with empty entries; more cannot come from damaged records.
_GAP_MAX: Final = 10_000_000


class GetStatus(Enum):
    """What a look into a queue gave; the names are the remarks of pull answers."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@dataclass(frozen=True, slots=True)
class Batch:
    """Result of a look into a queue; ``body`` holds the messages as they lie in the log."""

    status: GetStatus
    next_begin: int
    min_offset: int
    max_offset: int
    body: bytes = b""
    count: int = 0


class Placed(NamedTuple):
    """Where a message went."""

    queue_offset: int
    physical_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A message that has no place yet; members as those of ``StoredMessage``.

    Attributes:
        tags_code: What the queue entry carries for filtering (in the schedule topic the delivery time).
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
    """What a checkpoint has to write; made by the loop, run by a thread."""

    entries: tuple[tuple[tuple[str, int], ConsumeQueue, Unwritten], ...]
    log_offset: int
    queue_entries: int


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    log_offset: int
    queue_entries: int


class MessageStore:
    """Messages on disk. One thread calls everything but :meth:`flush_log` and :meth:`write_checkpoint`.

    Args:
        directory: Holds ``commitlog``, ``consumequeue`` and ``checkpoint``.
        store_host: Goes into each record and so into message ids: what clients can dial.
        tags_code: Computes the entry's code of a message found in the log.
        keeps_topic: Says whether a topic still exists; records of others get no queue at recovery.
    """

    def __init__(
        self,
        directory: Path,
        *,
        log_file_size: int,
        queue_file_size: int,
        store_host: Host,
        tags_code: Callable[[StoredMessage], int],
        keeps_topic: Callable[[str], bool],
        skip_damage: bool = False,
    ) -> None:
        self._directory = directory
        self._queue_root = directory / "consumequeue"
        self._checkpoint_path = directory / "checkpoint"
        self._queue_file_size = queue_file_size
        self._store_host = store_host
        self._tags_code = tags_code
        self._keeps_topic = keeps_topic
        self._skip_damage = skip_damage
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        # Held while queue files are written or removed, so that a removed topic's files do not come back.
        self._files_lock = threading.Lock()
        self._checkpointing = threading.Lock()
        self._queue_failure: str | None = None
        self.log = CommitLog(directory / "commitlog", file_size=log_file_size)
        self._file_size = log_file_size
        self._recover()
        self._checkpointed = self.log.min_offset

    # Writing -------------------------------------------------------------------------------------

    def put(self, draft: Draft, *, now_ms: int) -> Placed:
        """Store one message.

        Raises:
            StoreUnavailable: If it cannot be written; nothing of it was.
            LocalProtocolError: If a part is above its limit.
        """
        return self.put_all((draft,), now_ms=now_ms)[0]

    def put_all(self, drafts: Sequence[Draft], *, now_ms: int) -> list[Placed]:
        """Store messages of one queue with consecutive offsets; all or none.

        Raises:
            StoreUnavailable: If they cannot be written; nothing of them was.
            LocalProtocolError: If a part is above its limit, or all together do not fit one log file.
        """
        if self._queue_failure is not None:
            raise StoreUnavailable(self._queue_failure)
        topic, queue_id = drafts[0].topic, drafts[0].queue_id
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = self._open_queue(topic, queue_id)
        start = self.log.max_offset
        records = self._encode(drafts, queue.max_index, start, now_ms)
        size = sum(map(len, records))
        if size + 8 > self._file_size:
            raise LocalProtocolError(f"records of {size} bytes do not fit a log file of {self._file_size}")
        reserved = self.log.reserve(size)
        if reserved != start:
            records = self._encode(drafts, queue.max_index, reserved, now_ms)
        self.log.append(records[0] if len(records) == 1 else b"".join(records))
        placed = []
        for draft, record in zip(drafts, records, strict=True):
            placed.append(Placed(queue.max_index, reserved))
            queue.append(reserved, len(record), draft.tags_code)
            reserved += len(record)
        return placed

    def _encode(self, drafts: Sequence[Draft], index: int, offset: int, now_ms: int) -> list[bytes]:
        records = []
        for draft in drafts:
            record = encode_message(
                StoredMessage(
                    topic=draft.topic,
                    queue_id=draft.queue_id,
                    body=draft.body,
                    properties=draft.properties,
                    flag=draft.flag,
                    queue_offset=index,
                    physical_offset=offset,
                    sys_flag=draft.sys_flag,
                    born_timestamp=draft.born_timestamp,
                    born_host=draft.born_host,
                    store_timestamp=now_ms,
                    store_host=self._store_host,
                    reconsume_times=draft.reconsume_times,
                    prepared_transaction_offset=draft.prepared_transaction_offset,
                )
            )
            records.append(record)
            index += 1
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
        """Read messages from a queue offset on.

        Args:
            bytes_max: At least one message is returned whatever its size.
            codes: Tag codes wanted; None for all.

        Source: DefaultMessageStore.getMessage, RocketMQ 4.9.4 and later.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            # Nobody wrote to it yet. RocketMQ makes the queue when it is looked for, with this outcome.
            return Batch(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        low, high = queue.min_index, queue.max_index
        if high == 0:
            return Batch(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
        if offset < low:
            return Batch(GetStatus.OFFSET_TOO_SMALL, low, low, high)
        if offset == high:
            return Batch(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        if offset > high:
            return Batch(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
        entries = queue.read(offset, max(_SCAN_BYTES_MIN // ENTRY_SIZE, count_max))
        if not entries:
            return Batch(GetStatus.OFFSET_FOUND_NULL, min(offset + 1, high), low, high)
        wanted: list[Entry] = []
        size = 0
        next_begin = offset
        log_min = self.log.min_offset
        gone = False
        for entry in entries:
            if entry.size <= 0 or entry.log_offset < log_min:
                gone = gone or entry.size > 0
            elif codes is None or entry.tags_code in codes:
                if wanted and (len(wanted) >= count_max or size + entry.size > bytes_max):
                    break
                wanted.append(entry)
                size += entry.size
            next_begin += 1
        body = self._read_records(wanted)
        if body:
            return Batch(GetStatus.FOUND, next_begin, low, high, body, len(wanted))
        status = GetStatus.MESSAGE_WAS_REMOVING if gone or wanted else GetStatus.NO_MATCHED_MESSAGE
        return Batch(status, next_begin, low, high)

    def message_at(self, physical_offset: int) -> StoredMessage | None:
        """Return the message whose record starts at a log offset."""
        if physical_offset < 0:
            return None
        head = self.log.read(physical_offset, 4)
        size = int.from_bytes(head, "big", signed=True) if head else 0
        data = self.log.read(physical_offset, size) if 0 < size <= self._file_size else None
        found = read_record(data, 0, base=physical_offset) if data else None
        return None if found is None else found[0]

    def message_in_queue(self, topic: str, queue_id: int, offset: int) -> StoredMessage | None:
        """Return the message at a queue offset."""
        queue = self._queues.get((topic, queue_id))
        entry = queue.get(offset) if queue is not None else None
        return None if entry is None or entry.size <= 0 else self._decode(entry)

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return (min, max) offset of a queue; (0, 0) for one that nobody wrote to."""
        queue = self._queues.get((topic, queue_id))
        return (0, 0) if queue is None else (queue.min_index, queue.max_index)

    def entries(self, topic: str, queue_id: int, offset: int, count: int) -> list[Entry]:
        """Return queue entries themselves."""
        queue = self._queues.get((topic, queue_id))
        return [] if queue is None else queue.read(max(offset, queue.min_index), count)

    def store_timestamp(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return when (Unix ms) the message at a queue offset was stored; None if there is none."""
        message = self.message_in_queue(topic, queue_id, offset)
        return None if message is None else message.store_timestamp

    def offset_at_time(self, topic: str, queue_id: int, timestamp: int, *, upper: bool = False) -> int:
        """Return the first offset stored at or after ``timestamp`` (Unix ms), at most the last existing one.

        Args:
            upper: Of messages stored in the same millisecond take the last instead of the first.
        """
        low, end = self.bounds(topic, queue_id)
        if low == end:
            return low
        high = end
        while low < high:
            middle = (low + high) // 2
            stored = self.store_timestamp(topic, queue_id, middle)
            if stored is None or stored < timestamp or (upper and stored == timestamp):
                low = middle + 1
            else:
                high = middle
        if upper and low > self.bounds(topic, queue_id)[0]:
            before = self.store_timestamp(topic, queue_id, low - 1)
            if before == timestamp:
                low -= 1
        return min(low, end - 1)

    def earliest_time(self, topic: str, queue_id: int) -> int:
        """Return when (Unix ms) the first message of a queue was stored, -1 if there is none."""
        stored = self.store_timestamp(topic, queue_id, self.bounds(topic, queue_id)[0])
        return -1 if stored is None else stored

    def earliest_log_time(self) -> int:
        """Return when (Unix ms) the first message of the log was stored, -1 if it is empty."""
        message = self.message_at(self.log.min_offset)
        return -1 if message is None else message.store_timestamp

    def queues_of(self, topic: str) -> tuple[int, ...]:
        """Return the queue ids of a topic that have been written to."""
        return tuple(sorted(queue_id for name, queue_id in self._queues if name == topic))

    def disk_space(self) -> tuple[int, int]:
        """Return (size, free) of the store's file system in bytes; zeros if it does not say."""
        try:
            found = os.statvfs(self._directory)
        except OSError:
            return 0, 0
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    # Upkeep --------------------------------------------------------------------------------------

    def delete_topic(self, topic: str) -> None:
        """Remove the queues of a topic; its records stay in the log until their file is removed."""
        doomed = [key for key in self._queues if key[0] == topic]
        with self._files_lock:
            for key in doomed:
                self._queues.pop(key).delete_files()
            shutil.rmtree(self._queue_root / topic, ignore_errors=True)
        self._checkpointed = -1  # the last checkpoint counts entries that are gone

    def delete_old_files(self, *, before: float) -> int:
        """Remove log files last written before an instant (Unix s); return how many."""
        removed = self.log.delete_segments_before(before)
        if removed:
            for queue in self._queues.values():
                queue.raise_min(self.log.min_offset)
            logger.info("log files removed count=%s min_offset=%s", len(removed), self.log.min_offset)
        return len(removed)

    def flush_log(self) -> int:
        """Sync the log, in any thread; return the offset below which messages survive a power cut.

        Raises:
            StoreUnavailable: If the disk refused.
        """
        return self.log.flush()

    def prepare_checkpoint(self) -> CheckpointWork | None:
        """Collect what a checkpoint has to write; None if there is nothing new."""
        end = self.log.max_offset
        if end == self._checkpointed:
            return None
        entries = tuple(
            (key, queue, work)
            for key, queue in self._queues.items()
            if (work := queue.unwritten()) is not None
        )
        total = sum(queue.max_index for queue in self._queues.values())
        return CheckpointWork(entries, end, total)

    def write_checkpoint(self, work: CheckpointWork) -> None:
        """Write and sync log, queue entries and checkpoint, in any thread.

        Raises:
            OSError, StoreUnavailable: If the disk refused; the work is to be prepared anew.
        """
        with self._checkpointing:
            self.log.flush()
            for key, queue, entries in work.entries:
                with self._files_lock:
                    if self._queues.get(key) is queue:
                        write_entries(entries)
            text = orjson.dumps({"logOffset": work.log_offset, "queueEntries": work.queue_entries}).decode()
            write_atomic(self._checkpoint_path, text, backup=False)

    def finish_checkpoint(self, work: CheckpointWork, *, failure: OSError | None = None) -> None:
        """Note the outcome of :meth:`write_checkpoint`; after a failure the store takes no messages."""
        if failure is not None:
            self._queue_failure = f"cannot write queue files: {failure.strerror}"
            return
        self._queue_failure = None
        for _, queue, entries in work.entries:
            queue.written(entries)
        self._checkpointed = work.log_offset

    def close(self) -> None:
        """Write a last checkpoint and close the files."""
        try:
            work = self.prepare_checkpoint()
            if work is not None:
                self.write_checkpoint(work)
                self.finish_checkpoint(work)
        finally:
            self.log.close()

    # Recovery ------------------------------------------------------------------------------------

    def _recover(self) -> None:
        checkpoint = self._read_checkpoint()
        start = self.log.min_offset
        if checkpoint is not None and self._recover_queues(checkpoint):
            start = checkpoint.log_offset
        else:
            self._drop_queues()
        if not self._replay(start):
            # The queues' files do not go with the log: build all of them anew.
            logger.warning("consume queues rebuilt from the log min_offset=%s", self.log.min_offset)
            self._drop_queues()
            if not self._replay(self.log.min_offset, gaps=True):
                raise StoreDamaged("the log holds a gap of queue offsets that no damage explains")
        self.log.flush()

    def _read_checkpoint(self) -> _Checkpoint | None:
        def parse(text: str) -> _Checkpoint:
            members = orjson.loads(text)
            return _Checkpoint(int(members["logOffset"]), int(members["queueEntries"]))

        try:
            found = load_or_backup(self._checkpoint_path, parse)
        except (ValueError, KeyError, TypeError) as error:
            logger.warning("checkpoint ignored error=%s", error)
            return None
        if found is None or not self.log.min_offset <= found.log_offset <= self.log.max_offset:
            return None
        return found

    def _recover_queues(self, checkpoint: _Checkpoint) -> bool:
        total = 0
        topics = [] if not self._queue_root.exists() else sorted(self._queue_root.iterdir())
        for topic in topics:
            if not self._keeps_topic(topic.name):
                shutil.rmtree(topic, ignore_errors=True)
                continue
            for directory in sorted(topic.iterdir()):
                queue = ConsumeQueue.recover(
                    directory,
                    file_size=self._queue_file_size,
                    log_min=self.log.min_offset,
                    log_end=checkpoint.log_offset,
                )
                if queue is None:
                    return False
                self._queues[topic.name, int(directory.name)] = queue
                total += queue.max_index
        return total == checkpoint.queue_entries

    def _drop_queues(self) -> None:
        self._queues.clear()
        shutil.rmtree(self._queue_root, ignore_errors=True)

    def _replay(self, start: int, *, gaps: bool = False) -> bool:
        """Read the log from ``start``, cut a torn tail, index what the queues lack.

        Returns:
            False if a queue lacks entries from before ``start``.

        Raises:
            StoreDamaged: If valid records follow a damaged one, unless damage is to be skipped.
        """
        replayed = 0
        for base, data in self.log.map_segments(start):
            position = max(start - base, 0)
            while position is not None:
                resume: int | None = None
                for found in scan(data, position, base=base):
                    if isinstance(found, Padding):
                        self.log.seal(base)
                    elif isinstance(found, Damage):
                        damage = int(found)
                        resume = self._after_damage(data, base, damage)
                        if resume is None:
                            logger.warning(
                                "torn log tail cut offset=%s bytes=%s", damage, base + len(data) - damage
                            )
                            self.log.truncate(damage)
                    else:
                        message, size = found
                        if not self._index(message, size, gaps=gaps or self._skip_damage):
                            return False
                        replayed += 1
                if resume is None:
                    break
                position = resume
        logger.info("log recovered start=%s end=%s messages=%s", start, self.log.max_offset, replayed)
        return True

    def _after_damage(self, data: mmap, base: int, damage: int) -> int | None:
        """Return where to go on in this file after damage, or None if nothing valid follows anywhere."""
        following = find_record(data, damage - base + 1, base=base)
        later = any(start > base for start in self.log.segment_starts)
        if following is None and not later:
            return None
        if not self._skip_damage:
            raise StoreDamaged(
                f"log damaged at offset {damage} in file {base:020d}, valid messages follow: restore it,"
                " or start with recoverDamagedLog=skip to give up what is damaged"
            )
        logger.error("damaged log skipped offset=%s file=%020d", damage, base)
        if following is None:
            self.log.seal(base)
            return len(data)
        return following

    def _index(self, message: StoredMessage, size: int, *, gaps: bool) -> bool:
        if not self._keeps_topic(message.topic):
            return True
        queue = self._queues.get((message.topic, message.queue_id))
        if queue is None:
            queue = self._open_queue(message.topic, message.queue_id)
        if message.queue_offset < queue.max_index:
            if message.queue_offset:
                return True
            # Offsets restart when a topic was deleted and created again.
            queue.delete_files()
            queue = self._open_queue(message.topic, message.queue_id)
        missing = message.queue_offset - queue.max_index
        if missing and queue.max_index == queue.min_index == 0 and (gaps or self.log.min_offset):
            queue.begin_at(message.queue_offset)
        elif missing:
            if not gaps or missing > _GAP_MAX:
                return False
            for _ in range(missing):
                queue.append(message.physical_offset, 0, 0)
        queue.append(message.physical_offset, size, self._tags_code(message))
        return True

    def _open_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        directory = self._queue_root / topic / str(queue_id)
        queue = self._queues[topic, queue_id] = ConsumeQueue(directory, file_size=self._queue_file_size)
        return queue

    # Reading records -----------------------------------------------------------------------------

    def _read_records(self, entries: Iterable[Entry]) -> bytes:
        """Read records, those that lie back to back at once; missing ones are left out."""
        runs: list[list[int]] = []
        for entry in entries:
            if runs and runs[-1][0] + runs[-1][1] == entry.log_offset:
                runs[-1][1] += entry.size
            else:
                runs.append([entry.log_offset, entry.size])
        parts = []
        for offset, size in runs:
            data = self.log.read(offset, size)
            if data is not None:
                parts.append(data)
        return b"".join(parts)

    def _decode(self, entry: Entry) -> StoredMessage | None:
        data = self.log.read(entry.log_offset, entry.size)
        return None if data is None else decode_message(data)[0]
