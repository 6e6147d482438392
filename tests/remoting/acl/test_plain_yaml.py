"""Tests of the reader of access files, which accepts only a part of YAML.

The reader refuses all other YAML with an error that names the line.
"""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from routekeeper.remoting.acl.plain_yaml import Items, Members, Node, YamlError, parse_yaml, spell_text

SAMPLE = """\
# accounts
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - "192.168.0.*"   # the office
  - '*'

accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
    groupPerms: [groupA=DENY, "group,B=SUB", 'it''s=PUB']

  - accessKey: rocketmq2
    secretKey: "a#b: \\"c\\\\"
dataVersion:
- counter: 1
  timestamp: 17
"""


def plain(node: Node) -> object:
    if isinstance(node, Members):
        return {key: plain(value) for key, value in node.members.items()}
    if isinstance(node, Items):
        return [plain(item) for item in node.items]
    return node.text


def as_text(value: object) -> object:
    """Return the result of a YAML library with each scalar converted to text."""
    if isinstance(value, dict):
        return {key: as_text(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [as_text(inner) for inner in value]
    return value if value is None else str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize(
    "text",
    [
        SAMPLE,
        "",
        "---\na: b\n",
        "a:\n- b\n- c: d\n  e: f\n-\n  g: h\n",
        "a:\n    b:\n      - c\n    d:\n",
        "a: 10.10.103.{1,2}\n",
        "- fe80::1\n- a:b\n",
        "a: b#c\n",
        "a: []\n",
        "\ufeffa: b\n",
    ],
)
def test_text_is_read_as_a_yaml_library_reads_it(text: str) -> None:
    assert plain(parse_yaml(text.encode())) == as_text(yaml.safe_load(text))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: &x b\n", "line 1: a value that begins with & must be in quotes"),
        ("\na: *x\n", r"line 2: a value that begins with \* must be in quotes"),
        ("a: !!python/object:x y\n", "line 1: a value that begins with !"),
        ("a: |\n  text\n", r"line 1: a value that begins with \|"),
        ("a: {b: c}\n", "line 1: a value that begins with {"),
        ("a: b\n---\nc: d\n", "line 2: begins another document"),
        ("a: b\na: c\n", "line 2: a appears twice; keep one"),
        ("a:\n  - b\n c: d\n", "line 3: indented unlike the lines before it"),
        ("a:\n\t- b\n", "line 2: indented by a tab"),
        ("just words\n", "line 1: not KEY: VALUE"),
        ("<<: *x\n", "line 1: not KEY: VALUE"),
        ("a: 'b\n", "line 1: a quoted value must end on its line"),
        ('a: "b" c\n', "line 1: something follows a quoted value"),
        ("a: [b\n", "line 1: a list in brackets must end on its line"),
        ('a: "\\q"\n', r"line 1: \\q in a quoted value is unknown"),
        ('a: "\\ud83d"\n', "line 1: an escape is half of a character"),
        ("a: b: c\n", "line 1: a list or a mapping inside a value"),
        ("a: b\x07\n", "line 1: holds a character that cannot be printed"),
        ("x: " + "y" * 5000 + "\n", "line 1: 5003 characters, allowed are 4096"),
        ("".join(f"{' ' * depth}a:\n" for depth in range(20)), "line 9: nested more than 8 levels deep"),
    ],
)
def test_rest_of_yaml_is_refused_with_its_line(text: str, fault: str) -> None:
    with pytest.raises(YamlError, match=fault):
        parse_yaml(text.encode())


def test_two_escapes_are_the_halves_of_one_character_as_in_java() -> None:
    assert plain(parse_yaml(rb'a: "\ud83d\ude00"')) == {"a": "\U0001f600"}


def test_bytes_that_are_no_text_are_refused_with_their_line() -> None:
    with pytest.raises(YamlError, match="line 2: not UTF-8"):
        parse_yaml(b"a: b\nc: \xff\n")


@settings(max_examples=50)
@given(st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1))
def test_written_value_is_read_back_by_us_and_by_a_yaml_library(text: str) -> None:
    document = f"a: {spell_text(text)}\n"
    assert as_text(yaml.safe_load(document)) == {"a": text}
    assert plain(parse_yaml(document.encode())) == {"a": text}


@pytest.mark.parametrize(
    "text", ["012345678", "1_000", "190:20:30", "0x10", "1e3", "yes", "2020-01-01", "+12", "01234567"]
)
def test_value_that_yaml_reads_as_something_else_is_known(text: str) -> None:
    node = parse_yaml(f"a: {text}\n".encode())
    assert isinstance(node, Members)
    quoted = parse_yaml(f"a: '{text}'\n".encode())
    assert isinstance(quoted, Members)
    ambiguous = str(yaml.safe_load(f"a: {text}\n")["a"]) != text
    # Our reader must count each value as ambiguous that this YAML library changes. It also counts 1e3, which
    # this library reads as a text, but other libraries read as a number.
    assert node.members["a"].is_ambiguous or not ambiguous  # type: ignore[union-attr]
    assert not quoted.members["a"].is_ambiguous  # type: ignore[union-attr]
