"""Tests that a signal ends a sleep even if it arrives at the last moment before the sleep."""

from __future__ import annotations

import ctypes
import itertools
import operator
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from routekeeper.remoting import interrupt

#: Seconds of the sleeps that a signal must end.
_SLEEP_S = 5.0
_raise = ctypes.CDLL(None)["raise"]


class _AlarmCame(Exception):
    """Raised by the handler of SIGALRM, as KeyboardInterrupt is by the handler of SIGINT."""


@pytest.fixture
def _alarm_raises() -> Iterator[None]:
    def handler(*_: object) -> None:
        raise _AlarmCame

    before = signal.signal(signal.SIGALRM, handler)
    yield
    signal.signal(signal.SIGALRM, before)


def _after_the_last_check(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that raises SIGALRM, and runs ``call`` before the interpreter looks for signals."""

    def late(*args: object) -> Any:
        steps = [(_raise, signal.SIGALRM), (call, *args)]
        return list(itertools.starmap(operator.call, steps))[-1]  # one call in C, without a bytecode between

    return late


@pytest.mark.usefixtures("_alarm_raises")
def test_a_signal_at_the_last_moment_ends_the_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    # In both calls of the system, so that the test fails with either if the sleep does not watch for signals.
    monkeypatch.setattr(time, "sleep", _after_the_last_check(time.sleep))
    monkeypatch.setattr(select, "select", _after_the_last_check(select.select))
    begin = time.monotonic()
    with pytest.raises(_AlarmCame):
        interrupt.interruptible_sleep(_SLEEP_S)
    assert time.monotonic() - begin < _SLEEP_S / 2


@pytest.mark.usefixtures("_alarm_raises")
def test_a_signal_during_the_sleep_ends_it() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    begin = time.monotonic()
    with pytest.raises(_AlarmCame):
        interrupt.interruptible_sleep(_SLEEP_S)
    assert time.monotonic() - begin < _SLEEP_S / 2


def test_a_signal_whose_handler_returns_shortens_no_sleep() -> None:
    came = threading.Event()
    before = signal.signal(signal.SIGALRM, lambda *_: came.set())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        begin = time.monotonic()
        interrupt.interruptible_sleep(0.2)
        assert time.monotonic() - begin >= 0.2
    finally:
        signal.signal(signal.SIGALRM, before)
    assert came.is_set()


def test_other_threads_sleep_as_long() -> None:
    begin = time.monotonic()
    thread = threading.Thread(target=interrupt.interruptible_sleep, args=(0.1,))
    thread.start()
    thread.join()
    assert time.monotonic() - begin >= 0.1
