"""RocketMQ's rules for the names of topics, groups and brokers.

This module does no I/O.

:mod:`routekeeper.remoting.bounds` has the largest length of a name on the wire.
"""

from __future__ import annotations

import enum
import re
from typing import Final

#: Longest name of a topic or a group, in UTF-16 units. Source: TopicValidator, Validators.
TOPIC_LENGTH_MAX: Final = 127
GROUP_LENGTH_MAX: Final = 255
#: Longest name of a group's retry or dead letter topic. File systems allow the same length for the name of
#: the topic's directory. Source: HookUtils.MAX_TOPIC_LENGTH, RocketMQ 5.3.3.
GROUP_TOPIC_LENGTH_MAX: Final = 255
CHARACTERS: Final = "%|a-zA-Z0-9_-"

_NAME: Final = re.compile(rf"[{CHARACTERS}]+")


class NameFault(enum.Enum):
    """Fault of a name; the module that refuses the name writes the error text."""

    BLANK = enum.auto()
    CHARACTERS = enum.auto()
    LENGTH = enum.auto()


def fault_of(name: str, *, length_max: int = TOPIC_LENGTH_MAX) -> NameFault | None:
    """Return the fault of a name; None if the name is valid.

    Source: TopicValidator.validateTopic, RocketMQ 4.9 and 5.3.
    """
    if not name.strip():
        return NameFault.BLANK
    if _NAME.fullmatch(name) is None:
        return NameFault.CHARACTERS
    return NameFault.LENGTH if len(name) > length_max else None
