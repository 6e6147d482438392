"""Ctrl-C in programs that have not installed handlers of their own yet, or install none."""

from __future__ import annotations

import sys
from types import TracebackType


def end_quietly_when_interrupted() -> None:
    """End at Ctrl-C without a traceback, also while a program still loads its modules.

    That takes a second or two on a busy machine, so programs call this before they import the rest. What
    nobody catches then prints nothing; the interpreter ends by the signal, which a shell shows as 130.
    """
    show = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            show(kind, error, trace)

    sys.excepthook = hook
