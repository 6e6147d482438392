"""Signals that end programs: Ctrl-C before they have handlers of their own, and what servers end at."""

from __future__ import annotations

import os
import signal
import sys
from enum import Enum, auto
from types import TracebackType
from typing import Final

#: Signals that come so soon after the first one repeat it: supervisors signal a process and its group.
REPEAT_S: Final = 1.0


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
    """Return the signals at which a program ends in order.

    SIGHUP is among them, as a closed terminal sends it, unless it was ignored at the start (``nohup``).
    """
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    hangup = () if ignored else (signal.SIGHUP,)
    return signal.SIGTERM, signal.SIGINT, *hangup


def server_signals() -> tuple[tuple[signal.Signals, ...], tuple[signal.Signals, ...]]:
    """Return the signals at which a server ends in order, and those at which it reads files again.

    SIGHUP ends a server that was started from a terminal, so that a closed terminal leaves no server behind.
    """
    if os.isatty(0):
        return ending_signals(), ()
    return (signal.SIGTERM, signal.SIGINT), (signal.SIGHUP,)


class Order(Enum):
    """The order that a signal gives."""

    END = auto()
    REPEATED = auto()
    AT_ONCE = auto()


class Ending:
    """Tells the signal that ends a server from repeats of it, and from an order to die at once. Pure.

    Attributes:
        code: Exit code of an orderly end. A closed terminal shows as 129, as a shell says it, so that nobody
            takes it for a stop that was asked for.
    """

    def __init__(self) -> None:
        self._first_at: float | None = None
        self.code = 0

    def take(self, number: int, now: float) -> Order:
        """Return the order that signal ``number`` gives at ``now`` (s); all signals count as the same."""
        if self._first_at is None:
            self._first_at = now
            if number == signal.SIGHUP:
                self.code = 128 + number
            return Order.END
        return Order.REPEATED if now - self._first_at < REPEAT_S else Order.AT_ONCE
