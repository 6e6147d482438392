"""All access to the disk. Journal, votes, roles, snapshots, identity, settings and KV file use only this.

:class:`Files` is the real disk, in little code. The simulator has its own disk for the raft mode's files:
there, bytes and names may be lost until they are synced, and every call can fail. These guarantees hold for
both:

- bytes are durable after :meth:`File.sync`, or when a write to a file opened as ``durable`` has returned;
- a new, renamed or removed name is durable after :meth:`Files.sync_directory` of its directory;
- any call may fail or never return, and a write may store fewer bytes than it was given.

Only the owner may read a new file, and a new file never replaces an existing one.
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
#: Errors that mean "no room now" on the file systems and limits that we know: no space on the disk, or no
#: free descriptors.
FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE})
#: Largest size in bytes of one of our files that is read whole. Journals and snapshots stay far below it.
FILE_SIZE_MAX: Final = 16 * 1024**3
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_sync: Final = getattr(os, "fdatasync", os.fsync)


class StorageFull(OSError):
    """No room: the partial frame was removed again and nothing before it is lost. Try again later."""


class File:
    """One open file. Everything blocks, and raises :class:`OSError`."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def read_at(self, offset: int, size: int) -> bytes:
        """Read bytes: fewer than ``size`` only at the end of the file."""
        found = bytearray()
        while more := os.pread(self.descriptor, size - len(found), offset + len(found)):
            found += more
        return bytes(found)

    def write_at(self, offset: int, data: bytes | bytearray | memoryview) -> int:
        """Write some of the bytes; return how many were written."""
        return os.pwrite(self.descriptor, data, offset)

    def truncate(self, size: int) -> None:
        os.ftruncate(self.descriptor, size)

    def sync(self) -> None:
        """Wait until all bytes of this file, written by any process, and its size are on the disk."""
        _sync(self.descriptor)

    def close(self) -> None:
        os.close(self.descriptor)


class Files:
    """The files of this machine. Everything blocks, and raises :class:`OSError`."""

    def open(self, path: Path, *, write: bool = False, new: bool = False, durable: bool = False) -> File:
        """Open a regular file.

        Args:
            write: Open for writing, too.
            new: The file must not exist yet.
            durable: The bytes of a write are on the disk when it returns.
        """
        flags = os.O_RDWR if write else os.O_RDONLY
        flags |= (os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW if new else 0) | (os.O_DSYNC if durable else 0)
        return File(open_regular(path, flags, FILE_MODE))

    def read(self, path: Path, *, size_max: int = FILE_SIZE_MAX) -> bytes:
        """Return the content of a regular file, which has at most ``size_max`` bytes."""
        return read_regular(path, size_max=size_max)

    def names(self, directory: Path) -> list[str]:
        """Return the names in a directory, in order; none if there is no directory."""
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def modified_at(self, path: Path) -> float:
        """Return the time in seconds since 1970."""
        return path.stat().st_mtime

    def make_directory(self, path: Path) -> None:
        """Make a directory; do nothing if it exists.

        Raises:
            FileNotFoundError: If its parent does not exist.
        """
        path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)

    def sync_directory(self, path: Path) -> None:
        with closing(File(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))) as directory:
            os.fsync(directory.descriptor)

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file within one directory; it replaces a file of the new name."""
        os.rename(old, new)

    def link(self, path: Path, new: Path) -> None:
        """Give a file a second name, which must not exist."""
        os.link(path, new)

    def unlink(self, path: Path) -> None:
        """Remove a file; do nothing if it does not exist."""
        path.unlink(missing_ok=True)

    def lock(self, path: Path) -> File:
        """Lock a file until the returned object is closed, or the process ends.

        Raises:
            BlockingIOError: Another process holds the lock.
        """
        held = File(open_regular(path, os.O_RDWR | os.O_CREAT, FILE_MODE))
        try:
            fcntl.flock(held.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            held.close()
            raise
        return held

    def boot_id(self) -> str:
        """Return a name of this boot of the kernel, "" if there is none.

        Bytes that were not synced in an earlier boot may be lost.
        """
        with suppress(OSError):
            return Path(_BOOT_ID).read_text(encoding="ascii").strip()
        return ""


def write_all(file: File, offset: int, data: bytes | bytearray | memoryview) -> None:
    """Write all data, in as many calls as needed."""
    done, size = 0, len(data)
    while done < size:
        written = file.write_at(offset + done, memoryview(data)[done:] if done else data)
        if written <= 0:
            raise OSError(errno.EIO, "write took nothing")
        done += written


def replace_file(files: Files, path: Path, parts: Iterable[bytes | bytearray]) -> None:
    """Replace the content of ``path`` by ``parts``, durably: a reader finds the old or the new content.

    Raises:
        OSError: The old content remains; after a failed sync of the directory perhaps the new one is there.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    files.unlink(temporary)  # Remove a temporary file that a crash left.
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
    """Make directory ``path`` and its parents; sync the directories above, so that the new names last."""
    try:
        files.make_directory(path)
    except FileNotFoundError:
        make_directories(files, path.parent)
        files.make_directory(path)
        files.sync_directory(path.parent)


#: The disk of a member, unless a test passes another one.
DISK: Final = Files()
