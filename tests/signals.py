"""Signal settings for child processes of tests, independent of the settings that the test run inherited."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import Final

#: Arguments to put before a command, so that its standard input is a terminal.
IN_TERMINAL: Final = (
    sys.executable,
    "-c",
    "import os, pty, sys; far, near = pty.openpty(); os.set_inheritable(far, True); os.dup2(near, 0);"
    " os.execvp(sys.argv[1], sys.argv[1:])",
)


@contextlib.contextmanager
def inherited(number: signal.Signals, handling: signal.Handlers) -> Iterator[None]:
    """Let processes that start in this context inherit the ``handling`` of a signal: ignore or default."""
    before = signal.signal(number, handling)
    try:
        yield
    finally:
        signal.signal(number, before)
