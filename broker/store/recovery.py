"""Makes log and queues of a store agree after a crash.

Everything below the checkpoint's offset was synced before the checkpoint was written. Bytes above it that are
no record are the torn end of a write during a power cut. All later bytes are void, because pages reach the
disk in any order. If the machine has not been restarted since (the boot is the same), no page was lost. Then
damage before valid records has another cause, and nothing is given up without the operator's order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from zlib import crc32

import orjson

from routekeeper.broker.errors import StoreDamaged
from routekeeper.broker.store.commit_log import CommitLog
from routekeeper.broker.store.consume_queue import ConsumeQueue
from routekeeper.broker.store.files import Content, Disk, remove_tree, write_atomic
from routekeeper.broker.store.log_scan import Damage, Padding, Record, find_record, scan

logger = logging.getLogger(__name__)

#: Longest gap in a queue that recovery fills with empty entries; damaged records cannot cause a longer one.
_GAP_MAX: Final = 10_000_000

#: An offset behind all offsets of a log; it stands for a queue without entries.
_ANYWHERE: Final = 2**63

QueueKey = tuple[str, int]
#: Begin and end of each part that the log lacks.
Holes = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """State that is durable.

    Attributes:
        log_offset: The log below it is durable, and so is the queue entry of each of its messages.
        queue_entries: Sum of the weighted lengths of all queues at that time.
        log_min: Offset at which the log begins; files below it may still, or again, exist.
        boot: Name of the machine's boot during which it was written.
        topics_counter: Counter of the topic table's version on disk at that time; a table with a lower
            counter is older.
        given_up: Begin and end of each part of the log that is missing between its files, and without which
            the operator ordered the broker to go on.
    """

    log_offset: int = 0
    queue_entries: int = 0
    log_min: int = 0
    boot: str = ""
    topics_counter: int = 0
    given_up: Holes = ()

    def write(self, disk: Disk, path: Path) -> None:
        members: dict[str, object] = {
            "logOffset": self.log_offset,
            "queueEntries": self.queue_entries,
            "logMin": self.log_min,
            "boot": self.boot,
            "topics": self.topics_counter,
        }
        if self.given_up:
            members["givenUp"] = self.given_up
        # Check it, because a flipped bit in it could cause log files to be removed.
        write_atomic(disk, path, orjson.dumps(members | {"crc32": crc32(orjson.dumps(members))}))

    @classmethod
    def parse(cls, text: str) -> Checkpoint:
        """Read the file's content.

        Raises:
            ValueError: If it is no checkpoint.
        """
        try:
            members = orjson.loads(text)
            found = members.pop("crc32", None)  # checkpoints of earlier versions have no checksum
            if found is not None and found != crc32(orjson.dumps(members)):
                raise ValueError("the checkpoint is damaged, its checksum differs")
            return cls(
                log_offset=int(members["logOffset"]),
                queue_entries=int(members["queueEntries"]),
                log_min=int(members["logMin"]),
                boot=str(members["boot"]),
                topics_counter=int(members.get("topics", 0)),
                given_up=tuple((int(begin), int(end)) for begin, end in members.get("givenUp", ())),
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"checkpoint lacks a member: {error}") from None


@dataclass(slots=True, kw_only=True)
class Recovery:
    """The recovery of one store at its start.

    Attributes:
        checkpoint: The last checkpoint; None if there is no readable one.
        boot: Name of the machine's present boot; empty if unknown.
        born_at: Returns the log offset from which on messages of a topic count; None if none of them does.
        tags_code: Computes the entry's code for a message in the log.
        queues: The recovered queues.
    """

    disk: Disk
    log: CommitLog
    queue_root: Path
    queue_file_size: int
    checkpoint: Checkpoint | None
    boot: str
    born_at: Callable[[str], int | None]
    tags_code: Callable[[Record], int]
    skip_damage: bool
    queues: dict[QueueKey, ConsumeQueue] = field(default_factory=dict)

    def run(self) -> None:
        """Cut the torn end of the log, and add missing entries to the queues.

        Raises:
            StoreDamaged: If valid records follow a damaged one, or records are missing; not if
                ``skip_damage`` is set.
            OSError, StoreUnavailable: If the disk fails.
        """
        checkpoint = self.checkpoint
        start = self.log.min_offset
        if checkpoint is not None and start > checkpoint.log_min:
            # Refuse now: the next checkpoint would name the later begin, and the missing files would be
            # removed if they came back.
            self._refuse(f"log begins at offset {start}, it began at {checkpoint.log_min}: files are missing")
            logger.error("log files missing began=%s begins=%s", checkpoint.log_min, start)
        self._look_for_holes()
        if checkpoint is not None and self.log.padded_to == checkpoint.log_offset:
            self.log.seal(self.log.last_start, checkpoint.log_offset)  # otherwise no next file could begin
        if checkpoint is None:
            self._look_for_log_end()
            self._drop_queues()
        elif self._recover_queues(checkpoint):
            start = checkpoint.log_offset
        else:
            logger.warning("consume queues do not fit the checkpoint, they are built anew")
            self._drop_queues()
        if not self._replay(start):
            # The queues' files do not fit the log: build all of them anew.
            logger.warning("consume queues built anew from the log min_offset=%s", self.log.min_offset)
            self._drop_queues()
            if not self._replay(self.log.min_offset, gaps=True):
                raise StoreDamaged("the log holds a gap of queue offsets that no damage explains")
        if self.log.max_offset < self._floor:
            self._refuse(f"log ends at offset {self.log.max_offset}, {self._floor} was synced")
            self._drop_queues()
            self._replay(self.log.min_offset, gaps=True)
        self.log.rewrite(self.log.last_start if checkpoint is None else checkpoint.log_offset)
        self.log.flush()

    def _look_for_holes(self) -> None:
        """Write a log line for each missing part of the commit log, also for parts that were given up before.

        Bytes above the checkpoint may be torn; the replay checks them.

        Raises:
            StoreDamaged: If a part is missing that no operator gave up; not if ``skip_damage`` is set.
        """
        known = () if self.checkpoint is None else self.checkpoint.given_up
        for begin, end in self.log.holes():
            if (begin, end) not in known:
                if begin >= self._floor:
                    continue
                self._refuse(f"log lacks offsets {begin} to {end}: files between others are missing or cut")
            logger.error("log files missing, given up begins=%s ends=%s", begin, end)

    def _look_for_log_end(self) -> None:
        """Compare the log with the queues' files, because no checkpoint has the log's length.

        An entry is written after its record was synced, so an entry that points behind the log proves that
        files are missing.

        Raises:
            StoreDamaged: If the log ends too early; not if ``skip_damage`` is set.
        """
        begin, end = self.log.min_offset, self.log.max_offset
        if end:
            # The first start writes a checkpoint before the log has a file.
            logger.warning("checkpoint missing, the log is read whole begins=%s ends=%s", begin, end)
        for topic, directory in self._directories():
            queue = ConsumeQueue.recover(
                directory, file_size=self.queue_file_size, log_min=0, log_end=_ANYWHERE, disk=self.disk
            )
            last = _ANYWHERE if queue is None else queue.last_log_offset
            if end <= last < _ANYWHERE:
                self._refuse(f"log ends at offset {end}, files of queues lead to {last}: files are missing")
                logger.error("end of the log missing ends=%s topic=%s leads_to=%s", end, topic, last)
                return

    @property
    def _floor(self) -> int:
        return 0 if self.checkpoint is None else self.checkpoint.log_offset

    # Queues --------------------------------------------------------------------------------------

    def _recover_queues(self, checkpoint: Checkpoint) -> bool:
        """Open the queues' files; return False if their content differs from the checkpoint's."""
        if not self.log.min_offset <= checkpoint.log_offset <= self.log.max_offset:
            return False
        total = 0
        doomed = []
        for topic, directory in self._directories():
            born = self.born_at(topic)
            queue = ConsumeQueue.recover(
                directory,
                file_size=self.queue_file_size,
                log_min=self.log.min_offset,
                log_end=checkpoint.log_offset,
                disk=self.disk,
            )
            if queue is None:
                return False
            total += queue.weighed_length
            if born is None or queue.last_log_offset < born:
                # The queue belongs to a deleted topic, even if a topic of that name exists again.
                doomed.append(directory)
            else:
                queue.remove_old_files()
                self.queues[topic, int(directory.name)] = queue
        for directory in doomed:
            remove_tree(self.disk, directory)
            if not self.disk.names(directory.parent):
                self.disk.remove_directory(directory.parent)
        if doomed:
            self.disk.sync_directory(self.queue_root)
        return total == checkpoint.queue_entries

    def _directories(self) -> list[tuple[str, Path]]:
        if not self.disk.is_there(self.queue_root):
            return []
        return [
            (topic, self.queue_root / topic / queue_id)
            for topic in sorted(self.disk.names(self.queue_root))
            for queue_id in sorted(self.disk.names(self.queue_root / topic))
            if queue_id.isdecimal()
        ]

    def _drop_queues(self) -> None:
        self.queues.clear()
        if self.disk.is_there(self.queue_root):
            remove_tree(self.disk, self.queue_root)
            self.disk.sync_directory(self.queue_root.parent)

    # Log -----------------------------------------------------------------------------------------

    def _replay(self, start: int, *, gaps: bool = False) -> bool:
        """Read the log from ``start``, cut a torn end, add missing entries to the queues.

        Returns:
            False if a queue lacks entries from before ``start``.
        """
        replayed = 0
        for base, following, data in self.log.contents(start):
            position = max(start - base, 0)
            if position > len(data):  # the checkpoint lies behind the end of this file
                if following is not None:  # the file that begins at the checkpoint is missing
                    self._after_damage(base, following, data, Padding(base + len(data) - 8, start))
                continue
            over = False
            while not over:
                over = True
                for found in scan(data, position, base=base):
                    if isinstance(found, Padding) and following in (None, found.end):
                        self.log.seal(base, found.end)
                    elif isinstance(found, Padding | Damage):
                        at = found.end if isinstance(found, Padding) else found.offset
                        if following is None and at == base + len(data):
                            break  # the end of the log
                        resume = self._after_damage(base, following, data, found)
                        if resume is not None:
                            position, over = resume, False
                    else:
                        message, size = found
                        if not self._index(message, size, gaps=gaps or self.skip_damage):
                            return False
                        replayed += 1
        logger.info("log recovered start=%s end=%s messages=%s", start, self.log.max_offset, replayed)
        return True

    def _after_damage(
        self, base: int, following: int | None, data: Content, found: Padding | Damage
    ) -> int | None:
        """Cut the log where its torn end begins, or find the next valid record of this file behind damage."""
        at = found.end if isinstance(found, Padding) else found.offset
        resume = find_record(data, at - base + 1, base=base) if at < base + len(data) else None
        valid_follow = resume is not None or self._later_files_hold_records(at)
        may_be_torn = self.checkpoint is not None and (not self.boot or self.checkpoint.boot != self.boot)
        if at >= self._floor and (may_be_torn or not valid_follow):
            logger.warning(
                "torn end of the log cut offset=%s bytes=%s valid_records_behind=%s",
                at,
                base + len(data) - at,
                valid_follow,
            )
            self.log.truncate(at)
            if isinstance(found, Padding):
                self.log.seal(base, at)
            return None
        if valid_follow:
            self._refuse(f"log damaged at offset {at} in file {base:020d}, valid messages follow")
        else:
            self._refuse(f"log damaged at offset {at} in file {base:020d}, {self._floor} was synced")
        logger.error("damaged log skipped offset=%s file=%020d", at, base)
        if resume is not None:
            return resume
        if not valid_follow:
            self.log.truncate(at)
        elif following is not None:
            self.log.seal(base, following)
        return None

    def _later_files_hold_records(self, offset: int) -> bool:
        return any(
            find_record(data, 0, base=base) is not None
            for base, _, data in self.log.contents(offset)
            if base >= offset
        )

    def _refuse(self, reason: str) -> None:
        if not self.skip_damage:
            raise StoreDamaged(
                f"{reason}: restore it, or start with recoverDamagedLog=skip to give up what is damaged"
            )

    def _index(self, message: Record, size: int, *, gaps: bool) -> bool:
        born = self.born_at(message.topic)
        if born is None or message.physical_offset < born:
            return True
        key = message.topic, message.queue_id
        queue = self.queues.get(key)
        if queue is None:
            queue = self.queues[key] = ConsumeQueue(
                self.queue_root / message.topic / str(message.queue_id),
                file_size=self.queue_file_size,
                disk=self.disk,
            )
        missing = message.queue_offset - queue.max_index
        if missing < 0:
            return True
        if missing and queue.max_index == queue.min_index == 0 and (gaps or self.log.min_offset):
            queue.begin_at(message.queue_offset)
        elif missing:
            if not gaps or missing > _GAP_MAX:
                return False
            for _ in range(missing):
                queue.append(message.physical_offset, 0, 0)
        queue.append(message.physical_offset, size, self.tags_code(message))
        return True
