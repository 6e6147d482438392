"""Checks that show whether a server really made a change for which the server answered success.

RocketMQ's servers ignore unknown settings, values that they cannot read, and attributes that their release
does not know. They still answer success. This module does no I/O and reads no clock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from ..errors import NotApplied
from .options import UsageError

_KEY: Final = re.compile(r"[\w.-]+", re.ASCII)


def check_setting(key: str, value: str) -> None:
    """Check that ``key=value`` changes the setting ``key`` and no other setting.

    Raises:
        UsageError: If a server would read another key, or several settings.
    """
    if not _KEY.fullmatch(key) or "\n" in value or "\r" in value:
        raise UsageError(
            f"key {key!r} may contain only letters, digits, '_', '.' and '-', and value {value!r}"
            " no line break"
        )


def check_kept(settings: Mapping[str, str], key: str, value: str) -> None:
    """Check the settings that a server shows after a change of one setting.

    Raises:
        NotApplied: If the server does not have the setting, or has another value.
    """
    present = settings.get(key)
    if present is None:
        raise NotApplied(f"ignored the change, because it has no setting {key!r}")
    if not _equal(present, value):
        raise NotApplied(f"ignored the value {value!r}: {key} is {present!r}")


def _equal(one: str, other: str) -> bool:
    """Return True if two texts mean the same value, such as ``1.0`` and ``1``, or ``True`` and ``true``."""
    if one.strip().casefold() == other.strip().casefold():
        return True
    try:
        return float(one) == float(other)
    except ValueError:
        return False


def has_attributes(present: object, edits: Mapping[str, str]) -> bool:
    """Return True if a server's attributes have the values that the requested edits set.

    The edit ``+name: value`` sets the attribute ``name``, and the edit ``-name`` removes this attribute.
    """
    have = present if isinstance(present, Mapping) else {}
    return all(
        have.get(name.lstrip("+-")) == (None if name.startswith("-") else value)
        for name, value in edits.items()
    )
