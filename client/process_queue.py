"""The messages of one queue that were pulled but not consumed yet.

This module decides when to pull, which messages to consume next, and which offset to commit. It does no I/O
and reads no clock.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Generic, Protocol, TypeVar

#: Limits for the messages of one queue in memory. Above a limit, pulling pauses. SPAN_MAX limits the distance
#: between the lowest offset in memory and the next offset to pull. Source: DefaultMQPushConsumer.
MESSAGES_MAX: Final = 1000
BYTES_MAX: Final = 100 * 1024 * 1024
SPAN_MAX: Final = 2000
#: The first PROPERTIES_FREE properties of a message are not counted. Each further property counts as
#: PROPERTY_BYTES bytes of memory. A usual message has fewer properties, so only the body counts, as in
#: RocketMQ's client.
PROPERTY_BYTES: Final = 160
PROPERTIES_FREE: Final = 32


class Queued(Protocol):
    """The fields of a message that this module needs."""

    @property
    def queue_offset(self) -> int: ...

    @property
    def body(self) -> bytes: ...

    @property
    def properties(self) -> Mapping[str, str]: ...


M = TypeVar("M", bound=Queued)


def memory_size(message: Queued) -> int:
    """Return the memory in bytes of a message's body and of properties beyond :data:`PROPERTIES_FREE`.

    The size of the body alone would be misleading. A message with a body of 1 byte may have 5,000 properties,
    and they take 0.5 MB.
    """
    return len(message.body) + PROPERTY_BYTES * max(0, len(message.properties) - PROPERTIES_FREE)


class ProcessQueue(Generic[M]):
    """The messages of one queue between the offset to commit and the offset to pull next.

    Attributes:
        next_offset: Offset of the next pull.
        serial: True if only one batch at a time is consumed (orderly consumption).
        leaving: True if this member is about to release the queue. No more messages are delivered. The
            consumption of messages in flight continues to its end, and their offsets are stored.
        dropped: True if this member has released the queue. From then on, the results of its messages are
            ignored.
        taken_end: Offset after the last message that :meth:`take` returned; 0 if :meth:`take` returned no
            message yet.
        refusals: For offsets of unreadable messages, the number of times that the broker refused to copy the
            message. The push consumer counts them.

    Invariants:
        - every offset below :attr:`commit_offset` was consumed, was filtered out, or was never requested,
        - a message is in exactly one state: waiting, in flight, or done. A message in flight is being
          consumed, or it failed and its pause has not ended yet.
    """

    __slots__ = (
        "_aside",
        "_bytes",
        "_commits",
        "_in_flight",
        "_sizes",
        "_sorted",
        "_waiting",
        "dropped",
        "leaving",
        "locked_until_s",
        "next_offset",
        "refusals",
        "serial",
        "taken_end",
    )

    def __init__(self, next_offset: int, *, serial: bool = False) -> None:
        self.next_offset = next_offset
        self.serial = serial
        self.dropped = False
        self.leaving = False
        self.locked_until_s = float("-inf")
        self.taken_end = 0
        self.refusals: Counter[int] = Counter()
        self._commits = 0  # number of begun requests that store an offset
        self._waiting: dict[int, M] = {}
        self._in_flight: dict[int, M] = {}
        self._aside: set[int] = set()  # offsets of messages in flight for which a serial queue does not wait
        # For each offset, the message's memory size at the time of the pull. Do not compute it again, because
        # the listener may change the properties.
        self._sizes: dict[int, int] = {}
        self._bytes = 0
        # True if ``_waiting`` is in the order of the offsets.
        self._sorted = True

    @property
    def count(self) -> int:
        """Return the number of messages that wait or are being consumed."""
        return len(self._waiting) + len(self._in_flight)

    @property
    def cached_bytes(self) -> int:
        """Return the memory of all messages that wait or are being consumed, by :func:`memory_size`."""
        return self._bytes

    @property
    def body_bytes(self) -> int:
        """Return the size in bytes of the bodies of all messages that wait or are being consumed."""
        pending = (*self._waiting.values(), *self._in_flight.values())
        return sum(len(message.body) for message in pending)

    @property
    def idle(self) -> bool:
        """Return True if no message of the queue is in flight, except messages that were set aside."""
        return len(self._in_flight) == len(self._aside)

    @property
    def commit_offset(self) -> int:
        """Return the offset to commit. The next member that consumes this queue begins at this offset."""
        # Include `next_offset`. After `move` to a lower offset, all messages that are being consumed may have
        # higher offsets than `next_offset`.
        return min([*self._waiting, *self._in_flight, self.next_offset])

    def begin_commit(self) -> Callable[[], bool]:
        """Count a request that stores :attr:`commit_offset`. Return a function that says if it is obsolete.

        Call the function immediately before the request is sent. It returns True if a later request began, or
        if the queue was released. The request must then not be sent, because its older offset would overwrite
        a newer offset.
        """
        self._commits += 1
        number = self._commits
        return lambda: self.dropped or self._commits != number

    @property
    def cached_offsets(self) -> tuple[int, int]:
        """Return the lowest and highest offset of messages that wait or are being consumed.

        Return two zeros if there are no such messages.
        """
        pending = [*self._waiting, *self._in_flight]
        return (min(pending), max(pending)) if pending else (0, 0)

    @property
    def full(self) -> bool:
        """Return True if pulling must pause: a limit is exceeded, or :meth:`move` left messages in flight.

        After :meth:`move` to a lower offset, the next pull may return new messages with the offsets of
        messages that are still being consumed. This class could not distinguish such messages, because it
        identifies messages by their offsets.
        """
        if self.count > MESSAGES_MAX or self._bytes > BYTES_MAX:
            return True
        if max(self._sizes, default=-1) >= self.next_offset:
            return True
        if self.serial or not self.count:
            return False
        # Messages that were set aside do not count, because the other messages must not wait for them.
        lowest = min([*self._waiting, *(self._in_flight.keys() - self._aside), self.next_offset])
        return self.next_offset - lowest > SPAN_MAX

    def pulled(self, messages: Iterable[M], next_offset: int) -> None:
        """Add the messages of one pull, without the messages that the tag filter removed.

        Args:
            next_offset: Offset of the next pull.
        """
        last = next(reversed(self._waiting), -1)
        for message in messages:
            self._sorted = self._sorted and last < message.queue_offset
            last = message.queue_offset
            if message.queue_offset not in self._sizes:
                self._waiting[message.queue_offset] = message
                self._sizes[message.queue_offset] = size = memory_size(message)
                self._bytes += size
        self.next_offset = next_offset

    def take(self, count: int) -> tuple[M, ...]:
        """Return up to ``count`` messages to consume, lowest offsets first.

        A serial queue returns no messages while a batch is in flight, except for messages that were set
        aside.
        """
        if self.dropped or self.leaving or (self.serial and not self.idle):
            return ()
        if not self._sorted:
            self._waiting = dict(sorted(self._waiting.items()))
            self._sorted = True
        batch = []
        for offset in tuple(itertools.islice(self._waiting, count)):
            message = self._waiting.pop(offset)
            self._in_flight[offset] = message
            batch.append(message)
        if batch:
            self.taken_end = max(self.taken_end, batch[-1].queue_offset + 1)
        return tuple(batch)

    def done(self, messages: Iterable[M]) -> None:
        """Record that these messages were consumed, or that this member skips them."""
        for message in messages:
            if self._in_flight.pop(message.queue_offset, None) is not None:
                self._bytes -= self._sizes.pop(message.queue_offset)
                self._aside.discard(message.queue_offset)

    def set_aside(self, message: M) -> None:
        """Let a serial queue continue without a message that is in flight, until :meth:`give_back`."""
        if message.queue_offset in self._in_flight:
            self._aside.add(message.queue_offset)

    def give_back(self, messages: Iterable[M]) -> None:
        """Record that these messages were not consumed, so that they are delivered again."""
        for message in messages:
            if self._in_flight.pop(message.queue_offset, None) is not None:
                self._waiting[message.queue_offset] = message
                self._sorted = False
                self._aside.discard(message.queue_offset)

    def move(self, offset: int) -> None:
        """Continue pulling at ``offset``, because the broker's queue has no message at ``next_offset``.

        If ``offset`` is higher than ``next_offset``, the broker has removed old messages. Messages that were
        pulled are kept: they are not consumed yet, and the broker may not have them any more.

        If ``offset`` is lower, the broker's queue ends at ``offset``. Messages from ``offset`` on that wait
        are removed. Messages that are being consumed are kept until their result is known. Until then,
        pulling pauses (:attr:`full`).
        """
        for stale in [waiting for waiting in self._waiting if waiting >= offset]:
            del self._waiting[stale]
            self._bytes -= self._sizes.pop(stale)
        self.next_offset = offset
        self.taken_end = min(self.taken_end, offset)
