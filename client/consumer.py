"""Receiving messages, as operations without IO: the push consumer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from client.config import ProducerConfig, check_group
from client.core import ClientCore
from client.directory import ensure_success
from client.errors import ClientError, InvalidArgument, NoRoute
from client.operation import (
    Clock,
    Deliver,
    Instant,
    Invoke,
    Operation,
    Signal,
    Spawn,
    read_clock,
    wait,
)
from client.process_queue import ProcessQueue
from client.producer import Message, ProducerCore
from client.queue_reader import QueueReader, ReceivedMessage, subscription
from client.rebalance import average_share, reassign
from client.route_cache import pick_read_addr
from remoting.bodies import (
    ConsumerData,
    ConsumerIdList,
    LockBatch,
    LockBatchResponse,
    MessageQueue,
    QueueOffsets,
    SubscriptionData,
)
from remoting.codes import RETRY_PREFIX, RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RemotingError, ResponseError
from remoting.fields import ConsumerGroupFields, SendBackFields
from remoting.message import (
    PROPERTY_MAX_RECONSUME_TIMES,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RECONSUME_TIME,
    PROPERTY_RETRY_TOPIC,
)

log = logging.getLogger(__name__)

#: Waits in seconds. Source: DefaultMQPushConsumerImpl, 4.9 and 5.3.
_PAUSE_ON_ERROR_S: Final = 1.0
_PAUSE_ON_FLOW_CONTROL_S: Final = 0.02
_PAUSE_ON_FULL_S: Final = 0.05
_PAUSE_ON_FAILED_SENDBACK_S: Final = 5.0
_PAUSE_ON_SUSPENDED_QUEUE_S: Final = 1.0
#: A broker that does not hold a pull although asked to would otherwise be asked without pause.
_LONG_POLL_MIN_S: Final = 0.01
_PAUSE_WITHOUT_LONG_POLL_S: Final = 0.2
#: Our own limit on how long a lock on a queue counts. Source: ProcessQueue.REBALANCE_LOCK_MAX_LIVE_TIME.
_LOCK_LIVES_S: Final = 30.0
_TIMESTAMP_BACK_MS: Final = 30 * 60 * 1000


class ConsumeFrom(Enum):
    """Where a group begins that has no stored offset."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class ConsumeResult(Enum):
    """What a listener says of its messages."""

    SUCCESS = "success"
    RECONSUME_LATER = "reconsume later"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Settings of one push consumer; times are seconds.

    Attributes:
        consume_timestamp_ms: Unix ms to begin at with TIMESTAMP; 0 for half an hour before the start.
        orderly: Messages of a queue are consumed one batch after the other, under a lock at the broker.
        consume_batch_max: Messages per call of the listener.
        workers: Calls of the listener at a time.
        max_reconsume_times: Retries before the dead letter topic; -1 leaves it to the broker (16).
    """

    group: str
    consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET
    consume_timestamp_ms: int = 0
    orderly: bool = False
    pull_batch_size: int = 32
    consume_batch_max: int = 1
    workers: int = 4
    max_reconsume_times: int = -1
    suspend_s: float = 15.0
    pull_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        check_group(self.group)
        for name, low, high in (
            ("pull_batch_size", 1, 1024),
            ("consume_batch_max", 1, 1024),
            ("workers", 1, 256),
            ("max_reconsume_times", -1, 2**31 - 1),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise InvalidArgument(f"{name}={value}, allowed {low}..{high}")
        if not 0 < self.suspend_s < self.pull_timeout_s:
            raise InvalidArgument(
                f"suspend_s={self.suspend_s}, must be above 0 and below pull_timeout_s={self.pull_timeout_s}"
            )


#: Takes the messages of one batch, all of one queue; an exception or RECONSUME_LATER has them delivered
#: again. The asyncio driver awaits its result if it is awaitable.
Listener = Callable[[Sequence[ReceivedMessage]], Any]


class PushConsumerCore:
    """Operations of one push consumer.

    Beside each other run: one that assigns queues, one per assigned queue that pulls, ``workers`` that call
    the listener, one that stores offsets. What is consumed once is stored; a message whose consumption was
    not stored is delivered again, to this member or to its successor: at least once.
    """

    def __init__(
        self,
        core: ClientCore,
        config: ConsumerConfig,
        subscriptions: Mapping[str, str],
        listener: Listener,
    ) -> None:
        """Take the subscriptions as topic to tag expression.

        Raises:
            InvalidArgument: If there are none, or one is malformed.
        """
        if not subscriptions:
            raise InvalidArgument("a consumer needs at least 1 subscription, got 0")
        self.config = config
        self._core = core
        self._directory = core.directory
        self._listener = listener
        self._retry_topic = RETRY_PREFIX + config.group
        self._wanted = {**subscriptions, self._retry_topic: "*"}
        self._subscriptions: dict[str, SubscriptionData] = {
            topic: subscription(topic, expression, 0) for topic, expression in self._wanted.items()
        }
        self._reader = QueueReader(core, config.group)
        self._resender = ProducerCore(
            ProducerConfig(group=config.group, retry_times=2), core.directory, core.ids, core.rng
        )
        self._queues: dict[MessageQueue, ProcessQueue[ReceivedMessage]] = {}
        self._stored: dict[MessageQueue, int] = {}
        self._turn = 0
        self._busy = 0
        self._start_ms = 0
        self._stopping = False
        self._rebalance = Signal()
        self._work = Signal()
        self._room = Signal()

    # What others ask of it --------------------------------------------------------------------------

    @property
    def assigned(self) -> tuple[MessageQueue, ...]:
        """Queues that this member consumes now, sorted."""
        return tuple(sorted(self._queues))

    def start(self) -> Operation[None]:
        """Learn the routes, announce the group, begin to consume.

        Raises:
            NoNameserver: If no nameserver answered; nothing was started.
        """
        instant: Instant = yield Clock()
        self._start_ms = instant.wall_ms
        self._subscriptions = {
            topic: subscription(topic, expression, instant.wall_ms)
            for topic, expression in self._wanted.items()
        }
        for topic in self._subscriptions:
            try:
                yield from self._directory.refresh(topic)
            except ResponseError as error:
                log.info("subscribed topic has no route yet topic=%s error=%s", topic, error)
        self._core.add_consumer(self.config.group, self._describe, self.on_request, self.close)
        self._directory.watchers.append(self._rebalance.notify)
        yield from self._core.beat()
        yield Spawn(self._keep_balanced(), f"rebalance {self.config.group}")
        yield Spawn(self._keep_stored(), f"offsets {self.config.group}")
        for number in range(self.config.workers):
            yield Spawn(self._work_on(), f"worker {number} {self.config.group}")

    def close(self) -> Operation[None]:
        """Stop pulling, let listener calls end, store offsets (15), give up locks (42), leave the group
        (35)."""
        if self._stopping:
            return
        self._stopping = True
        self._directory.watchers.remove(self._rebalance.notify)
        for signal in (self._rebalance, self._work, self._room):
            signal.notify()
        instant: Instant = yield Clock()
        deadline_s = instant.now_s + self._core.config.shutdown_s
        while self._busy:
            now: Instant = yield Clock()
            if now.now_s >= deadline_s:
                log.warning("listener calls abandoned group=%s calls=%d", self.config.group, self._busy)
                break
            yield from wait(self._room, self._room.version, deadline_s - now.now_s)
        for queue, process in tuple(self._queues.items()):
            process.dropped = True
            yield from self._store(queue, process, oneway=False)
        if self.config.orderly:
            yield from self._unlock(tuple(self._queues))
        self._queues.clear()
        yield from self._core.leave(consumer_group=self.config.group)

    def on_request(self, request: RemotingCommand) -> RemotingCommand | None:
        """Serve what a broker sends: 40 (members changed), 220 (offsets were reset)."""
        if request.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            if request.ext_fields.get("consumerGroup") in (None, self.config.group):
                self._rebalance.notify()
            return None
        if request.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            if request.ext_fields.get("group") == self.config.group:
                for queue, offset in QueueOffsets.decode(request.body).offsets.items():
                    process = self._queues.get(queue)
                    if process is not None:
                        log.info("offset reset queue=%s offset=%d", queue, offset)
                        process.restart(offset)
            return None
        return None

    # Assignment -------------------------------------------------------------------------------------

    def _describe(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.config.group,
            consume_from_where=self.config.consume_from.value,
            subscriptions=tuple(self._subscriptions.values()),
        )

    def _keep_balanced(self) -> Operation[None]:
        config = self._core.config
        while not self._stopping:
            seen = self._rebalance.version
            settled = True
            for topic in self._subscriptions:
                try:
                    settled = (yield from self._balance(topic)) and settled
                except RemotingError as error:
                    log.warning(
                        "rebalance failed group=%s topic=%s error=%s", self.config.group, topic, error
                    )
                    settled = False
            period_s = min(config.rebalance_s, config.lock_s) if self.config.orderly else config.rebalance_s
            # what could not be settled (a broker that does not know us yet, a lock held) is tried again soon
            yield from wait(self._rebalance, seen, config.period(period_s) if settled else 1.0)

    def _balance(self, topic: str) -> Operation[bool]:
        """Bring the assigned queues of a topic to our share; return whether nothing is left to do."""
        if not self._directory.routes.subscribe(topic):
            yield from self._directory.refresh_quietly(topic)
        queues = sorted(self._directory.routes.subscribe(topic))
        if not queues:
            return topic == self._retry_topic
        members = yield from self._members(queues)
        if members is None or self._stopping:
            return False
        share = average_share(queues, members, self._core.client_id)
        current = [queue for queue in self._queues if queue.topic == topic]
        added, removed = reassign(current, share)
        for queue in removed:
            process = self._queues[queue]
            if self.config.orderly:
                yield from self._finish(process)  # the next owner must not begin beside our listener
            process.dropped = True
            yield from self._store(queue, process, oneway=True)
            self._queues.pop(queue, None)
            self._stored.pop(queue, None)
            if self.config.orderly:
                yield from self._unlock((queue,))
        locked = share
        if self.config.orderly:
            locked = yield from self._lock(share)
        for queue in added:
            if queue not in locked or self._stopping:
                continue
            offset = yield from self._first_offset(queue)
            if offset is None or self._stopping:
                continue
            process = ProcessQueue(offset, serial=self.config.orderly)
            self._queues[queue] = process
            log.info("queue assigned group=%s queue=%s offset=%d", self.config.group, queue, offset)
            yield Spawn(self._pull_from(queue, process), f"pull {queue.topic} {queue.broker_name}")
        if self.config.orderly:
            instant: Instant = yield Clock()
            for queue in locked:
                if queue in self._queues:
                    self._queues[queue].locked_until_s = instant.now_s + _LOCK_LIVES_S
            self._work.notify()
        return all(queue in self._queues for queue in share)

    def _finish(self, process: ProcessQueue[ReceivedMessage]) -> Operation[None]:
        """Let the batch in flight end, but not wait for ever: the broker's lock ends too."""
        process.leaving = True
        instant: Instant = yield Clock()
        deadline_s = instant.now_s + _LOCK_LIVES_S
        while not process.idle and instant.now_s < deadline_s:
            yield from wait(self._room, self._room.version, deadline_s - instant.now_s)
            instant = yield Clock()

    def _members(self, queues: Sequence[MessageQueue]) -> Operation[list[str] | None]:
        """Return the sorted client ids of the group, us among them, or None if the broker does not say so."""
        names = sorted({queue.broker_name for queue in queues})
        name = self._core.rng.choice(names)
        addr = pick_read_addr(self._directory.routes.addrs(name), 0)
        if addr is None:
            return None
        fields = ConsumerGroupFields(consumer_group=self.config.group)
        request = RemotingCommand.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields.to_ext())
        response: RemotingCommand = yield Invoke(addr, request, self._core.config.call_timeout_s)
        if response.code != ResponseCode.SUCCESS or not response.body:
            log.info("group unknown there group=%s broker=%s code=%d", self.config.group, addr, response.code)
            yield from self._core.beat()
            return None
        members = sorted(ConsumerIdList.decode(response.body).consumer_ids)
        if self._core.client_id not in members:
            # it forgot us (restarted): giving up our queues for that would only stop consumption
            yield from self._core.beat()
            return None
        return members

    def _first_offset(self, queue: MessageQueue) -> Operation[int | None]:
        """Return where to begin, or None if it cannot be said now."""
        try:
            stored = yield from self._reader.committed(queue)
            if stored is not None:
                self._stored[queue] = stored
                return stored
            if self.config.consume_from is ConsumeFrom.FIRST_OFFSET:
                return 0
            retry = queue.topic == self._retry_topic
            if self.config.consume_from is ConsumeFrom.LAST_OFFSET:
                return 0 if retry else (yield from self._reader.max_offset(queue))
            if retry:
                return (yield from self._reader.max_offset(queue))
            wall_ms = self.config.consume_timestamp_ms or self._start_ms - _TIMESTAMP_BACK_MS
            return (yield from self._reader.search_offset(queue, wall_ms))
        except RemotingError as error:
            # beginning at a guess would skip or repeat messages; the next rebalance asks again
            log.warning("start offset unknown queue=%s error=%s", queue, error)
            return None

    def _lock(self, queues: Sequence[MessageQueue]) -> Operation[tuple[MessageQueue, ...]]:
        """Lock queues at their brokers (41); return those we hold now."""
        held: list[MessageQueue] = []
        for addr, part in self._by_master(queues).items():
            body = LockBatch(
                consumer_group=self.config.group, client_id=self._core.client_id, queues=tuple(part)
            ).encode()
            try:
                response: RemotingCommand = yield Invoke(
                    addr,
                    RemotingCommand.request(RequestCode.LOCK_BATCH_MQ, body=body),
                    self._core.config.call_timeout_s,
                )
                if response.code == ResponseCode.SUCCESS:
                    held += LockBatchResponse.decode(response.body).locked
            except RemotingError as error:
                log.warning("lock failed broker=%s error=%s", addr, error)
        return tuple(queue for queue in queues if queue in held)

    def _unlock(self, queues: Sequence[MessageQueue]) -> Operation[None]:
        for addr, part in self._by_master(queues).items():
            body = LockBatch(
                consumer_group=self.config.group, client_id=self._core.client_id, queues=tuple(part)
            ).encode()
            yield from self._core.send_oneway(
                addr, RemotingCommand.request(RequestCode.UNLOCK_BATCH_MQ, body=body, oneway=True)
            )

    def _by_master(self, queues: Sequence[MessageQueue]) -> dict[str, list[MessageQueue]]:
        parts: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            addr = self._directory.routes.master(queue.broker_name)
            if addr is not None:
                parts.setdefault(addr, []).append(queue)
        return parts

    # Pulling ----------------------------------------------------------------------------------------

    def _pull_from(self, queue: MessageQueue, process: ProcessQueue[ReceivedMessage]) -> Operation[None]:
        subscribed = self._subscriptions[queue.topic]
        broker_id = 0
        while not (self._stopping or process.dropped or process.leaving):
            if process.full:
                yield from wait(self._room, self._room.version, _PAUSE_ON_FULL_S)
                continue
            offset = process.next_offset
            before: Instant = yield Clock()
            try:
                result = yield from self._reader.pull(
                    queue,
                    offset,
                    subscribed,
                    count=self.config.pull_batch_size,
                    commit=process.commit_offset,
                    suspend_s=self.config.suspend_s,
                    timeout_s=self.config.pull_timeout_s,
                    broker_id=broker_id,
                )
            except ResponseError as error:
                if error.code == ResponseCode.FLOW_CONTROL:
                    yield from self._core.pause(_PAUSE_ON_FLOW_CONTROL_S)
                    continue
                log.info("pull refused queue=%s error=%s", queue, error)
                yield from self._core.pause(_PAUSE_ON_ERROR_S)
                continue
            except RemotingError as error:
                if not (self._stopping or process.dropped):
                    log.info("pull failed queue=%s error=%s", queue, error)
                    yield from self._core.pause(_PAUSE_ON_ERROR_S)
                continue
            if process.dropped or process.next_offset != offset:
                continue  # given up or reset while the request was out
            broker_id = result.suggested_broker_id
            if result.code == ResponseCode.PULL_OFFSET_MOVED:
                log.warning(
                    "offset moved queue=%s asked=%d min=%d max=%d next=%d",
                    queue,
                    offset,
                    result.min_offset,
                    result.max_offset,
                    result.next_offset,
                )
                process.restart(result.next_offset)
                yield from self._store(queue, process, oneway=True)
                if result.next_offset == offset:
                    yield from self._core.pause(_PAUSE_ON_ERROR_S)
                continue
            process.pulled(result.messages, result.next_offset)
            if result.messages:
                self._work.notify()
            elif result.code == ResponseCode.PULL_NOT_FOUND:
                after: Instant = yield Clock()
                if after.now_s - before.now_s < _LONG_POLL_MIN_S:
                    yield from self._core.pause(_PAUSE_WITHOUT_LONG_POLL_S)

    # Consuming --------------------------------------------------------------------------------------

    def _work_on(self) -> Operation[None]:
        while not self._stopping:
            seen = self._work.version
            instant = yield from read_clock()
            taken = self._take(instant.now_s)
            if taken is None:
                yield from wait(self._work, seen, 5.0)
                continue
            self._busy += 1
            try:
                yield from self._consume(*taken)
            finally:
                self._busy -= 1
                self._room.notify()

    def _take(
        self, now_s: float
    ) -> tuple[MessageQueue, ProcessQueue[ReceivedMessage], tuple[ReceivedMessage, ...]] | None:
        """Take the next batch, the queues in turn."""
        queues = list(self._queues.items())
        for step in range(len(queues)):
            queue, process = queues[(self._turn + step) % len(queues)]
            if self.config.orderly and process.locked_until_s < now_s:
                continue
            batch = process.take(self.config.consume_batch_max)
            if batch:
                self._turn = (self._turn + step + 1) % len(queues)
                return queue, process, batch
        return None

    def _consume(
        self,
        queue: MessageQueue,
        process: ProcessQueue[ReceivedMessage],
        batch: tuple[ReceivedMessage, ...],
    ) -> Operation[None]:
        try:
            result = yield Deliver(self._listener, batch)
        except Exception:
            # the user's code: whatever it raises, the message is delivered again
            log.warning("listener failed group=%s queue=%s", self.config.group, queue, exc_info=True)
            result = ConsumeResult.RECONSUME_LATER
        if process.dropped:
            return  # the next owner of the queue delivers it again
        if result is not ConsumeResult.RECONSUME_LATER:
            process.done(batch)
        elif self.config.orderly:
            yield from self._core.pause(_PAUSE_ON_SUSPENDED_QUEUE_S)
            process.give_back(batch)
        else:
            for message in batch:
                if (yield from self._send_back(queue, message)):
                    process.done((message,))
                else:
                    yield from self._core.pause(_PAUSE_ON_FAILED_SENDBACK_S)
                    process.give_back((message,))
        if process.count and (self.config.orderly or process.idle):
            self._work.notify()

    def _send_back(self, queue: MessageQueue, message: ReceivedMessage) -> Operation[bool]:
        """Have a message delivered again later (36, else by a send to the retry topic); return success."""
        fields = SendBackFields(
            offset=message.commit_log_offset,
            group=self.config.group,
            delay_level=0,
            origin_msg_id=message.offset_message_id,
            origin_topic=message.topic,
            max_reconsume_times=self._reconsume_max(),
            broker_name=queue.broker_name,
        )
        request = RemotingCommand.request(RequestCode.CONSUMER_SEND_MSG_BACK, fields.to_ext())
        addr = self._directory.routes.master(queue.broker_name)
        try:
            if addr is None:
                raise NoRoute(queue.topic, f"no master of broker {queue.broker_name} is known")
            response: RemotingCommand = yield Invoke(addr, request, self._core.config.call_timeout_s)
            ensure_success(response, addr)
            return True
        except RemotingError as error:
            log.warning("send back failed queue=%s error=%s", queue, error)
        properties = {
            name: value
            for name, value in message.properties.items()
            if name not in ("WAIT", "TAGS", "KEYS", "DELAY")
        }
        properties[PROPERTY_RETRY_TOPIC] = message.topic
        properties[PROPERTY_RECONSUME_TIME] = str(message.reconsume_times + 1)
        properties[PROPERTY_MAX_RECONSUME_TIMES] = str(self._reconsume_max())
        properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, message.offset_message_id)
        again = Message(
            topic=self._retry_topic,
            body=message.body,
            tags=message.tags,
            keys=message.keys,
            flag=message.flag,
            delay_level=min(18, 3 + message.reconsume_times),
            properties=properties,
        )
        try:
            yield from self._resender.send(again)
            return True
        except ClientError as error:
            log.warning("send to the retry topic failed group=%s error=%s", self.config.group, error)
            return False

    def _reconsume_max(self) -> int:
        return 16 if self.config.max_reconsume_times < 0 else self.config.max_reconsume_times

    # Offsets ----------------------------------------------------------------------------------------

    def _keep_stored(self) -> Operation[None]:
        period_s = self._core.config.period(self._core.config.offset_persist_s)
        while not self._stopping:
            yield from self._core.pause(period_s)
            for queue, process in tuple(self._queues.items()):
                if self._stopping or self._core.closing:
                    return
                yield from self._store(queue, process, oneway=True)

    def _store(
        self, queue: MessageQueue, process: ProcessQueue[ReceivedMessage], *, oneway: bool
    ) -> Operation[None]:
        """Store a queue's offset at its broker, if it moved since."""
        offset = process.commit_offset
        if self._stored.get(queue) == offset:
            return
        try:
            yield from self._reader.commit(queue, offset, oneway=oneway)
        except RemotingError as error:
            log.info("offset not stored queue=%s offset=%d error=%s", queue, offset, error)
        else:
            self._stored[queue] = offset
