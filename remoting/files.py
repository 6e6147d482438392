"""Files that people name or can replace: only regular ones are opened, and only up to a size are they read.

A FIFO in a file's place would hold a program up for as long as nobody writes to it, a device would be read
without end. Who may be fooled that way is anyone who reads a file that it did not make in this life.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

#: Bytes of a file with settings, or of a secret, that are accepted.
SETTINGS_SIZE_MAX: Final = 1024 * 1024
#: The same of a file with certificates or a key; a system's authorities take some 250 KiB.
CERTIFICATES_SIZE_MAX: Final = 16 * 1024 * 1024


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """Open a regular file, waiting for nobody; return its descriptor. An opener for :func:`open`, too.

    Raises:
        OSError: It cannot be opened, or is something else; the text names the file then.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, mode)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, f"{os.path.basename(path)} is not a regular file", str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(path: str | os.PathLike[str], *, size_max: int) -> bytes:
    """Return what a regular file holds.

    Raises:
        OSError: As for :func:`open_regular`; or it has more than ``size_max`` bytes.
    """
    with open(path, "rb", opener=open_regular) as file:
        size = os.fstat(file.fileno()).st_size
        # The read allocates this many bytes at once.
        content = file.read(size + 1) if size <= size_max else b""
    if max(size, len(content)) > size_max:
        why = f"{os.path.basename(path)} has more than {size_max} bytes"
        raise OSError(errno.EINVAL, why, str(path))
    return content


#: Time of the last change, size and inode of each file.
Signature = tuple[tuple[int, int, int], ...]


def signature(paths: Sequence[Path]) -> Signature:
    """Return a value that differs after the files have changed (time, size, inode); blocking."""
    return tuple(map(_of, paths))


def _of(path: Path) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return found.st_mtime_ns, found.st_size, found.st_ino
