"""D7, D11, D31: how far a leader commits, and what is committed is applied once."""

from __future__ import annotations

import logging
import math
from typing import Final

from nameserver.raft.types import StopMember

from .core import LEADER, Surroundings
from .log import CONFIGURATION, NO_OP, REGULAR
from .patience import Patience

logger = logging.getLogger(__name__)

#: Entries applied in one step, so that a long replay does not hold the loop.
APPLY_STEP: Final = 512


class Stopped(Exception):
    """The state machine cannot read an entry; this member must stop."""


class Applying(Patience):
    """Hands committed entries to the state machine, a bounded number at a time."""

    def __init__(self, given: Surroundings) -> None:
        self._commit_limit: int | None = None
        self.apply_errors = 0
        self.passed = 0  # committed entries that the state machine does not see
        super().__init__(given)

    def _SyncObj__getCurrentLogIndex(self) -> int:
        last = self._log.last_index
        return last if self._commit_limit is None else min(last, self._commit_limit)

    def _SyncObj__applyLogEntries(self) -> bool:
        """Apply a bounded number of entries; the rest in the next step.

        A leader first tells the others what is committed: whoever wrote over a follower waits for that, and
        large entries, which take long, are applied everywhere at once, while each has just heard the leader.
        """
        commit = self._SyncObj__raftCommitIndex
        applied = self._SyncObj__raftLastApplied
        self._commit_limit = None  # the commit loop is over; entries may be appended from here on
        last = -1
        if applied < commit and self.state == LEADER:
            self._SyncObj__sendAppendEntries()
            last = self._log.last_index
        self._SyncObj__raftCommitIndex = min(commit, applied + APPLY_STEP)
        began = self._clock()
        try:
            super()._SyncObj__applyLogEntries()
        finally:
            self._SyncObj__raftCommitIndex = commit
        took = self._clock() - began
        if took > self._period:
            self._expect_silence(took)
        if last == self._log.last_index:  # all is said, unless something was appended meanwhile
            self._SyncObj__newAppendEntriesTime = math.inf
        return False

    def apply_committed(self) -> None:
        """Apply what the journal says is committed (start), without taking part in anything yet."""
        while self.applied_index < self.commit_index:
            self._SyncObj__applyLogEntries()

    def _SyncObj__doApplyCommand(self, command: bytes) -> None:
        """D11: an entry is applied once, whatever happens; one that cannot be read stops the member."""
        index = self.applied_index + 1
        term = self._log.term_at(index) or 0
        kind = command[:1]
        if kind in (NO_OP, CONFIGURATION):  # the latter is in force since it was appended
            self.passed += 1
            return
        if kind != REGULAR:
            raise Stopped(
                f"entry {index} is of kind {kind.hex() or 'none'}, which this program does not know"
            )
        try:
            self._host.apply(command[1:], index, term)
        except StopMember as error:
            raise Stopped(f"entry {index}: {error}") from error
        except Exception:
            # D11: an entry that raises is counted and passed; repeated, it would stop the group for ever.
            self.apply_errors += 1
            logger.exception("apply raised index=%d term=%d", index, term)
