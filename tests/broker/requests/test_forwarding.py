"""Requests that a running broker passes on to a consumer, over sockets."""

from __future__ import annotations

import pytest

from routekeeper.remoting.bodies import ConsumerData, HeartbeatData
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.message import decode_messages
from tests.broker.conftest import BrokerProcess, Wire

pytestmark = pytest.mark.faults


def consumer(broker: BrokerProcess, group: str, client_id: str, *, version: int = 479) -> Wire:
    wire = broker.wire()
    body = HeartbeatData(client_id=client_id, consumers=(ConsumerData(group_name=group),)).encode()
    answer = wire.answer(wire.send(RemotingCommand(code=34, ext_fields={}, body=body, version=version)))
    assert answer.code == 0
    return wire


def asked(wire: Wire, code: int) -> RemotingCommand:
    """Return the broker's next request with this code. Skip its other requests (code 40)."""
    while (request := wire.receive()).code != code:
        pass
    return request


def reply(wire: Wire, answer: RemotingCommand) -> None:
    wire.socket.sendall(answer.encode())


def test_running_info_is_what_the_named_client_answers(shared_broker: BrokerProcess, wire: Wire) -> None:
    consumer(shared_broker, "GInfo", "other")
    client = consumer(shared_broker, "GInfo", "c1")
    ext = {"consumerGroup": "GInfo", "clientId": "c1", "jstackEnable": "true"}
    opaque = wire.send(RemotingCommand.request(307, ext))
    request = asked(client, 307)
    assert request.ext_fields == ext
    reply(client, request.reply(body=b'{"properties":{}}'))
    answer = wire.answer(opaque)
    assert (answer.code, answer.body) == (0, b'{"properties":{}}')
    opaque = wire.send(RemotingCommand.request(307, ext))
    request = asked(client, 307)
    reply(client, request.reply(1, remark="no"))
    answer = wire.answer(opaque)
    assert (answer.code, answer.remark) == (1, "no")


def test_message_to_be_consumed_directly_goes_along(shared_broker: BrokerProcess, wire: Wire) -> None:
    client = consumer(shared_broker, "GDirect", "c1")
    message_id = wire.send_message("Direct", b"look at me").ext_fields["msgId"]
    ext = {"consumerGroup": "GDirect", "clientId": "c1", "msgId": message_id, "brokerName": "broker-a"}
    opaque = wire.send(RemotingCommand.request(309, ext))
    request = asked(client, 309)
    assert [message.body for message in decode_messages(request.body)] == [b"look at me"]
    reply(client, request.reply(body=b'{"consumeResult":"CR_SUCCESS"}'))
    assert wire.answer(opaque).body == b'{"consumeResult":"CR_SUCCESS"}'
    for changes, remark in (
        ({"msgId": "x"}, "is not 32 or 56 hexadecimal digits"),
        ({"msgId": message_id[:16] + "0" * 15 + "1"}, "can not find message by the offset, 1"),
        ({"clientId": "c2"}, "The Consumer <GDirect> <c2> not online"),
    ):
        refused = wire.call(309, ext | changes)
        assert refused.code == 1
        assert remark in (refused.remark or "")


def test_client_that_connected_again_is_asked_on_its_new_connection(
    shared_broker: BrokerProcess, wire: Wire
) -> None:
    consumer(shared_broker, "GAgain", "c1")  # the client has lost this connection, but the broker has not
    client = consumer(shared_broker, "GAgain", "c1")
    message_id = wire.send_message("Again", b"x").ext_fields["msgId"]
    for code in (307, 309):
        ext = {"consumerGroup": "GAgain", "clientId": "c1", "msgId": message_id, "brokerName": "broker-a"}
        opaque = wire.send(RemotingCommand.request(code, ext))
        reply(client, asked(client, code).reply(body=b"{}"))
        assert wire.answer(opaque).code == 0


def test_client_that_cannot_answer_is_named(shared_broker: BrokerProcess, wire: Wire) -> None:
    consumer(shared_broker, "GOld", "old", version=61)
    answer = wire.call(307, {"consumerGroup": "GOld", "clientId": "old"})
    assert (answer.code, "Version <61> too low" in (answer.remark or "")) == (1, True)
    leaving = consumer(shared_broker, "GLeft", "gone")
    opaque = wire.send(RemotingCommand.request(307, {"consumerGroup": "GLeft", "clientId": "gone"}))
    asked(leaving, 307)
    leaving.close()
    answer = wire.answer(opaque)
    assert (answer.code, "cannot be asked" in (answer.remark or "")) == (1, True)
