"""Writers of event files. Each write has whole lines only, so a killed process leaves no partial line."""

import os
import threading
from pathlib import Path
from typing import Final

import msgspec

from routekeeper.bench.events import Event, event_file

BUFFER_SIZE: Final = 64 * 1024
"""Bytes of one file that are buffered before they are written. A kill loses at most these bytes."""

FLUSH_INTERVAL_NS: Final = 200_000_000
"""Time in ns between two writes by :meth:`EventLog.flush_if_due`."""

REMARK_LENGTH_MAX: Final = 200
"""Largest number of recorded characters of a remark. Longer remarks are cut, to save disk space."""


def short_remark(text: str) -> str:
    """Return the first line of ``text``, at most ``REMARK_LENGTH_MAX`` characters."""
    line = text.strip().partition("\n")[0].rstrip()
    return line if len(line) <= REMARK_LENGTH_MAX else line[: REMARK_LENGTH_MAX - 1] + "…"


class Recorder:
    """A writer of one JSONL file of events, which passes only whole lines to the system.

    The system may cut a write short, for example if the disk is full. Only then can a part of a line remain.
    The class is not safe for threads. Greenlets of one thread may share a recorder, because no switch of
    greenlets happens inside a call.
    """

    def __init__(self, path: Path) -> None:
        """Create the file ``path``.

        Raises:
            FileExistsError: If the file exists, because another process or an earlier run wrote it.
        """
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115 - closed by close(); the object owns it
        self._buffer = bytearray()
        self._encoder = msgspec.json.Encoder()

    def record(self, event: msgspec.Struct) -> None:
        """Add one event to the buffer.

        If the buffer then has more than ``BUFFER_SIZE`` bytes, write the earlier events to the file. If the
        new event alone is larger than ``BUFFER_SIZE``, write this event, too.
        """
        before = len(self._buffer)
        self._encoder.encode_into(event, self._buffer, -1)
        self._buffer += b"\n"
        if len(self._buffer) > BUFFER_SIZE:
            self._write(before)  # write the earlier lines first, because a write has whole lines only
            if len(self._buffer) > BUFFER_SIZE:
                self._write(len(self._buffer))

    def flush(self) -> None:
        """Pass all buffered events to the operating system, so that they survive this process's death."""
        self._write(len(self._buffer))

    def close(self) -> None:
        """Flush and close the file. A second call does nothing."""
        if not self._file.closed:
            self.flush()
            self._file.close()

    def _write(self, size: int) -> None:
        written = 0
        while written < size:
            written += os.write(self._file.fileno(), memoryview(self._buffer)[written:size])
        del self._buffer[:size]


class EventLog:
    """All event files of one process in one folder. Each file is opened when its first event comes.

    The class is safe for threads. A process that forks must open its log after the fork. The owner must call
    :meth:`flush_if_due` regularly. Otherwise a kill loses up to 64 KiB of each file.
    """

    def __init__(self, folder: Path, process: str) -> None:
        """Prepare to write to the existing folder ``folder``. Each file's name contains ``process``."""
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
        """Write all buffered events."""
        with self._writing:
            for recorder in self._recorders.values():
                recorder.flush()

    def flush_if_due(self, now_ns: int) -> None:
        """Flush if ``FLUSH_INTERVAL_NS`` have passed since the last flush by this method."""
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

    def __exit__(self, *_: object) -> None:
        self.close()
