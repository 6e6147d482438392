"""Signals as the children of a test inherit them, no matter who started the tests."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def inherited(number: signal.Signals, handling: signal.Handlers) -> Iterator[None]:
    """Have processes that are started now begin with a signal ignored, or not."""
    before = signal.signal(number, handling)
    try:
        yield
    finally:
        signal.signal(number, before)
