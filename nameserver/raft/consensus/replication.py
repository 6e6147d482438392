"""The leader's knowledge of each peer's log: sent entries, acknowledged entries, and bytes under way."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

#: Largest number of bytes of entries in one message, unless a single entry is larger.
BATCH_BYTES: Final = 1024 * 1024
#: The leader sends a peer no more entries while this number of bytes is not acknowledged (repairs PySyncObj
#: defect D34). The last message before this pause may exceed the number.
WINDOW_BYTES: Final = 8 * 1024 * 1024
#: Size in bytes of a piece of a snapshot.
PART_BYTES: Final = 256 * 1024
#: Largest number of unacknowledged pieces of a snapshot on the way to one peer.
PARTS_WINDOW: Final = 8
#: A snapshot transfer begins again after this number of seconds without progress.
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
    """The leader's knowledge of one peer's log within one term and over one link.

    Attributes:
        next: Index of the first entry that was not sent yet.
        match: Last index up to which the peer's log is certainly durable and equal to the leader's.
        seq: Number of the last message to the peer.
        reset_floor: Number of the first message after the last call of :meth:`rewind`. An answer to an
            earlier message must not cause another call, which would only send the same entries again (repairs
            PySyncObj defects D18 and D22).
        catch_up_entry: Index of an entry that the leader appended so that a learner can become a voter. It is
            0 if there is no such entry.
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
    #: The messages under way, each as its last index and its number of bytes.
    _sent: deque[tuple[int, int]] = field(default_factory=deque)

    def sent(self, last: int, size: int) -> None:
        self.next = last + 1
        self.unacknowledged += size
        self._sent.append((last, size))

    def acknowledged(self, index: int) -> None:
        """Record that the peer holds all entries up to ``index`` durably.

        An answer that arrives late, with a lower index, changes nothing (repairs PySyncObj defect D22).
        """
        self.match = max(self.match, index)
        self.next = max(self.next, self.match + 1)
        while self._sent and self._sent[0][0] <= self.match:
            self.unacknowledged -= self._sent.popleft()[1]

    def rewind(self, first: int) -> None:
        """Send all entries again from index ``first`` on, because the peer asked for them."""
        self.next = max(first, self.match + 1)
        self.reset_floor = self.seq + 1
        self.unacknowledged = 0
        self._sent.clear()

    @property
    def window_open(self) -> bool:
        return self.unacknowledged < WINDOW_BYTES
