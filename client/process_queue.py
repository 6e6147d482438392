"""Messages pulled from one queue and not yet consumed. It decides what to pull, consume and commit. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Final, Generic, Protocol, TypeVar

#: Limits per queue above which pulling pauses. Source: DefaultMQPushConsumer.
MESSAGES_MAX: Final = 1000
BYTES_MAX: Final = 100 * 1024 * 1024
SPAN_MAX: Final = 2000


class Queued(Protocol):
    """The fields of a message that this module needs."""

    @property
    def queue_offset(self) -> int: ...

    @property
    def body(self) -> bytes: ...


M = TypeVar("M", bound=Queued)


class ProcessQueue(Generic[M]):
    """The window between the offset to pull next and the offset to commit.

    Attributes:
        next_offset: Offset of the next pull.
        serial: One batch at a time (orderly consumption).
        leaving: No more messages are delivered; those in flight still count.
        dropped: The queue is no longer ours; no message counts any more.

    Invariants:
        - every offset below :attr:`commit_offset` was consumed, was filtered out, or was never asked for;
        - a message is waiting, in flight or done, never two of these.
    """

    __slots__ = (
        "_bytes",
        "_in_flight",
        "_sorted",
        "_waiting",
        "dropped",
        "leaving",
        "locked_until_s",
        "next_offset",
        "serial",
    )

    def __init__(self, next_offset: int, *, serial: bool = False) -> None:
        self.next_offset = next_offset
        self.serial = serial
        self.dropped = False
        self.leaving = False
        self.locked_until_s = float("-inf")
        self._waiting: dict[int, M] = {}
        self._in_flight: dict[int, M] = {}
        self._bytes = 0
        # the offsets of the waiting messages; valid as long as every pull brings later ones
        self._sorted = True

    @property
    def count(self) -> int:
        """Number of messages that wait or are in flight."""
        return len(self._waiting) + len(self._in_flight)

    @property
    def cached_bytes(self) -> int:
        """Bytes of their bodies."""
        return self._bytes

    @property
    def idle(self) -> bool:
        """No message of it is being consumed now."""
        return not self._in_flight

    @property
    def commit_offset(self) -> int:
        """Offset at which a successor has to begin."""
        pending = [*self._waiting, *self._in_flight]
        return min(pending) if pending else self.next_offset

    @property
    def cached_offsets(self) -> tuple[int, int]:
        """Lowest and highest offset of these messages; zeros if there are none."""
        pending = [*self._waiting, *self._in_flight]
        return (min(pending), max(pending)) if pending else (0, 0)

    @property
    def full(self) -> bool:
        """True if pulling has to pause."""
        if self.count > MESSAGES_MAX or self._bytes > BYTES_MAX:
            return True
        return not self.serial and self.count > 0 and self.next_offset - self.commit_offset > SPAN_MAX

    def pulled(self, messages: Iterable[M], next_offset: int) -> None:
        """Add a pull's messages, after filtering; ``next_offset`` is the offset of the next pull."""
        last = next(reversed(self._waiting), -1)
        for message in messages:
            self._sorted = self._sorted and last < message.queue_offset
            last = message.queue_offset
            if message.queue_offset not in self._waiting and message.queue_offset not in self._in_flight:
                self._waiting[message.queue_offset] = message
                self._bytes += len(message.body)
        self.next_offset = next_offset

    def take(self, count: int) -> tuple[M, ...]:
        """Return up to ``count`` messages to consume, lowest offsets first.

        A serial queue has one batch at a time.
        """
        if self.dropped or self.leaving or (self.serial and self._in_flight):
            return ()
        if not self._sorted:
            self._waiting = dict(sorted(self._waiting.items()))
            self._sorted = True
        batch = []
        for offset in tuple(itertools.islice(self._waiting, count)):
            message = self._waiting.pop(offset)
            self._in_flight[offset] = message
            batch.append(message)
        return tuple(batch)

    def done(self, messages: Iterable[M]) -> None:
        """Note that these messages need no further work here."""
        for message in messages:
            if self._in_flight.pop(message.queue_offset, None) is not None:
                self._bytes -= len(message.body)

    def give_back(self, messages: Iterable[M]) -> None:
        """Note that these messages were not consumed, so that they are delivered again."""
        for message in messages:
            if self._in_flight.pop(message.queue_offset, None) is not None:
                self._waiting[message.queue_offset] = message
                self._sorted = False

    def restart(self, offset: int) -> None:
        """Forget all messages and pull from ``offset``."""
        self._waiting.clear()
        self._in_flight.clear()
        self._bytes = 0
        self.next_offset = offset
