"""Settings that RocketMQ honours and this broker cannot: some are named, some refuse the start (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from routekeeper.broker.config import RANGES
from routekeeper.broker.errors import SettingError
from routekeeper.remoting.properties import closed_door

#: Settings that the broker goes without: (value, why).
_UNSUPPORTED: Final = {
    "rejectTransactionMessage": ("false", "transactions are not supported, their messages are refused"),
    "enablePropertyFilter": ("true", "SQL92 filters are not supported, pulls with one are refused"),
}
#: Settings without which messages would have fewer copies than asked for.
_REPLICATION: Final = ("enableDLegerCommitLog", "enableControllerMode")
#: Numbers that RocketMQ moves into their range; elsewhere a number below the range is a mistake.
_MOVED_UP: Final = frozenset({"diskMaxUsedSpaceRatio", "diskSpaceCleanForciblyRatio"})
#: Numbers that name one certain thing, so that no near number can replace them.
_EXACT: Final = frozenset({"listenPort", "advertisePort", "haListenPort", "brokerPermission", "timerDivisor"})


def fit_settings(values: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the settings of a file that can be honoured, and a line for each other one.

    Raises:
        SettingError: If ignoring a setting would break a promise or open a door.
    """
    fitting, warnings = dict(values), []
    for key, text in values.items():
        value = text.strip().lower()
        if key == "useTLS":  # RocketMQ's other name; in a file it wins there, too
            del fitting[key]
            fitting["tls.enable"] = value
            continue
        refuse_missed(key, value)
        unsupported, why = _UNSUPPORTED.get(key, (None, ""))
        if value == unsupported:
            del fitting[key]
            warnings.append(f"{key}={value}: {why}")
        bound = _bound(key, value)
        if bound is not None:
            fitting[key] = str(bound)
            low, high = RANGES[key]
            warnings.append(f"{key}={value} is outside {low}..{high}, {bound} is used")
    return fitting, tuple(warnings)


def refuse_missed(key: str, value: str) -> None:
    """Refuse a setting of RocketMQ that is missing here, if its loss breaks a promise or opens a door.

    Args:
        value: In small letters, without blanks around it.

    Raises:
        SettingError: With the reason.
    """
    reason = closed_door(key, value)
    if key in _REPLICATION and value == "true":
        reason = "there is no replication, allowed is false"
    if reason is not None:
        raise SettingError(f"{key}={value}: {reason}")


def _bound(key: str, value: str) -> int | None:
    """Return the number to use instead; None if the value is in its range, or nothing can replace it."""
    if key not in RANGES or key in _EXACT or not (value.isascii() and value.isdecimal() and len(value) < 19):
        return None
    low, high = RANGES[key]
    number = int(value)
    if number > high:
        return high
    return low if number < low and key in _MOVED_UP else None
