"""Requests in the forms of clients in other languages, sent to a running broker."""

from __future__ import annotations

import json

from routekeeper.remoting.bodies import ConsumerConnection, ConsumerIdList
from routekeeper.remoting.codes import HeaderCodec
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.frame import encode_frame
from routekeeper.remoting.message import decode_messages, decode_properties
from tests.broker.conftest import Wire


def call_raw(wire: Wire, header: bytes, body: bytes = b"") -> RemotingCommand:
    wire.socket.sendall(encode_frame(header, body, codec=HeaderCodec.JSON))
    return wire.receive()


def test_send_with_raw_control_characters_and_half_a_character_in_its_header_is_stored(wire: Wire) -> None:
    header = (
        b'{"code":310,"extFields":{"a":"P","b":"RawHeader","c":"TBW102","d":"4","e":"0","f":"0","g":"1",'
        b'"h":"0","i":"KEYS\x01k\\ud83d\x02TAGS\x01A\x02","j":"0","k":"False","l":"0","m":"False"},'
        b'"flag":0,"language":"DOTNET","opaque":5,"version":275}'
    )
    answer = call_raw(wire, header, b"hello")
    assert (answer.code, answer.opaque) == (0, 5)
    (message,) = decode_messages(wire.answer(wire.pull("RawHeader", 0)).body)
    properties = decode_properties(message.properties)
    assert (properties["KEYS"], properties["TAGS"]) == ("k\ufffd", "A")


def test_consumer_whose_heartbeat_has_capitals_is_a_member_of_its_group(wire: Wire) -> None:
    beat = {
        "ClientID": "10.0.0.1@77",
        "ConsumerDataSet": [{"GroupName": "Capitals", "SubscriptionDataSet": [{"Topic": "T"}]}],
        "ProducerDataSet": None,
    }
    assert wire.call(34, body=json.dumps(beat).encode()).code == 0
    answer = wire.call(38, {"consumerGroup": "Capitals"})
    assert ConsumerIdList.decode(answer.body).consumer_ids == ("10.0.0.1@77",)


def test_consumer_that_sends_choices_as_numbers_is_described_by_their_names(wire: Wire) -> None:
    consumer = {
        "groupName": "Numbers",
        "consumeType": 0,
        "messageModel": 0,
        "consumeFromWhere": 4,
        "subscriptionDataSet": [{"topic": "T", "subString": "*", "subVersion": "1700000000000"}],
    }
    beat = {"clientID": "c", "consumerDataSet": [consumer], "producerDataSet": [{"groupName": "P"}]}
    assert wire.call(34, body=json.dumps(beat).encode()).code == 0
    found = ConsumerConnection.decode(wire.call(203, {"consumerGroup": "Numbers"}).body)
    assert found.consume_type == "CONSUME_ACTIVELY"
    assert found.message_model == "BROADCASTING"
    assert found.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
