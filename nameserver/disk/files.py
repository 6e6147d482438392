"""The one way to the disk: journal, votes, standing, images, identity, settings and KV file use nothing else.

The real side is thin. The simulator has another one for the raft mode's files, on which bytes and names are
unsure until they are synced, and on which every call can fail. What is said of durability holds for both:

- bytes are sure after :meth:`File.sync`, or when a write to a file opened as ``durable`` has returned;
- a new, renamed or removed name is sure after :meth:`Files.sync_directory` of its directory;
- any call may fail, a write may take less than it was given, and each may take for ever.

Files are made for their owner only, and never over what is there already.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from routekeeper.remoting.files import open_regular, read_regular

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
#: There is no room now, in the words of the file systems and limits we know: of the disk, or of descriptors.
FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE})
#: Bytes of a file of ours that are read. A journal and a snapshot stay far below.
FILE_SIZE_MAX: Final = 16 * 1024**3
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_sync: Final = getattr(os, "fdatasync", os.fsync)


class StorageFull(OSError):
    """No room: the partial frame was cut off again, nothing before it is lost; try again later."""


class File:
    """One open file. Everything blocks, and raises :class:`OSError`."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def read_at(self, offset: int, size: int) -> bytes:
        """Less than ``size`` only at the end of the file."""
        found = bytearray()
        while more := os.pread(self.descriptor, size - len(found), offset + len(found)):
            found += more
        return bytes(found)

    def write_at(self, offset: int, data: bytes | bytearray | memoryview) -> int:
        """Write some of it; return how many bytes."""
        return os.pwrite(self.descriptor, data, offset)

    def truncate(self, size: int) -> None:
        os.ftruncate(self.descriptor, size)

    def sync(self) -> None:
        """All that was written to this file, by whomever, is on the disk, and its size."""
        _sync(self.descriptor)

    def close(self) -> None:
        os.close(self.descriptor)


class Files:
    """The files of this machine. Everything blocks, and raises :class:`OSError`."""

    def open(self, path: Path, *, write: bool = False, new: bool = False, durable: bool = False) -> File:
        """Open a regular file.

        Args:
            write: Not only for reading.
            new: It must not exist yet.
            durable: What a write has taken is on the disk when it returns.
        """
        flags = os.O_RDWR if write else os.O_RDONLY
        flags |= (os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW if new else 0) | (os.O_DSYNC if durable else 0)
        return File(open_regular(path, flags, FILE_MODE))

    def read(self, path: Path, *, size_max: int = FILE_SIZE_MAX) -> bytes:
        """All of a regular file, which has ``size_max`` bytes at most."""
        return read_regular(path, size_max=size_max)

    def names(self, directory: Path) -> list[str]:
        """Return the names in a directory, in order; none if there is no directory."""
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def modified_at(self, path: Path) -> float:
        """Seconds since 1970."""
        return path.stat().st_mtime

    def make_directory(self, path: Path) -> None:
        """Nothing if it is there.

        Raises:
            FileNotFoundError: Its parent is not.
        """
        path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)

    def sync_directory(self, path: Path) -> None:
        with closing(File(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))) as directory:
            os.fsync(directory.descriptor)

    def rename(self, old: Path, new: Path) -> None:
        """Within one directory, over what is there."""
        os.rename(old, new)

    def link(self, path: Path, new: Path) -> None:
        """Give a file a second name, which must not exist."""
        os.link(path, new)

    def unlink(self, path: Path) -> None:
        """Nothing if it is not there."""
        path.unlink(missing_ok=True)

    def lock(self, path: Path) -> File:
        """Hold a lock until it is closed, or the process ends.

        Raises:
            BlockingIOError: Another process holds it.
        """
        held = File(open_regular(path, os.O_RDWR | os.O_CREAT, FILE_MODE))
        try:
            fcntl.flock(held.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            held.close()
            raise
        return held

    def boot_id(self) -> str:
        """Name the life of this machine's kernel: what was not synced in another one may be lost; "" if it
        cannot be told apart.
        """
        with suppress(OSError):
            return Path(_BOOT_ID).read_text(encoding="ascii").strip()
        return ""


def write_all(file: File, offset: int, data: bytes | bytearray | memoryview) -> None:
    """Write all data, in as many calls as that takes."""
    view = memoryview(data)
    while view:
        written = file.write_at(offset, view)
        if written <= 0:
            raise OSError(errno.EIO, "write took nothing")
        offset += written
        view = view[written:]


def replace_file(files: Files, path: Path, parts: Iterable[bytes | bytearray]) -> None:
    """Have ``path`` hold ``parts``, durably: anyone who reads it finds the old or the new content.

    Raises:
        OSError: The old content is there; after a failed sync of the directory perhaps the new one.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    files.unlink(temporary)  # what a crash has left
    try:
        with closing(files.open(temporary, write=True, new=True)) as file:
            offset = 0
            for part in parts:
                write_all(file, offset, part)
                offset += len(part)
            file.sync()
        files.rename(temporary, path)
    except OSError:
        files.unlink(temporary)
        raise
    files.sync_directory(path.parent)


def make_directories(files: Files, path: Path) -> None:
    """Have ``path`` and what is above it; a sync of the directories above syncs their names."""
    try:
        files.make_directory(path)
    except FileNotFoundError:
        make_directories(files, path.parent)
        files.make_directory(path)
        files.sync_directory(path.parent)


#: A member's disk, unless it is given another one.
DISK: Final = Files()
