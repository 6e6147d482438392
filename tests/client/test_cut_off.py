"""If a start or a close is cancelled, is interrupted or fails, the next call does the rest of the work."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

import routekeeper.client.aio
import routekeeper.client.blocking
import routekeeper.client.consumer
import routekeeper.client.offsets
from routekeeper.client.assignment import Assignment
from routekeeper.client.config import ClientConfig, ConsumeFrom, ConsumerConfig, ProducerConfig
from routekeeper.client.consumer import PushConsumerCore
from routekeeper.client.core import ClientCore
from routekeeper.client.errors import ClientClosed, ClientError, InvalidArgument, OutcomeUnknown
from routekeeper.client.operation import Clock, Deliver, Instant, Operation, Signal, Spawn, Wait, wait
from routekeeper.client.process_queue import ProcessQueue
from routekeeper.client.producer import Message, SendStatus
from routekeeper.client.queue_reader import QueueReader, ReceivedMessage
from routekeeper.remoting.bodies import (
    ConsumerIdList,
    HeartbeatData,
    LockBatch,
    LockBatchResponse,
    MessageQueue,
    QueueOffsets,
)
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import ConnectionLost
from routekeeper.remoting.message import StoredMessage, encode_message
from tests.waiting import until, wait_until

GROUP = ConsumerConfig(group="g", consume_from=ConsumeFrom.FIRST_OFFSET, workers=2)
ORDERLY = ConsumerConfig(group="g", consume_from=ConsumeFrom.FIRST_OFFSET, workers=2, orderly=True)
Batch = Sequence[ReceivedMessage]


class Script:
    """A nameserver and broker with one message in the only queue of topic T.

    Attributes:
        unanswered: Codes of requests that get no answer.
        refused: Codes of requests that get an error as answer.
        routes: Bodies of routes by topic.
        held: If set, answers to sends wait until the event is set.
        offset: The stored offset of the queue, or "" if no offset is stored.
    """

    def __init__(self, peer: Any, body: bytes) -> None:
        self.peer = peer
        self.unanswered: set[int] = set()
        self.refused: set[int] = set()
        self.routes: dict[str, bytes] = {"T": body}
        self.held: threading.Event | None = None
        self.offset = ""
        peer.answer = self.answer

    def answer(self, request: RemotingCommand) -> Any:
        ext = request.ext_fields
        if request.code in self.unanswered:
            return None
        if request.code in self.refused:
            return request.reply(1, remark="refused by the test")
        match request.code:
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                body = self.routes.get(ext["topic"])
                return request.reply(17, remark="no route") if body is None else request.reply(body=body)
            case RequestCode.GET_CONSUMER_LIST_BY_GROUP:
                return request.reply(body=ConsumerIdList(consumer_ids=("me",)).encode())
            case RequestCode.QUERY_CONSUMER_OFFSET if self.offset:
                return request.reply(ext_fields={"offset": self.offset})
            case RequestCode.QUERY_CONSUMER_OFFSET:
                return request.reply(22, remark="Not found")
            case RequestCode.UPDATE_CONSUMER_OFFSET if self.offset and ext["topic"] == "T":
                self.offset = ext["commitOffset"]
            case RequestCode.LOCK_BATCH_MQ:
                queues = LockBatch.decode(request.body).queues
                return request.reply(body=LockBatchResponse(locked=queues).encode())
            case RequestCode.PULL_MESSAGE:
                return self._pull(request)
            case RequestCode.SEND_MESSAGE_V2 | RequestCode.SEND_BATCH_MESSAGE:
                return self._store(request)
        return request.reply()

    @staticmethod
    def _pull(request: RemotingCommand) -> RemotingCommand:
        offset = int(request.ext_fields["queueOffset"])
        ext = {"minOffset": "0", "maxOffset": "1", "suggestWhichBrokerId": "0", "nextBeginOffset": "1"}
        if offset:
            return request.reply(19, ext_fields=ext)
        return request.reply(
            ext_fields=ext, body=encode_message(StoredMessage(topic="T", queue_id=0, body=b"x"))
        )

    async def _store(self, request: RemotingCommand) -> RemotingCommand:
        if self.held is not None:
            await until(self.held.is_set, "the test lets the broker answer")
        return request.reply(ext_fields={"msgId": "0" * 32, "queueId": "0", "queueOffset": "0"})

    def requests(self, code: int, **fields: str) -> list[RemotingCommand]:
        """Return the requests of a code that have these fields."""
        return [
            request
            for request in tuple(self.peer.requests)
            if request.code == code and fields.items() <= dict(request.ext_fields).items()
        ]

    def groups_of_next_heartbeat(self, client: routekeeper.client.blocking.Client) -> set[str]:
        """Return the consumer groups in a heartbeat that the client sends now."""
        client.run(client.core.beat())
        return self.groups_of_last_heartbeat()

    def groups_of_last_heartbeat(self) -> set[str]:
        body = self.requests(RequestCode.HEART_BEAT)[-1].body
        return {consumer.group_name for consumer in HeartbeatData.decode(body).consumers}


@pytest.fixture
def script(new_peer: Callable[..., Any], route_body: Any) -> Script:
    peer = new_peer()
    return Script(peer, route_body(queues=1, broker_a=peer.addr))


@pytest.fixture
def config(script: Script) -> ClientConfig:
    """Return settings with which no offset is stored before the client closes."""
    return ClientConfig(
        nameservers=(script.peer.addr,),
        client_id="me",
        offset_persist_s=3600.0,
        call_timeout_s=20.0,
        shutdown_s=20.0,
    )


@pytest.fixture
def scarce(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return a counter by which a test forbids the start of threads.

    A key is the beginning of a thread's name. The value is the number of such threads that cannot be started.
    """
    refused: Counter[str] = Counter()
    start = threading.Thread.start

    def start_or_refuse(thread: threading.Thread) -> None:
        for name in refused:
            if thread.name.startswith(name) and refused[name]:
                refused[name] -= 1
                raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_refuse)
    return refused


@pytest.fixture
def blocking(config: ClientConfig) -> Iterator[routekeeper.client.blocking.Client]:
    """Return a blocking client with a producer, so that heartbeats are sent without consumers, too."""
    with routekeeper.client.blocking.Client(config) as client:
        client.producer("senders")
        yield client


# Starting a client or a consumer ------------------------------------------------------------------


def test_an_asyncio_consumer_starts_its_client(script: Script, config: ClientConfig) -> None:
    seen: list[bytes] = []

    async def listen(batch: Batch) -> None:
        seen.extend(message.body for message in batch)

    async def main() -> None:
        client = routekeeper.client.aio.Client(config)
        consumer = client.push_consumer(GROUP, {"T": "*"}, listen)
        await asyncio.wait_for(consumer.start(), 30)
        await client.start()
        await until(lambda: seen == [b"x"], "the message arrives")
        await client.close()

    asyncio.run(main())


def test_a_consumer_that_cannot_begin_is_no_member_and_says_so(script: Script, config: ClientConfig) -> None:
    """A consumer of a client that was not started must raise an error, and must not join the group."""

    async def main() -> None:
        client = routekeeper.client.aio.Client(config)
        consumer = PushConsumerCore(client.core, GROUP, {"T": "*"}, lambda batch: None)
        with pytest.raises(ClientClosed, match="not started"):
            await client.run(consumer.start())
        await client.start()
        client.producer("senders")
        await client.run(client.core.beat())
        assert script.groups_of_last_heartbeat() == set()
        with pytest.raises(ClientClosed, match="'g' is closed"):
            await client.run(consumer.start())
        await client.close()

    asyncio.run(main())


def test_a_start_that_was_cancelled_can_be_repeated(script: Script, config: ClientConfig) -> None:
    seen: list[bytes] = []

    async def listen(batch: Batch) -> None:
        seen.extend(message.body for message in batch)

    async def main() -> None:
        async with routekeeper.client.aio.Client(config) as client:
            client.producer("senders")
            consumer = client.push_consumer(GROUP, {"T": "*"}, listen)
            script.unanswered = {RequestCode.HEART_BEAT}
            starting = asyncio.create_task(consumer.start())
            await until(lambda: bool(script.requests(RequestCode.HEART_BEAT)), "the broker got a heartbeat")
            starting.cancel()
            await asyncio.wait([starting])
            assert starting.cancelled()
            script.unanswered = set()
            await client.run(client.core.beat())
            assert script.groups_of_last_heartbeat() == set()
            await consumer.start()
            assert script.groups_of_last_heartbeat() == {"g"}
            await until(lambda: seen == [b"x"], "the message arrives")

    asyncio.run(main())


def test_closing_after_a_cancelled_start_leaves_the_group(script: Script, config: ClientConfig) -> None:
    async def main() -> None:
        async with routekeeper.client.aio.Client(config) as client:
            consumer = client.pull_consumer("g", {"T": "*"})
            script.unanswered = {RequestCode.HEART_BEAT}
            starting = asyncio.create_task(consumer.start())
            await until(lambda: bool(script.requests(RequestCode.HEART_BEAT)), "the broker got a heartbeat")
            starting.cancel()
            await asyncio.wait([starting])
            await consumer.close()
            assert script.requests(RequestCode.UNREGISTER_CLIENT, consumerGroup="g")

    asyncio.run(main())


@pytest.mark.parametrize("thread", ["rebalance", "offsets", "worker 1"])
def test_a_consumer_that_gets_no_thread_leaves_the_group(
    thread: str, script: Script, blocking: routekeeper.client.blocking.Client, scarce: Counter[str]
) -> None:
    seen: list[bytes] = []
    consumer = blocking.push_consumer(GROUP, {"T": "*"}, lambda batch: None)
    scarce[thread] = 1
    with pytest.raises(ClientError, match="no thread can be started"):
        consumer.start()
    assert script.requests(RequestCode.UNREGISTER_CLIENT, consumerGroup="g")
    assert script.groups_of_next_heartbeat(blocking) == set()
    with pytest.raises(ClientClosed, match="'g' is closed"):
        consumer.start()
    again = blocking.consume(GROUP, {"T": "*"}, lambda batch: seen.extend(one.body for one in batch))
    wait_until(lambda: seen == [b"x"], "a new consumer of the group gets the message")
    consumer.close()
    assert again.assigned, "closing the first consumer does not concern the second one"
    assert script.groups_of_next_heartbeat(blocking) == {"g"}


def test_a_client_whose_start_failed_can_be_started(config: ClientConfig, scarce: Counter[str]) -> None:
    client = routekeeper.client.blocking.Client(config)
    before = Counter(thread.name for thread in threading.enumerate())
    try:
        scarce["heartbeat"] = 1
        with pytest.raises(ClientError, match="no thread can be started"):
            client.start()
        client.start()
        begun = Counter(thread.name for thread in threading.enumerate()) - before
        assert (begun["heartbeat"], begun["routes"]) == (1, 1)
    finally:
        client.close()


def test_a_second_consumer_with_the_same_file_of_offsets_does_not_start(
    script: Script, blocking: routekeeper.client.blocking.Client, tmp_path: Path
) -> None:
    settings = replace(GROUP, broadcast=True, offset_file=str(tmp_path / "offsets.json"))
    first = blocking.consume(settings, {"T": "*"}, lambda batch: None)
    second = blocking.push_consumer(replace(settings, group="h"), {"T": "*"}, lambda batch: None)
    with pytest.raises(InvalidArgument, match="is used by another consumer"):
        second.start()
    assert script.groups_of_next_heartbeat(blocking) == {"g"}
    first.close()
    second.start()
    assert script.groups_of_next_heartbeat(blocking) == {"h"}


def test_a_consumer_closed_while_its_file_of_offsets_is_locked_leaves_the_group(
    script: Script,
    blocking: routekeeper.client.blocking.Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A background heartbeat may have joined the group already, so the consumer must leave it."""
    settings = replace(GROUP, broadcast=True, offset_file=str(tmp_path / "offsets.json"))
    consumer = blocking.push_consumer(settings, {"T": "*"}, lambda batch: None)
    monkeypatch.setattr(routekeeper.client.offsets, "_locked", lambda path: consumer.close())
    with pytest.raises(ClientClosed):
        consumer.start()
    assert script.requests(RequestCode.UNREGISTER_CLIENT, consumerGroup="g")


def test_a_consumer_whose_start_is_interrupted_does_not_keep_its_file_of_offsets(
    script: Script,
    blocking: routekeeper.client.blocking.Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = replace(GROUP, broadcast=True, offset_file=str(tmp_path / "offsets.json"))
    first = blocking.push_consumer(settings, {"T": "*"}, lambda batch: None)

    def interrupted(assignment: Assignment, start_ms: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Assignment, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            first.start()
    second = blocking.consume(settings, {"T": "*"}, lambda batch: None)
    assert script.groups_of_next_heartbeat(blocking) == {"g"}
    second.close()


def test_a_function_for_which_no_thread_can_be_started_is_not_called(
    config: ClientConfig, scarce: Counter[str]
) -> None:
    called: list[str] = []

    def call(argument: str) -> Operation[None]:
        yield Deliver(called.append, argument)

    async def main() -> None:
        client = routekeeper.client.aio.Client(config)
        scarce["client-call"] = 1
        with pytest.raises(ClientError, match="no thread can be started"):
            await client.run(call("refused"))
        await client.run(call("later"))
        assert called == ["later"]
        await client.close()

    asyncio.run(main())


def test_page_of_nameservers_is_read_again_after_no_thread_could_be_started(
    config: ClientConfig, scarce: Counter[str], http_page: Callable[[str], str]
) -> None:
    settings = replace(config, nameserver_url=http_page("127.0.0.1:1"), nameserver_refresh_s=0.05)

    async def main() -> None:
        async with routekeeper.client.aio.Client(settings) as client:
            directory = client.core.directory
            await until(lambda: not scarce["client-call"], "a thread was refused")
            await until(lambda: "127.0.0.1:1" in directory.nameserver_list(), "the page was read")

    scarce["client-call"] = 1
    asyncio.run(main())


# Closing a client or a consumer -------------------------------------------------------------------


def check_left(script: Script) -> None:
    """Check that the broker knows the offset after the message, and that the member has left."""
    stored = script.requests(RequestCode.UPDATE_CONSUMER_OFFSET, topic="T")
    assert [request.ext_fields["commitOffset"] for request in stored] == ["1"]
    assert len(script.requests(RequestCode.UNREGISTER_CLIENT, consumerGroup="g")) == 1


@pytest.mark.parametrize("closed", ["consumer", "client"])
def test_a_close_of_a_consumer_that_was_cancelled_goes_on(
    closed: str, script: Script, config: ClientConfig
) -> None:
    async def main() -> None:
        called, end = asyncio.Event(), asyncio.Event()

        async def listen(batch: Batch) -> None:
            called.set()
            await end.wait()

        client = routekeeper.client.aio.Client(config)
        await client.start()
        client.producer("senders")
        consumer = await client.consume(GROUP, {"T": "*"}, listen)
        await called.wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.close(), 0.05)
        assert not script.requests(RequestCode.UNREGISTER_CLIENT)
        end.set()
        if closed == "consumer":
            await consumer.close()
            check_left(script)
            await client.run(client.core.beat())
            assert script.groups_of_last_heartbeat() == set()
        await client.close()
        check_left(script)

    asyncio.run(main())


def test_a_close_of_a_consumer_that_was_interrupted_goes_on(
    script: Script, blocking: routekeeper.client.blocking.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If Ctrl-C interrupts a close that waits for the listener, the next close does the rest."""
    called, end, main = threading.Event(), threading.Event(), threading.current_thread()
    interrupts: list[KeyboardInterrupt] = []
    event_wait = threading.Event.wait

    def wait_or_end(event: threading.Event, timeout: float | None = None) -> bool:
        if threading.current_thread() is main and interrupts:
            raise interrupts.pop()
        return event_wait(event, timeout)

    monkeypatch.setattr(threading.Event, "wait", wait_or_end)

    def listen(batch: Batch) -> None:
        called.set()
        assert end.wait(60)

    consumer = blocking.consume(GROUP, {"T": "*"}, listen)
    try:
        assert called.wait(60)
        interrupts.append(KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            consumer.close()
    finally:
        end.set()
    consumer.close()
    check_left(script)
    assert script.groups_of_next_heartbeat(blocking) == set()
    consumer.close()
    check_left(script)


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["producer", "client"])
def test_a_close_of_a_producer_that_was_cancelled_goes_on(
    closed: str, script: Script, config: ClientConfig
) -> None:
    script.held = threading.Event()
    settings = ProducerConfig(group="senders", batch_size=1, batches_max=1, send_timeout_s=20.0)

    async def main() -> None:
        client = routekeeper.client.aio.Client(config)
        await client.start()
        producer = client.producer(settings)
        futures = [await producer.put(Message(topic="T", body=b"%d" % number)) for number in range(3)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.close(), 0.05)
        closing = asyncio.create_task((producer if closed == "producer" else client).close())
        await asyncio.wait([closing], timeout=0.5)
        assert script.held is not None
        script.held.set()
        await closing
        assert [future.done() and future.result().status for future in futures] == [SendStatus.SEND_OK] * 3
        assert len(script.requests(RequestCode.UNREGISTER_CLIENT, producerGroup="senders")) == 1
        await client.close()

    asyncio.run(main())


def test_messages_of_a_sender_that_was_cut_off_are_not_reported_as_unsent(
    script: Script, config: ClientConfig
) -> None:
    """The outcome of a message whose sender was cut off must be reported as unknown.

    The client closes at most 16 consumers and producers at a time. Here 16 consumers hang, so the client
    never begins to close the producer.
    """
    script.held = threading.Event()

    async def main() -> None:
        called = Counter[str]()

        async def listen(batch: Batch) -> None:
            called["listeners"] += 1
            await asyncio.Event().wait()

        client = routekeeper.client.aio.Client(config)
        await client.start()
        for number in range(16):
            settings = ConsumerConfig(group=f"g{number}", consume_from=ConsumeFrom.FIRST_OFFSET)
            await client.consume(settings, {"T": "*"}, listen)
        await until(lambda: called["listeners"] == 16)
        producer = client.producer(ProducerConfig(group="senders", batch_size=1))
        future = await producer.put(Message(topic="T", body=b"m"))
        await until(lambda: bool(script.requests(RequestCode.SEND_BATCH_MESSAGE)))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.close(), 0.2)
        assert isinstance(future.exception(), OutcomeUnknown)

    try:
        asyncio.run(main())
    finally:
        script.held.set()


# Operations of a running consumer ----------------------------------------------------------------


@pytest.mark.slow
def test_a_queue_for_which_no_thread_was_left_is_consumed_later(
    blocking: routekeeper.client.blocking.Client, scarce: Counter[str], caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[bytes] = []
    scarce["pull T"] = 1
    with caplog.at_level(logging.WARNING, logger="routekeeper.client"):
        blocking.consume(GROUP, {"T": "*"}, lambda batch: seen.extend(message.body for message in batch))
        wait_until(lambda: seen == [b"x"], "the message arrives", within_s=20.0)
        wait_until(lambda: len(caplog.records) == 2, "a line says that rebalancing works again")
    assert scarce["pull T"] == 0
    assert [record.getMessage().split(" queue=")[0] for record in caplog.records] == [
        "queue not begun",
        "rebalance works again group=g failures=1",
    ]


@pytest.mark.slow
def test_a_reset_of_offsets_for_which_no_thread_was_left_takes_effect_later(
    script: Script, blocking: routekeeper.client.blocking.Client, scarce: Counter[str]
) -> None:
    seen: list[bytes] = []
    blocking.consume(GROUP, {"T": "*"}, lambda batch: seen.extend(message.body for message in batch))
    wait_until(lambda: seen == [b"x"], "the message arrives")
    script.offset = "1"
    scarce["pull T"] = 1
    queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
    script.peer.push(
        RemotingCommand.request(
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
            {"group": "g", "topic": "T"},
            QueueOffsets(offsets={queue: 0}).encode(),
            oneway=True,
        )
    )
    wait_until(lambda: seen == [b"x", b"x"], "the message arrives again", within_s=20.0)
    assert scarce["pull T"] == 0


@pytest.mark.slow
def test_a_queue_whose_release_got_no_thread_is_released_later(
    blocking: routekeeper.client.blocking.Client, scarce: Counter[str]
) -> None:
    called, end = threading.Event(), threading.Event()

    def listen(batch: Batch) -> None:
        called.set()
        assert end.wait(60)

    consumer = blocking.consume(ORDERLY, {"T": "*"}, listen)
    try:
        assert called.wait(60)
        scarce["release T"] = 1
        consumer.unsubscribe("T")
        wait_until(lambda: scarce["release T"] == 0, "a release found no thread")
    finally:
        end.set()
    wait_until(lambda: not consumer.assigned, "the queue is released", within_s=20.0)


def test_a_release_skips_a_queue_that_was_removed_meanwhile(config: ClientConfig) -> None:
    """A release must not fail if an earlier release meanwhile removes one of its queues."""

    def pull_nothing(queue: MessageQueue, process: object) -> Operation[None]:
        yield from wait(Signal(), 0, None)

    core = ClientCore(config, routekeeper.client.blocking.local_identity(), random.Random(1))
    assignment = Assignment(
        core,
        ORDERLY,
        QueueReader(core, "g"),
        {},
        pull_nothing,
        orderly=True,
        auto_store=True,
    )
    first, second, third = (MessageQueue(topic="T", broker_name="b", queue_id=number) for number in range(3))
    for queue in (first, second, third):  # the member does not subscribe to their topic any more
        assignment.queues[queue] = ProcessQueue(0, serial=True)
    assignment.queues[second].leaving = True
    spawned = next(assignment.start(0))
    assert isinstance(spawned, Spawn)
    rebalance = spawned.operation
    effect = next(rebalance)
    assert assignment.queues.pop(second).leaving
    while not isinstance(effect, Wait):
        if isinstance(effect, Clock):
            effect = rebalance.send(Instant(0.0, 0))
        else:
            effect = rebalance.throw(ConnectionLost("no server runs in this test", sent=False))
    assert assignment.queues == {}


def test_a_worker_survives_a_message_that_cannot_be_sent_to_the_retry_topic(
    script: Script, blocking: routekeeper.client.blocking.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker must deliver the message again if nobody can send a copy of it to the retry topic.

    Here the broker refuses to copy the failed message, and the client cannot send a copy either.

    The listener has put the byte that separates properties on the wire into a property's value.
    """
    monkeypatch.setattr(routekeeper.client.consumer, "_PAUSE_ON_FAILED_SENDBACK_S", 0.01)
    script.refused = {RequestCode.CONSUMER_SEND_MSG_BACK}
    seen: list[int] = []

    def listen(batch: Batch) -> None:
        for message in batch:
            cast("dict[str, str]", message.properties)["note"] = "a\x02b"
            seen.append(message.queue_offset)
        if len(seen) < 4:
            raise RuntimeError("the listener failed")

    blocking.consume(GROUP, {"T": "*"}, listen)
    wait_until(lambda: seen == [0] * 4, "the message comes again", within_s=20.0)
