"""Producers, consumers and mqadmin with our own nameserver and broker as processes."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import routekeeper.client.aio
from routekeeper.bench.timers import divide_periods
from routekeeper.client.blocking import Client, PushConsumer
from routekeeper.client.config import ClientConfig, ProducerConfig
from routekeeper.client.consumer import ConsumeFrom, ConsumerConfig
from routekeeper.client.producer import Message, SendStatus, by_hash
from routekeeper.client.queue_reader import ReceivedMessage, TopicReader
from routekeeper.remoting.bodies import MessageQueue
from tests.client.conftest import Sink, create_topic, is_routed
from tests.client.mqadmin import mqadmin

pytestmark = pytest.mark.timeout(200)


def config(nameserver: Any, **values: Any) -> ClientConfig:
    return divide_periods(ClientConfig(nameservers=(nameserver.addr,), **values), 10)


@pytest.mark.slow
def test_every_kind_of_send_arrives_at_a_blocking_consumer(
    nameserver: Any, broker: Any, eventually: Callable[..., None]
) -> None:
    with Client(config(nameserver)) as client:
        create_topic(client, broker, "Kinds", queues=4)
        sink = Sink()
        consumer = client.consume(
            ConsumerConfig(group="kinds", consume_from=ConsumeFrom.FIRST_OFFSET),
            {"Kinds": "TagA || TagB"},
            sink,
        )
        producer = client.producer(ProducerConfig(group="pg"))
        big = bytes(range(256)) * 40
        result = producer.send(
            Message(topic="Kinds", body=b"sync", tags="TagA", keys=["k"], properties={"p": "v"})
        )
        assert result.status is SendStatus.SEND_OK
        producer.send(Message(topic="Kinds", body=big, tags="TagB"))
        producer.send(Message(topic="Kinds", body=b"unwanted", tags="TagC"))
        producer.send_batch([Message(topic="Kinds", body=b"batch%d" % i, tags="TagA") for i in range(5)])
        producer.send_oneway(Message(topic="Kinds", body=b"oneway", tags="TagA"))
        assert producer.send_async(Message(topic="Kinds", body=b"async", tags="TagA")).result(timeout=10)
        ordered = [
            producer.send(Message(topic="Kinds", body=b"ordered%d" % i, tags="TagA"), select=by_hash("key"))
            for i in range(5)
        ]
        assert len({sent.queue for sent in ordered}) == 1
        assert [sent.queue_offset for sent in ordered] == sorted(sent.queue_offset for sent in ordered)

        wanted = {b"sync", big, b"oneway", b"async"}
        wanted |= {b"batch%d" % i for i in range(5)} | {b"ordered%d" % i for i in range(5)}
        eventually(lambda: set(sink.bodies()) >= wanted, "all messages consumed")
        assert Counter(sink.bodies()) == dict.fromkeys(wanted, 1)
        first = next(message for message in sink.messages if message.body == b"sync")
        assert (first.topic, first.tags, first.keys, first.message_id) == (
            "Kinds",
            "TagA",
            ("k",),
            result.message_id,
        )
        assert first.properties["p"] == "v"
        assert first.queue == result.queue
        eventually(
            lambda: {queue.topic for queue in consumer.assigned} == {"Kinds", "%RETRY%kinds"},
            "the group's retry topic is shared out, too",
        )


def test_a_topic_that_nobody_created_appears_with_its_first_message(
    nameserver: Any, broker: Any, eventually: Callable[..., None]
) -> None:
    with Client(config(nameserver)) as client:
        result = client.producer(ProducerConfig(group="pg")).send(Message(topic="FromNothing", body=b"x"))
        assert result.status is SendStatus.SEND_OK
        eventually(lambda: is_routed(client, "FromNothing"), "the route of the created topic")
        assert client.route("FromNothing").queue_datas[0].write_queue_nums == 4


def test_what_a_consumer_stored_is_not_delivered_again(
    nameserver: Any, broker: Any, eventually: Callable[..., None]
) -> None:
    group = ConsumerConfig(group="stored", consume_from=ConsumeFrom.FIRST_OFFSET)
    with Client(config(nameserver)) as client:
        create_topic(client, broker, "Stored", queues=2)
        producer = client.producer(ProducerConfig(group="pg"))
        first, second = Sink(), Sink()
        consumer = client.consume(group, {"Stored": "*"}, first)
        for number in range(20):
            producer.send(Message(topic="Stored", body=b"before%d" % number))
        eventually(lambda: len(set(first.bodies())) == 20, "the first 20 messages")
        consumer.close()
    with Client(config(nameserver)) as client:
        client.consume(group, {"Stored": "*"}, second)
        client.producer(ProducerConfig(group="pg")).send(Message(topic="Stored", body=b"after"))
        eventually(lambda: b"after" in second.bodies(), "the message sent afterwards")
    assert second.bodies() == [b"after"]


def test_members_of_a_group_share_the_queues_and_take_over(
    nameserver: Any, broker: Any, eventually: Callable[..., None]
) -> None:
    group = ConsumerConfig(group="shared", consume_from=ConsumeFrom.FIRST_OFFSET)
    with Client(config(nameserver)) as one:
        create_topic(one, broker, "Shared", queues=4)
        sinks = Sink(), Sink()
        first = one.consume(group, {"Shared": "*"}, sinks[0])

        def mine(consumer: PushConsumer) -> set[MessageQueue]:
            return {queue for queue in consumer.assigned if queue.topic == "Shared"}

        eventually(lambda: len(mine(first)) == 4, "all queues at the only member")
        with Client(config(nameserver)) as two:
            second = two.consume(group, {"Shared": "*"}, sinks[1])
            eventually(lambda: len(mine(first)) == 2 == len(mine(second)), "two queues each")
            assert not mine(first) & mine(second)
            producer = one.producer(ProducerConfig(group="pg"))
            for number in range(40):
                producer.send(Message(topic="Shared", body=b"%d" % number))
            eventually(
                lambda: len({*sinks[0].bodies(), *sinks[1].bodies()}) == 40, "all messages at one of the two"
            )
            assert sinks[0].bodies()
            assert sinks[1].bodies()
        eventually(lambda: len(mine(first)) == 4, "all queues back at the remaining member")


@pytest.mark.slow
def test_a_message_whose_listener_fails_comes_back(nameserver: Any, broker: Any) -> None:
    async def run() -> list[tuple[str, int, bool]]:
        got: list[ReceivedMessage] = []
        again = asyncio.Event()

        async def listen(batch: Sequence[ReceivedMessage]) -> None:
            got.extend(batch)
            if got[-1].reconsume_times == 0:
                raise RuntimeError("not this time")
            again.set()

        async with routekeeper.client.aio.Client(config(nameserver)) as started:
            producer = started.producer(ProducerConfig(group="pg"))
            await producer.send(Message(topic="Failing", body=b"x" * 6000, tags="T"))
            await started.consume(
                ConsumerConfig(group="failing", consume_from=ConsumeFrom.FIRST_OFFSET),
                {"Failing": "*"},
                listen,
            )
            async with asyncio.timeout(60):
                await again.wait()
        return [(message.topic, message.reconsume_times, message.body == b"x" * 6000) for message in got]

    assert asyncio.run(run()) == [("Failing", 0, True), ("Failing", 1, True)]


def test_an_orderly_consumer_sees_each_queue_in_order(
    nameserver: Any, broker: Any, eventually: Callable[..., None]
) -> None:
    with Client(config(nameserver)) as client:
        create_topic(client, broker, "Orderly", queues=2)
        producer = client.producer(ProducerConfig(group="pg"))
        for number in range(30):
            producer.send(Message(topic="Orderly", body=b"%d" % number), select=by_hash(str(number % 2)))
        sink = Sink()
        client.consume(
            ConsumerConfig(group="orderly", consume_from=ConsumeFrom.FIRST_OFFSET, orderly=True, workers=4),
            {"Orderly": "*"},
            sink,
        )
        eventually(lambda: len(set(sink.bodies())) == 30, "all messages consumed")
    for parity in (0, 1):
        seen = [int(message.body) for message in sink.messages if int(message.body) % 2 == parity]
        assert seen == sorted(seen)


def test_a_pull_consumer_reads_from_where_it_wants(nameserver: Any, broker: Any) -> None:
    async def run() -> None:
        async with routekeeper.client.aio.Client(config(nameserver)) as started:
            producer = started.producer(ProducerConfig(group="pg"))
            with Client(config(nameserver)) as blocking:
                create_topic(blocking, broker, "Pulled")
            for number in range(10):
                await producer.send(Message(topic="Pulled", body=b"%d" % number, tags=f"T{number % 2}"))
            consumer = TopicReader(started.core, "puller")
            (queue,) = await started.run(consumer.queues("Pulled"))
            assert await started.run(consumer.reader.min_offset(queue)) == 0
            assert await started.run(consumer.reader.max_offset(queue)) == 10
            result = await started.run(consumer.pull(queue, 4, expression="T1"))
            assert [message.body for message in result.messages] == [b"5", b"7", b"9"]
            assert result.next_offset == 10
            nothing = await started.run(consumer.pull(queue, 10))
            assert (nothing.messages, nothing.next_offset) == ((), 10)
            await started.run(consumer.reader.commit(queue, 7))
            assert await started.run(consumer.reader.committed(queue)) == 7

    asyncio.run(run())


def test_mqadmin_works_against_our_own_servers(
    nameserver: Any, broker: Any, eventually: Callable[..., None]
) -> None:
    cluster = "DefaultCluster"
    made = ("updateTopic", "-c", cluster, "-t", "Admin", "-r", "2", "-w", "2")
    code, out, err = mqadmin(*made, namesrv=nameserver.addr)
    assert (code, err) == (0, "")
    assert f"create topic to {broker.addr} success." in out
    with Client(config(nameserver)) as started:
        eventually(lambda: is_routed(started, "Admin"), "the route of the new topic")
    for argv, text in (
        (["topicRoute", "-t", "Admin"], '"writeQueueNums":2'),
        (["topicRoute", "-t", "Admin", "-l"], "{0=" + broker.addr + "}"),
        (["topicList"], "Admin"),
        (["clusterList"], broker.addr),
        (["clusterList", "-m"], "broker-a"),
        (["sendMessage", "-t", "Admin", "-p", "hello", "-k", "k1", "-c", "TagA"], "SEND_OK"),
        (["topicStatus", "-t", "Admin"], "broker-a"),
        (["consumeMessage", "-t", "Admin"], "BODY: hello"),
        (["topicList", "-c"], "DefaultCluster        Admin"),
        (
            ["updateKvConfig", "-s", "NS", "-k", "a", "-v", "b"],
            "create or update kv config to namespace success.",
        ),
        (["deleteKvConfig", "-s", "NS", "-k", "a"], "delete kv config from namespace success."),
        (["wipeWritePerm", "-b", "broker-a"], f"in name server[{nameserver.addr}] OK, "),
        (["addWritePerm", "-b", "broker-a"], f"in name server[{nameserver.addr}] OK, "),
        (["getNamesrvConfig"], "listenPort"),
        (
            ["updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true"],
            "update name server config success!",
        ),
        (["updateTopic", "-b", broker.addr, "-t", "Ordered", "-o", "true"], "orderConf=[broker-a:8]"),
        (["explainRoute", "-t", "Admin", "-a", nameserver.facts["http"]], "Admin"),
        (["deleteTopic", "-c", cluster, "-t", "Admin"], "delete topic [Admin] from NameServer success."),
    ):
        code, out, err = mqadmin(*argv, namesrv=nameserver.addr)
        assert (code, err) == (0, ""), argv
        assert text in out, argv
    code, _, err = mqadmin("topicRoute", "-t", "Admin", namesrv=nameserver.addr)
    assert code == 1
    assert "CODE: 17" in err
    code, out, _ = mqadmin("clusterList", "-o", "json", namesrv=nameserver.addr)
    assert json.loads(out)[0]["brokerName"] == "broker-a"


GREENLETS = """
from gevent import monkey
monkey.patch_all()
import sys
import gevent
from routekeeper.client.blocking import Client
from routekeeper.client.config import ClientConfig, ProducerConfig
from routekeeper.client.producer import Message

class Timing:
    count = 0
    def before_request(self, remote, request):
        return request
    def after_response(self, remote, request, response):
        Timing.count += 1

addr, topic = sys.argv[1:]
clients = [Client(ClientConfig(nameservers=(addr,)), hooks=(Timing(),)) for _ in range(20)]

def work(client):
    producer = client.producer(ProducerConfig(group="pg"))
    for _ in range(10):
        assert client.route(topic, nameserver=addr).queue_datas
        producer.send(Message(topic=topic, body=b"x"))

jobs = [gevent.spawn(work, client) for client in clients for _ in range(2)]
gevent.joinall(jobs, timeout=60, raise_error=True)
assert all(job.successful() for job in jobs)
for client in clients:
    client.close()
print(Timing.count)
"""


@pytest.mark.slow
def test_many_clients_of_one_process_work_under_gevents_patching(nameserver: Any, broker: Any) -> None:
    pytest.importorskip("gevent", reason="gevent comes with the bench extra")
    with Client(config(nameserver)) as client:
        create_topic(client, broker, "Greenlets", queues=4)
    run = subprocess.run(
        [sys.executable, "-c", GREENLETS, nameserver.addr, "Greenlets"],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    # The process prints its number of requests. Each of 20 clients looks up the route once for its sends. In
    # each of 10 rounds, both greenlets of each client ask for the route and send one message.
    assert int(run.stdout) >= 2 * 10 * 2 * 20 + 20


@pytest.mark.slow
def test_ctrl_c_ends_a_long_mqadmin_command_with_one_line(nameserver: Any, broker: Any) -> None:
    # A shell makes background processes ignore SIGINT, and these tests may be such a process. So restore the
    # handler that a program in a terminal has.
    start = "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); " + (
        "runpy.run_module('routekeeper.client.mqadmin', run_name='__main__', alter_sys=True)"
    )
    command = [sys.executable, "-u", "-c", start, "clusterList", "-n", nameserver.addr, "-i", "60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()  # now mqadmin has begun to print its table
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert said == "mqadmin clusterList: interrupted\n"
    assert process.returncode == 130
