"""Typed arguments."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting import fields as module
from remoting.errors import FieldError
from remoting.fields import (
    Fields,
    GetRouteFields,
    PlainRegisterFields,
    PullMessageResponseFields,
    RegisterBrokerFields,
    SendMessageFields,
    read_plain_register,
)

CLASSES = [
    value
    for _, value in inspect.getmembers(module, inspect.isclass)
    if issubclass(value, Fields) and value is not Fields
]
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SAMPLES: dict[str, st.SearchStrategy[Any]] = {
    "str": texts,
    "int": st.integers(-(2**31), 2**31 - 1),
    "bool": st.booleans(),
}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_arguments_survive_their_text_form(kind: type[Fields], data: st.DataObject) -> None:
    values = {}
    for declared in dataclasses.fields(kind):
        annotation = str(declared.type)
        sample = SAMPLES[annotation.removesuffix(" | None")]
        values[declared.name] = data.draw(sample | st.none() if annotation.endswith("None") else sample)
    fields = kind(**values)
    ext = fields.to_ext()
    assert kind.parse(ext) == fields
    assert all(type(value) is str for value in ext.values())
    assert not any(value is None for value in ext.values())


def registration(**changes: str | None) -> dict[str, str]:
    ext = {"brokerName": "b", "brokerAddr": "a:1", "clusterName": "c", "brokerId": "0", "haServerAddr": "a:2"}
    merged = {**ext, **changes}
    return {name: value for name, value in merged.items() if value is not None}


@pytest.mark.parametrize("name", ["brokerName", "brokerAddr", "clusterName", "brokerId"])
def test_missing_required_argument_is_named(name: str) -> None:
    with pytest.raises(FieldError, match=f"argument {name} is missing") as caught:
        RegisterBrokerFields.parse(registration(**{name: None}))
    assert (caught.value.name, caught.value.value) == (name, None)


@pytest.mark.parametrize("value", ["", "x", "1.5", "0x10", "1_0", " 1", "٣", "9223372036854775808"])
def test_what_is_no_64_bit_integer_is_refused(value: str) -> None:
    with pytest.raises(FieldError, match="64 bits"):
        RegisterBrokerFields.parse(registration(brokerId=value))


def test_limits_of_integers_pass() -> None:
    for value in (-(2**63), 2**63 - 1):
        assert RegisterBrokerFields.parse(registration(brokerId=str(value))).broker_id == value


def told(fields: RegisterBrokerFields | PlainRegisterFields) -> dict[str, object]:
    return {
        declared.name: getattr(fields, declared.name) for declared in dataclasses.fields(RegisterBrokerFields)
    }


numbers = st.integers(-1, 2**64).map(str) | st.sampled_from(
    ["", "x", "+5", " 1", "1.5", "0007", "٣", "²", "-0"]
)
words = texts | st.sampled_from(["true", "TRUE", "false", "ſ"])


@given(
    st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(("brokerName", "brokerAddr", "clusterName", "haServerAddr"), words),
            **dict.fromkeys(("compressed", "enableActingMaster", "__ZONE_NAME", "unheard"), words),
            **dict.fromkeys(("brokerId", "bodyCrc32", "heartbeatTimeoutMillis"), numbers),
        },
    )
)
def test_what_the_short_way_reads_of_a_registration_the_long_way_reads_alike(ext: dict[str, str]) -> None:
    plain = read_plain_register({**registration(), **ext})
    if plain is not None:
        assert told(plain) == told(RegisterBrokerFields.parse({**registration(), **ext}))
    assert read_plain_register(ext) is None or {"brokerName", "brokerAddr", "clusterName", "brokerId"} <= set(
        ext
    )


@given(st.integers(0, 2**31 - 1), st.booleans(), st.none() | st.booleans(), st.none() | st.integers(0, 10**8))
def test_usual_registration_is_read_the_short_way(
    crc: int, compressed: bool, acting: bool | None, timeout_ms: int | None
) -> None:
    fields = RegisterBrokerFields(
        broker_name="b",
        broker_addr="a:1",
        cluster_name="c",
        broker_id=0,
        compressed=compressed,
        body_crc32=crc,
        enable_acting_master=acting,
        heartbeat_timeout_ms=timeout_ms,
    )
    plain = read_plain_register(fields.to_ext())
    assert plain is not None
    assert told(plain) == told(fields)


@pytest.mark.parametrize("value", ["2147483648", "4294967295", "x", ""])
def test_checksum_that_is_no_int32_is_not_checked(value: str) -> None:
    assert RegisterBrokerFields.parse(registration(bodyCrc32=value)).body_crc32 == 0


@pytest.mark.parametrize(
    ("text", "expected"), [("true", True), ("TRUE", True), ("false", False), ("1", False), ("", False)]
)
def test_boolean_is_read_as_java_does(text: str, expected: bool) -> None:
    assert GetRouteFields.parse({"acceptStandardJsonOnly": text}).accept_standard_json_only is expected


def test_both_spellings_of_a_send_mean_the_same() -> None:
    fields = SendMessageFields(
        producer_group="g", topic="T", queue_id=3, properties="A\x01b", unit_mode=False, batch=True
    )
    short = fields.to_ext_v2()
    assert short["a"] == "g"
    assert short["b"] == "T"
    assert short["m"] == "true"
    assert SendMessageFields.parse_v2(short) == fields == SendMessageFields.parse(fields.to_ext())


def test_pull_answer_always_carries_its_four_offsets() -> None:
    ext = PullMessageResponseFields(next_begin_offset=0, min_offset=0, max_offset=0).to_ext()
    assert ext == {"suggestWhichBrokerId": "0", "nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0"}
