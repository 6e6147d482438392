"""Tests of the threads in which an asyncio client calls plain functions."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar

import pytest

from routekeeper.client import call_threads
from routekeeper.client.call_threads import CallThreads
from routekeeper.remoting.threads import NoFreeThread
from tests.waiting import wait_until


def refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.fixture
def running() -> Callable[[], int]:
    """Return a function that counts the threads for calls. Threads of earlier tests do not count."""
    earlier = set(threading.enumerate())
    return lambda: sum(
        thread.name == "client-call" and thread not in earlier for thread in threading.enumerate()
    )


def test_a_function_for_which_no_thread_could_be_started_is_not_called_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[str] = []

    threads = CallThreads()

    async def scenario() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            with pytest.raises(NoFreeThread, match="can't start new thread"):
                await threads.call(called.append, "while no thread can be started")
        await threads.call(called.append, "with a thread")

    asyncio.run(scenario())
    assert called == ["with a thread"]


def test_a_call_returns_the_result_and_passes_errors_on() -> None:
    def fail() -> None:
        raise ValueError("x")

    def leave() -> None:
        raise SystemExit(3)

    def stop() -> None:
        raise StopIteration(7)

    threads = CallThreads()

    async def scenario() -> None:
        assert await threads.call(int, "12", 8) == 10
        with pytest.raises(ValueError, match="x"):
            await threads.call(fail)
        with pytest.raises(RuntimeError, match="raised StopIteration"):
            await threads.call(stop)
        with pytest.raises(SystemExit, match="3"):
            await threads.call(leave)

    asyncio.run(scenario())


def test_a_call_runs_with_the_context_of_its_caller() -> None:
    variable: ContextVar[str] = ContextVar("variable", default="none")

    threads = CallThreads()

    async def scenario() -> str:
        variable.set("the caller's")
        return await threads.call(variable.get)

    assert asyncio.run(scenario()) == "the caller's"


def test_many_functions_run_at_once_and_leave_the_loops_threads_free() -> None:
    together = threading.Barrier(40)

    threads = CallThreads()

    async def scenario() -> None:
        calls = [asyncio.create_task(threads.call(together.wait, 30)) for _ in range(39)]
        await asyncio.sleep(0)
        # The resolver of the loop has the loop's threads.
        await asyncio.wait_for(asyncio.get_running_loop().getaddrinfo("127.0.0.1", 1), 30)
        await threads.call(together.wait, 30)
        await asyncio.gather(*calls)

    asyncio.run(scenario())


@pytest.mark.slow
def test_program_ends_although_a_function_hangs() -> None:
    program = """
import asyncio, threading
from routekeeper.client.call_threads import CallThreads

async def main():
    hangs = threading.Event()
    call = asyncio.create_task(CallThreads().call(hangs.wait))
    await asyncio.sleep(0.1)
    call.cancel()
    try:
        await call
    except asyncio.CancelledError:
        print("cancelled")

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "cancelled\n", "")


def test_calls_one_after_the_other_need_one_thread_and_the_end_ends_it(running: Callable[[], int]) -> None:
    threads = CallThreads()

    async def scenario() -> set[int]:
        used = set()
        for _ in range(20):
            used.add(await threads.call(threading.get_ident))
            await asyncio.to_thread(wait_until, lambda: threads.idle == 1, "the thread is idle")
        return used

    assert len(asyncio.run(scenario())) == 1
    threads.end()
    wait_until(lambda: running() == 0, "the thread has ended")


def test_a_thread_keeps_no_argument_of_an_earlier_call() -> None:
    class Batch:
        pass

    threads = CallThreads()

    async def scenario() -> weakref.ref[Batch]:
        batch = Batch()
        await threads.call(lambda batch: None, batch)
        return weakref.ref(batch)

    batch = asyncio.run(scenario())
    wait_until(lambda: threads.idle == 1, "the thread is idle")
    gc.collect()
    assert batch() is None
    threads.end()


def test_idle_threads_end_and_lose_no_call(
    monkeypatch: pytest.MonkeyPatch, running: Callable[[], int]
) -> None:
    monkeypatch.setattr(call_threads, "IDLE_S", 0.002)
    threads = CallThreads()

    async def scenario() -> None:
        for number in range(300):
            # The pause varies around the limit, so calls come before, at and after the end of a thread.
            assert await asyncio.wait_for(threads.call(int, str(number)), 30) == number
            await asyncio.sleep(0.001 + number % 20 * 0.0001)

    asyncio.run(scenario())
    wait_until(lambda: running() == 0, "all threads have ended")


def test_a_thread_ends_after_its_call_if_the_threads_were_ended_meanwhile(running: Callable[[], int]) -> None:
    threads, begun, goes_on = CallThreads(), threading.Event(), threading.Event()

    def call() -> str:
        begun.set()
        assert goes_on.wait(30)
        return "done"

    async def scenario() -> str:
        called = asyncio.create_task(threads.call(call))
        await asyncio.to_thread(begun.wait, 30)
        threads.end()
        goes_on.set()
        return await called

    assert asyncio.run(scenario()) == "done"
    wait_until(lambda: running() == 0, "the thread has ended")
