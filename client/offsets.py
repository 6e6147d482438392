"""Storage of a group's offsets, at the brokers or in a file of a broadcast member."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Final, Protocol

import orjson

from routekeeper.remoting import state_file
from routekeeper.remoting.bodies import MessageQueue
from routekeeper.remoting.files import read_regular
from routekeeper.remoting.state_file import StateFileError

from .errors import ClientError, InvalidArgument
from .file_lock import FileLock, LockAttempt, Writes
from .operation import Deliver, Operation, Signal, wait
from .queue_reader import QueueReader

#: Largest size in bytes of a file with offsets. The offsets of 100,000 queues take about a tenth of this
#: size.
_SIZE_MAX: Final = 64 * 1024 * 1024

log = logging.getLogger(__name__)


class Offsets(Protocol):
    """The stored offsets of one group: one offset for each queue."""

    def open(self) -> Operation[None]:
        """Reserve the storage for one consumer, until :meth:`close`.

        Raises:
            InvalidArgument: If another consumer uses the same file.
        """

    def close(self) -> None:
        """Release the storage that :meth:`open` reserved, if any."""

    def committed(self, queue: MessageQueue) -> Operation[int | None]:
        """Return the stored offset; None if no offset is stored.

        Raises:
            RemotingError: If the offset cannot be determined now.
        """

    def commit(
        self, queue: MessageQueue, offset: int, *, oneway: bool, unless: Callable[[], bool] | None = None
    ) -> Operation[None]:
        """Store an offset. With ``oneway``, do not wait until it is stored.

        Args:
            unless: Function that is called immediately before the request is sent. If it returns True,
                nothing is sent, see :class:`.operation.Invoke`.

        Raises:
            RemotingError: If the offset is not stored.
        """


class BrokerOffsets:
    """Offsets of a clustered group, stored at the queues' brokers."""

    def __init__(self, reader: QueueReader) -> None:
        self._reader = reader

    def open(self) -> Operation[None]:
        return  # nothing to reserve: brokers store the offsets of all members
        yield

    def close(self) -> None:
        pass

    def committed(self, queue: MessageQueue) -> Operation[int | None]:
        return self._reader.committed(queue)

    def commit(
        self, queue: MessageQueue, offset: int, *, oneway: bool, unless: Callable[[], bool] | None = None
    ) -> Operation[None]:
        return self._reader.commit(queue, offset, oneway=oneway, unless=unless)


class OwnOffsets:
    """Offsets of a broadcast member, stored in a file if the member's settings name a file.

    The file is one JSON object with keys ``topic@broker name@queue id`` and offsets as values. Each write
    replaces the whole file, adds a checksum, and keeps the previous version in a second file.

    While a consumer runs, it holds a lock on ``NAME.lock``. Without the lock, two consumers with the same
    file would overwrite each other's offsets.
    """

    def __init__(self, file: str) -> None:
        self._path = Path(file) if file else None
        self._known: dict[str, int] | None = None
        #: Content of the file after this process's last read or write. None if it is not known, because a
        #: write has not ended, was cancelled or failed.
        self._kept: dict[str, int] | None = {}
        self._writes = Writes()
        self._writing = False
        self._written = Signal()
        self._lock: FileLock | None = None

    def open(self) -> Operation[None]:
        if self._path is not None and self._lock is None:
            attempt = LockAttempt(self._path, state_file.beside(self._path, ".lock"))
            try:
                self._lock = yield Deliver(_locked, attempt)
            except BaseException:  # for example, a cancelled start, whose thread may still lock the file
                attempt.abandon()
                raise
            self._known = None  # read the file again: before this lock, another consumer may have changed it

    def close(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def committed(self, queue: MessageQueue) -> Operation[int | None]:
        if self._known is None:
            found = {} if self._path is None else (yield Deliver(_read, self._path))
            if self._known is None:  # another operation may have read the file meanwhile
                self._known, self._kept = found, dict(found)
        return self._known.get(_key(queue))

    def commit(
        self, queue: MessageQueue, offset: int, *, oneway: bool, unless: Callable[[], bool] | None = None
    ) -> Operation[None]:
        if self._known is None:
            yield from self.committed(queue)
        assert self._known is not None
        self._known[_key(queue)] = offset
        if self._path is not None:
            yield from self._keep(self._path)

    def _keep(self, path: Path) -> Operation[None]:
        """Write the file as soon as no other operation writes it.

        If two operations wrote at the same time, a delayed write of old offsets could overwrite newer
        offsets.
        """
        with (lock := self._lock) or nullcontext():
            while self._writing:
                yield from wait(self._written, self._written.version, None)
            known = dict(self._known or {})
            if known == self._kept:
                return
            self._writing, self._kept = True, None
            try:
                text = json.dumps(known, sort_keys=True).encode()
                number = self._writes.next_number()
                yield Deliver(lambda path: self._write(path, text, number, lock), path)
                self._kept = known
            except OSError as error:
                raise ClientError(f"offsets not kept in {path}: {error}") from error
            finally:
                self._writing = False
                self._written.notify()

    def _write(self, path: Path, text: bytes, number: int, lock: FileLock | None) -> None:
        """Replace the file. If the caller is cancelled meanwhile, the lock lasts until the write ends."""
        with lock or nullcontext():
            self._writes.make(number, lambda: state_file.replace(_STORAGE, path, text))


def _locked(attempt: LockAttempt) -> FileLock | None:
    """Return a lock for the consumer that uses the file; None if the file system has no locks.

    Raises:
        InvalidArgument: If another consumer uses the file.
    """
    try:
        return attempt.run()
    except BlockingIOError:
        raise InvalidArgument(
            f"offset_file={str(attempt.path)!r} is used by another consumer, of this process or another one;"
            " allowed is one consumer, so name a file of its own for each"
        ) from None
    except OSError as error:
        log.warning(
            "offset file not locked, another consumer could use it file=%s error=%s", attempt.path, error
        )
        return None


def _key(queue: MessageQueue) -> str:
    return f"{queue.topic}@{queue.broker_name}@{queue.queue_id}"


def _read(path: Path) -> dict[str, int]:
    """Return the offsets in the file; empty if there is no file.

    Raises:
        ClientError: If the file exists but cannot be read. Without its offsets, the member would skip or
            repeat messages.
    """
    try:
        return state_file.load(_STORAGE, path, _parse).value or {}
    except (OSError, StateFileError) as error:
        raise ClientError(f"offsets in {path} cannot be read: {error}") from error


def _parse(content: bytes) -> dict[str, int]:
    found = orjson.loads(content)  # raises only ValueError, while Python's json may raise RecursionError
    if not isinstance(found, dict) or not all(type(offset) is int for offset in found.values()):
        raise ValueError("not an object of numbers")
    return found


class _Storage:
    """The disk operations that :mod:`routekeeper.remoting.state_file` needs."""

    @staticmethod
    def content(path: Path) -> bytes:
        return read_regular(path, size_max=_SIZE_MAX)

    @staticmethod
    def link(path: Path, new: Path) -> None:
        os.link(path, new)

    @staticmethod
    def rename(path: Path, new: Path) -> None:
        os.replace(path, new)

    @staticmethod
    def write_new(path: Path, data: bytes) -> None:
        path.unlink(missing_ok=True)
        with path.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    @staticmethod
    def discard(path: Path) -> None:
        path.unlink(missing_ok=True)

    @staticmethod
    def sync_directory(path: Path) -> None:
        if os.name == "nt":
            return  # Windows cannot open directories
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


_STORAGE: Final = _Storage()
