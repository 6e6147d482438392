"""Ends the programs of a test session whose own process was killed, so that no JVM outlives it.

A process of its own reads "PID CREATED" lines from a pipe whose other end only the test session holds. When
the session ends, in any way, the pipe closes and what still runs gets SIGKILL. The kernel's own service
(PR_SET_PDEATHSIG) does not do: it watches the thread that started the child, and ours start from pools.
"""

from __future__ import annotations

import atexit
import contextlib
import subprocess
import sys
import threading

import psutil

_lock = threading.Lock()
_process: subprocess.Popen[str] | None = None


def guard(pid: int) -> None:
    """Have the running child ``pid`` killed when this process is gone."""
    global _process
    try:
        created = psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return
    with _lock:
        if _process is None:
            # its own session: Ctrl-C is for the tests, whose orderly end it must outlive
            _process = subprocess.Popen(
                [sys.executable, __file__], stdin=subprocess.PIPE, text=True, start_new_session=True
            )
            atexit.register(_end, _process)
        assert _process.stdin is not None
        _process.stdin.write(f"{pid} {created!r}\n")
        _process.stdin.flush()


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait()


def main() -> None:
    """Collect until the pipe closes, then kill what is still the process that it was."""
    guarded = [line.split() for line in sys.stdin]
    for pid, created in guarded:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(int(pid))
            if repr(process.create_time()) == created:
                process.kill()


if __name__ == "__main__":
    main()
