"""Rules for the removal of log files, by their age, the hour of the day and the used disk space.

This module does no I/O and reads no clock.

Source: DefaultMessageStore.CleanCommitLogService, RocketMQ 4.9 and 5.3. The settings have RocketMQ's names
and defaults. There are two differences:

- An operator's request for a cleanup affects only the next periodic cleanup, which removes all files that are
  old enough. In RocketMQ such a request affects the next twenty cleanups.
- RocketMQ refuses messages when the disk is more than 90 per cent full. This broker accepts messages until
  the disk is full.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from routekeeper.broker.errors import SettingError

#: If the disk is nearly full, one periodic cleanup removes up to this number of the oldest files, even files
#: that have not expired. Source: deleteFileBatchMax.
OLDEST_AT_ONCE: Final = 10


class Removal(Enum):
    """The kind of log files that a cleanup removes now. A cleanup never removes the newest file."""

    NOTHING = "nothing"
    EXPIRED = "files older than fileReservedTime"
    OLDEST = "the oldest files, at any age"


def removal(
    *,
    hour: int,
    asked: bool,
    used: float,
    delete_when: frozenset[int],
    used_max: float,
    forcibly: float,
    clean_forcibly: bool,
) -> Removal:
    """Decide which log files one periodic cleanup removes.

    Args:
        hour: Hour of the local day.
        asked: True if an operator has requested a cleanup, which then runs at any hour.
        used: Share of the log's file system that is in use, from 0 to 1. A negative number means unknown.
        delete_when: Hours of the day in which expired files are removed.
        used_max: Value of ``used`` above which expired files are removed at any hour.
        forcibly: Value of ``used`` above which the oldest files are removed even if they have not expired.
        clean_forcibly: True if files that have not expired may be removed at all.
    """
    is_full = used < 0 or used > used_max
    if clean_forcibly and used > forcibly:
        return Removal.OLDEST
    return Removal.EXPIRED if asked or is_full or hour in delete_when else Removal.NOTHING


def parse_hours(text: str) -> frozenset[int]:
    """Parse ``deleteWhen``: hours of the day, 00 to 23, separated by semicolons.

    Raises:
        SettingError: If the text contains no hour, or an hour is invalid.
    """
    hours = set()
    for part in text.split(";"):
        digits = part.strip()
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= 2 and int(digits) < 24):
            raise SettingError(f"deleteWhen={text[:80]!r}: {digits[:20]!r} is no hour, allowed are 00 to 23")
        hours.add(int(digits))
    return frozenset(hours)
