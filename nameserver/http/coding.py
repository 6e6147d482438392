"""Encoding of answers: JSON in steps, gzip in steps, entity tags, and cursors of pages.

This module does no I/O and reads no clock.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web

from routekeeper.remoting.steps import STEP, Steps, in_chunks

GZIP_MIN: Final = 1_024
"""Smallest answer in bytes that is compressed for clients that accept gzip."""
_GZIP_LEVEL: Final = 1
_GZIP: Final = 31
"""Value of zlib's ``wbits`` that makes zlib write the gzip format with the largest window."""
GZIP_STEP: Final = 64 * 1024
"""Number of bytes that :func:`compressing` compresses in one step."""
_ENTITY_TAG: Final = re.compile(r'(W/)?"([^"]*)"')
_CODING: Final = re.compile(r"\s*([^\s;]+)\s*(?:;\s*q\s*=\s*([0-9.]+)\s*)?")


class Parts(NamedTuple):
    """A JSON array or object as a list of pieces, which :func:`put_in` joins into the complete answer.

    If each step joined the pieces, a long list would be copied many times.

    Attributes:
        inner: JSON text between the brackets, without the commas between two parts.
    """

    brackets: bytes
    inner: list[bytes]


def array_of(things: Iterable[Any], *, step: int = STEP) -> Steps[Parts]:
    """Encode a JSON array in steps."""
    parts = Parts(b"[]", [])
    left = iter(things)
    while chunk := list(islice(left, step)):
        parts.inner.append(msgspec.json.encode(chunk)[1:-1])
        yield
    return parts


def object_of(members: Iterable[tuple[str, Any]]) -> Steps[Parts]:
    """Encode a JSON object in steps. Its members are pairs of a name and a value."""
    parts = Parts(b"{}", [])
    for chunk in in_chunks(members):
        parts.inner.append(msgspec.json.encode(dict(chunk))[1:-1])
        yield
    return parts


#: Placeholder for a list while the rest of an answer is encoded: a zero byte, which JSON never contains.
IN_PARTS: Final = msgspec.Raw(b"\0")


def put_in(answer: msgspec.Struct, parts: Parts) -> bytes:
    """Encode an answer, and put a list in the place of its placeholder :data:`IN_PARTS`."""
    head, tail = msgspec.json.encode(answer).split(b"\0")
    pieces = [head, parts.brackets[:1]]
    for number, part in enumerate(parts.inner):
        pieces += [b",", part] if number else [part]
    return b"".join([*pieces, parts.brackets[1:], tail])


def compressing(body: bytes) -> Steps[bytes]:
    """Compress an answer in steps."""
    compressor = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP)
    parts = []
    for start in range(0, len(body), GZIP_STEP):
        parts.append(compressor.compress(body[start : start + GZIP_STEP]))
        yield
    parts.append(compressor.flush())
    return b"".join(parts)


def is_to_compress(request: web.Request, answer: web.Response) -> bool:
    """Return True if an answer is long enough, is not compressed yet, and its client accepts gzip.

    Set the header ``Vary`` of each answer that would be compressed for another client.
    """
    if (
        not isinstance(answer.body, bytes)
        or len(answer.body) < GZIP_MIN
        or "Content-Encoding" in answer.headers
        # Leave answers with a strong entity tag unchanged: the tag identifies exactly these bytes.
        or answer.headers.get("ETag", "").startswith('"')
    ):
        return False
    answer.headers["Vary"] = "Accept-Encoding"
    return accepts_gzip(request.headers.get("Accept-Encoding"))


def compressing_answer(answer: web.Response) -> Steps[web.Response]:
    """Compress the body of an answer in steps; return the answer."""
    assert isinstance(answer.body, bytes), "other bodies are not compressed"
    answer.body = yield from compressing(answer.body)
    answer.headers["Content-Encoding"] = "gzip"
    return answer


def accepts_gzip(header: str | None) -> bool:
    """Return True if an ``Accept-Encoding`` header accepts gzip, by name or by ``*``."""
    found: dict[str, bool] = {}
    for part in (header or "").split(","):
        match = _CODING.fullmatch(part)
        if match is not None:
            found.setdefault(match[1].lower(), match[2] is None or match[2].strip("0.") != "")
    return found.get("gzip", found.get("*", False))


def has_tag(header: str | None, tag: str, *, strong: bool = False) -> bool:
    """Return True if an ``If-Match`` or ``If-None-Match`` header contains an entity tag or ``*``.

    Args:
        strong: If True, weak tags never match.
    """
    if header is None:
        return False
    if header.strip() == "*":
        return True
    weak, opaque = _split_tag(tag)
    named = {(bool(match[1]), match[2]) for match in _ENTITY_TAG.finditer(header)}
    if strong:
        return not weak and (False, opaque) in named
    return opaque in {one for _, one in named}


def _split_tag(tag: str) -> tuple[bool, str]:
    match = _ENTITY_TAG.fullmatch(tag)
    assert match is not None, tag
    return bool(match[1]), match[2]


def cursor_of(*place: str) -> str:
    """Return the cursor for a position in a list. A page's cursor names the position of its last entry."""
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).rstrip(b"=").decode()


def place_of(cursor: str, length: int) -> tuple[str, ...]:
    """Return the position in a list that a cursor names, as a tuple of ``length`` texts.

    Raises:
        ValueError: If the cursor is invalid or belongs to another kind of list.
    """
    raw = base64.urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
    place = msgspec.json.decode(raw, type=tuple[str, ...])
    if len(place) != length:
        raise ValueError("a cursor of another list")
    return place
