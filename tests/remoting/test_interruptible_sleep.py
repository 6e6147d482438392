"""Tests that a signal ends a sleep even if it arrives at the last moment before the sleep."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time

import pytest

from routekeeper.remoting.interrupt import interruptible_sleep

#: Beginning of each program: SIGALRM raises an error, as SIGINT does. ``late(call)`` returns a function that
#: raises SIGALRM and then runs ``call``. Both happen in one call of a C function, so that the interpreter
#: cannot look for signals between them.
PROGRAM = """
    import ctypes, itertools, operator, select, signal, time
    from routekeeper.remoting import interrupt

    class AlarmCame(Exception): pass

    def handler(*_):
        raise AlarmCame

    def late(call):
        raise_ = ctypes.CDLL(None)["raise"]
        return lambda *args: list(
            itertools.starmap(operator.call, [(raise_, signal.SIGALRM), (call, *args)])
        )[-1]

    signal.signal(signal.SIGALRM, handler)
    begin = time.monotonic()
"""
#: End of each program: print the error that ended a sleep of 5 s, and "soon" or "late".
SLEEP = """
    try:
        interrupt.interruptible_sleep(5.0)
        print("slept", end=" ")
    except AlarmCame:
        print("AlarmCame", end=" ")
    print("soon" if time.monotonic() - begin < 2.5 else "late")
"""


def printed(program: str) -> str:
    """Run a program in a process of its own, because pytest uses SIGALRM for its time limits."""
    text = textwrap.dedent(program)
    return subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True
    ).stdout.strip()


@pytest.mark.slow
def test_a_signal_at_the_last_moment_ends_the_sleep() -> None:
    # Replace both functions that may sleep, so that the test also fails if the pipe is not watched.
    late = """
    time.sleep, select.select = late(time.sleep), late(select.select)
    """
    assert printed(PROGRAM + late + SLEEP) == "AlarmCame soon"


@pytest.mark.slow
def test_a_signal_at_the_begin_of_the_watch_leaves_no_closed_descriptor_behind() -> None:
    """Otherwise Python would write to this descriptor, or to another file with its number, at each signal."""
    late = """
    import functools
    set_wakeup_fd = signal.set_wakeup_fd
    def first(writer, **settings):
        signal.set_wakeup_fd = set_wakeup_fd
        return late(functools.partial(set_wakeup_fd, **settings))(writer)
    signal.set_wakeup_fd = first
    try:
        interrupt.interruptible_sleep(5.0)
    except AlarmCame:
        print("AlarmCame", set_wakeup_fd(-1))
    """
    assert printed(PROGRAM + late) == "AlarmCame -1"


@pytest.mark.slow
def test_a_signal_during_the_sleep_ends_it() -> None:
    alarm = """
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    """
    assert printed(PROGRAM + alarm + SLEEP) == "AlarmCame soon"


@pytest.mark.slow
def test_a_signal_whose_handler_returns_shortens_no_sleep() -> None:
    program = """
    signal.signal(signal.SIGALRM, lambda *_: print("came", end=" "))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    interrupt.interruptible_sleep(0.3)
    print(time.monotonic() - begin >= 0.3)
    """
    assert printed(PROGRAM + program) == "came True"


def test_other_threads_sleep_as_long() -> None:
    begin = time.monotonic()
    thread = threading.Thread(target=interruptible_sleep, args=(0.1,))
    thread.start()
    thread.join()
    assert time.monotonic() - begin >= 0.1
