"""Events of a run of the comparison: one struct for each kind of event, and their files.

Rules that hold for every event:

- Instants are integers of nanoseconds on ``CLOCK_MONOTONIC`` (``time.monotonic_ns()``), which all processes
  of one host share. Compare instants only within a run.
- Events do not repeat the constants of a run, because these are in the run's path and in its manifest (see
  :mod:`routekeeper.bench.runfolder`).
- An absent value is omitted or ``null``, never 0 or "".
- A file has one JSON object per line. Each process writes one file for each kind of event.
- Events do not say if an answer is right. A lookup with any route is ``ok``. The report finds wrong answers
  by means of the events :class:`Truth`.

This module reads no clock. The caller passes instants, so a test can set them.
"""

from pathlib import Path
from typing import Final, Literal

import msgspec

Op = Literal["lookup", "newcomer", "announce", "send", "send_once", "first_send"]
"""Kinds of operations.

- ``lookup``: a client asks for a route over a connection that stays open. If the server does not answer, the
  client itself tries the next server.
- ``newcomer``: a client that has just started asks one server, once.
- ``announce``: a broker registers at one server.
- ``send``: a producer sends a message, with RocketMQ's two retries.
- ``send_once``: a producer sends a message, without retries.
- ``first_send``: a producer sends to a new topic, again and again until the broker has accepted one message.
"""

Outcome = Literal["ok", "absent", "refused", "error", "unknown"]
"""Result of an operation as its caller sees it.

- ``ok``: the server answered with success. The answer may still be wrong.
- ``absent``: the server answered that there is no such route.
- ``refused``: the server said that it did not do the operation (``[NO_QUORUM]``, busy).
- ``error``: the operation was certainly not done, because the caller could send nothing, or because the
  answer has an error code.
- ``unknown``: the caller sent a request and got no answer by the deadline. A write may have been applied or
  not.
"""

Role = Literal["nameserver", "broker", "generator", "prober", "proxy", "harness", "machine"]
"""Kind of process. Samples of ``machine`` count the processor time of all programs since the machine started.
"""
Fact = Literal["up", "down", "cut", "healed", "changing", "changed"]
Observer = Literal["nameserver", "client"]
ViewState = Literal["routed", "absent", "refused", "silent", "end"]

SIMULATED_FROM: Final = 100
"""Lowest number of a broker that the generator simulates. The numbers of real brokers begin at 0."""


class Operation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One operation of the load. Operations with errors and unknown outcomes are recorded, too."""

    op: Op
    user: int
    """Number of the simulated user, unique within the run."""
    target: int | None = None
    """Index of the server that was asked last. For a message, it is the index of the broker."""
    due_ns: int
    """Instant at which the open-loop schedule planned the operation. Latency counts from here."""
    sent_ns: int
    """Instant at which the operation really began, before it connected. ``due_ns <= sent_ns``."""
    done_ns: int
    """Instant at which the outcome was known."""
    outcome: Outcome
    queued: bool = False
    """True if no user was free at the due instant, so that the operation had to wait."""
    code: int | None = None
    remark: str | None = None
    topic: str | None = None
    brokers: list[int] | None = None
    """Brokers that the answer lists for the topic, ascending, or null without an answer."""
    version: int | None = None
    """Version of a topic whose route changes: from a lookup's answer or a broker's announcement."""
    change: int | None = None
    """Number of the route change that an announcement carried, or null for a heartbeat without a change."""
    attempts: int = 1
    message: int | None = None
    """For a send, number of the message, unique within the run."""
    client_side: str | None = None
    """Group of clients to which the user belongs in a partition. Null if the user reaches all processes."""


class Truth(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One fact about a broker or a topic, which is certain because the harness caused it.

    A broker is dead from ``down`` until the next ``up``, and unreachable from ``cut`` until ``healed``. The
    delay of a topic's change counts from ``changing``.
    """

    subject: Literal["broker", "topic"]
    broker: int
    topic: str | None = None
    what: Fact
    version: int | None = None
    change: int | None = None
    t_ns: int


class View(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The route of a topic as one client or server shows it from some instant on. Each change has one row.

    The change happened in the interval ``(unseen_ns, seen_ns]``. The route is valid until the next row of the
    same observer, index and topic. The state ``end`` only marks the end of the observation.
    """

    observer: Observer
    index: int
    topic: str
    state: ViewState
    brokers: list[int] | None = None
    version: int | None = None
    unseen_ns: int | None = None
    """Last instant at which the earlier route was certainly shown, or null for the first row.

    For a server, the observer sent at this instant its last query whose answer had the earlier route.
    """
    seen_ns: int
    """Instant at which the observer had received the first answer with this route."""


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One fault that the harness caused. Its effects are measured in ``[begin_ns, until_ns)``."""

    n: int
    kind: str
    case: str
    targets: list[str]
    """Names of the processes that the fault hits: ``nameserver-0``, ``broker-2``."""
    role: str | None = None
    """Role of the first target before the fault: ``leader``, ``follower``, ``independent`` or ``broker``."""
    cut: list[list[str]] | None = None
    """Directions ``[from, to]`` between two processes, on which no bytes pass during the fault."""
    from_ns: int
    """Start of the quiet time ``[from_ns, begin_ns)``. The report compares the fault with this time."""
    begin_ns: int
    """Instant just before the first signal or cut."""
    healed_ns: int | None = None
    """Instant at which the harness ended the fault: it healed the links, continued the process, or began to
    restart it."""
    end_ns: int | None = None
    """Instant at which the last restarted process was ready, or ``healed_ns`` if no process restarts."""
    until_ns: int


class ProcessSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Resources that one process had used at one instant.

    The CPU time of a role (such as ``broker``) in an interval is a sum over pids. Each summand is the CPU
    time in the last row minus the CPU time in the first row. In a row ``start`` the CPU time is 0, and in a
    row ``exit`` it is exact. So processes that start or end in the interval are counted in full.
    """

    role: Role
    index: int
    """Number of the process within its role. A restart changes the pid, but not this number."""
    pid: int
    t_ns: int
    event: Literal["start", "sample", "exit"] = "sample"
    cpu_ns: int
    rss_bytes: int
    threads: int | None = None
    code: int | None = None
    """Exit code in a row ``exit``. It is negative if a signal ended the process."""
    wanted: bool | None = None
    """In a row ``exit``, true if the harness ended the process on purpose."""


class DiskSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Bytes that one server, or the device of all servers, had written at one instant.

    Use only the difference between two samples of the same server.
    """

    role: Role
    index: int
    """Index of the server, or 0 for the ``machine``."""
    t_ns: int
    """Start or end of a measured interval. The harness asks for the counts just before the interval begins
    and just after it ends, so that these requests cost nothing within the interval."""
    written_bytes: int | None = None
    """Bytes that the server has written to its files, from its own counter or from the sizes of the files."""
    syncs: int | None = None
    sectors: int | None = None
    """For the ``machine``, sectors of 512 bytes that the device has written for any program."""


class LinkSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Bytes that one link of the proxy has transferred from the run's beginning until an instant."""

    dialler: str
    acceptor: str
    t_ns: int
    forward_bytes: int
    """Bytes from the process that connected (dialler) to the process that accepted (acceptor)."""
    back_bytes: int


class Delivery(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One delivery of a message to a consumer. If a message is delivered twice, there are two rows."""

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
"""Maps the kind of an event to the beginning of its files' names: ``ops`` in ``ops-PROCESS.jsonl``."""


def instant_of(event: Event) -> int:
    """Return the instant that decides to which scenario an event belongs."""
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
    """Return the path of the file for events of ``kind`` by ``process``: ``FOLDER/ops-PROCESS.jsonl``."""
    return folder / f"{FILE_PREFIX[kind]}-{process}.jsonl"


def event_files(folder: Path, kind: type[Event]) -> list[Path]:
    """Return the files in a run folder with events of ``kind``, sorted by name."""
    return sorted(folder.glob(f"{FILE_PREFIX[kind]}-*.jsonl"))
