"""Appends events to a file, line by line, so that a killed process leaves complete lines."""

import os
import re
import threading
from pathlib import Path
from types import TracebackType
from typing import Final

import msgspec

from routekeeper.bench.events import Event, event_file

BUFFER_SIZE: Final = 64 * 1024
"""Bytes kept before they go to the file; what a killed process can lose, beside the last flush interval."""

FLUSH_INTERVAL_NS: Final = 200_000_000
"""How often :meth:`EventLog.flush_if_due` writes."""

REMARK_LENGTH_MAX: Final = 200
"""Characters of a remark that are kept; the rest tells nothing new and costs disk."""

_PROCESS_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def short_remark(text: str) -> str:
    """Return the first line of ``text``, at most ``REMARK_LENGTH_MAX`` characters."""
    line = text.strip().partition("\n")[0].rstrip()
    return line if len(line) <= REMARK_LENGTH_MAX else line[: REMARK_LENGTH_MAX - 1] + "…"


class Recorder:
    """Appends events to one JSONL file; lines reach the file whole unless one write is cut short.

    Not safe for threads; greenlets of one thread may share it (no switch happens inside a call).
    """

    def __init__(self, path: Path) -> None:
        """Create ``path``.

        Raises:
            FileExistsError: If it exists: another process or an earlier run wrote it.
        """
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115 - closed by close(); the object owns it
        self._buffer = bytearray()
        self._encoder = msgspec.json.Encoder()

    def record(self, event: msgspec.Struct) -> None:
        """Add one event; it is written at the latest when 64 KiB are waiting."""
        before = len(self._buffer)
        self._encoder.encode_into(event, self._buffer, -1)
        self._buffer += b"\n"
        if len(self._buffer) > BUFFER_SIZE:
            self._write(before)  # the lines before this one: a write holds whole lines only
            if len(self._buffer) > BUFFER_SIZE:
                self._write(len(self._buffer))

    def flush(self) -> None:
        """Pass everything to the operating system, so that it survives the death of this process."""
        self._write(len(self._buffer))

    def close(self) -> None:
        """Flush and close; a second call does nothing."""
        if not self._file.closed:
            self.flush()
            self._file.close()

    def _write(self, size: int) -> None:
        written = 0
        while written < size:
            written += os.write(self._file.fileno(), memoryview(self._buffer)[written:size])
        del self._buffer[:size]


class EventLog:
    """All event files of one process in one folder, opened when their first event comes.

    Safe for threads. A process that forks opens its log after the fork. The owner must call ``flush_if_due``:
    otherwise a kill loses up to 64 KiB of each file.
    """

    def __init__(self, folder: Path, process: str) -> None:
        """Write to ``folder``, which exists, under the name ``process``.

        Raises:
            ValueError: If the name would not make a file name.
        """
        if _PROCESS_NAME.fullmatch(process) is None:
            raise ValueError(f"process name {process!r}: allowed are 1 to 64 letters, digits, '_', '.', '-'")
        self._folder = folder
        self._process = process
        self._recorders: dict[type[Event], Recorder] = {}
        self._flush_at_ns = 0
        self._writing = threading.Lock()

    def record(self, event: Event) -> None:
        """Append one event to the file of its kind."""
        with self._writing:
            recorder = self._recorders.get(type(event))
            if recorder is None:
                recorder = Recorder(event_file(self._folder, type(event), self._process))
                self._recorders[type(event)] = recorder
            recorder.record(event)

    def flush(self) -> None:
        """Write the events that wait."""
        with self._writing:
            for recorder in self._recorders.values():
                recorder.flush()

    def flush_if_due(self, now_ns: int) -> None:
        """Flush if ``FLUSH_INTERVAL_NS`` have passed since the last time."""
        if now_ns >= self._flush_at_ns:
            self.flush()
            self._flush_at_ns = now_ns + FLUSH_INTERVAL_NS

    def close(self) -> None:
        """Flush and close all files."""
        with self._writing:
            for recorder in self._recorders.values():
                recorder.close()

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
