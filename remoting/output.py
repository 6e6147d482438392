"""Threads that write a program's stdout and stderr, so that a hung reader blocks no other work.

Lines wait in a queue that is limited in bytes. If the queue is full, further lines are dropped and counted.
When the output works again, a line reports the number of dropped lines.
"""

from __future__ import annotations

import atexit
import contextlib
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
"""Seconds between two checks whether omitted lines must be reported."""
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
        write_until: Like ``write``, but raises an error at a given time on the monotonic clock. It is used
            for the last lines of a program that could start no thread. None to use ``write`` for them.
        bytes_max: Limit of the bytes that wait or are being written.

    Attributes:
        dropped: Number of lines that were not written since the start.
        report: Function that returns the line about a given number of dropped lines.
    """

    def __init__(
        self,
        write: Callable[[bytes], None],
        *,
        write_until: Callable[[bytes, float], None] | None = None,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self.dropped = 0
        self.report: Callable[[int], str] = "{} lines were dropped\n".format
        self._write = write
        self._write_until = write_until or (lambda data, _: write(data))
        self._bytes_max = bytes_max
        # Use a reentrant lock, because a signal handler or the garbage collector may log in a thread that
        # already holds the lock.
        self._changed = threading.Condition(threading.RLock())
        #: Lines that wait to be written. A number in this queue counts the lines that were dropped at its
        #: position.
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
            self._start_if_needed()
            if self._held + len(data) > self._bytes_max:
                self._drop(data.count(b"\n"))
                return
            self._held += len(data)
            self._waiting.append(data)
            self._changed.notify_all()

    def _start_if_needed(self) -> None:
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)
        try:
            _start_deaf_to_signals(self._thread)
        except RuntimeError:  # no thread can be started now; the next line will try it again
            self._thread = None

    def drop(self) -> None:
        """Count one line that was dropped before it was formatted, because the queue is full."""
        with self._changed:
            self._start_if_needed()
            self._drop(1)

    def _drop(self, count: int) -> None:
        """Count dropped lines; a later line at the same position in the output reports their number."""
        self.dropped += count
        if self._waiting and isinstance(self._waiting[-1], int):
            self._waiting[-1] += count
        else:
            self._waiting.append(count)
        self._changed.notify_all()

    def drain(self, longest_s: float = DRAIN_S) -> None:
        """Wait at most ``longest_s`` seconds until all lines are written.

        If the lines are not written within this time, all later calls return at once. So a program with a
        hung reader ends soon. If the system could not start the thread, this method writes the lines itself.
        """
        with self._changed:
            if self._is_given_up or threading.current_thread() is self._thread:
                return
            if self._thread is None and self._waiting:
                until = time.monotonic() + longest_s
                while self._waiting:
                    self._write_waiting(lambda data: self._write_until(data, until))
                self._is_given_up = time.monotonic() >= until
                return
            self._is_given_up = not self._changed.wait_for(
                lambda: not self._held and not self._waiting, longest_s
            )

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
            self._write_waiting(self._write)

    def _write_waiting(self, write: Callable[[bytes], None]) -> None:
        with self._changed:
            # Use one statement, because in the main thread a signal handler may put a line at any moment.
            parts, self._waiting = self._waiting, deque()
        lines = [part for part in parts if isinstance(part, bytes)]
        counts = [self._untold, *(part for part in parts if isinstance(part, int))]
        texts = [part if isinstance(part, bytes) else self.report(part).encode() for part in parts]
        if self._untold:
            texts.insert(0, self.report(self._untold).encode())
        is_written = _is_written(write, b"".join(texts))
        with self._changed:
            self._held -= sum(map(len, lines))
            self._untold = 0
            if not is_written:  # these lines are lost; the next line that is written reports their number
                lost = sum(line.count(b"\n") for line in lines)
                self.dropped += lost
                self._untold = lost + sum(counts)
            self._changed.notify_all()

    def _begin_anew(self) -> None:
        """Forget the thread and the waiting lines after a fork; the parent process writes these lines."""
        self._changed = threading.Condition(threading.RLock())
        self._waiting.clear()
        self._held = 0
        self._thread = None


def _is_written(write: Callable[[bytes], None], data: bytes) -> bool:
    try:
        write(data)
    except (OSError, ValueError):  # no process reads the output, disk full, time over, or stream closed
        return False
    return True


class ThreadedText(io.TextIOBase):
    """Text stream whose lines are written by a thread.

    The stream can replace ``sys.stderr``. Therefore its methods must never wait.
    """

    def __init__(self, stream: TextIO) -> None:
        writer = _Writer(stream)
        self.output = OutputThread(writer.write, write_until=writer.write_until)
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
        """Wait at most :data:`DRAIN_S` until the lines are written; :func:`logging.shutdown` calls this."""
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

    Do nothing if logging is already set up, as in a test, where other code uses stderr.
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


class _Writer:
    """Writes bytes directly to a stream's descriptor, so that no byte is buffered."""

    def __init__(self, stream: TextIO) -> None:
        stream.flush()
        self._stream = stream
        try:
            self._fd = stream.fileno()
        except (OSError, ValueError):
            self._fd = -1

    def write(self, data: bytes) -> None:
        """Write all bytes, and wait as long as necessary."""
        if self._fd < 0:
            self._stream.write(data.decode(self._stream.encoding or "utf-8"))
            self._stream.flush()
            return
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:  # another process has made the shared pipe non-blocking
                self._wait(None)

    def write_until(self, data: bytes, until: float) -> None:
        """Write all bytes before ``until`` on the monotonic clock, in seconds.

        Raises:
            TimeoutError: If the reader of a pipe takes them too slowly. Some bytes may be written.
        """
        if self._fd < 0:
            self.write(data)
            return
        rest = memoryview(data)
        while rest:
            # A pipe that is ready takes PIPE_BUF bytes without a wait (pipe(7)), so write no more at once.
            if not self._wait(max(0.0, until - time.monotonic())):
                raise TimeoutError
            with contextlib.suppress(BlockingIOError):
                rest = rest[os.write(self._fd, rest[: select.PIPE_BUF]) :]

    def _wait(self, longest_s: float | None) -> bool:
        """Wait until the descriptor can take bytes; return False if ``longest_s`` seconds pass before that.

        If ``longest_s`` is None, wait without a limit.
        """
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        return bool(poll.poll(None if longest_s is None else math.ceil(longest_s * 1000)))
