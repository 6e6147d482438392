"""A slow disk for single processes, made by a shim, which is a library that is loaded before the C library.

The shim replaces ``fsync`` and ``fdatasync``. It calls the C library's function, and then sleeps if a certain
file exists. The harness makes and removes this file. So the harness can make the disk of one server in a
running group slow, and fast again.

The shim works for any program that calls the C library, such as Python and a JVM. It needs Linux and a C
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
    """Return a requirement for slow disks that this machine does not meet, or None."""
    if sys.platform != "linux":
        return "Linux"
    return None if shutil.which("cc") else "a C compiler (cc on PATH)"


class SlowDisks:
    """Disks of some processes, by index, that can be made slow. At first they have their normal speed.

    Args:
        folder: Folder for the shim, and for the files that switch the delay on.
        more_ms: Time in ms that is added to each sync of a slow disk.

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
        """Return words to put before a command line, so that the syncs of its process can be delayed."""
        return [
            "env",
            f"LD_PRELOAD={self._shim}",
            f"ROUTEKEEPER_SLOW_FILE={self._file(index)}",
            f"ROUTEKEEPER_SLOW_US={self._more_us}",
        ]

    def slow(self, index: int) -> None:
        """Delay each sync of a process from now on."""
        self._file(index).touch()

    def quick(self, index: int) -> None:
        """End the delay of a process's syncs."""
        self._file(index).unlink(missing_ok=True)

    def _file(self, index: int) -> Path:
        return self._folder / f"slow-{index}"
