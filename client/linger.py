"""Batches of messages. A message waits briefly for more messages, so that one request sends them all.

:class:`Batches` holds waiting messages and decides when a batch must be sent. It reads no clock.
:class:`LingerCore` has the operations that send the batches. This module does no I/O.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from routekeeper.remoting.errors import RemotingError

from .callbacks import discarded, never_runs
from .core import ClientCore
from .errors import ClientClosed, ClientError, InvalidArgument, OutcomeUnknown
from .operation import Clock, Deliver, Instant, Once, Operation, Signal, Spawn, read_clock, wait
from .producer import EncodedItem, Message, ProducerCore, QueueSelector, SendResult, selected
from .route_cache import MessageQueue
from .trouble import LINE_PERIOD_S, TroubleLog

log = logging.getLogger(__name__)

#: Largest number of messages in one batch. A broker writes a batch under one lock, so other senders wait
#: while it writes a large batch.
_COUNT_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class BatchKey:
    """Properties that are equal for all messages of a batch.

    Attributes:
        queue: The queue that the sender named; None if each batch may go to any queue.
    """

    topic: str
    wait_store: bool
    queue: MessageQueue | None


@dataclass(slots=True, eq=False)
class Batch:
    """The messages of one batch. Each message has a handle, with which the client reports the outcome.

    Attributes:
        flushes: Number of calls of :meth:`Batches.flush` before the batch was opened.
        reported: True if the outcomes of the messages were reported to the user.
        tried: True if a sender was cancelled while it sent the batch. A broker may have stored the messages.
    """

    key: BatchKey
    due_s: float
    flushes: int
    items: list[EncodedItem] = field(default_factory=list)
    handles: list[Any] = field(default_factory=list)
    size: int = 0
    reported: bool = False
    tried: bool = False


class Batches:
    """Batches that wait to be sent. Open batches accept more messages, and closed batches do not.

    If batches name a queue and have the same key, they are sent one after the other. So their messages stay
    in order.
    """

    def __init__(self, *, linger_s: float, batch_size: int) -> None:
        self._linger_s = linger_s
        self._batch_size = batch_size
        self._open: dict[BatchKey, Batch] = {}
        self._closed: deque[Batch] = deque()
        self._busy: set[BatchKey] = set()
        self._flushes = 0  # number of calls of flush()
        self._pending = Counter[int]()  # number of batches that have not ended, by ``Batch.flushes``
        #: Batches that a sender has taken and is still sending.
        self.under_way: list[Batch] = []
        #: ``size`` is the total size in bytes, and ``count`` the number, of all messages that are waiting or
        #: being sent.
        self.size = 0
        self.count = 0

    def add(self, key: BatchKey, item: EncodedItem, handle: Any, now_s: float) -> bool:
        """Add a message, and return True if senders must be woken.

        Senders must be woken if a batch must be sent now, or if there is a new deadline.
        """
        batch = self._open.get(key)
        fits = batch is not None and batch.size + len(item.data) <= self._batch_size
        if batch is not None and not fits:
            self._close(key)
        if batch is None or not fits:
            batch = self._open[key] = Batch(key, now_s + self._linger_s, self._flushes)
            self._pending[self._flushes] += 1
        batch.items.append(item)
        batch.handles.append(handle)
        batch.size += len(item.data)
        self.size += len(item.data)
        self.count += 1
        ripe = batch.size >= self._batch_size or len(batch.items) >= _COUNT_MAX
        if ripe:
            self._close(key)
        return ripe or not fits

    def take(self, now_s: float) -> Batch | None:
        """Return a batch to send now, or None. The caller must call :meth:`done` after sending."""
        for key in [key for key, batch in self._open.items() if batch.due_s <= now_s]:
            self._close(key)
        for position, batch in enumerate(self._closed):
            if batch.key.queue is None or batch.key not in self._busy:
                del self._closed[position]
                self._busy.add(batch.key)
                self.under_way.append(batch)
                return batch
        return None

    def done(self, batch: Batch) -> None:
        """Record that a sender has finished a batch. A second call does nothing."""
        if self._ended(batch):
            self._forget(batch)

    def next_due_s(self) -> float | None:
        """Return the earliest instant at which an open batch must be sent; None if no batch is open."""
        return min((batch.due_s for batch in self._open.values()), default=None)

    def flush(self) -> int:
        """Close all open batches, so that they are sent without further waiting.

        Returns:
            The number of this call, for :meth:`flushed`.
        """
        for key in tuple(self._open):
            self._close(key)
        self._flushes += 1
        return self._flushes

    def flushed(self, number: int) -> bool:
        """Return True if all batches that were opened before this call of :meth:`flush` have ended."""
        return min(self._pending, default=number) >= number

    def abandon(self) -> list[Batch]:
        """Remove and return all batches that no sender has taken."""
        self.flush()
        left = list(self._closed)
        self._closed.clear()
        for batch in left:
            self._forget(batch)
        return left

    def give_back(self, batch: Batch) -> None:
        """Put back a batch whose sender was cancelled, so that it is sent next."""
        if self._ended(batch):
            batch.tried = True
            self._closed.appendleft(batch)

    def _ended(self, batch: Batch) -> bool:
        if batch not in self.under_way:
            return False
        self.under_way.remove(batch)
        self._busy.discard(batch.key)
        return True

    def _forget(self, batch: Batch) -> None:
        self.size -= batch.size
        self.count -= len(batch.items)
        self._pending[batch.flushes] -= 1
        if not self._pending[batch.flushes]:
            del self._pending[batch.flushes]

    def _close(self, key: BatchKey) -> None:
        self._closed.append(self._open.pop(key))


#: Type of the user's functions that are called with the outcome of a message. The arguments are an error and
#: None, or None and a result.
OnDelivery = Callable[["RemotingError | None", "SendResult | None"], Any]
#: Type of the functions of ``aio_parts`` and ``blocking_parts`` that report outcomes to users. The argument
#: has pairs of a handle and a result or error. The function returns the exceptions that users' callbacks
#: raised. For asyncio, it is a coroutine function.
Tell = Callable[[Sequence[tuple[Any, SendResult | RemotingError]]], Any]


def _under_way() -> OutcomeUnknown:
    return OutcomeUnknown("the client was closed while the message was under way")


class LingerCore:
    """Operations that put messages into batches and send the batches."""

    def __init__(self, core: ClientCore, producer: ProducerCore, tell: Tell) -> None:
        config = producer.config
        self._core = core
        self._producer = producer
        self._tell = tell
        self._batches = Batches(linger_s=config.linger_s, batch_size=config.batch_size)
        self._ripe = Signal()
        self._ended = Signal()
        self._running = False
        self._closed = False
        self._closing = Once()
        self._workers = 0
        self._cut_off: list[Batch] = []  # batches whose senders were cancelled before the answer came
        self._abandoned: deque[Batch] = deque()  # batches that will not be sent, and have no outcome yet
        self._not_sent = self._unknown = 0  # numbers of messages, for the warning in close()
        self._send_trouble = TroubleLog(log, "messages are sent again group=%s", config.group)
        self._callback_trouble = TroubleLog(
            log, "delivery callbacks work again group=%s", config.group, quiet_s=LINE_PERIOD_S
        )

    def put(
        self,
        message: Message,
        handle: Any,
        *,
        queue: MessageQueue | None = None,
        select: QueueSelector | None = None,
        may_wait: bool = True,
    ) -> Operation[None]:
        """Add a message to a batch. The message's outcome is reported later, together with ``handle``.

        This operation waits while this message and all unsent messages would together exceed ``buffer_size``
        bytes.

        Args:
            may_wait: False if the caller is the user's ``on_delivery`` function. The reported messages use
                buffer space until that function returns, so a wait for space would never end. With False, the
                buffer may exceed ``buffer_size``.

        Raises:
            InvalidArgument: If the message cannot be sent in a batch; it was not added.
            ClientClosed: If the producer is closed; the message was not added.
        """
        self._producer.check_use(message, queue, select, None)
        if message.delay_level:
            raise InvalidArgument(f"delay_level={message.delay_level}, in a batch only 0 is allowed")
        instant: Instant = yield Clock()
        item = self._producer.item(message, instant.wall_ms)
        if select is not None and queue is None:
            queue = selected(select, (yield from self._producer.queues(message.topic)), message)
        while self._batches.size and self._batches.size + len(item.data) > self._producer.config.buffer_size:
            if self._closed or not may_wait:
                break
            yield from wait(self._ended, self._ended.version, None)
        if self._closed or self._core.closing:
            raise ClientClosed("the producer is closed")
        if not self._running:
            self._running = True
            try:
                for number in range(self._producer.config.batches_max):
                    yield Spawn(self._send_ripe(), f"batches {number} {self._producer.config.group}")
                    self._workers += 1
            except RemotingError:
                self._running = self._workers > 0
                if not self._running:
                    raise
        if self._batches.add(BatchKey(message.topic, message.wait_store, queue), item, handle, instant.now_s):
            self._ripe.notify()

    def flush(self) -> Operation[None]:
        """Send all messages that were added with :meth:`put` before, and wait for the outcome of each."""
        number = self._batches.flush()
        self._ripe.notify()
        while not self._batches.flushed(number):
            yield from wait(self._ended, self._ended.version, None)

    def close(self) -> Operation[Signal | None]:
        """Send the messages of :meth:`put` within ``send_timeout_s`` + ``shutdown_s`` seconds.

        Messages that still wait after this time are reported as not applied. A warning says how many
        messages were not sent. If the caller of this operation is cancelled, the next call continues the
        work.

        Returns:
            As :meth:`.operation.Once.run`.
        """
        return self._closing.run(self._close)

    def _close(self) -> Operation[None]:
        self._closed = self._producer.closed = True
        self._batches.flush()
        self._ripe.notify()
        instant: Instant = yield Clock()
        deadline_s = instant.now_s + self._producer.config.send_timeout_s + self._core.config.shutdown_s
        deadline_s = min(deadline_s, self._core.deadline_s)
        while self._batches.count and instant.now_s < deadline_s:
            seen = self._ended.version
            batch = None if self._workers else self._batches.take(instant.now_s)
            if batch is None:
                yield from wait(self._ended, seen, deadline_s - instant.now_s)
            else:  # all senders have ended because the event loop is ending, so send the batch here
                yield from self._send(batch)
            instant = yield Clock()
        yield from self._abandon()
        self._unknown += self._batches.count
        if self._not_sent or self._unknown:
            log.warning(
                "messages not sent before the end group=%s not_sent=%d unknown=%d",
                self._producer.config.group,
                self._not_sent,
                self._unknown,
            )
        self._ripe.notify()
        self._ended.notify()

    def end(self) -> Operation[None]:
        """Report an outcome for each message that has no outcome after :meth:`close`. Do not wait.

        A message has an unknown outcome if its sender was cancelled during the send, because a broker may
        have stored the message.
        """
        self._closed = self._producer.closed = True
        yield from self._abandon()
        for batch in (*self._cut_off, *self._batches.under_way):
            yield from self._settle(batch, _under_way())
            self._batches.done(batch)
        self._cut_off.clear()
        self._ripe.notify()
        self._ended.notify()

    def _abandon(self) -> Operation[None]:
        error = ClientClosed("the producer was closed before the message was sent")
        self._abandoned.extend(self._batches.abandon())
        while self._abandoned:  # the next call continues this loop if a cancellation ends it at a yield
            batch = self._abandoned.popleft()
            if batch.tried:
                self._unknown += len(batch.items)
                yield from self._settle(batch, _under_way())
            else:
                self._not_sent += len(batch.items)
                yield from self._settle(batch, error)

    def _settle(self, batch: Batch, error: RemotingError) -> Operation[None]:
        if not batch.reported:
            batch.reported = True
            yield from self._tell_owners([(handle, error) for handle in batch.handles])

    @property
    def unsent(self) -> int:
        """Return the number of messages that have no outcome yet."""
        cut_off = sum(len(batch.items) for batch in self._cut_off if not batch.reported)
        return self._batches.count + cut_off

    def _send_ripe(self) -> Operation[None]:
        try:
            yield from self._send_until_closed()
        finally:
            self._workers -= 1
            self._ended.notify()

    def _send_until_closed(self) -> Operation[None]:
        while True:
            seen = self._ripe.version
            instant: Instant = yield Clock()
            batch = self._batches.take(instant.now_s)
            if batch is not None:
                yield from self._send(batch)
                continue
            if self._closed and not self._batches.count:
                return
            due_s = self._batches.next_due_s()
            yield from wait(self._ripe, seen, None if due_s is None else max(0.0, due_s - instant.now_s))

    def _send(self, batch: Batch) -> Operation[None]:
        key = batch.key
        outcomes: list[SendResult | RemotingError] = []
        cut_off = False
        try:
            try:
                result = yield from self._producer.send_items(
                    key.topic, batch.items, wait_store=key.wait_store, queue=key.queue
                )
                outcomes = [*_single_results(result, batch)]
                self._send_trouble.worked((yield from read_clock()).now_s, source=key.topic)
            except RemotingError as error:
                outcome = error
                if batch.tried and not isinstance(error, OutcomeUnknown):
                    outcome = OutcomeUnknown(f"an earlier try was cut off, and may be stored: {error}")
                outcomes = [outcome] * len(batch.items)
                self._send_trouble.failed(
                    (yield from read_clock()).now_s,
                    "messages not sent group=%s topic=%s messages=%d error=%s",
                    *(self._producer.config.group, key.topic, len(batch.items), error),
                    source=key.topic,
                )
            # Catch all exceptions. Otherwise an exception would end this sender, and batches could wait for a
            # sender for ever.
            except Exception as error:
                log.exception("batch failed topic=%s messages=%d", key.topic, len(batch.items))
                outcomes = [OutcomeUnknown(f"batch failed: {error!r}")] * len(batch.items)
            if self._closed and isinstance(outcomes[0], RemotingError):
                if isinstance(outcomes[0], OutcomeUnknown):
                    self._unknown += len(outcomes)
                else:
                    self._not_sent += len(outcomes)
            if not batch.reported:
                batch.reported = True
                yield from self._tell_owners(list(zip(batch.handles, outcomes, strict=True)))
        except GeneratorExit:  # the sender was cancelled, because the event loop or the client is ending
            cut_off = not outcomes
            raise
        finally:
            if cut_off and self._producer.config.retry_unknown and not self._closed:
                self._batches.give_back(batch)
            else:
                self._batches.done(batch)
                if cut_off:
                    self._cut_off.append(batch)
                    self._unknown += 0 if self._closed else len(batch.items)
            self._ripe.notify()
            self._ended.notify()

    def _tell_owners(self, outcomes: list[tuple[Any, SendResult | RemotingError]]) -> Operation[None]:
        failures: list[BaseException] = yield Deliver(self._tell, outcomes)
        instant: Instant = yield Clock()
        if not failures:
            self._callback_trouble.worked(instant.now_s)
        for failure in failures:
            self._callback_trouble.failed(
                instant.now_s,
                "delivery callback failed group=%s error=%r",
                self._producer.config.group,
                failure,
                error=failure,
            )


def _single_results(result: SendResult, batch: Batch) -> list[SendResult]:
    """Derive the result of each message from the result of the batch."""
    offset_ids = result.offset_message_id.split(",")
    if len(offset_ids) != len(batch.items):
        offset_ids = [""] * len(batch.items)
    return [
        msgspec.structs.replace(
            result,
            message_id=item.message_id,
            offset_message_id=offset_ids[index],
            queue_offset=result.queue_offset + index if result.queue_offset >= 0 else -1,
            maybe_repeated=result.maybe_repeated or batch.tried,
        )
        for index, item in enumerate(batch.items)
    ]


def call_back(on_delivery: OnDelivery, outcome: SendResult | RemotingError) -> BaseException | None:
    """Call the user's callback with a message's outcome. Return the callback's exception, or None."""
    try:
        if isinstance(outcome, RemotingError):
            result = on_delivery(outcome, None)
        else:
            result = on_delivery(None, outcome)
    except KeyboardInterrupt:
        raise
    except (
        BaseException
        # Catch every exception, even SystemExit, because other messages must still be reported.
    ) as error:
        return error
    return ClientError(f"it returned {discarded(result)}") if never_runs(result) else None
