"""Counts of the bytes and syncs of servers' files, and of the sectors that their disk has written.

The kernel's count for a process (``/proc/PID/io``) is far too high. For a small write, the kernel may add the
size of a large folio, which is many memory pages. Instead each server reports its own bytes, or this module
measures the server's files.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

_ENTRY: Final = struct.Struct(">qi")
"""Header of each entry of a transaction log: checksum, length. Source: ZooKeeper 3.9, Util.readTxnBytes."""
_LOG_HEADER_SIZE: Final = 16
"""Size in bytes of a log's header: magic, version, database id. Source: ZooKeeper 3.9, FileHeader."""
_ENTRY_END_SIZE: Final = 1
_SECTORS_WRITTEN: Final = 6
"""Index of the written sectors in ``/sys/dev/block/*/stat``. Source: Linux, Documentation/block/stat.rst."""


class Written(NamedTuple):
    """Bytes that one server has written to its files, and its syncs.

    Only the difference between two readings has a meaning.
    """

    written_bytes: int
    syncs: int


def end_of_log(data: bytes | mmap.mmap) -> int:
    """Return the offset at which the last entry of a ZooKeeper transaction log ends.

    After the last entry, the file has only zeros.
    """
    place = min(_LOG_HEADER_SIZE, len(data))
    while place + _ENTRY.size <= len(data):
        _, size = _ENTRY.unpack_from(data, place)
        after = place + _ENTRY.size + size + _ENTRY_END_SIZE
        if size <= 0 or after > len(data):
            break
        place = after
    return place


def bytes_of_zookeeper(folder: Path) -> int:
    """Return the bytes of all log entries and snapshots below a ZooKeeper data directory."""
    logs = sum(map(_end_of, folder.glob("version-2/log.*")))
    return logs + sum(path.stat().st_size for path in folder.glob("version-2/snapshot.*"))


def _end_of(log: Path) -> int:
    with log.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return 0
        # Map the file instead of reading it, because nearly all of its 64 MiB are zeros.
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return end_of_log(data)


def size_of(folder: Path) -> int:
    """Return the size of all files below a folder in bytes, or 0 if the folder does not exist."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def figures(lines: Iterable[str]) -> dict[str, float]:
    """Return the values by name from lines ``NAME VALUE``, such as ``mntr`` and ``/metrics`` print.

    Omit lines whose text after the first blank is not a number.
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
    """Return the number of 512-byte sectors that the device of a folder has written, or None if unknown."""
    device = folder.stat().st_dev
    path = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    try:
        return int(path.read_text().split()[_SECTORS_WRITTEN])
    except (OSError, ValueError, IndexError):
        return None
