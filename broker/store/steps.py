"""Work in steps, so that its driver decides where it runs: a loop and threads, or a simulator."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

#: Work with the disk in steps. Each yielded function runs in a thread; its result is sent in, or its
#: exception is thrown in. The code between two steps runs in the thread of all other work.
Steps = Generator[Callable[[], Any], Any, None]


def no_work() -> None:
    """A step that only lets other work have its turn; it needs no thread."""
