"""Groups with long names, which only clients before July 2025 allow. Their messages are retried, too."""

from __future__ import annotations

import pytest

from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.message import MAGIC_V2, decode_messages, decode_properties
from tests.broker.conftest import Wire
from tests.broker.requests.test_requests import heartbeat, send_back, wait_for_message


@pytest.mark.slow
@pytest.mark.parametrize("length", [121, 248])
def test_a_message_of_a_group_with_a_long_name_comes_back(wire: Wire, length: int) -> None:
    group = "g" * length
    sent = wire.send_message("LongGroup", b"x")
    heartbeat(wire, "c", group, "LongGroup")
    assert send_back(wire, sent.ext_fields["msgId"], group).code == 0
    answer = wait_for_message(wire, f"%RETRY%{group}")
    (message,) = decode_messages(answer.body)
    assert (message.topic, message.body, message.reconsume_times) == (f"%RETRY%{group}", b"x", 1)
    assert decode_properties(message.properties)["RETRY_TOPIC"] == "LongGroup"
    if length + len("%RETRY%") > 127:
        assert int.from_bytes(answer.body[4:8], "big", signed=True) == MAGIC_V2


@pytest.mark.parametrize("length", [123, 248])
def test_a_message_of_a_group_with_a_long_name_becomes_a_dead_letter(wire: Wire, length: int) -> None:
    group = "d" * length
    sent = wire.send_message("LongDead", b"x")
    assert send_back(wire, sent.ext_fields["msgId"], group, delayLevel="-1").code == 0
    (message,) = decode_messages(wait_for_message(wire, f"%DLQ%{group}").body)
    assert (message.topic, message.body) == (f"%DLQ%{group}", b"x")


@pytest.mark.slow
def test_a_group_whose_retry_topic_no_file_system_holds_is_refused_and_blocks_nobody(wire: Wire) -> None:
    sent = wire.send_message("TooLong", b"x")
    for length in (249, 255):
        answer = send_back(wire, sent.ext_fields["msgId"], "g" * length)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert "longer than topic max length 255" in (answer.remark or "")
    assert send_back(wire, sent.ext_fields["msgId"], "g" * 251, delayLevel="-1").code == 29
    heartbeat(wire, "c", "short", "TooLong")
    assert send_back(wire, sent.ext_fields["msgId"], "short").code == 0
    (message,) = decode_messages(wait_for_message(wire, "%RETRY%short").body)
    assert message.body == b"x"
