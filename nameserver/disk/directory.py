"""A data directory: one process at a time may lock it, and it belongs to one mode forever.

The process locks ``ROOT/lock``. ``ROOT/identity.json`` names the mode; raft members store more values in that
file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import orjson

from .files import DISK, File, Files, make_directories, replace_file

IDENTITY: Final = "identity.json"
IDENTITY_SIZE_MAX: Final = 64 * 1024
#: Format version of ``identity.json`` in independent mode.
_FORMAT: Final = 1


class DirectoryError(Exception):
    """The data directory cannot be used, is in use, or belongs to another mode."""


def lock_directory(files: Files, root: Path) -> File:
    """Lock a directory until the returned lock is closed, or the process ends.

    Raises:
        DirectoryError: If another process has locked the directory.
    """
    try:
        return files.lock(root / "lock")
    except BlockingIOError as error:
        raise DirectoryError(f"data directory {root} is in use by another process") from error


def check_mode(root: Path, found: object, mode: str) -> None:
    """Check that a directory's identity names this mode.

    Raises:
        DirectoryError: If the directory belongs to another mode.
    """
    if found != mode:
        raise DirectoryError(f"data directory {root} belongs to mode {found}, not {mode}")


def hold_directory(root: Path, *, mode: str) -> None:
    """Make a directory, lock it until this process ends, and bind it to ``mode``.

    Raises:
        DirectoryError: If the directory is locked by another process, belongs to another mode, was written by
            a newer program, or cannot be written.
    """
    path = root / IDENTITY
    try:
        make_directories(DISK, root)
        lock_directory(DISK, root)
        if not path.exists():
            replace_file(DISK, path, [orjson.dumps({"format": _FORMAT, "mode": mode}) + b"\n"])
        identity = orjson.loads(DISK.read(path, size_max=IDENTITY_SIZE_MAX))
        found, version = identity["mode"], identity["format"]
    except OSError as error:
        raise DirectoryError(f"data directory {root} cannot be used: {error.strerror}") from None
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise DirectoryError(
            f"{path} is damaged; it must name its format, and the mode that the directory belongs to"
        ) from None
    check_mode(root, found, mode)
    if version != _FORMAT:
        raise DirectoryError(
            f"{path} has format {version}, this program knows {_FORMAT}: go on with the program that wrote "
            "it, or use another data directory"
        )
