"""Safe reads of files that other programs or people can replace: regular files only, up to a size limit.

If a FIFO has replaced a file, the call that opens the file would block this program until some process writes
to the FIFO. If a device has replaced the file, reading might never end. Use this module for every file that
the present process did not make.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

#: Largest file with settings or with a secret, in bytes.
SETTINGS_SIZE_MAX: Final = 1024 * 1024
#: Largest file with certificates or a key, in bytes; a system's list of authorities has about 250 KiB.
CERTIFICATES_SIZE_MAX: Final = 16 * 1024 * 1024


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """Open a regular file without waiting, and return its descriptor.

    The function can be passed to :func:`open` as its ``opener``.

    Raises:
        OSError: If the file cannot be opened or is no regular file; the text names the file.
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
    """Return the content of a regular file.

    Raises:
        OSError: If the file cannot be opened, is no regular file, or has more than ``size_max`` bytes.
    """
    with open(path, "rb", opener=open_regular) as file:
        size = os.fstat(file.fileno()).st_size
        # Check the size first: the read below allocates memory for the whole size at once.
        content = file.read(size + 1) if size <= size_max else b""
    if max(size, len(content)) > size_max:
        why = f"{os.path.basename(path)} has more than {size_max} bytes"
        raise OSError(errno.EINVAL, why, str(path))
    return content


#: Time of the last change, size and inode of each file.
Signature = tuple[tuple[int, int, int], ...]


def signature(paths: Sequence[Path]) -> Signature:
    """Return a value that changes when one of the files changes (time, size or inode). The call blocks."""
    return tuple(map(_of, paths))


def _of(path: Path) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return found.st_mtime_ns, found.st_size, found.st_ino
