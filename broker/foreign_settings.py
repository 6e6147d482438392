"""RocketMQ's settings that this broker does not support: some cause a warning, others an error.

This module does no I/O and reads no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from routekeeper.broker.config import RANGES
from routekeeper.broker.errors import SettingError
from routekeeper.remoting.properties import closed_door

#: Settings with one unsupported value each. The broker ignores this value, and logs the reason as a warning.
_UNSUPPORTED: Final = {
    "rejectTransactionMessage": ("false", "transactions are not supported, their messages are refused"),
    "enablePropertyFilter": ("true", "SQL92 filters are not supported, pulls with one are refused"),
}
#: Settings that turn on replication. The broker refuses them, because it makes no copies of messages.
_REPLICATION: Final = ("enableDLegerCommitLog", "enableControllerMode")
#: Settings for which a value below the lower bound is replaced by the lower bound, as in RocketMQ. For all
#: other settings, a value below the lower bound is an error.
_MOVED_UP: Final = frozenset({"diskMaxUsedSpaceRatio", "diskSpaceCleanForciblyRatio"})
#: Settings for which a value outside the range is always an error. For example, no other port can replace an
#: invalid port, because clients would not find the broker there.
_EXACT: Final = frozenset({"listenPort", "advertisePort", "haListenPort", "brokerPermission", "timerDivisor"})


def fit_settings(
    values: Mapping[str, str], *, adjusts: bool = True
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the supported settings, and a warning for each unsupported setting or adjusted value.

    Args:
        values: Settings of a file, or of flags.
        adjusts: True to replace a value outside its range by a bound, as for files. False to leave it for the
            later check, which refuses it.

    Raises:
        SettingError: If ignoring a setting would lose messages or weaken security.
    """
    fitting, warnings = dict(values), []
    for key, text in values.items():
        value = text.strip().lower()
        if key == "useTLS":  # RocketMQ's other name for tls.enable. useTLS wins if a file has both names.
            del fitting[key]
            fitting["tls.enable"] = value
            continue
        _refuse_missed(key, value)
        unsupported, why = _UNSUPPORTED.get(key, (None, ""))
        if value == unsupported:
            del fitting[key]
            warnings.append(f"{key}={value}: {why}")
        bound = _bound(key, value) if adjusts else None
        if bound is not None:
            fitting[key] = str(bound)
            low, high = RANGES[key]
            warnings.append(f"{key}={value} is outside {low}..{high}, {bound} is used")
    return fitting, tuple(warnings)


def _refuse_missed(key: str, value: str) -> None:
    """Refuse an unsupported setting if ignoring it would lose messages or weaken security.

    Args:
        value: Value in lower case, without blanks around it.

    Raises:
        SettingError: If the setting is refused. The message states the reason.
    """
    reason = closed_door(key, value)
    if key in _REPLICATION and value == "true":
        reason = "there is no replication, allowed is false"
    if reason is not None:
        raise SettingError(f"{key}={value}: {reason}")


def _bound(key: str, value: str) -> int | None:
    """Return the bound that replaces a value outside its range, or None if the value stays as it is."""
    if key not in RANGES or key in _EXACT or not (value.isascii() and value.isdecimal() and len(value) < 19):
        return None
    low, high = RANGES[key]
    number = int(value)
    if number > high:
        return high
    return low if number < low and key in _MOVED_UP else None
