"""Changes of settings at run time by request 318, and the settings in force."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from routekeeper.remoting.addresses import join_address, split_address
from routekeeper.remoting.logs import apply_log_level
from routekeeper.remoting.properties import REQUEST_SIZE_MAX, parse_properties

from .declared import BY_KEY, RUNTIME_KEYS, ConfigError, NamesrvSettings, parse_values, validate

_NEVER_BY_318: Final = frozenset({"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"})


class ChangeRefused(Exception):
    """Error: request 318 names a setting that it may not change; nothing was changed."""


class ChangeInvalid(Exception):
    """Error: request 318 cannot be read, or contains an invalid value; nothing was changed."""


def parse_changes(body: bytes) -> dict[str, str]:
    """Decode the body of request 318: properties text in UTF-8, although properties files are in ISO-8859-1.

    Raises:
        ChangeInvalid: The body is not a properties text, or is larger than
            :data:`routekeeper.remoting.properties.REQUEST_SIZE_MAX`.
    """
    if len(body) > REQUEST_SIZE_MAX:
        raise ChangeInvalid(f"settings of {len(body)} bytes: allowed are {REQUEST_SIZE_MAX}")
    try:
        return parse_properties(body.decode("utf-8"))
    except ValueError:
        raise ChangeInvalid("string2Properties error") from None


def check_changes(
    settings: NamesrvSettings, changes: Mapping[str, str]
) -> tuple[NamesrvSettings, dict[str, str]]:
    """Return the settings after a change, and the part of the change that takes effect.

    Unknown keys are ignored, because RocketMQ merges only known keys. Keys that have no effect in this
    nameserver are also ignored.

    Raises:
        ChangeRefused: A key is listed in the setting ``configBlackList``, or needs a restart of the process.
        ChangeInvalid: A value is invalid.
    """
    black = _NEVER_BY_318 | {key.strip() for key in settings.config_black_list.split(";")}
    if any(key in black for key in changes):
        raise ChangeRefused("Can not update config in black list.")
    fixed = sorted(key for key in changes if key in BY_KEY and key not in RUNTIME_KEYS)
    if fixed:
        raise ChangeRefused(f"Can not update config {', '.join(fixed)}: it is read at start only.")
    counted = {key: text.strip() for key, text in changes.items() if key in RUNTIME_KEYS}
    try:
        after = replace(settings, **parse_values(counted))
        validate(after)
    except ConfigError as error:
        raise ChangeInvalid(str(error)) from None
    return after, counted


class LiveSettings:
    """The settings in force. They change by request 318, or when the settings file is read again.

    Attributes:
        current: The settings in force now. Read this attribute anew for each request.
        stored: Settings that request 318 has changed, by key: the content of
            :attr:`NamesrvSettings.store_path`.
    """

    def __init__(self, settings: NamesrvSettings, stored: Mapping[str, str] = MappingProxyType({})) -> None:
        self.current = settings
        self.stored: dict[str, str] = {key: stored[key] for key in stored if key in RUNTIME_KEYS}

    def change(self, after: NamesrvSettings, changes: Mapping[str, str]) -> None:
        """Put changes in force; the caller has checked them with :func:`check_changes`."""
        self.current = after
        self.stored.update(changes)

    def take(self, changes: Mapping[str, str]) -> None:
        """Put in force the settings of a file that was read again; do not add them to :attr:`stored`."""
        self.current = replace(self.current, **parse_values(changes))
        apply_log_level(self.current.log_level)

    def bound(self, *, listen: str, http: str) -> None:
        """Record the bound ports, so that request 319 shows the real port instead of 0.

        The hosts of the addresses stay as the operator wrote them.
        """
        changes: dict[str, Any] = {"listen_port": split_address(listen)[1]}
        if (asked := self.current.http_listen) is not None:
            changes["http"] = join_address(asked[0], split_address(http)[1])
        self.current = replace(self.current, **changes)
