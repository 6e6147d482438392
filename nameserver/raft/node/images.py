"""The snapshots of a member, on its disk or in memory: how it makes, installs and reads them."""

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

#: Python's switch interval in seconds while a thread computes for a snapshot. After this time, the thread
#: lets other threads run. Python's default is five times longer.
TURN_S: Final = 0.001
_USUAL_TURN_S: Final = sys.getswitchinterval()
#: Size in bytes of a block of a snapshot. A thread reads each block from the disk before the engine needs it.
BLOCK_BYTES: Final = 4 * 1024 * 1024
#: Largest number of blocks of snapshots in memory.
BLOCKS_MAX: Final = 8
#: Seconds between two attempts to read a block while the system cannot start a thread.
THREAD_RETRY_S: Final = 0.5


class NoThread(OSError):
    """The system cannot start a thread now, so nothing was done.

    This error is an OSError, because callers handle it like a temporary failure of the disk. They log one
    line, and try again later.
    """


async def _run_in(threads: DiskThreads, work: Callable[..., _Result], *arguments: object) -> _Result:
    """Call ``work`` in a thread.

    Raises:
        NoThread: No thread can be started, and ``work`` is never called.
    """
    try:
        running = asyncio.get_running_loop().run_in_executor(threads, work, *arguments)
    except RuntimeError as error:
        raise NoThread(f"no thread can be started: {error}") from error
    return await running


@dataclass(eq=False, repr=False)
class ImageFiles:
    """The newest snapshot of a member, and its replacement by a newer snapshot. Long work runs in threads.

    Args:
        in_background: Runs a coroutine. The member waits for the coroutine's end before it closes the files.
        on_read: Called when a block that the engine asked for has been read.
    """

    storage: Storage
    machine: StateMachine
    in_background: Callable[[Coroutine[Any, Any, None]], None]
    on_read: Callable[[], None]

    def __post_init__(self) -> None:
        self.thread = DiskThreads("raft images")
        # Long computations have their own thread, because ``thread`` may wait for a hung disk. Do not use
        # asyncio's threads: if no thread can be started, asyncio raises an error, but does the work later.
        self.computing = DiskThreads("raft snapshots")
        # The snapshot under durability ``memory``, as index, term, configuration and data.
        self._in_memory: tuple[int, int, bytes, bytes | bytearray] | None = None
        # Blocks by snapshot index and block number. A block is empty while a thread reads it. It is None if
        # the read failed, or if the snapshot was deleted.
        self._blocks: dict[tuple[int, int], bytes | None] = {}
        # Index of the last snapshot that was logged as unreadable, so that each such snapshot is logged once
        self._unreadable = 0
        self._no_thread_logged = False

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
            # Remove the failed block, so that the next request reads it again. By then, a new snapshot with
            # this index may have replaced the snapshot that cannot be read.
            del self._blocks[index, number]
            return None
        if block:
            if start >= len(block):  # the file is shorter than its header says
                self._say_unreadable(index, "the file is too short")
                return None
            self._read_ahead((index, number + 1))
        return block[start : start + size]

    def _say_unreadable(self, index: int, why: str) -> None:
        if self._unreadable != index:
            self._unreadable = index
            logger.error("snapshot not read index=%d error=%s", index, why)

    def _read_ahead(self, key: tuple[int, int]) -> None:
        if key not in self._blocks:
            self._blocks[key] = b""
            self.in_background(self._read_block(key))

    async def _read_block(self, key: tuple[int, int]) -> None:
        index, number = key
        try:
            read = self.storage.snapshots.read
            block = await _run_in(self.thread, read, index, number * BLOCK_BYTES, BLOCK_BYTES)
        except NoThread as error:
            # Do not report the snapshot as unreadable. It is probably good, but the member would replace it.
            # Forget the block after a pause instead, so that the engine can ask for it again.
            # Log the error only once. When the thread has started, it stays, and the error cannot come again.
            if not self._no_thread_logged:
                self._no_thread_logged = True
                logger.warning("snapshot not read yet index=%d error=%s", index, error)
            await asyncio.sleep(THREAD_RETRY_S)
            self._blocks.pop(key, None)  # newer blocks may have removed this block already
            self.on_read()
            return
        except OSError as error:
            self._say_unreadable(index, error.strerror or str(error))
            block = None
        # If the block begins at the end of the file, the read is empty. Mark it as failed, because an empty
        # block would mean that a thread still reads it.
        self._blocks[key] = block or None
        while len(self._blocks) > BLOCKS_MAX:
            del self._blocks[next(iter(self._blocks))]
        self.on_read()

    def age(self) -> float | None:
        """Return the seconds since the newest snapshot file was stored; None if there is no file.

        This method does not read the file's date from the disk, because a hung disk must not block requests
        for metrics.
        """
        date = self.storage.image_date
        return None if date is None else max(0.0, wall_clock.now_ms() / 1000 - date)

    # ---- replacing the present snapshot

    async def make(self, wanted: MakeImage, encode_state: Callable[[], bytes]) -> None:
        """Encode the state and store it as the newest snapshot.

        Raises:
            OSError: The snapshot cannot be stored, or exceeds the largest size that members accept.
            NoThread: No thread can be started, and nothing was stored.
        """
        data = await self._compute(encode_state)
        if len(data) > IMAGE_SIZE_MAX:
            raise OSError(f"{len(data)} bytes, of which a member takes {IMAGE_SIZE_MAX}")
        await self.store(wanted.index, wanted.term, wanted.configuration, data)

    async def install(self, wanted: InstallImage) -> Callable[[], None]:
        """Store a leader's snapshot, and return a quick function that replaces the state by the snapshot.

        The snapshot's bytes are not copied, because a copy of so many bytes would block all other threads.

        Raises:
            StopMember: The snapshot is damaged, or a newer program made it.
            OSError: The snapshot cannot be stored.
            NoThread: No thread can be started; nothing was stored.
        """
        replace_state = await self._compute(lambda: self.machine.prepare(wanted.image))
        await self.store(wanted.index, wanted.term, wanted.configuration, wanted.image)
        return replace_state

    async def read_file(self, raw: bytes) -> tuple[int, bytes, Callable[[], None]]:
        """Read a snapshot file that an operator wants to restore.

        Return the snapshot's index, the state to store, and a function that replaces the present state by the
        stored state. The state to store is the result of :meth:`.types.StateMachine.restored`.

        Raises:
            ChangeRefused: The file is not a snapshot that can be restored, or no thread can be started.
        """
        try:
            image, data = await _run_in(self.computing, parse, raw, self.storage.directory.raft)
            marked = await self._compute(lambda: self.machine.restored(data))
            replace_state = await self._compute(lambda: self.machine.prepare(marked))
        except NoThread as error:
            raise ChangeRefused(f"the snapshot cannot be read: {error}; ask again") from error
        except (ValueError, StopMember) as error:
            raise ChangeRefused(f"this is no snapshot that can be restored: {error}") from error
        return image.index, marked, replace_state

    async def as_file(self) -> SnapshotFile:
        """Return the file of the newest snapshot, which must exist.

        Under durability ``memory``, this method writes the snapshot to a file first.

        Raises:
            OSError: The file cannot be written, cannot be read, or is damaged.
            NoThread: No thread can be started.
        """
        if self._in_memory is not None:
            await self._store_file(*self._in_memory)
        newest = self.storage.snapshots.newest
        assert newest is not None
        await _run_in(self.thread, self.storage.snapshots.check, newest)
        return newest

    async def store(self, index: int, term: int, configuration: bytes, data: bytes | bytearray) -> None:
        """Store one snapshot durably on the disk, or in memory under durability ``memory``.

        Raises:
            OSError: The snapshot is not stored, but a start may find its file. :meth:`discard` deletes it.
            NoThread: No thread can be started; nothing was stored.
        """
        if self.storage.volatile:
            self._in_memory = (index, term, configuration, data)
            return
        await self._store_file(index, term, configuration, data)

    async def _store_file(self, index: int, term: int, configuration: bytes, data: bytes | bytearray) -> None:
        await _run_in(self.thread, self.storage.snapshots.store, index, term, configuration, data)
        self.storage.image_date = wall_clock.now_ms() / 1000
        # Forget the blocks of a former snapshot with the same index, because they may be unreadable.
        for key in [key for key in self._blocks if key[0] == index]:
            del self._blocks[key]
        self._unreadable = 0

    async def discard(self, index: int) -> None:
        """Delete durably the file that a failed :meth:`store` may have left.

        Raises:
            OSError: A start may still find the snapshot.
        """
        await _run_in(self.thread, self.storage.snapshots.discard, index)

    async def _compute(self, work: Callable[[], _Result]) -> _Result:
        """Run a long computation in a thread, and keep the event loop responsive meanwhile.

        During the computation, Python's switch interval is shorter, so that the event loop runs in time.
        Afterwards the former interval is restored, because more switches make all threads of the process
        slower.

        Raises:
            NoThread: No thread can be started, and ``work`` is never called.
        """
        sys.setswitchinterval(TURN_S)
        try:
            return await _run_in(self.computing, work)
        finally:
            sys.setswitchinterval(_USUAL_TURN_S)
