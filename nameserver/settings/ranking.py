"""From texts to settings: which source wins, and what their reader should be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from nameserver.settings.declared import (
    BY_KEY,
    INERT,
    RAFT_ONLY,
    RUNTIME_KEYS,
    NamesrvSettings,
    needs_raft,
    parse_value,
    validate,
)

_ASKS_FOR_MORE: Final = frozenset({"clusterTest", "enableControllerInNamesrv"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Settings, and what their reader should be told about the files."""

    settings: NamesrvSettings
    warnings: tuple[str, ...]


def load_settings(
    *,
    flags: Mapping[str, str] = MappingProxyType({}),
    stored: Mapping[str, str] = MappingProxyType({}),
    file: Mapping[str, str] = MappingProxyType({}),
) -> Loaded:
    """Merge the sources by rank and check the result.

    Args:
        stored: Content of :attr:`NamesrvSettings.store_path`; only what 318 may change counts.

    Raises:
        ConfigError: If a value is of the wrong kind, out of range, or contradicts another.
    """
    unknown = [key for key in file if key not in BY_KEY and key not in INERT]
    warnings = [f"unknown key {key} in the configuration file is ignored" for key in unknown]
    kept = {key: value for key, value in stored.items() if key in RUNTIME_KEYS}
    warnings += [f"key {key} in the stored settings is ignored" for key in stored if key not in kept]
    merged = {**file, **kept, **flags}
    values: dict[str, Any] = {
        BY_KEY[key].name: parse_value(key, text, BY_KEY[key].default)
        for key, text in merged.items()
        if key in BY_KEY
    }
    inert = {key: text.strip() for key, text in merged.items() if key in INERT}
    more = [key for key, text in inert.items() if key in _ASKS_FOR_MORE and text.lower() == "true"]
    warnings += [f"{key}=true has no effect here" for key in more]
    settings = NamesrvSettings(**values, inert=MappingProxyType(inert))
    validate(settings)
    if settings.http_token_file and settings.http_listen is None:
        warnings.append("httpTokenFile has no effect with httpListen=off")
    if settings.mode != "raft":
        for key in flags:  # also one that names the default: whoever writes it expects it to matter
            if key in BY_KEY and BY_KEY[key].name in RAFT_ONLY:
                raise needs_raft(BY_KEY[key])
        if settings.http_token_file:
            warnings.append(
                "httpTokenFile has no effect without --mode raft: nothing over HTTP needs a token"
            )
    return Loaded(settings=settings, warnings=tuple(warnings))
