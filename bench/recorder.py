"""Appends what happens to a file, line by line, so that a killed process leaves whole lines."""

import os
from pathlib import Path
from typing import Final

import msgspec

BUFFER_SIZE: Final = 64 * 1024
"""Bytes kept before they go to the file; what a killed process can lose, beside the last flush interval."""

FLUSH_INTERVAL_NS: Final = 200_000_000
"""How often :meth:`routekeeper.bench.events.EventLog.flush_if_due` writes."""

REMARK_LENGTH_MAX: Final = 200
"""Characters of a remark that are kept; the rest tells nothing new and costs disk."""


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
        """Take one event; written at the latest when 64 KiB are waiting."""
        before = len(self._buffer)
        self._encoder.encode_into(event, self._buffer, -1)
        self._buffer += b"\n"
        if len(self._buffer) > BUFFER_SIZE:
            self._write(before)  # the lines before this one: a write holds whole lines only
            if len(self._buffer) > BUFFER_SIZE:
                self._write(len(self._buffer))

    def flush(self) -> None:
        """Hand everything to the operating system: it then survives the death of this process."""
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
