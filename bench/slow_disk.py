"""A slow disk for single processes: their syncs take longer, by a shim that is loaded before the C library.

The shim takes the place of ``fsync`` and ``fdatasync``: it calls the library's, then sleeps as long as a file
exists that the harness makes and removes. So the disk of one member of a running group can be made slow, and
fast again. Works for any program that calls the C library, Python and a JVM among them. Linux, and a C
compiler ``cc``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from routekeeper.bench.processes import ClusterError

_SOURCE: Final = """\
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static int slowly(int result) {
    int error = errno;
    const char *slow = getenv("ROUTEKEEPER_SLOW_FILE"), *us = getenv("ROUTEKEEPER_SLOW_US");
    if (slow && us && access(slow, F_OK) == 0) {
        long long wait = atoll(us);
        struct timespec left = {wait / 1000000, wait % 1000000 * 1000};
        while (nanosleep(&left, &left) == -1 && errno == EINTR) {}
    }
    errno = error;
    return result;
}

int fsync(int file) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    return slowly(real(file));
}

int fdatasync(int file) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    return slowly(real(file));
}
"""


def missing() -> str | None:
    """Return what this machine lacks for a slow disk; None if nothing."""
    if sys.platform != "linux":
        return "Linux"
    return None if shutil.which("cc") else "a C compiler (cc on PATH)"


class SlowDisks:
    """Slow disks of some processes, by index; all are quick at first.

    Args:
        folder: Where the shim and the files that switch it on are kept.

    Raises:
        ClusterError: If the shim does not compile.
    """

    def __init__(self, folder: Path, *, more_ms: float) -> None:
        self._folder = folder.resolve()
        self._more_us = round(more_ms * 1e3)
        self._shim = self._folder / "slow_disk.so"
        folder.mkdir(parents=True, exist_ok=True)
        source = self._folder / "slow_disk.c"
        source.write_text(_SOURCE)
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(self._shim), str(source), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ClusterError(f"the shim of the slow disk does not compile: {done.stderr.strip()[:500]}")

    def prefix(self, index: int) -> list[str]:
        """Return the words before a command line by which its syncs can be slowed down."""
        return [
            "env",
            f"LD_PRELOAD={self._shim}",
            f"ROUTEKEEPER_SLOW_FILE={self._file(index)}",
            f"ROUTEKEEPER_SLOW_US={self._more_us}",
        ]

    def slow(self, index: int) -> None:
        """Let each sync of a process take longer from now on."""
        self._file(index).touch()

    def quick(self, index: int) -> None:
        """Give a process its own disk back."""
        self._file(index).unlink(missing_ok=True)

    def _file(self, index: int) -> Path:
        return self._folder / f"slow-{index}"
