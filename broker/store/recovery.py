"""Recovery of a store after a crash. It makes the log and the queues agree.

All bytes below the checkpoint's offset were synced before the checkpoint was written. Above that offset, the
first bytes that are not a record are the torn end of a write during a power cut. All bytes after them are
invalid, too, because pages reach the disk in any order.

If the machine has not restarted since the checkpoint (its boot id is the same), no page was lost. Damage
before valid records then has another cause, and recovery drops no record without an operator's order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
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

#: Longest gap in a queue, in entries, that recovery fills. At a longer gap recovery fails, because damaged
#: records cannot be the cause of so many missing entries.
_GAP_MAX: Final = 10_000_000

#: Offset above all offsets of a log. It stands for the last log offset of a queue without entries.
_ANYWHERE: Final = 2**63

#: A checkpoint has the sum of its queues modulo this number, because orjson writes no integer from 2**64 on.
_SUMS: Final = 2**63

QueueKey = tuple[str, int]
#: Start and end offset of each missing part of the log.
Holes = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The part of the store's state that is durable, as stored in the checkpoint's file.

    Attributes:
        log_offset: Offset below which the log is durable. The queue entries of all messages below this offset
            are durable, too.
        queue_entries: Sum over all queues, see :func:`sum_of_lengths`. A start compares this sum with the
            queue files.
        log_min: Offset at which the log begins. Log files below it may still exist, or exist again after a
            power cut.
        boot: Id of the machine's boot during which the checkpoint was written.
        topics_counter: Counter of the topic table's version that was on disk. If a start finds a table with a
            lower counter, that table is an older version.
        given_up: Start and end offset of each missing part of the log. An operator ordered the broker to go
            on without these parts.
        deleted: Deleted topics (``T``) and queues (``T/3``). The broker was about to remove their files when
            it wrote the checkpoint. ``queue_entries`` does not count them. A start ignores and removes their
            files, even if only some of the files are left.
    """

    log_offset: int = 0
    queue_entries: int = 0
    log_min: int = 0
    boot: str = ""
    topics_counter: int = 0
    given_up: Holes = ()
    deleted: tuple[str, ...] = ()

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
        if self.deleted:
            members["deleted"] = self.deleted
        # Add a checksum, because a wrong bit in the checkpoint could make the broker remove log files.
        write_atomic(disk, path, orjson.dumps(members | {"crc32": crc32(orjson.dumps(members))}))

    @classmethod
    def parse(cls, text: str) -> Checkpoint:
        """Parse the content of a checkpoint's file.

        Raises:
            ValueError: If the content is not a valid checkpoint.
        """
        try:
            members = orjson.loads(text)
            found = members.pop("crc32", None)  # checkpoints of earlier versions have no checksum
            if found is not None and found != crc32(orjson.dumps(members)):
                raise ValueError("the checkpoint is damaged, its checksum differs")
            return cls(
                log_offset=int(members["logOffset"]),
                queue_entries=int(members["queueEntries"]) % _SUMS,  # earlier versions wrote the whole sum
                log_min=int(members["logMin"]),
                boot=str(members["boot"]),
                topics_counter=int(members.get("topics", 0)),
                given_up=tuple((int(begin), int(end)) for begin, end in members.get("givenUp", ())),
                deleted=tuple(map(str, members.get("deleted", ()))),
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"checkpoint lacks a member: {error}") from None


def sum_of_lengths(lengths: Iterable[int]) -> int:
    """Return the sum of queues' lengths as a checkpoint has it, see ``ConsumeQueue.weighed_length``."""
    return sum(lengths) % _SUMS


@dataclass(slots=True, kw_only=True)
class Recovery:
    """The recovery of one store at its start.

    Attributes:
        checkpoint: The last checkpoint, or None if there is no readable checkpoint.
        boot: Id of the machine's current boot, or empty if unknown.
        born_at: Function that returns the log offset from which on a topic's messages are valid. It returns
            None if no message is valid.
        tags_code: Function that computes the tag code in a queue entry from the message in the log.
        queues: The recovered queues.
        covered: Log offset below which the queues' files have the entries of all messages.
        counted: Sum of the queues of each topic that the checkpoint counts. None if the files of the queues
            were removed, because they did not fit the checkpoint or the log.
        doomed: Deleted topics and queues whose files must be removed, named as in ``Checkpoint.deleted``.
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
    covered: int = 0
    counted: dict[str, int] | None = None
    doomed: tuple[str, ...] = ()

    def run(self) -> None:
        """Cut the torn end of the log, and add missing entries to the queues.

        Raises:
            StoreDamaged: If valid records follow a damaged record, or if records are missing. With
                ``skip_damage``, the error is not raised in these two cases. If a queue has a gap of more than
                _GAP_MAX entries, it is always raised.
            OSError, StoreUnavailable: If the disk fails.
        """
        checkpoint = self.checkpoint
        start = self.log.min_offset
        # A power cut may remove the names of files of which nothing was synced. If anything else is missing,
        # refuse now. Otherwise the next checkpoint would say that the log begins after the missing files. If
        # an operator then brought these files back, the broker would remove them.
        if (
            checkpoint is not None
            and start > checkpoint.log_min
            and (checkpoint.log_min < self._floor or not self._has_restarted)
        ):
            self._refuse(f"log begins at offset {start}, it began at {checkpoint.log_min}: files are missing")
            logger.error("log files missing began=%s begins=%s", checkpoint.log_min, start)
        self._look_for_holes()
        if checkpoint is not None and self.log.padded_to == checkpoint.log_offset:
            # The last file ends with padding, so the next record begins a new file.
            self.log.seal(self.log.last_start, checkpoint.log_offset)
        self._look_for_synced_end()  # before any queue file is removed
        if checkpoint is None:
            self._look_for_log_end()
            self._drop_queues()
        elif self._recover_queues(checkpoint):
            start = self.covered = checkpoint.log_offset
        else:
            logger.warning("consume queues do not fit the checkpoint, they are built anew")
            self._drop_queues()
        if not self._replay(start):
            # The queue files do not agree with the log, so rebuild all of them.
            logger.warning("consume queues built anew from the log min_offset=%s", self.log.min_offset)
            self._drop_queues()
            if not self._replay(self.log.min_offset, gaps=True):
                raise StoreDamaged("the log holds a gap of queue offsets that no damage explains")
        if not self._look_for_synced_end():
            self._drop_queues()
            self._replay(self.log.min_offset, gaps=True)
        self.log.rewrite(self.log.last_start if checkpoint is None else checkpoint.log_offset)
        self.log.flush()
        if self._has_restarted or self.skip_damage:
            for queue in self.queues.values():
                queue.lost_from = queue.max_index

    def _look_for_holes(self) -> None:
        """Write a log line for each missing part of the commit log, even if an operator gave it up before.

        Ignore parts above the checkpoint's offset. They may be the torn end, and the replay checks them.

        Raises:
            StoreDamaged: If a part is missing that no operator has given up. With ``skip_damage``, this error
                is not raised.
        """
        known = () if self.checkpoint is None else self.checkpoint.given_up
        for begin, end in self.log.holes():
            if (begin, end) not in known:
                if begin >= self._floor:
                    continue
                self._refuse(f"log lacks offsets {begin} to {end}: files between others are missing or cut")
            logger.error("log files missing, given up begins=%s ends=%s", begin, end)

    def _look_for_synced_end(self) -> bool:
        """Return True if the log is at least as long as the part that was synced.

        Raises:
            StoreDamaged: If the log is shorter. With ``skip_damage``, this error is not raised.
        """
        if self.log.max_offset >= self._floor:
            return True
        self._refuse(f"log ends at offset {self.log.max_offset}, {self._floor} was synced")
        return False

    def _look_for_log_end(self) -> None:
        """Compare the log's end with the queue files, because no checkpoint states where the log ended.

        The broker writes an entry only after its record was synced. So an entry that points beyond the log's
        end proves that log files are missing.

        Raises:
            StoreDamaged: If the log ends too early. With ``skip_damage``, this error is not raised.
        """
        begin, end = self.log.min_offset, self.log.max_offset
        if end:
            # Warn only if the log has data. At a first start, the log is empty and has no checkpoint yet.
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

    @property
    def _has_restarted(self) -> bool:
        """True if the machine has restarted since the checkpoint, or if this is unknown."""
        return self.checkpoint is None or not self.boot or self.checkpoint.boot != self.boot

    # Recovery of queues --------------------------------------------------------------------------

    def _recover_queues(self, checkpoint: Checkpoint) -> bool:
        """Open the queue files. Return False if their content does not match the checkpoint."""
        if not self.log.min_offset <= checkpoint.log_offset <= self.log.max_offset:
            return False
        found = []
        deleted = set(checkpoint.deleted)
        doomed = []
        self.counted = {}
        for topic, directory in self._directories():
            name = f"{topic}/{directory.name}"
            if topic in deleted or name in deleted:
                continue
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
            found.append(queue)
            if born is None or queue.last_log_offset < born:
                # The topic of this queue was deleted, even if a new topic with the same name exists.
                doomed.append((topic, name))
            else:
                try:
                    queue.remove_old_files()
                except OSError as error:  # the next removal of old files tries it again
                    logger.error("old files not removed error=%s", error)
                self.queues[topic, int(directory.name)] = queue
                self.counted[topic] = self.counted.get(topic, 0) + queue.weighed_length
        # Do not remove these files yet. First a checkpoint must be on disk that does not count them.
        names = [name if topic in self.counted else topic for topic, name in doomed]
        self.doomed = tuple(dict.fromkeys([*checkpoint.deleted, *names]))
        return sum_of_lengths(queue.weighed_length for queue in found) == checkpoint.queue_entries

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
        self.covered = 0
        self.counted = None
        self.doomed = ()
        self.queues.clear()
        if self.disk.is_there(self.queue_root):
            remove_tree(self.disk, self.queue_root)
            self.disk.sync_directory(self.queue_root.parent)

    # Recovery of the log -------------------------------------------------------------------------

    def _replay(self, start: int, *, gaps: bool = False) -> bool:
        """Read the log from ``start`` on, cut a torn end, and add missing entries to the queues.

        Returns:
            False if a queue lacks an entry of a message before ``start``, else True.
        """
        replayed = 0
        for base, following, data in self.log.contents(start):
            position = max(start - base, 0)
            if position > len(data):  # this file ends before the checkpoint's offset
                if following is not None:  # the file that begins at the checkpoint's offset is missing
                    self._after_damage(base, following, data, Padding(base + len(data) - 8, start))
                continue
            self.log.read_through(base + position)
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
        """Cut the torn end of the log, or return the position in this file of the next valid record.

        Return None if this file has no valid record after the damage.

        Args:
            base: Log offset at which the file starts.
            following: Log offset at which the next file starts; None if this is the last file.
            data: Content of the file.
            found: The damage, or padding at a place where a record should be.
        """
        at = found.end if isinstance(found, Padding) else found.offset
        resume = find_record(data, at - base + 1, base=base) if at < base + len(data) else None
        valid_follow = resume is not None or self._later_files_hold_records(at)
        may_be_torn = self.checkpoint is not None and self._has_restarted
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
