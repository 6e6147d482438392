"""The nameserver's own small files: the KV configuration, and settings changed at run time.

Each file is written as a whole and has a checksum; the previous version stays beside it
(:mod:`routekeeper.remoting.state_file`). So a reader finds the whole old text or the whole new text, and
notices damage. The formats are RocketMQ's, so users can move a file between RocketMQ and RouteKeeper.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final, TypeVar

import orjson

from routekeeper.nameserver.disk.files import DISK, make_directories, write_all
from routekeeper.remoting import state_file
from routekeeper.remoting.files import open_regular, read_regular
from routekeeper.remoting.properties import escape_properties, parse_properties
from routekeeper.remoting.state_file import StateFileError

FILE_SIZE_MAX: Final = 64 * 1024 * 1024
"""Largest size in bytes of a file that is accepted. RouteKeeper's programs write no larger file."""

TOKEN_SIZE_MAX: Final = 4096
TOKEN_SIZE_ADVISED: Final = 16

_Content = TypeVar("_Content")


class FileError(Exception):
    """Error: a file cannot be used.

    The operator must decide what to do. If the nameserver started without the file, the content of the file
    would be missing and might be overwritten.
    """


KvTable = Mapping[str, Mapping[str, str | None]]
"""Values by namespace and key. RocketMQ stores a missing value as null."""


def load_kv_file(path: Path) -> dict[str, dict[str, str | None]]:
    """Return the KV configuration; empty if there is no file yet.

    Raises:
        FileError: Neither the file nor its ``.bak`` can be used, or the checksum differs.

    Source: KVConfigManager.load, RocketMQ 5.3; ``{"configTable":{"NAMESPACE":{"key":"value"}}}``.
    """
    return _load(path, _parse_kv)


def save_kv_file(path: Path, table: KvTable) -> None:
    """Replace the KV configuration file; block until the file is on disk.

    Raises:
        OSError: A step failed, but the file may already have been replaced.
    """
    write_atomic(path, encode_kv(table))


def encode_kv(table: KvTable) -> bytes:
    """Return the text of the KV configuration file: compact JSON, namespaces and keys in order."""
    return orjson.dumps({"configTable": table}, option=orjson.OPT_SORT_KEYS)


def load_settings_file(path: Path) -> dict[str, str]:
    """Return the settings that were changed at run time; empty if there is no file yet.

    Raises:
        FileError: Neither the file nor its ``.bak`` can be used, or the checksum differs.
    """
    return _load(path, _parse_settings)


def save_settings_file(path: Path, settings: Mapping[str, str]) -> None:
    """Replace the file of settings changed at run time; block until the file is on disk.

    Raises:
        OSError: As :func:`write_atomic`.
    """
    write_atomic(path, escape_properties(settings))


def load_token(path: Path) -> tuple[str, str]:
    """Return the token in a file, and a warning for the operator, which is empty if there is no problem.

    Raises:
        FileError: The file cannot be read, or contains no valid token.
    """
    try:
        with open(path, "rb", opener=open_regular) as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read(TOKEN_SIZE_MAX + 1)
    except OSError as error:
        raise FileError(f"token file {path} cannot be read: {error.strerror}") from None
    token = content.strip()
    if not token:
        raise FileError(f"token file {path} is empty")
    if len(content) > TOKEN_SIZE_MAX:
        raise FileError(f"token file {path} has more than {TOKEN_SIZE_MAX} bytes")
    if not all(0x21 <= byte <= 0x7E for byte in token):
        raise FileError(f"token file {path} must hold one word of visible ASCII")
    warning = ""
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        warning = f"token file {path} can be read by others: its mode is {mode:04o}, 0600 is enough"
    elif len(token) < TOKEN_SIZE_ADVISED:
        warning = f"the token in {path} has {len(token)} characters, {TOKEN_SIZE_ADVISED} are hard to guess"
    return token.decode("ascii"), warning


def write_atomic(path: Path, content: bytes) -> None:
    """Replace a file so that a crash leaves the old or the new file; keep the old file as ``.bak``.

    Raises:
        OSError: A step failed. The file is unchanged if this step came before the new file was renamed to
            ``path``; see :func:`routekeeper.remoting.state_file.replace`.
    """
    make_directories(DISK, path.parent)
    state_file.replace(_STORAGE, path, content)


# -- reading ----------------------------------------------------------------------------------------------


class _Storage:
    """The functions by which :mod:`routekeeper.remoting.state_file` accesses the disk."""

    rename, discard, sync_directory = DISK.rename, DISK.unlink, DISK.sync_directory

    @staticmethod
    def content(path: Path) -> bytes:
        return read_regular(path, size_max=FILE_SIZE_MAX)

    @staticmethod
    def write_new(path: Path, data: bytes) -> None:
        DISK.unlink(path)  # an earlier crash may have left a temporary file
        with closing(DISK.open(path, write=True, new=True)) as file:
            write_all(file, 0, data)
            file.sync()

    @staticmethod
    def link(path: Path, new: Path) -> None:
        DISK.link(path, new)


_STORAGE: Final = _Storage()


def _load(path: Path, parse: Callable[[bytes], dict[str, _Content]]) -> dict[str, _Content]:
    """Parse the file, or else its backup. If no file exists, the result is empty, as in RocketMQ."""
    try:
        return state_file.load(_STORAGE, path, parse).value or {}
    except StateFileError as error:
        raise FileError(str(error)) from error
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from None


def _parse_kv(content: bytes) -> dict[str, dict[str, str | None]]:
    document = orjson.loads(content)
    table = document.get("configTable") if isinstance(document, dict) else None
    if not isinstance(table, dict | None):
        raise ValueError("configTable is no object")
    parsed: dict[str, dict[str, str | None]] = {}
    for space, keys in (table or {}).items():
        if not isinstance(keys, dict):
            raise ValueError(f"namespace {space!r} is no object")
        # RocketMQ's JSON library (fastjson) reads numbers and booleans as text, so do the same.
        parsed[space] = {key: _text(value) for key, value in keys.items()}
    return parsed


def _text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()


def _parse_settings(content: bytes) -> dict[str, str]:
    # Java reads properties files as ISO-8859-1.
    return parse_properties(content.decode("latin-1"))
