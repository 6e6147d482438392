"""Threads that write a program's stdout and stderr, so that a hung reader blocks no other work.

Lines wait in a queue that is limited in bytes. If the queue is full, further lines are dropped and counted.
When the output works again, a line reports the number of dropped lines.
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
"""Largest number of bytes that wait to be written: one limit for stdout, and an equal limit for stderr."""
DRAIN_S: Final = 1.0
"""Longest time in seconds that an ending program waits until its last lines are written."""
_TURN_S: Final = 1.0
"""Seconds between two checks for omitted lines that must be reported."""
_PART_CHARACTERS_MAX: Final = 1 << 16
"""Largest number of characters of a line without an end. A longer line is written in parts."""


def _start_deaf_to_signals(thread: threading.Thread) -> None:
    """Start a thread in which all signals are blocked.

    The system delivers a signal to any thread that does not block it. Some servers wait for signals in a
    thread of their own. If the output thread received SIGTERM instead, the signal would be lost.
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
    """Thread that writes lines; it starts with the first line.

    Args:
        write: Writes all bytes, and may block as long as necessary. If this function raises an OSError, the
            bytes are lost, and their lines count as dropped.
        bytes_max: Limit of the bytes that wait or are being written.

    Attributes:
        dropped: Number of lines that were not written since the start.
        report: Function that returns the line about a given number of dropped lines.
    """

    def __init__(self, write: Callable[[bytes], None], *, bytes_max: int = BYTES_MAX) -> None:
        self.dropped = 0
        self.report: Callable[[int], str] = "{} lines were dropped\n".format
        self._write = write
        self._bytes_max = bytes_max
        # Reentrant: a signal handler or the garbage collector may log in a thread that already holds the
        # lock.
        self._changed = threading.Condition(threading.RLock())
        #: Lines that wait. A number among them is the number of lines that were dropped at this position.
        self._waiting: deque[bytes | int] = deque()
        self._held = 0  # bytes of the lines that wait or are being written
        self._untold = 0  # number of dropped lines that no written line has reported yet
        self._thread: threading.Thread | None = None
        self._is_given_up = False
        os.register_at_fork(after_in_child=self._begin_anew)

    @property
    def is_full(self) -> bool:
        """Return True if any line that comes now would be dropped."""
        return self._held >= self._bytes_max

    def put(self, data: bytes) -> None:
        """Queue complete lines, or drop them if the queue is full. Never wait."""
        with self._changed:
            if self._held + len(data) > self._bytes_max:
                self._drop(data.count(b"\n"))
                return
            self._held += len(data)
            self._waiting.append(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="output", daemon=True)
                try:
                    _start_deaf_to_signals(self._thread)
                except RuntimeError:  # the system cannot start a thread now; the next line tries it again
                    self._thread = None
            self._changed.notify_all()

    def drop(self) -> None:
        """Count one dropped line that was not even formatted, because the queue is full."""
        with self._changed:
            self._drop(1)

    def _drop(self, count: int) -> None:
        """Count dropped lines. A line at their position in the output will report their number."""
        self.dropped += count
        if self._waiting and isinstance(self._waiting[-1], int):
            self._waiting[-1] += count
        else:
            self._waiting.append(count)
        self._changed.notify_all()

    def drain(self, longest_s: float = DRAIN_S) -> None:
        """Wait until all lines are written, for at most ``longest_s`` seconds.

        If this time was too short in one call, all later calls return at once.
        """
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
                if not is_written:  # these lines are lost; the next line that is written reports their number
                    lost = sum(line.count(b"\n") for line in lines)
                    self.dropped += lost
                    self._untold = lost + sum(counts)
                self._changed.notify_all()

    def _try(self, data: bytes) -> bool:
        try:
            self._write(data)
        except (OSError, ValueError):  # no process reads the output, disk full, or stream closed
            return False
        return True

    def _begin_anew(self) -> None:
        """Forget the thread and the waiting lines after a fork; the parent process writes these lines."""
        self._changed = threading.Condition(threading.RLock())
        self._waiting.clear()
        self._held = 0
        self._thread = None


class ThreadedText(io.TextIOBase):
    """Text stream whose lines a thread writes; it replaces ``sys.stderr``, so its methods must never wait."""

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
        """Pass an unfinished line to the thread as well; return at once."""
        with self._lock:
            part, self._part = self._part, ""
            if part:
                self._put(part)

    def _put(self, text: str) -> None:
        self.output.put(text.encode(self.encoding, "backslashreplace"))


class ThreadedHandler(logging.Handler):
    """Log handler that passes lines to an output thread.

    If the thread's queue is full, the handler drops a line without formatting it. At level INFO and above,
    the number of lines of each event is limited (:class:`EventLimit`). This limit does not apply to loggers
    named ``*.audit``, so that other lines cannot suppress the record of operators' changes.

    Attributes:
        left_out: Number of lines that the limit has suppressed since the start.
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
        except Exception:  # a line that cannot be formatted must not end the program
            self.handleError(record)

    def flush(self) -> None:
        """Wait up to :data:`DRAIN_S` for the lines to be written; :func:`logging.shutdown` calls this."""
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
    """Return the words at the beginning of an event, before its first value, such as ``broker left``."""
    return shortened(" ".join(itertools.takewhile(lambda word: "=" not in word, event.split())) or event)


def write_stderr_in_thread() -> None:
    """Let a thread write everything that goes to ``sys.stderr`` from now on: lines, warnings, tracebacks.

    Do nothing if logging is already set up. This is so in a test, where other code owns stderr.
    """
    if sys.stderr is not None and not logging.root.handlers and not isinstance(sys.stderr, ThreadedText):
        sys.stderr = ThreadedText(sys.stderr)
        atexit.register(sys.stderr.output.drain)


def write_stdout_in_thread() -> None:
    """Let a thread write everything that goes to ``sys.stdout`` from now on.

    Only servers call this. Other programs may wait until their output is read.
    """
    if isinstance(sys.stderr, ThreadedText) and sys.stdout is not None:
        sys.stdout = ThreadedText(sys.stdout)
        atexit.register(sys.stdout.output.drain)


def set_up_logging(*, level: str | int, style: Style = "text") -> None:
    """Write every log record from ``level`` on to stderr, one line each, in a thread.

    Do nothing if logging is already set up, as :func:`logging.basicConfig` does.
    """
    write_stderr_in_thread()
    if isinstance(sys.stderr, ThreadedText):
        logging.basicConfig(level=level, handlers=[ThreadedHandler(sys.stderr, LineFormatter(style))])


def lines_dropped() -> int:
    """Return the number of lines for stderr that were dropped since the start."""
    return sys.stderr.output.dropped if isinstance(sys.stderr, ThreadedText) else 0


def lines_left_out() -> int:
    """Return the number of log lines that were suppressed because their event was logged too often."""
    return sum(handler.left_out for handler in logging.root.handlers if isinstance(handler, ThreadedHandler))


def _writer(stream: TextIO) -> Callable[[bytes], None]:
    """Return a function that writes bytes directly to a stream's descriptor, so that no byte is buffered."""
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
            except BlockingIOError:  # another process has made the shared pipe non-blocking
                poll = select.poll()
                poll.register(fd, select.POLLOUT)
                poll.poll()

    return write
