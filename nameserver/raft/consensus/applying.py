"""D7, D11, D31: what is committed is applied once, in order, a bounded number of entries at a time."""

from __future__ import annotations

import logging
from typing import Final

from nameserver.raft.library import LEADER
from nameserver.raft.types import StopMember

from .leading import Leading
from .log import CONFIGURATION, NO_OP, REGULAR
from .part import Part, Shared

logger = logging.getLogger(__name__)

#: Entries applied in one step, so that a long replay does not hold the loop.
APPLY_STEP: Final = 512


class Applying(Part):
    """Hands committed entries to the state machine.

    Attributes:
        replay_end: The last entry that this member already had in its log when it started.
        passed: Committed entries that the state machine does not see.
    """

    def __init__(self, shared: Shared, leading: Leading) -> None:
        super().__init__(shared)
        self._machine = shared.machine
        self._leading = leading
        self.replay_end: Final = self._log.last_index
        self.passed = 0

    def apply_committed(self) -> None:
        """Apply a bounded number of entries; the rest in the next step.

        A leader has told the others what is committed by now: whoever wrote over a follower waits for that,
        and large entries, which take long, are applied everywhere at once, while each has just heard the
        leader.
        """
        library = self._library
        began, told_up_to = self._clock(), self._log.last_index
        library.apply_up_to(library.applied_index + APPLY_STEP)
        took = self._clock() - began
        if took > self._period:
            self._patience.expect_silence(took)
        if library.state == LEADER and self._log.last_index > told_up_to:  # appended by what was applied
            self._leading.replicate()

    def replay(self) -> None:
        """Apply what the journal says is committed (start), without taking part in anything yet."""
        while self._library.applied_index < self._library.commit_index:
            self.apply_committed()

    def apply(self, command: bytes) -> None:
        """D11: an entry is applied once, and whole; one that cannot be read, or fails, stops the member.

        What raises here may do so on this member alone (memory, a defect): passed over, it would make this
        member's state differ from the others'. The log has the entry; the next start applies it again.
        """
        index = self._library.applied_index + 1
        term = self._log.term_at(index) or 0
        kind = command[:1]
        if kind in (NO_OP, CONFIGURATION):  # the latter is in force since it was appended
            self.passed += 1
            return
        if kind != REGULAR:
            raise StopMember(
                f"entry {index} is of kind {kind.hex() or 'none'}, which this program does not know"
            )
        try:
            self._machine.apply(command[1:], index=index, term=term, live=index > self.replay_end)
        except StopMember as error:
            raise StopMember(f"entry {index}: {error}") from error
        except Exception as error:
            logger.exception("apply raised index=%d term=%d", index, term)
            raise StopMember(f"entry {index} was not applied: {type(error).__name__}: {error}") from error
