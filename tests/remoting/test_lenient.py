"""Tests of the JSON reader that also accepts fastjson's forms."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routekeeper.remoting.errors import RemoteProtocolError
from routekeeper.remoting.lenient import ANSWER, DEPTH_MAX, REQUEST, Limits, canonical, loads
from tests.cost import least_cpu_s, on_this_machine

# These texts contain the characters that have a meaning in JSON outside of strings.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.text('{}[],:"\\\\10 ', max_size=8)
keys = texts | st.integers(0, 2**40).map(str)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


queue_keys = st.fixed_dictionaries({"topic": texts, "brokerName": texts, "queueId": st.integers(0, 99)})


def as_fastjson(value: Any, draw: Any) -> str:
    """Write a value as fastjson does: number keys without quotes, and spaces at places that JSON permits."""
    blank: str = draw(st.sampled_from(["", " ", "\t\r\n "]))
    if isinstance(value, dict):
        parts = []
        for key, item in value.items():
            bare = key.isascii() and key.isdigit() and draw(st.booleans())
            parts.append(
                (key if bare else orjson.dumps(key).decode()) + blank + ":" + as_fastjson(item, draw)
            )
        return "{" + blank + ("," + blank).join(parts) + blank + "}"
    if isinstance(value, list):
        return "[" + blank + ",".join(as_fastjson(item, draw) for item in value) + "]" + blank
    return orjson.dumps(value).decode() + blank


@given(values)
def test_standard_json_is_read_as_it_is(value: Any) -> None:
    assert loads(orjson.dumps(value)) == value


@pytest.mark.slow
@given(values, st.data())
def test_what_fastjson_reads_means_the_same_here(value: Any, data: st.DataObject) -> None:
    assert loads(as_fastjson(value, data.draw)) == value


@pytest.mark.slow
@given(st.dictionaries(queue_keys.map(orjson.dumps), values, max_size=3), st.integers(0, 3))
def test_raw_object_keys_end_as_the_text_of_the_quoted_form(table: dict[bytes, Any], depth: int) -> None:
    raw = b"{" + b" , ".join(key + b" : " + orjson.dumps(value) for key, value in table.items()) + b"}"
    for _ in range(depth):
        raw = b'{"a":[' + raw + b"]}"
    read = loads(raw, ANSWER)
    for _ in range(depth):
        (read,) = read["a"]
    assert read == {canonical(orjson.loads(key)): value for key, value in table.items()}
    assert [loads(key) for key in read] == [orjson.loads(key) for key in table]


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
        ('{{"b":"x","a":1}:{7:2}}', {'{"a":1,"b":"x"}': {"7": 2}}),
        ('{"0":1,0:2}', {"0": 2}),
        ('[{1:{2:{}}},{3:[{4:"4:5,6:7"}]}]', [{"1": {"2": {}}}, {"3": [{"4": "4:5,6:7"}]}]),
    ],
)
def test_spellings_of_java_are_understood(text: str, expected: object) -> None:
    assert loads(text, ANSWER) == expected
    assert loads(text.encode(), ANSWER) == expected


def test_raw_object_key_and_quoted_object_key_end_as_texts_that_read_alike() -> None:
    (raw,) = loads('{{"topic":"T","queueId":3}:1}', ANSWER)
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
        "{a:1}",
        "{'a':1}",
        "[1,,2]",
        '{"a":1,}',
        "{{0:1}:2}",
        '{{"a":[1]}:2}',
        '{{"a":{}}:2}',
        "{[1]:2}",
        '{0:"a}',
        '{0:"\\\\',
        "{0:\x001}",
        '{0:"\x01"}',
    ],
)
def test_broken_text_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        loads(text)


@pytest.mark.parametrize("name", [b"\xb6", b"\xb7", b"\xed\xa0\x80"], ids=repr)
@pytest.mark.parametrize("form", [b'{"clientId":"%b"}', b'{"%b":"c"}', b'{0:"%b"}'], ids=repr)
def test_names_that_are_not_utf_8_are_refused_and_do_not_become_one_name(form: bytes, name: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="cannot be read"):
        loads(form % name)


def test_answer_may_have_raw_control_characters_and_halves_of_pairs() -> None:
    # Go's client copies the stacks of its threads into its answer without escapes.
    queues = b'{"mqTable":{{"topic":"T","brokerName":"b","queueId":0}:{}}'
    stacks = b'"jstack":"main.main()\n\t/x/main.go:10 \\ud83d" }'
    assert loads(queues + b", " + stacks, ANSWER) == {
        "mqTable": {'{"brokerName":"b","queueId":0,"topic":"T"}': {}},
        "jstack": "main.main()\n\t/x/main.go:10 \ufffd",
    }
    with pytest.raises(RemoteProtocolError, match="cannot be read"):
        loads(b"{" + stacks, REQUEST)


@pytest.mark.parametrize(
    "value",
    [b"NaN", b"1e999", b"9" * 5000, b'"\xff"', b'"'],
    ids=["NaN", "1e999", "digits", "no UTF-8", "open"],
)
def test_control_character_in_an_answer_makes_nothing_else_valid(value: bytes) -> None:
    assert loads(b'{"a":"\n","b":1}', ANSWER) == {"a": "\n", "b": 1}
    with pytest.raises(RemoteProtocolError, match="cannot be read"):
        loads(b'{"a":"\n","b":%b}' % value, ANSWER)
    with pytest.raises(RemoteProtocolError, match="has control characters"):
        loads(b'{"a":"\x01"}', ANSWER)


def test_object_keys_are_refused_in_requests() -> None:
    text = '{{"topic":"T"}:1}'
    assert loads(text, ANSWER)
    with pytest.raises(RemoteProtocolError, match="an object as key"):
        loads(text, REQUEST)


@pytest.mark.parametrize(
    ("start", "middle", "end"), [("[", "1", "]"), ('{"a":', "1", "}"), ("{7:", "1", "}")]
)
def test_nesting_is_bounded_by_us(start: str, middle: str, end: str) -> None:
    assert loads(start * DEPTH_MAX + middle + end * DEPTH_MAX)
    with pytest.raises(RemoteProtocolError, match=f"nested deeper than {DEPTH_MAX} levels"):
        loads(start * (DEPTH_MAX + 1) + middle + end * (DEPTH_MAX + 1))


def test_brackets_in_strings_are_no_nesting() -> None:
    text = orjson.dumps({"{" * 100: "[" * 100 + '"' * 3})
    assert loads(text) == orjson.loads(text)


SMALL = Limits(size=1000, containers=20, dialect_size=500, dialect_keys=5, object_keys=True)


@pytest.mark.parametrize(
    ("fits", "exceeds", "said"),
    [
        (b'"' + b"x" * 998 + b'"', b'"' + b"x" * 999 + b'"', "1001 bytes is above the limit of 1000"),
        (
            b"[" + b"{},".join([b""] * 20) + b"1" * 30 + b"]",
            b"[" + b"[]," * 20 + b"1" * 30 + b"]",
            "21 objects",
        ),
        (b"{0:" + b"1" * 15 + b" " * 481 + b"}", b"{0:1" + b" " * 496 + b"}", "501 bytes .* limit is 500"),
        (b"{1:1,2:2,3:3,4:4,5:5}", b"{1:1,2:2,3:3,4:4,5:5,6:6}", "more than 5 keys"),
        (
            b'{{"a":1}:1,{"a":2}:1}',
            b"{" + b",".join(b'{"a":%d}:1' % i for i in range(6)) + b"}",
            "more than 5",
        ),
    ],
    ids=["size", "containers", "dialect size", "number keys", "object keys"],
)
def test_each_limit_holds(fits: bytes, exceeds: bytes, said: str) -> None:
    loads(fits, SMALL)
    with pytest.raises(RemoteProtocolError, match=said):
        loads(exceeds, SMALL)


def peak_of(call: Callable[[], object]) -> int:
    """Return the largest number of bytes that were allocated at the same time during a call."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("limits", [REQUEST, ANSWER], ids=["request", "answer"])
def test_raw_object_keys_in_raw_object_keys_cost_what_they_weigh(limits: Limits) -> None:
    # The reader must use little memory. If it escaped keys again at each level, it would make 134 MB from
    # these 105 bytes. With eight more levels, the process would run out of memory.
    levels = 26
    text = b"{" * levels + b"1:1" + b"}:1" * (levels - 1) + b"}"
    assert len(text) == 105

    def refused() -> None:
        with pytest.raises(RemoteProtocolError):
            loads(text, limits)

    refused()
    assert peak_of(refused) < 64 * 1024


@pytest.mark.slow
@pytest.mark.parametrize(
    "strings",
    [
        b'"",' * 5_592_000,
        b'"12345",' * 2_097_000,
        b'"\xf0\x9f\x98\x80' + b"\x03" * 4_190_000 + b'",',
        b'"' + b"\x03" * 16_000_000 + b'",',
    ],
    ids=["empty", "short", "control characters", "too many of them"],
)
def test_longest_answer_of_strings_that_is_no_standard_json_takes_bounded_memory(strings: bytes) -> None:
    def read() -> None:
        with suppress(RemoteProtocolError):
            loads(b'{1:[%b""]}' % strings, ANSWER)

    assert len(strings) < ANSWER.size
    # An answer of standard JSON takes at most half of this memory.
    assert peak_of(read) < 640 << 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        b'"' + b'\\"' * 500_000,
        b'"' + b'\\"' * 500_000 + b"\\",
        b'{"' * 500_000,
        b"{1" * 500_000,
        b"{1:" * 300_000,
        b"{{" * 500_000,
        b"[1" + b",2" * 500_000,
        b",,," * 300_000,
        b"{" + b" " * 1_000_000 + b"1",
        b"{7:" + b"1" * 900_000,
        b"{" + b"{" + b'"a":1,' * 100_000 + b"}:1}",
    ],
    ids=[
        "escapes",
        "escaped end",
        "quotes",
        "numbers",
        "nested keys",
        "braces",
        "list",
        "commas",
        "blanks",
        "digits",
        "object key",
    ],
)
@pytest.mark.parametrize("limits", [REQUEST, ANSWER], ids=["request", "answer"])
def test_hostile_text_is_refused_in_time_and_memory_that_follow_its_size(text: bytes, limits: Limits) -> None:
    for size in (64 * 1024, len(text)):
        part = text[:size]

        def refused(part: bytes = part) -> None:
            with pytest.raises(RemoteProtocolError):
                loads(part, limits)

        allowed = on_this_machine(2.0)
        assert least_cpu_s(lambda work=refused: work, below=allowed) < allowed  # type: ignore[misc]
        assert peak_of(refused) < 100 * size
