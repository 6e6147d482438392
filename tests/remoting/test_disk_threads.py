"""Tests of disk threads on a system that sometimes cannot start another thread."""

from __future__ import annotations

import threading

import pytest

from routekeeper.remoting.disk_threads import DiskThreads
from tests.waiting import WITHIN_S


def _refuse(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_work_without_any_thread_fails_at_once_and_later_work_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = DiskThreads("test")
    done: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", _refuse)
        with pytest.raises(RuntimeError):
            threads.submit(done.append, "refused")
    threads.submit(done.append, "later").result(WITHIN_S)
    assert done == ["later"]
    threads.shutdown()


def test_work_is_done_by_the_present_threads_if_no_other_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = DiskThreads("test", count=2)
    threads.submit(int).result(WITHIN_S)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", _refuse)
        assert threads.submit(int, "7").result(WITHIN_S) == 7
    threads.shutdown()
