"""Tests of our client and mqadmin at Apache's nameserver and broker."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from routekeeper.client.blocking import Client, PushConsumer
from routekeeper.client.consumer import ConsumeFrom, ConsumerConfig
from routekeeper.client.producer import Message, SendStatus, by_hash
from routekeeper.client.queue_reader import ReceivedMessage, TopicReader
from tests.client.mqadmin import mqadmin

from .apache import wait_until
from .ours import ApacheDeployment
from .patient import patient, sender

pytestmark = pytest.mark.interop


@pytest.fixture
def servers(apache_deployment: ApacheDeployment) -> tuple[str, str]:
    """Return the addresses of Apache's nameserver and of the broker that is registered there."""
    return apache_deployment.namesrv.addr, apache_deployment.broker.addr


def test_mqadmin_administers_apaches_servers(servers: tuple[str, str]) -> None:
    namesrv, broker = servers
    for argv, text in (
        (["updateTopic", "-c", "DefaultCluster", "-t", "Admin"], f"create topic to {broker}"),
        (["updateTopic", "-b", broker, "-t", "Ordered", "-o", "true"], "orderConf=[broker-a:8]"),
        (["clusterList", "-m"], "broker-a"),
        (["updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true"], "success"),
        (["topicRoute", "-t", "Ordered", "-l"], "{0=" + broker + "}"),
        (["topicRoute", "-t", "Ordered"], '"orderTopicConf":"broker-a:8"'),
        (["deleteTopic", "-c", "DefaultCluster", "-t", "Ordered"], "from NameServer success."),
    ):
        wait_until(
            lambda argv=argv, text=text: text in mqadmin(*argv, namesrv=namesrv)[1],  # type: ignore[misc]
            f"{argv} prints {text}",
        )


def test_mqadmin_names_changes_that_apaches_servers_did_not_make(
    servers: tuple[str, str], apache_deployment: ApacheDeployment
) -> None:
    namesrv, broker = servers
    old = apache_deployment.release.startswith("4.")
    made = ("updateTopic", "-b", broker, "-t", "Kept", "-a", "+message.type=NORMAL")
    code, out, err = mqadmin(*made, namesrv=namesrv)
    assert (code, "stored the topic without the attributes" in err) == (int(old), old), out + err
    wait_until(lambda: mqadmin("topicRoute", "-t", "Kept", namesrv=namesrv)[0] == 0, "the route")
    assert mqadmin("updateSubGroup", "-b", broker, "-g", "KeptGroup", namesrv=namesrv)[0] == 0
    reset = ("resetOffsetByTime", "-g", "KeptGroup", "-t", "Kept", "-s", "0", "-b", broker, "-q", "1")
    code, out, err = mqadmin(*reset, namesrv=namesrv)
    assert (code, "would ignore -q" in err) == (int(old), old), out + err
    for argv, text in (
        (["updateBrokerConfig", "-b", broker, "-k", "noSuchKey", "-v", "1"], "no setting 'noSuchKey'"),
        (["updateBrokerConfig", "-b", broker, "-k", "fileReservedTime", "-v", "many"], "is '"),
        (["updateNamesrvConfig", "-k", "noSuchKey", "-v", "1"], "no setting 'noSuchKey'"),
        (["cloneGroupOffset", "-s", "NoGroup", "-d", "KeptGroup", "-t", "Kept"], "has no offsets of topic"),
    ):
        code, out, err = mqadmin(*argv, namesrv=namesrv)
        assert (code, out) == (1, "")
        assert text in err
    for argv in (
        ["updateBrokerConfig", "-b", broker, "-k", "fileReservedTime", "-v", "073"],
        ["updateBrokerConfig", "-b", broker, "-k", "traceOn", "-v", "TRUE"],
        ["updateNamesrvConfig", "-k", "productEnvName", "-v", "kept"],
    ):
        code, out, err = mqadmin(*argv, namesrv=namesrv)
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


def test_blocking_members_share_the_queues_as_soon_as_the_broker_says_so(servers: tuple[str, str]) -> None:
    namesrv, _ = servers
    seen: list[bytes] = []

    def listen(batch: Sequence[ReceivedMessage]) -> None:
        seen.extend(message.body for message in batch)

    group = ConsumerConfig(group="members", consume_from=ConsumeFrom.FIRST_OFFSET)
    # By themselves the members look for other members only after ten minutes. If they share the queues within
    # the time of the test, then only because the broker told them.
    with (
        Client(patient([namesrv], rebalance_s=600.0)) as one,
        Client(patient([namesrv], rebalance_s=600.0)) as two,
    ):
        producer = one.producer(sender("pg"))
        producer.send(Message(topic="Members", body=b"first"))
        first = one.consume(group, {"Members": "*"}, listen)

        def count(consumer: PushConsumer) -> int:
            return sum(queue.topic == "Members" for queue in consumer.assigned)

        wait_until(lambda: count(first) == 4, "all queues at the only member")
        second = two.consume(group, {"Members": "*"}, listen)
        wait_until(lambda: count(first) == 2 == count(second), "two queues each")
        for number in range(200):
            producer.send(Message(topic="Members", body=b"%d" % number))
        wait_until(lambda: len(set(seen)) == 201, "all messages consumed")
        second.close()
        wait_until(lambda: count(first) == 4, "all queues back")
