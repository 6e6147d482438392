"""Tolerant JSON reader: standard JSON and the dialect of RocketMQ's fastjson, within bounds.

Bodies of RocketMQ are not quite JSON: maps with number keys have them unquoted (``{0:"a"}``), maps with a
queue as key carry the raw object as key (``{{"topic":"T"}:1}``). These keys are put in quotes; then the text
is standard JSON. fastjson reads other forms, too (bare words, single quotes, empty members); no program sends
these, so they are refused.

The cost of a text is checked before it is read: its size, the number of its objects and arrays, and their
nesting. Each step is linear in the text and runs in compiled code.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from itertools import accumulate
from typing import Any, Final, NamedTuple

import msgspec
import orjson

from routekeeper.remoting.errors import RemoteProtocolError

#: Deepest nesting of objects and arrays that is read. The deepest real body has six levels.
DEPTH_MAX: Final = 64

#: Exceptions that are not msgspec's own: for bytes that are no UTF-8, and for too deep nesting.
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1


class Limits(NamedTuple):
    """Limits of the cost of one text for its reader.

    Attributes:
        size: Bytes.
        containers: Objects and arrays. Real bodies have one in 70 bytes or fewer.
        dialect_size: Bytes of a text that is no standard JSON.
        dialect_keys: Keys of such a text that standard JSON does not allow.
        object_keys: Objects may be among these keys. No request of RocketMQ has such keys.
    """

    size: int
    containers: int
    dialect_size: int
    dialect_keys: int
    object_keys: bool = False


_KIB: Final = 1024
_MIB: Final = 1024 * 1024

#: Limits of a text that any client may send to a server.
REQUEST: Final = Limits(size=_MIB, containers=8 * _KIB, dialect_size=64 * _KIB, dialect_keys=_KIB)
#: Limits of a text in a server's answer to us; a frame is not larger.
ANSWER: Final = Limits(
    size=16 * _MIB, containers=_MIB, dialect_size=4 * _MIB, dialect_keys=128 * _KIB, object_keys=True
)
#: Limits of a file that a broker has written.
FILE: Final = Limits(size=1024 * _MIB, containers=64 * _MIB, dialect_size=1024 * _MIB, dialect_keys=64 * _MIB)

# A complete string, or an unterminated one up to the end, so that no character is scanned twice.
_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
# Text before a key, and a key that needs quotes. Apply it only to text outside strings.
_BARE_KEY: Final = re.compile(rb"([{,][ \t\r\n]*+)(-?[0-9]++|\{[^{}]*+\})(?=[ \t\r\n]*+:)")
_RESERVED: Final = re.compile(rb"[\0\1\2]")
_HOLE: Final = b"\0"  # replaces a string while keys are searched
_OPEN: Final = ord("{")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"{}[]"))
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_STEP: Final = {ord("{"): 1, ord("["): 1, ord("}"): -1, ord("]"): -1}


def loads(text: bytes | str, limits: Limits = REQUEST) -> Any:
    """Read one JSON value; every object becomes a ``dict`` with text keys.

    A number key becomes its digits, a raw object key its compact JSON text with sorted members, so that the
    raw and the quoted form of a key both end as text which :func:`loads` reads again.

    Raises:
        RemoteProtocolError: If the text cannot be read, or is above a limit.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    check_shape(data, limits)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    try:
        return orjson.loads(as_standard(data, limits))
    except orjson.JSONDecodeError as error:
        raise RemoteProtocolError(f"JSON of {len(data)} bytes cannot be read: {error.msg}") from None


def check_shape(data: bytes, limits: Limits) -> None:
    """Check a text's size and brackets before it is read.

    Raises:
        RemoteProtocolError: If it is too large, or has too many or too deeply nested objects and arrays.
            Brackets in strings are counted too, but not as nesting.
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
    """Return a text with its number keys and raw object keys in quotes; the rest is unchanged, valid or not.

    Raises:
        RemoteProtocolError: If it is above a limit of the dialect, or a raw object key cannot be read.
    """
    size = len(data)
    if size > limits.dialect_size:
        raise RemoteProtocolError(
            f"text of {size} bytes is no standard JSON, and for others the limit is {limits.dialect_size}"
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
    """Return the compact JSON text of a value, members sorted: how a raw object key is spelt as text."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def as_object(value: object, what: str) -> dict[str, Any]:
    """Return a value that must be an object.

    Raises:
        RemoteProtocolError: If the value is no object.
    """
    if type(value) is not dict:
        raise RemoteProtocolError(f"{what} is a JSON {type(value).__name__}, must be an object")
    return value


def get_list(members: Mapping[str, Any], name: str) -> Collection[Any]:
    """Return a member that must be an array; empty if absent or null.

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
    """Return a member that must be an integer, also spelt as text; ``default`` if absent or null.

    Args:
        limit: Largest value.
        least: Smallest value; None for ``-limit - 1``.

    Raises:
        RemoteProtocolError: If the value is no integer within the bounds.
    """
    value = members.get(name)
    return default if value is None else as_int(value, name, limit=limit, least=least)


def as_int(value: object, what: str, *, limit: int = INT32_MAX, least: int | None = None) -> int:
    """Return a value that must be an integer, also spelt as text; see :func:`get_int`.

    Raises:
        RemoteProtocolError: If the value is no integer within the bounds.
    """
    low = -limit - 1 if least is None else least
    if type(value) is str and _INTEGER.fullmatch(value):
        value = int(value)
    if type(value) is not int or not low <= value <= limit:
        shown = value if type(value) in (str, int, float, bool) else type(value).__name__
        raise RemoteProtocolError(f"{what} is {str(shown)[:40]!r}, allowed: integers from {low} to {limit}")
    return value


def get_bool(members: Mapping[str, Any], name: str) -> bool:
    """Return a member as fastjson reads a boolean: true, or the text "true" in any case; otherwise false."""
    value = members.get(name)
    return value is True or (type(value) is str and value.lower() == "true")


def get_text(members: Mapping[str, Any], name: str) -> str | None:
    """Return a member that must be text or a plain value, which is spelt as text.

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
    """Return a member that must be there, as text; see :func:`get_text`.

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
    """Return a value that must be an object of texts or plain values, which are spelt as text; empty if null.

    Raises:
        RemoteProtocolError: If the value is no object, or a member is an object or an array.
    """
    if value is None:
        return {}
    members = as_object(value, what)
    return {name: get_text(members, name) or "" for name in members}
