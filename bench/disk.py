"""Bytes and syncs of servers' files, and of the device below them.

The kernel's count for a process (``/proc/PID/io``) counts a whole large folio for each small write, so it
cannot be used. Instead each server reports its own bytes, or its files are measured.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

_ENTRY: Final = struct.Struct(">qi")
"""Checksum and length before each entry of a transaction log. Source: ZooKeeper 3.9, Util.readTxnBytes."""
_LOG_HEADER_SIZE: Final = 16
"""Magic, version, database id. Source: ZooKeeper 3.9, FileHeader."""
_ENTRY_END_SIZE: Final = 1
_SECTORS_WRITTEN: Final = 6
"""Place in ``/sys/dev/block/*/stat``. Source: Documentation/block/stat.rst of Linux."""


class Written(NamedTuple):
    """Bytes that one server has written to its files, and its syncs; use only differences."""

    written_bytes: int
    syncs: int


def end_of_log(data: bytes | mmap.mmap) -> int:
    """Return the bytes of a ZooKeeper transaction log that hold entries; the rest is preallocated."""
    place = min(_LOG_HEADER_SIZE, len(data))
    while place + _ENTRY.size <= len(data):
        _, size = _ENTRY.unpack_from(data, place)
        after = place + _ENTRY.size + size + _ENTRY_END_SIZE
        if size <= 0 or after > len(data):
            break
        place = after
    return place


def bytes_of_zookeeper(folder: Path) -> int:
    """Return the bytes of all entries and snapshots below a data directory of ZooKeeper's."""
    logs = sum(map(_end_of, folder.glob("version-2/log.*")))
    return logs + sum(path.stat().st_size for path in folder.glob("version-2/snapshot.*"))


def _end_of(log: Path) -> int:
    with log.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return 0
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:  # 64 MiB, nearly all of it empty
            return end_of_log(data)


def size_of(folder: Path) -> int:
    """Return the size of all files below a folder; 0 if there is none."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def figures(lines: Iterable[str]) -> dict[str, float]:
    """Return the figures of lines ``NAME VALUE``, as ``mntr`` and ``/metrics`` print them.

    Other lines are left out, and names with labels.
    """
    found = {}
    for line in lines:
        name, _, value = line.strip().replace("\t", " ").partition(" ")
        try:
            found[name] = float(value)
        except ValueError:
            continue
    return found


def sectors_written(folder: Path) -> int | None:
    """Return the sectors of 512 bytes that the device of a folder has written; None if unknown."""
    device = folder.stat().st_dev
    path = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    try:
        return int(path.read_text().split()[_SECTORS_WRITTEN])
    except (OSError, ValueError, IndexError):
        return None
