"""State images on disk: one file each, written aside, synced and renamed, so that a name always means a whole
image.

Layout, big-endian::

    magic   4 bytes  RKSN
    format  u32
    index   u64      last log index the image covers
    term    u64      its term
    size    u64      bytes of image
    crc     u32      CRC-32 of everything else
    image   bytes    as the state machine made it
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .journal import sync_directory
from .types import RaftStartError

logger = logging.getLogger(__name__)

FORMAT: Final = 1
_MAGIC: Final = b"RKSN"
_HEAD: Final = struct.Struct(">4sIQQQ")
_CRC: Final = struct.Struct(">I")
_PREFIX: Final = "snapshot-"
_OFFSET: Final = _HEAD.size + _CRC.size
#: Images kept: the newest, and the one before it for transfers that are under way.
_KEEP: Final = 2


@dataclass(frozen=True, slots=True)
class Image:
    """Where an image is; ``size`` counts its bytes without the header."""

    index: int
    term: int
    size: int
    path: Path


class Snapshots:
    """The images of one member. Writing blocks and belongs in a thread; the rest is quick."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._newest: Image | None = None
        self._open: dict[int, int] = {}  # index -> descriptor: a replaced image stays readable (D20)

    @property
    def newest(self) -> Image | None:
        return self._newest

    def recover(self) -> tuple[Image, bytes] | None:
        """Read the newest image and remove unfinished ones.

        Raises:
            RaftStartError: The newest image is damaged (D15); an older one would not fit the journal.
        """
        for leftover in self._directory.glob(f"{_PREFIX}*.tmp"):
            leftover.unlink()
        paths = sorted(self._directory.glob(f"{_PREFIX}*"))
        if not paths:
            return None
        path = paths[-1]
        try:
            image, data = _read(path)
        except ValueError as error:
            raise RaftStartError(
                f"raft: {path} is damaged: {error}; restore it, or empty this member's data directory while "
                "the others are up (it then catches up from them)"
            ) from error
        self._newest = image
        return image, data

    def store(self, index: int, term: int, data: bytes) -> Image:
        """Write an image durably; blocking.

        Raises:
            OSError: Nothing changed.
        """
        path = self._directory / f"{_PREFIX}{index:020d}"
        temporary = path.with_suffix(".tmp")
        head = _HEAD.pack(_MAGIC, FORMAT, index, term, len(data))
        try:
            with open(temporary, "wb") as file:
                file.write(head)
                file.write(_CRC.pack(zlib.crc32(data, zlib.crc32(head))))
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.rename(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(self._directory)
        return Image(index, term, len(data), path)

    def publish(self, image: Image) -> None:
        """Make a stored image the newest and delete what nobody needs."""
        if self._newest is not None and self._newest.index >= image.index:
            return
        self._newest = image
        for path in sorted(self._directory.glob(f"{_PREFIX}*"))[:-_KEEP]:
            path.unlink(missing_ok=True)
        for index in sorted(self._open)[:-_KEEP]:
            os.close(self._open.pop(index))

    def read(self, index: int, offset: int, size: int) -> bytes | None:
        """Return a piece of the image at ``index``; None if it is gone."""
        descriptor = self._open.get(index)
        if descriptor is None:
            try:
                path = self._directory / f"{_PREFIX}{index:020d}"
                descriptor = self._open[index] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
        return os.pread(descriptor, size, _OFFSET + offset)

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])


def _read(path: Path) -> tuple[Image, bytes]:
    raw = path.read_bytes()
    if len(raw) < _OFFSET:
        raise ValueError(f"{len(raw)} bytes, less than a header")
    magic, version, index, term, size = _HEAD.unpack_from(raw)
    (checksum,) = _CRC.unpack_from(raw, _HEAD.size)
    if magic != _MAGIC or version != FORMAT:
        raise ValueError(f"not an image of format {FORMAT}")
    data = raw[_OFFSET:]
    if len(data) != size:
        raise ValueError(f"{len(data)} bytes of image, {size} expected")
    if zlib.crc32(data, zlib.crc32(raw[: _HEAD.size])) != checksum:
        raise ValueError("bad checksum")
    return Image(index, term, size, path), data
