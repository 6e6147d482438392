"""Sets the signals that a test's child processes inherit, no matter what the test run itself inherited."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import Final

#: Words before a command, which give it a terminal as its standard input.
IN_TERMINAL: Final = (
    sys.executable,
    "-c",
    "import os, pty, sys; far, near = pty.openpty(); os.set_inheritable(far, True); os.dup2(near, 0);"
    " os.execvp(sys.argv[1], sys.argv[1:])",
)


@contextlib.contextmanager
def inherited(number: signal.Signals, handling: signal.Handlers) -> Iterator[None]:
    """Have processes that are started now begin with a signal ignored, or not."""
    before = signal.signal(number, handling)
    try:
        yield
    finally:
        signal.signal(number, before)
