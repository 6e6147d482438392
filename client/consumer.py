"""The push consumer, which pulls messages and passes them to a listener.

This module does no I/O. Its methods are generators that yield requests and waiting times (operations, see
:mod:`.operation`). A driver (:mod:`.aio` or :mod:`.blocking`) runs the generators and does the I/O.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final

import msgspec

from routekeeper.remoting.bodies import (
    ConsumeDirectlyResult,
    MessageQueue,
)
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import RemotingError, ResponseError
from routekeeper.remoting.fields import SendBackFields
from routekeeper.remoting.message import (
    PROPERTY_DELAY,
    PROPERTY_MAX_RECONSUME_TIMES,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RECONSUME_TIME,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_WAIT,
    decode_message,
)

from .callbacks import discarded
from .config import ConsumeFrom as ConsumeFrom
from .config import ConsumerConfig as ConsumerConfig
from .config import ProducerConfig
from .core import ClientCore
from .directory import ensure_success
from .errors import ClientError, InvalidArgument, NoRoute, SendNotApplied
from .member import GroupMember
from .operation import (
    Clock,
    Deliver,
    Instant,
    Invoke,
    Operation,
    Spawn,
    read_clock,
    wait,
)
from .process_queue import ProcessQueue
from .producer import Message, ProducerCore
from .queue_reader import BODY_MAX, BrokenMessage, ReceivedMessage, Taken, receive
from .retry import Outcome, outcome_of
from .trouble import LINE_PERIOD_S, TroubleLog

log = logging.getLogger(__name__)

#: Longest time in seconds for which a worker waits until it looks for messages again.
_WAIT_MAX_S: Final = 5.0
#: Pauses in seconds before the next try of a message. Source: DefaultMQPushConsumerImpl, 4.9 and 5.3.
_PAUSE_ON_FAILED_SENDBACK_S: Final = 5.0
_PAUSE_ON_SUSPENDED_QUEUE_S: Final = 1.0
_SEND_BACK_FAILED: Final = "send back failed queue=%s error=%s"
_RESEND_FAILED: Final = "send to the retry topic failed error=%s"
#: Number of times that a broker may refuse to copy an unreadable message to the retry topic. After that, the
#: consumer skips the message, which stays in its queue.
_BROKEN_TRIES_MAX: Final = 16


class ConsumeResult(Enum):
    """A listener's result for its messages."""

    SUCCESS = "success"
    RECONSUME_LATER = "reconsume later"


#: User's function that processes a batch of messages of one queue. The results None and SUCCESS acknowledge
#: the messages. After any other result, or an exception, the messages are delivered again. With an asyncio
#: client, the result may be awaitable. The client then awaits the result.
Listener = Callable[[Sequence[ReceivedMessage]], Any]


class NoResult(ClientError):
    """A listener returned a value that is neither success nor failure."""


def _checked_result(result: Any) -> ConsumeResult:
    """Return the listener's result for its messages.

    Raises:
        NoResult: If the result is neither None nor a ConsumeResult. It may be, for example, a coroutine that
            nobody awaits.
    """
    if result is None:
        return ConsumeResult.SUCCESS
    if isinstance(result, ConsumeResult):
        return result
    raise NoResult(f"the listener returned {discarded(result)}, allowed None or a ConsumeResult")


def _is_impossible(error: RemotingError) -> bool:
    """Return True if the error shows that no further try to copy a message can succeed.

    There are two cases. The copy is too large, because brokers add properties to it. Or this client refuses
    to send the copy, for example because the body is empty.
    """
    if isinstance(error, ResponseError) and error.code == ResponseCode.SYSTEM_ERROR:
        return error.remark in ("MESSAGE_ILLEGAL", "PROPERTIES_SIZE_EXCEEDED")  # Java's answers to request 36
    if isinstance(error, ResponseError | SendNotApplied):
        return error.code == ResponseCode.MESSAGE_ILLEGAL
    return isinstance(error, InvalidArgument)


def _left_behind(message: ReceivedMessage) -> str:
    """Return the text of the log line about a message that neither its broker nor this client can copy."""
    if message.body:
        return "message left behind, too large for a copy"
    return "message left behind, too large for a copy by its broker, and its body is empty"


class PushConsumerCore(GroupMember):
    """Operations of one push consumer.

    These operations run concurrently:

    - one operation that assigns queues,
    - one operation for each assigned queue, which pulls messages,
    - ``workers`` operations that call the listener,
    - one operation that stores offsets.

    A message is delivered at least once. If its offset was not stored, this member or the next member that
    consumes the queue receives the message again. A broadcast group does not deliver a failed message again.
    """

    config: ConsumerConfig

    def __init__(
        self,
        core: ClientCore,
        config: ConsumerConfig,
        subscriptions: Mapping[str, str],
        listener: Listener,
    ) -> None:
        """Create the operations of a push consumer.

        Args:
            subscriptions: Tag expression by topic.

        Raises:
            InvalidArgument: If there is no subscription, or a subscription is malformed.
        """
        if isinstance(subscriptions, Mapping) and not subscriptions:
            raise InvalidArgument("a consumer needs at least 1 subscription, got 0")
        super().__init__(
            core,
            config,
            subscriptions,
            orderly=config.orderly,
            auto_store=True,
            retried=not config.broadcast,
            workers=config.workers,
        )
        self._listener = listener
        self._resender = ProducerCore(
            # Consumers accept bodies up to BODY_MAX, which is more than a producer's default limit.
            ProducerConfig(group=config.group, retry_times=2, message_size_max=BODY_MAX),
            core.directory,
            core.ids,
            core.rng,
        )
        self._busy = 0
        # Messages that are tried again after a pause, as a heap: the end of the pause on the monotonic clock
        # in s, a number that differs between entries, the queue's state, and the messages.
        self._pauses: list[tuple[float, int, ProcessQueue[Taken], Iterable[Taken]]] = []
        self._numbers = itertools.count()
        self._send_back_trouble = TroubleLog(log, "messages are sent back again group=%s", config.group)
        self._listener_trouble = TroubleLog(
            log, "listener works again group=%s", config.group, quiet_s=LINE_PERIOD_S
        )

    def _begin(self, start_ms: int) -> Operation[None]:
        yield from super()._begin(start_ms)
        for number in range(self.config.workers):
            yield Spawn(self._work_on(), f"worker {number} {self.config.group}")

    def on_request(self, request: RemotingCommand) -> RemotingCommand | Operation[RemotingCommand] | None:
        """Answer request 309 (consume one message now). :class:`GroupMember` answers other requests."""
        if (
            request.code == RequestCode.CONSUME_MESSAGE_DIRECTLY
            and request.ext_fields.get("consumerGroup") == self.config.group
        ):
            return self._consume_directly(request)
        return super().on_request(request)

    def _consume_directly(self, request: RemotingCommand) -> Operation[RemotingCommand]:
        """Pass the message that an operator selected to the listener.

        The listener's result changes no offset and causes no retry.
        """
        stored, _ = decode_message(request.body)
        message = receive(stored, request.ext_fields.get("brokerName", ""))
        before: Instant = yield Clock()
        result, remark = "CR_SUCCESS", None
        try:
            seen = self._namespace.messages_outside((message,))
            if _checked_result((yield Deliver(self._listener, seen))) is ConsumeResult.RECONSUME_LATER:
                result = "CR_LATER"
        except Exception as error:  # any exception of the listener: return its text to the operator
            log.warning("listener failed group=%s message=%s", self.config.group, message.message_id)
            result, remark = "CR_THROW_EXCEPTION", repr(error)
        after: Instant = yield Clock()
        answer = ConsumeDirectlyResult(
            consume_result=result,
            order=self.config.orderly,
            spent_ms=int((after.now_s - before.now_s) * 1000),
            remark=remark,
        )
        return request.reply(body=answer.encode())

    def _drain(self, deadline_s: float) -> Operation[None]:
        while self._busy:
            now: Instant = yield Clock()
            if now.now_s >= deadline_s:
                log.warning("listener calls abandoned group=%s calls=%d", self.config.group, self._busy)
                break
            yield from wait(self._room, self._room.version, deadline_s - now.now_s)

    # Consuming --------------------------------------------------------------------------------------

    def _work_on(self) -> Operation[None]:
        while not self.stopping:
            seen = self._work.version
            instant = yield from read_clock()
            wait_s = self._end_pauses(instant.now_s)
            taken = self._take(self.config.consume_batch_max, instant.now_s if self.config.orderly else None)
            if taken is None:
                yield from wait(self._work, seen, wait_s)
                continue
            self._busy += 1
            if self.config.orderly:
                self._assignment.running.add(taken[0])
            try:
                yield from self._consume(*taken)
            finally:
                self._busy -= 1
                self._assignment.running.discard(taken[0])
                self._room.notify()

    def _try_later(
        self, process: ProcessQueue[Taken], messages: Iterable[Taken], pause_s: float
    ) -> Operation[None]:
        """Let a worker take messages again after a pause. The calling worker does not wait for this pause."""
        instant = yield from read_clock()
        heapq.heappush(self._pauses, (instant.now_s + pause_s, next(self._numbers), process, messages))
        self._work.notify()  # the pause may end before the workers that wait would look for messages

    def _end_pauses(self, now_s: float) -> float:
        """Give the messages back whose pause has ended. Return the seconds until a worker must look again."""
        while self._pauses and self._pauses[0][0] <= now_s:
            _, _, process, messages = heapq.heappop(self._pauses)
            process.give_back(messages)
        return min(_WAIT_MAX_S, self._pauses[0][0] - now_s) if self._pauses else _WAIT_MAX_S

    def _consume(
        self,
        queue: MessageQueue,
        process: ProcessQueue[Taken],
        batch: tuple[Taken, ...],
    ) -> Operation[None]:
        broken = [message for message in batch if isinstance(message, BrokenMessage)]
        for message in broken:
            yield from self._hand_over(queue, process, message)
        readable = tuple(message for message in batch if isinstance(message, ReceivedMessage))
        if readable and not process.dropped:
            yield from self._listen(queue, process, readable)
        # Wake a worker if messages of this queue wait. After a reset of its offset, the queue has a new
        # state, and its messages had to wait until this batch ended.
        if process.dropped or (process.count and (self.config.orderly or process.idle)):
            self._work.notify()

    def _listen(
        self, queue: MessageQueue, process: ProcessQueue[Taken], batch: tuple[ReceivedMessage, ...]
    ) -> Operation[None]:
        """Pass messages to the listener, then acknowledge or retry them according to its result."""
        failure: Exception | None = None
        try:
            result = _checked_result((yield Deliver(self._listener, self._namespace.messages_outside(batch))))
        except Exception as error:  # any exception of the listener: deliver the messages again later
            failure, result = error, ConsumeResult.RECONSUME_LATER
        instant = yield from read_clock()
        if failure is None:
            self._listener_trouble.worked(instant.now_s)
        else:
            self._listener_trouble.failed(
                instant.now_s,
                "listener failed, its messages %s group=%s queue=%s error=%r",
                *(
                    "are dropped" if self.config.broadcast else "come again",
                    self.config.group,
                    queue,
                    failure,
                ),
                error=None if isinstance(failure, NoResult) else failure,
            )
        if process.dropped:
            return  # another member now consumes this queue and receives these messages again
        if result is not ConsumeResult.RECONSUME_LATER:
            process.done(batch)
        elif self.config.broadcast:
            if failure is None:  # otherwise the failure was logged above
                self._listener_trouble.failed(
                    instant.now_s,
                    "messages dropped, a broadcast group cannot have them again group=%s queue=%s",
                    *(self.config.group, queue),
                )
            process.done(batch)
        elif self.config.orderly:
            yield from self._suspend(queue, process, batch)
        else:
            for message in batch:
                again = yield from self._send_back(queue, message)
                if again is None:
                    process.done((message,))
                else:
                    yield from self._try_later(process, (again,), _PAUSE_ON_FAILED_SENDBACK_S)

    def _suspend(
        self, queue: MessageQueue, process: ProcessQueue[Taken], batch: tuple[ReceivedMessage, ...]
    ) -> Operation[None]:
        """Deliver messages of an orderly queue again to this member's listener after a pause.

        The queue's later messages wait, because these messages stay in flight during the pause. Messages
        without remaining retries go to the dead letter topic.
        """
        times_max = self.config.max_reconsume_times
        again = []
        for message in batch:
            if 0 <= times_max <= message.reconsume_times and (
                yield from self._send_to_dead_letters(queue, message)
            ):
                process.done((message,))
                continue
            again.append(msgspec.structs.replace(message, reconsume_times=message.reconsume_times + 1))
        if again:
            yield from self._try_later(process, again, _PAUSE_ON_SUSPENDED_QUEUE_S)

    def _send_to_dead_letters(self, queue: MessageQueue, message: ReceivedMessage) -> Operation[bool]:
        """Send an orderly queue's message to the dead letter topic; return False if it must be tried again.

        This member first sends a copy. If certainly no broker stored the copy, this member asks the message's
        broker to copy the stored message itself. This may succeed although a producer could not send a copy
        of this size. If the message is too large for the broker's copy, too, it stays in its queue.
        """
        times_max = self._reconsume_max()
        try:
            # State in the copy that the message had one retry more than allowed. Brokers of 4.9 and of 5.x
            # then put the message into the dead letter topic at once.
            yield from self._resend(message, reconsume_times=times_max + 1, times_max=times_max)
            return True
        except RemotingError as error:
            yield from self._tell_send_back(_RESEND_FAILED, error)
            if outcome_of(error) is not Outcome.NOT_APPLIED:
                return False  # the first copy may be stored, so another copy could be a second dead letter
            own_failure = error
        try:
            yield from self._ask_back(queue, message, times_max=0)
            return True
        except RemotingError as error:
            yield from self._tell_send_back(_SEND_BACK_FAILED, queue, error)
            if not (_is_impossible(own_failure) and _is_impossible(error)):
                return False
        self._leave_behind(queue, message, _left_behind(message))
        return True

    def _hand_over(
        self, queue: MessageQueue, process: ProcessQueue[Taken], message: BrokenMessage
    ) -> Operation[None]:
        """Let the broker copy an unreadable message to the retry topic, or to the dead letter topic.

        After a failure, this member tries again later. The other messages of the queue do not wait, because
        the listener does not receive this message.

        If no copy can succeed, or if the broker refuses :data:`_BROKEN_TRIES_MAX` times, this member logs an
        error and skips the message, which stays in its queue. A broker that refuses so often cannot read the
        message either.
        """
        if not self.config.broadcast:
            refusals = process.refusals
            try:
                yield from self._ask_back(queue, message, times_max=self._reconsume_max())
                del refusals[message.queue_offset]
                process.done((message,))
                return
            except RemotingError as error:
                refusals[message.queue_offset] += isinstance(error, ResponseError)
                yield from self._tell_send_back(_SEND_BACK_FAILED, queue, error)
                is_last = _is_impossible(error) or refusals[message.queue_offset] >= _BROKEN_TRIES_MAX
            if self.stopping or process.dropped:
                return  # the member that consumes this queue next will receive the message again
            if not is_last:
                process.set_aside(message)
                yield from self._try_later(process, (message,), _PAUSE_ON_FAILED_SENDBACK_S)
                return
            del refusals[message.queue_offset]
        self._leave_behind(queue, message, "message left behind unread")
        process.done((message,))

    def _leave_behind(self, queue: MessageQueue, message: Taken, event: str) -> None:
        log.error(
            event + " group=%s queue=%s offset=%d commit_log_offset=%d",
            self.config.group,
            queue,
            message.queue_offset,
            message.commit_log_offset,
        )

    def _send_back(self, queue: MessageQueue, message: ReceivedMessage) -> Operation[ReceivedMessage | None]:
        """Send a message back, so that it is delivered again later.

        This member tries the following, in this order:

        - ask the broker to copy the message to the retry topic (request 36),
        - send a copy to the retry topic.

        If neither copy can ever succeed, this member delivers the message again without a copy. After the
        last retry, it leaves the message in its queue.

        Returns:
            The message that this member must deliver again, or None if there is no such message.
        """
        times_max = self._reconsume_max()
        is_last = message.reconsume_times >= times_max
        try:
            # The stored message does not contain the number of retries that this member made itself. So after
            # the last retry, ask for a copy to the dead letter topic (0 retries allowed).
            yield from self._ask_back(queue, message, times_max=0 if is_last else times_max)
            return None
        except RemotingError as error:
            yield from self._tell_send_back(_SEND_BACK_FAILED, queue, error)
            refusal = error
        times = message.reconsume_times + 1
        try:
            yield from self._resend(message, reconsume_times=times, times_max=times_max)
            return None
        except RemotingError as error:
            yield from self._tell_send_back(_RESEND_FAILED, error)
            if not (_is_impossible(refusal) and _is_impossible(error)):
                return message
        if not is_last:
            return msgspec.structs.replace(message, reconsume_times=times)
        self._leave_behind(queue, message, _left_behind(message))
        return None

    def _ask_back(self, queue: MessageQueue, message: Taken, *, times_max: int) -> Operation[None]:
        """Ask the broker to copy a message to the retry topic.

        If the message had ``times_max`` retries already, the broker copies it to the dead letter topic.

        Raises:
            RemotingError: If the broker did not copy the message.
        """
        fields = SendBackFields(
            offset=message.commit_log_offset,
            group=self.config.group,
            delay_level=0,
            origin_msg_id=message.offset_message_id,
            origin_topic=message.topic,
            max_reconsume_times=times_max,
            broker_name=queue.broker_name,
        )
        request = RemotingCommand.request(RequestCode.CONSUMER_SEND_MSG_BACK, fields.to_ext())
        addr = self._directory.routes.master(queue.broker_name)
        if addr is None:
            raise NoRoute(queue.topic, f"no master of broker {queue.broker_name} is known")
        response: RemotingCommand = yield Invoke(addr, request, self._core.config.call_timeout_s)
        ensure_success(response, addr)
        instant: Instant = yield Clock()
        self._send_back_trouble.worked(instant.now_s)

    def _tell_send_back(self, line: str, *values: object) -> Operation[None]:
        instant: Instant = yield Clock()
        self._send_back_trouble.failed(instant.now_s, line + " group=%s", *values, self.config.group)

    def _resend(self, message: ReceivedMessage, *, reconsume_times: int, times_max: int) -> Operation[None]:
        """Send a copy of a message to the retry topic, with its number of retries.

        Raises:
            RemotingError: If the copy was not stored, or it is unknown whether it was stored.
        """
        # Copy tags and keys without our checks: other clients may have written tags and keys that our checks
        # would refuse.
        kept = message.properties.items()
        properties = {name: value for name, value in kept if name not in (PROPERTY_WAIT, PROPERTY_DELAY)}
        properties[PROPERTY_RETRY_TOPIC] = message.topic
        properties[PROPERTY_RECONSUME_TIME] = str(reconsume_times)
        properties[PROPERTY_MAX_RECONSUME_TIMES] = str(times_max)
        properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, message.offset_message_id)
        again = Message(
            topic=self._retry_topic,
            body=message.body,
            flag=message.flag,
            delay_level=3 + message.reconsume_times,
        )
        yield from self._resender.resend(again, properties)

    def _reconsume_max(self) -> int:
        return 16 if self.config.max_reconsume_times < 0 else self.config.max_reconsume_times
