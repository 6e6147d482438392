"""Watchdog that kills the programs of a test session when the session ends or is killed.

A separate process reads lines from a pipe to which only the test session writes. Each line has the id and the
creation time of a program. When the session ends, the system closes the pipe. The separate process then sends
SIGKILL to programs that still run. The kernel's PR_SET_PDEATHSIG is no alternative. It kills a child when the
thread that started the child ends, and the tests start programs in thread pools.
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
    """Register the running child ``pid``: the watchdog kills it when this process has ended."""
    global _process
    try:
        created = psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return
    with _lock:
        if _process is None:
            # Run the watchdog in a new session. Otherwise Ctrl-C in the terminal could end the watchdog
            # before the tests.
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
    """Collect lines until the pipe closes, then kill the listed processes that still run.

    Kill a process only if its creation time is the listed time, because the system may have reused the PID.
    """
    guarded = [line.split() for line in sys.stdin]
    for pid, created in guarded:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(int(pid))
            if repr(process.create_time()) == created:
                process.kill()


if __name__ == "__main__":
    main()
