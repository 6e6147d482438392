"""The common part of push and pull consumers: a member of a consumer group. This module does no I/O."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from routekeeper.remoting.bodies import ConsumerData, MessageQueue, QueueOffsets, SubscriptionData
from routekeeper.remoting.codes import RETRY_PREFIX, VERSION, RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import (
    RemoteProtocolError,
    RemotingError,
    ResponseError,
    TooManyRequests,
    Withdrawn,
)
from routekeeper.remoting.inspection import ConsumerRunningInfo, ConsumerStatus, RunningQueue
from routekeeper.remoting.logs import shortened

from .assignment import Assignment
from .config import GroupConfig, check_queue, check_text
from .core import ClientCore
from .errors import ClientClosed, InvalidArgument
from .namespace import Namespace
from .operation import Clock, Instant, Once, Operation, Signal, read_clock, wait
from .process_queue import ProcessQueue
from .queue_reader import MESSAGE_MAX, QueueReader, Taken, subscription
from .trouble import TroubleLog

log = logging.getLogger(__name__)

#: Pauses in seconds. Source: DefaultMQPushConsumerImpl, 4.9 and 5.3.
_PAUSE_ON_ERROR_S: Final = 1.0
_PAUSE_ON_FLOW_CONTROL_S: Final = 0.02
_PAUSE_ON_FULL_S: Final = 0.05
_PAUSE_WHILE_PAUSED_S: Final = 5.0
#: A pull asks the broker to wait for a message, but some brokers answer at once. If an empty answer comes
#: within this number of seconds, the member pauses before the next pull. Without this pause, it would send
#: pulls to such a broker in a tight loop.
_LONG_POLL_MIN_S: Final = 0.01
_PAUSE_WITHOUT_LONG_POLL_S: Final = 0.2
#: A connection to a broker has a limited number of places for waiting pulls. If a pull finds no free place,
#: it is repeated every ``_PAUSE_ON_ERROR_S`` seconds. For this number of seconds after each such failure,
#: every queue of the broker pauses after an empty pull. The pause frees a place for the pulls of other
#: queues.
_CROWDED_S: Final = 2.0


class GroupMember:
    """Operations of one member of a group: subscribe to topics, assign queues, and pull from each queue.

    Attributes:
        subscriptions: Subscriptions by topic. If failed messages are delivered again through the group's
            retry topic, this topic is included.
        paused: Queues for which pulling and delivering are paused.
        stopping: True if :meth:`close` has begun.
        unreadable: Number of messages since the start that this member could not read.
        reader: Operations on single queues.
    """

    consume_type = "CONSUME_PASSIVELY"

    def __init__(
        self,
        core: ClientCore,
        config: GroupConfig,
        subscriptions: Mapping[str, str],
        *,
        orderly: bool,
        auto_store: bool,
        retried: bool,
        workers: int,
    ) -> None:
        """Create the operations of a member.

        Args:
            subscriptions: Tag expression by topic.
            orderly: True if the member locks each queue and consumes its messages one after the other.
            auto_store: True to store offsets of consumed messages regularly and when the member closes.
            retried: True if failed messages are delivered again through the group's retry topic.
            workers: Number of calls of the listener that may run at the same time.

        Raises:
            InvalidArgument: If a subscription is malformed.
        """
        if not isinstance(subscriptions, Mapping):
            raise InvalidArgument(
                f"subscriptions={shortened(repr(subscriptions))}, allowed is a mapping of topics to tag"
                " expressions, such as {'Orders': '*'}"
            )
        for topic in subscriptions:
            check_text("topic", topic)
        self._namespace = Namespace(core.config.namespace)
        config = replace(config, group=self._namespace.inside(config.group))
        self.config = config
        self._core = core
        self._directory = core.directory
        self._retry_topic = RETRY_PREFIX + config.group
        self._orderly = orderly
        self._workers = workers
        self._start_ms = 0
        self._auto_store = auto_store
        self._commit_with_pull = auto_store and not config.broadcast
        self.subscriptions: dict[str, SubscriptionData] = {}
        for topic, expression in subscriptions.items():
            stored = self._namespace.inside(topic)
            self.subscriptions[stored] = subscription(stored, expression, 0)
        if retried:
            self.subscriptions[self._retry_topic] = subscription(self._retry_topic, "*", 0)
        self.reader = QueueReader(core, config.group)
        self._assignment = Assignment(
            core,
            config,
            self.reader,
            self.subscriptions,
            self._pull_from,
            orderly=orderly,
            auto_store=auto_store,
        )
        self._queues = self._assignment.queues
        self._work, self._room = self._assignment.work, self._assignment.room
        self._turn = 0
        self._pull_trouble: dict[str, TroubleLog] = {}
        self._started = False
        self._joined = False  # True if a broker may list this member
        self._closing = Once()
        self.paused: set[MessageQueue] = set()
        self.stopping = False
        self.unreadable = 0

    # Methods for users and for the client classes ---------------------------------------------------

    @property
    def assigned(self) -> tuple[MessageQueue, ...]:
        """Return the queues that this member consumes now, sorted."""
        return tuple(map(self._namespace.queue_outside, sorted(self._queues)))

    @property
    def cached_bytes(self) -> int:
        """Return the memory in bytes of the messages that were pulled but not yet consumed."""
        return sum(process.cached_bytes for process in self._queues.values())

    def start(self) -> Operation[None]:
        """Fetch the routes, register the group at the brokers, begin to pull.

        Raises:
            NoNameserver: If no nameserver answered; nothing was started.
            InvalidArgument: If the group has a member in this client already, or if another consumer uses the
                file of a broadcast member's offsets.
            ClientClosed: If the consumer was closed before or during the start.
            ClientError: If the background work cannot begin, for example because no thread can be started.
                The consumer is then closed.
        """
        self._check_open()
        if self._started:
            return
        instant: Instant = yield Clock()
        self._start_ms = instant.wall_ms
        for topic, known in tuple(self.subscriptions.items()):
            self.subscriptions[topic] = subscription(topic, known.sub_string, instant.wall_ms)
        for topic in tuple(self.subscriptions):
            yield from self._learn(topic)
        self._check_open()
        self._core.add_consumer(
            self.config.group,
            self._describe,
            self.on_request,
            self.close,
            self.end,
            lambda: self.cached_bytes,
        )
        # If the start fails, remove the consumer. Otherwise, heartbeats would name a member that consumes
        # nothing, and the other members would leave a share of the queues to this member.
        self._joined = True  # from now on, a heartbeat of the background work may name this member
        try:
            yield from self._assignment.offsets.open()
            self._check_open()
            self._started = True
            yield from self._core.beat()
        except BaseException:  # for example, a cancelled caller, which may start this consumer again
            self._started = False
            self._core.remove_consumer(self.config.group, self._describe)
            self._assignment.offsets.close()
            raise
        try:
            yield from self._begin(instant.wall_ms)
        except BaseException as error:
            self._stop()
            self._core.remove_consumer(self.config.group, self._describe)
            if isinstance(error, RemotingError):  # another error interrupts the program, so do not wait
                yield from self.close()
            self._assignment.offsets.close()
            raise

    def close(self) -> Operation[Signal | None]:
        """Stop pulling, wait for running listeners, store offsets, release locks, leave the group.

        The requests to brokers are 15 (offsets), 42 (locks) and 35 (group). If the caller of this operation
        is cancelled, the next call sends the requests.

        Returns:
            As :meth:`.operation.Once.run`.
        """
        return self._closing.run(self._close)

    def _close(self) -> Operation[None]:
        self._stop()
        if not self._joined:
            return
        instant: Instant = yield Clock()
        yield from self._drain(min(instant.now_s + self._core.config.shutdown_s, self._core.deadline_s))
        yield from self._assignment.release_all()
        self._assignment.offsets.close()
        if self._core.remove_consumer(self.config.group, self._describe):
            yield from self._core.leave(consumer_group=self.config.group)

    def end(self) -> Operation[None]:
        """If :meth:`close` did not run, wake all callers that wait for messages. Send nothing."""
        self._stop()
        self._assignment.offsets.close()
        return
        yield

    def subscribe(self, topic: str, expression: str = "*") -> Operation[None]:
        """Subscribe to a topic, or change a subscription's tags. The next rebalance assigns the queues.

        All members of a group must have the same subscriptions, as in RocketMQ.

        Raises:
            InvalidArgument: If topic or expression is invalid; nothing changed.
            NoNameserver: If no nameserver answered; nothing changed.
            ClientClosed: If the consumer is closed.
        """
        self._check_open()
        check_text("topic", topic)
        instant: Instant = yield Clock()
        topic = self._namespace.inside(topic)
        wanted = subscription(topic, expression, instant.wall_ms)
        if self._started:
            yield from self._learn(topic)
        self.subscriptions[topic] = wanted
        yield from self._announce()

    def unsubscribe(self, topic: str) -> Operation[None]:
        """Unsubscribe from a topic. The topic's queues are released soon, and their offsets are stored.

        Raises:
            InvalidArgument: If the group does not subscribe to the topic.
            ClientClosed: If the consumer is closed.
        """
        self._check_open()
        check_text("topic", topic)
        stored = self._namespace.inside(topic)
        if stored not in self.subscriptions or stored == self._retry_topic:
            raise InvalidArgument(f"topic {topic!r} is not subscribed by group {self.config.group!r}")
        del self.subscriptions[stored]
        yield from self._announce()

    def seek(self, queue: MessageQueue, offset: int) -> Operation[None]:
        """Continue an assigned queue at another offset, and drop messages that were pulled but not consumed.

        Raises:
            InvalidArgument: If the offset is invalid, or the queue is not assigned to this member.
            ClientClosed: If the consumer is closed.
        """
        self._check_open()
        check_queue(queue)
        yield from self._assignment.seek(self._namespace.queue_inside(queue), offset)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Stop pulling and delivering messages of queues until :meth:`resume`. The queues stay assigned."""
        self.paused.update(map(self._namespace.queue_inside, queues))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Pull and deliver messages of paused queues again."""
        self.paused.difference_update(map(self._namespace.queue_inside, queues))
        self._room.notify()
        self._work.notify()

    def on_request(self, request: RemotingCommand) -> RemotingCommand | Operation[RemotingCommand] | None:
        """Handle a broker's request. Return the answer, an operation that computes the answer, or None.

        This method handles four requests: 40 (members changed), 220 (offsets were reset), 221 (return
        offsets) and 307 (return the state). A broker passes requests 221 and 307 on from operators.
        """
        fields = request.ext_fields
        group = self.config.group
        match request.code:
            case RequestCode.NOTIFY_CONSUMER_IDS_CHANGED if fields.get("consumerGroup") in (None, group):
                self._assignment.changed.notify()
            case RequestCode.RESET_CONSUMER_CLIENT_OFFSET if fields.get("group") == group:
                self._assignment.reset(QueueOffsets.decode(request.body).offsets)
            case RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT if fields.get("group") == group:
                offsets = {
                    queue: process.commit_offset
                    for queue, process in self._queues.items()
                    if queue.topic == fields.get("topic")
                }
                return request.reply(body=ConsumerStatus(offsets=offsets).encode())
            case RequestCode.GET_CONSUMER_RUNNING_INFO if fields.get("consumerGroup") == group:
                return self._answer_running_info(request)
        return None

    def _answer_running_info(self, request: RemotingCommand) -> Operation[RemotingCommand]:
        instant: Instant = yield Clock()
        return request.reply(body=self.running_info(instant.now_s).encode())

    def running_info(self, now_s: float) -> ConsumerRunningInfo:
        """Return the state of this member in the form of the answer to request 307."""
        queues = {}
        for queue, process in self._queues.items():
            low, high = process.cached_offsets
            queues[queue] = RunningQueue(
                commit_offset=process.commit_offset,
                cached_min_offset=low,
                cached_max_offset=high,
                cached_count=process.count,
                cached_bytes=process.body_bytes,
                locked=process.locked_until_s > now_s,
                dropped=process.dropped,
            )
        return ConsumerRunningInfo(
            properties={
                "PROP_CLIENT_VERSION": f"RouteKeeper (protocol {VERSION})",
                "PROP_CONSUMEORDERLY": "true" if self._orderly else "false",
                "PROP_CONSUMER_START_TIMESTAMP": str(self._start_ms),
                "PROP_CONSUME_TYPE": self.consume_type,
                "PROP_NAMESERVER_ADDR": ";".join(self._directory.nameserver_list()),
                "PROP_THREADPOOL_CORE_SIZE": str(self._workers),
                "PROP_UNREADABLE_MESSAGES": str(self.unreadable),
            },
            queues=queues,
            subscriptions=tuple(self.subscriptions.values()),
        )

    # Methods for the push and the pull consumer -----------------------------------------------------

    def _begin(self, start_ms: int) -> Operation[None]:
        """Start the background operations.

        Args:
            start_ms: Unix time in ms at which this member starts.

        Raises:
            RemotingError: If no task or thread can be started.
        """
        yield from self._assignment.start(start_ms)

    def _drain(self, deadline_s: float) -> Operation[None]:
        """Wait for running calls of the listener, at most until the instant ``deadline_s``.

        Only a push consumer has a listener, so this method of the base class does nothing.
        """
        return
        yield

    def _take(
        self, count: int, locked_s: float | None = None
    ) -> tuple[MessageQueue, ProcessQueue[Taken], tuple[Taken, ...]] | None:
        """Return a queue, its state and its next messages, or None if no queue has messages to consume.

        The search begins with the queue after the queue that the last call returned.

        Args:
            locked_s: Take only messages of queues whose lock is still valid at this instant.
        """
        queues = list(self._queues.items())
        for step in range(len(queues)):
            queue, process = queues[(self._turn + step) % len(queues)]
            if queue in self.paused or queue in self._assignment.running:
                continue
            if locked_s is not None and process.locked_until_s < locked_s:
                continue
            batch = process.take(count)
            if batch:
                self._turn = (self._turn + step + 1) % len(queues)
                return queue, process, batch
        return None

    # Internal methods -------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.stopping:
            raise ClientClosed(f"the consumer of group {self.config.group!r} is closed")

    def _stop(self) -> None:
        if not self.stopping:
            self.stopping = True
            self._assignment.stop()

    def _learn(self, topic: str) -> Operation[None]:
        try:
            yield from self._directory.refresh(topic)
        except ResponseError as error:
            log.info("subscribed topic has no route yet topic=%s error=%s", topic, error)

    def _announce(self) -> Operation[None]:
        if self._started and not self.stopping:
            yield from self._core.beat()
            self._assignment.changed.notify()

    def _describe(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.config.group,
            consume_type=self.consume_type,
            message_model="BROADCASTING" if self.config.broadcast else "CLUSTERING",
            consume_from_where=self.config.consume_from.value,
            subscriptions=tuple(self.subscriptions.values()),
        )

    def _message_room(self) -> int:
        """Return the largest number of bytes of memory that the messages of the next pull may take.

        If this consumer holds no messages, except for messages of paused queues, it may always pull one
        message. This consumer then makes progress, even if other consumers have used up the memory limit.
        """
        room = self._core.cache_room()
        if room < MESSAGE_MAX and not any(
            process.cached_bytes for queue, process in self._queues.items() if queue not in self.paused
        ):
            return MESSAGE_MAX
        return room

    def _pull_from(self, queue: MessageQueue, process: ProcessQueue[Taken]) -> Operation[None]:
        trouble = self._pull_trouble.setdefault(
            queue.broker_name,
            TroubleLog(log, "pulls work again broker=%s group=%s", queue.broker_name, self.config.group),
        )
        try:
            yield from self._pull_on(queue, process, trouble)
        finally:
            trouble.forget(queue)

    def _pull_on(
        self, queue: MessageQueue, process: ProcessQueue[Taken], trouble: TroubleLog
    ) -> Operation[None]:
        broker_id = suggested = 0
        wanted = 1  # bytes of memory that the next message takes, or 1 if the size is not known
        while not (self.stopping or process.dropped or process.leaving):
            subscribed = self.subscriptions.get(queue.topic)
            if subscribed is None or queue in self.paused:
                yield from wait(self._room, self._room.version, _PAUSE_WHILE_PAUSED_S)
                continue
            if process.full or self._message_room() < wanted:
                yield from wait(self._room, self._room.version, _PAUSE_ON_FULL_S)
                continue
            offset = process.next_offset
            before: Instant = yield Clock()
            commit = process.commit_offset if self._commit_with_pull else 0
            try:
                result = yield from self.reader.pull(
                    queue,
                    offset,
                    subscribed,
                    count=self.config.pull_batch_size,
                    commit=commit,
                    suspend_s=self.config.suspend_s,
                    timeout_s=self.config.pull_timeout_s,
                    broker_id=broker_id,
                    # If the pull was not sent yet, withdraw it when the queue is released, or when another
                    # request begins to store an offset. The pull also commits an offset, which would
                    # overwrite the newer offset.
                    unless=process.begin_commit() if commit > 0 else lambda: process.dropped,
                    room=self._message_room,
                )
            except Withdrawn:
                continue
            except ResponseError as error:
                if error.code == ResponseCode.FLOW_CONTROL:
                    yield from self._core.pause(_PAUSE_ON_FLOW_CONTROL_S)
                    continue
                trouble.failed(
                    (yield from read_clock()).now_s,
                    "pull refused group=%s queue=%s error=%s",
                    *(self.config.group, queue, error),
                    source=queue,
                )
                yield from self._core.pause(_PAUSE_ON_ERROR_S)
                continue
            except RemotingError as error:
                if not (self.stopping or process.dropped):
                    now_s = (yield from read_clock()).now_s
                    if isinstance(error, TooManyRequests):
                        self._core.crowded_until_s[queue.broker_name] = now_s + _CROWDED_S
                    trouble.failed(
                        now_s,
                        "pull failed group=%s queue=%s error=%s",
                        *(self.config.group, queue, error),
                        source=queue,
                        level=logging.ERROR if isinstance(error, RemoteProtocolError) else logging.WARNING,
                    )
                    yield from self._core.pause(_PAUSE_ON_ERROR_S)
                if not isinstance(error, TooManyRequests):
                    # A dead master or slave may stay in the route for minutes, so change between the two.
                    broker_id = 0 if broker_id else suggested
                continue
            # Ignore the result if the queue was released, or if its offset was reset during the request.
            given_up = process.dropped or process.next_offset != offset
            moved = result.code == ResponseCode.PULL_OFFSET_MOVED
            if not (given_up or moved):
                # Add the messages before the next yield. Other pulls run during a yield, and the space that
                # they may use depends on the messages added here.
                process.pulled((*result.messages, *result.broken), result.next_offset)
            after = yield from read_clock()
            trouble.worked(after.now_s, source=queue)
            if given_up or process.dropped:
                continue
            broker_id = suggested = result.suggested_broker_id
            wanted = result.deferred or 1
            if moved:
                log.warning(
                    "offset moved queue=%s asked=%d min=%d max=%d next=%d",
                    queue,
                    offset,
                    result.min_offset,
                    result.max_offset,
                    result.next_offset,
                )
                process.move(result.next_offset)
                if self._auto_store:
                    yield from self._assignment.store(queue, process, oneway=True)
                if result.next_offset == offset:
                    yield from self._core.pause(_PAUSE_ON_ERROR_S)
                continue
            if result.passed_over:
                self.unreadable += 1
                log.error(
                    "message without a findable end passed over group=%s queue=%s offset=%d next=%d",
                    self.config.group,
                    queue,
                    offset,
                    result.next_offset,
                )
            self.unreadable += len(result.broken)
            for broken in result.broken:
                log.error(
                    "message cannot be read group=%s queue=%s offset=%d reason=%s",
                    self.config.group,
                    queue,
                    broken.queue_offset,
                    broken.reason,
                )
            if result.messages or result.broken:
                self._work.notify()
            elif result.code == ResponseCode.PULL_NOT_FOUND and after.now_s < self._core.crowded_until_s.get(
                queue.broker_name, 0.0
            ):
                # Pause, so that another queue's pull can wait at the broker. The connection allows only a few
                # waiting pulls. Without this pause, some queues would never be read.
                yield from self._core.pause(_PAUSE_ON_ERROR_S)
            elif result.code == ResponseCode.PULL_NOT_FOUND and after.now_s - before.now_s < _LONG_POLL_MIN_S:
                yield from self._core.pause(_PAUSE_WITHOUT_LONG_POLL_S)
