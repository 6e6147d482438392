"""Runs one command and, on the processor time that it leaves, another, whose output follows in the end.

``python -m tests.leftover "COMMAND" "OTHER"``. The other one yields at once to others that have something to
do (SCHED_IDLE), so it may run beside what measures; where the system has no such class it has the lowest
priority.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

#: Longest time of the other one to its end, once the first was interrupted.
END_S = 30.0


def _yield_to_all() -> None:
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(19)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a process and its group, as ctrl-C does; end what is left of it."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)


def run(command: str, other: str) -> int:
    """Return 0 if both did; else what the first that did not has returned."""
    with tempfile.TemporaryFile() as told:
        # A group of its own, so that all of it can be ended; but no session, which the scheduler takes for
        # somebody who is to get as much as all the others together.
        beside = subprocess.Popen(
            shlex.split(other),
            stdin=subprocess.DEVNULL,
            stdout=told,
            stderr=subprocess.STDOUT,
            process_group=0,
            preexec_fn=_yield_to_all,
        )
        try:
            first = subprocess.call(shlex.split(command))
            second = beside.wait()
        except BaseException:
            _end(beside)
            raise
        finally:
            told.seek(0)
            sys.stdout.flush()
            shutil.copyfileobj(told, sys.stdout.buffer)
            sys.stdout.flush()
    return first or second


if __name__ == "__main__":
    sys.exit(run(*sys.argv[1:]))
