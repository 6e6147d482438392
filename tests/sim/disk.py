"""A simulated disk. It may lose bytes and names until they are synced, and each of its calls may fail.

Written bytes can be read by all processes, even after the process that wrote them was killed. If a process is
killed during a write, the write may be stored partly. A power cut may lose any of the unsynced sectors. It
also loses a random number, possibly 0, of the latest unsynced changes of file and folder names.
"""

from __future__ import annotations

import errno
import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from routekeeper.nameserver.disk.files import FILE_SIZE_MAX, File, Files

SECTOR = 512
"""Bytes that a disk stores together: all of them or none."""
SHORT = 0.02
"""Probability that a write stores fewer bytes than requested."""


class Crashed(BaseException):
    """Raised if the process ended during this call of the disk."""


class Owner(Protocol):
    """The interface by which a disk reports crashes and violations to its simulated member."""

    def crashed(self, *, power: bool) -> None:
        """End the process now, and cut the machine's power if ``power`` is True."""

    def complain(self, text: str) -> None:
        """Report a violation of the rules for the use of the disk."""


class _Change:
    """A write or a truncation that is not durable.

    Attributes:
        old: The bytes before the change, if there were any.
        new_end: End of the new bytes; for a truncation, equal to ``begin``.
        size: Size of the file before the change.
    """

    __slots__ = ("begin", "new_end", "old", "size")

    def __init__(self, begin: int, new_end: int, old: bytearray, size: int) -> None:
        self.begin, self.new_end, self.old, self.size = begin, new_end, old, size

    def lose(self, data: bytearray, rng: random.Random) -> None:
        """Lose a random part of this change: all of it, some sectors, the end, or nothing."""
        how = rng.random()
        if how < 0.25:
            return
        if self.new_end == self.begin:  # the truncation is lost: the truncated bytes come back
            data += self.old[len(data) - self.begin :]
            return
        begin, end = self.begin, min(self.new_end, len(data))
        if how < 0.5:
            for start in range(begin - begin % SECTOR, end, SECTOR):
                if rng.random() < 0.5:
                    self._undo(data, max(start, begin), min(start + SECTOR, end))
            return
        kept = begin if how < 0.75 else rng.randint(begin, max(begin, end))
        self._undo(data, kept, end)
        if end == len(data):
            del data[max(kept, self.size) :]

    def _undo(self, data: bytearray, begin: int, end: int) -> None:
        if end > begin:
            old = self.old[begin - self.begin : end - self.begin]
            data[begin:end] = old.ljust(end - begin, b"\0")

    def know(self, sure: _Change, data: bytearray) -> None:
        """Note that a later change ``sure`` is durable, so its bytes stay even if this change is lost."""
        begin, end = max(self.begin, sure.begin), sure.new_end
        if self.new_end > self.begin:
            end = min(end, self.new_end)
        else:
            end = min(end, self.begin + len(self.old))
        if end > begin:
            short = end - self.begin - len(self.old)
            if short > 0:
                self.old += bytes(short)
            self.old[begin - self.begin : end - self.begin] = data[begin:end]
            self.size = max(self.size, end)


class Inode:
    """The bytes of one file."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.changes: list[_Change] = []

    def write(self, offset: int, data: bytes) -> _Change:
        size, end = len(self.data), offset + len(data)
        change = _Change(offset, end, self.data[offset:end], size)
        if offset > size:
            self.data += bytes(offset - size)
        self.data[offset:end] = data
        self.changes.append(change)
        return change

    def truncate(self, size: int) -> None:
        if size < len(self.data):
            self.changes.append(_Change(size, size, self.data[size:], len(self.data)))
            del self.data[size:]
        elif size > len(self.data):
            self.write(len(self.data), bytes(size - len(self.data)))

    def sync(self) -> None:
        self.changes.clear()

    def sync_one(self, change: _Change) -> None:
        if change in self.changes:
            at = self.changes.index(change)
            for older in self.changes[:at]:
                older.know(change, self.data)
            del self.changes[at]

    def lose(self, rng: random.Random) -> None:
        for change in reversed(self.changes):
            change.lose(self.data, rng)
        self.changes.clear()


_Names = dict[str, "Inode | Directory"]


@dataclass(slots=True)
class Directory:
    """A directory: the names that processes see, the durable names, and the changes between them.

    The changes are in the order in which processes made them.
    """

    names: _Names = field(default_factory=dict)
    sure: _Names = field(default_factory=dict)
    changes: list[dict[str, Inode | Directory | None]] = field(default_factory=list)

    def change(self, **names: Inode | Directory | None) -> None:
        _apply(self.names, names)
        self.changes.append(names)

    def sync(self) -> None:
        self.sure = dict(self.names)
        self.changes.clear()

    def lose(self, rng: random.Random) -> None:
        for names in self.changes[: rng.randint(0, len(self.changes))]:
            _apply(self.sure, names)
        self.names = dict(self.sure)
        self.changes.clear()
        for _, entry in sorted(self.names.items()):
            entry.lose(rng)


def _apply(to: _Names, names: dict[str, Inode | Directory | None]) -> None:
    for name, entry in names.items():
        if entry is None:
            to.pop(name, None)
        else:
            to[name] = entry


class Disk:
    """The disk of one machine. Its content stays when the machine's processes end.

    Attributes:
        full: True while files cannot grow.
        hangs_until: Virtual time until which the calls of threads hang.
        crash_in: Number of calls until the process ends during a call; 0 means never.
        fail_in: Number of calls until a call fails with an input/output error; 0 means never.
        boot: Number of the machine's boots.
    """

    def __init__(self, top: Path, owner: Owner, rng: random.Random) -> None:
        self._top = top
        self._owner = owner
        self._rng = rng
        self.root = Directory()
        self.full = False
        self.hangs_until = 0.0
        self.crash_in = self.fail_in = 0
        self.crash_cuts_power = False
        self.boot = 1
        self.life = 0
        self.calls = 0
        self.under_way: list[tuple[Inode, _Change, bool]] = []
        """Unfinished writes of the journal's thread, each with its file.

        The third value is True if the write is durable as soon as it is finished.
        """
        self.locked: set[Path] = set()

    # -- events that happen to the disk

    def stop(self, *, power: bool) -> None:
        """End the process. If ``power`` is True, also cut the machine's power."""
        self.life += 1
        self.crash_in = self.fail_in = 0
        self.locked.clear()
        for inode, change, _ in reversed(self.under_way):
            if change in inode.changes:
                change.lose(inode.data, self._rng)
        self.under_way.clear()
        if power:
            self.boot += 1
            self.root.lose(self._rng)

    def empty(self) -> None:
        """Replace the disk by an empty disk."""
        self.root = Directory()

    def done(self) -> None:
        """Complete the journal thread's write that is in progress."""
        for inode, change, sure in self.under_way:
            if sure:
                inode.sync_one(change)
        self.under_way.clear()

    # -- calls of the process

    def call(self, what: str, user: User) -> bool:
        """Count a call of the process. If an error is planned for this call, raise it.

        Args:
            what: Name of the call, for the text of a violation.

        Returns:
            True if the process ends in this call; the caller must then raise the exception that :meth:`crash`
            returns.
        """
        if user.life != self.life:
            raise Crashed
        self.calls += 1
        if not user.patient:
            self._owner.complain(f"the loop waits for the disk to {what}")
        if self.fail_in:
            self.fail_in -= 1
            if not self.fail_in:
                raise OSError(errno.EIO, "Input/output error")
        if self.crash_in:
            self.crash_in -= 1
            return not self.crash_in
        return False

    def crash(self) -> Crashed:
        self._owner.crashed(power=self.crash_cuts_power)
        return Crashed()

    def room_for(self, inode: Inode, end: int) -> bool:
        return not self.full or end <= len(inode.data)

    def short(self, size: int) -> int:
        """Return how many bytes a write of ``size`` bytes stores. Sometimes they are fewer than ``size``."""
        return self._rng.randint(1, size) if size > 1 and self._rng.random() < SHORT else size

    def part(self, size: int) -> int:
        return self._rng.randint(0, size)

    def directory(self, path: Path) -> Directory:
        found: Inode | Directory = self.root
        for name in path.relative_to(self._top).parts:
            if not isinstance(found, Directory) or name not in found.names:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
            found = found.names[name]
        if not isinstance(found, Directory):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", str(path))
        return found

    def file(self, path: Path) -> Inode:
        found = self.directory(path.parent).names.get(path.name)
        if not isinstance(found, Inode):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return found


class User:
    """The access of one process to its machine's disk.

    Attributes:
        patient: Greater than 0 if the code that runs now may wait for the disk. Only threads and starting
            processes may wait, because a waiting event loop would answer no request.
    """

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.life = disk.life
        self.patient = 1
        self.writing = False


class DiskFile(File):
    """A file on the simulated disk; see :class:`routekeeper.nameserver.disk.File`."""

    def __init__(
        self, user: User, path: Path, *, durable: bool = False, release: Callable[[], None] = lambda: None
    ) -> None:
        self.path = path
        self._user, self._durable, self._release = user, durable, release
        self._inode = user.disk.file(path)
        self._disk = user.disk

    def _call(self, what: str) -> None:
        if self._disk.call(what, self._user):
            raise self._disk.crash()

    def read_at(self, offset: int, size: int) -> bytes:
        self._call("read")
        return bytes(self._inode.data[offset : offset + size])

    def write_at(self, offset: int, data: bytes | bytearray | memoryview) -> int:
        disk, inode = self._disk, self._inode
        ends = disk.call("write", self._user)
        size = disk.part(len(data)) if ends else disk.short(len(data))
        if not disk.room_for(inode, offset + size):
            if len(data) > 2 and offset <= len(inode.data):
                inode.write(offset, bytes(data[: len(data) // 3]))
            raise OSError(errno.ENOSPC, "No space left on device")
        change = inode.write(offset, bytes(data[:size]))
        if ends:
            disk.under_way.append((inode, change, False))
            raise disk.crash()
        if self._user.writing:
            disk.under_way.append((inode, change, self._durable))
        elif self._durable:
            inode.sync_one(change)
        return size

    def truncate(self, size: int) -> None:
        self._call("truncate")
        self._inode.truncate(size)

    def sync(self) -> None:
        self._call("sync")
        self._inode.sync()

    def close(self) -> None:
        if self._user.life == self._disk.life:
            self._release()


class DiskFiles(Files):
    """Files on the disk of the machine whose code runs now; see :class:`Files`."""

    def __init__(self, here: Callable[[], User]) -> None:
        self._here = here

    def _call(self, what: str) -> Disk:
        user = self._here()
        if user.disk.call(what, user):
            raise user.disk.crash()
        return user.disk

    def open(self, path: Path, *, write: bool = False, new: bool = False, durable: bool = False) -> DiskFile:
        disk = self._call("open")
        if new:
            names = disk.directory(path.parent)
            if path.name in names.names:
                raise FileExistsError(errno.EEXIST, "File exists", str(path))
            if disk.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            names.change(**{path.name: Inode()})
        return DiskFile(self._here(), path, durable=durable)

    def read(self, path: Path, *, size_max: int = FILE_SIZE_MAX) -> bytes:
        return bytes(self._call("read").file(path).data)

    def names(self, directory: Path) -> list[str]:
        disk = self._call("list")
        try:
            return sorted(disk.directory(directory).names)
        except FileNotFoundError:
            return []

    def modified_at(self, path: Path) -> float:
        self._call("stat").file(path)
        return 0.0

    def make_directory(self, path: Path) -> None:
        disk = self._call("make a directory")
        above = disk.directory(path.parent)
        if path.name not in above.names:
            above.change(**{path.name: Directory()})

    def sync_directory(self, path: Path) -> None:
        self._call("sync a directory").directory(path).sync()

    def rename(self, old: Path, new: Path) -> None:
        disk = self._call("rename")
        inode = disk.file(old)
        disk.directory(old.parent).change(**{old.name: None, new.name: inode})

    def unlink(self, path: Path) -> None:
        names = self._call("unlink").directory(path.parent)
        if path.name in names.names:
            names.change(**{path.name: None})

    def lock(self, path: Path) -> DiskFile:
        disk = self._call("lock")
        if path in disk.locked:
            raise BlockingIOError(errno.EAGAIN, "locked")
        names = disk.directory(path.parent)
        if path.name not in names.names:
            names.change(**{path.name: Inode()})
        disk.locked.add(path)
        released = functools.partial(disk.locked.discard, path)
        return DiskFile(self._here(), path, release=released)

    def boot_id(self) -> str:
        return str(self._here().disk.boot)
