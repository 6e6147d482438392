"""Tag codes: hashes of tags, by which the broker filters messages.

This module does no I/O and reads no clock.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from routekeeper.remoting.errors import LocalProtocolError
from routekeeper.remoting.message import NAME_END, PAIR_END, PROPERTY_TAGS, parse_subscription, tag_hash

_MARK = f"{PROPERTY_TAGS}{NAME_END}"

#: Longest tag and longest expression to cache, in characters. Clients choose both, so memory needs a bound.
_TAG_MAX: Final = 64
_EXPRESSION_MAX: Final = 1024
_remembered_hash = lru_cache(maxsize=4096)(tag_hash)


def cached_tag_hash(tag: str) -> int:
    """Return the hash of a tag, see :func:`routekeeper.remoting.message.tag_hash`."""
    return _remembered_hash(tag) if len(tag) <= _TAG_MAX else tag_hash(tag)


def tags_of(properties: str) -> str:
    """Return the value of TAGS in encoded properties, or an empty text without TAGS.

    If TAGS occurs several times, the last value counts.
    """
    begin = properties.find(_MARK)
    if begin < 0:
        return ""
    if (begin == 0 or properties[begin - 1] == PAIR_END) and properties.find(_MARK, begin + 1) < 0:
        # This is the usual case, in which there is one TAGS and no other name ends in TAGS.
        end = properties.find(PAIR_END, begin)
        return properties[begin + len(_MARK) : end if end >= 0 else None]
    found = ""
    for pair in properties.split(PAIR_END):
        if pair.startswith(_MARK) and len(pair) > len(_MARK):
            found = pair[len(_MARK) :]
    return found


def tags_code(properties: str) -> int:
    """Return the tag code of a message: the hash of its tag, or 0 without a tag."""
    tags = tags_of(properties)
    return cached_tag_hash(tags) if tags else 0


def subscription_codes(expression: str) -> frozenset[int] | None:
    """Return the tag codes that an expression such as ``A || B`` wants, or None for all messages.

    Raises:
        ValueError: If the expression names no tag.
    """
    short = len(expression) <= _EXPRESSION_MAX
    return _remembered_codes(expression) if short else _codes(expression)


def _codes(expression: str) -> frozenset[int] | None:
    try:
        tags = parse_subscription(expression)
    except LocalProtocolError as error:
        raise ValueError(str(error)) from None
    return frozenset(cached_tag_hash(tag) for tag in tags) or None


_remembered_codes = lru_cache(maxsize=1024)(_codes)
