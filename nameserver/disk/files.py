"""All access to the disk, for journals, votes, roles, snapshots, identity files, settings and KV files.

:class:`Files` is the real disk. The simulator replaces it by a simulated disk for the raft mode's files. On
the simulated disk, bytes and names may be lost until they are synced, and every call can fail. Both disks
have these properties:

- bytes are durable after :meth:`File.sync`, or when a write to a file opened as ``durable`` has returned;
- a new, renamed or removed name is durable after :meth:`Files.sync_directory` of its directory;
- any call may fail or never return, and a write may store fewer bytes than it was given.

Only the owner may read a new file. A file cannot be created under a name that exists; only
:meth:`Files.rename` replaces a file.
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
#: Errors with which file systems report a full disk or a reached limit. Their meanings are: no space left,
#: quota exceeded, file too large, too many open files in the process or in the system.
FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE})
#: Largest size in bytes of a file that is read whole. Journals and snapshots stay far below it.
FILE_SIZE_MAX: Final = 16 * 1024**3
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_sync: Final = getattr(os, "fdatasync", os.fsync)


class StorageFull(OSError):
    """The disk is full. Try the write again later.

    The incomplete frame of the journal was removed; earlier frames are complete.
    """


class File:
    """One open file. Every method blocks, and raises :class:`OSError` on failure."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def read_at(self, offset: int, size: int) -> bytes:
        """Read ``size`` bytes, or fewer if the file ends before."""
        found = bytearray()
        while more := os.pread(self.descriptor, size - len(found), offset + len(found)):
            found += more
        return bytes(found)

    def write_at(self, offset: int, data: bytes | bytearray | memoryview) -> int:
        """Write some or all of the bytes; return the number of bytes written."""
        return os.pwrite(self.descriptor, data, offset)

    def truncate(self, size: int) -> None:
        os.ftruncate(self.descriptor, size)

    def sync(self) -> None:
        """Wait until the disk has this file's bytes and size, no matter which process wrote the bytes."""
        _sync(self.descriptor)

    def close(self) -> None:
        os.close(self.descriptor)


class Files:
    """The files of this machine. Every method blocks, and raises :class:`OSError` on failure."""

    def open(self, path: Path, *, write: bool = False, new: bool = False, durable: bool = False) -> File:
        """Open a regular file.

        Args:
            write: Open the file for writing as well.
            new: Create the file; fail if it exists.
            durable: Each write returns only when its bytes are on the disk.
        """
        flags = os.O_RDWR if write else os.O_RDONLY
        flags |= (os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW if new else 0) | (os.O_DSYNC if durable else 0)
        return File(open_regular(path, flags, FILE_MODE))

    def read(self, path: Path, *, size_max: int = FILE_SIZE_MAX) -> bytes:
        """Return the content of a regular file. The file may have at most ``size_max`` bytes."""
        return read_regular(path, size_max=size_max)

    def names(self, directory: Path) -> list[str]:
        """Return the sorted names in a directory; none if the directory does not exist."""
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def modified_at(self, path: Path) -> float:
        """Return the time of a file's last change, in seconds since 1970."""
        return path.stat().st_mtime

    def make_directory(self, path: Path) -> None:
        """Make a directory; do nothing if it exists.

        Raises:
            FileNotFoundError: If the parent directory does not exist.
        """
        path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)

    def sync_directory(self, path: Path) -> None:
        with closing(File(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))) as directory:
            os.fsync(directory.descriptor)

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file within one directory. A file that has the new name is replaced."""
        os.rename(old, new)

    def link(self, path: Path, new: Path) -> None:
        """Give a file a second name. The name must not exist yet."""
        os.link(path, new)

    def unlink(self, path: Path) -> None:
        """Remove a file; do nothing if it does not exist."""
        path.unlink(missing_ok=True)

    def lock(self, path: Path) -> File:
        """Lock a file. The lock ends when the returned object is closed or the process ends.

        Raises:
            BlockingIOError: If another process has locked the file.
        """
        held = File(open_regular(path, os.O_RDWR | os.O_CREAT, FILE_MODE))
        try:
            fcntl.flock(held.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            held.close()
            raise
        return held

    def boot_id(self) -> str:
        """Return an id of this boot of the kernel, or "" if the system has none.

        After a change of the id, bytes that were not synced before the boot may be lost.
        """
        with suppress(OSError):
            return Path(_BOOT_ID).read_text(encoding="ascii").strip()
        return ""


def write_all(file: File, offset: int, data: bytes | bytearray | memoryview) -> None:
    """Write all data. This may need several calls, because one call may write only a part."""
    done, size = 0, len(data)
    while done < size:
        written = file.write_at(offset + done, memoryview(data)[done:] if done else data)
        if written <= 0:
            raise OSError(errno.EIO, "write took nothing")
        done += written


def replace_file(files: Files, path: Path, parts: Iterable[bytes | bytearray]) -> None:
    """Replace the content of ``path`` by ``parts``, durably. A reader finds the old or the new content.

    Raises:
        OSError: If the content was not replaced. If the last step, the sync of the directory, failed, the
            new content may be in place.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    files.unlink(temporary)  # A crash may have left a temporary file, which must not block the new one.
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
    """Make directory ``path`` and its parents, and sync the parents: the new names then survive a crash."""
    try:
        files.make_directory(path)
    except FileNotFoundError:
        make_directories(files, path.parent)
        files.make_directory(path)
        files.sync_directory(path.parent)


#: The disk of this machine. Tests may pass a simulated disk instead.
DISK: Final = Files()
