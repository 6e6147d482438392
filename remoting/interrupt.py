"""Signals that end programs: Ctrl-C while a program loads its modules, and signals that end a server."""

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

#: Time in seconds after the first signal that asks this program to end. Further such signals within this time
#: count as repeats of the first signal, because supervisors may send one signal to a process and also to its
#: process group.
REPEAT_S: Final = 1.0


def end_quietly_when_interrupted() -> None:
    """End the program without a traceback at Ctrl-C, even while it still loads its modules.

    Loading takes one or two seconds on a busy machine. Therefore programs call this function before they
    import their other modules. An uncaught KeyboardInterrupt then prints nothing. The interpreter ends itself
    by SIGINT, which a shell shows as exit code 130.
    """
    show = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            show(kind, error, trace)

    sys.excepthook = hook


class Hangups:
    """Handler of SIGHUP in a server without a terminal: SIGHUP never ends such a server.

    A SIGHUP that arrives before the server can handle it is stored.
    """

    def __init__(self) -> None:
        self._came = False
        self._heed: Callable[[], object] | None = None

    def hold(self) -> None:
        """Catch and remember SIGHUP from now on. Call this before the server loads its other modules.

        Do nothing if the server was started from a terminal: closing the terminal must end the server.
        """
        if not os.isatty(0):
            signal.signal(signal.SIGHUP, self._take)
            # Ignore SIGHUP when the program ends. Otherwise the interpreter would restore the default
            # handling, and a SIGHUP would then kill the process.
            atexit.register(signal.signal, signal.SIGHUP, signal.SIG_IGN)

    def heed(self, heed: Callable[[], object]) -> None:
        """Call ``heed`` in the main thread for each later SIGHUP.

        If a SIGHUP has already arrived, call ``heed`` now as well.
        """
        self._heed = heed
        if self._came:
            heed()

    def _take(self, *_: object) -> None:
        self._came = True
        if self._heed is not None:
            with contextlib.suppress(RuntimeError):  # raised if the event loop has already ended
                self._heed()


def ending_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that end a program in an orderly way.

    SIGHUP, which a closed terminal sends, is one of them unless it was ignored at the start (``nohup``).
    """
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    hangup = () if ignored else (signal.SIGHUP,)
    return signal.SIGTERM, signal.SIGINT, *hangup


def server_signals() -> tuple[tuple[signal.Signals, ...], tuple[signal.Signals, ...]]:
    """Return the signals that end a server in an orderly way, and the signals at which it reloads its files.

    If a server was started from a terminal, SIGHUP ends it, so that it does not outlive the closed terminal.
    """
    if os.isatty(0):
        return ending_signals(), ()
    return (signal.SIGTERM, signal.SIGINT), (signal.SIGHUP,)


class Order(Enum):
    """Meaning of a signal that a server receives."""

    END = auto()
    REPEATED = auto()
    AT_ONCE = auto()


class Ending:
    """Classifier of ending signals: first signal, repeat of it, or order to end at once. Does no I/O.

    Attributes:
        code: Exit code of an orderly shutdown. It is 129 after SIGHUP, as in a shell. So a supervisor can
            tell a closed terminal from a requested stop.
    """

    def __init__(self) -> None:
        self._first_at: float | None = None
        self.code = 0

    def take(self, number: int, now: float) -> Order:
        """Return the order that signal ``number`` gives at time ``now`` in seconds.

        All ending signals count alike: any of them can be a repeat of the first one.
        """
        if self._first_at is None:
            self._first_at = now
            if number == signal.SIGHUP:
                self.code = 128 + number
            return Order.END
        return Order.REPEATED if now - self._first_at < REPEAT_S else Order.AT_ONCE
