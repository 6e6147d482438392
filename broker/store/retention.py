"""Decides which log files to remove: by age, by the hour, by the use of the disk (pure).

Source: DefaultMessageStore.CleanCommitLogService, RocketMQ 4.9 and 5.3; the settings have its names and
defaults. There are two differences. A request to clean up holds for one turn, not for twenty, and removes all
files that are old enough. Above 90 per cent no messages are refused: the broker goes on until the disk is
full.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from routekeeper.broker.errors import SettingError

#: Bound of the files that one turn removes at any age because the disk is full. Source: deleteFileBatchMax.
OLDEST_AT_ONCE: Final = 10


class Removal(Enum):
    """The class of files to remove now; the newest file always stays."""

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
        hour: Hour of the local day.
        asked: An operator has requested the removal, at any hour.
        used: Share of the log's file system that is in use, 0 to 1; below 0 if unknown.
        delete_when: Hours in which old files are removed.
        used_max: Share above which old files are removed at any hour.
        forcibly: Share above which young files are removed, too.
        clean_forcibly: Whether young files may be removed at all.
    """
    is_full = used < 0 or used > used_max
    if clean_forcibly and used > forcibly:
        return Removal.OLDEST
    return Removal.EXPIRED if asked or is_full or hour in delete_when else Removal.NOTHING


def parse_hours(text: str) -> frozenset[int]:
    """Parse ``deleteWhen``: hours of the day, 00 to 23, with semicolons between.

    Raises:
        SettingError: If there is no hour, or one is invalid.
    """
    hours = set()
    for part in text.split(";"):
        digits = part.strip()
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= 2 and int(digits) < 24):
            raise SettingError(f"deleteWhen={text[:80]!r}: {digits[:20]!r} is no hour, allowed are 00 to 23")
        hours.add(int(digits))
    return frozenset(hours)
