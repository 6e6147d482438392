"""RocketMQ's settings without support here: some cause a warning, others refuse the start (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from routekeeper.broker.config import RANGES
from routekeeper.broker.errors import SettingError
from routekeeper.remoting.properties import closed_door

#: Settings that the broker ignores with a warning: (value, why).
_UNSUPPORTED: Final = {
    "rejectTransactionMessage": ("false", "transactions are not supported, their messages are refused"),
    "enablePropertyFilter": ("true", "SQL92 filters are not supported, pulls with one are refused"),
}
#: Settings whose loss would give messages fewer copies than the operator wants.
_REPLICATION: Final = ("enableDLegerCommitLog", "enableControllerMode")
#: Numbers that RocketMQ moves into their range. For other settings, a number below the range is an error.
_MOVED_UP: Final = frozenset({"diskMaxUsedSpaceRatio", "diskSpaceCleanForciblyRatio"})
#: Numbers that identify something, such as a port, so that no near number can replace them.
_EXACT: Final = frozenset({"listenPort", "advertisePort", "haListenPort", "brokerPermission", "timerDivisor"})


def fit_settings(values: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the supported settings of a file, and a warning for each other one.

    Raises:
        SettingError: If ignoring a setting would lose messages or weaken security.
    """
    fitting, warnings = dict(values), []
    for key, text in values.items():
        value = text.strip().lower()
        if key == "useTLS":  # RocketMQ's other name of this setting; as in RocketMQ, it wins in a file
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
    """Refuse a setting without support here, if ignoring it would lose messages or weaken security.

    Args:
        value: Value in lower case, without blanks around it.

    Raises:
        SettingError: With the reason.
    """
    reason = closed_door(key, value)
    if key in _REPLICATION and value == "true":
        reason = "there is no replication, allowed is false"
    if reason is not None:
        raise SettingError(f"{key}={value}: {reason}")


def _bound(key: str, value: str) -> int | None:
    """Return the number to use instead; None if the value is in its range, or no number can replace it."""
    if key not in RANGES or key in _EXACT or not (value.isascii() and value.isdecimal() and len(value) < 19):
        return None
    low, high = RANGES[key]
    number = int(value)
    if number > high:
        return high
    return low if number < low and key in _MOVED_UP else None
