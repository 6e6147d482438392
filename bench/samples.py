"""What a benchmark run writes down: one struct per kind of event, and the files they go to.

Rules that hold for every event:

- Instants are integers of nanoseconds on ``CLOCK_MONOTONIC`` (``time.monotonic_ns()``), which all processes
  of one host share. They are compared only within a run.
- What is constant for a run (mode, scenario, repetition, workload) is not repeated here: it is in the path
  and in the manifest, see :mod:`bench.manifest`.
- An absent value is ``null``, never 0 or "".
- One JSON object per line, one file per process and kind. A file is written by one process only.

Nothing here reads a clock: instants come from the caller, so a test can set them.
"""

import os
import re
from pathlib import Path
from types import TracebackType
from typing import Final, Literal

import msgspec

BUFFER_SIZE: Final = 64 * 1024
"""Bytes kept before they go to the file; what a killed process can lose, beside the last flush interval."""

FLUSH_INTERVAL_NS: Final = 200_000_000
"""How often :meth:`EventLog.flush_if_due` writes."""

REMARK_LENGTH_MAX: Final = 200
"""Characters of a remark that are kept; the rest tells nothing new and costs disk."""

Op = Literal["route_wire", "route_http", "send", "register"]
"""What was asked: a route over RocketMQ's protocol, a route over HTTP, a message sent by a producer through a
broker, a registration of a broker at one nameserver."""

Outcome = Literal["ok", "wrong", "refused", "error", "unknown"]
"""How an operation ended, as its caller sees it:

- ``ok``: answered with success and, as far as the harness knows, truthfully;
- ``wrong``: answered, but the harness knows that the answer is not true: no route, or a route without a
  living broker, for a topic that was registered and acknowledged before the request was sent and not removed
  since;
- ``refused``: the server said that it did not do it (``[NO_QUORUM]``, 503, busy);
- ``error``: certainly not done for another reason: nothing could be sent, or an error code;
- ``unknown``: something was sent and no verdict came by the deadline. A write may have been applied or not.
"""

ProcessRole = Literal["nameserver", "broker", "generator", "harness"]
FaultKind = Literal["kill_one", "kill_all"]


class Operation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One operation of the workload; errors and unknown outcomes are rows too.

    ``register`` has one row per nameserver that the registration went to, with one ``due_ns`` and ``change``.
    """

    op: Op
    worker: int
    """Simulated user, unique within its process."""
    target: int
    """Index from 0 of the nameserver asked; for ``send`` of the broker. The index survives a restart."""
    due_ns: int
    """When the open-loop schedule wanted it sent. Latency counts from here."""
    sent_ns: int
    """When it really began (connecting included). Service time counts from here. ``due_ns <= sent_ns``."""
    done_ns: int
    """When its outcome was known. ``sent_ns <= done_ns``."""
    outcome: Outcome
    code: int | None = None
    """Response code on the wire, status over HTTP; null if no reply came."""
    remark: str | None = None
    """Why it failed, in the server's or the exception's words, see :func:`short_remark`; null if ``ok``."""
    topic: str | None = None
    version: int | None = None
    """Version of the topic that the answer showed, where the workload has versions."""
    change: int | None = None
    """``register`` only: the change that it carried; null for a heartbeat that changes nothing."""
    attempts: int = 1
    """Tries the client library made inside this operation (a producer retries)."""


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One registration that changes the route table, sent to all nameservers at once."""

    change: int
    """Unique within the run, counted from 0."""
    broker: int
    topic: str
    begun_ns: int
    """When its sender began to send it to the first nameserver: the start of its clock, in every mode."""
    acked_ns: list[int | None]
    """Per nameserver index: when its success reply was read; null where none came."""
    outcomes: list[Outcome]
    """Per nameserver index."""
    version: int | None = None


class Visibility(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When one change became visible on one nameserver, as far as polling tells.

    The true instant lies in ``(unseen_ns or begun_ns of the change, seen_ns]``.
    """

    change: int
    nameserver: int
    seen_ns: int | None = None
    """When the reply to the first read that showed the change had come; null: not seen by ``gave_up_ns``."""
    unseen_ns: int | None = None
    """When the last read that did not show the change was **sent**; null if the first read showed it."""
    gave_up_ns: int | None = None
    """When polling stopped without having seen it; null if it was seen."""


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One fault that the harness caused."""

    kind: FaultKind
    targets: list[int]
    """Indexes of the nameservers that were killed."""
    begin_ns: int
    """Just before the first signal was sent."""
    end_ns: int | None = None
    """When the last restarted process had printed its ready line; null if none was restarted."""
    role: str | None = None
    """What the target was just before: ``leader``, ``follower``, ``independent``; null for several."""


class ProcessSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one process had used by one instant."""

    role: ProcessRole
    index: int
    """Nameserver or broker index; for generators their number. Survives a restart, the pid does not."""
    pid: int
    t_ns: int
    cpu_ns: int
    """User and system time since the process began, children not included."""
    rss_bytes: int
    threads: int | None = None


Event = Operation | Change | Visibility | Fault | ProcessSample

FILE_PREFIX: Final[dict[type[Event], str]] = {
    Operation: "ops",
    Change: "changes",
    Visibility: "visibility",
    Fault: "faults",
    ProcessSample: "processes",
}
"""Event kind to the beginning of its files' names: ``ops-PROCESS.jsonl``."""

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

    def record(self, event: Event) -> None:
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


class EventLog:
    """All event files of one process in one run folder, opened when their first event comes.

    A process that forks (Locust's ``--processes``) opens its log after the fork. Someone must call ``flush``
    every ``FLUSH_INTERVAL_NS`` (or ``flush_if_due`` in its loop): else a kill loses up to 64 KiB a file.
    """

    def __init__(self, folder: Path, process: str) -> None:
        """Write to ``folder``, an existing run folder, under the name ``process`` (letters, digits, ``_.-``).

        Raises:
            ValueError: If the name would not make a file name.
        """
        if _PROCESS_NAME.fullmatch(process) is None:
            raise ValueError(f"process name {process!r}: allowed are 1 to 64 letters, digits, '_', '.', '-'")
        self._folder = folder
        self._process = process
        self._recorders: dict[type[Event], Recorder] = {}
        self._flush_at_ns = 0

    def record(self, event: Event) -> None:
        """Append one event to the file of its kind."""
        recorder = self._recorders.get(type(event))
        if recorder is None:
            recorder = Recorder(event_file(self._folder, type(event), self._process))
            self._recorders[type(event)] = recorder
        recorder.record(event)

    def flush(self) -> None:
        """Write what is waiting."""
        for recorder in self._recorders.values():
            recorder.flush()

    def flush_if_due(self, now_ns: int) -> None:
        """Flush if ``FLUSH_INTERVAL_NS`` have passed since the last time."""
        if now_ns >= self._flush_at_ns:
            self.flush()
            self._flush_at_ns = now_ns + FLUSH_INTERVAL_NS

    def close(self) -> None:
        """Flush and close all files."""
        for recorder in self._recorders.values():
            recorder.close()

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def event_file(folder: Path, kind: type[Event], process: str) -> Path:
    """Return where events of ``kind`` by ``process`` go: ``FOLDER/ops-PROCESS.jsonl``."""
    return folder / f"{FILE_PREFIX[kind]}-{process}.jsonl"


def event_files(folder: Path, kind: type[Event]) -> list[Path]:
    """Return the files of one kind in a run folder, sorted; empty if there are none."""
    return sorted(folder.glob(f"{FILE_PREFIX[kind]}-*.jsonl"))
