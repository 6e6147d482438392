"""Which log files are not kept any more: by age, by the hour, by the use of the disk (pure).

Source: DefaultMessageStore.CleanCommitLogService, RocketMQ 4.9 and 5.3, whose names and defaults the settings
have. Different from there: a request to clean up holds for one turn, not for twenty, and removes all that is
old enough; no messages are refused above 90 per cent, the broker goes on until the disk refuses.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from routekeeper.broker.errors import SettingError

#: Files removed in one turn because the disk is full, no matter their age. Source: deleteFileBatchMax.
OLDEST_AT_ONCE: Final = 10


class Removal(Enum):
    """Files that are removed now; the newest file always stays."""

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
    """Decide for one turn.

    Args:
        hour: Of the local day.
        asked: An operator wants it, no matter the hour.
        used: Share of the log's file system that is in use, 0 to 1; below 0 if nobody can say.
        delete_when: Hours in which old files go.
        used_max: Share above which they go at any hour.
        forcibly: Share above which young ones go, too.
        clean_forcibly: Young ones may go at all.
    """
    is_full = used < 0 or used > used_max
    if clean_forcibly and used > forcibly:
        return Removal.OLDEST
    return Removal.EXPIRED if asked or is_full or hour in delete_when else Removal.NOTHING


def parse_hours(text: str) -> frozenset[int]:
    """Parse ``deleteWhen``: hours of the day, 00 to 23, with semicolons between.

    Raises:
        SettingError: If there is none, or one is none.
    """
    hours = set()
    for part in text.split(";"):
        digits = part.strip()
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= 2 and int(digits) < 24):
            raise SettingError(f"deleteWhen={text[:80]!r}: {digits[:20]!r} is no hour, allowed are 00 to 23")
        hours.add(int(digits))
    return frozenset(hours)
