"""Tests of the typed arguments of requests."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routekeeper.remoting import admin_fields
from routekeeper.remoting import fields as fields_module
from routekeeper.remoting.errors import FieldError
from routekeeper.remoting.fields import (
    Fields,
    GetRouteFields,
    PullMessageResponseFields,
    RegisterBrokerFields,
    SendMessageFields,
    SendMessageResponseFields,
)

CLASSES = [
    value
    for module in (fields_module, admin_fields)
    for _, value in inspect.getmembers(module, inspect.isclass)
    if issubclass(value, Fields) and value.__module__ == module.__name__ and value is not Fields
]
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SAMPLES: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("str", "_StatsKey", "Name", "TopicName", "ClientId"), texts),
    "Address": st.sampled_from(["", "a:1", "[::1]:65535"]),
    **dict.fromkeys(("Int32", "Int32OrDefault"), st.integers(-(2**31), 2**31 - 1)),
    **dict.fromkeys(("Int64", "Int64OrDefault"), st.integers(-(2**63), 2**63 - 1)),
    "bool": st.booleans(),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_arguments_survive_their_text_form(kind: type[Fields], data: st.DataObject) -> None:
    values = {}
    for declared in msgspec.structs.fields(kind):
        annotation = kind.__annotations__[declared.name]
        sample = SAMPLES[annotation.removesuffix(" | None")]
        values[declared.name] = data.draw(sample | st.none() if annotation.endswith("None") else sample)
    fields = kind(**values)
    ext = fields.to_ext()
    assert kind.parse(ext) == fields
    assert all(type(value) is str for value in ext.values())
    assert not any(value is None for value in ext.values())


@given(data=st.data())
@pytest.mark.parametrize("kind", [SendMessageFields, SendMessageResponseFields])
def test_what_is_spelt_member_by_member_is_spelt_as_declared(kind: type[Fields], data: st.DataObject) -> None:
    values = {}
    for declared in msgspec.structs.fields(kind):
        annotation = kind.__annotations__[declared.name]
        sample = SAMPLES[annotation.removesuffix(" | None")]
        values[declared.name] = data.draw(sample | st.none() if annotation.endswith("None") else sample)
    fields = kind(**values)
    as_declared = Fields.to_ext(fields)
    if isinstance(fields, SendMessageFields):
        letters = dict(zip(kind.__struct_encode_fields__, "abcdefghijklmn", strict=True))
        assert list(fields.to_ext_v2().items()) == [(letters[k], v) for k, v in as_declared.items()]
    else:
        assert list(fields.to_ext().items()) == list(as_declared.items())


def registration(**changes: str | None) -> dict[str, str]:
    ext = {"brokerName": "b", "brokerAddr": "a:1", "clusterName": "c", "brokerId": "0", "haServerAddr": "a:2"}
    merged = {**ext, **changes}
    return {name: value for name, value in merged.items() if value is not None}


@pytest.mark.parametrize("name", ["brokerName", "brokerAddr", "clusterName", "brokerId"])
def test_missing_required_argument_is_named(name: str) -> None:
    with pytest.raises(FieldError, match=f"argument {name} is missing") as caught:
        RegisterBrokerFields.parse(registration(**{name: None}))
    assert (caught.value.name, caught.value.value) == (name, None)


@pytest.mark.parametrize(
    "value",
    ["", "x", "1.5", "1.0", "1e3", "null", "0x10", "1_0", " 1", "1\n", "٣", "²", "9223372036854775808"],
)
def test_what_is_no_64_bit_integer_is_refused(value: str) -> None:
    with pytest.raises(FieldError, match="64 bits"):
        RegisterBrokerFields.parse(registration(brokerId=value))


def test_limits_of_integers_pass() -> None:
    for value in (-(2**63), 2**63 - 1):
        assert RegisterBrokerFields.parse(registration(brokerId=str(value))).broker_id == value


words = texts | st.sampled_from(
    ["true", "TRUE", "false", "ſ", "1", "0", "null", "Null", "", "a:1", "a:99999", "x" * 600]
)
numbers = st.integers(-(2**64), 2**64).map(str) | st.sampled_from(
    ["", "x", "+5", " 1", "1.5", "1.0", "1e3", "null", "NULL", "0007", "٣", "²", "-0", "9" * 5000, "5\n"]
)


def outcome(read: Callable[[dict[str, str]], Fields], ext: dict[str, str]) -> Fields | str:
    try:
        return read(ext)
    except FieldError as error:
        return str(error)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@settings(max_examples=15)
@given(data=st.data())
def test_what_msgspec_reads_is_what_java_would_read(kind: type[Fields], data: st.DataObject) -> None:
    samples = {
        declared.encode_name: numbers if "Int" in kind.__annotations__[declared.name] else words
        for declared in msgspec.structs.fields(kind)
    }
    usual = {
        name: st.integers(0, 9).map(str) if sample is numbers else st.just("a:1")
        for name, sample in samples.items()
    }
    ext = data.draw(st.fixed_dictionaries(usual)) | data.draw(st.fixed_dictionaries({}, optional=samples))
    for name in data.draw(st.sets(st.sampled_from(sorted(ext)), max_size=2)):
        del ext[name]
    assert outcome(kind.parse, ext) == outcome(kind.parse_slowly, ext)


@pytest.mark.parametrize(
    ("name", "spelt"),
    [
        ("brokerId", "1e3"),
        ("bodyCrc32", "1.0"),
        ("heartbeatTimeoutMillis", "0.0"),
        ("heartbeatTimeoutMillis", "null"),
        ("compressed", "1"),
        ("enableActingMaster", "1"),
        ("enableActingMaster", "Null"),
        ("brokerAddr", "a:99999"),
        ("haServerAddr", "a b:1"),
    ],
)
def test_what_only_msgspec_takes_of_a_registration_is_not_taken(name: str, spelt: str) -> None:
    ext = registration(**{name: spelt})
    assert outcome(RegisterBrokerFields.parse, ext) == outcome(RegisterBrokerFields.parse_slowly, ext)


def test_usual_registration_is_read_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast reader must accept registrations in the form that Java brokers and our brokers use."""
    monkeypatch.setattr(RegisterBrokerFields, "parse_slowly", None)
    fields = RegisterBrokerFields(
        broker_name="b",
        broker_addr="a:1",
        cluster_name="c",
        broker_id=0,
        compressed=True,
        body_crc32=2**31 - 1,
        enable_acting_master=False,
        heartbeat_timeout_ms=10_000,
    )
    assert RegisterBrokerFields.parse(fields.to_ext()) == fields


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
