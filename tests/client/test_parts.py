"""Producers, pull consumers and admins of both clients (blocking and asyncio) at our own server processes."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import routekeeper.client.aio
import routekeeper.client.aio_parts
import routekeeper.client.blocking
import routekeeper.client.blocking_parts
from routekeeper.bench.timers import divide_periods
from routekeeper.client.admin import Admin as AdminOperations
from routekeeper.client.blocking import Admin, Client
from routekeeper.client.config import (
    ClientConfig,
    ConsumeFrom,
    ConsumerConfig,
    ProducerConfig,
    PullConsumerConfig,
)
from routekeeper.client.errors import ClientClosed, ForkedClient, InvalidArgument, SendNotApplied
from routekeeper.client.offsets import OwnOffsets
from routekeeper.client.operation import Deliver, Wait
from routekeeper.client.producer import Message, SendResult, by_hash
from routekeeper.client.queue_reader import ReceivedMessage
from routekeeper.remoting.bodies import MessageQueue
from routekeeper.remoting.errors import RemotingError
from routekeeper.remoting.route import TopicConfig
from tests.client.conftest import is_routed
from tests.waiting import until

pytestmark = pytest.mark.timeout(200)


def settings(nameserver: Any) -> ClientConfig:
    return divide_periods(ClientConfig(nameservers=(nameserver.addr,)), 10)


def first(group: str, **values: Any) -> PullConsumerConfig:
    return PullConsumerConfig(group=group, consume_from=ConsumeFrom.FIRST_OFFSET, **values)


@pytest.fixture
def created(nameserver: Any, broker: Any, eventually: Callable[..., None]) -> Callable[..., None]:
    """Return ``created(topic, queues)``: a function that creates a topic and waits for its route."""

    def create(topic: str, queues: int = 1) -> None:
        with Client(settings(nameserver)) as started:
            config = TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues)
            addrs = Admin(started).create_topic_in_cluster("DefaultCluster", config)
            assert addrs == (broker.addr,)

            eventually(lambda: is_routed(started, topic), f"the route of {topic}")

    return create


def fill(nameserver: Any, topic: str, bodies: Sequence[bytes]) -> None:
    with Client(settings(nameserver)) as started:
        sender = started.producer("fillers")
        for body in bodies:
            sender.send(Message(topic=topic, body=body))


# Pull consumers ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_pull_consumer_is_iterated_and_goes_on_where_it_ended(
    nameserver: Any, created: Callable[..., None]
) -> None:
    created("Iterated")
    fill(nameserver, "Iterated", [b"%d" % number for number in range(10)])
    seen = []
    with Client(settings(nameserver)) as started:
        with started.pull_consumer(first("iterating"), {"Iterated": "*"}) as consumer:
            for message in consumer:
                seen.append(message.body)
                if len(seen) == 4:
                    break
        again = started.pull_consumer(first("iterating"), {"Iterated": "*"})
        with again:
            # The loop ended when it had message 3. Only a request for message 4 would have confirmed message
            # 3 as consumed, so the new consumer gets message 3 again.
            assert next(again).body == b"3"
            assert next(again).body == b"4"
            again.commit()
        with started.pull_consumer(first("iterating"), {"Iterated": "*"}) as third:
            assert next(third).body == b"5"
    assert seen == [b"0", b"1", b"2", b"3"]


def test_an_asyncio_pull_consumer_is_iterated_until_it_is_closed(
    nameserver: Any, created: Callable[..., None]
) -> None:
    created("Async")
    fill(nameserver, "Async", [b"%d" % number for number in range(5)])

    async def main() -> list[bytes]:
        seen = []
        async with routekeeper.client.aio.Client(settings(nameserver)) as started:
            consumer = started.pull_consumer(first("asyncing"))
            await consumer.subscribe("Async")
            await consumer.start()
            async for message in consumer:
                seen.append(message.body)
                if len(seen) == 5:
                    await consumer.close()
            with pytest.raises(ClientClosed):
                await consumer.poll()
        return seen

    assert asyncio.run(main()) == [b"0", b"1", b"2", b"3", b"4"]


def test_poll_returns_nothing_in_time_and_several_at_once(
    nameserver: Any, created: Callable[..., None]
) -> None:
    created("Polled")
    with (
        Client(settings(nameserver)) as started,
        started.pull_consumer(first("polling"), {"Polled": "A || B"}) as consumer,
    ):
        assert consumer.poll(timeout_s=0.1) == ()
        sender = started.producer("pg")
        sender.send_batch([Message(topic="Polled", body=b"%d" % i, tags="ABC"[i % 3]) for i in range(9)])
        got: list[ReceivedMessage] = []
        while len(got) < 6:
            messages = consumer.poll(count=2, timeout_s=30.0)
            assert 1 <= len(messages) <= 2
            got += messages
        assert [message.body for message in got] == [b"0", b"1", b"3", b"4", b"6", b"7"]
        with pytest.raises(InvalidArgument, match="count=0"):
            consumer.poll(count=0)


def test_without_auto_commit_only_a_commit_is_stored(nameserver: Any, created: Callable[..., None]) -> None:
    created("Manual")
    fill(nameserver, "Manual", [b"%d" % number for number in range(6)])
    queue = MessageQueue(topic="Manual", broker_name="broker-a", queue_id=0)
    with Client(settings(nameserver)) as started:
        with started.pull_consumer(first("manual", auto_commit=False), {"Manual": "*"}) as consumer:
            assert [next(consumer).body for _ in range(3)] == [b"0", b"1", b"2"]
            assert not consumer.committed(queue), "a broker answers 0 for a group it does not know"
            consumer.commit()
            assert consumer.committed(queue) == 3
            assert [next(consumer).body for _ in range(2)] == [b"3", b"4"]
        with started.pull_consumer(first("manual", auto_commit=False), {"Manual": "*"}) as consumer:
            assert consumer.committed(queue) == 3
            assert next(consumer).body == b"3"


def test_seek_pause_and_resume_take_effect_at_once(nameserver: Any, created: Callable[..., None]) -> None:
    created("Sought", queues=2)
    with (
        Client(settings(nameserver)) as started,
        started.pull_consumer(first("seeking"), {"Sought": "*"}) as consumer,
    ):
        sender = started.producer("pg")
        zero, one = sorted(sender.queues("Sought"))
        for number in range(4):
            sender.send(Message(topic="Sought", body=b"%d" % number), queue=zero)
        assert [next(consumer).body for _ in range(4)] == [b"0", b"1", b"2", b"3"]
        # The consumer's next pull is already at the broker, where it may wait for 15 s for a new message. A
        # seek must take effect before this pull ends.
        consumer.seek(zero, 2)
        assert [message.body for message in consumer.poll(timeout_s=5.0)] == [b"2", b"3"]
        assert consumer.max_offset(zero) == 4
        assert consumer.min_offset(zero) == 0
        assert consumer.search_offset(zero, 0) == 0
        consumer.pause(zero)
        sender.send(Message(topic="Sought", body=b"paused"), queue=zero)
        sender.send(Message(topic="Sought", body=b"other"), queue=one)
        assert [message.body for message in consumer.poll(timeout_s=30.0)] == [b"other"]
        assert consumer.poll(timeout_s=0.3) == ()
        consumer.resume()
        assert [message.body for message in consumer.poll(timeout_s=30.0)] == [b"paused"]
        with pytest.raises(InvalidArgument, match="offset=-1"):
            consumer.seek(zero, -1)
        with pytest.raises(InvalidArgument, match="not consumed by this member"):
            consumer.seek(MessageQueue(topic="Other", broker_name="b", queue_id=0), 0)


def test_topics_are_subscribed_and_given_up_later(
    nameserver: Any, created: Callable[..., None], eventually: Callable[..., None]
) -> None:
    created("Earlier")
    created("Later")
    seen: set[bytes] = set()
    with Client(settings(nameserver)) as started:
        config = ConsumerConfig(group="changing", consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer = started.push_consumer(
            config, {"Earlier": "*"}, lambda batch: seen.update(message.body for message in batch)
        )
        with consumer:
            fill(nameserver, "Earlier", [b"one"])
            eventually(lambda: seen == {b"one"}, "the first topic")
            fill(nameserver, "Later", [b"two"])
            consumer.subscribe("Later")
            eventually(lambda: seen == {b"one", b"two"}, "the second topic")
            consumer.unsubscribe("Earlier")
            eventually(
                lambda: "Earlier" not in {queue.topic for queue in consumer.assigned}, "the first is given up"
            )
            with pytest.raises(InvalidArgument, match="'Earlier' is not subscribed"):
                consumer.unsubscribe("Earlier")


@pytest.mark.slow
def test_a_broadcast_group_gives_everything_to_everybody_and_keeps_its_own_offsets(
    nameserver: Any, created: Callable[..., None], eventually: Callable[..., None], tmp_path: Path
) -> None:
    created("Broadcast", queues=2)
    fill(nameserver, "Broadcast", [b"%d" % number for number in range(8)])
    everything = {b"%d" % number for number in range(8)}

    def config(member: int) -> ConsumerConfig:
        return ConsumerConfig(
            group="everybody",
            consume_from=ConsumeFrom.FIRST_OFFSET,
            broadcast=True,
            offset_file=str(tmp_path / f"{member}.json"),
        )

    seen: list[list[bytes]] = [[], []]

    def listen(member: int) -> Callable[[Sequence[ReceivedMessage]], None]:
        def listener(batch: Sequence[ReceivedMessage]) -> None:
            seen[member] += [message.body for message in batch]
            if batch[0].body == b"5":
                raise RuntimeError("a broadcast message is delivered once in any case")

        return listener

    with Client(settings(nameserver)) as one, Client(settings(nameserver)) as two:
        for member, started in enumerate((one, two)):
            started.consume(config(member), {"Broadcast": "*"}, listen(member))
        eventually(lambda: all(set(bodies) == everything for bodies in seen), "everything for both")
    fill(nameserver, "Broadcast", [b"late"])
    with Client(settings(nameserver)) as one:
        one.consume(config(0), {"Broadcast": "*"}, listen(0))
        eventually(lambda: b"late" in seen[0], "the late one")
    assert sorted(seen[0]) == sorted([*everything, b"late"]), "each once"
    (tmp_path / "0.json").write_text('{"Broadcast@broker-a@0": 1}')  # content that no client writes
    with Client(settings(nameserver)) as one:
        consumer = one.consume(config(0), {"Broadcast": "*"}, listen(0))
        # The consumer must not start: with guessed offsets, it would skip or repeat messages.
        threading.Event().wait(1.0)
        assert consumer.assigned == ()


def test_a_thread_that_stood_still_writes_no_older_offsets(tmp_path: Path) -> None:
    offsets = OwnOffsets(str(tmp_path / "offsets.json"))
    queue = MessageQueue(topic="T", broker_name="b", queue_id=0)
    early = offsets.commit(queue, 5, oneway=True)
    reads = next(early)
    assert isinstance(reads, Deliver)
    stands_still = early.send(reads.call(reads.argument))
    assert isinstance(stands_still, Deliver)
    later = offsets.commit(queue, 9, oneway=True)
    waits = next(later)
    assert isinstance(waits, Wait), "for the one that hangs"
    stands_still.call(stands_still.argument)
    with pytest.raises(StopIteration):
        early.send(None)
    assert waits.signal.version > waits.seen
    writes = later.send(True)
    assert isinstance(writes, Deliver)
    writes.call(writes.argument)
    assert json.loads((tmp_path / "offsets.json").read_text()) == {"T@b@0": 9}


def test_offsets_that_two_threads_read_first_are_all_kept(tmp_path: Path) -> None:
    file = tmp_path / "offsets.json"
    file.write_text('{"T@b@7": 70}')
    offsets = OwnOffsets(str(file))
    queues = [MessageQueue(topic="T", broker_name="b", queue_id=queue_id) for queue_id in (0, 1)]
    both = [offsets.commit(queue, 5, oneway=True) for queue in queues]
    read = [(effect.call, effect.argument) for effect in map(next, both) if isinstance(effect, Deliver)]
    for operation, (call, argument) in zip(both, read, strict=True):
        effect = operation.send(call(argument))
        assert isinstance(effect, Deliver)
        effect.call(effect.argument)
        with pytest.raises(StopIteration):
            operation.send(None)
    assert json.loads(file.read_text()) == {"T@b@0": 5, "T@b@1": 5, "T@b@7": 70}


# Lingering producers -----------------------------------------------------------------------------


def test_put_batches_messages_and_tells_of_each(nameserver: Any, created: Callable[..., None]) -> None:
    created("Put", queues=1)
    told: list[tuple[RemotingError | None, SendResult | None]] = []
    with Client(settings(nameserver)) as started:
        sender = started.producer(ProducerConfig(group="putters", linger_s=30.0))
        futures = [
            sender.put(
                Message(topic="Put", body=b"%d" % number),
                on_delivery=lambda error, result: told.append((error, result)),
            )
            for number in range(50)
        ]
        assert not any(future.done() for future in futures), "they wait for each other"
        sender.flush()
        results = [future.result(timeout=0) for future in futures]
        assert [result.queue_offset for result in results] == list(range(50)), "in one batch, in order"
        assert len({result.message_id for result in results}) == 50
        assert [result for _, result in told] == results
        with pytest.raises(InvalidArgument, match="delay_level=3"):
            sender.put(Message(topic="Put", body=b"x", delay_level=3))
        left = sender.put(Message(topic="Put", body=b"left"))
        sender.close()
        assert left.result(timeout=0).queue_offset == 50
        with pytest.raises(ClientClosed):
            sender.put(Message(topic="Put", body=b"too late"))
        with started.pull_consumer(first("putted"), {"Put": "*"}) as consumer:
            got = [next(consumer) for _ in range(51)]
    assert [message.body for message in got] == [*(b"%d" % number for number in range(50)), b"left"]
    assert [message.message_id for message in got[:50]] == [result.message_id for result in results]


def test_an_asyncio_producer_sends_what_lingers_by_itself_and_at_the_end(
    nameserver: Any, created: Callable[..., None]
) -> None:
    created("AsyncPut", queues=4)

    async def main() -> list[SendResult]:
        async with routekeeper.client.aio.Client(settings(nameserver)) as started:
            async with started.producer(ProducerConfig(group="pg", linger_s=0.01)) as sender:
                early = [
                    await sender.put(Message(topic="AsyncPut", body=b"%d" % number), select=by_hash("one"))
                    for number in range(2000)
                ]
                results = await asyncio.gather(*early)
                assert len({result.queue for result in results}) == 1
                offsets = [result.queue_offset for result in results]
                assert offsets == sorted(offsets), "in the order in which they were put"
            late = started.producer(ProducerConfig(group="pg", linger_s=30.0))
            last = await late.put(Message(topic="AsyncPut", body=b"last"))
        return [*results, last.result()]

    assert len({result.message_id for result in asyncio.run(main())}) == 2001


def test_a_failed_batch_is_told_to_each_message(new_peer: Any, answers: Any, route_body: Any) -> None:
    broker = new_peer(lambda request: request.reply(14, remark="no room"))
    namesrv = new_peer(answers({"T": route_body(broker_a=broker.addr)}))
    with Client(ClientConfig(nameservers=(namesrv.addr,))) as started:
        sender = started.producer(ProducerConfig(group="pg", retry_times=0))
        errors: list[RemotingError | None] = []
        futures = [
            sender.put(Message(topic="T", body=b"x"), on_delivery=lambda error, _: errors.append(error))
            for _ in range(3)
        ]
        sender.flush()
        for future in futures:
            with pytest.raises(SendNotApplied, match="no room"):
                future.result(timeout=0)
        assert len(errors) == 3


def test_put_waits_for_room(new_peer: Any, answers: Any, route_body: Any) -> None:
    answer = threading.Event()

    def slow(request: Any) -> Any:
        async def later() -> Any:
            await asyncio.to_thread(answer.wait, 30)
            return request.reply(ext_fields={"msgId": "0" * 32, "queueId": "0", "queueOffset": "0"})

        return later()

    broker = new_peer(slow)
    namesrv = new_peer(answers({"T": route_body(broker_a=broker.addr)}))
    with Client(ClientConfig(nameservers=(namesrv.addr,))) as started:
        config = ProducerConfig(
            group="pg",
            linger_s=0.0,
            batch_size=1000,
            message_size_max=1000,
            buffer_size=2500,
            send_timeout_s=30.0,
        )
        sender = started.producer(config)
        for _ in range(2):
            sender.put(Message(topic="T", body=b"x" * 900))
        third = threading.Thread(target=lambda: sender.put(Message(topic="T", body=b"x" * 900)))
        third.start()
        third.join(timeout=0.3)
        assert third.is_alive(), "no room yet"
        answer.set()
        third.join(timeout=20)
        assert not third.is_alive()


# Several admins, producers and pull consumers of one program ---------------------------------------


def test_both_admins_have_every_operation() -> None:
    operations = {name for name in vars(AdminOperations) if not name.startswith("_")}
    for part in (routekeeper.client.aio_parts.Admin, routekeeper.client.blocking_parts.Admin):
        assert {name for name in vars(part) if not name.startswith("_")} - {"core"} == operations


def test_admin_answers_without_run(nameserver: Any, broker: Any) -> None:
    with Client(settings(nameserver)) as started:
        assert "broker-a" in Admin(started).cluster_info().broker_addr_table

    async def main() -> bool:
        async with routekeeper.client.aio.Client(settings(nameserver)) as started:
            return (
                "broker-a" in (await routekeeper.client.aio.Admin(started).cluster_info()).broker_addr_table
            )

    assert asyncio.run(main())


def test_the_last_producer_of_a_group_says_farewell(new_peer: Any, answers: Any, route_body: Any) -> None:
    peer = new_peer()
    routes = answers({"T": route_body(broker_a=peer.addr)})
    peer.answer = routes
    with Client(ClientConfig(nameservers=(peer.addr,))) as started:
        started.run(started.core.directory.refresh("T"))
        one, two = started.producer("pg"), started.producer("pg")
        one.close()
        one.close()
        assert 35 not in peer.codes()
        two.close()
        assert peer.codes().count(35) == 1
    assert peer.codes().count(35) == 1


@pytest.mark.slow
def test_an_asyncio_pull_consumer_seeks_pauses_commits_and_unsubscribes(
    nameserver: Any, created: Callable[..., None]
) -> None:
    created("Steered")
    fill(nameserver, "Steered", [b"%d" % number for number in range(6)])
    queue = MessageQueue(topic="Steered", broker_name="broker-a", queue_id=0)

    async def main() -> None:
        async with routekeeper.client.aio.Client(settings(nameserver)) as started:
            group = first("steering", auto_commit=False)
            async with started.pull_consumer(group, {"Steered": "*"}) as consumer:

                async def bodies(count: int) -> list[bytes]:
                    found: list[bytes] = []
                    while len(found) < count:
                        polled = await consumer.poll(count=count - len(found), timeout_s=30.0)
                        assert polled
                        found += [message.body for message in polled]
                    return found

                assert await bodies(2) == [b"0", b"1"]
                await consumer.seek(queue, 4)
                assert await bodies(1) == [b"4"]
                await consumer.commit()
                assert await consumer.committed(queue) == 5
                await consumer.seek(queue, 1)
                assert await bodies(1) == [b"1"]
                assert await consumer.committed(queue) == 5, "only a commit is stored"
                assert (await consumer.min_offset(queue), await consumer.max_offset(queue)) == (0, 6)
                consumer.pause(queue)
                assert await consumer.poll(timeout_s=0.3) == ()
                consumer.resume()
                assert await bodies(4) == [b"2", b"3", b"4", b"5"]
                assert queue in consumer.assigned
                await consumer.unsubscribe("Steered")
                await until(lambda: queue not in consumer.assigned, "it is released soon")
                await started.producer("pg").send(Message(topic="Steered", body=b"6"))
                assert await consumer.poll(timeout_s=0.3) == ()

    asyncio.run(main())


def test_asyncio_deliveries_are_told_to_who_asked(nameserver: Any, created: Callable[..., None]) -> None:
    created("Told")
    told: list[tuple[RemotingError | None, SendResult | None]] = []

    def tell(error: RemotingError | None, result: SendResult | None) -> None:
        told.append((error, result))

    def fail(error: RemotingError | None, result: SendResult | None) -> None:
        told.append((error, result))
        raise RuntimeError("the callback's own fault, which holds up nobody")

    async def main() -> None:
        async with routekeeper.client.aio.Client(settings(nameserver)) as started:
            producer = started.producer(ProducerConfig(group="pg", linger_s=0.01))
            futures = [
                await producer.put(Message(topic="Told", body=b"%d" % number), on_delivery=call)
                for number, call in enumerate((tell, fail, tell))
            ]
            await producer.flush()
            assert all(future.done() for future in futures)
            results = [future.result() for future in futures]
            assert told == [(None, result) for result in results]
            told.clear()
            lost = await producer.put(Message(topic="%DLQ%none", body=b"x"), on_delivery=tell)
            await producer.flush()
            ((error, result),) = told
            assert result is None
            assert isinstance(error, RemotingError)
            assert lost.exception() is error

    asyncio.run(main())


@pytest.mark.faults
def test_a_fork_is_noticed_by_an_asyncio_client(nameserver: Any, created: Callable[..., None]) -> None:
    created("ForkedLoop")

    async def main() -> bytes:
        async with routekeeper.client.aio.Client(settings(nameserver)) as started:
            sender = started.producer("pg")
            await sender.send(Message(topic="ForkedLoop", body=b"before"))
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    await sender.send(Message(topic="ForkedLoop", body=b"in the child"))
                    os.write(writer, b"sent")
                except ForkedClient:
                    await started.close()
                    os.write(writer, b"noticed")
                except BaseException as error:
                    os.write(writer, repr(error).encode())
                finally:
                    os._exit(0)
            await asyncio.to_thread(os.waitpid, child, 0)
            os.close(writer)
            with open(reader, "rb") as pipe:
                seen = pipe.read()
            assert (await sender.send(Message(topic="ForkedLoop", body=b"after"))).queue_offset >= 0
            return seen

    assert asyncio.run(main()) == b"noticed"


@pytest.mark.faults
def test_a_fork_is_noticed_and_the_parent_is_not_disturbed(
    nameserver: Any, created: Callable[..., None]
) -> None:
    created("Forked")
    with Client(settings(nameserver)) as started:
        sender = started.producer("pg")
        sender.send(Message(topic="Forked", body=b"before"))
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                sender.send(Message(topic="Forked", body=b"in the child"))
                os.write(writer, b"sent")
            except ForkedClient:
                started.close()
                os.write(writer, b"noticed")
            except BaseException as error:
                os.write(writer, repr(error).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.close(writer)
        with open(reader, "rb") as pipe:
            assert pipe.read() == b"noticed"
        assert sender.send(Message(topic="Forked", body=b"after")).queue_offset >= 0
