"""Tests of calls in threads while the system cannot start a thread."""

from __future__ import annotations

import asyncio
import threading

import pytest

from routekeeper.remoting.threads import NoFreeThread, check_threads, in_thread


def refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_function_for_which_no_thread_could_be_started_is_not_called_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[str] = []

    async def scenario() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            with pytest.raises(NoFreeThread, match="can't start new thread"):
                await in_thread(called.append, "while no thread can be started")
        # The executor still has the function of the failed call, and gives it to the thread of this call. The
        # thread must not call it, because its caller already got an error.
        await in_thread(called.append, "with a thread")

    asyncio.run(scenario())
    assert called == ["with a thread"]


def test_in_thread_returns_the_result_and_passes_errors_on() -> None:
    def fail() -> None:
        raise ValueError("x")

    async def scenario() -> None:
        assert await in_thread(int, "12", base=8) == 10
        with pytest.raises(ValueError, match="x"):
            await in_thread(fail)

    asyncio.run(scenario())


def test_check_of_threads_ends_all_threads_that_it_could_start(monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    check_threads(16)
    assert threading.active_count() == before
    start, left = threading.Thread.start, [20]

    def start_some(thread: threading.Thread) -> None:
        if not left[0]:
            refuse(thread)
        left[0] -= 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    with pytest.raises(NoFreeThread, match=r"ulimit -u, pids\.max"):
        check_threads(20)
    assert threading.active_count() == before
