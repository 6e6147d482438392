"""A disk in memory that may lose everything that is not synced: bytes and names.

After a power cut, each sector of a file has the content that it had at some instant since the last sync. The
file has the size that it had at one of these instants. A directory keeps a random part of the changes since
its last sync.

After a failed sync, the bytes may never reach the disk. They can still be read until the power cut, and later
syncs succeed, as on Linux.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from routekeeper.broker.store.files import Disk

SECTOR = 64  # bytes, so few that a record of a simulated log spans several sectors


class PowerCut(BaseException):
    """The power fails during a call to the disk. No handler of the broker may catch this exception."""


class _File:
    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = bytearray()
        # Changes since the last sync: (offset, bytes) for a write, (size, None) for a truncation.
        self.pending: list[tuple[int, bytes | None]] = []
        self.modified = 0.0

    def change(self, at: int, data: bytes | None) -> None:
        _apply(self.content, at, data)
        self.pending.append((at, data))

    def sync(self) -> None:
        for at, data in self.pending:
            _apply(self.durable, at, data)
        self.pending.clear()

    def lose(self, rng: random.Random) -> None:
        """Change the content to one of the random states that a power cut may leave."""
        if self.pending:
            instants = sorted({0, len(self.pending), rng.randint(0, len(self.pending))})
            images = []
            for instant in instants:
                image = bytearray(self.durable)
                for at, data in self.pending[:instant]:
                    _apply(image, at, data)
                images.append(image)
            size = len(rng.choice(images))
            left = bytearray(size)
            favourite = rng.choice([None, *images])
            for at in range(0, size, SECTOR):
                source = rng.choice(images) if favourite is None or rng.random() < 0.2 else favourite
                piece = source[at : min(at + SECTOR, size)]
                left[at : at + len(piece)] = piece
            self.durable = left
        self.content = bytearray(self.durable)
        self.pending.clear()


def _apply(content: bytearray, at: int, data: bytes | None) -> None:
    if len(content) < at:
        content.extend(bytes(at - len(content)))
    if data is None:
        del content[at:]
    else:
        content[at : at + len(data)] = data


class _Directory:
    def __init__(self) -> None:
        self.names: dict[str, _File | _Directory] = {}
        self.durable: dict[str, _File | _Directory] = {}
        self.pending: list[tuple[str | None, str | None, _File | _Directory]] = []  # old name, new name, node

    def change(self, old: str | None, new: str | None, node: _File | _Directory) -> None:
        _move(self.names, old, new, node)
        self.pending.append((old, new, node))

    def sync(self) -> None:
        for change in self.pending:
            _move(self.durable, *change)
        self.pending.clear()

    def lose(self, rng: random.Random) -> None:
        kept = rng.choice((0.0, 0.5, 1.0))
        for old, new, node in self.pending:
            if rng.random() < kept and (old is None or self.durable.get(old) is node):
                _move(self.durable, old, new, node)
        self.names = dict(self.durable)
        self.pending.clear()
        # A file with two names must lose its content only once.
        for node in {id(node): node for node in self.names.values()}.values():
            node.lose(rng)


def _move(
    names: dict[str, _File | _Directory], old: str | None, new: str | None, node: _File | _Directory
) -> None:
    if old is not None:
        names.pop(old, None)
    if new is not None:
        names[new] = node


class SimulatedDisk(Disk):
    """The disk of one machine.

    Args:
        forgets: Called at each sync with (kind, path). If it returns True, the sync does nothing. Tests use
            this to remove a sync of the broker.

    Attributes:
        calls: Number of changes and syncs so far.
        cut_at: Value of ``calls`` at which the power fails, or None for no power cut.
        fault_rate: Probability that a change or sync fails.
        read_fault_rate: Probability that a read fails, with EIO.
        is_full: While True, no file can grow.
        between: Called before each change or sync, so that other work can run.
        now: Current time in Unix seconds.
    """

    def __init__(
        self, seed: int, *, forgets: Callable[[str, Path], bool] = lambda _kind, _path: False
    ) -> None:
        self._rng = random.Random(seed)
        self._root = _Directory()
        self._forgets = forgets
        self._open: dict[int, tuple[_File, Path]] = {}
        self._next_fd = 100
        self.calls = 0
        self.cut_at: int | None = None
        self.fault_rate = 0.0
        self.read_fault_rate = 0.0
        self.is_full = False
        self.between: Callable[[], None] = lambda: None
        self.now = 0.0

    def lose_power(self) -> None:
        """Lose everything that is not synced, and all open files."""
        self._root.lose(self._rng)
        self.end_process()

    def end_process(self) -> None:
        self._open.clear()
        self.cut_at = None

    def is_same(self, path: Path, other: Path) -> bool:
        """Return True if two names belong to one file."""
        return self._node(path) is self._node(other)

    # Calls of the broker -------------------------------------------------------------------------

    def names(self, directory: Path) -> list[str]:
        return list(self._directory(directory).names)

    def is_there(self, path: Path) -> bool:
        try:
            self._node(path)
        except FileNotFoundError:
            return False
        return True

    def make_directory(self, path: Path) -> None:
        self._call(path, grows=True)
        parent = self._directory(path.parent)
        if path.name in parent.names:
            raise _error(errno.EEXIST)
        parent.change(None, path.name, _Directory())

    def remove_directory(self, path: Path) -> None:
        self._call(path)
        if self._directory(path).names:
            raise _error(errno.ENOTEMPTY)
        self._directory(path.parent).change(path.name, None, self._directory(path))

    def sync_directory(self, path: Path) -> None:
        directory = self._directory(path)
        self._call(path)
        if not self._forgets("names", path):
            directory.sync()

    def open(self, path: Path, *, create: bool = False, empty: bool = False) -> int:
        parent = self._directory(path.parent)
        found = parent.names.get(path.name)
        if found is None:
            if not create and not empty:
                raise _error(errno.ENOENT)
            self._call(path, grows=True)
            found = _File()
            found.modified = self.now
            parent.change(None, path.name, found)
        elif create:
            raise _error(errno.EEXIST)
        assert isinstance(found, _File)
        if empty and found.content:
            found.change(0, None)
        self._next_fd += 1
        self._open[self._next_fd] = (found, path)
        return self._next_fd

    def close(self, fd: int) -> None:
        del self._open[fd]

    def size(self, fd: int) -> int:
        return len(self._open[fd][0].content)

    def modified(self, fd: int) -> float:
        return self._open[fd][0].modified

    def read(self, fd: int, size: int, at: int) -> bytes:
        if self.read_fault_rate and self._rng.random() < self.read_fault_rate:
            raise _error(errno.EIO)
        return bytes(self._open[fd][0].content[at : at + size])

    def read_into(self, fd: int, buffer: memoryview, at: int) -> int:
        data = self.read(fd, len(buffer), at)
        buffer[: len(data)] = data
        return len(data)

    @contextmanager
    def content(self, fd: int) -> Iterator[bytes]:
        yield bytes(self._open[fd][0].content)

    def write(self, fd: int, data: bytes | memoryview, at: int) -> int:
        file, path = self._open[fd]
        size = len(data)
        try:
            self._call(path, grows=at + size > len(file.content))
        except OSError:
            if size < 2 or self._rng.random() < 0.5:
                raise
            size = self._rng.randrange(1, size)  # A short write. The next call to the disk may fail.
        if size > 1 and self.fault_rate and self._rng.random() < self.fault_rate:
            size = self._rng.randrange(1, size)
        file.change(at, bytes(data[:size]))
        file.modified = self.now
        return size

    def cut(self, fd: int, size: int) -> None:
        file, path = self._open[fd]
        self._call(path)
        file.change(size, None)

    def sync(self, fd: int) -> None:
        self._sync("whole", fd)

    def sync_data(self, fd: int) -> None:
        self._sync("data", fd)

    def link(self, path: Path, new: Path) -> None:
        self._call(path, grows=True)
        if new.name in self._directory(new.parent).names:
            raise _error(errno.EEXIST)
        self._directory(new.parent).change(None, new.name, self._node(path))

    def rename(self, path: Path, new: Path) -> None:
        self._call(path)
        self._directory(path.parent).change(path.name, new.name, self._node(path))

    def remove(self, path: Path) -> None:
        self._call(path)
        self._directory(path.parent).change(path.name, None, self._node(path))

    def space(self, path: Path) -> tuple[int, int]:
        return 0, 0

    # Helpers -------------------------------------------------------------------------------------

    def _call(self, path: Path, *, grows: bool = False) -> None:
        self.calls += 1
        if self.cut_at is not None and self.calls >= self.cut_at:
            raise PowerCut
        self.between()
        if self.is_full and grows:
            raise _error(errno.ENOSPC)
        if self.fault_rate and self._rng.random() < self.fault_rate:
            raise _error(self._rng.choice((errno.EIO, errno.ENOSPC)))

    def _sync(self, kind: str, fd: int) -> None:
        file, path = self._open[fd]
        try:
            self._call(path)
        except OSError:
            content = file.content
            file.lose(self._rng)
            file.content = content
            raise
        if not self._forgets(kind, path):
            file.sync()

    def _node(self, path: Path) -> _File | _Directory:
        node: _File | _Directory = self._root
        for part in path.parts[1:]:
            if not isinstance(node, _Directory):
                raise _error(errno.ENOTDIR)
            if part not in node.names:
                raise _error(errno.ENOENT)
            node = node.names[part]
        return node

    def _directory(self, path: Path) -> _Directory:
        node = self._node(path)
        if not isinstance(node, _Directory):
            raise _error(errno.ENOTDIR)
        return node


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
