"""The tolerant JSON reader."""

from __future__ import annotations

import time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.errors import RemoteProtocolError
from remoting.lenient import DEPTH_MAX, canonical, loads

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def as_fastjson(value: Any, draw: Any) -> str:
    """Write a value in one of the many ways that fastjson reads."""
    if isinstance(value, dict):
        parts = []
        for key, item in value.items():
            if key.isascii() and key.isalnum() and draw(st.booleans()):
                spelt = key
            elif draw(st.booleans()):
                inner = key.replace("\\", "\\\\").replace("'", "\\'")
                spelt = "'" + inner.replace("\n", "\\n").replace("\r", "\\r") + "'"
                spelt = "".join(c if ord(c) >= 32 else f"\\u{ord(c):04x}" for c in spelt)
            else:
                spelt = orjson.dumps(key).decode()
            parts.append(f"{spelt} : {as_fastjson(item, draw)}")
        return "{" + " , ".join(parts) + "}"
    if isinstance(value, list):
        return "[" + ",".join(as_fastjson(item, draw) for item in value) + "]"
    return orjson.dumps(value).decode()


@given(values)
def test_standard_json_is_read_as_it_is(value: Any) -> None:
    assert loads(orjson.dumps(value)) == value


@given(values, st.data())
def test_what_fastjson_reads_means_the_same_here(value: Any, data: st.DataObject) -> None:
    assert loads(as_fastjson(value, data.draw)) == value


@given(st.binary(max_size=60) | texts)
def test_garbage_is_refused_or_read_but_raises_nothing_else(text: bytes | str) -> None:
    try:
        loads(text)
    except RemoteProtocolError:
        pass


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{0:"a",1:"b"}', {"0": "a", "1": "b"}),
        ('{"x":{ -5 : 1}}', {"x": {"-5": 1}}),
        ('{"x":"{0:1,2:3}","y":"\\",3:"}', {"x": "{0:1,2:3}", "y": '",3:'}),
        ('{{"b":"x","a":1}:{c:2}}', {'{"a":1,"b":"x"}': {"c": 2}}),
        ("{a:true,b:false,c:null,d:1.5e2}", {"a": True, "b": False, "c": None, "d": 150.0}),
        ("[1,,2,]", [1, 2]),
        ("{'it\\'s':'\"'}", {"it's": '"'}),
    ],
)
def test_spellings_of_java_are_understood(text: str, expected: object) -> None:
    assert loads(text) == expected
    assert loads(text.encode()) == expected


def test_raw_object_key_and_quoted_object_key_end_as_texts_that_read_alike() -> None:
    (raw,) = loads('{{"topic":"T","queueId":3}:1}')
    (quoted,) = loads('{"{\\"queueId\\":3,\\"topic\\":\\"T\\"}":1}')
    assert loads(raw) == loads(quoted) == {"topic": "T", "queueId": 3}
    assert raw == canonical({"topic": "T", "queueId": 3})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[",
        "{a",
        "{a:",
        "{a:1",
        "{a:1]",
        "[1}",
        "'",
        "{:1}",
        "nul",
        "1 2",
        "{a:99999999999999999999}",
    ],
)
def test_broken_text_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        loads(text)


def test_nesting_is_bounded() -> None:
    levels = DEPTH_MAX - 1  # the object's value is the last one
    assert loads("[" * levels + "{a:1}" + "]" * levels)
    with pytest.raises(RemoteProtocolError, match="deeper"):
        loads("[" * (levels + 1) + "{a:1}" + "]" * (levels + 1))
    with pytest.raises(RemoteProtocolError):
        loads("{{" * 100_000)


@pytest.mark.parametrize(
    "text",
    [
        b'"' + b'\\"' * 4_000_000,
        b'{"' * 4_000_000,
        b"{1" * 4_000_000,
        b"{" + b" " * 8_000_000 + b"1",
        b"{a:" + b"1" * 900_000,
    ],
    ids=["escapes", "quotes", "numbers", "blanks", "digits"],
)
def test_hostile_text_is_refused_quickly(text: bytes) -> None:
    started = time.process_time()
    with pytest.raises(RemoteProtocolError):
        loads(text)
    assert time.process_time() - started < 5
