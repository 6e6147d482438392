"""Where the raft package touches the machine, the simulator takes the machine's place.

The real driver, engine, journal, snapshots, data directory, transport and handshake run; replaced are clocks,
chance, ``os`` (so that a crash can lose what was not synced, and a disk can be full), the journal's thread,
and the sockets under the transport (see :mod:`net`). Files are real ones in a directory of the run.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import nameserver.modes.notes
import nameserver.raft.consensus.applying
import nameserver.raft.consensus.images
import nameserver.raft.consensus.sending
import nameserver.raft.links.transport
import nameserver.raft.member
import nameserver.raft.node.driver
import nameserver.raft.storage.identity
import nameserver.raft.storage.images
import nameserver.raft.storage.journal
import nameserver.raft.storage.writer
import nameserver.replicated.kv_file
from nameserver.raft.consensus.log import Op
from nameserver.raft.storage.journal import Journal, StorageFull

from .clock import Clock, Loop
from .net import Listener

WRITE_S = (5e-5, 4e-3)
ZEROS_S = (1e-3, 2e-2)
AWAITED = 0.6
"""How often a write is done while the loop waits for it."""
SECTOR = 512
"""Bytes that reach a disk together or not at all."""
FULL_RETRY_S = nameserver.raft.storage.writer.FULL_RETRY_S


@dataclass(slots=True)
class _Unsure:
    """What was written to a file and is not certain yet.

    Attributes:
        begin, end: Offsets of it.
        size: Of the file before: up to there it held zeros, which are certain.
    """

    begin: int
    end: int
    size: int

    def lose(self, path: str, rng: random.Random) -> None:
        """The process ends or power fails: all is kept, or nothing, or the first bytes, or some sectors."""
        end = min(self.end, os.path.getsize(path))
        how = rng.random()
        if end <= self.begin or how < 0.25:
            return
        with open(path, "r+b") as file:
            if how < 0.5:
                for start in range(self.begin - self.begin % SECTOR, end, SECTOR):
                    if rng.random() < 0.5:
                        _zero(file, max(start, self.begin), min(start + SECTOR, end))
                return
            kept = self.begin if how < 0.75 else rng.randint(self.begin, end)
            _zero(file, kept, min(end, self.size))
            if end > self.size:
                file.truncate(max(kept, self.size))


def _zero(file: BinaryIO, begin: int, end: int) -> None:
    if end > begin:
        file.seek(begin)
        file.write(bytes(end - begin))


class Machine:
    """What one simulated process may break on: its disk, its chance, its open files."""

    def __init__(self, clock: Clock, loop: Loop, *, sync: bool) -> None:
        self.clock = clock
        self.loop = loop
        self.sync = sync
        self.rng = random.Random(clock.rng.getrandbits(64))
        self.full = False
        self.hangs_until = 0.0
        self.unsure: dict[str, _Unsure] = {}
        self.files: dict[int, str] = {}
        self.saved: dict[Path, bytes] = {}
        """Files replaced as a whole, as this process has left them; on the real disk once it has ended."""
        self.failed: Callable[[str], None] = lambda reason: None
        self.was_removed: Callable[[], None] = lambda: None

    @property
    def cannot_write(self) -> bool:
        return self.full or self.hangs_until > self.clock.now

    def crash(self) -> None:
        """Lose what was not certain, and give back what the process held."""
        for descriptor in list(self.files):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self.files.clear()
        for path, unsure in sorted(self.unsure.items()):
            unsure.lose(path, self.clock.rng)
        self.unsure.clear()
        for file, content in self.saved.items():
            file.write_bytes(content)


running: list[Machine] = []
"""The machine whose code runs now, innermost last."""


def machine() -> Machine:
    """Return the machine whose code runs now."""
    return running[-1]


@contextlib.contextmanager
def on(which: Machine) -> Iterator[None]:
    """Everything inside runs on this machine."""
    running.append(which)
    try:
        yield
    finally:
        running.pop()


class _Os:
    """``os`` as the simulated machines have it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    @staticmethod
    def urandom(size: int) -> bytes:
        return machine().rng.randbytes(size)

    @staticmethod
    def open(path: Any, flags: int, mode: int = 0o777) -> int:
        # What is certain is decided here, see :class:`Writer`; the real disk need not be waited for.
        descriptor = os.open(path, flags & ~os.O_DSYNC, mode)
        machine().files[descriptor] = str(path)
        return descriptor

    @staticmethod
    def close(descriptor: int) -> None:
        machine().files.pop(descriptor, None)
        os.close(descriptor)

    @staticmethod
    def write(descriptor: int, data: bytes | memoryview) -> int:
        here = machine()
        path = here.files[descriptor]
        at, size = os.lseek(descriptor, 0, os.SEEK_CUR), os.fstat(descriptor).st_size
        unsure = here.unsure.get(path)
        if unsure is None:
            unsure = here.unsure[path] = _Unsure(at, at, size)
        if here.full and at + len(data) > size:
            unsure.end = at + os.write(descriptor, data[: len(data) // 3])
            raise OSError(errno.ENOSPC, "No space left on device")
        unsure.end = at + len(data)
        return os.write(descriptor, data)

    @staticmethod
    def pwrite(descriptor: int, data: bytes | memoryview, offset: int) -> int:
        """Certain at once: of votes, and of zeros that nobody would miss."""
        if machine().full and offset + len(data) > os.fstat(descriptor).st_size:
            os.pwrite(descriptor, data[: len(data) // 3], offset)
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.pwrite(descriptor, data, offset)

    @staticmethod
    def fsync(descriptor: int) -> None:
        """Certain from the moment at which the simulated write is done, see :class:`Writer`."""

    @staticmethod
    def fdatasync(descriptor: int) -> None:
        """As :meth:`fsync`."""


class _Secrets:
    @staticmethod
    def token_hex(size: int) -> str:
        return machine().rng.randbytes(size).hex()


class _Time:
    """``time`` for notes to people."""

    @staticmethod
    def time_ns() -> int:
        return int(machine().loop.time() * 1e9)


def _open(path: Any, mode: str = "r", *rest: Any) -> Any:
    if machine().full and "w" in mode:
        raise OSError(errno.ENOSPC, "No space left on device")
    return builtins.open(path, mode, *rest)


def _save_if_other(path: Path, content: bytes) -> None:
    """Replaces a file at once. Each change of a key comes here, so the real disk sees the last one alone."""
    here = machine()
    if here.saved.get(path) != content:
        if here.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        here.saved[path] = content


def _boot_clock() -> float:
    """Counts pauses as the virtual time does; another origin than the loop's clock."""
    loop = running[-1].loop
    return loop._clock.now + loop.offset + 7.0


class Writer:
    """The journal's thread on virtual time: begins soon, is done later, and groups what waits meanwhile.

    What a write has put into the file is certain when it is done; a crash in between keeps any part of it.
    """

    def __init__(
        self, journal: Journal, *, done: Callable[[int], None], failed: Callable[[str], None]
    ) -> None:
        self._journal, self._done, self._failed = journal, done, failed
        self._machine = machine()
        self._queue: list[tuple[int, list[Op]] | Callable[[], None]] = []
        self._busy = self._closed = self._silent = False
        self._handed = self._written = 0
        self._writing = 0
        """Position of what is in the file and not certain yet."""
        self._step = 0
        """Number of what is due next; what was due before is over."""

    def start(self) -> None:
        self._machine.unsure.clear()  # what recovery wrote, it has synced

    def write(self, position: int, ops: list[Op], *, silent: bool = False) -> None:
        self._silent = silent and (self._silent or self._handed == self._written)
        self._handed = position
        self._queue.append((position, ops))
        self._soon(1e-5)

    def call(self, work: Callable[[], None]) -> None:
        self._queue.append(work)
        self._soon(1e-5)

    def ask(self) -> int:
        self._silent = False
        return self._written

    def wait(self, position: int) -> int | None:
        """On a quick disk all is done while the loop stands still; nothing else happens meanwhile."""
        here = self._machine
        if self._closed or here.cannot_write or here.clock.rng.random() > AWAITED:
            return None
        if not self._busy:
            return 0
        if not all(isinstance(item, tuple) for item in self._queue):
            return None
        for item in self._queue:
            here.unsure.clear()
            if not isinstance(item, tuple) or not self._append(item[1]):
                raise AssertionError("this disk has room")
            self._writing = item[0]
        self._queue.clear()
        self._step += 1
        self._busy = False
        here.unsure.clear()
        self._written = self._writing
        return self._writing

    def close(self) -> None:
        """Blocking, in the real one: everything that waits is written first."""
        self._closed = True
        with on(self._machine):
            while self._queue:
                item = self._queue.pop(0)
                if not isinstance(item, tuple):
                    item()
                elif not self._append(item[1]):
                    break
                else:
                    self._done(item[0])
        self._machine.unsure.clear()

    def _soon(self, delay: float) -> None:
        if not self._busy:
            self._busy = True
            self._later(delay, self._begin)

    def _later(self, delay: float, call: Callable[..., None], *arguments: Any) -> None:
        self._step += 1
        self._machine.clock.at(delay, self._run, self._step, call, arguments)

    def _run(self, step: int, call: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        here = self._machine
        if here.loop.dead or self._closed or step != self._step:
            return
        wait = max(here.loop.paused_until, here.hangs_until) - here.clock.now
        if wait > 0:
            here.clock.at(wait, self._run, step, call, arguments)
            return
        running.append(here)
        try:
            call(*arguments)
        finally:
            running.pop()

    def _begin(self) -> None:
        if not isinstance(self._queue[0], tuple):
            work = self._queue.pop(0)
            assert not isinstance(work, tuple)
            work()
            self._machine.unsure.clear()
            self._busy = False
            if self._queue:
                self._soon(1e-5)
            return
        ops: list[Op] = []
        position = taken = 0
        while taken < len(self._queue) and isinstance(item := self._queue[taken], tuple):
            position, ops = item[0], ops + item[1]
            taken += 1
        if not self._append(ops):
            self._later(FULL_RETRY_S, self._begin)
            return
        del self._queue[:taken]
        self._writing = position
        self._later(self._machine.clock.rng.uniform(*WRITE_S), self._end, position)

    def _append(self, ops: list[Op]) -> bool:
        try:
            self._journal.append(ops)
        except StorageFull:
            self._machine.unsure.clear()
            return False
        return True

    def _end(self, position: int) -> None:
        self._machine.unsure.clear()
        self._written = position
        if not self._silent:
            self._done(position)
        if self._journal.wants_room and (not self._queue or self._journal.out_of_room):
            self._journal.make_room()
            self._later(self._machine.clock.rng.uniform(*ZEROS_S), self._free)
        else:
            self._free()

    def _free(self) -> None:
        self._busy = False
        if self._queue:
            self._soon(1e-5)


def _end_process(reason: str) -> None:
    machine().failed(reason)


def _end_removed(reason: str) -> None:
    machine().was_removed()


_SEAMS: tuple[tuple[Any, str, Any], ...] = (
    (nameserver.raft.node.driver, "os", _Os()),
    (nameserver.raft.node.driver, "boot_clock", _boot_clock),
    (nameserver.raft.node.driver, "Writer", Writer),
    (nameserver.raft.storage.journal, "os", _Os()),
    (nameserver.raft.storage.images, "os", _Os()),
    (nameserver.raft.storage.images, "open", _open),
    (nameserver.raft.storage.identity, "os", _Os()),
    (nameserver.raft.storage.identity, "secrets", _Secrets),
    (nameserver.raft.links.transport, "os", _Os()),
    (nameserver.raft.links.transport, "_bind", lambda found: Listener(found[4])),
    (nameserver.raft.member, "_end_process", _end_process),
    (nameserver.raft.member, "_end_removed", _end_removed),
    (nameserver.modes.notes, "time", _Time),
    (nameserver.replicated.kv_file, "_save_if_other", _save_if_other),
    (nameserver.raft.storage.journal, "ZEROS", 4_000),
    # Small, so that members fall behind the log, images and batches come in pieces, and applying takes turns.
    (nameserver.raft.consensus.images, "TAIL_BYTES", 2_000),
    (nameserver.raft.consensus.sending, "PART_BYTES", 1_500),
    (nameserver.raft.consensus.sending, "BATCH_BYTES", 1_000),
    (nameserver.raft.consensus.applying, "APPLY_STEP", 7),
    # Short, so that what a full disk has kept from being stored is sent again before a run ends.
    (nameserver.raft.consensus.sending, "TRANSFER_TIMEOUT_S", 4.0),
)


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Put the simulated machines under the raft package, for as long as this lasts."""
    absent = object()
    before = [(module, name, getattr(module, name, absent)) for module, name, _ in _SEAMS]
    for module, name, replacement in _SEAMS:
        # snapshot has no "open" of its own: the builtin is found after the module's names
        assert hasattr(module, name) or hasattr(builtins, name), f"{module.__name__} has no {name}"
        setattr(module, name, replacement)
    try:
        yield
    finally:
        for module, name, value in before:
            if value is absent:
                delattr(module, name)
            else:
                setattr(module, name, value)
