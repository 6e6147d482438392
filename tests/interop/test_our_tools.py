"""Tests of our ``mqadmin`` and client library at Apache's nameserver and broker."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from routekeeper.bench.timers import divide_periods
from routekeeper.client import aio, blocking
from routekeeper.client.config import ClientConfig
from routekeeper.client.consumer import ConsumeFrom, ConsumerConfig, ConsumeResult
from routekeeper.client.producer import Message, SendStatus
from routekeeper.client.queue_reader import ReceivedMessage
from routekeeper.remoting.codes import HeaderCodec

from .apache import START_S, Apache, ApacheFailure, ask, wait_until
from .ours import CLUSTER, ApacheDeployment, our_mqadmin, retried_by_java, route, routed_topic
from .patient import patient, sender

pytestmark = pytest.mark.interop


# -- mqadmin ------------------------------------------------------------------------------------------------


class Tool:
    """Our mqadmin against one of the deployments with Apache's nameserver."""

    def __init__(self, deployment: ApacheDeployment) -> None:
        self.deployment = deployment

    def __call__(self, *args: str) -> str:
        """Run a subcommand that must succeed; return what it printed."""
        result = our_mqadmin(*args, namesrvs=self.deployment.addrs)
        assert (result.returncode, result.stderr) == (0, ""), result
        return result.stdout

    def refused(self, *args: str) -> str:
        """Run a subcommand that must fail; return its error text."""
        result = our_mqadmin(*args, namesrvs=self.deployment.addrs)
        assert result.returncode == 1, result
        assert result.stderr.startswith(f"mqadmin {args[0]}: ")
        assert "Traceback" not in result.stderr
        return result.stderr


@pytest.fixture
def tool(apache_deployment: ApacheDeployment) -> Tool:
    return Tool(apache_deployment)


def test_our_mqadmin_makes_fills_reads_and_deletes_a_topic(tool: Tool) -> None:
    broker, namesrv = tool.deployment.broker, tool.deployment.namesrv.addr
    topic = "OurAdminTopic"
    assert "TOPIC_NOT_EXIST" in (said := tool.refused("topicRoute", "-t", topic)) or "17" in said

    created = tool("updateTopic", "-b", broker.addr, "-t", topic, "-r", "2", "-w", "2")
    assert created.startswith(f"create topic to {broker.addr} success.\n")
    wait_until(lambda: route(namesrv, topic) is not None, "the topic's route")
    (queues,) = (route(namesrv, topic) or {})["queueDatas"]
    assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (2, 2, 6)

    shown = json.loads(tool("topicRoute", "-t", topic, "-o", "json"))
    assert shown["queueDatas"] == [queues]
    assert f'"brokerAddrs":{{0:"{broker.addr}"' in tool("topicRoute", "-t", topic)
    assert topic in tool("topicList").split()
    listed = [line.split() for line in tool("clusterList").splitlines()]
    version = "V" + tool.deployment.release.replace(".", "_")
    assert [CLUSTER, broker.name, "0", broker.addr, version] in [row[:5] for row in listed]

    bodies = ["first body", "zweiter Körper", "third"]
    for number, body in enumerate(bodies):
        sent = tool("sendMessage", "-t", topic, "-p", body, "-k", f"key{number}", "-c", "TagA")
        assert sent.splitlines()[1].split()[:3][0::2] == [broker.name, "SEND_OK"]
    consumed = tool("consumeMessage", "-t", topic)
    assert sorted(re.findall(r" BODY: (.*)", consumed)) == sorted(bodies)

    status = [line.split() for line in tool("topicStatus", "-t", topic).splitlines()[1:]]
    assert sum(int(row[3]) for row in status if row[:1] == [broker.name]) == len(bodies)

    deleted = tool("deleteTopic", "-c", CLUSTER, "-t", topic)
    assert deleted == (
        f"delete topic [{topic}] from cluster [{CLUSTER}] success.\n"
        f"delete topic [{topic}] from NameServer success.\n"
    )
    assert route(namesrv, topic) is None
    assert f'"{topic}"'.encode() not in ask(broker.addr, 21)[2]


def test_our_mqadmin_changes_settings_keys_and_permissions(tool: Tool) -> None:
    namesrv, broker = tool.deployment.namesrv.addr, tool.deployment.broker
    kv = {"namespace": "OURS", "key": "key one"}
    printed = tool("updateKvConfig", "-s", "OURS", "-k", "key one", "-v", "a=b c é")
    assert printed == "create or update kv config to namespace success.\n"
    assert ask(namesrv, 101, kv)[1]["extFields"] == {"value": "a=b c é"}
    tool("deleteKvConfig", "-s", "OURS", "-k", "key one")
    assert ask(namesrv, 101, kv)[0] == 22

    def perms() -> set[int]:
        found = route(namesrv, "SELF_TEST_TOPIC")
        assert found is not None
        return {row["perm"] for row in found["queueDatas"] if row["brokerName"] == broker.name}

    def stays_wiped() -> bool:
        wiped = tool("wipeWritePerm", "-b", broker.name)
        assert wiped.startswith(f"wipe write perm of broker[{broker.name}] in name server[{namesrv}] OK, ")
        return perms() == {4}

    assert perms() == {6}
    # After a change of a topic, Apache's broker registers again, and this registration restores the
    # permission. Such a registration may still arrive because of an earlier test. Registrations without a
    # change restore nothing.
    wait_until(stays_wiped, "the topic has lost its write permission", timeout_s=30.0)
    added = tool("addWritePerm", "-b", broker.name)
    assert added.startswith(f"add write perm of broker[{broker.name}] in name server[{namesrv}] OK, ")
    assert perms() == {6}

    before = json.loads(tool("getNamesrvConfig", "-o", "json"))[namesrv]
    assert before["listenPort"] == namesrv.rpartition(":")[2]
    tool("updateNamesrvConfig", "-k", "productEnvName", "-v", "ours")
    after = json.loads(tool("getNamesrvConfig", "-o", "json"))[namesrv]
    assert after == before | {"productEnvName": "ours"}
    # 4.9.7 and 5.3.3 refuse changes of this key since CVE-2023-37582.
    tool.refused("updateNamesrvConfig", "-k", "configStorePath", "-v", "/nowhere")


@pytest.mark.parametrize("apache_deployment", ["5.3.3"], indirect=True)  # our output has the layout of 5.x
def test_our_mqadmin_prints_what_apaches_prints(tool: Tool, apaches: dict[str, Apache]) -> None:
    apache, topic = apaches["5.3.3"], "SameText"
    for broker in (tool.deployment.broker, tool.deployment.ours):
        routed_topic(tool.deployment.addrs, broker.addr, topic, queues=2)
        tool("sendMessage", "-t", topic, "-p", "the same", "-b", broker.name, "-i", "1")

    def same(*args: str, blur: Callable[[str], str] = str) -> None:
        theirs = apache.admin(*args, namesrvs=tool.deployment.addrs).stdout
        assert sorted(blur(tool(*args)).splitlines()) == sorted(blur(theirs).splitlines())

    # Run consumeMessage first: Apache's tool then creates a retry topic and never deletes it. If this topic
    # were created between our topicList and Apache's topicList, the two outputs would differ.
    same("consumeMessage", "-t", topic)
    same("topicRoute", "-t", topic, "-l")
    same("topicList")
    same("topicStatus", "-t", topic, blur=without_rates)
    same("getNamesrvConfig")
    same("clusterList", blur=without_load)


def without_rates(text: str) -> str:
    """Replace each fraction by "#", and several successive spaces by one space.

    Fractions change all the time, and the number of spaces depends on their width.
    """
    return re.sub(r" +", " ", re.sub(r"(?<![\d.])\d+\.\d+(?![\d.])", "#", text))


def without_load(text: str) -> str:
    """Replace the parts of clusterList's lines that the broker's work changes between two runs.

    These parts are fractions, queue lengths, waiting times, the delay of the timer, and the time of the page
    cache lock.
    """
    text = re.sub(r"\b\d+,\d+ms\b", "#,#ms", without_rates(text))
    text = re.sub(r"\b\d+-\d+(?=\(#w)", "#-#", text)
    return re.sub(r"(?<=\(#w, #, #\) )\d+", "#", text)


# -- client library -----------------------------------------------------------------------------------------

COUNT = 300


def quick(deployment: ApacheDeployment, codec: HeaderCodec = HeaderCodec.JSON) -> ClientConfig:
    """Return settings with which a client fetches routes every 3 s, to find a new retry topic soon."""
    return divide_periods(patient(deployment.addrs, codec=codec), 10)


class Inbox:
    """Listener that records its messages. It refuses every tenth message once, to get the message again."""

    def __init__(self) -> None:
        self.bodies: Counter[str] = Counter()
        self.retried: set[str] = set()
        self.came_back: set[str] = set()
        self._lock = threading.Lock()

    def take(self, messages: Sequence[ReceivedMessage]) -> ConsumeResult:
        with self._lock:
            for message in messages:
                body = message.body.decode()
                if body.endswith("0") and body not in self.retried:
                    self.retried.add(body)
                    return ConsumeResult.RECONSUME_LATER
                if message.reconsume_times:
                    assert message.reconsume_times == 1
                    self.came_back.add(body)
                assert message.tags == "TagA"
                assert message.properties["number"] == body
                self.bodies[body] += 1
        return ConsumeResult.SUCCESS

    def full(self) -> bool:
        return len(self.bodies) >= COUNT

    def wait(self) -> None:
        """Return once all messages have been received.

        On timeout fail with the numbers of the missing messages.
        """
        try:
            wait_until(self.full, "all messages", START_S)
        except ApacheFailure as failure:
            missing = sorted({str(number) for number in range(COUNT)} - set(self.bodies), key=int)
            given_back = sorted(self.retried, key=int)
            raise ApacheFailure(f"{failure}; missing {missing}, given back {given_back}") from None

    def check(self) -> None:
        assert set(self.bodies) == {str(number) for number in range(COUNT)}
        assert set(self.bodies.values()) == {1}, "nothing twice: no connection broke and no queue moved"
        assert self.came_back == {str(number) for number in range(0, COUNT, 10)}


def numbered(topic: str) -> list[Message]:
    """Return COUNT messages that match the consumer's subscription, and 20 messages that do not match."""
    return [
        Message(
            topic=topic,
            body=str(number).encode(),
            tags="TagA" if number < COUNT else "TagB",
            keys=(f"key{number}",),
            properties={"number": str(number)},
        )
        for number in range(COUNT + 20)
    ]


def consumer_config(group: str) -> ConsumerConfig:
    return ConsumerConfig(group=group, consume_from=ConsumeFrom.FIRST_OFFSET)


def test_our_asyncio_client_works_with_apache(apache_deployment: ApacheDeployment) -> None:
    topic, inbox = "OurAio", Inbox()

    async def listen(messages: Sequence[ReceivedMessage]) -> ConsumeResult:
        return inbox.take(messages)

    async def run() -> None:
        async with aio.Client(quick(apache_deployment)) as client:
            producer = client.producer(sender("our_aio_producer"))
            messages = numbered(topic)
            # Send the first messages one at a time, because the broker first has to create the topic.
            results = [await producer.send(message) for message in messages[:20]]
            results += await asyncio.gather(*(producer.send(message) for message in messages[20:200]))
            assert {result.status for result in results} == {SendStatus.SEND_OK}
            assert {result.queue.broker_name for result in results} == {apache_deployment.broker.name}
            batch = await producer.send_batch(messages[200:300])
            assert len(batch.message_id.split(",")) == 100
            for message in messages[300:]:
                await producer.send_oneway(message)
            consumer = await client.consume(consumer_config("our_aio_group"), {topic: "TagA"}, listen)
            await asyncio.to_thread(inbox.wait)
            await consumer.close()

    asyncio.run(run())
    inbox.check()


def test_our_blocking_client_works_with_apache_in_binary(apache_deployment: ApacheDeployment) -> None:
    topic, inbox = "OurBlocking", Inbox()
    client = blocking.Client(quick(apache_deployment, HeaderCodec.ROCKETMQ))
    try:
        producer = client.producer(sender("our_blocking_producer"))
        messages = numbered(topic)
        results = [producer.send(message) for message in messages[:20]]
        results += [future.result(30) for future in [producer.send_async(m) for m in messages[20:200]]]
        assert {result.status for result in results} == {SendStatus.SEND_OK}
        producer.send_batch(messages[200:300])
        for message in messages[300:]:
            producer.send_oneway(message)
        consumer = client.consume(consumer_config("our_blocking_group"), {topic: "TagA"}, inbox.take)
        inbox.wait()
        consumer.close()
    finally:
        client.close()
    inbox.check()


def test_large_bodies_survive_both_ways(
    apache_deployment: ApacheDeployment, apaches: dict[str, Apache]
) -> None:
    """Java's consumer must decompress bodies that our producer compressed (zlib, for bodies above 4 KiB)."""
    topic = routed_topic(apache_deployment.addrs, apache_deployment.broker.addr, "OurLarge")
    client = blocking.Client(quick(apache_deployment))
    try:
        producer = client.producer(sender("our_large_producer"))
        for number in range(20):
            producer.send(Message(topic=topic, body=str(number).encode().ljust(20_000), tags="TagI"))
    finally:
        client.close()
    apache = apaches[apache_deployment.release]
    assert apache.consume(apache_deployment.addrs, topic, "java_large_group", 20)["distinct"] == "20"


# -- our broker at Apache's nameserver ----------------------------------------------------------------------


def test_our_broker_serves_java_clients_led_by_apaches_nameserver(
    apache_deployment: ApacheDeployment, apaches: dict[str, Apache]
) -> None:
    apache, ours, addrs = apaches[apache_deployment.release], apache_deployment.ours, apache_deployment.addrs
    topic = routed_topic(addrs, ours.addr, "OnOurs")
    found = route(addrs[0], topic)
    assert found is not None
    assert [data["brokerAddrs"] for data in found["brokerDatas"]] == [{"0": ours.addr}]
    rows = [line.split() for line in apache.admin("clusterList", namesrvs=addrs).stdout.splitlines()]
    assert [CLUSTER, ours.name, "0", ours.addr] in [row[:4] for row in rows]

    sent = apache.produce(addrs, topic, 500)
    assert sent["status SEND_OK"] == "500", sent
    assert apache.consume(addrs, topic, "on_ours", 500)["distinct"] == "500"

    consumed = retried_by_java(apache, addrs, ours.addr, "retried_on_ours")
    assert (consumed["distinct"], consumed["redelivered"]) == ("100", "10"), consumed
