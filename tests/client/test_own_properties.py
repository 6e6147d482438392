"""Reserved names of message properties: users cannot set them, and forwarded messages do not have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from routekeeper.bench.timers import divide_periods
from routekeeper.client.blocking import Client
from routekeeper.client.config import ClientConfig, ConsumeFrom, PullConsumerConfig
from routekeeper.client.errors import InvalidArgument
from routekeeper.client.producer import Message
from routekeeper.client.queue_reader import receive
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.message import StoredMessage, encode_properties
from tests.client.conftest import Process

#: Property names that users must not set. Source: MessageConst.STRING_HASH_SET, RocketMQ 5.3.3.
RESERVED = (
    *("1ST_POP_TIME", "ARRIVE_TIME", "BORN_TIMESTAMP", "BUYER_ID", "CLUSTER", "CONSUME_START_TIME"),
    *("CORRECTION_FLAG", "CORRELATION_ID", "DELAY", "DLQ_ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_TOPIC"),
    *("DUP_INFO", "EXTEND_UNIQ_INFO", "INNER_MULTI_QUEUE_OFFSET", "INSTANCE_ID", "KEYS"),
    *("MAX_OFFSET", "MAX_RECONSUME_TIMES", "MIN_OFFSET", "MQ2_FLAG", "MSG_REGION", "MSG_TYPE"),
    *("ORIGIN_MESSAGE_ID", "PGROUP", "POP_CK", "POP_CK_OFFSET", "PUSH_REPLY_TIME", "REAL_QID"),
    *("REAL_TOPIC", "RECONSUME_TIME", "REPLY_TO_CLIENT", "RETRY_TOPIC", "TAGS"),
    *("TIMER_DELAY_LEVEL", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS"),
    *("TIMER_DEL_UNIQKEY", "TIMER_DEQUEUE_MS", "TIMER_ENQUEUE_MS", "TIMER_OUT_MS"),
    *("TIMER_ROLL_TIMES", "TRACE_ON", "TRANSFER_FLAG", "TRAN_MSG", "TRAN_PREPARED_QUEUE_OFFSET"),
    *("TTL", "UNIQ_KEY", "WAIT", "__BORNHOST", "__CRC32#"),
)


def test_names_that_rocketmq_reserves_are_refused(peer: Any) -> None:
    assert len(RESERVED) == 51
    with Client(ClientConfig(nameservers=(peer.addr,))) as client:
        producer = client.producer("g")
        for name in (*RESERVED, "__RMQ.TRANSIENT.", "__RMQ.TRANSIENT.TOPIC_SYS_FLAG"):
            message = Message(topic="T", body=b"x", properties={"mine": "v", name: "x"})
            sends: list[Callable[[], Any]] = [
                lambda: producer.send(message),  # noqa: B023 - called at once
                lambda: producer.put(message),  # noqa: B023
                lambda: producer.send_batch([message]),  # noqa: B023
                lambda: producer.send_oneway(message),  # noqa: B023
            ]
            for send in sends:
                with pytest.raises(InvalidArgument, match=f"'{name}'"):
                    send()
    assert RequestCode.SEND_MESSAGE_V2 not in peer.codes()


def stored(**properties: str) -> StoredMessage:
    return StoredMessage(
        topic="%RETRY%g", queue_id=0, body=b"body", flag=7, properties=encode_properties(properties)
    )


def test_a_received_message_is_forwarded_with_what_is_its_users_own() -> None:
    reserved = dict.fromkeys(RESERVED, "1")
    system = dict.fromkeys(("INNER_NUM", "__transactionId__", "__RMQ.TRANSIENT.GROUP_SYS_FLAG"), "1")
    received = receive(
        stored(**reserved | system | {"TAGS": "red", "KEYS": "k1 k2", "colour": "red", "__SHARDINGKEY": "7"}),
        "b",
    )
    assert received.forward_to("Other") == Message(
        topic="Other",
        body=b"body",
        tags="red",
        keys=("k1", "k2"),
        flag=7,
        properties={"colour": "red", "__SHARDINGKEY": "7"},
    )


@pytest.mark.faults
def test_a_forwarded_message_arrives_as_a_new_one(nameserver: Process, broker: Process) -> None:
    def first(client: Client, topic: str) -> Any:
        config = PullConsumerConfig(group=f"readers_of_{topic}", consume_from=ConsumeFrom.FIRST_OFFSET)
        with client.pull_consumer(config, {topic: "*"}) as consumer:
            return consumer.poll(count=1, timeout_s=30.0)[0]

    with Client(divide_periods(ClientConfig(nameservers=(nameserver.addr,)), 10)) as client:
        producer = client.producer("senders")
        sent = producer.send(
            Message(topic="From", body=b"x", tags="red", keys=["k1", "k2"], properties={"colour": "red"})
        )
        again = producer.send(first(client, "From").forward_to("Onward"))
        received = first(client, "Onward")
    assert (received.topic, received.body, received.tags, received.keys) == (
        "Onward",
        b"x",
        "red",
        ("k1", "k2"),
    )
    assert received.properties["colour"] == "red"
    assert received.message_id == again.message_id != sent.message_id
