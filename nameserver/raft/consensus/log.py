"""The log in memory, with its unwritten changes and its durable index.

The library (PySyncObj) uses this object as its log, and addresses entries by position. The entry at position
0 is the base: the last entry that the snapshot covers (in an empty log: index 1 of term 0). Only the index
and the term of the base are used. This module does no I/O.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from .members import NOBODY, Configuration, decode_configuration

# Command, index and term, in the order that the library (PySyncObj) uses. The command's first byte is the
# entry's kind.
Entry = tuple[bytes, int, int]

REGULAR: Final = b"\x00"
NO_OP: Final = b"\x01"
CONFIGURATION: Final = b"\x02"

#: Index and term of the base (the position before the first entry) in a log that never had an entry.
FIRST_INDEX: Final = 1
FIRST_TERM: Final = 0

# Kinds of journal operations. An operation is a tuple of its kind and the values that the comments name.
OP_ENTRY: Final = 1  # index, term, command
OP_TRUNCATE: Final = 2  # first index to remove
OP_COMMIT: Final = 3  # commit index
OP_RESET: Final = 4  # index and term of the new base, after a snapshot replaced the whole log
Op = tuple[int, int] | tuple[int, int, int] | tuple[int, int, int, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """The content of a member's disk at its start.

    Attributes:
        configuration: The configuration in force at ``base_index``, the last entry in the snapshot.
        replaced: True if the journal does not continue the snapshot, so that a new journal must begin.
    """

    base_index: int = FIRST_INDEX
    base_term: int = FIRST_TERM
    entries: list[Entry] = field(default_factory=list)
    commit_index: int = FIRST_INDEX
    term: int = 0
    vote: str | None = None
    journal_bytes: int = 0
    configuration: Configuration = NOBODY
    replaced: bool = False


class RaftLog:
    """The log entries from the base on. Each change is also recorded as an operation for the journal.

    The indexes are plain fields, because each message reads them many times and properties would be slower.

    Attributes:
        base_index: The index of the base: the last entry that the snapshot covers.
        last_index: The index of the last entry.
        durable_index: The last index up to which the journal certainly has this log.
        configuration: The newest configuration in the log, committed or not (repairs PySyncObj defect D36).
        configuration_index: The index of the entry with this configuration.
        ops: Operations to be written to the journal. Only :meth:`take_ops` adds the operation for a changed
            commit index, because the commit index need not be written at once.

    Raises:
        StopMember: An entry has a configuration that this program cannot read. :meth:`add` raises this error,
            too.
    """

    def __init__(self, recovered: Recovered) -> None:
        self._entries: list[Entry] = [(NO_OP, recovered.base_index, recovered.base_term), *recovered.entries]
        # Pairs (index, configuration) in rising order of the index. The first pair's configuration is in
        # force at the base, the last entry that the snapshot covers.
        self._configurations = [(recovered.base_index, recovered.configuration)]
        self._set_ends()
        for command, index, _ in recovered.entries:
            self._note(command, index)
        self.ops: list[Op] = []
        self._position = 0
        # The unfinished writes of the journal. Each write has three fields: its position, the last index of
        # the log that it makes durable, and the time at which the journal got the write.
        self._unwritten: deque[tuple[int, int, float]] = deque()
        self._commit = self._commit_written = recovered.commit_index
        self.durable_index = self.last_index
        self.term = recovered.term
        self.vote = recovered.vote
        self.vote_dirty = False
        self.journal_bytes = recovered.journal_bytes  # bytes written since the last snapshot began
        self.retained_bytes = sum(len(command) for command, _, _ in self._entries)

    # ---- called by the engine

    @property
    def last_term(self) -> int:
        return self._entries[-1][2]

    def term_at(self, index: int) -> int | None:
        """Return the term of the entry at ``index``; None if the log does not have this index."""
        offset = index - self.base_index
        return self._entries[offset][2] if 0 <= offset < len(self._entries) else None

    def committed_configuration(self, commit_index: int) -> tuple[int, Configuration]:
        """Return index and value of the newest configuration up to ``commit_index``."""
        return next(held for held in reversed(self._configurations) if held[0] <= commit_index)

    def _note(self, command: bytes, index: int) -> None:
        if command[:1] == CONFIGURATION:
            self.configuration, self.configuration_index = decode_configuration(command[1:]), index
            self._configurations.append((index, self.configuration))

    def _set_ends(self) -> None:
        """Set the fields that describe both ends of the log, after entries were deleted or replaced."""
        self.base_index: int = self._entries[0][1]
        self.last_index: int = self._entries[-1][1]
        self.configuration_index, self.configuration = self._configurations[-1]

    def read(self, first: int, *, bytes_max: int) -> list[tuple[int, bytes]]:
        """Return (term, command) of the entries from ``first`` on.

        The result has at least one entry, and as many further entries as fit into ``bytes_max`` bytes.
        """
        found: list[tuple[int, bytes]] = []
        size = 0
        for offset in range(first - self.base_index, len(self._entries)):
            command, _, term = self._entries[offset]
            size += len(command) + 16
            if found and size > bytes_max:
                break
            found.append((term, command))
        return found

    def take_ops(self, at: float) -> tuple[int, list[Op]] | None:
        """Return the position and the operations of the journal's next write; None if there are none.

        Args:
            at: The present time in seconds.
        """
        if self._commit != self._commit_written:
            self.ops.append((OP_COMMIT, self._commit))
            self._commit_written = self._commit
        if not self.ops:
            return None
        ops, self.ops = self.ops, []
        self._position += 1
        self._unwritten.append((self._position, self.last_index, at))
        return self._position, ops

    def repeat_commit(self) -> None:
        """Write the commit index again with the next write, because the journal begins a new segment now.

        Without this write, the new segment could stay empty. If the snapshot is lost later, the next start
        could not detect from an empty segment that entries are missing.
        """
        self._commit_written = 0

    def durable(self, position: int) -> None:
        """Record that all writes up to ``position`` are durable in the journal."""
        while self._unwritten and self._unwritten[0][0] <= position:
            self.durable_index = max(self.durable_index, self._unwritten.popleft()[1])

    @property
    def written_since(self) -> float:
        """The time at which the journal got its oldest unfinished write; inf if all writes are finished."""
        return self._unwritten[0][2] if self._unwritten else math.inf

    def trim(self, index: int) -> None:
        """Forget all entries before ``index``. The entry at ``index`` becomes the base of the log.

        A durable snapshot must cover the entries up to ``index``, because the log can no longer return them.
        """
        offset = index - self.base_index
        if offset > 0:
            self.retained_bytes -= sum(len(command) for command, _, _ in self._entries[:offset])
            del self._entries[:offset]
            later = [(at, held) for at, held in self._configurations if at > index]
            self._configurations = [(index, self.committed_configuration(index)[1]), *later]
            self._set_ends()

    def tail_from(self, index: int, bytes_min: int) -> int:
        """Return the greatest argument of :meth:`trim` that keeps ``bytes_min`` bytes before ``index``.

        If the log has fewer bytes before ``index``, the result is the index of its first entry.
        """
        size = 0
        while index > self.base_index + 1 and size < bytes_min:
            index -= 1
            size += len(self._entries[index - self.base_index][0])
        return index

    def reset(self, index: int, term: int, configuration: Configuration) -> None:
        """Replace the log by a durable snapshot at ``index``.

        If the log has the same term at ``index``, the entries after ``index`` stay.
        """
        if self.term_at(index) == term:
            self.trim(index)
            self.durable_index = max(self.durable_index, index)
            return
        self._entries = [(NO_OP, index, term)]
        self._configurations = [(index, configuration)]
        self._set_ends()
        self.ops = [(OP_RESET, index, term)]
        self._unwritten = deque((position, index, at) for position, _, at in self._unwritten)
        self.durable_index = index  # the durable snapshot covers the log up to here
        self.retained_bytes = 0
        self._commit = self._commit_written = index

    # ---- called by the library

    def add(self, command: bytes, idx: int, term: int) -> None:
        self._note(command, idx)
        self._entries.append((command, idx, term))
        self.last_index = idx
        self.ops.append((OP_ENTRY, idx, term, command))
        self.journal_bytes += len(command) + 32
        self.retained_bytes += len(command)

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        first = self.base_index + entryFrom
        self.retained_bytes -= sum(len(command) for command, _, _ in self._entries[entryFrom:])
        del self._entries[entryFrom:]
        # Forget the configurations of the deleted entries. The newest remaining configuration is in force.
        while self._configurations[-1][0] >= first:
            self._configurations.pop()
        self._set_ends()
        self.ops.append((OP_TRUNCATE, first))
        kept = first - 1
        self.durable_index = min(self.durable_index, kept)
        self._unwritten = deque((position, min(last, kept), at) for position, last, at in self._unwritten)

    def __getitem__(self, item: int | slice) -> Entry | list[Entry]:
        return self._entries[item]

    def __len__(self) -> int:
        return len(self._entries)

    def onOneSecondTimer(self) -> None:
        """Do nothing, because the engine writes the commit index in ``step``.

        PySyncObj's own journal would write the commit index here.
        """

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:
        self._commit = raftCommitIndex

    def getRaftCommitIndex(self) -> int:
        return self._commit

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:
        if (term, votedForNodeId) != (self.term, self.vote):
            self.term, self.vote, self.vote_dirty = term, votedForNodeId, True

    def getCurrentTerm(self) -> int:
        return self.term

    def getVotedForNodeId(self) -> str | None:
        return self.vote
