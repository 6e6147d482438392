"""Tests of Java's text format for properties: we must read and write it exactly as Java does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routekeeper.remoting.properties import (
    escape_properties,
    format_properties,
    outranked,
    parse_properties,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a=1\nb:2\nc 3\n", {"a": "1", "b": "2", "c": "3"}),
        ("# note\n! note\n\n  a = 1 \r\n", {"a": "1 "}),
        ("a=1\rb=2\r\nc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\x0b2\x852\u20282", {"a": "1\x0b2\x852\u20282"}),
        ("a=1,\\\n   2\n", {"a": "1,2"}),
        ("\\\n   a=1\n", {"a": "1"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("path=C:\\\\data\n", {"path": "C:\\data"}),
        ("a\\ b\\=c=d\\:e", {"a b=c": "d:e"}),
        ("a=\\u00e9\\t\\q\\é", {"a": "é\tqé"}),
        ("a=\\ud83d\\ude00", {"a": "😀"}),
        ("a=1\na=2", {"a": "2"}),
        ("lonely", {"lonely": ""}),
        ("a=\\", {"a": ""}),
    ],
    ids=[
        "separators",
        "comments",
        "line ends",
        "what ends no line",
        "continued",
        "continued at once",
        "even backslashes",
        "backslash",
        "escaped key",
        "escapes",
        "surrogates",
        "later line wins",
        "no value",
        "backslash at the end",
    ],
)
def test_properties_read_as_java_reads_them(text: str, values: dict[str, str]) -> None:
    assert parse_properties(text) == values


@pytest.mark.parametrize("escape", ["\\u12", "\\u12x4", "\\u+123"])
def test_bad_unicode_escape_is_named_with_its_line(escape: str) -> None:
    with pytest.raises(ValueError, match=r"^line 4: .*four hexadecimal digits"):
        parse_properties(f"a=1\nc=1,\\\n2\nb={escape}\n")


def test_properties_are_written_sorted() -> None:
    assert format_properties({"b": "2", "a": "1=\\"}) == "a=1=\\\nb=2\n"
    assert escape_properties({"b": " zürich 1", "a": "1=\\"}) == b"a=1\\=\\\\\nb=\\ z\\u00fcrich 1\n"


@given(st.dictionaries(TEXTS.filter(bool), TEXTS))
def test_any_properties_survive_writing_and_reading(values: dict[str, str]) -> None:
    assert parse_properties(escape_properties(values).decode("ascii")) == values


def test_setting_of_a_file_is_outranked_by_another_value_only_and_not_under_a_flag() -> None:
    file = {"a": "1 ", "b": "2", "c": "3", "d": "4", "f": "True"}
    changes = {"a": "1", "b": "20", "c": "30", "e": "5", "f": "true"}
    assert outranked(file, changes, {"c": "31"}) == (("b", "2", "20"),)
