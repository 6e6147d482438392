"""Assignment of queues to one member of a consumer group, with the queues' locks and offsets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from routekeeper.remoting.bodies import (
    ConsumerIdList,
    LockBatch,
    LockBatchResponse,
    MessageQueue,
    SubscriptionData,
)
from routekeeper.remoting.codes import RETRY_PREFIX, RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import ConnectionLost, RemotingError, RequestTimeout, Withdrawn
from routekeeper.remoting.fields import ConsumerGroupFields

from .config import ConsumeFrom, GroupConfig
from .core import ClientCore
from .errors import InvalidArgument
from .offsets import BrokerOffsets, Offsets, OwnOffsets
from .operation import Clock, Instant, Invoke, Operation, Signal, Spawn, read_clock, together, wait
from .process_queue import ProcessQueue
from .queue_reader import QueueReader, Taken
from .rebalance import average_share, reassign
from .route_cache import pick_read_addr
from .trouble import TroubleLog

log = logging.getLogger(__name__)

#: Seconds after a lock's renewal during which this member consumes the locked queue. Brokers keep the lock
#: longer. Source: ProcessQueue.REBALANCE_LOCK_MAX_LIVE_TIME.
_LOCK_LIVES_S: Final = 30.0
#: Largest number of requests in flight that store offsets.
STORED_AT_ONCE: Final = 64
_TIMESTAMP_BACK_MS: Final = 30 * 60 * 1000
#: Number of brokers to which rebalancing sends requests at the same time. If rebalancing asked one broker
#: after the other, a broker that does not answer would delay the following brokers.
_ASKED_AT_ONCE: Final = 16
#: Largest number of brokers that one rebalance asks for the group's members. The first answer is used.
_MEMBER_TRIES: Final = 3


class Assignment:
    """Operations that assign queues to a member and release them.

    Attributes:
        queues: Queues that the member consumes, and queues that it releases when their last batch ends.
        running: Queues of an orderly member whose messages a worker consumes now. The queue's state does not
            show this, because a reset or :meth:`seek` replaces the state while the batch still runs.
        released: Queues that the member released although it had not stored the offset of all messages that
            it returned to the user. The value is the offset after these messages. The pull consumer clears
            this dict when it reports these queues in an error, or no longer needs them.
        changed: Signal that members or routes changed, so that queues must be assigned again.
        work: Signal that messages may be ready for the listener.
        room: Signal that a batch ended.
    """

    def __init__(
        self,
        core: ClientCore,
        config: GroupConfig,
        reader: QueueReader,
        subscriptions: Mapping[str, SubscriptionData],
        pull: Callable[[MessageQueue, ProcessQueue[Taken]], Operation[None]],
        *,
        orderly: bool,
        auto_store: bool,
    ) -> None:
        """Prepare the operations. :meth:`start` begins them.

        Args:
            subscriptions: Subscriptions by topic. The caller may change this mapping later.
            pull: Operation that pulls messages of one queue, started for each assigned queue.
            orderly: True if the member locks each queue and consumes its messages one after the other.
            auto_store: True to store offsets of consumed messages regularly.
        """
        self.config = config
        self._orderly = orderly
        self._auto_store = auto_store
        self.offsets: Offsets = OwnOffsets(config.offset_file) if config.broadcast else BrokerOffsets(reader)
        self._resets: dict[MessageQueue, int] = {}
        self.queues: dict[MessageQueue, ProcessQueue[Taken]] = {}
        self.running: set[MessageQueue] = set()
        self.released: dict[MessageQueue, int] = {}
        self._locks: set[MessageQueue] = set()  # queues whose locks this member may have
        self.changed = Signal()
        self.work = Signal()
        self.room = Signal()
        self._core = core
        self._directory = core.directory
        self._reader = reader
        self._subscriptions = subscriptions
        self._pull = pull
        self._retry_topic = RETRY_PREFIX + config.group
        self._stored: dict[MessageQueue, int] = {}
        self._start_ms = 0
        self._watches = self._stopping = False
        self._trouble = TroubleLog(log, "rebalance works again group=%s", config.group)
        self._store_trouble = TroubleLog(log, "offsets are stored again group=%s", config.group)

    def start(self, start_ms: int) -> Operation[None]:
        """Begin to assign queues and to store their offsets.

        Args:
            start_ms: Unix time in ms at which this member starts.
        """
        if self._stopping:
            return
        self._start_ms = start_ms
        self._watches = True
        self._directory.watchers.append(self.changed.notify)
        yield Spawn(self._keep_balanced(), f"rebalance {self.config.group}")
        if self._auto_store:
            yield Spawn(self._keep_stored(), f"offsets {self.config.group}")

    def stop(self) -> None:
        """Stop assigning queues. The caller must run :meth:`release_all` after this call."""
        self._stopping = True
        if self._watches:
            self._watches = False
            self._directory.watchers.remove(self.changed.notify)
        for signal in (self.changed, self.work, self.room):
            signal.notify()

    def release_all(self) -> Operation[None]:
        """Store all offsets (request 15) and release all locks (request 42)."""
        for process in self.queues.values():
            process.dropped = True
        if self._auto_store:
            # A broadcast member stores all offsets in one file, and only one operation may write the file at
            # a time.
            yield from together(
                (
                    self.store(queue, process, oneway=False, last=True)
                    for queue, process in self.queues.items()
                ),
                f"offsets {self.config.group}",
                at_once=1 if self.config.broadcast else STORED_AT_ONCE,
            )
        if self._orderly:
            yield from self._unlock(sorted(self._locks))
        self.queues.clear()

    def _keep_balanced(self) -> Operation[None]:
        config = self._core.config
        while not self._stopping:
            seen = self.changed.version
            settled = True
            try:
                yield from self._apply_resets()
                yield from self._give_up(
                    [queue for queue in self.queues if queue.topic not in self._subscriptions]
                )
            except RemotingError as error:
                yield from self._tell("rebalance failed error=%s", error)
                settled = False
            for topic in tuple(self._subscriptions):
                try:
                    settled = (yield from self._balance(topic)) and settled
                except RemotingError as error:
                    yield from self._tell("rebalance failed topic=%s error=%s", topic, error)
                    settled = False
            if settled:
                self._trouble.worked((yield from read_clock()).now_s)
            period_s = min(config.rebalance_s, config.lock_s) if self._orderly else config.rebalance_s
            # After a failure, try again after one second. The broker may not know this member yet, or another
            # member may still have the lock of a queue.
            yield from wait(self.changed, seen, period_s if settled else 1.0)

    def _balance(self, topic: str) -> Operation[bool]:
        """Compute this member's share of a topic's queues, and take and release queues to get this share.

        Returns:
            True if this member has all queues that were assigned to it; False if some are still missing.
        """
        if not self._directory.routes.subscribe(topic):
            yield from self._directory.refresh_quietly(topic)
        queues = sorted(self._directory.routes.subscribe(topic))
        if not queues:
            return topic == self._retry_topic
        share = tuple(queues)
        if not self.config.broadcast:
            members = yield from self._members(queues)
            if members is None or self._stopping:
                return False
            share = average_share(queues, members, self._core.client_id)
        current = [queue for queue in self.queues if queue.topic == topic]
        added, removed = reassign(current, share)
        yield from self._give_up(removed)
        locked = share
        if self._orderly:
            locked = yield from self._lock([queue for queue in share if not self._leaving(queue)])
        parts: dict[str, list[MessageQueue]] = {}
        for queue in added:
            if queue in locked:
                parts.setdefault(queue.broker_name, []).append(queue)
        yield from self._side_by_side(self._begin_all(part) for part in parts.values())
        if self._orderly:
            instant: Instant = yield Clock()
            for queue in locked:
                if queue in self.queues:
                    self.queues[queue].locked_until_s = instant.now_s + _LOCK_LIVES_S
            self.work.notify()
        return all(queue in self.queues and not self._leaving(queue) for queue in share)

    def _side_by_side(self, operations: Iterable[Operation[None]]) -> Operation[None]:
        """Run one operation for each broker: concurrently, or one by one if this member is closing."""
        at_once = 1 if self._stopping or self._core.closing else _ASKED_AT_ONCE
        yield from together(operations, f"rebalance {self.config.group}", at_once=at_once)

    def _begin_all(self, queues: list[MessageQueue]) -> Operation[None]:
        """Begin to consume queues of one broker.

        If the broker does not answer, skip the broker's remaining queues until the next rebalance.
        """
        # Shuffle the queues: if one queue fails at every rebalance, the queues after it must not always wait.
        self._core.rng.shuffle(queues)
        for queue in queues:
            if self._stopping:
                return
            try:
                offset = yield from self._first_offset(queue)
            except RemotingError as error:
                # The broker did not return the stored offset. Do not guess an offset, because a guess would
                # skip or repeat messages. The next rebalance asks the broker again.
                yield from self._tell("start offset unknown queue=%s error=%s", queue, error)
                if isinstance(error, ConnectionLost | RequestTimeout):
                    return
                continue
            if self._stopping:
                return
            try:
                yield from self._begin(queue, offset)
            except RemotingError as error:
                yield from self._tell("queue not begun queue=%s error=%s", queue, error)
                return
            log.info("queue assigned group=%s queue=%s offset=%d", self.config.group, queue, offset)

    def _begin(self, queue: MessageQueue, offset: int) -> Operation[ProcessQueue[Taken]]:
        """Begin to consume a queue at an offset, and return the queue's new state.

        Raises:
            RemotingError: If no task or thread can be started to pull messages. This member then does not
                consume the queue, and the next rebalance assigns the queue again.
        """
        process = ProcessQueue[Taken](offset, serial=self._orderly)
        former = self.queues.get(queue)
        if former is not None:
            process.locked_until_s = former.locked_until_s
            former.dropped = True
        self.queues[queue] = process
        try:
            yield Spawn(self._pull(queue, process), f"pull {queue.topic} {queue.broker_name}")
        except BaseException:
            # Nothing pulls this queue. Remove it from ``queues``, because the next rebalance assigns only
            # queues that are missing there. Otherwise no member would consume this queue, because the other
            # members leave it to this member.
            process.dropped = True
            if self.queues.get(queue) is process:
                del self.queues[queue]
            raise
        return process

    def seek(self, queue: MessageQueue, offset: int) -> Operation[None]:
        """Continue a queue at another offset, and drop messages that were pulled but not consumed.

        Raises:
            InvalidArgument: If the offset is invalid, or this member does not consume the queue.
        """
        if type(offset) is not int or offset < 0:
            raise InvalidArgument(f"offset={offset!r}, allowed from 0")
        if queue not in self.queues or self._leaving(queue):
            raise InvalidArgument(f"{queue} is not consumed by this member now")
        yield from self._begin(queue, offset)

    def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Record offsets that a broker requests. The next rebalance moves the queues to these offsets."""
        self._resets.update(offsets)
        self.changed.notify()

    def _apply_resets(self) -> Operation[None]:
        failure: RemotingError | None = None
        for queue in tuple(self._resets):
            if self._leaving(queue):
                continue  # the queue is being released, and the release stores the offset of the reset
            asked = self._resets.pop(queue, None)
            if asked is not None and queue in self.queues:
                offset = max(0, asked)
                log.info("offset reset queue=%s offset=%d", queue, offset)
                try:
                    process = yield from self._begin(queue, offset)
                except RemotingError as error:
                    # Nobody consumes this queue now. Store the offset, because the next rebalance assigns the
                    # queue again and begins at the stored offset.
                    failure, process = error, ProcessQueue[Taken](offset, serial=self._orderly)
                self._stored.pop(queue, None)  # another operation may have stored an older offset meanwhile
                yield from self.store(queue, process, oneway=True)
        if failure is not None:
            raise failure

    def _leaving(self, queue: MessageQueue) -> bool:
        process = self.queues.get(queue)
        return process is not None and process.leaving

    def _give_up(self, queues: Iterable[MessageQueue]) -> Operation[None]:
        """Release queues. If an orderly consumer processes a queue's batch, release the queue afterwards.

        Until the batch ends, this member keeps the queue's lock but does not renew the lock.
        """
        for queue in queues:
            process = self.queues.get(queue)
            if process is None or process.leaving:  # during a release, another operation may remove a queue
                continue
            process.leaving = True
            if queue in self.running:
                try:
                    yield Spawn(self._release(queue, process), f"release {queue.topic} {queue.broker_name}")
                except RemotingError:
                    process.leaving = False  # so that the next rebalance releases the queue
                    raise
            else:
                yield from self._release(queue, process)

    def _release(self, queue: MessageQueue, process: ProcessQueue[Taken]) -> Operation[None]:
        if self._orderly:
            yield from self._finish(queue)  # no other member may begin while this member's listener runs
        if self._stopping:
            return  # release_all stores the offsets
        process.dropped = True
        if self._auto_store:
            yield from self.store(queue, process, oneway=True, last=True)
        self.queues.pop(queue, None)
        if process.taken_end > self.stored(queue):
            self.released[queue] = process.taken_end
        self._stored.pop(queue, None)
        self._resets.pop(queue, None)
        self._store_trouble.forget(queue)
        if self._orderly:
            yield from self._unlock((queue,))

    def _finish(self, queue: MessageQueue) -> Operation[None]:
        """Wait at most :data:`_LOCK_LIVES_S` seconds until the queue's batch ends or this member stops.

        The queue's lock is not renewed during this wait. When the broker's lock expires, another member may
        lock the queue.
        """
        instant: Instant = yield Clock()
        deadline_s = instant.now_s + _LOCK_LIVES_S
        while queue in self.running and not self._stopping and instant.now_s < deadline_s:
            yield from wait(self.room, self.room.version, deadline_s - instant.now_s)
            instant = yield Clock()

    def _members(self, queues: Sequence[MessageQueue]) -> Operation[list[str] | None]:
        """Return the sorted client ids of the group, from the first broker that answers.

        Return None if that broker does not list this client, or if no broker is known.

        Raises:
            RemotingError: If no broker answered.
        """
        names = sorted({queue.broker_name for queue in queues})
        found = [pick_read_addr(self._directory.routes.addrs(name), 0) for name in names]
        addrs = sorted({addr for addr in found if addr is not None})
        self._core.rng.shuffle(addrs)
        addrs.sort(key=self._core.silent.__contains__)  # brokers that answered the last heartbeat come first
        failure: RemotingError | None = None
        for addr in addrs[:_MEMBER_TRIES]:
            if self._stopping:
                return None
            try:
                members = yield from self._members_at(addr)
            except RemotingError as error:
                failure = error
                continue
            if members is None:
                # The broker has restarted and no longer knows this client. Keep the queues, because releasing
                # them would only stop consumption.
                yield from self._core.beat()
            return members
        if failure is not None:
            raise failure
        return None

    def _members_at(self, addr: str) -> Operation[list[str] | None]:
        """Return the group's members, as one broker lists them; None if this client is not among them."""
        fields = ConsumerGroupFields(consumer_group=self.config.group)
        request = RemotingCommand.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields.to_ext())
        response: RemotingCommand = yield Invoke(addr, request, self._core.config.call_timeout_s)
        if response.code != ResponseCode.SUCCESS or not response.body:
            log.info("group unknown there group=%s broker=%s code=%d", self.config.group, addr, response.code)
            return None
        members = sorted(ConsumerIdList.decode(response.body).consumer_ids)
        return members if self._core.client_id in members else None

    def _first_offset(self, queue: MessageQueue) -> Operation[int]:
        """Return the offset at which to begin consuming a queue.

        Raises:
            RemotingError: If the offset cannot be determined now.
        """
        stored = yield from self.offsets.committed(queue)
        if stored is not None:
            # Brokers also answer 0 if no offset is stored and the queue is new. Keep this 0 out of
            # ``_stored``, so that this member soon stores it. Otherwise a broker would answer "not found"
            # later, when the queue is no longer new. The group would then begin at ``consume_from``, which
            # may skip messages.
            if stored:
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

    def _lock(self, queues: Sequence[MessageQueue]) -> Operation[tuple[MessageQueue, ...]]:
        """Lock queues at their brokers (request 41). Return the queues whose locks this client now has."""
        held: set[MessageQueue] = set()
        self._locks.update(queues)

        def ask(addr: str, part: Sequence[MessageQueue]) -> Operation[None]:
            body = LockBatch(
                consumer_group=self.config.group, client_id=self._core.client_id, queues=tuple(part)
            ).encode()
            try:
                response: RemotingCommand = yield Invoke(
                    addr,
                    RemotingCommand.request(RequestCode.LOCK_BATCH_MQ, body=body),
                    self._core.config.call_timeout_s,
                    # Do not send the request if the member stops. If the lock reached the broker after the
                    # unlock, other members could not consume the queues.
                    lambda: self._stopping,
                )
                if response.code == ResponseCode.SUCCESS:
                    locked = LockBatchResponse.decode(response.body).locked
                    held.update(locked)
                    refused = set(part).difference(locked)
                    self._locks -= refused
                    for queue in self.queues.keys() & refused:
                        if self._leaving(queue):
                            continue
                        # Another member has the lock now, for example after a restart of the broker. Store
                        # nothing: that member stores newer offsets. The next rebalance asks for the lock
                        # again.
                        log.info(
                            "queue lost, its lock was refused group=%s queue=%s", self.config.group, queue
                        )
                        self.queues.pop(queue).dropped = True
                        self._stored.pop(queue, None)
                        self._store_trouble.forget(queue)
            except RemotingError as error:
                yield from self._tell("lock failed broker=%s error=%s", addr, error)

        yield from self._side_by_side(ask(addr, part) for addr, part in self._by_master(queues).items())
        return tuple(queue for queue in queues if queue in held)

    def _unlock(self, queues: Sequence[MessageQueue]) -> Operation[None]:
        self._locks.difference_update(queues)
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

    def _keep_stored(self) -> Operation[None]:
        period_s = self._core.config.offset_persist_s
        while not self._stopping:
            yield from self._core.pause(period_s)
            for queue, process in tuple(self.queues.items()):
                if self._stopping or self._core.closing:
                    return
                yield from self.store(queue, process, oneway=True)

    def store(
        self, queue: MessageQueue, process: ProcessQueue[Taken], *, oneway: bool, last: bool = False
    ) -> Operation[None]:
        """Store a queue's offset as :meth:`commit` does. Only log a failure: the next call tries again."""
        try:
            yield from self.commit(queue, process, oneway=oneway, last=last)
        except RemotingError as error:
            instant: Instant = yield Clock()
            self._store_trouble.failed(
                instant.now_s,
                "offset not stored group=%s queue=%s offset=%d error=%s",
                *(self.config.group, queue, process.commit_offset, error),
                source=queue,
            )
        else:
            instant = yield Clock()
            self._store_trouble.worked(instant.now_s, source=queue)

    def stored(self, queue: MessageQueue) -> int:
        """Return the offset that this member last stored or read for a queue; 0 if there is none."""
        return self._stored.get(queue, 0)

    def moved(self) -> dict[MessageQueue, ProcessQueue[Taken]]:
        """Return the queues of this member whose consumed offset is not stored yet."""
        return {
            queue: process
            for queue, process in self.queues.items()
            if not process.dropped and self._stored.get(queue) != process.commit_offset
        }

    def commit(
        self, queue: MessageQueue, process: ProcessQueue[Taken], *, oneway: bool, last: bool = False
    ) -> Operation[None]:
        """Store a queue's offset, if it differs from the stored offset.

        Args:
            oneway: True to send a request without an answer.
            last: True if this member releases the queue. The offset is then stored even if it does not
                differ, except in a broadcast group. An earlier commit that still waits in a thread is
                withdrawn, so that it cannot overwrite this offset.

        Raises:
            RemotingError: If the offset is not stored.
        """
        offset = process.commit_offset
        if queue in self._resets:  # store the offset of a reset that was not applied yet
            offset = max(0, self._resets[queue])
        if (last and not self.config.broadcast) or self._stored.get(queue) != offset:
            # With automatic storing, a commit may be withdrawn when the queue is released, because the
            # release stores the offset again. A oneway commit may also be withdrawn when another request
            # begins to store an offset. Without automatic storing no other commit follows, so this commit
            # must be sent.
            superseded = process.begin_commit()
            withdrawn = superseded if oneway else lambda: process.dropped
            unless = None if last or not self._auto_store else withdrawn
            try:
                yield from self.offsets.commit(queue, offset, oneway=oneway, unless=unless)
            except Withdrawn:
                return
            except BaseException:
                # The broker or the disk may have the offset nevertheless. So another, former offset is no
                # longer known to be stored, and a commit of the former offset must be sent.
                if self._stored.get(queue) != offset:
                    self._stored.pop(queue, None)
                raise
            self._stored[queue] = offset

    def _tell(self, text: str, *values: object) -> Operation[None]:
        """Log a failure as a warning, or as info while this member is closing, when failures are expected."""
        text, values = text + " group=%s", (*values, self.config.group)
        if self._stopping or self._core.closing:
            log.info(text, *values)
        else:
            self._trouble.failed((yield from read_clock()).now_s, text, *values)
