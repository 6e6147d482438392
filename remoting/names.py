"""Names of topics, groups and brokers as RocketMQ's own programs allow them. Pure.

How long a name on the wire may be at all says :mod:`routekeeper.remoting.bounds`.
"""

from __future__ import annotations

import enum
import re
from typing import Final

#: Longest topic or group in UTF-16 units. Source: TopicValidator, Validators.
TOPIC_LENGTH_MAX: Final = 127
GROUP_LENGTH_MAX: Final = 255
#: Longest retry or dead letter topic of a group: file systems allow a directory no longer name.
#: Source: HookUtils.MAX_TOPIC_LENGTH, RocketMQ 5.3.3.
GROUP_TOPIC_LENGTH_MAX: Final = 255
CHARACTERS: Final = "%|a-zA-Z0-9_-"

_NAME: Final = re.compile(rf"[{CHARACTERS}]+")


class NameFault(enum.Enum):
    """A fault of a name; the module that refuses it has the words for it."""

    BLANK = enum.auto()
    CHARACTERS = enum.auto()
    LENGTH = enum.auto()


def fault_of(name: str, *, length_max: int = TOPIC_LENGTH_MAX) -> NameFault | None:
    """Say what is wrong with a name; None if nothing.

    Source: TopicValidator.validateTopic, RocketMQ 4.9 and 5.3.
    """
    if not name.strip():
        return NameFault.BLANK
    if _NAME.fullmatch(name) is None:
        return NameFault.CHARACTERS
    return NameFault.LENGTH if len(name) > length_max else None
