"""The report's tables as they come to the driver: one frozen row class each (pure).

Column names are those of :mod:`bench.report.transforms`; a row class that does not fit its table fails at
once.
"""

from dataclasses import dataclass, field
from pathlib import Path

from bench.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run folder that could be named; ``left_out`` says why it is in no figure, None if it is."""

    run: str
    folder: Path
    manifest: Manifest | None
    left_out: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One fault of one run; instants in ns since measuring began."""

    run: str
    fault: int
    kind: str
    role: str | None
    targets: list[int]
    begin_ns: int
    end_ns: int | None
    quiet_ns: int
    until_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """One bucket of a latency histogram."""

    run: str
    op: str
    measure: str
    value_ns: int
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Percentiles of one run."""

    run: str
    op: str
    measure: str
    n: int
    p50_ns: float
    p90_ns: float
    p99_ns: float
    p999_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """How many operations ended in one way."""

    run: str
    op: str
    fault: int | None
    steady: bool
    struck: bool
    outcome: str
    n: int
    slowest_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Second:
    """Operations due within one second."""

    run: str
    op: str
    second: int
    n: int
    ok: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """Failures that follow each other closely."""

    run: str
    fault: int
    op: str
    struck: bool
    outage: int
    begin_ns: int
    end_ns: int
    failed: int
    wrong: int
    unknown: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Visible:
    """When one change was visible on all nameservers."""

    run: str
    change: int
    begun_ns: int
    seen_on: int
    nameservers: int
    visible_ns: int | None
    unsure_ns: int | None
    acked_ns: int | None
    fault: int | None
    steady: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one process used."""

    run: str
    role: str
    index: int
    cpu_ns: int
    alive_ns: int
    cores: float | None
    rss_bytes_max: int
    pids: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why operations failed."""

    run: str
    op: str
    outcome: str
    code: int | None
    remark: str | None
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLines:
    """Lines of one event file."""

    run: str
    file: str
    lines: int
    bad: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Marts:
    """Everything the findings are computed from. Only runs that are not left out appear beyond ``runs``,
    ``files``."""

    runs: list[Run]
    files: list[FileLines] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    histogram: list[Bucket] = field(default_factory=list)
    percentiles: list[Percentiles] = field(default_factory=list)
    outcomes: list[Outcomes] = field(default_factory=list)
    seconds: list[Second] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    visible: list[Visible] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)
