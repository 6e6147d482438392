"""Merging of the settings from all sources.

If several sources give a value, the source with the highest rank wins. The result also has warnings for the
operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from routekeeper.remoting.properties import closed_door, commented, name_unknown

from .declared import (
    BY_KEY,
    INERT,
    RUNTIME_KEYS,
    ConfigError,
    NamesrvSettings,
    parse_values,
    refuse_raft_only,
    validate,
)

_CONTROLLER: Final = "enableControllerInNamesrv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Settings, and warnings about their sources.

    Attributes:
        bind_unnamed: True if a file or a port was given, but no address to listen on. RocketMQ then listens
            on all addresses.
        commented: Keys of the file whose values seem to contain a comment.
    """

    settings: NamesrvSettings
    warnings: tuple[str, ...]
    commented: tuple[str, ...] = ()
    bind_unnamed: bool = False


def load_settings(
    *,
    flags: Mapping[str, str] = MappingProxyType({}),
    stored: Mapping[str, str] = MappingProxyType({}),
    file: Mapping[str, str] = MappingProxyType({}),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Loaded:
    """Merge the settings from all sources by the rank of each source, and check the result.

    Args:
        environment: Settings from environment variables; they rank between ``stored`` and ``file``.
        stored: Content of :attr:`NamesrvSettings.store_path`. A setting in this file is ignored if request
            318 may not change the setting.

    Raises:
        ConfigError: A value is of the wrong kind, is out of range, or contradicts another value.
    """
    for key, text in file.items():
        value = text.strip().lower()
        reason = closed_door(key, value)
        if key == "aclEnable" and value.partition("#")[0].strip() == "true":
            reason = "is a broker's setting; a nameserver has acl=admin or acl=all, with aclFile"
        if reason is not None:
            raise ConfigError(f"{key}={value}: {reason}")
    unknown = [key for key in file if key not in BY_KEY and key not in INERT]
    warnings = [f"unknown key {key} in the configuration file is ignored" for key in name_unknown(unknown)]
    kept = {key: value for key, value in stored.items() if key in RUNTIME_KEYS}
    warnings += [f"key {key} in the stored settings is ignored" for key in stored if key not in kept]
    merged = {**file, **environment, **kept, **flags}
    inert = {key: text.strip() for key, text in merged.items() if key in INERT}
    if inert.get(_CONTROLLER, "").lower() == "true":
        raise ConfigError(
            f"{_CONTROLLER}=true: there is no controller, so nobody would replace a master that died,"
            " allowed is false"
        )
    settings = NamesrvSettings(**parse_values(merged), inert=MappingProxyType(inert))
    validate(settings)
    if settings.cluster_test_nameservers and not settings.cluster_test:
        warnings.append("clusterTestNameservers has no effect with clusterTest=false")
    if settings.http_token_file and settings.http_listen is None:
        warnings.append("httpTokenFile has no effect with httpListen=off")
    if settings.mode != "raft":
        # Refuse a flag of raft mode even if its value is the default: the operator expects an effect, but
        # there is none.
        refuse_raft_only(flags)
    known = tuple(key for key in commented(file) if key in BY_KEY)
    return Loaded(
        settings=settings,
        warnings=tuple(warnings),
        commented=known,
        bind_unnamed="bindAddress" not in merged and (bool(file) or "listenPort" in flags),
    )
