"""The broker's file operations. Tests replace them with a disk that loses all data that are not synced.

Written bytes survive the end of the process. Only synced bytes survive a power cut. After a file was created,
renamed or removed, the change survives a power cut only if the directory was synced. A small file is
replaced as a whole: a new file is written, synced and renamed. Files with the broker's tables also have a
checksum, and a backup of the previous version.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from routekeeper.remoting import state_file
from routekeeper.remoting.files import open_regular
from routekeeper.remoting.state_file import Loaded

T = TypeVar("T")

#: Error numbers for too many open files, in this process or on the machine. They do not mean that the disk
#: has failed.
NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})

#: Content of a file. It is valid only inside the ``with`` block of :meth:`Disk.content`.
Content = bytes | mmap.mmap


class Disk:
    """File system operations that the broker needs. Each operation raises OSError if it fails."""

    def names(self, directory: Path) -> list[str]:
        return os.listdir(directory)

    def is_there(self, path: Path) -> bool:
        return path.exists()

    def make_directory(self, path: Path) -> None:
        path.mkdir(mode=0o700)

    def remove_directory(self, path: Path) -> None:
        path.rmdir()

    def sync_directory(self, path: Path) -> None:
        """Make the creation, renaming and removal of files in a directory durable."""
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def open(self, path: Path, *, create: bool = False, empty: bool = False) -> int:
        """Open a file for reading and writing.

        Args:
            create: Create the file. An existing file is an error.
            empty: Create the file, or cut an existing file to size 0.
        """
        flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0)
        return open_regular(path, flags | (os.O_CREAT | os.O_TRUNC if empty else 0), 0o600)

    def close(self, fd: int) -> None:
        os.close(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def modified(self, fd: int) -> float:
        """Return the time of the file's last write, in Unix seconds."""
        return os.fstat(fd).st_mtime

    def read(self, fd: int, size: int, at: int) -> bytes:
        return os.pread(fd, size, at)

    def read_into(self, fd: int, buffer: memoryview, at: int) -> int:
        """Read bytes into ``buffer`` until it is full or the file ends. Return the number of bytes read."""
        return os.preadv(fd, [buffer], at)

    @contextlib.contextmanager
    def content(self, fd: int) -> Iterator[Content]:
        size = os.fstat(fd).st_size
        if size == 0:
            yield b""
            return
        with mmap.mmap(fd, size, access=mmap.ACCESS_READ) as data:
            yield data

    def write(self, fd: int, data: bytes | memoryview, at: int) -> int:
        """Write bytes at a position, and return the number of bytes written."""
        return os.pwrite(fd, data, at)

    def cut(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        os.fsync(fd)

    def sync_data(self, fd: int) -> None:
        """Make the file's content and size durable."""
        os.fdatasync(fd)

    def link(self, path: Path, new: Path) -> None:
        os.link(path, new)

    def rename(self, path: Path, new: Path) -> None:
        path.replace(new)

    def remove(self, path: Path) -> None:
        path.unlink()

    def space(self, path: Path) -> tuple[int, int]:
        """Return (size, free) of a file system in bytes, or zeros if unknown. Omit root's reserve."""
        try:
            found = os.statvfs(path)
        except OSError:
            return 0, 0
        used = found.f_blocks - found.f_bfree
        return (used + found.f_bavail) * found.f_frsize, found.f_bavail * found.f_frsize


DISK: Final = Disk()


def make_directories(disk: Disk, path: Path) -> None:
    """Create a directory and its missing parent directories, durably."""
    missing = []
    while not disk.is_there(path):
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        with contextlib.suppress(FileExistsError):
            disk.make_directory(directory)
        try:
            disk.sync_directory(directory.parent)
        except OSError:
            with contextlib.suppress(OSError):
                disk.remove_directory(directory)  # otherwise the next call would assume a durable name
            raise


def remove_tree(disk: Disk, path: Path) -> None:
    """Remove a directory with all its content. Do nothing if it does not exist. The removal is not synced."""
    try:
        names = disk.names(path)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        disk.remove(path)
        return
    for name in names:
        remove_tree(disk, path / name)
    disk.remove_directory(path)


def write_whole(disk: Disk, fd: int, data: bytes | memoryview, at: int) -> None:
    """Write all of ``data`` at a position of a file, in as many calls as needed."""
    rest = memoryview(data)
    while rest:
        written = disk.write(fd, rest, at)
        if written == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rest = rest[written:]
        at += written


def write_atomic(disk: Disk, path: Path, data: bytes) -> None:
    """Replace the content of ``path`` by ``data``. Use it for data that contain their own checksum.

    After a crash, the file has either the old or the new content.

    Raises:
        OSError: If the file cannot be written. Then the file still has the old content. Exception: if only
            the last step (the sync of the directory) failed, the file has the new content, but not durably.
    """
    make_directories(disk, path.parent)
    scratch = path.with_name(path.name + ".tmp")
    try:
        fd = disk.open(scratch, empty=True)
        try:
            write_whole(disk, fd, data, 0)
            disk.sync(fd)
        finally:
            disk.close(fd)
        disk.rename(scratch, path)
    except OSError:
        with contextlib.suppress(OSError):
            disk.remove(scratch)
        raise
    disk.sync_directory(path.parent)


def read_whole(disk: Disk, path: Path) -> bytes:
    """Return the whole content of a small file."""
    fd = disk.open(path)
    try:
        return disk.read(fd, disk.size(fd), 0)
    finally:
        disk.close(fd)


class StateStorage:
    """Adapter that gives ``state_file`` access to small files on a :class:`Disk`."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def link(self, path: Path, new: Path) -> None:
        self._disk.link(path, new)

    def rename(self, path: Path, new: Path) -> None:
        self._disk.rename(path, new)

    def sync_directory(self, path: Path) -> None:
        self._disk.sync_directory(path)

    def content(self, path: Path) -> bytes:
        return read_whole(self._disk, path)

    def write_new(self, path: Path, data: bytes) -> None:
        self.discard(path)  # write no byte into the old file, because the backup may be a hard link to it
        fd = self._disk.open(path, create=True)
        try:
            write_whole(self._disk, fd, data, 0)
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)

    def discard(self, path: Path) -> None:
        if self._disk.is_there(path):
            self._disk.remove(path)


def load_state(disk: Disk, path: Path, parse: Callable[[str], T], *, adopt: bool = True) -> Loaded[T]:
    """Return the parsed content of a state file.

    Args:
        adopt: True to write a missing checksum now. False if the caller must check the content first.

    Raises:
        StateFileError: If neither the file nor its backup can be used, or if an operator has to decide
            whether to use the file.
        OSError: If the disk fails.
    """
    return state_file.load(StateStorage(disk), path, lambda content: parse(content.decode()), adopt=adopt)


def write_state(disk: Disk, path: Path, data: bytes, *, backup_too: bool = False) -> None:
    """Replace a state file, its checksum and its backup.

    Args:
        backup_too: True to write ``data`` into the backup, too. By default, the backup gets the file's former
            content.

    Raises:
        OSError: If the file cannot be written. See :func:`routekeeper.remoting.state_file.replace`.
    """
    make_directories(disk, path.parent)
    state_file.replace(StateStorage(disk), path, data, backup_too=backup_too)
