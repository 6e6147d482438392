"""Signals that end programs: Ctrl-C before they have handlers of their own, and what servers end at."""

from __future__ import annotations

import signal
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


def ending_signals() -> tuple[signal.Signals, ...]:
    """Return the signals at which a server ends in order, with drain.

    SIGHUP is among them, as a closed terminal sends it, unless it was ignored at the start (``nohup``).
    """
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    hangup = () if ignored else (signal.SIGHUP,)
    return signal.SIGTERM, signal.SIGINT, *hangup
