"""The leader's view of each peer's log: entries sent, entries acknowledged, and the bytes under way.
Pure.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

#: Bytes of entries in one message, unless a single entry is larger.
BATCH_BYTES: Final = 1024 * 1024
#: Bytes of entries sent to one peer and not yet acknowledged (D34); one message may exceed it.
WINDOW_BYTES: Final = 8 * 1024 * 1024
#: Size of a piece of a snapshot, and the number of pieces that may be under way.
PART_BYTES: Final = 256 * 1024
PARTS_WINDOW: Final = 8
#: A transfer without progress for this time starts again.
TRANSFER_TIMEOUT_S: Final = 30.0


@dataclass(slots=True)
class Transfer:
    """A snapshot on its way to one peer."""

    index: int
    index_term: int
    size: int
    configuration: bytes
    moved_at: float
    sent: int = 0
    acknowledged: int = 0


@dataclass(slots=True)
class Progress:
    """One peer's log as its leader sees it, within one term and one link.

    Attributes:
        next: First index not yet sent.
        match: Last index known to be durable there and equal to ours.
        seq: Number of the last message; ``reset_floor`` is the first one sent after the last rewind, so that
            answers to earlier messages do not rewind again (D18, D22).
        catch_up_entry: Index of the entry appended so that a learner can leave its state, 0 if none.
    """

    next: int
    match: int = 0
    learner: bool = False
    seq: int = 0
    reset_floor: int = 0
    commit_sent: int = -1
    beat_at: float = 0.0
    unacknowledged: int = 0
    transfer: Transfer | None = None
    catch_up_entry: int = 0
    _sent: deque[tuple[int, int]] = field(default_factory=deque)  # (last index, bytes) of messages under way

    def sent(self, last: int, size: int) -> None:
        self.next = last + 1
        self.unacknowledged += size
        self._sent.append((last, size))

    def acknowledged(self, index: int) -> None:
        """Record that everything up to ``index`` is durable at the peer. Never rewinds (D22)."""
        self.match = max(self.match, index)
        self.next = max(self.next, self.match + 1)
        while self._sent and self._sent[0][0] <= self.match:
            self.unacknowledged -= self._sent.popleft()[1]

    def rewind(self, first: int) -> None:
        """Send again from ``first`` on, as the peer asked."""
        self.next = max(first, self.match + 1)
        self.reset_floor = self.seq + 1
        self.unacknowledged = 0
        self._sent.clear()

    @property
    def window_open(self) -> bool:
        return self.unacknowledged < WINDOW_BYTES
