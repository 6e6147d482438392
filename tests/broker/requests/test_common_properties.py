"""Two kinds of sends use only a bounded part of the store.

- A batch whose header has properties. The broker adds these properties to each message of the batch, so it
  must limit their total size.
- A delayed message that the broker refuses. It must use no queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from routekeeper.broker.config import BrokerConfig
from routekeeper.broker.requests.sending import BATCH_MAX, BATCH_SHARED_MAX, send
from routekeeper.broker.requests.tags import tags_code
from routekeeper.broker.tables.state import BrokerState, Call, Later
from routekeeper.broker.tables.topics import SCHEDULE_TOPIC
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.message import (
    PROPERTIES_SIZE_MAX,
    BatchItem,
    decode_messages,
    decode_properties,
    encode_batch,
)
from routekeeper.remoting.route import TopicConfig
from tests.broker.states import HOST, NOW, state_in

MESSAGE_ILLEGAL, NO_PERMISSION = 13, 16
ARGUMENTS = {
    "a": "PG",
    "b": "T",
    "c": "TBW102",
    "d": "4",
    "e": "1",
    "f": "0",
    "g": str(NOW),
    "h": "0",
    "j": "0",
    "k": "false",
}


@pytest.fixture
def state(tmp_path: Path) -> Iterator[BrokerState]:
    topic = TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4)
    made = state_in(tmp_path, topic, log_file_size=32 << 20, queue_file_size=1 << 20)
    yield made
    made.store.log.close()


def sent(state: BrokerState, code: int, properties: str, body: bytes, **changes: str) -> RemotingCommand:
    request = RemotingCommand.request(code, ARGUMENTS | {"i": properties} | changes, body)
    outcome = send(state, Call(request=request, connection=1, peer=HOST, now_ms=NOW, now=0.0))
    return outcome.reply if isinstance(outcome, Later) else outcome


def batch_of(state: BrokerState, count: int, properties: str) -> RemotingCommand:
    body = encode_batch([BatchItem(body=b"", properties="", flag=0)] * count)
    return sent(state, 320, properties, body, m="true")


def test_batch_whose_header_would_multiply_its_size_is_refused(state: BrokerState) -> None:
    tag = "a" * 32_600
    before = state.store.log.max_offset
    refused = batch_of(state, 200, f"TAGS\x01{tag}\x02")
    assert refused.code == MESSAGE_ILLEGAL
    assert "200 messages" in (refused.remark or "")
    assert f"allowed are {BATCH_SHARED_MAX}" in (refused.remark or "")
    assert state.store.log.max_offset == before
    assert batch_of(state, BATCH_MAX, f"TAGS\x01{tag}\x02").code == MESSAGE_ILLEGAL
    assert batch_of(state, 100, f"TAGS\x01{tag}\x02").code == 0
    assert state.store.entries("T", 1, 99, 1)[0].tags_code == tags_code(f"TAGS\x01{tag}\x02") != 0


def test_largest_batch_may_have_usual_properties_in_its_header(state: BrokerState) -> None:
    common = f"UNIQ_KEY\x01{'0A' * 16}\x02WAIT\x01true\x02INSTANCE_ID\x01{'n' * 200}\x02"
    answer = batch_of(state, BATCH_MAX, common)
    assert answer.code == 0
    last = state.store.message_in_queue("T", 1, BATCH_MAX - 1)
    assert last is not None
    assert decode_properties(last.properties)["INSTANCE_ID"] == "n" * 200


def test_refused_delayed_message_takes_no_queue(state: BrokerState) -> None:
    def filler(size: int) -> str:
        return f"DELAY\x013\x02P\x01{'p' * size}\x02"

    # These properties alone are within the limit. Together with the properties that the broker adds for a
    # delay, they exceed the limit.
    refused = sent(state, 310, filler(PROPERTIES_SIZE_MAX - 80), b"x", e="2", m="false")
    assert refused.code == MESSAGE_ILLEGAL
    assert f"are above {PROPERTIES_SIZE_MAX}" in (refused.remark or "")
    assert (state.store.queue_count, state.store.has_queue("T", 2)) == (0, False)
    assert sent(state, 310, filler(PROPERTIES_SIZE_MAX - 200), b"x", e="2", m="false").code == 0
    assert state.store.has_queue("T", 2)
    state.config = BrokerConfig(queues_max=2)
    full = sent(state, 310, "DELAY\x013\x02", b"x", e="3", m="false")
    assert (full.code, state.store.queue_count) == (NO_PERMISSION, 2)
    stored = state.store.get(SCHEDULE_TOPIC, 2, 0, count_max=9, bytes_max=1 << 20)
    assert len(list(decode_messages(stored.body))) == 1
