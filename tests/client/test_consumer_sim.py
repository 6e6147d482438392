"""Push consumers in a simulation with a virtual clock, and a broker that fails as real brokers do.

One seed decides all random events. The client's operations are real. The nameserver, the broker and the
network are models. An answer may be lost before or after its request took effect, members come and go, and
listeners fail.
"""

from __future__ import annotations

import heapq
import logging
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from routekeeper.bench.timers import divide_periods
from routekeeper.client.config import ClientConfig
from routekeeper.client.consumer import ConsumeFrom, ConsumerConfig, ConsumeResult, PushConsumerCore
from routekeeper.client.core import ClientCore, Identity
from routekeeper.client.errors import InvalidArgument
from routekeeper.client.operation import (
    Clock,
    Deliver,
    Fetch,
    Instant,
    Invoke,
    Oneway,
    Operation,
    Sleep,
    Spawn,
    Wait,
)
from routekeeper.client.queue_reader import ReceivedMessage
from routekeeper.remoting.bodies import (
    ConsumerIdList,
    HeartbeatData,
    LockBatch,
    LockBatchResponse,
    MessageQueue,
    QueueOffsets,
)
from routekeeper.remoting.codes import RETRY_PREFIX, RequestCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import ConnectionLost, RequestTimeout, Withdrawn
from routekeeper.remoting.message import StoredMessage, encode_message, encode_properties
from routekeeper.remoting.route import BrokerData, QueueData, RouteDialect, TopicRouteData, encode_route

ADDR = "192.0.2.9:10911"
QUEUES = 4


class World:
    """A simulated world that runs operations on a virtual clock. One seed decides all random events."""

    def __init__(self, seed: int, *, loss: float) -> None:
        self.rng = random.Random(seed)
        self.now_s = 0.0
        self.loss = loss
        self.listener_s = (0.001, 0.2)
        self.way_s = (0.001, 0.02)
        self.timer_divisor = 1.0
        self.still = 0.0  # fraction of the requests before which a member's thread hangs
        self.broker = Broker(self)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now_s + seconds, self._count, call))

    def run_until(self, condition: Callable[[], bool], limit_s: float) -> None:
        end_s = self.now_s + limit_s
        while not condition():
            assert self._events, "nothing is going on any more"
            assert self._events[0][0] < end_s, f"not within {limit_s} simulated seconds"
            self.now_s, _, call = heapq.heappop(self._events)
            call()

    def pass_time(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        self.after(seconds, lambda: None)
        self.run_until(lambda: self.now_s >= end_s, seconds + 1)

    def start(
        self, member: Member, operation: Operation[Any], done: Callable[[], None] | None = None
    ) -> None:
        self._step(member, operation, done, lambda: next(operation))

    def _step(
        self,
        member: Member,
        operation: Operation[Any],
        done: Callable[[], None] | None,
        resume: Callable[[], Any],
    ) -> None:
        if member.dead:
            return
        try:
            effect = resume()
        except StopIteration:
            if done is not None:
                done()
            return

        def answer(value: Any = None) -> None:
            self._step(member, operation, done, lambda: operation.send(value))

        def fail(error: Exception) -> None:
            self._step(member, operation, done, lambda: operation.throw(error))

        match effect:
            case Clock():
                answer(Instant(self.now_s, 1_700_000_000_000 + int(self.now_s * 1000)))
            case Sleep():
                self.after(effect.seconds, answer)
            case Spawn():
                self.start(member, effect.operation)
                answer()
            case Wait():
                self._wait(effect, answer)
            case Deliver():
                self._deliver(effect, answer, fail)
            case Oneway() | Invoke() if self.still and self.rng.random() < self.still:
                self.after(self.rng.uniform(0.0, 0.5), lambda: self._send(member, effect, answer, fail))
            case Oneway() | Invoke():
                self._send(member, effect, answer, fail)
            case Fetch():
                raise AssertionError("no consumer fetches over HTTP here")

    def _send(
        self,
        member: Member,
        effect: Oneway | Invoke,
        answer: Callable[[Any], None],
        fail: Callable[[Exception], None],
    ) -> None:
        if member.dead:
            return
        unless: Callable[[], bool] | None = effect.unless
        if unless is not None and unless():
            fail(Withdrawn("it holds no more"))
        elif member.cut_off:
            fail(ConnectionLost("closed", sent=False))
        elif isinstance(effect, Invoke):
            self._invoke(member, effect, answer, fail)
        else:
            if self.rng.random() >= self.loss:
                self.after(self._way(member), lambda: self.broker.serve(member, effect.request) and None)
            answer(None)

    def _delay(self) -> float:
        return self.rng.uniform(*self.way_s)

    def _way(self, member: Member) -> float:
        """Return the delay of a request in s. No request arrives before an earlier request of its member."""
        member.arrival_s = max(member.arrival_s, self.now_s + self._delay())
        return member.arrival_s - self.now_s

    def _wait(self, effect: Wait, answer: Callable[[Any], None]) -> None:
        if effect.signal.version != effect.seen:
            answer(True)
            return
        woken: list[bool] = []

        def wake(notified: bool) -> None:
            if not woken:
                woken.append(True)
                self.after(0, lambda: answer(notified or effect.signal.version != effect.seen))

        effect.signal.on_next(lambda: wake(True))
        if effect.timeout_s is not None:
            self.after(effect.timeout_s, lambda: wake(False))

    def _deliver(
        self, effect: Deliver, answer: Callable[[Any], None], fail: Callable[[Exception], None]
    ) -> None:
        # The user's code begins now and ends later. Its result is decided when it ends.
        finish = effect.call(effect.argument)

        def end() -> None:
            try:
                value = finish()
            except Exception as error:
                fail(error)
            else:
                answer(value)

        self.after(self.rng.uniform(*self.listener_s), end)

    def _invoke(
        self, member: Member, effect: Invoke, answer: Callable[[Any], None], fail: Callable[[Exception], None]
    ) -> None:
        fate = self.rng.random()
        if fate < self.loss / 3:
            self.after(self._delay(), lambda: fail(ConnectionLost("refused", sent=False)))
            return
        if fate < self.loss / 2:
            self.after(effect.timeout_s, lambda: fail(RequestTimeout("lost on the way there")))
            return

        def arrive() -> None:
            if member.cut_off:
                fail(ConnectionLost("closed", sent=True))
                return
            held_s, response = self.broker.serve(member, effect.request)
            if fate < self.loss:
                self.after(self._delay(), lambda: fail(ConnectionLost("reset", sent=True)))
            elif held_s + 0.05 > effect.timeout_s:
                self.after(effect.timeout_s, lambda: fail(RequestTimeout("too late")))
            else:
                self.after(held_s + self._delay(), lambda: answer(response))

        self.after(self._way(member), arrive)


@dataclass
class Broker:
    """Model of one nameserver and broker, with the behaviour that consumers rely on."""

    world: World
    queues: dict[tuple[str, int], list[StoredMessage]] = field(default_factory=lambda: defaultdict(list))
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)
    locks: dict[MessageQueue, tuple[str, float]] = field(default_factory=dict)
    searched: list[int] = field(default_factory=list)
    queue_nums: int = QUEUES

    def append(
        self, topic: str, queue_id: int, body: bytes, reconsume_times: int = 0, origin: str = ""
    ) -> None:
        log = self.queues[topic, queue_id]
        log.append(
            StoredMessage(
                topic=topic,
                queue_id=queue_id,
                body=body,
                queue_offset=len(log),
                physical_offset=self.world.rng.randrange(1 << 40),
                properties=encode_properties(
                    {"UNIQ_KEY": body.decode(), **({"RETRY_TOPIC": origin} if origin else {})}
                ),
                reconsume_times=reconsume_times,
            )
        )

    def notify(self) -> None:
        request = RemotingCommand.request(
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"}, oneway=True
        )
        for member in tuple(self.members.values()):
            if not member.dead and self.world.rng.random() >= self.world.loss:
                self.world.after(0.01, lambda member=member: member.core.peer_request(request) and None)  # type: ignore[misc]

    def serve(self, member: Member, request: RemotingCommand) -> tuple[float, RemotingCommand]:
        """Return the delay of the answer in s, and the answer."""
        ext = request.ext_fields
        key = (ext.get("topic", ""), int(ext.get("queueId", 0)))
        match request.code:
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                return 0, self._route(request)
            case RequestCode.HEART_BEAT:
                client_id = HeartbeatData.decode(request.body).client_id
                if client_id not in self.members:
                    self.members[client_id] = member
                    self.queues[RETRY_PREFIX + "g", 0]
                    self.notify()
                return 0, request.reply()
            case RequestCode.UNREGISTER_CLIENT:
                self.members.pop(ext["clientID"], None)
                self.notify()
                return 0, request.reply()
            case RequestCode.GET_CONSUMER_LIST_BY_GROUP:
                return 0, request.reply(body=ConsumerIdList(consumer_ids=tuple(self.members)).encode())
            case RequestCode.QUERY_CONSUMER_OFFSET:
                stored = self.offsets.get(("g", *key))
                if stored is None:
                    return 0, request.reply(22, remark="Not found")
                return 0, request.reply(ext_fields={"offset": str(stored)})
            case RequestCode.UPDATE_CONSUMER_OFFSET:
                self.offsets["g", *key] = int(ext["commitOffset"])
                return 0, request.reply()
            case RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
                self.searched.append(int(ext["timestamp"]))
                return 0, request.reply(ext_fields={"offset": "2"})
            case RequestCode.GET_MAX_OFFSET:
                return 0, request.reply(ext_fields={"offset": str(len(self.queues[key]))})
            case RequestCode.PULL_MESSAGE:
                return self._pull(request, key)
            case RequestCode.CONSUMER_SEND_MSG_BACK:
                origin = next(
                    message
                    for log in self.queues.values()
                    for message in log
                    if message.physical_offset == int(ext["offset"])
                )
                self.append(
                    RETRY_PREFIX + "g", 0, origin.body, origin.reconsume_times + 1, ext["originTopic"]
                )
                return 0, request.reply()
            case RequestCode.SEND_MESSAGE_V2:
                self.append(ext["b"], 0, request.body, int(ext["j"]), "T")
                return 0, request.reply(ext_fields={"msgId": "0" * 32, "queueId": "0", "queueOffset": "0"})
            case RequestCode.LOCK_BATCH_MQ | RequestCode.UNLOCK_BATCH_MQ:
                return 0, request.reply(body=self._lock(request).encode())
        raise AssertionError(f"request {request.code} is not modelled")

    def _route(self, request: RemotingCommand) -> RemotingCommand:
        topic = request.ext_fields["topic"]
        nums = self.queue_nums if topic == "T" else int(any(known == topic for known, _ in self.queues))
        if not nums:
            return request.reply(17, remark="No topic route info")
        route = TopicRouteData(
            queue_datas=(QueueData(broker_name="b", read_queue_nums=nums, write_queue_nums=nums, perm=6),),
            broker_datas=(BrokerData(cluster="C", broker_name="b", broker_addrs={0: ADDR}),),
        )
        return request.reply(body=encode_route(route, RouteDialect.QUOTED))

    def _pull(self, request: RemotingCommand, key: tuple[str, int]) -> tuple[float, RemotingCommand]:
        log, offset = self.queues[key], int(request.ext_fields["queueOffset"])
        if int(request.ext_fields["sysFlag"]) & 1:
            self.offsets["g", *key] = int(request.ext_fields["commitOffset"])
        batch = log[offset : offset + self.world.rng.randrange(1, 9)]
        ext = {"nextBeginOffset": str(offset + len(batch)), "minOffset": "0", "maxOffset": str(len(log))}
        ext["suggestWhichBrokerId"] = "0"
        if batch:
            return 0, request.reply(
                ext_fields=ext, body=b"".join(encode_message(message) for message in batch)
            )
        return 1.0, request.reply(19, ext_fields=ext)

    def _lock(self, request: RemotingCommand) -> LockBatchResponse:
        asked = LockBatch.decode(request.body)
        locked = []
        for queue in asked.queues:
            owner, until_s = self.locks.get(queue, ("", 0.0))
            if request.code == RequestCode.UNLOCK_BATCH_MQ:
                if owner == asked.client_id:
                    del self.locks[queue]
            elif owner in ("", asked.client_id) or until_s < self.world.now_s:
                self.locks[queue] = (asked.client_id, self.world.now_s + 60)
                locked.append(queue)
        return LockBatchResponse(locked=tuple(locked))


class Member:
    """One process of the consumer group."""

    def __init__(self, world: World, history: History, serial: int, **values: Any) -> None:
        self.dead = self.cut_off = False
        self.arrival_s = 0.0
        self.world = world
        config = divide_periods(ClientConfig(nameservers=(ADDR,)), world.timer_divisor)
        self.core = ClientCore(config, Identity(ip="192.0.2.1", pid=1, serial=serial), random.Random(serial))
        values = {"consume_from": ConsumeFrom.FIRST_OFFSET, **values}
        self.consumer = PushConsumerCore(
            self.core,
            ConsumerConfig(group="g", suspend_s=2.0, **{"workers": 3, **values}),
            {"T": "*"},
            lambda batch: history.begin(batch),
        )
        world.start(self, self._begin())

    def _begin(self) -> Operation[None]:
        yield from self.core.start()
        while True:
            try:
                yield from self.consumer.start()
                return
            except Exception:  # as a user's program would, try again until the nameserver answers
                yield Sleep(1.0)

    def kill(self) -> None:
        """End the member as SIGKILL does: without unregistration. The broker sees the connection close."""
        self.dead = True
        self.world.broker.members.pop(self.core.client_id, None)
        self.world.broker.notify()

    def leave(self, done: Callable[[], None]) -> None:
        """Leave the group by closing the client. At the end, the broker sees the connection close.

        The connection closes even if the unregistration failed.
        """

        def left() -> None:
            self.kill()
            done()

        self.world.start(self, self.core.close(), left)


class History:
    """Messages that the listeners saw."""

    def __init__(self, rng: random.Random, failing: float) -> None:
        self._rng = rng
        self._failing = failing
        self.finished: Counter[bytes] = Counter()
        self.order: dict[int, list[int]] = defaultdict(list)
        self.running: Counter[MessageQueue] = Counter()
        self.overlaps = 0

    def begin(self, batch: Sequence[ReceivedMessage]) -> Callable[[], ConsumeResult]:
        queue = batch[0].queue
        self.running[queue] += 1
        self.overlaps += self.running[queue] > 1
        fails = self._rng.random() < self._failing

        def end() -> ConsumeResult:
            self.running[queue] -= 1
            if fails and self._rng.random() < 0.5:
                raise RuntimeError("the listener failed")
            if fails:
                return ConsumeResult.RECONSUME_LATER
            for message in batch:
                self.finished[message.body] += 1
                if message.queue.topic == "T":
                    self.order[message.queue.queue_id].append(message.queue_offset)
            return ConsumeResult.SUCCESS

        return end


def fill(world: World, count: int) -> set[bytes]:
    bodies = {b"message%d" % number for number in range(count)}
    for body in sorted(bodies):
        world.broker.append("T", world.rng.randrange(QUEUES), body)
    return bodies


@pytest.mark.parametrize("seed", range(25))
def test_every_message_is_consumed_although_members_come_and_go(seed: int) -> None:
    world = World(seed, loss=0.1)
    history = History(world.rng, failing=0.1)
    wanted = fill(world, 120)
    members = [Member(world, history, 1), Member(world, history, 2)]
    world.run_until(lambda: len(history.finished) > 30, 600)
    members[0].kill()
    members.append(Member(world, history, 3))
    left: list[bool] = []
    world.run_until(lambda: len(history.finished) > 60, 600)
    members[1].leave(lambda: left.append(True))
    wanted |= {b"late%d" % number for number in range(10)}
    for number in range(10):
        world.broker.append("T", number % QUEUES, b"late%d" % number)
    world.run_until(lambda: set(history.finished) == wanted and bool(left), 3000)


@pytest.mark.parametrize("seed", range(60))
def test_without_losses_and_failures_each_message_is_consumed_once(seed: int) -> None:
    world = World(seed, loss=0.0)
    if seed >= 10:  # each of the member's threads sometimes hangs while the others go on
        world.still, world.timer_divisor = 0.4, 25.0
    history = History(world.rng, failing=0.0)
    wanted = fill(world, 100)
    member = Member(world, history, 1)
    world.run_until(lambda: set(history.finished) == wanted, 300)
    left: list[bool] = []
    member.leave(lambda: left.append(True))
    world.run_until(lambda: bool(left), 60)
    second = Member(world, history, 2)
    world.broker.append("T", 0, b"afterwards")
    world.run_until(lambda: b"afterwards" in history.finished, 300)
    world.run_until(lambda: len(second.consumer.assigned) == QUEUES + 1, 300)
    assert set(history.finished.values()) == {1}, "what was stored at the end is not delivered again"


@pytest.mark.parametrize("seed", range(30))
def test_a_member_that_is_closed_while_it_starts_ends_in_silence(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(seed, loss=0.0)
    member = Member(world, History(world.rng, failing=0.0), 1, orderly=True)
    world.pass_time(0.008 * seed)
    left: list[bool] = []
    world.start(member, member.core.close(), lambda: left.append(True))
    world.run_until(lambda: bool(left), 60)
    member.cut_off = True  # closing a client closes its connections last, so every later request fails
    world.pass_time(30)
    assert member.core.directory.watchers == []
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("seed", range(20))
def test_a_consumer_that_is_closed_while_it_starts_is_no_member(seed: int) -> None:
    world = World(seed, loss=0.0)
    member = Member(world, History(world.rng, failing=0.0), 1)
    world.pass_time(0.005 * seed)
    world.start(member, member.consumer.close())
    world.pass_time(30)
    assert world.broker.members == {}


def test_offsets_are_stored_beside_each_other_at_the_end() -> None:
    world = World(1, loss=0.0)
    history = History(world.rng, failing=0.0)
    wanted = fill(world, 40)
    member = Member(world, history, 1)
    world.run_until(lambda: set(history.finished) == wanted, 300)
    ends = {("g", *key): len(log) for key, log in world.broker.queues.items() if log}

    def stored() -> dict[tuple[str, str, int], int]:
        return {key: offset for key, offset in world.broker.offsets.items() if offset}

    assert len(ends) == QUEUES
    assert sum(stored().get(key, 0) < end for key, end in ends.items()) > 1
    world.way_s = (1.0, 1.0)
    began_s = world.now_s
    left: list[bool] = []
    member.leave(lambda: left.append(True))
    world.run_until(lambda: stored() == ends, 60)
    assert world.now_s - began_s < 2.0, "one way there, not one to and fro after the other"
    world.run_until(lambda: bool(left), 60)


@pytest.mark.parametrize("seed", range(10))
def test_what_is_stored_was_consumed(seed: int) -> None:
    world = World(seed, loss=0.15)
    history = History(world.rng, failing=0.0)
    fill(world, 150)
    members = [Member(world, history, number) for number in (1, 2)]
    for _ in range(40):
        world.pass_time(0.3)
        for (_, topic, queue_id), offset in world.broker.offsets.items():
            for message in world.broker.queues[topic, queue_id][:offset]:
                assert history.finished[message.body], f"{message.body!r} below the stored offset {offset}"
    assert members


@pytest.mark.parametrize("seed", range(10))
def test_an_orderly_group_consumes_each_queue_in_order_and_never_twice_at_a_time(seed: int) -> None:
    world = World(seed, loss=0.05)
    history = History(world.rng, failing=0.1)
    wanted = fill(world, 60)
    Member(world, history, 1, orderly=True)
    world.run_until(lambda: len(history.finished) > 10, 600)
    second = Member(world, history, 2, orderly=True)
    world.run_until(lambda: len(history.finished) > 30, 600)
    second.leave(lambda: None)
    world.run_until(lambda: set(history.finished) == wanted, 3000)
    assert history.overlaps == 0
    for seen in history.order.values():
        firsts = list(dict.fromkeys(seen))
        assert firsts == sorted(firsts), "a message was consumed before an earlier one of its queue"


def test_orderly_queues_with_slow_listeners_change_hands_side_by_side() -> None:
    world = World(1, loss=0.0)
    world.listener_s = (20.0, 25.0)
    history = History(world.rng, failing=0.0)
    for queue_id in range(QUEUES):
        for number in range(20):
            world.broker.append("T", queue_id, b"%d of %d" % (number, queue_id))
    first = Member(world, history, 1, orderly=True, workers=QUEUES)
    world.run_until(lambda: len(history.running) == QUEUES, 60)
    second = Member(world, history, 2, orderly=True, workers=QUEUES)
    began_s = world.now_s
    moved = lambda: sum(queue.topic == "T" for queue in second.consumer.assigned) == QUEUES // 2  # noqa: E731
    world.run_until(moved, 60)
    assert world.now_s - began_s < 32, "one listener call, and what noticing and a new lock take"
    assert history.overlaps == 0
    kept = [queue for queue in first.consumer.assigned if queue.topic == "T"]
    assert len(kept) == QUEUES // 2
    done = dict(history.order)
    counts = {queue.queue_id: len(done.get(queue.queue_id, ())) for queue in kept}
    world.pass_time(60)
    assert all(len(history.order[queue.queue_id]) >= counts[queue.queue_id] + 2 for queue in kept)


@pytest.mark.parametrize(
    ("consume_from", "first"),
    [
        pytest.param(ConsumeFrom.FIRST_OFFSET, 0, id="first"),
        pytest.param(ConsumeFrom.TIMESTAMP, 2, id="timestamp"),
        pytest.param(ConsumeFrom.LAST_OFFSET, 5, id="last"),
    ],
)
def test_a_new_group_begins_where_it_was_told(consume_from: ConsumeFrom, first: int) -> None:
    world = World(1, loss=0.0)
    history = History(world.rng, failing=0.0)
    for number in range(5):
        world.broker.append("T", 1, b"before%d" % number)
    member = Member(world, history, 1, consume_from=consume_from)
    world.run_until(lambda: len(member.consumer.assigned) == QUEUES + 1, 60)
    world.broker.append("T", 1, b"after")
    world.run_until(lambda: b"after" in history.finished, 60)
    assert sorted(history.order[1]) == list(range(first, 6))
    # With ``TIMESTAMP``, a consumer asks for the offset of the time half an hour before its start.
    assert set(world.broker.searched) <= {1_700_000_000_000 - 30 * 60 * 1000}
    assert bool(world.broker.searched) == (consume_from is ConsumeFrom.TIMESTAMP)


def test_a_reset_of_offsets_by_the_broker_is_followed() -> None:
    world = World(1, loss=0.0)
    history = History(world.rng, failing=0.0)
    wanted = fill(world, 20)
    member = Member(world, history, 1)
    world.run_until(lambda: set(history.finished) == wanted, 60)
    queue = MessageQueue(topic="T", broker_name="b", queue_id=0)
    body = QueueOffsets(offsets={queue: 0}).encode()
    foreign = RemotingCommand.request(
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET, {"group": "other", "topic": "T"}, body
    )
    member.core.peer_request(foreign)
    own = RemotingCommand.request(
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET, {"group": "g", "topic": "T"}, body
    )
    member.core.peer_request(own)
    again = [message.body for message in world.broker.queues["T", 0]]
    assert again
    world.run_until(lambda: all(history.finished[body] == 2 for body in again), 60)
    assert sum(history.finished.values()) == 20 + len(again)


def test_a_group_runs_once_per_client() -> None:
    world = World(1, loss=0.0)
    member = Member(world, History(world.rng, failing=0.0), 1)
    world.run_until(lambda: len(member.consumer.assigned) == QUEUES + 1, 60)
    second = PushConsumerCore(member.core, ConsumerConfig(group="g"), {"T": "*"}, lambda batch: None)
    raised: list[str] = []

    def begin() -> Operation[None]:
        try:
            yield from second.start()
        except InvalidArgument as error:
            raised.append(str(error))

    world.start(member, begin())
    world.run_until(lambda: bool(raised), 60)
    assert "runs in this client already" in raised[0]
