"""Events of a run of the comparison: one struct for each kind of event, and their files.

Rules that hold for every event:

- Instants are integers of nanoseconds on ``CLOCK_MONOTONIC`` (``time.monotonic_ns()``), which all processes
  of one host share. They are compared only within a run.
- Constants of a run are not repeated in events: they are in the path and in the manifest, see
  :mod:`routekeeper.bench.runfolder`.
- An absent value is left out or ``null``, never 0 or "".
- One JSON object per line, one file per process and kind. A file is written by one process only.
- Events contain no judgement: a lookup with any answer is ``ok``. The truth is in ``truth``.

This module reads no clock: the caller passes instants, so a test can set them.
"""

from pathlib import Path
from typing import Final, Literal

import msgspec

Op = Literal["lookup", "newcomer", "announce", "send", "send_once", "first_send"]
"""``lookup``: a client asks for a route over a connection that it keeps, and tries the next server itself;
``newcomer``: a client that has just come asks one server, once; ``announce``: a broker's registration at one
server; ``send``: a message by a producer with RocketMQ's two retries; ``send_once``: the same without;
``first_send``: a producer tries to send to a new topic, until it has succeeded once."""

Outcome = Literal["ok", "absent", "refused", "error", "unknown"]
"""How an operation ended, as its caller sees it:

- ``ok``: answered with success, whether or not what it says is true;
- ``absent``: answered that there is no such route;
- ``refused``: the server said that it did not do it (``[NO_QUORUM]``, busy);
- ``error``: certainly not done for another reason: nothing could be sent, or an error code;
- ``unknown``: something was sent and no verdict came by the deadline. A write may have been applied or not.
"""

Role = Literal["nameserver", "broker", "generator", "prober", "proxy", "harness", "machine"]
"""``machine``: all that its processors did for any program since it was started."""
Fact = Literal["up", "down", "cut", "healed", "changing", "changed"]
Observer = Literal["nameserver", "client"]
ViewState = Literal["routed", "absent", "refused", "silent", "end"]

SIMULATED_FROM: Final = 100
"""Brokers that the generator plays are numbered from here; real ones from 0."""


class Operation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One operation of the load; errors and unknown outcomes are rows too."""

    op: Op
    user: int
    """Simulated user, unique within the run."""
    target: int | None = None
    """Index of the server asked last; for sends of the broker."""
    due_ns: int
    """Instant at which the open-loop schedule planned the operation. Latency counts from here."""
    sent_ns: int
    """Instant at which the operation really began, connecting included. ``due_ns <= sent_ns``."""
    done_ns: int
    """Instant at which the outcome was known."""
    outcome: Outcome
    queued: bool = False
    """True if no user was free at the due instant, so the operation waited: the load was at its limit."""
    code: int | None = None
    remark: str | None = None
    topic: str | None = None
    brokers: list[int] | None = None
    """Brokers that the answer lists for the topic, ascending; null without an answer."""
    version: int | None = None
    """Version of a changing topic: shown (lookups) or carried (announcements)."""
    change: int | None = None
    """The change that an announcement carried; null for a heartbeat that changes nothing."""
    attempts: int = 1
    message: int | None = None
    """Sends: which message, unique within the run."""
    client_side: str | None = None
    """Side of a partition on which the user sits; null if it reaches everybody."""


class Truth(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One fact that the harness caused, and therefore knows.

    A broker is dead from ``down`` until the next ``up``, unreachable from ``cut`` until ``healed``. The clock
    of a topic's change starts with ``changing``.
    """

    subject: Literal["broker", "topic"]
    broker: int
    topic: str | None = None
    what: Fact
    version: int | None = None
    change: int | None = None
    t_ns: int


class View(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One observer's view of a topic from some instant on: only changes of its readings.

    The true instant lies in ``(unseen_ns, seen_ns]``. The view is valid until the next row of the same
    observer, index and topic. The state ``end`` only marks the end of the observation.
    """

    observer: Observer
    index: int
    topic: str
    state: ViewState
    brokers: list[int] | None = None
    version: int | None = None
    unseen_ns: int | None = None
    """Instant at which the last reading that showed the former view was sent; null for the first view."""
    seen_ns: int
    """Instant at which the first answer with this view had been read."""


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One fault that the harness caused. Its window is ``[begin_ns, until_ns)``."""

    n: int
    kind: str
    case: str
    targets: list[str]
    """Processes by name: ``nameserver-0``, ``broker-2``."""
    role: str | None = None
    """Role of the first target before the fault: ``leader``, ``follower``, ``independent`` or ``broker``."""
    cut: list[list[str]] | None = None
    """Directions ``[from, to]`` that let nothing through."""
    from_ns: int
    """Begin of the quiet time ``[from_ns, begin_ns)``, with which the window is compared."""
    begin_ns: int
    """Just before the first signal or cut."""
    healed_ns: int | None = None
    """Instant at which the fault was taken back: links healed, process continued, or its restart begun."""
    end_ns: int | None = None
    """Instant of the last restarted process's ready line; ``healed_ns`` if no process restarts."""
    until_ns: int


class ProcessSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Resources that one process had used at one instant.

    The CPU of a span is the sum over pids of the difference between last and first row, where ``start`` is
    0 and ``exit`` is exact, so that processes that come and go are counted in full.
    """

    role: Role
    index: int
    """Survives a restart; the pid does not."""
    pid: int
    t_ns: int
    event: Literal["start", "sample", "exit"] = "sample"
    cpu_ns: int
    rss_bytes: int
    threads: int | None = None
    code: int | None = None
    """``exit``: exit code, negative for a signal."""
    wanted: bool | None = None
    """``exit``: whether the harness ended it."""


class DiskSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Bytes that one server, or the device of all servers, had written at one instant.

    Use only differences between two samples of one server.
    """

    role: Role
    index: int
    """Of a server; 0 for the ``machine``."""
    t_ns: int
    """Begin or end of what is measured; it is read just outside, so that reading it costs nothing there."""
    written_bytes: int | None = None
    """To its files, as it says itself or as its files show."""
    syncs: int | None = None
    sectors: int | None = None
    """``machine``: sectors of 512 bytes that the device has written, for whomever."""


class LinkSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Bytes that passed one link of the proxy from the run's beginning to an instant."""

    dialler: str
    acceptor: str
    t_ns: int
    forward_bytes: int
    """Bytes from the dialler to the acceptor."""
    back_bytes: int


class Delivery(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One delivery of a message to a consumer; repeated deliveries are rows of their own."""

    message: int
    user: int
    t_ns: int


Event = Operation | Truth | View | Fault | ProcessSample | DiskSample | LinkSample | Delivery

FILE_PREFIX: Final[dict[type[Event], str]] = {
    Operation: "ops",
    Truth: "truth",
    View: "views",
    Fault: "faults",
    ProcessSample: "processes",
    DiskSample: "disks",
    LinkSample: "links",
    Delivery: "deliveries",
}
"""Event kind to the beginning of its files' names: ``ops-PROCESS.jsonl``."""


def instant_of(event: Event) -> int:
    """Return the instant that decides to which slot an event belongs."""
    match event:
        case Operation():
            return event.due_ns
        case Truth() | ProcessSample() | DiskSample() | LinkSample() | Delivery():
            return event.t_ns
        case View():
            return event.seen_ns
        case Fault():
            return event.begin_ns


def event_file(folder: Path, kind: type[Event], process: str) -> Path:
    """Return the path for events of ``kind`` by ``process``: ``FOLDER/ops-PROCESS.jsonl``."""
    return folder / f"{FILE_PREFIX[kind]}-{process}.jsonl"


def event_files(folder: Path, kind: type[Event]) -> list[Path]:
    """Return the files of one kind in a run folder, sorted; empty if there are none."""
    return sorted(folder.glob(f"{FILE_PREFIX[kind]}-*.jsonl"))
