"""Tolerant JSON reader: reads standard JSON and the dialect of RocketMQ's fastjson, within limits.

The bodies of RocketMQ are not quite JSON. In a map with numbers as keys, the keys have no quotes
(``{0:"a"}``). In a map with queues as keys, each key is an object (``{{"topic":"T"}:1}``). This module puts
such keys in quotes, which makes the text standard JSON. In answers, strings may also contain halves of
surrogate pairs, and raw control characters above U+0002. fastjson also reads other forms (bare words, single
quotes, empty members). No program sends these forms, so this module refuses them.

Before it reads a text, this module checks the text's size, the number of its objects and arrays, and their
nesting. The time for reading a text is proportional to its length. Compiled code does most of the work.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from itertools import accumulate
from typing import Any, Final, NamedTuple

import msgspec
import orjson

from routekeeper.remoting.errors import RemoteProtocolError

#: Largest number of nested levels of objects and arrays. The deepest real body has six levels.
DEPTH_MAX: Final = 64

#: Exceptions that msgspec's JSON reader raises. Two of them are Python's own: UnicodeDecodeError for bytes
#: that are not UTF-8, and RecursionError for nesting that is too deep.
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1


class Limits(NamedTuple):
    """Limits of one text, so that reading it cannot cost too much time or memory.

    Attributes:
        size: Largest size of the text in bytes.
        containers: Largest number of objects and arrays together. Real bodies have at most one object or
            array for every 70 bytes.
        dialect_size: Largest size in bytes of a text that is no standard JSON.
        dialect_keys: Largest number of keys that are not in the form of standard JSON, in one text.
        object_keys: True if keys may be objects. No request of RocketMQ has such keys.
        raw_size: Largest size in bytes of a text whose strings are as in :func:`loads_raw`.
    """

    size: int
    containers: int
    dialect_size: int
    dialect_keys: int
    object_keys: bool = False
    raw_size: int = 0


_KIB: Final = 1024
_MIB: Final = 1024 * 1024

#: Limits of a text that any client may send to a server.
REQUEST: Final = Limits(size=_MIB, containers=8 * _KIB, dialect_size=64 * _KIB, dialect_keys=_KIB)
#: Limits of a server's answer to this process; the largest frame has the same size. An answer with raw
#: strings takes at most some 450 MiB of memory.
ANSWER: Final = Limits(
    size=16 * _MIB,
    containers=_MIB,
    dialect_size=16 * _MIB,
    dialect_keys=128 * _KIB,
    object_keys=True,
    raw_size=4 * _MIB,
)
#: Limits of an answer that a stranger may have sent to a server.
STRANGERS_ANSWER: Final = ANSWER._replace(dialect_size=4 * _MIB, raw_size=0)
#: Limits of a file that a broker has written.
FILE: Final = Limits(size=1024 * _MIB, containers=64 * _MIB, dialect_size=1024 * _MIB, dialect_keys=64 * _MIB)

# Matches a complete string, or an unterminated string up to the end of the text. Without the second case, the
# search would restart inside an unterminated string, and scan characters twice.
_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
# Matches the characters before a key, and a key that needs quotes. Apply it only to text outside of strings.
_BARE_KEY: Final = re.compile(rb"([{,][ \t\r\n]*+)(-?[0-9]++|\{[^{}]*+\})(?=[ \t\r\n]*+:)")
_RESERVED: Final = re.compile(rb"[\0\1\2]")
_HOLE: Final = b"\0"  # stands for each string of the text while :func:`as_standard` searches the keys
_OPEN: Final = ord("{")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"{}[]"))
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_STEP: Final = {ord("{"): 1, ord("["): 1, ord("}"): -1, ord("]"): -1}


def loads(text: bytes | str, limits: Limits = REQUEST) -> Any:
    """Read one JSON value; every object becomes a ``dict`` with text keys.

    A number as key becomes the text of its digits. An object as key becomes its compact JSON text with sorted
    members, which :func:`loads` can read again. A quoted key keeps its text.

    Raises:
        RemoteProtocolError: If the text cannot be read, or is above a limit.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    check_shape(data, limits)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    standard = as_standard(data, limits)
    try:
        return orjson.loads(standard)
    except orjson.JSONDecodeError as error:
        fault = error.msg
    if len(standard) <= limits.raw_size:
        with suppress(ValueError):
            return loads_raw(standard.decode())
    raise RemoteProtocolError(f"JSON of {len(data)} bytes cannot be read: {fault}")


def loads_raw(text: str) -> Any:
    """Read JSON whose strings may contain raw control characters and halves of surrogate pairs.

    A half becomes U+FFFD. Everything else must be standard JSON. The caller limits the text's size, because
    reading may take 100 times as much memory.

    Raises:
        ValueError: If the text is no such JSON.
        RecursionError: If the text is nested too deeply.
    """
    # Python's json module also reads other forms, such as NaN. orjson refuses them.
    spelt = json.dumps(json.loads(text, strict=False), ensure_ascii=False)
    return orjson.loads(_SURROGATE.sub("\ufffd", spelt).encode())


def check_shape(data: bytes, limits: Limits) -> None:
    """Check a text's size and brackets before the text is parsed.

    Raises:
        RemoteProtocolError: If the text is too large, or if its objects and arrays are too many or nested too
            deeply. Brackets inside strings count as objects and arrays, but not as nesting.
    """
    size = len(data)
    if size <= DEPTH_MAX:  # too short to exceed any limit
        return
    if size > limits.size:
        raise RemoteProtocolError(f"JSON of {size} bytes is above the limit of {limits.size}")
    brackets = data.translate(None, _NO_BRACKETS)
    if len(brackets) > 2 * limits.containers:
        raise RemoteProtocolError(
            f"JSON of {size} bytes has {len(brackets) // 2} objects and arrays, "
            f"above the limit of {limits.containers}"
        )
    if (
        _depth(brackets) > DEPTH_MAX
        and _depth(_STRING.sub(b"", data).translate(None, _NO_BRACKETS)) > DEPTH_MAX
    ):
        raise RemoteProtocolError(f"JSON of {size} bytes is nested deeper than {DEPTH_MAX} levels")


def _depth(brackets: bytes) -> int:
    return max(accumulate(map(_STEP.__getitem__, brackets)), default=0)


def as_standard(data: bytes, limits: Limits) -> bytes:
    """Put number keys and object keys in quotes; return the other text unchanged, even if it is invalid.

    Raises:
        RemoteProtocolError: If the text exceeds a limit of the dialect, or if an object key cannot be read.
    """
    size = len(data)
    if size > limits.dialect_size:
        raise RemoteProtocolError(
            f"text of {size} bytes is no standard JSON, and for others the limit is {limits.dialect_size}"
        )
    # A string takes about 200 bytes of memory below. Real texts have at most one string for every 8 bytes.
    if data.count(b'"') > limits.dialect_size // 4:
        raise RemoteProtocolError(
            f"text of {size} bytes has more than {limits.dialect_size // 8} strings and is no standard JSON"
        )
    if _RESERVED.search(data):
        raise RemoteProtocolError(f"text of {size} bytes has control characters, which JSON does not allow")
    strings: list[bytes] = _STRING.findall(data)
    pieces = _BARE_KEY.split(_STRING.sub(_HOLE, data), limits.dialect_keys + 1)
    if len(pieces) > 3 * limits.dialect_keys + 1:
        raise RemoteProtocolError(
            f"text of {size} bytes has more than {limits.dialect_keys} keys that are no standard JSON"
        )
    pieces[2::3] = [b"\1%b\2" % key if key[0] == _OPEN else b'"%b"' % key for key in pieces[2::3]]
    parts = b"".join(pieces).split(_HOLE)
    filled = [b""] * (2 * len(parts) - 1)
    filled[::2], filled[1::2] = parts, strings
    first, *keyed = b"".join(filled).split(b"\1")
    if keyed and not limits.object_keys:
        raise RemoteProtocolError(f"text of {size} bytes has an object as key, which no request has")
    parts = [first]
    for text in keyed:
        key, _, rest = text.partition(b"\2")
        parts += (_quoted_object(key), rest)
    return b"".join(parts)


def _quoted_object(text: bytes) -> bytes:
    try:
        return orjson.dumps(canonical(orjson.loads(text)))
    except orjson.JSONDecodeError as error:
        raise RemoteProtocolError(
            f"raw object key of {len(text)} bytes cannot be read: {error.msg}"
        ) from None


def canonical(value: Any) -> str:
    """Return the compact JSON text of a value with sorted members, as :func:`loads` writes object keys."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def as_object(value: object, what: str) -> dict[str, Any]:
    """Return a value that must be a JSON object.

    Raises:
        RemoteProtocolError: If the value is no object.
    """
    if type(value) is not dict:
        raise RemoteProtocolError(f"{what} is a JSON {type(value).__name__}, must be an object")
    return value


def get_list(members: Mapping[str, Any], name: str) -> Collection[Any]:
    """Return a member that must be an array; empty if it is absent or null.

    Raises:
        RemoteProtocolError: If the member is no array.
    """
    value = members.get(name)
    if value is None:
        return ()
    if type(value) is not list:
        raise RemoteProtocolError(f"{name} is a JSON {type(value).__name__}, must be an array")
    return value


def get_int(
    members: Mapping[str, Any],
    name: str,
    default: int = 0,
    *,
    limit: int = INT32_MAX,
    least: int | None = None,
) -> int:
    """Return a member that must be an integer, as a number or as text; ``default`` if it is absent or null.

    Args:
        limit: Largest value.
        least: Smallest value; None for ``-limit - 1``.

    Raises:
        RemoteProtocolError: If the value is not an integer, or is outside the bounds.
    """
    value = members.get(name)
    return default if value is None else as_int(value, name, limit=limit, least=least)


def is_integer(text: str) -> bool:
    """Return True if the text is an integer of up to 19 decimal digits.

    ``int()`` also reads blanks, underscores (``1_6``) and the digits of other scripts. RocketMQ refuses
    blanks and underscores.
    """
    return _INTEGER.fullmatch(text) is not None


def as_int(value: object, what: str, *, limit: int = INT32_MAX, least: int | None = None) -> int:
    """Return a value that must be an integer, as a number or as text; :func:`get_int` explains the bounds.

    Raises:
        RemoteProtocolError: If the value is not an integer, or is outside the bounds.
    """
    low = -limit - 1 if least is None else least
    if type(value) is str and is_integer(value):
        value = int(value)
    if type(value) is not int or not low <= value <= limit:
        shown = value if type(value) in (str, int, float, bool) else type(value).__name__
        raise RemoteProtocolError(f"{what} is {str(shown)[:40]!r}, allowed: integers from {low} to {limit}")
    return value


def get_bool(members: Mapping[str, Any], name: str) -> bool:
    """Return True for JSON true, and for the text "true" in upper or lower case; else False.

    RocketMQ's JSON library, fastjson, reads booleans in the same way.
    """
    value = members.get(name)
    return value is True or (type(value) is str and value.lower() == "true")


def get_text(members: Mapping[str, Any], name: str) -> str | None:
    """Return a member as text; None if the member is absent or null.

    A number or a boolean becomes its JSON text.

    Raises:
        RemoteProtocolError: If the member is an object or an array.
    """
    value = members.get(name)
    if value is None or type(value) is str:
        return value
    if type(value) in (int, float, bool):
        return orjson.dumps(value).decode()
    raise RemoteProtocolError(f"{name} is a JSON {type(value).__name__}, must be text")


def need_text(members: Mapping[str, Any], name: str) -> str:
    """Return a member that must be present, as text; :func:`get_text` explains the conversion.

    Raises:
        RemoteProtocolError: If the member is absent, null, an object or an array.
    """
    value = get_text(members, name)
    if value is None:
        raise RemoteProtocolError(f"{name} is missing, must be text")
    return value


def as_texts(value: object, what: str) -> tuple[str, ...]:
    """Return a value that must be an array of texts.

    Raises:
        RemoteProtocolError: If the value is no array, or an item is no text.
    """
    if type(value) is not list or not all(type(item) is str for item in value):
        raise RemoteProtocolError(f"{what} must be an array of texts")
    return tuple(value)


def as_text_map(value: object, what: str) -> dict[str, str]:
    """Return a JSON object of plain values as a map of texts; an empty map for null.

    Raises:
        RemoteProtocolError: If the value is no object, or a member is an object or an array.
    """
    if value is None:
        return {}
    members = as_object(value, what)
    return {name: get_text(members, name) or "" for name in members}
