"""Work that runs in steps on threads, because each step may wait for the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from routekeeper.broker.store.steps import no_work
from routekeeper.remoting.disk_threads import DiskThreads

T = TypeVar("T")


async def in_threads(steps: Generator[Callable[[], Any], Any, T], threads: DiskThreads) -> T:
    """Run the steps that a generator yields in threads, one after another. Return the generator's result."""
    loop = asyncio.get_running_loop()
    try:
        work = next(steps)
        while True:
            try:
                # Run no thread for this empty step. The switch to a thread takes longer than the step.
                if work is no_work:
                    outcome = None
                    await asyncio.sleep(0)
                else:
                    outcome = await loop.run_in_executor(threads, work)
            except Exception as error:
                work = steps.throw(error)
            else:
                work = steps.send(outcome)
    except StopIteration as end:
        result: T = end.value
        return result
