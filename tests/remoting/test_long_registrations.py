"""Tests that JSON registrations of many topics give the same result when they are read in steps."""

from __future__ import annotations

import json
import time
import zlib

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routekeeper.nameserver.registration import decoding_registration
from routekeeper.nameserver.types import Answer, Request
from routekeeper.remoting.errors import RemoteProtocolError
from routekeeper.remoting.registration import (
    REGISTER_TOPICS_MAX,
    PlainRegistration,
    RegisterBody,
    body_crc32,
    encode_register_body,
    read_plain_json,
    reading_long_json,
)
from routekeeper.remoting.route import TopicConfig
from routekeeper.remoting.steps import finish
from tests.cost import on_this_machine
from tests.registrations import read_registration

#: Maximum seconds of each step. A step usually takes about a tenth of this time, so that slow machines pass,
#: too.
STEP_S = 0.02


def long_body(topics: int) -> bytes:
    configs = tuple(
        TopicConfig(topic_name=f"orders-{number:06d}", attributes={"+cleanup.policy": "DELETE"})
        for number in range(topics)
    )
    return encode_register_body(RegisterBody(topic_configs=configs), compressed=False, version=479)


def request(body: bytes) -> Request:
    fields = {
        "brokerName": "b",
        "brokerAddr": "10.0.0.1:10911",
        "clusterName": "c",
        "brokerId": "0",
        "bodyCrc32": str(body_crc32(body)),
    }
    return Request(code=103, ext_fields=fields, body=body)


@pytest.mark.slow
def test_no_step_of_the_largest_registration_in_json_takes_long() -> None:
    """No step may take longer than the limit.

    The test compares only the third-longest step, because other processes may delay one or two steps.
    """
    steps = decoding_registration(request(long_body(75_000)))
    took: list[float] = []
    while True:
        began = time.thread_time()
        try:
            next(steps)
        except StopIteration as end:
            decoded = end.value
            break
        finally:
            took.append(time.thread_time() - began)
    assert not isinstance(decoded, Answer)
    assert len(decoded.table) == 75_000
    assert sorted(took)[-3] < on_this_machine(STEP_S)
    assert len(took) > 20


texts = st.sampled_from(["T", "U", "V", "", "a,b", '"},"x":{', "},", "\\", "Ünï", "topicConfigTable", "{"])
numbers = st.sampled_from([4, 8, 0, -1, "7", None])
topics = st.fixed_dictionaries(
    {},
    optional={
        "topicName": texts,
        "readQueueNums": numbers,
        "perm": numbers,
        "attributes": st.dictionaries(texts, texts, max_size=2),
        "more": st.recursive(texts, lambda inner: st.dictionaries(texts, inner, max_size=2), max_leaves=3),
    },
)
tables = st.dictionaries(texts, topics, max_size=8)
wrappers = st.fixed_dictionaries(
    {"topicConfigTable": tables},
    optional={"dataVersion": st.just({"counter": 7}), "topicQueueMappingInfoMap": tables, "other": tables},
)
bodies = st.fixed_dictionaries(
    {"topicConfigSerializeWrapper": wrappers},
    optional={
        "filterServerList": st.lists(texts, max_size=2),
        "before": st.fixed_dictionaries({"topicConfigTable": tables}),
    },
)


def in_pieces(data: bytes, piece_max: int) -> PlainRegistration | None:
    return finish(reading_long_json(data, piece_max=piece_max))


@given(bodies, st.sampled_from([None, 1]), st.booleans(), st.sampled_from([16, 40, 100, 300, 1000]))
def test_registration_read_in_pieces_is_read_as_at_once_or_not_at_all(
    body: dict[str, object], indent: int | None, members_back: bool, piece_max: int
) -> None:
    if members_back:
        body = dict(reversed(body.items()))
    data = json.dumps(body, indent=indent).encode() if indent or members_back else orjson.dumps(body)
    found = in_pieces(data, piece_max)
    assert found is None or found == read_plain_json(data)


@pytest.mark.parametrize("piece_max", [600, 1_000, 5_000])
@pytest.mark.parametrize("blanks", [False, True])
def test_usual_registration_is_read_in_pieces_wherever_they_end(piece_max: int, blanks: bool) -> None:
    data = long_body(300)
    if blanks:
        data = json.dumps(json.loads(data)).encode()
    found = in_pieces(data, piece_max)
    assert found is not None
    assert found == read_plain_json(data)
    assert len(found.topics) == 300


@pytest.mark.parametrize("cut", [5_000, 20_000, 100, -1, -2, -3])
def test_registration_that_ends_early_is_not_read_in_pieces(cut: int) -> None:
    assert in_pieces(long_body(300)[:cut], 1_000) is None


def test_damaged_topic_in_a_later_piece_is_refused() -> None:
    data = long_body(20_000)
    damaged = data.replace(b'"orders-015000"', b'"orders-015000', 1)
    with pytest.raises(RemoteProtocolError):
        read_registration(damaged, compressed=False, version=479)


def test_topics_of_another_member_are_not_taken_for_those_of_the_registration() -> None:
    table = orjson.loads(long_body(300))["topicConfigSerializeWrapper"]["topicConfigTable"]
    data = orjson.dumps(
        {"other": {"topicConfigTable": table}, "topicConfigSerializeWrapper": {"topicConfigTable": {"T": {}}}}
    )
    assert in_pieces(data, 1_000) is None


def test_too_many_topics_are_refused_while_they_are_read() -> None:
    data = orjson.dumps(
        {"topicConfigSerializeWrapper": {"topicConfigTable": {f"{i:x}": {} for i in range(400_000)}}}
    )
    with pytest.raises(RemoteProtocolError, match=f"more than the {REGISTER_TOPICS_MAX} topics allowed"):
        read_registration(data, compressed=False, version=479)


def test_checksum_of_a_long_body_is_still_checked() -> None:
    body = long_body(20_000)
    asked = request(body)
    wrong = {**asked.ext_fields, "bodyCrc32": str(zlib.crc32(body[:-1]) & 0x7FFFFFFF)}
    answer = finish(decoding_registration(Request(code=103, ext_fields=wrong, body=body)))
    assert isinstance(answer, Answer)
    assert answer.remark == "crc32 not match"
