"""Stored messages have the two properties that RocketMQ 5.x's consumers need for message traces.

The properties are the region and the trace switch.
"""

from __future__ import annotations

from routekeeper.remoting.message import decode_messages, decode_properties, encode_properties
from tests.broker.conftest import StartBroker, Wire


def stored(wire: Wire, answer_id: str) -> dict[str, str]:
    """Return the properties of the stored message with this id."""
    answer = wire.call(33, {"offset": str(int(answer_id[-16:], 16))})
    (message,) = decode_messages(answer.body)
    return decode_properties(message.properties)


def test_a_message_has_its_region_and_whether_it_is_traced(start_broker: StartBroker) -> None:
    wire = start_broker("--set", "regionId=north").wire()
    told = encode_properties({"UNIQ_KEY": "id", "MSG_REGION": "elsewhere"})
    # The first send fills the broker's cache for such sends, and the second send uses the cache.
    for code in (310, 310, 10, 10):
        if code == 310:
            answer = wire.send_message("T", b"x", properties=told)
        else:
            names = (
                "producerGroup topic defaultTopic defaultTopicQueueNums queueId sysFlag bornTimestamp flag"
            )
            ext = dict(zip(names.split(), ("PG", "T", "TBW102", "4", "0", "0", "1", "0"), strict=True))
            answer = wire.call(10, ext | {"properties": told}, b"x")
        assert answer.code == 0
        found = stored(wire, answer.ext_fields["msgId"])
        assert (found["MSG_REGION"], found["TRACE_ON"], found["UNIQ_KEY"]) == ("north", "true", "id")
    assert wire.call(25, body=b"traceOn=false").code == 0
    answer = wire.send_message("T", b"x")
    assert stored(wire, answer.ext_fields["msgId"])["TRACE_ON"] == "false"
