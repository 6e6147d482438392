"""Clients' answers to requests 221, 307 and 309, which a broker forwards for an operator.

Request 220 is forwarded, too, but has no answer. Each test runs with both clients.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

import routekeeper.client.aio
import routekeeper.client.blocking
from routekeeper.client.config import ClientConfig, ConsumeFrom, ConsumerConfig
from routekeeper.client.consumer import ConsumeResult
from routekeeper.client.queue_reader import ReceivedMessage
from routekeeper.remoting.bodies import (
    ConsumerIdList,
    HeartbeatData,
    MessageQueue,
    QueueOffsets,
)
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.lenient import ANSWER, loads
from routekeeper.remoting.message import StoredMessage, encode_message, encode_properties

QUEUE = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)


class Broker:
    """A scripted broker: one queue with three messages, and one member."""

    def __init__(self, peer: Any, routes: Callable[[RemotingCommand], Any]) -> None:
        self.peer = peer
        self.members: set[str] = set()
        self.pulled: list[int] = []
        self.routes = routes
        peer.answer = self.answer

    def answer(self, request: RemotingCommand) -> Any:
        match request.code:
            case RequestCode.HEART_BEAT:
                self.members.add(HeartbeatData.decode(request.body).client_id)
                return request.reply()
            case RequestCode.GET_CONSUMER_LIST_BY_GROUP:
                return request.reply(body=ConsumerIdList(consumer_ids=tuple(self.members)).encode())
            case RequestCode.QUERY_CONSUMER_OFFSET:
                return request.reply(ext_fields={"offset": "0"})
            case RequestCode.PULL_MESSAGE:
                offset = int(request.ext_fields["queueOffset"])
                self.pulled.append(offset)
                left = range(offset, 3)
                fields = {"nextBeginOffset": "3", "minOffset": "0", "maxOffset": "3"}
                fields["suggestWhichBrokerId"] = "0"
                if not left:
                    return None  # no answer, as if the broker held the pull until a message comes
                return request.reply(ext_fields=fields, body=b"".join(map(stored, left)))
        return self.routes(request)


def stored(offset: int) -> bytes:
    return encode_message(
        StoredMessage(
            topic="T",
            queue_id=0,
            queue_offset=offset,
            body=b"%d" % offset,
            properties=encode_properties({"UNIQ_KEY": f"id{offset}"}),
        )
    )


def listen(batch: Sequence[ReceivedMessage]) -> ConsumeResult:
    if batch[0].body == b"later":
        return ConsumeResult.RECONSUME_LATER
    if batch[0].body == b"fails":
        raise RuntimeError("the listener failed")
    return ConsumeResult.SUCCESS


@contextmanager
def running(kind: str, addr: str) -> Iterator[None]:
    """Run the blocking client, or the asyncio client on its own event loop, with a push consumer."""
    config = ClientConfig(nameservers=(addr,), shutdown_s=1.0, call_timeout_s=20.0)
    group = ConsumerConfig(group="g", consume_from=ConsumeFrom.FIRST_OFFSET)
    if kind == "blocking":
        with routekeeper.client.blocking.Client(config) as started:
            started.consume(group, {"T": "*"}, listen)
            yield
        return
    begun, end = threading.Event(), threading.Event()

    async def main() -> None:
        async with routekeeper.client.aio.Client(config) as started:
            await started.consume(group, {"T": "*"}, listen)
            begun.set()
            await asyncio.to_thread(end.wait)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        assert begun.wait(30)
        yield
    finally:
        end.set()
        thread.join(timeout=30)


@pytest.mark.parametrize("kind", ["blocking", "aio"])
def test_a_consumer_answers_operators(
    kind: str,
    new_peer: Callable[..., Any],
    answers: Any,
    route_body: Any,
    eventually: Callable[..., None],
) -> None:
    peer = new_peer()
    broker = Broker(peer, answers({"T": route_body(queues=1, broker_a=peer.addr)}))

    def ask(code: int, body: bytes = b"", **fields: str) -> RemotingCommand:
        answer: RemotingCommand = peer.ask(RemotingCommand.request(code, fields, body))
        return answer

    def consumed() -> bool:
        answer = ask(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, topic="T", group="g")
        assert answer.code == 0
        table: Any = loads(answer.body, ANSWER)
        return list(table["messageQueueTable"].values()) == [3]

    with running(kind, peer.addr):
        eventually(lambda: broker.pulled == [0, 3], "the three messages are pulled and the next pull is held")
        eventually(consumed, "221: all three are consumed")

        info: Any = loads(
            ask(RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="g", clientId="c").body, ANSWER
        )
        (state,) = info["mqTable"].values()
        assert (state["commitOffset"], state["cachedMsgCount"], state["droped"]) == (3, 0, False)
        assert info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert int(info["properties"]["PROP_CONSUMER_START_TIMESTAMP"]) > 1_600_000_000_000
        assert {item["topic"] for item in info["subscriptionSet"]} == {"T", "%RETRY%g"}

        for body, result in ((b"x", "CR_SUCCESS"), (b"later", "CR_LATER"), (b"fails", "CR_THROW_EXCEPTION")):
            message = encode_message(StoredMessage(topic="T", queue_id=0, body=body))
            answer = ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, message, consumerGroup="g", clientId="c")
            told: Any = loads(answer.body, ANSWER)
            assert (answer.code, told["consumeResult"]) == (0, result)
            assert ("the listener failed" in told.get("remark", "")) == (body == b"fails")

        unknown = ask(RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="other", clientId="c")
        assert unknown.code == 1
        assert "<other> not exist" in (unknown.remark or "")

        # The client must follow the reset at once, although its pull still waits at the broker.
        reset = RemotingCommand.request(
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
            {"group": "g", "topic": "T"},
            QueueOffsets(offsets={QUEUE: 1}).encode(),
            oneway=True,
        )
        peer.push(reset)
        eventually(lambda: broker.pulled == [0, 3, 1, 3], "220: pulled again from 1", within_s=10)
    assert json.dumps(info)
