"""Our client and mqadmin against Apache's own nameserver and broker."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from typing import Any

import pytest

import routekeeper.client.aio
from routekeeper.bench.timers import divide_periods
from routekeeper.client.blocking import Client, PushConsumer
from routekeeper.client.config import TlsConfig
from routekeeper.client.consumer import ConsumeFrom, ConsumerConfig
from routekeeper.client.mqadmin.__main__ import main
from routekeeper.client.producer import Message, SendStatus, by_hash
from routekeeper.client.queue_reader import ReceivedMessage, TopicReader

from .apache import wait_until
from .ours import ApacheDeployment
from .patient import patient, sender

pytestmark = pytest.mark.interop


@pytest.fixture
def servers(apache_deployment: ApacheDeployment) -> tuple[str, str]:
    """Return the addresses of Apache's nameserver and of the broker that is registered there."""
    return apache_deployment.namesrv.addr, apache_deployment.broker.addr


def mqadmin(namesrv: str, *argv: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    code = main(argv, environment={"NAMESRV_ADDR": namesrv}, out=out, err=err)
    return code, out.getvalue(), err.getvalue()


def test_mqadmin_administers_apaches_servers(servers: tuple[str, str]) -> None:
    namesrv, broker = servers
    for argv, text in (
        (
            ["updateTopic", "-c", "DefaultCluster", "-t", "Admin", "-r", "2", "-w", "2"],
            f"create topic to {broker}",
        ),
        (["updateTopic", "-b", broker, "-t", "Ordered", "-o", "true"], "orderConf=[broker-a:8]"),
        (["clusterList"], broker),
        (["clusterList", "-m"], "broker-a"),
        (["topicList"], "Admin"),
        (["updateKvConfig", "-s", "NS", "-k", "a", "-v", "b"], "success"),
        (["deleteKvConfig", "-s", "NS", "-k", "a"], "success"),
        (["getNamesrvConfig"], "kvConfigPath"),
        (["updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true"], "success"),
        (["topicRoute", "-t", "Ordered", "-l"], "{0=" + broker + "}"),
        (["topicRoute", "-t", "Ordered"], '"orderTopicConf":"broker-a:8"'),
        (["sendMessage", "-t", "Admin", "-p", "hello", "-k", "k1", "-c", "TagA"], "SEND_OK"),
        (["topicStatus", "-t", "Admin"], "broker-a"),
        (["wipeWritePerm", "-b", "broker-a"], " OK, "),
        (["addWritePerm", "-b", "broker-a"], " OK, "),
        (["deleteTopic", "-c", "DefaultCluster", "-t", "Ordered"], "from NameServer success."),
    ):
        wait_until(lambda argv=argv, text=text: text in mqadmin(namesrv, *argv)[1], f"{argv} prints {text}")  # type: ignore[misc]
        if argv[0] == "topicStatus":
            code, out, err = mqadmin(namesrv, "consumeMessage", "-t", "Admin")
            assert (code, err) == (0, "")
            assert "BODY: hello" in out


def test_mqadmin_names_changes_that_apaches_servers_did_not_make(
    servers: tuple[str, str], apache_deployment: ApacheDeployment
) -> None:
    namesrv, broker = servers
    old = apache_deployment.release.startswith("4.")
    code, out, err = mqadmin(namesrv, "updateTopic", "-b", broker, "-t", "Kept", "-a", "+message.type=NORMAL")
    assert (code, "stored the topic without the attributes" in err) == (int(old), old), out + err
    wait_until(lambda: mqadmin(namesrv, "topicRoute", "-t", "Kept")[0] == 0, "the route")
    assert mqadmin(namesrv, "updateSubGroup", "-b", broker, "-g", "KeptGroup")[0] == 0
    reset = ("resetOffsetByTime", "-g", "KeptGroup", "-t", "Kept", "-s", "0", "-b", broker, "-q", "1")
    code, out, err = mqadmin(namesrv, *reset)
    assert (code, "would ignore -q" in err) == (int(old), old), out + err
    for argv, text in (
        (["updateBrokerConfig", "-b", broker, "-k", "noSuchKey", "-v", "1"], "no setting 'noSuchKey'"),
        (["updateBrokerConfig", "-b", broker, "-k", "fileReservedTime", "-v", "many"], "is '"),
        (["updateNamesrvConfig", "-k", "noSuchKey", "-v", "1"], "no setting 'noSuchKey'"),
        (["cloneGroupOffset", "-s", "NoGroup", "-d", "KeptGroup", "-t", "Kept"], "has no offsets of topic"),
    ):
        code, out, err = mqadmin(namesrv, *argv)
        assert (code, out) == (1, "")
        assert text in err
    for argv in (
        ["updateBrokerConfig", "-b", broker, "-k", "fileReservedTime", "-v", "073"],
        ["updateBrokerConfig", "-b", broker, "-k", "traceOn", "-v", "TRUE"],
        ["updateNamesrvConfig", "-k", "productEnvName", "-v", "kept"],
    ):
        code, out, err = mqadmin(namesrv, *argv)
        assert (code, err) == (0, "")
        assert "success" in out


def test_the_blocking_client_sends_and_pulls(servers: tuple[str, str]) -> None:
    namesrv, _ = servers
    with Client(patient([namesrv])) as started:
        producer = started.producer(sender("pg"))
        sent = [
            producer.send(Message(topic="Auto", body=b"x" * 6000), select=by_hash("one")) for _ in range(5)
        ]
        assert {result.status for result in sent} == {SendStatus.SEND_OK}
        producer.send_batch([Message(topic="Auto", body=b"b%d" % i) for i in range(3)], queue=sent[0].queue)
        consumer = TopicReader(started.core, "puller")

        def listed() -> int:
            return started.run(consumer.reader.max_offset(sent[0].queue)) - sent[0].queue_offset

        # Apache's broker acknowledges a message before consumers can read it from its queue.
        wait_until(lambda: listed() >= 8, "all that was sent is listed")
        assert listed() == 8
        result = started.run(consumer.pull(sent[0].queue, sent[0].queue_offset))
        assert [message.body for message in result.messages] == [b"x" * 6000] * 5 + [b"b0", b"b1", b"b2"]
        assert [message.message_id for message in result.messages[:5]] == [one.message_id for one in sent]


def test_the_push_consumer_gets_every_message_and_retries(servers: tuple[str, str]) -> None:
    namesrv, _ = servers

    async def run() -> tuple[set[str], dict[str, int]]:
        seen: dict[str, int] = {}
        done = asyncio.Event()
        wanted: set[str] = set()
        again: list[Any] = []

        async def listen(batch: Sequence[ReceivedMessage]) -> None:
            for message in batch:
                seen[message.message_id] = seen.get(message.message_id, 0) + 1
                if message.body == b"fails once" and message.reconsume_times == 0:
                    raise RuntimeError("not this time")
                if message.body == b"fails once":
                    again.append(message.topic)
            if again and wanted <= set(seen):
                done.set()

        async with routekeeper.client.aio.Client(divide_periods(patient([namesrv]), 10)) as started:
            producer = started.producer(sender("pg"))
            first = await producer.send(Message(topic="Pushed", body=b"fails once"))
            await started.consume(
                ConsumerConfig(group="pushed", consume_from=ConsumeFrom.FIRST_OFFSET), {"Pushed": "*"}, listen
            )
            sent = await asyncio.gather(
                *(producer.send(Message(topic="Pushed", body=b"%d" % number)) for number in range(1000))
            )
            wanted |= {result.message_id for result in sent} | {first.message_id}
            async with asyncio.timeout(90):
                await done.wait()
            assert again == ["Pushed"]
        return wanted, seen

    wanted, seen = asyncio.run(run())
    assert set(seen) == wanted
    assert sorted(seen.values()) == [1] * 1000 + [2]


def test_blocking_members_share_the_queues_as_soon_as_the_broker_says_so(servers: tuple[str, str]) -> None:
    namesrv, _ = servers
    seen: list[bytes] = []

    def listen(batch: Sequence[ReceivedMessage]) -> None:
        seen.extend(message.body for message in batch)

    group = ConsumerConfig(group="members", consume_from=ConsumeFrom.FIRST_OFFSET)
    with (
        Client(patient([namesrv])) as one,
        Client(patient([namesrv])) as two,
    ):
        producer = one.producer(sender("pg"))
        producer.send(Message(topic="Members", body=b"first"))
        first = one.consume(group, {"Members": "*"}, listen)

        def count(consumer: PushConsumer) -> int:
            return sum(queue.topic == "Members" for queue in consumer.assigned)

        wait_until(lambda: count(first) == 4, "all queues at the only member")
        second = two.consume(group, {"Members": "*"}, listen)
        # A member of the group looks for new members only every 20 s. Both members must share the queues
        # within 10 s: this shows that the broker notified the first member.
        wait_until(lambda: count(first) == 2 == count(second), "two queues each", 10.0)
        for number in range(200):
            producer.send(Message(topic="Members", body=b"%d" % number))
        wait_until(lambda: len(set(seen)) == 201, "all messages consumed")
        second.close()
        wait_until(lambda: count(first) == 4, "all queues back", 10.0)


def test_apaches_nameserver_is_asked_over_tls(apache_deployment: ApacheDeployment) -> None:
    # By default Apache's nameserver generates its own certificate, which no authority has signed: do not
    # check it.
    tls = TlsConfig(check="nothing")
    config = patient(apache_deployment.addrs, tls=tls)
    with Client(config=config) as client:
        assert client.route("TBW102").broker_datas
