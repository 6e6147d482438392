"""Property values that contain 0x01, as tracing agents send them, are stored unchanged."""

from __future__ import annotations

import pytest

from routekeeper.remoting.message import (
    BatchItem,
    StoredMessage,
    decode_messages,
    decode_properties,
    encode_batch,
)
from tests.broker.conftest import Wire
from tests.broker.requests.test_requests import send_back, wait_for_message

VALUE = "pinpoint\x01trace\x01"
PROPERTIES = f"TAGS\x01red\x02Trace\x01{VALUE}\x02"


def only_message(wire: Wire, topic: str) -> StoredMessage:
    (message,) = decode_messages(wait_for_message(wire, topic).body)
    return message


def test_a_value_with_0x01_comes_back_as_it_was_sent(wire: Wire) -> None:
    for body in (b"first", b"of a known kind"):
        answer = wire.send_message("Marked", body, properties=PROPERTIES)
        assert answer.code == 0, answer.remark
    first, second = decode_messages(wait_for_message(wire, "Marked").body)
    for message in (first, second):
        found = decode_properties(message.properties)
        assert (found["Trace"], found["TAGS"]) == (VALUE, "red")


@pytest.mark.slow
def test_a_message_with_such_a_value_is_taken_back(wire: Wire) -> None:
    sent = wire.send_message("MarkedBack", b"x", properties=PROPERTIES)
    assert sent.code == 0, sent.remark
    assert send_back(wire, sent.ext_fields["msgId"], "marked").code == 0
    found = decode_properties(only_message(wire, "%RETRY%marked").properties)
    assert (found["Trace"], found["RETRY_TOPIC"]) == (VALUE, "MarkedBack")


def test_a_value_cannot_pass_as_the_id_of_a_message_in_a_batch(wire: Wire) -> None:
    item = BatchItem(body=b"x", properties="Trace\x01a UNIQ_KEY\x01b\x02")
    answer = wire.send_message(
        "MarkedBatch", encode_batch([item]), properties="UNIQ_KEY\x01id of the batch\x02", code=320
    )
    assert answer.code == 0, answer.remark
    found = decode_properties(only_message(wire, "MarkedBatch").properties)
    assert (found["UNIQ_KEY"], found["Trace"]) == ("id of the batch", "a UNIQ_KEY\x01b")


def test_the_separator_between_properties_ends_a_value_as_in_rocketmq(wire: Wire) -> None:
    answer = wire.send_message("MarkedEnd", b"x", properties="A\x01one\x01\x02two\x02B\x01b\x02")
    assert answer.code == 0, answer.remark
    found = decode_properties(only_message(wire, "MarkedEnd").properties)
    assert (found["A"], found["B"], "two" in found) == ("one\x01", "b", False)
