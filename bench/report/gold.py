"""The small tables for the driver, with one frozen row class each (pure).

Column names are those of the transforms; a row class that does not fit its table fails at once. None of them
grows with the number of requests.
"""

from dataclasses import dataclass, field

from routekeeper.bench.report.silver import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of one run; instants in ns since measuring began."""

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
    """The effect of one fault on one kind of operation; see :func:`.requests.recoveries`."""

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
    unknown: int
    waited: int
    late: int
    queued: int
    unreachable: int = 0
    """Routes that list a broker which the client cannot reach."""
    behind_ns: int
    first_ns: int | None
    recovered_ns: int | None
    slowest_ns: int | None
    stuck_ns: int
    lateness_ns: int
    gap_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """Outcomes of route reads before, during or after one fault, on one side of it."""

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
    """Operations due within one tenth of a second around a fault."""

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
    """Number of operations outside faults with one latency."""

    run: str
    phase: str
    op: str
    value_ns: int
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LateBucket:
    """Number of operations that the generator sent with one delay."""

    run: str
    phase: str
    value_ns: int
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Observers whose views were recorded."""

    run: str
    observer: str
    observers: int
    topics: int
    spans: int
    apart_ns: int | None = None
    """Median time between two readings, where a view changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """The time for which one observer listed a broker that was gone."""

    run: str
    fault: int
    observer: str
    index: int
    left_out_ns: int | None
    unsure_ns: int


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
    """Living brokers that observers left out."""

    run: str
    fault: int
    observer: str
    views: int
    given_up_ns: int
    brokers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """Time for which nameservers gave different answers: ``about`` broker lists, or queue counts."""

    run: str
    fault: int
    about: str
    disagree_ns: int
    topics: int
    agree_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswering:
    """Time for which at least one nameserver gave no answer around a fault."""

    run: str
    fault: int
    unanswering_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Backward:
    """Answers of servers that went backwards.

    ``fault``: the last fault that had begun, None before the first.
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
    """Number of changes by the time until they were acknowledged or visible; ``value_ns`` null: never."""

    run: str
    observer: str
    phase: str
    fault: int | None
    measure: str
    value_ns: int | None
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleBin:
    """Number of answers by the age of the change's acknowledgement; ``bin``: half powers of two of 1 ms."""

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
    """The number of observers that knew a change, by the time since it began."""

    run: str
    observer: str
    age_ms: int
    n: int
    current: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """The time until a new topic could be used; null: never."""

    run: str
    fault: int
    sent_ns: int | None
    read_ns: int | None
    brokers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Resources that one role used."""

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
    """Bytes and syncs of one role's files (``machine``: sectors of the device); null: not reported."""

    run: str
    role: str
    covered_ns: int
    written_bytes: int | None
    syncs: int | None
    sectors: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCost:
    """Resources that one role used in one fault's window."""

    run: str
    fault: int
    role: str
    cpu_ns: int
    started: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkBytes:
    """Bytes over one link."""

    run: str
    dialler: str
    acceptor: str
    covered_ns: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Outcomes of messages."""

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
    """Why operations failed."""

    run: str
    phase: str
    op: str
    outcome: str
    code: int | None
    remark: str | None
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Lines of one event file."""

    run: str
    file: str
    lines: int
    bad: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gold:
    """All data of the page. Except in ``sources`` and ``files``, only used runs appear."""

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
