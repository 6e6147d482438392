"""The pull consumer: operations that return messages of a group when the application requests them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from routekeeper.remoting.bodies import MessageQueue
from routekeeper.remoting.errors import RemotingError

from .assignment import STORED_AT_ONCE
from .config import PullConsumerConfig
from .core import ClientCore
from .errors import ClientClosed, InvalidArgument, NotApplied, OutcomeUnknown
from .member import GroupMember
from .operation import Clock, Instant, Operation, together, wait
from .process_queue import ProcessQueue
from .queue_reader import BrokenMessage, ReceivedMessage, Taken
from .retry import partial_failure

log = logging.getLogger(__name__)

#: Timeouts of this many seconds (388 days) or more are refused, because Python cannot wait that long.
_FOR_EVER_S: Final = 1 << 25
#: Error text for a queue whose offset cannot be stored, because this member no longer consumes the queue.
_RELEASED: Final = "the queue was released before; its next consumer receives the messages again"


class PullConsumerCore(GroupMember):
    """Operations of one pull consumer.

    In the background, the core assigns queues to this consumer and pulls their messages. A message counts as
    consumed at the next call of :meth:`poll` or :meth:`commit` after it was returned. If the consumer fails
    before that call, the message is delivered again, so each message is delivered at least once.

    Only one caller at a time may request messages.
    """

    consume_type = "CONSUME_ACTIVELY"
    config: PullConsumerConfig

    def __init__(
        self, core: ClientCore, config: PullConsumerConfig, subscriptions: Mapping[str, str]
    ) -> None:
        """Store the subscriptions, which have a tag expression for each topic. Topics can be added later.

        Raises:
            InvalidArgument: If a subscription is malformed.
        """
        super().__init__(
            core,
            config,
            subscriptions,
            orderly=False,
            auto_store=config.auto_commit,
            retried=False,
            workers=1,
        )
        self._handed_out: list[tuple[ProcessQueue[Taken], tuple[Taken, ...]]] = []

    def poll(
        self, *, count: int = 32, timeout_s: float | None = None
    ) -> Operation[tuple[ReceivedMessage, ...]]:
        """Return the next messages of one queue, in the queue's order.

        Messages that were returned earlier count as consumed.

        Args:
            count: Largest number of messages to return.
            timeout_s: Seconds to wait for a message. If no message arrives in this time, return an empty
                result. With None, wait without a limit.

        Raises:
            InvalidArgument: If an argument is out of range.
            ClientClosed: If the consumer is closed, or is closed during the call.
        """
        if type(count) is not int or count < 1:
            raise InvalidArgument(f"count={count!r}, allowed from 1")
        if timeout_s is not None and not (isinstance(timeout_s, int | float) and timeout_s < _FOR_EVER_S):
            raise InvalidArgument(
                f"timeout_s={timeout_s!r}, allowed are seconds below {_FOR_EVER_S}, and None"
            )
        self._consumed()
        if self.config.auto_commit:
            # Forget queues that were released before this call, so that a later commit() does not report
            # them. With auto_commit, a failure to store their offsets is only logged.
            self._assignment.released.clear()
        instant: Instant = yield Clock()
        deadline_s = None if timeout_s is None else instant.now_s + timeout_s
        while not self.stopping:
            seen = self._work.version
            messages = self._next(count)
            if messages:
                return messages
            left_s = None
            if deadline_s is not None:
                instant = yield Clock()
                left_s = deadline_s - instant.now_s
                if left_s <= 0:
                    return ()
            yield from wait(self._work, seen, left_s)
        raise ClientClosed(f"the consumer of group {self.config.group!r} is closed")

    def commit(self) -> Operation[None]:
        """Store, for each queue, the offset that follows the last message which this consumer returned.

        A queue may have been released to another member before its offset was stored. This method cannot
        store such an offset any more. Only the first call after the release names the queue as failed. With
        ``auto_commit``, :meth:`poll` forgets such queues.

        Raises:
            PartlyNotApplied: If the offsets of some queues were not stored; ``failures`` names these queues.
                The offsets of all other queues are stored.
            PartlyUnknown: If the offsets of some queues in ``failures`` may have been stored. The offsets of
                all other queues are stored.
            ClientClosed: If the consumer is closed.
        """
        self._check_open()
        self._consumed()
        moved = self._assignment.moved()
        released = dict(self._assignment.released)
        self._assignment.released.clear()
        unstored: dict[MessageQueue, RemotingError] = {
            queue: OutcomeUnknown("the client was closed meanwhile") for queue in moved
        }

        def store(queue: MessageQueue, process: ProcessQueue[Taken]) -> Operation[None]:
            try:
                yield from self._assignment.commit(queue, process, oneway=False)
            except RemotingError as error:
                unstored[queue] = error
            else:
                del unstored[queue]

        # A broadcast member stores all offsets in one file, and only one operation may write the file at a
        # time.
        yield from together(
            (store(queue, process) for queue, process in moved.items()),
            f"commit {self.config.group}",
            at_once=1 if self.config.broadcast else STORED_AT_ONCE,
        )
        for queue, end in released.items():
            # Check the stored offset again: meanwhile, this member may have got the queue back and stored a
            # newer offset.
            if self._assignment.stored(queue) < end:
                unstored.setdefault(queue, NotApplied(_RELEASED))
        if unstored:
            failures = {self._namespace.queue_outside(queue): error for queue, error in unstored.items()}
            raise partial_failure("offset not stored", failures, of=len(moved.keys() | unstored.keys()))

    def committed(self, queue: MessageQueue) -> Operation[int | None]:
        """Return the offset stored for the group, or None if no offset is stored.

        Raises:
            RemotingError: If the queue's broker does not answer.
        """
        return (yield from self._assignment.offsets.committed(self._namespace.queue_inside(queue)))

    def min_offset(self, queue: MessageQueue) -> Operation[int]:
        """Return the offset of the oldest message that the broker still stores.

        Raises:
            RemotingError: If the queue's broker does not answer.
        """
        return self.reader.min_offset(self._namespace.queue_inside(queue))

    def max_offset(self, queue: MessageQueue) -> Operation[int]:
        """Return the offset that the next message of the queue will get.

        Raises:
            RemotingError: If the queue's broker does not answer.
        """
        return self.reader.max_offset(self._namespace.queue_inside(queue))

    def search_offset(self, queue: MessageQueue, wall_ms: int) -> Operation[int]:
        """Return the offset of the first message stored at or after ``wall_ms`` (Unix time in ms).

        Raises:
            RemotingError: If the queue's broker does not answer.
        """
        return self.reader.search_offset(self._namespace.queue_inside(queue), wall_ms)

    def _next(self, count: int) -> tuple[ReceivedMessage, ...]:
        while (taken := self._take(count)) is not None:
            queue, process, batch = taken
            self._handed_out.append((process, batch))
            for message in batch:
                if isinstance(message, BrokenMessage):
                    log.error(
                        "message left behind unread group=%s queue=%s offset=%d",
                        self.config.group,
                        queue,
                        message.queue_offset,
                    )
            messages = tuple(message for message in batch if isinstance(message, ReceivedMessage))
            if messages:
                return self._namespace.messages_outside(messages)
        return ()

    def _consumed(self) -> None:
        if self._handed_out:
            for process, messages in self._handed_out:
                process.done(messages)
            self._handed_out.clear()
            self._room.notify()
