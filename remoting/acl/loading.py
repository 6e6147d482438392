"""Functions that find and read access files on disk, and warn about files that other users may read.

Each function blocks while it reads the disk.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from routekeeper.remoting.acl.accounts import (
    FILE_SIZE_MAX,
    Accounts,
    AclFile,
    AclFileError,
    lacks_only_accounts,
    merge_files,
    parse_acl_file,
    refuse_cut,
)
from routekeeper.remoting.acl.signing import Keys, parse_keys
from routekeeper.remoting.files import read_regular

#: Largest number of access files of one server; also the largest number of folders with access files.
FILES_MAX: Final = 100
_KEYS_SIZE_MAX: Final = 64 * 1024


def read_accounts(
    paths: Sequence[Path], *, may_lack: Path | None = None, in_force: Accounts | None = None
) -> Accounts:
    """Return the accounts and white lists of all access files together.

    Args:
        may_lack: A file that may be missing if ``paths`` contains other files. The missing file counts as
            a file without accounts.
        in_force: Accounts of the running server, if it reads the files again.

    Raises:
        AclFileError: A file cannot be used, or is probably cut; see
            :func:`routekeeper.remoting.acl.accounts.refuse_cut`.
    """
    files: dict[str, AclFile] = {}
    raw: dict[str, bytes] = {}
    for path in paths:
        try:
            content = read_regular(path, size_max=FILE_SIZE_MAX)
        except FileNotFoundError as error:
            if path == may_lack and len(paths) > 1:
                continue
            raise AclFileError(f"{path} cannot be read: {error.strerror}") from None
        except OSError as error:
            raise AclFileError(f"{path} cannot be read: {error.strerror}") from None
        name = str(path)
        files[name], raw[name] = parse_acl_file(content, name), content
        if in_force is not None and name in in_force.files:
            is_shorter = lacks_only_accounts(files[name], in_force.files[name])
            refuse_cut(content, name, in_force=in_force.raw[name], lacks_only_accounts=is_shorter)
    return replace(merge_files(files), raw=raw)


def read_keys(path: Path, *, in_force: Keys | None = None) -> Keys:
    """Return the keys in a file that has the form of RocketMQ's ``tools.yml``.

    Args:
        in_force: Keys of the running server, if it reads the file again.

    Raises:
        AclFileError: The file cannot be used, or is probably cut; see
            :func:`routekeeper.remoting.acl.accounts.refuse_cut`.
    """
    try:
        content = read_regular(path, size_max=_KEYS_SIZE_MAX)
        keys = replace(parse_keys(content), raw=content)
    except OSError as error:
        raise AclFileError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise AclFileError(f"{path}: {error}") from None
    if in_force is not None:
        refuse_cut(content, str(path), in_force=in_force.raw)
    return keys


def acl_folders(folder: Path) -> list[Path]:
    """Return a folder and all folders below it; return an empty list if the folder does not exist.

    RocketMQ 4.9 reads access files from the same folders. Hidden folders are skipped. The reason is that
    Kubernetes keeps a second copy of mounted files there.
    """
    return list(_folders(folder, FILES_MAX)) if folder.is_dir() else []


def _folders(folder: Path, allowed: int) -> Iterator[Path]:
    for count, (name, below, _) in enumerate(os.walk(folder)):
        if count >= allowed:
            raise AclFileError(f"{folder} has more than {allowed} folders")
        below[:] = sorted(each for each in below if not each.startswith("."))
        yield Path(name)


def acl_files(folders: Sequence[Path]) -> list[Path]:
    """Return the access files in these folders, sorted by name within each folder."""
    found = [
        path
        for folder in folders
        for path in sorted(folder.iterdir())
        if path.suffix in (".yml", ".yaml") and not path.name.startswith(".") and path.is_file()
    ]
    if len(found) > FILES_MAX:
        raise AclFileError(f"{folders[0]} has {len(found)} access files, allowed are {FILES_MAX}")
    return found


def shared_with_others(paths: Sequence[Path]) -> list[str]:
    """Return a warning for each file that users other than the file's owner may read."""
    lines = []
    for path in paths:
        try:
            mode = stat.S_IMODE(os.stat(path).st_mode)
        except OSError:
            continue
        if mode & (stat.S_IRGRP | stat.S_IROTH):
            lines.append(f"{path} can be read by others: its mode is {mode:04o}, 0600 is enough")
    return lines
