"""Delay levels: the broker decides how many levels exist."""

from __future__ import annotations

from typing import Any

import pytest

from routekeeper.client.blocking import Client
from routekeeper.client.config import ClientConfig
from routekeeper.client.errors import InvalidArgument
from routekeeper.client.producer import Message
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.fields import SendMessageFields
from routekeeper.remoting.message import decode_properties


@pytest.mark.parametrize("level", [19, 1024])
def test_a_delay_level_is_bounded_by_brokers_alone(level: int, peer: Any) -> None:
    with Client(ClientConfig(nameservers=(peer.addr,))) as client:
        client.producer("g").send(Message(topic="T", body=b"x", delay_level=level))
    sent = next(request for request in peer.requests if request.code == RequestCode.SEND_MESSAGE_V2)
    properties = decode_properties(SendMessageFields.parse_v2(sent.ext_fields).properties or "")
    assert properties["DELAY"] == str(level)


@pytest.mark.parametrize("level", [-1, 2**31])
def test_a_delay_level_that_no_broker_reads_is_refused(level: int) -> None:
    client = Client(ClientConfig(nameservers=("127.0.0.1:1",)))
    try:
        with pytest.raises(InvalidArgument, match=f"delay_level={level}, allowed"):
            client.producer("g").send(Message(topic="T", body=b"x", delay_level=level))
    finally:
        client.close()
