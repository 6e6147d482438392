"""Tolerant JSON reader: accepts what Java's fastjson writes and reads, within fixed bounds.

Bodies of RocketMQ are JSON only nearly: maps with number keys have them unquoted (``{0:"a"}``), maps with
object keys carry the raw object as key (``{{"topic":"T"}:1}``), keys may be in single quotes or bare words.
Standard JSON takes the fast road (orjson); so does JSON whose only fault is unquoted number keys. The rest
goes through the small parser below.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from remoting.errors import RemoteProtocolError

#: Deepest nesting of objects and arrays that is read. The deepest real body has six levels.
DEPTH_MAX: Final = 64
#: Largest text in bytes that the slow parser takes: a hostile body must not hold the caller for seconds.
SLOW_TEXT_MAX: Final = 1024 * 1024

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

# A whole string, kept as it is (also an unterminated one: nothing is scanned twice), or a bare number key.
_NUMBER_KEY: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\Z)|([{,]\s*+)(-?\d++)(\s*+:)', re.DOTALL)
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_WORD: Final = re.compile(r"[A-Za-z0-9_$.+\-]+")
_NUMBER: Final = re.compile(r"-?\d{1,19}(?:(\.\d+)?([eE][+-]?\d{1,4})?)(?![A-Za-z0-9_$.])")
_DOUBLE: Final = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_SINGLE: Final = re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL)
_WORDS: Final[dict[str, Any]] = {"true": True, "false": False, "null": None, "NaN": None}


def loads(text: bytes | str, *, slow_text_max: int = SLOW_TEXT_MAX) -> Any:
    """Read one JSON value as fastjson would; every object becomes a ``dict`` with text keys.

    A number key becomes its digits, a raw object key its compact JSON text with sorted members, so that the
    raw and the quoted form of a key both end as text which :func:`loads` reads again.

    Args:
        slow_text_max: Size in bytes up to which text that is not even nearly JSON is looked at.

    Raises:
        RemoteProtocolError: If the text cannot be read, or is nested deeper than the bound.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)
    try:
        return orjson.loads(_NUMBER_KEY.sub(_quote, data))
    except orjson.JSONDecodeError:
        pass
    if len(data) > slow_text_max:
        raise RemoteProtocolError(f"text of {len(data)} bytes is no standard JSON and above {slow_text_max}")
    try:
        plain = data.decode()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"JSON of {len(data)} bytes is not UTF-8: {error.reason}") from None
    parser = _Parser(plain)
    value = parser.value(0)
    parser.end()
    return value


def canonical(value: Any) -> str:
    """Return the compact JSON text of a value, members sorted: how a raw object key is spelt as text."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _quote(match: re.Match[bytes]) -> bytes:
    if match[2] is None:
        return match[0]
    return match[1] + b'"' + match[2] + b'"' + match[3]


class _Parser:
    """Recursive descent over one text; position only moves forward."""

    __slots__ = ("_position", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def value(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise RemoteProtocolError(f"JSON is nested deeper than {DEPTH_MAX} levels")
        mark = self._peek()
        if mark == "{":
            return self._object(depth)
        if mark == "[":
            return self._array(depth)
        if mark in "\"'":
            return self._string()
        number = _NUMBER.match(self._text, self._position)
        if number is not None:
            self._position = number.end()
            if number[1] is not None or number[2] is not None:
                return float(number[0])
            integer = int(number[0])
            if not -(2**63) <= integer < 2**63:
                raise RemoteProtocolError(f"JSON number {number[0]} does not fit 64 bits")
            return integer
        word = _WORD.match(self._text, self._position)
        if word is not None and word[0] in _WORDS:
            self._position = word.end()
            return _WORDS[word[0]]
        raise self._error("a value")

    def end(self) -> None:
        if self._peek(allow_end=True):
            raise self._error("the end")

    def _peek(self, *, allow_end: bool = False) -> str:
        space = _SPACE.match(self._text, self._position)
        assert space is not None
        self._position = space.end()
        if self._position >= len(self._text):
            if allow_end:
                return ""
            raise RemoteProtocolError(f"JSON of {len(self._text)} characters ends early")
        return self._text[self._position]

    def _take(self, mark: str) -> None:
        if self._peek() != mark:
            raise self._error(repr(mark))
        self._position += 1

    def _object(self, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        self._take("{")
        while True:
            mark = self._peek()
            if mark == "}":
                self._position += 1
                return members
            if mark == ",":  # fastjson skips empty members
                self._position += 1
                continue
            key = self._key(mark, depth)
            self._take(":")
            members[key] = self.value(depth + 1)
            if self._peek() != "}":
                self._take(",")

    def _key(self, mark: str, depth: int) -> str:
        if mark in "\"'":
            return self._string()
        if mark in "{[":
            return canonical(self.value(depth + 1))
        word = _WORD.match(self._text, self._position)
        if word is None:
            raise self._error("a key")
        self._position = word.end()
        return word[0]

    def _array(self, depth: int) -> list[Any]:
        values: list[Any] = []
        self._take("[")
        while True:
            mark = self._peek()
            if mark == "]":
                self._position += 1
                return values
            if mark == ",":
                self._position += 1
                continue
            values.append(self.value(depth + 1))
            if self._peek() != "]":
                self._take(",")

    def _string(self) -> str:
        single = self._text[self._position] == "'"
        match = (_SINGLE if single else _DOUBLE).match(self._text, self._position)
        if match is None:
            raise self._error("the end of a string")
        self._position = match.end()
        inner = match[1]
        if single:
            inner = inner.replace("\\'", "'").replace('"', '\\"')
        elif "\\'" in inner:
            inner = inner.replace("\\'", "'")
        if "\\" not in inner:
            return inner
        try:
            text: str = orjson.loads(b'"%b"' % inner.encode())
        except (orjson.JSONDecodeError, UnicodeEncodeError):
            raise self._error("a valid escape before") from None
        return text

    def _error(self, wanted: str) -> RemoteProtocolError:
        found = self._text[self._position : self._position + 12]
        return RemoteProtocolError(f"JSON has {found!r} at character {self._position}, expected {wanted}")


def as_object(value: object, what: str) -> dict[str, Any]:
    """Return a value that must be an object.

    Raises:
        RemoteProtocolError: If it is something else.
    """
    if type(value) is not dict:
        raise RemoteProtocolError(f"{what} is a JSON {type(value).__name__}, must be an object")
    return value


def get_list(members: Mapping[str, Any], name: str) -> Iterable[Any]:
    """Return a member that must be an array; empty if absent or null.

    Raises:
        RemoteProtocolError: If it is something else.
    """
    value = members.get(name)
    if value is None:
        return ()
    if type(value) is not list:
        raise RemoteProtocolError(f"{name} is a JSON {type(value).__name__}, must be an array")
    return value


def get_int(members: Mapping[str, Any], name: str, default: int = 0, *, limit: int = INT32_MAX) -> int:
    """Return a member that must be an integer, also spelt as text; ``default`` if absent or null.

    Args:
        limit: Largest value; the smallest is ``-limit - 1``.

    Raises:
        RemoteProtocolError: If it is no integer within the bounds.
    """
    value = members.get(name)
    return default if value is None else as_int(value, name, limit=limit)


def as_int(value: object, what: str, *, limit: int = INT32_MAX) -> int:
    """Return a value that must be an integer, also spelt as text.

    Raises:
        RemoteProtocolError: If it is no integer within the bounds.
    """
    if type(value) is str:
        try:
            value = int(value)
        except ValueError:
            pass
    if type(value) is not int or not -limit - 1 <= value <= limit:
        bits = limit.bit_length() + 1
        raise RemoteProtocolError(f"{what}={str(value)[:40]!r} is no integer of {bits} bits")
    return value


def get_bool(members: Mapping[str, Any], name: str) -> bool:
    """Return a member as fastjson reads a boolean: also from text, any case; else false.

    Raises:
        RemoteProtocolError: If it is something else.
    """
    value = members.get(name)
    return value is True or (type(value) is str and value.lower() == "true")


def get_text(members: Mapping[str, Any], name: str) -> str | None:
    """Return a member that must be text or a plain value, which is spelt as text.

    Raises:
        RemoteProtocolError: If it is something else.
    """
    value = members.get(name)
    if value is None or type(value) is str:
        return value
    if type(value) in (int, float, bool):
        return orjson.dumps(value).decode()
    raise RemoteProtocolError(f"{name} is a JSON {type(value).__name__}, must be text")


def as_texts(value: object, what: str) -> tuple[str, ...]:
    """Return a value that must be an array of texts.

    Raises:
        RemoteProtocolError: If it is something else.
    """
    if type(value) is not list or not all(type(item) is str for item in value):
        raise RemoteProtocolError(f"{what} must be an array of texts")
    return tuple(value)


def as_text_map(value: object, what: str) -> dict[str, str]:
    """Return a value that must be an object of texts; empty if null.

    Raises:
        RemoteProtocolError: If it is something else.
    """
    if value is None:
        return {}
    members = as_object(value, what)
    return {name: "" if item is None else str(item) for name, item in members.items()}
