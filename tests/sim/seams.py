"""Replacements by which the raft package runs on simulated machines.

Most of its code is the real one: engine, journal, writer, snapshots, data directory, transport and handshake.
These parts are replaced:

- clocks and randomness;
- the files (see :mod:`disk`);
- the journal's thread, whose steps run on virtual time;
- the sockets under the transport (see :mod:`net`).
"""

from __future__ import annotations

import contextlib
import errno
import queue
import random
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import routekeeper.nameserver.modes.line
import routekeeper.nameserver.modes.notes
import routekeeper.nameserver.raft.consensus.images
import routekeeper.nameserver.raft.consensus.leading
import routekeeper.nameserver.raft.links.transport
import routekeeper.nameserver.raft.node.applier
import routekeeper.nameserver.raft.node.images
import routekeeper.nameserver.raft.node.member
import routekeeper.nameserver.raft.storage.identity
import routekeeper.nameserver.raft.storage.journal
import routekeeper.nameserver.raft.storage.writer
import routekeeper.nameserver.replicated.kv_file
import routekeeper.nameserver.replicated.mode
import routekeeper.nameserver.routes.topics
import routekeeper.remoting.steps
from routekeeper.nameserver.raft.storage.writer import NEXT_ITEM, Item, Steps
from routekeeper.nameserver.settings.files import write_atomic

from .clock import Clock, Loop
from .disk import Crashed, Disk, DiskFiles, User
from .net import Listener

WRITE_S = (5e-5, 4e-3)
BEGINS_S = 1e-5
"""Seconds until the journal's thread notices a new item."""


class Machine:
    """The machine of one simulated process: its disk and its source of randomness."""

    def __init__(self, clock: Clock, loop: Loop, disk: Disk) -> None:
        self.clock = clock
        self.loop = loop
        self.disk = disk
        self.user = User(disk)
        self.rng = random.Random(clock.rng.getrandbits(64))
        self.saved: dict[Path, bytes] = {}
        """Content of files that this process replaced. When the process ends, it goes to the real disk."""

    @property
    def cannot_write(self) -> bool:
        return self.disk.full or self.hangs

    @property
    def hangs(self) -> bool:
        return self.disk.hangs_until > self.clock.now

    def crash(self, *, power: bool) -> None:
        """End the process. If ``power`` is True, also cut the power, which may lose unsynced data."""
        self.disk.stop(power=power)
        for file, content in self.saved.items():
            write_atomic(file, content)


running: list[Machine] = []
"""Stack of the machines whose code runs now. The code of the last machine was entered last."""


def machine() -> Machine:
    """Return the machine whose code runs now."""
    return running[-1]


@contextlib.contextmanager
def on(which: Machine) -> Iterator[None]:
    """Make ``which`` the running machine inside the context: the replaced modules then act for it."""
    running.append(which)
    try:
        yield
    finally:
        running.pop()


class _Os:
    """A replacement of ``os``. The replaced modules use only its ``urandom``."""

    @staticmethod
    def urandom(size: int) -> bytes:
        return machine().rng.randbytes(size)


class _Secrets:
    @staticmethod
    def token_hex(size: int) -> str:
        return machine().rng.randbytes(size).hex()


class _WallClock:
    """A replacement of ``wall_clock``, from which the raft package takes only times for operators to read."""

    @staticmethod
    def now_ms() -> int:
        return int(machine().loop.time() * 1000)


def _save_if_other(path: Path, content: bytes) -> None:
    """Replace a file's content in memory only. When the process ends, the last content goes to the disk.

    The nameserver calls this at each change of a KV key, so a simulated write each time would be slow.
    """
    here = machine()
    if here.saved.get(path) != content:
        if here.disk.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        here.saved[path] = content


def _boot_clock() -> float:
    """Return the seconds since the machine's boot, including pauses of the process.

    As on a real machine, this time differs from the time of the event loop's clock.
    """
    loop = running[-1].loop
    return loop._clock.now + loop.offset + 7.0


class WriterThread:
    """The journal's thread on virtual time.

    The thread starts soon after an item arrives, and its writes take time. The bytes of a write are durable
    when the write is done. A crash before the end of a write may store any part of its bytes.
    """

    def __init__(self) -> None:
        self._machine = machine()
        self._items: deque[Item] = deque()
        self._steps: Steps | None = None
        self._waits: float | None = NEXT_ITEM
        self._due = 0  # number of the next event; an event with an earlier number is ignored
        self._parked = True
        self.closing = threading.Event()

    def start(self, steps: Steps) -> None:
        self._steps = steps
        self._advance(None, first=True)

    def put(self, item: Item) -> None:
        self._items.append(item)
        if self._parked and self._steps is not None:
            self._parked = False
            self._later(BEGINS_S)

    def empty(self) -> bool:
        return not self._items

    def get_nowait(self) -> Item:
        if not self._items:
            raise queue.Empty
        return self._items.popleft()

    def close(self) -> None:
        """Do all waiting work, then end the thread."""
        self.closing.set()
        self.put(None)
        while self._steps is not None:
            self._go_on()

    def _later(self, delay: float) -> None:
        self._due += 1
        self._machine.clock.at(delay, self._happen, self._due)

    def _happen(self, number: int) -> None:
        here = self._machine
        if here.loop.dead or number != self._due:
            return
        wait = max(here.loop.paused_until, here.disk.hangs_until) - here.clock.now
        if wait > 0:
            here.clock.at(wait, self._happen, number)
            return
        with on(here), contextlib.suppress(Crashed):
            self._go_on()

    def _go_on(self) -> None:
        """Let the thread continue, because its write is done or its next item has arrived."""
        self._due += 1
        self._machine.disk.done()
        self._advance(self.get_nowait() if self._waits is NEXT_ITEM else None)

    def _advance(self, item: Item, *, first: bool = False) -> None:
        user, steps, clock = self._machine.user, self._steps, self._machine.clock
        assert steps is not None
        user.patient += 1
        user.writing = True
        try:
            self._waits = next(steps) if first else steps.send(item)
        except StopIteration:
            self._steps, self._parked = None, True
            return
        finally:
            user.patient -= 1
            user.writing = False
        if self._waits is NEXT_ITEM:
            self._parked = not self._items
            if self._items:
                self._later(BEGINS_S)
        elif self._waits:
            self._later(self._waits)
        else:
            self._later(clock.rng.uniform(*WRITE_S))


_SEAMS: tuple[tuple[Any, str, Any], ...] = (
    (routekeeper.nameserver.raft.node.member, "os", _Os),
    (routekeeper.nameserver.raft.node.member, "DISK", DiskFiles(lambda: machine().user)),
    (routekeeper.nameserver.raft.node.member, "boot_clock", _boot_clock),
    (routekeeper.nameserver.raft.storage.writer, "WriterThread", WriterThread),
    (routekeeper.nameserver.raft.storage.journal, "urandom", _Os.urandom),
    (routekeeper.nameserver.raft.storage.identity, "secrets", _Secrets),
    (routekeeper.nameserver.raft.links.transport, "os", _Os),
    (routekeeper.nameserver.raft.links.transport, "_bind", lambda family, address: Listener(address)),
    (routekeeper.nameserver.modes.notes, "wall_clock", _WallClock),
    (routekeeper.nameserver.replicated.kv_file, "_save_if_other", _save_if_other),
    (routekeeper.nameserver.raft.storage.journal, "ZEROS", 4_000),
    (routekeeper.nameserver.raft.node.images, "BLOCK_BYTES", 4_000),
    # Small values make rare cases frequent. For example, members need snapshots because the log has no older
    # entries. Snapshots and batches are sent in pieces, and an entry is applied in several turns.
    (routekeeper.nameserver.raft.consensus.images, "TAIL_BYTES", 2_000),
    (routekeeper.nameserver.raft.consensus.leading, "PART_BYTES", 1_500),
    (routekeeper.nameserver.raft.consensus.leading, "BATCH_BYTES", 1_000),
    (routekeeper.nameserver.raft.node.applier, "APPLY_STEPS", 3),
    (routekeeper.remoting.steps, "STEP", 2),
    (routekeeper.nameserver.routes.topics, "STEP", 2),
    (routekeeper.nameserver.replicated.mode, "STEP_WORK", 300),
    (routekeeper.nameserver.modes.line, "SLICE_S", 0.0),
    # A short timeout, so that data that a full disk refused is sent again before a run ends.
    (routekeeper.nameserver.raft.consensus.leading, "TRANSFER_TIMEOUT_S", 4.0),
)


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Run the raft package on the simulated machines within this context."""
    before = [(module, name, getattr(module, name)) for module, name, _ in _SEAMS]
    for module, name, replacement in _SEAMS:
        assert hasattr(module, name), f"{module.__name__} has no {name}"
        setattr(module, name, replacement)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
