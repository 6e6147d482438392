"""What goes to the journal, and what a journal that stands still is worth."""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from .effects import Write
from .following import Following
from .leading import Leading
from .part import Part, Shared

logger = logging.getLogger(__name__)

#: A journal write that takes longer makes the leader step down (rule 9).
STALL_S: Final = 1.0


class Writing(Part):
    """Hands over what changed in the log, and watches how long that takes.

    Attributes:
        stalls: How often a write began to be under way for too long.
    """

    def __init__(self, shared: Shared, following: Following, leading: Leading) -> None:
        super().__init__(shared)
        self._following = following
        self._leading = leading
        self._under_way: deque[tuple[int, float]] = deque()  # position, when it was handed over, in own time
        self.stalls = 0

    def flush(self, *, commit_too: bool = False) -> None:
        """Hand to the journal what changed; memory-only members have it durable at once."""
        self._effects.store_vote()
        if not (self._log.has_ops or commit_too):
            return
        taken = self._log.take_ops()
        if taken is None:
            return
        position, ops = taken
        if self.shared.volatile:
            self._log.durable(position)
            self._following.on_durable()
            if not self.shared.other_voters:
                self._effects.wake()  # the entry is committed now
        else:
            self._under_way.append((position, self._clock() - self._patience.watch.lost))
            self._effects.add(Write(position, ops, self._library.leads))

    def durable(self, position: int) -> None:
        """The journal holds everything written up to ``position``."""
        while self._under_way and self._under_way[0][0] <= position:
            self._under_way.popleft()
        self._log.durable(position)
        if self.shared.stalled and self._waits(self._clock()) <= STALL_S:
            self.shared.stalled = False
            logger.info("journal works again me=%s durable_index=%d", self._me, self._log.durable_index)
        self._following.on_durable()

    def look_for_stalls(self, now: float) -> None:
        """Rule 9: whoever cannot write must not lead."""
        waits = self._waits(now)
        if waits > STALL_S and not self.shared.stalled:
            self.shared.stalled = True
            self.stalls += 1
            logger.warning("journal stalls me=%s seconds=%.1f", self._me, waits)
            self._leading.hand_over()
            self._leading.step_down("journal stalls")

    def _waits(self, now: float) -> float:
        """How long the oldest write is under way; while this member stood still it could not hear of it."""
        return now - self._patience.watch.lost - self._under_way[0][1] if self._under_way else 0.0
