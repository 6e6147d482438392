"""Handling of signals: Ctrl-C while a program loads its modules, and signals that end or reload a server."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from enum import Enum, auto
from types import TracebackType
from typing import Final

#: Ending signals that arrive within this number of seconds after the first ending signal count as repeats of
#: it. The reason is that a supervisor may send one signal twice: to a process and to its process group.
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


def print_stacks_at_quit() -> None:
    """Print the stacks of all threads to stderr at each SIGQUIT, as Java does, and let the program continue.

    Without this function, SIGQUIT kills a server without an orderly end. The interpreter itself writes the
    stacks to the descriptor of stderr, even if no Python code can run at the moment. The program waits until
    the reader of stderr has taken them.
    """
    try:
        faulthandler.register(signal.SIGQUIT, file=sys.stderr, all_threads=True)
    except (AttributeError, OSError, RuntimeError, ValueError):  # raised if there is no stderr
        signal.signal(signal.SIGQUIT, signal.SIG_IGN)


def interruptible_sleep(seconds: float) -> None:
    """Sleep as ``time.sleep`` does, but never oversleep a signal such as Ctrl-C.

    Python runs the handlers of signals between two bytecodes. If a signal arrives after the last check and
    before ``time.sleep`` has told the system to sleep, its handler runs only after the whole time: a program
    that has just printed a table and sleeps for an hour would ignore Ctrl-C for an hour. This function waits
    on a pipe, to which the interpreter writes as soon as a signal arrives.
    """
    # Handlers run in the main thread only. Windows has no such pipe.
    if threading.current_thread() is not threading.main_thread() or os.name == "nt":
        time.sleep(seconds)
        return
    deadline = time.monotonic() + seconds
    reader, writer = os.pipe()
    try:
        os.set_blocking(writer, False)
        before = -1
        try:  # a pending signal may raise right after this call, so the call is inside
            before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
            while (left := deadline - time.monotonic()) > 0:
                if select.select([reader], [], [], left)[0]:
                    os.read(reader, 1)
        finally:
            signal.set_wakeup_fd(before)
    finally:
        os.close(reader)
        os.close(writer)


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

        If a SIGHUP has already arrived, also call ``heed`` now.
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

    SIGHUP, which a closed terminal sends, is included unless the program was started with SIGHUP ignored
    (``nohup``).
    """
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    hangup = () if ignored else (signal.SIGHUP,)
    return signal.SIGTERM, signal.SIGINT, *hangup


def server_signals() -> tuple[tuple[signal.Signals, ...], tuple[signal.Signals, ...]]:
    """Return the signals that end a server in an orderly way, and the signals at which it reloads its files.

    SIGHUP ends a server that was started from a terminal. Otherwise the server would outlive the closed
    terminal.
    """
    if os.isatty(0):
        return ending_signals(), ()
    return (signal.SIGTERM, signal.SIGINT), (signal.SIGHUP,)


class Order(Enum):
    """Meaning of an ending signal that a server receives."""

    END = auto()
    REPEATED = auto()
    AT_ONCE = auto()


class Ending:
    """Classifier of ending signals: the first signal, a repeat, or an order to end at once.

    This class does no I/O.

    Attributes:
        code: Exit code of an orderly shutdown. After SIGHUP, the code is 129, as in a shell. So a supervisor
            can distinguish a closed terminal from a requested stop.
    """

    def __init__(self) -> None:
        self._first_at: float | None = None
        self.code = 0

    def take(self, number: int, now: float) -> Order:
        """Return the order that signal ``number`` gives at time ``now`` in seconds.

        The kind of the signal does not matter: a SIGINT can be a repeat of a SIGTERM.
        """
        if self._first_at is None:
            self._first_at = now
            if number == signal.SIGHUP:
                self.code = 128 + number
            return Order.END
        return Order.REPEATED if now - self._first_at < REPEAT_S else Order.AT_ONCE
