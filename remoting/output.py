"""Output of programs to stdout and stderr, written by threads, so that a hung reader blocks no other work.

Lines wait in a queue that is bounded in bytes. Further lines are dropped and counted. When the output goes
on, a line says how many were dropped.
"""

from __future__ import annotations

import atexit
import io
import itertools
import logging
import math
import os
import select
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, TextIO

from routekeeper.remoting.line_limit import EventLimit
from routekeeper.remoting.logs import LineFormatter, Style, shortened

BYTES_MAX: Final = 4 << 20
"""Bound of the bytes that wait to be written, for each of stdout and stderr."""
DRAIN_S: Final = 1.0
"""Longest time in seconds that an ending program waits for its last lines."""
_TURN_S: Final = 1.0
"""Interval in seconds between checks for omitted lines to report."""
_PART_CHARACTERS_MAX: Final = 1 << 16
"""Bound of a line without an end; a longer one is written in parts."""


def _start_deaf_to_signals(thread: threading.Thread) -> None:
    """Start a thread in which all signals are blocked.

    The system delivers a signal to any thread that does not block it. A server that waits for signals in a
    thread of its own would never see one that this thread took: SIGTERM would be lost.
    """
    if not hasattr(signal, "pthread_sigmask"):
        thread.start()
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class OutputThread:
    """Writes lines in a thread, which starts with the first line.

    Args:
        write: Writes all bytes, however long that takes. After an OSError they are lost, and their lines
            count as dropped.
        bytes_max: Bound of the waiting bytes, including those being written.

    Attributes:
        dropped: Number of lines since the start that were not written.
        report: Makes the line that says how many were dropped.
    """

    def __init__(self, write: Callable[[bytes], None], *, bytes_max: int = BYTES_MAX) -> None:
        self.dropped = 0
        self.report: Callable[[int], str] = "{} lines were dropped\n".format
        self._write = write
        self._bytes_max = bytes_max
        # Reentrant: a signal handler or the garbage collector may log while this thread holds the lock.
        self._changed = threading.Condition(threading.RLock())
        #: Lines, and how many were dropped between them.
        self._waiting: deque[bytes | int] = deque()
        self._held = 0  # bytes of lines that wait or are being written
        self._untold = 0  # dropped lines that no written line has reported yet
        self._thread: threading.Thread | None = None
        self._is_given_up = False
        os.register_at_fork(after_in_child=self._begin_anew)

    @property
    def is_full(self) -> bool:
        """Return whether a line now would be dropped."""
        return self._held >= self._bytes_max

    def put(self, data: bytes) -> None:
        """Queue complete lines, or drop them; never wait."""
        with self._changed:
            if self._held + len(data) > self._bytes_max:
                self._drop(data.count(b"\n"))
                return
            self._held += len(data)
            self._waiting.append(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="output", daemon=True)
                _start_deaf_to_signals(self._thread)
            self._changed.notify_all()

    def drop(self) -> None:
        """Count a line that was not formatted because there is no room for it."""
        with self._changed:
            self._drop(1)

    def _drop(self, count: int) -> None:
        """Count dropped lines; a line at their place reports the number."""
        self.dropped += count
        if self._waiting and isinstance(self._waiting[-1], int):
            self._waiting[-1] += count
        else:
            self._waiting.append(count)
        self._changed.notify_all()

    def drain(self, longest_s: float = DRAIN_S) -> None:
        """Return once everything is written, or after ``longest_s``; later calls do not wait any more."""
        with self._changed:
            if self._is_given_up or threading.current_thread() is self._thread:
                return
            self._is_given_up = not self._changed.wait_for(
                lambda: not self._held and not self._waiting, longest_s
            )

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                parts = list(self._waiting)
                self._waiting.clear()
            lines = [part for part in parts if isinstance(part, bytes)]
            counts = [self._untold, *(part for part in parts if isinstance(part, int))]
            texts = [part if isinstance(part, bytes) else self.report(part).encode() for part in parts]
            if self._untold:
                texts.insert(0, self.report(self._untold).encode())
            is_written = self._try(b"".join(texts))
            with self._changed:
                self._held -= sum(map(len, lines))
                self._untold = 0
                if not is_written:  # the next written line reports them
                    lost = sum(line.count(b"\n") for line in lines)
                    self.dropped += lost
                    self._untold = lost + sum(counts)
                self._changed.notify_all()

    def _try(self, data: bytes) -> bool:
        try:
            self._write(data)
        except (OSError, ValueError):  # no process reads it, the disk is full, or the stream is closed
            return False
        return True

    def _begin_anew(self) -> None:
        """Begin without a thread in a forked process; the parent writes the lines that wait."""
        self._changed = threading.Condition(threading.RLock())
        self._waiting.clear()
        self._held = 0
        self._thread = None


class ThreadedText(io.TextIOBase):
    """A text stream whose lines a thread writes; it replaces ``sys.stderr``, so it must never wait."""

    def __init__(self, stream: TextIO) -> None:
        self.output = OutputThread(_writer(stream))
        self._stream = stream
        self._part = ""
        self._lock = threading.RLock()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding or "utf-8"

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, text: str) -> int:
        with self._lock:
            whole, end, part = (self._part + text).rpartition("\n")
            self._part = part
            if end:
                self._put(whole + end)
            if len(self._part) > _PART_CHARACTERS_MAX:
                self.flush()
        return len(text)

    def flush(self) -> None:
        """Pass an unfinished line to the thread, too; return at once."""
        with self._lock:
            part, self._part = self._part, ""
            if part:
                self._put(part)

    def _put(self, text: str) -> None:
        self.output.put(text.encode(self.encoding, "backslashreplace"))


class ThreadedHandler(logging.Handler):
    """Gives log lines to an output thread; a line for which there is no room is not even formatted.

    The lines of a frequent event are limited, from INFO on. Loggers named ``*.audit`` have limits of their
    own, so that operators' changes are not lost among other lines.

    Attributes:
        left_out: Number of lines that the limit left out since the start.
    """

    def __init__(self, text: ThreadedText, formatter: LineFormatter) -> None:
        super().__init__()
        self.left_out = 0
        self._text = text
        self._limit = EventLimit()
        self._turned = -math.inf
        self.setFormatter(formatter)
        text.output.report = self._report

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        if now - self._turned >= _TURN_S:
            self._turned = now
            self._tell_left_out(now)
        if record.levelno >= logging.INFO and not record.name.endswith(".audit"):
            subject = str(record.args[0]) if isinstance(record.args, tuple) and record.args else ""
            if not self._limit.allow(str(record.msg), shortened(subject), now):
                self.left_out += 1
                return
        self._write(record)

    def _write(self, record: logging.LogRecord) -> None:
        if self._text.output.is_full:
            self._text.output.drop()
            return
        try:
            self._text.write(self.format(record) + "\n")
        except Exception:  # as in every handler, a line that cannot be formatted must not end the program
            self.handleError(record)

    def flush(self) -> None:
        """Wait a moment until all lines are written; :func:`logging.shutdown` calls it."""
        self._tell_left_out(math.inf)
        self._text.output.drain()

    def _tell_left_out(self, now: float) -> None:
        for event, count in self._limit.turn(now):
            self._write(_warning("log lines left out count=%d event=%s", count, _words(event)))

    def _report(self, count: int) -> str:
        return self.format(_warning("%d log lines were dropped", count)) + "\n"


def _warning(text: str, *values: object) -> logging.LogRecord:
    return logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, values, None)


def _words(event: str) -> str:
    """Return the words with which a line begins, before its first value: ``broker left``."""
    return shortened(" ".join(itertools.takewhile(lambda word: "=" not in word, event.split())) or event)


def write_stderr_in_thread() -> None:
    """Let a thread write everything for ``sys.stderr`` from now on: lines, warnings, tracebacks.

    It does nothing if logging is set up already, as in a test, where other code owns stderr.
    """
    if sys.stderr is not None and not logging.root.handlers and not isinstance(sys.stderr, ThreadedText):
        sys.stderr = ThreadedText(sys.stderr)
        atexit.register(sys.stderr.output.drain)


def write_stdout_in_thread() -> None:
    """Do the same for ``sys.stdout``, for servers: others block until their output is read."""
    if isinstance(sys.stderr, ThreadedText) and sys.stdout is not None:
        sys.stdout = ThreadedText(sys.stdout)
        atexit.register(sys.stdout.output.drain)


def set_up_logging(*, level: str | int, style: Style = "text") -> None:
    """Send every record of the process from ``level`` on to stderr, one line each, by a thread.

    It does nothing if logging is set up already, as :func:`logging.basicConfig`.
    """
    write_stderr_in_thread()
    if isinstance(sys.stderr, ThreadedText):
        logging.basicConfig(level=level, handlers=[ThreadedHandler(sys.stderr, LineFormatter(style))])


def lines_dropped() -> int:
    """Return how many lines of stderr were dropped since the start."""
    return sys.stderr.output.dropped if isinstance(sys.stderr, ThreadedText) else 0


def lines_left_out() -> int:
    """Return how many log lines were left out because their event was logged too often."""
    return sum(handler.left_out for handler in logging.root.handlers if isinstance(handler, ThreadedHandler))


def _writer(stream: TextIO) -> Callable[[bytes], None]:
    """Return a function that writes to a stream without its buffer, so that no byte stays there."""
    stream.flush()
    try:
        fd = stream.fileno()
    except (OSError, ValueError):

        def write_text(data: bytes) -> None:
            stream.write(data.decode(stream.encoding or "utf-8"))
            stream.flush()

        return write_text

    def write(data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(fd, rest) :]
            except BlockingIOError:  # another process that shares the pipe has made it non-blocking
                poll = select.poll()
                poll.register(fd, select.POLLOUT)
                poll.poll()

    return write
