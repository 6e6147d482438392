"""The small tables that Spark's driver holds. Each table has a frozen class for its rows.

The fields of a class are the columns of a table that Spark computes. If the columns differ from the fields,
the construction of the first row raises an error. The size of a table does not depend on the number of
requests. This module does no I/O.
"""

from dataclasses import dataclass, field

from routekeeper.bench.report.silver import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of one run. Instants are nanoseconds since the start of the run's measured time."""

    run: str
    fault: int
    kind: str
    case: str
    role: str | None
    targets: list[str]
    from_ns: int
    begin_ns: int
    healed_ns: int | None
    end_ns: int | None
    until_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """The effect of one fault on one kind of operation (see :func:`.requests.recoveries`)."""

    run: str
    fault: int
    op: str
    scope: str
    n: int
    right: int
    stale: int
    missing: int
    ghost: int
    refused: int
    failed: int
    waited: int
    late: int
    queued: int
    unreachable: int = 0
    """Number of routes that list a broker which the client cannot reach."""
    behind_ns: int
    first_ns: int | None
    recovered_ns: int | None
    slowest_ns: int | None
    lateness_ns: int
    gap_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """Outcomes of route reads before, during or after one fault, for clients on one side of a partition.

    ``side``: None if the clients have no side.
    """

    run: str
    fault: int
    stage: str
    op: str
    side: str | None
    n: int
    wrong: int
    right: int
    stale: int
    returning: int
    refused: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Outcomes of operations that were due in the same tenth of a second, counted from the fault's start."""

    run: str
    fault: int
    op: str
    bin: int
    n: int
    right: int
    failed: int
    slowest_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Number of operations outside of faults whose latency lies in one bucket.

    ``value_ns``: the bucket's middle. None for operations that failed or were refused.
    """

    run: str
    phase: str
    op: str
    value_ns: int | None
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LateBucket:
    """Number of operations whose delay lies in one bucket.

    The delay is the time from an operation's due instant until the generator sent it. ``value_ns``: the
    bucket's middle.
    """

    run: str
    phase: str
    value_ns: int
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The observers of one kind in one run."""

    run: str
    observer: str
    apart_ns: int | None = None
    """Median time in ns from the last reading before a route changed to the first reading afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """The time for which one observer listed a broker that was gone."""

    run: str
    fault: int
    observer: str
    index: int
    left_out_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Back:
    """The time for which one observer did not list a broker that had come back."""

    run: str
    fault: int
    observer: str
    index: int
    back_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """Living brokers that observers of one kind did not list, although no fault had hit the brokers."""

    run: str
    fault: int
    observer: str
    given_up_ns: int
    brokers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """Time for which nameservers gave different answers.

    - ``about``: ``brokers`` (different lists of brokers) or ``queues`` (different numbers of queues).
    - ``agree_ns``: None if a disagreement lasted beyond the fault's window.
    """

    run: str
    fault: int
    about: str
    disagree_ns: int
    topics: int
    agree_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswering:
    """Time for which at least one nameserver gave no answer around a fault."""

    run: str
    fault: int
    unanswering_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Backward:
    """Answers of servers that went backwards, which means that they showed an older state than before.

    ``fault``: the last fault that began before the answer was read, or None if there was none.
    """

    run: str
    fault: int | None
    compared: int
    fell: int
    relisted: int
    servers: int
    longest_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleBucket:
    """Number of changes whose time until acknowledgement, or until visibility, lies in one bucket.

    ``value_ns``: the bucket's middle. None for changes that were never acknowledged, or were never visible.
    """

    run: str
    observer: str
    phase: str
    fault: int | None
    measure: str
    value_ns: int | None
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleBin:
    """Numbers of all answers, and of up-to-date answers (``current``), that have about the same age.

    - The age of a stale answer is the time from the acknowledgement of a later version until the request was
      sent.
    - The age of an up-to-date answer is the time from the acknowledgement of its own version until the
      request was sent.
    - ``bin``: twice the binary logarithm of the age in milliseconds, rounded down.
    """

    run: str
    fault: int | None
    phase: str
    side: str | None
    op: str
    bin: int
    n: int
    current: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Currency:
    """Numbers of observers that knew a change at one age of the change, summed over all changes.

    The age of a change is the time since the change began. When a later change of the topic begins, the
    earlier change is no longer counted.

    - ``n``: number of pairs of a change and an observer.
    - ``current``: number of those pairs in which the observer knew the change.
    """

    run: str
    observer: str
    age_ms: int
    n: int
    current: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """Times until a new topic could be used. None means never.

    - ``sent_ns``: until all producers had sent to the topic.
    - ``read_ns``: until the consumer group had read from the topic.
    """

    run: str
    fault: int
    sent_ns: int | None
    read_ns: int | None
    brokers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Resources that one role used in one run."""

    run: str
    role: str
    covered_ns: int
    cpu_ns: int
    rss_bytes: int
    pids: int
    processes: int
    busiest: float | None
    died: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskCost:
    """Bytes that one role wrote to files in one run, and its syncs. The role ``machine`` has sectors instead.

    A figure is None if it was not reported.
    """

    run: str
    role: str
    covered_ns: int
    written_bytes: int | None
    syncs: int | None
    sectors: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCost:
    """Resources that one role used from the start of one fault to the end of the fault's window."""

    run: str
    fault: int
    role: str
    cpu_ns: int
    started: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkBytes:
    """Bytes that one link carried in one run, in both directions together."""

    run: str
    dialler: str
    acceptor: str
    covered_ns: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Outcomes of the messages of one run, fault and kind of producer."""

    run: str
    fault: int | None
    op: str
    sent: int
    failed: int
    unknown: int
    lost: int
    repeated: int
    late: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A reason why operations failed, with the number of these operations."""

    run: str
    phase: str
    op: str
    outcome: str
    code: int | None
    remark: str | None
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Number of all lines, and number of bad lines, in one event file."""

    run: str
    file: str
    lines: int
    bad: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gold:
    """All data of the page. Runs that are not used appear only in ``sources`` and ``files``."""

    sources: list[Source]
    files: list[Lines] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    outcomes: list[Outcomes] = field(default_factory=list)
    timelines: list[Bin] = field(default_factory=list)
    latency: list[Bucket] = field(default_factory=list)
    lateness: list[LateBucket] = field(default_factory=list)
    observed: list[Observed] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    back: list[Back] = field(default_factory=list)
    given_up: list[GivenUp] = field(default_factory=list)
    disagreements: list[Disagreement] = field(default_factory=list)
    unanswering: list[Unanswering] = field(default_factory=list)
    backward: list[Backward] = field(default_factory=list)
    visible: list[VisibleBucket] = field(default_factory=list)
    staleness: list[StaleBin] = field(default_factory=list)
    currency: list[Currency] = field(default_factory=list)
    new_topics: list[NewTopic] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)
    disks: list[DiskCost] = field(default_factory=list)
    fault_costs: list[FaultCost] = field(default_factory=list)
    links: list[LinkBytes] = field(default_factory=list)
    messages: list[Messages] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)
