"""Signals that end programs: Ctrl-C while a program loads, and the signals that end a server."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from enum import Enum, auto
from types import TracebackType
from typing import Final

#: Seconds within which a further signal counts as the first one: supervisors signal both a process and its
#: group.
REPEAT_S: Final = 1.0


def end_quietly_when_interrupted() -> None:
    """End at Ctrl-C without a traceback, even while a program still loads its modules.

    Loading takes a second or two on a busy machine, so programs call this before they import the rest. An
    uncaught KeyboardInterrupt then prints nothing; the interpreter ends by the signal, which a shell shows as
    130.
    """
    show = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            show(kind, error, trace)

    sys.excepthook = hook


class Hangups:
    """SIGHUP of a server without a terminal: it never ends the server, and an early one is remembered."""

    def __init__(self) -> None:
        self._came = False
        self._heed: Callable[[], object] | None = None

    def hold(self) -> None:
        """Begin to remember signals. Call it before a server loads its other modules, which takes a while.

        Does nothing for a server that was started from a terminal: a terminal that closes ends it.
        """
        if not os.isatty(0):
            signal.signal(signal.SIGHUP, self._take)
            # When it ends, the interpreter restores the default handling, which kills.
            atexit.register(signal.signal, signal.SIGHUP, signal.SIG_IGN)

    def heed(self, heed: Callable[[], object]) -> None:
        """Call ``heed`` in the main thread at each later signal, and at once if a signal came before."""
        self._heed = heed
        if self._came:
            heed()

    def _take(self, *_: object) -> None:
        self._came = True
        if self._heed is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended already
                self._heed()


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
    """The meaning of a signal."""

    END = auto()
    REPEATED = auto()
    AT_ONCE = auto()


class Ending:
    """Distinguishes a signal that ends a server from its repeats, and from an order to end at once. Pure.

    Attributes:
        code: Exit code of an orderly end. A closed terminal gives 129, as in a shell, so that it is not
            mistaken for a requested stop.
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
