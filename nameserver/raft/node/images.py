"""Snapshots of a member, on its disk or in memory: making them, installing them, and reading them in
blocks.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from routekeeper.nameserver.raft.consensus.effects import InstallImage, MakeImage
from routekeeper.nameserver.raft.consensus.images import IMAGE_SIZE_MAX
from routekeeper.nameserver.raft.storage.images import SnapshotFile, parse
from routekeeper.nameserver.raft.types import ChangeRefused, StateMachine, StopMember
from routekeeper.remoting import wall_clock
from routekeeper.remoting.disk_threads import DiskThreads

from .recovery import Storage

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")

#: Interpreter switch interval while a thread computes; Python's default is five times that.
TURN_S: Final = 0.001
_USUAL_TURN_S: Final = sys.getswitchinterval()
#: Size of the blocks in which a snapshot is read ahead, and the number of blocks that are kept.
BLOCK_BYTES: Final = 4 * 1024 * 1024
BLOCKS_MAX: Final = 8


async def _beside(work: Callable[[], _Result]) -> _Result:
    """Run a long computation in a thread, and shorten the interpreter's switch interval so that the loop runs
    in time.

    The interval holds for the whole process. A thread that computes is faster with the default one, so that
    is restored afterwards.
    """
    sys.setswitchinterval(TURN_S)
    try:
        return await asyncio.to_thread(work)
    finally:
        sys.setswitchinterval(_USUAL_TURN_S)


@dataclass(eq=False, repr=False)
class ImageFiles:
    """The newest snapshot, and its replacement by a newer one. All long work runs in threads.

    Args:
        in_background: Runs a coroutine; the member waits for its end before it closes the files.
        on_read: Called when a block that the engine asked for has been read.
    """

    storage: Storage
    machine: StateMachine
    in_background: Callable[[Coroutine[Any, Any, None]], None]
    on_read: Callable[[], None]

    def __post_init__(self) -> None:
        self.thread = DiskThreads("raft images")
        # Durability ``memory``: index, term, configuration, snapshot.
        self._in_memory: tuple[int, int, bytes, bytes | bytearray] | None = None
        # By index and block number; empty while the block is read, None if it could not be read or is gone.
        self._blocks: dict[tuple[int, int], bytes | None] = {}

    # ---- the present snapshot (consensus.part.HeldImage)

    def image(self) -> tuple[int, int, int, bytes] | None:
        if self.storage.volatile:
            held = self._in_memory
            return None if held is None else (held[0], held[1], len(held[3]), held[2])
        newest = self.storage.snapshots.newest
        return None if newest is None else (newest.index, newest.term, newest.size, newest.configuration)

    def read_image(self, index: int, offset: int, size: int) -> bytes | None:
        if self.storage.volatile:
            held = self._in_memory
            return bytes(held[3][offset : offset + size]) if held is not None and held[0] == index else None
        number, start = divmod(offset, BLOCK_BYTES)
        self._read_ahead((index, number))
        block = self._blocks[index, number]
        if block is None:
            del self._blocks[index, number]  # another snapshot may get that index later
            return None
        if block:
            self._read_ahead((index, number + 1))
        return block[start : start + size]

    def _read_ahead(self, key: tuple[int, int]) -> None:
        if key not in self._blocks:
            self._blocks[key] = b""
            self.in_background(self._read_block(key))

    async def _read_block(self, key: tuple[int, int]) -> None:
        index, number = key
        try:
            read = self.storage.snapshots.read
            block = await self._in_thread(read, index, number * BLOCK_BYTES, BLOCK_BYTES)
        except OSError as error:
            logger.error("snapshot not read index=%d error=%s", index, error.strerror)
            block = None
        self._blocks[key] = block
        while len(self._blocks) > BLOCKS_MAX:
            del self._blocks[next(iter(self._blocks))]
        self.on_read()

    def age(self) -> float | None:
        """Return the seconds since the newest snapshot file was stored, None if there is none.

        It does not ask the disk for the file's date: a hung disk must not block requests for figures.
        """
        date = self.storage.image_date
        return None if date is None else max(0.0, wall_clock.now_ms() / 1000 - date)

    # ---- replacing it

    async def make(self, wanted: MakeImage, encode_state: Callable[[], bytes]) -> None:
        """Encode the state and store it.

        Raises:
            OSError: The snapshot cannot be stored, or exceeds the largest size that members accept.
        """
        data = await _beside(encode_state)
        if len(data) > IMAGE_SIZE_MAX:
            raise OSError(f"{len(data)} bytes, of which a member takes {IMAGE_SIZE_MAX}")
        await self.store(wanted.index, wanted.term, wanted.configuration, data)

    async def install(self, wanted: InstallImage) -> Callable[[], None]:
        """Store a leader's snapshot; return a quick function that replaces the state by it.

        The snapshot is not copied, because a thread that copies so much holds up all others.

        Raises:
            StopMember: A newer program made it.
            OSError: It cannot be stored.
        """
        replace_state = await _beside(lambda: self.machine.prepare(wanted.image))
        await self.store(wanted.index, wanted.term, wanted.configuration, wanted.image)
        return replace_state

    async def read_file(self, raw: bytes) -> tuple[int, bytes, Callable[[], None]]:
        """Read a snapshot file; return its index, its state as an operator restores it, and a function that
        replaces the present state by that.

        Raises:
            ChangeRefused: The file is no snapshot.
        """
        try:
            image, data = await asyncio.to_thread(parse, raw, self.storage.directory.raft)
            marked = await _beside(lambda: self.machine.restored(data))
            replace_state = await _beside(lambda: self.machine.prepare(marked))
        except (ValueError, StopMember) as error:
            raise ChangeRefused(f"this is no snapshot that can be restored: {error}") from error
        return image.index, marked, replace_state

    async def as_file(self) -> SnapshotFile:
        """Return the newest snapshot, which must exist, as a file. A member that keeps it in memory writes
        the file now.
        """
        if self._in_memory is not None:
            await self._store_file(*self._in_memory)
        newest = self.storage.snapshots.newest
        assert newest is not None
        return newest

    async def store(self, index: int, term: int, configuration: bytes, data: bytes | bytearray) -> None:
        """Store one snapshot durably."""
        if self.storage.volatile:
            self._in_memory = (index, term, configuration, data)
            return
        await self._store_file(index, term, configuration, data)

    async def _store_file(self, index: int, term: int, configuration: bytes, data: bytes | bytearray) -> None:
        await self._in_thread(self.storage.snapshots.store, index, term, configuration, data)
        self.storage.image_date = wall_clock.now_ms() / 1000

    async def _in_thread(self, work: Callable[..., _Result], *arguments: object) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self.thread, work, *arguments)
