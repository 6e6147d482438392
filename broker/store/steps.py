"""Disk work divided into steps. The code that runs the work decides where each step runs.

The broker runs the steps in its event loop and in threads. A test runs them in a simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

#: Disk work that is divided into steps. The generator yields functions. Each function runs in a thread, and
#: its result or its exception is sent back into the generator. The code between two functions runs in the
#: thread of the event loop.
Steps = Generator[Callable[[], Any], Any, None]


def no_work() -> None:
    """Do nothing.

    A generator of :data:`Steps` yields this function to let the event loop run other code. No thread is used
    for this function.
    """


def run_here(steps: Generator[Callable[[], Any], Any, Any]) -> None:
    """Run the steps in this thread. The call blocks. Use it only at the start and the end of the process."""
    try:
        work = next(steps)
        while True:
            try:
                outcome = work()
            except Exception as error:
                work = steps.throw(error)
            else:
                work = steps.send(outcome)
    except StopIteration:
        pass
