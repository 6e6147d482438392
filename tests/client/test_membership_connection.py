"""A consumer stays a member of its group although one of its client's requests times out."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from routekeeper.client import aio, blocking
from routekeeper.client.config import ClientConfig
from routekeeper.client.producer import Message
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import RemotingError
from tests.waiting import wait_until

SENDS = {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2}
NOTHING_THERE = {"nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0", "suggestWhichBrokerId": "0"}


@pytest.fixture
def silent(peer: Any) -> Any:
    """Return a scripted broker that has no messages, and never answers a send."""
    known = peer.answer

    def answer(request: RemotingCommand) -> Any:
        if request.code in SENDS:
            return None
        if request.code == RequestCode.PULL_MESSAGE:
            return asyncio.sleep(0.05, request.reply(ResponseCode.PULL_NOT_FOUND, ext_fields=NOTHING_THERE))
        if request.code in (RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.GET_MAX_OFFSET):
            return request.reply(ext_fields={"offset": "0"})
        return known(request)

    peer.answer = answer
    return peer


def is_member(peer: Any) -> None:
    """Check that the connection of the last heartbeat still serves the broker's requests."""
    fields = {"group": "G", "topic": "T"}
    answer = peer.ask(RemotingCommand.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, fields))
    assert answer.code == ResponseCode.SUCCESS


def test_a_send_without_an_answer_ends_no_membership_of_the_asyncio_client(silent: Any) -> None:
    async def main() -> None:
        async with aio.Client(ClientConfig(nameservers=(silent.addr,))) as client:
            await client.consume("G", {"T": "*"}, lambda messages: None)
            heartbeats = lambda: RequestCode.HEART_BEAT in silent.codes()  # noqa: E731
            await asyncio.to_thread(wait_until, heartbeats, "a heartbeat came")
            with pytest.raises(RemotingError):
                await client.producer("P").send(Message(topic="T", body=b"x"), timeout_s=0.3)
            await asyncio.to_thread(is_member, silent)

    asyncio.run(main())


def test_a_send_without_an_answer_ends_no_membership_of_the_blocking_client(silent: Any) -> None:
    with blocking.Client(ClientConfig(nameservers=(silent.addr,))) as client:
        client.consume("G", {"T": "*"}, lambda messages: None)
        wait_until(lambda: RequestCode.HEART_BEAT in silent.codes(), "a heartbeat came")
        with pytest.raises(RemotingError):
            client.producer("P").send(Message(topic="T", body=b"x"), timeout_s=0.3)
        is_member(silent)
