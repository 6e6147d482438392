"""Tests of checks for programs whose threads the system may be unable to start."""

from __future__ import annotations

import threading

import pytest

from routekeeper.remoting.threads import NoFreeThread, check_threads


def refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_check_of_threads_ends_all_threads_that_it_could_start(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(threading.enumerate())
    check_threads(16)
    assert set(threading.enumerate()) <= before
    start, left = threading.Thread.start, [20]

    def start_some(thread: threading.Thread) -> None:
        if not left[0]:
            refuse(thread)
        left[0] -= 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    with pytest.raises(NoFreeThread, match=r"ulimit -u, pids\.max"):
        check_threads(20)
    assert set(threading.enumerate()) <= before
