"""Work in steps, so that anyone who drives it decides where it runs: a loop and threads, or a simulator."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

#: Work with the disk in steps: what is yielded runs in a thread and its outcome is sent in (or what it raised
#: is thrown in); the code between belongs to the thread of everything else.
Steps = Generator[Callable[[], Any], Any, None]


def no_work() -> None:
    """A step that only gives other work its turn; it needs no thread."""
