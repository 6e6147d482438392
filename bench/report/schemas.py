"""Schemas of the event files and of the report's tables, as Spark DDL.

Event columns repeat :mod:`bench.samples` field by field; ``_bad`` takes lines that are no JSON or hold wrong
types. ``run`` names a run in every table: ``MODE/SCENARIO/REP``, behind ``N:`` if there are several result
folders.
"""

from typing import Final

from bench.samples import Change, Event, Fault, Operation, ProcessSample, Visibility

BAD: Final = "_bad"
PARTITION_COLUMNS: Final = "mode string, scenario string, rep int"
"""Columns that come from a run folder's path."""

OPS_SCHEMA: Final = (
    "op string, worker int, target int, due_ns bigint, sent_ns bigint, done_ns bigint, outcome string, "
    "code int, remark string, topic string, version bigint, change bigint, attempts int"
)
CHANGES_SCHEMA: Final = (
    "change bigint, broker int, topic string, begun_ns bigint, acked_ns array<bigint>, "
    "outcomes array<string>, version bigint"
)
VISIBILITY_SCHEMA: Final = (
    "change bigint, nameserver int, seen_ns bigint, unseen_ns bigint, gave_up_ns bigint"
)
FAULTS_SCHEMA: Final = "kind string, targets array<int>, begin_ns bigint, end_ns bigint, role string"
PROCESSES_SCHEMA: Final = (
    "role string, index int, pid int, t_ns bigint, cpu_ns bigint, rss_bytes bigint, threads int"
)

EVENT_SCHEMAS: Final[dict[type[Event], str]] = {
    Operation: OPS_SCHEMA,
    Change: CHANGES_SCHEMA,
    Visibility: VISIBILITY_SCHEMA,
    Fault: FAULTS_SCHEMA,
    ProcessSample: PROCESSES_SCHEMA,
}

REQUIRED: Final[dict[type[Event], tuple[str, ...]]] = {
    Operation: ("op", "target", "due_ns", "sent_ns", "done_ns", "outcome"),
    Change: ("change", "begun_ns", "acked_ns"),
    Visibility: ("change", "nameserver"),
    Fault: ("kind", "targets", "begin_ns"),
    ProcessSample: ("role", "index", "pid", "t_ns", "cpu_ns", "rss_bytes"),
}
"""Columns without which a line says nothing: a line that lacks one is counted as bad."""

RUNS_SCHEMA: Final = (
    "run string, nameservers int, measure_begin_ns bigint, measure_end_ns bigint, settle_ns bigint"
)
"""What the transforms need of the manifests: one row per run, instants as in the events."""

WINDOWS_SCHEMA: Final = (
    "run string, fault int, kind string, role string, targets array<int>, begin_ns bigint, end_ns bigint, "
    "quiet_ns bigint, until_ns bigint"
)
"""Faults in the order of their begin, counted from 1; instants since the run's measure begin."""

OPERATIONS_SCHEMA: Final = (
    "run string, op string, target int, due_ns bigint, sent_ns bigint, done_ns bigint, outcome string, "
    "code int, remark string, attempts int, fault int, steady boolean, struck boolean"
)
"""Measured operations; instants since the run's measure begin."""
