"""Name of a broker and folder of its store. A store keeps the broker name that it got at its first start.

The default name is the host's name. A host's name may change, because a new container has a new host name.
Therefore the default folder does not depend on the host's name. The name in the store wins over the host's
name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from routekeeper.broker.config import is_broker_name
from routekeeper.broker.errors import SettingError
from routekeeper.broker.store.files import Disk, load_state, write_state
from routekeeper.broker.tables.state_files import NAME, TOPICS

#: Name of a broker on a host without a usable name. Source: BrokerConfig.localHostName, RocketMQ 4.9 and 5.3.
NO_HOST_NAME: Final = "DEFAULT_BROKER"
#: Default folder of the store of a broker whose settings have no name.
UNNAMED: Final = "broker"
#: Default name and default folder in earlier releases. Stores of these releases have no file that contains
#: the name.
FORMER: Final = "broker-a"


def host_name(text: str) -> str:
    """Return the host's name if it is an allowed broker name, otherwise the default name."""
    return text if is_broker_name(text) else NO_HOST_NAME


def default_place(stores: Mapping[str, str], asked: str | None, *, root: Path) -> Path:
    """Return the default folder of a broker's store, for settings that do not name a folder.

    Args:
        stores: Broker name of each existing store, by folder below ``root``.
        asked: Broker name in the settings, or None if the settings have no broker name.

    Raises:
        SettingError: If the settings have no name, and several stores are possible. Also if no store has the
            name in the settings, but ``root`` has the store of a broker that was started without a name.
    """
    if asked is not None:
        if stores.get(asked) == asked:
            return root / asked
        for folder, name in stores.items():
            if name == asked:
                return root / folder
        if UNNAMED in stores:
            raise SettingError(_conflict(asked, stores[UNNAMED], root / UNNAMED))
        return root / asked
    for folder in (UNNAMED, FORMER):
        if folder in stores:
            return root / folder
    if len(stores) > 1:
        raise SettingError(
            f"brokerName is not set, and {root} holds stores of {', '.join(sorted(stores.values()))[:300]};"
            " name one of them by brokerName or --name"
        )
    return root / next(iter(stores), UNNAMED)


def stores_below(disk: Disk, root: Path) -> dict[str, str]:
    """Return the broker name of each store below a folder, by the store's folder name.

    Raises:
        OSError: If the disk fails.
        SettingError: If a store's name cannot be read.
    """
    if not disk.is_there(root):
        return {}
    found = {}
    for folder in sorted(disk.names(root)):
        name = kept_name(disk, root / folder)
        if name is None and is_broker_name(folder) and _is_store(disk, root / folder):
            name = folder  # a store of an earlier release has no name file, but its folder has the name
        if name is not None:
            found[folder] = name
    return found


def name_of_store(disk: Disk, directory: Path, *, asked: str | None, host: str) -> str:
    """Return the name of the broker that owns this store, or the future name for a new store.

    Raises:
        OSError: If the disk fails.
        SettingError: If the store belongs to a broker of another name, or if the stored name cannot be read.
    """
    kept = kept_name(disk, directory)
    if kept is None and asked is None and _is_store(disk, directory):
        kept = FORMER
    if asked is not None and kept is not None and asked != kept:
        raise SettingError(_conflict(asked, kept, directory))
    return asked or kept or host_name(host)


def keep_name(disk: Disk, directory: Path, name: str) -> None:
    """Write the broker's name into a store, durably. If the store has a name, check that the names are equal.

    Raises:
        OSError: If the disk fails.
        SettingError: If the store has another name, or if the stored name cannot be read.
    """
    kept = kept_name(disk, directory)
    if kept is None:
        write_state(disk, directory / "config" / NAME, f"{name}\n".encode("ascii"))
    elif kept != name:
        raise SettingError(_conflict(name, kept, directory))


def kept_name(disk: Disk, directory: Path) -> str | None:
    """Return the broker name in a store, or None if the store has no name.

    Raises:
        OSError: If the disk fails.
        SettingError: If the name cannot be read.
    """
    path = directory / "config" / NAME
    if not disk.is_there(path):
        return None
    try:
        return load_state(disk, path, _parse).value or _parse("")
    except ValueError as error:
        raise SettingError(
            f"{path} cannot be used: {error}; write the broker's name there, on one line, and remove"
            f" {NAME}.sha256"
        ) from None


def _parse(text: str) -> str:
    name = text.removesuffix("\n")
    if not is_broker_name(name):
        raise ValueError("no name of a broker")
    return name


def _is_store(disk: Disk, directory: Path) -> bool:
    return disk.is_there(directory / "config" / TOPICS)


def _conflict(asked: str, kept: str, directory: Path) -> str:
    return (
        f"brokerName={asked}: the store {directory} belongs to broker {kept}; start with that name, or name"
        " another folder by --store"
    )
