"""Reader of the part of YAML that RocketMQ's access files use; each value keeps its line number.

The module reads:

- mappings and lists by indentation;
- lists in brackets on one line;
- plain and quoted values on one line;
- comments.

The module refuses all other YAML, such as tags, anchors, aliases, merge keys and folded texts. Without
aliases, a small file cannot become large in memory. Every value stays text, and never becomes a number, a
date or a boolean. A YAML library would convert values, and would lose the line numbers that errors name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

#: Largest number of nested levels. Access files have three levels.
DEPTH_MAX: Final = 8
#: Longest line in characters. The longest lines in real access files have 300 characters.
LINE_MAX: Final = 4096

_KEY: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]*) *:(?: +(.*)|$)")
_COMMENT: Final = re.compile(r"(?:^|[ \t])#")
_DOUBLE: Final = re.compile(r'"((?:[^"\\]|\\.)*)"')
_SINGLE: Final = re.compile(r"'((?:[^']|'')*)'")
_ESCAPE: Final = re.compile(
    r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U(000[0-9A-Fa-f]{5}|0010[0-9A-Fa-f]{4})|(.))"
)
_ESCAPES: Final = {'"': '"', "\\": "\\", "/": "/", "n": "\n", "t": "\t", " ": " "}
#: Characters that have a special meaning at the start of a value.
_INDICATORS: Final = "&*!|>%@`{}[],?:#\"'"
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
#: Plain texts that RocketMQ's YAML 1.1 reader would convert to another text: octal and other numbers,
#: booleans, dates. Whole decimal numbers are not listed, because their text stays the same.
_OTHER: Final = re.compile(
    r"[-+]?0[0-7_]+|[-+]?0[xX][0-9A-Fa-f_]+|[-+]?0b[01_]+|[-+]?[0-9][0-9_]*(?::[0-9.]+)+|\+[0-9]+|[-+]?[0-9]+_[0-9_]*"
    r"|[-+]?[0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+|[-+]?\.(?:inf|nan)"
    r"|yes|no|true|false|on|off|y|n|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*",
    re.IGNORECASE,
)
_SAFE: Final = re.compile(r"[A-Za-z0-9_.%$/][A-Za-z0-9_.%$/=|*:,-]*")


class YamlError(ValueError):
    """Error: a line cannot be read; the message names the line."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"line {line}: {message}")


@dataclass(frozen=True, slots=True)
class Text:
    """A value on one line.

    Attributes:
        text: The value; None if the value is missing or is null.
        is_plain: True if the value is written without quotes.
    """

    text: str | None
    line: int
    is_plain: bool = True

    @property
    def is_ambiguous(self) -> bool:
        """True if another YAML reader could convert the value, for example to a number or a date."""
        return self.is_plain and self.text is not None and _OTHER.fullmatch(self.text) is not None


@dataclass(frozen=True, slots=True)
class Items:
    """A list, in the order of the file."""

    items: tuple[Node, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Members:
    """A mapping, in the order of the file."""

    members: Mapping[str, Node]
    line: int


Node = Text | Items | Members


def parse_yaml(content: bytes) -> Node:
    """Return the value that a file contains.

    Raises:
        YamlError: The file uses YAML that this module does not read.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise YamlError(line, "not UTF-8") from None
    reader = _Reader(text)
    return reader.document()


@dataclass(slots=True)
class _Line:
    indent: int
    text: str
    number: int


class _Reader:
    def __init__(self, text: str) -> None:
        self._lines = list(_lines(text))
        self._at = 0

    def document(self) -> Node:
        if not self._lines:
            return Text(None, 1)
        found = self._block(self._lines[0].indent, 1)
        if self._at < len(self._lines):
            line = self._lines[self._at]
            raise YamlError(line.number, "indented unlike the lines before it")
        return found

    def _next(self) -> _Line | None:
        return self._lines[self._at] if self._at < len(self._lines) else None

    def _block(self, indent: int, depth: int) -> Node:
        line = self._lines[self._at]
        if depth > DEPTH_MAX:
            raise YamlError(line.number, f"nested more than {DEPTH_MAX} levels deep")
        if _is_item(line.text):
            return self._items(indent, depth)
        return self._members(indent, depth)

    def _items(self, indent: int, depth: int) -> Items:
        first = self._lines[self._at].number
        items: list[Node] = []
        while (line := self._next()) is not None and line.indent == indent and _is_item(line.text):
            rest = line.text[1:].lstrip(" ")
            if _KEY.match(rest):
                # "- key: value" begins a mapping, whose indentation is the position of the key.
                line.indent, line.text = indent + len(line.text) - len(rest), rest
                items.append(self._block(line.indent, depth + 1))
                continue
            items.append(self._value(line, rest, indent, depth))
        return Items(tuple(items), first)

    def _members(self, indent: int, depth: int) -> Members:
        first = self._lines[self._at].number
        members: dict[str, Node] = {}
        while (line := self._next()) is not None and line.indent == indent and not _is_item(line.text):
            match = _KEY.fullmatch(line.text)
            if match is None:
                raise YamlError(line.number, "not KEY: VALUE")
            key = match[1]
            if key in members:
                raise YamlError(line.number, f"{key} appears twice; keep one")
            members[key] = self._value(line, match[2] or "", indent, depth, of_key=True)
        return Members(members, first)

    def _value(self, line: _Line, rest: str, indent: int, depth: int, *, of_key: bool = False) -> Node:
        """Return the value after a key or a dash: on the same line, or indented below it."""
        self._at += 1
        if rest:
            return _on_line(rest, line.number)
        below = self._next()
        if below is not None and (
            below.indent > indent or (of_key and below.indent == indent and _is_item(below.text))
        ):
            return self._block(below.indent, depth + 1)
        return Text(None, line.number)


def _is_item(text: str) -> bool:
    return text == "-" or text.startswith("- ")


def _lines(text: str) -> Sequence[_Line]:
    lines: list[_Line] = []
    for number, whole in enumerate(text.splitlines(), start=1):
        if len(whole) > LINE_MAX:
            raise YamlError(number, f"{len(whole)} characters, allowed are {LINE_MAX}")
        content = _without_comment(whole).rstrip()
        bare = content.lstrip(" ")
        if not bare or (bare == "---" and not lines):
            continue
        if bare.startswith("\t"):
            raise YamlError(number, "indented by a tab, allowed are blanks")
        if not bare.isprintable():
            raise YamlError(number, "holds a character that cannot be printed")
        if content.startswith(("---", "...", "%")):
            raise YamlError(number, "begins another document or a directive, allowed is one document")
        lines.append(_Line(len(content) - len(bare), bare, number))
    return lines


def _without_comment(line: str) -> str:
    if "#" not in line:
        return line
    if '"' not in line and "'" not in line:
        found = _COMMENT.search(line)
        return line if found is None else line[: found.start()]
    quote, before, at = "", " ", 0
    while at < len(line):
        char = line[at]
        if quote:
            if char == "\\" and quote == '"':
                at += 1
            elif char == quote:
                quote = ""
        elif char in "\"'" and before in " \t[,":
            quote = char
        elif char == "#" and before in " \t":
            return line[:at]
        before = char
        at += 1
    return line


def _on_line(text: str, line: int) -> Node:
    if text.startswith("["):
        if not text.endswith("]"):
            raise YamlError(line, "a list in brackets must end on its line")
        return Items(tuple(_flow(text[1:-1].strip(), line)), line)
    value, rest = _scalar(text, line)
    if rest:
        raise YamlError(line, "something follows a quoted value")
    return value


def _flow(text: str, line: int) -> list[Node]:
    items: list[Node] = []
    while text:
        if text[0] in "\"'":
            value, text = _scalar(text, line)
            text = text.lstrip(" ")
            if text and not text.startswith(","):
                raise YamlError(line, "something follows a quoted value")
        else:
            plain, mark, after = text.partition(",")
            value, _ = _scalar(plain.strip(), line)
            text = mark + after
        items.append(value)
        text = text[1:].lstrip(" ")
    return items


def _scalar(text: str, line: int) -> tuple[Text, str]:
    """Return the value at the start of a text, and the remaining text."""
    if text.startswith('"'):
        match = _DOUBLE.match(text)
        if match is None:
            raise YamlError(line, "a quoted value must end on its line")
        return Text(_unescape(match[1], line), line, is_plain=False), text[match.end() :]
    if text.startswith("'"):
        match = _SINGLE.match(text)
        if match is None:
            raise YamlError(line, "a quoted value must end on its line")
        return Text(match[1].replace("''", "'"), line, is_plain=False), text[match.end() :]
    if text[:1] and text[0] in _INDICATORS:
        raise YamlError(line, f"a value that begins with {text[0]} must be in quotes")
    if _is_item(text) or ": " in text or text.endswith(":"):
        raise YamlError(line, "a list or a mapping inside a value; put the value in quotes")
    return Text(None if text in _NULLS else text, line), ""


def _unescape(text: str, line: int) -> str:
    def one(match: re.Match[str]) -> str:
        if match[4] is None:
            return chr(int(match[1] or match[2] or match[3], 16))
        if match[4] not in _ESCAPES:
            raise YamlError(line, f"\\{match[4]} in a quoted value is unknown")
        return _ESCAPES[match[4]]

    found = _ESCAPE.sub(one, text)
    try:
        # Two escapes can be the halves of one character (a surrogate pair). Join them, as Java does.
        return found.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise YamlError(line, "an escape is half of a character, allowed are whole characters") from None


def spell_text(text: str) -> str:
    """Return a text in a spelling that :func:`parse_yaml` and all other YAML readers read as this text."""
    if _SAFE.fullmatch(text) and not text.endswith(":") and text not in _NULLS and not _OTHER.fullmatch(text):
        return text
    spelt = "".join(
        "\\" + char if char in '"\\' else char if " " <= char <= "~" else _spell_unusual(char)
        for char in text
    )
    return f'"{spelt}"'


def _spell_unusual(char: str) -> str:
    if char.isprintable():
        return char
    return f"\\u{ord(char):04x}" if ord(char) <= 0xFFFF else f"\\U{ord(char):08x}"
