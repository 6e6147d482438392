"""Program that runs two commands at once.

The second command gets only the processor time that the first command leaves idle.

``python -m tests.leftover "COMMAND" "OTHER"`` prints the output of OTHER after both commands have ended.
OTHER may run beside a measurement, because Linux runs all other processes first (SCHED_IDLE). On a system
without SCHED_IDLE, OTHER has the lowest priority.
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

#: Seconds after an interrupt in which the second command must end. Otherwise, it is killed.
END_S = 30.0


def _yield_to_all() -> None:
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(19)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt the processes of a group, as Ctrl-C does; kill those that have not ended in time."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)


def run(command: str, other: str) -> int:
    """Run both commands; return 0 if both succeeded, else the exit code of the first command that failed."""
    with tempfile.TemporaryFile() as told:
        # Give the second command its own process group, so that all its processes can be ended. It must not
        # have its own session: the scheduler may share the processor equally between sessions, which would
        # slow down the first command.
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
