"""Columns of event files, and of tables that several functions use, as Spark schemas (DDL).

The columns of event files are the fields of :mod:`routekeeper.bench.events`. In every table, ``run`` names a
run as ``BATCH/SERIES/SCENARIO/BLOCK/ARM``. A batch is one result folder. In event files, instants are ns on
the host's monotonic clock. In all other tables, instants are ns from the start of the run's measured time.
"""

from collections.abc import Iterable
from typing import Final

BAD: Final = "_bad"
"""Name of the column for lines that are not JSON or have wrong types."""

RUN_KEYS: Final = ("batch", "series", "scenario", "block", "arm")
PATH_COLUMNS: Final = "series string, scenario string, block int, arm string"
"""Columns whose values come from a run folder's path."""

EVENTS: Final[dict[str, str]] = {
    "ops": (
        "op string, user int, target int, due_ns bigint, sent_ns bigint, done_ns bigint, queued boolean, "
        "outcome string, code int, remark string, topic string, brokers array<int>, version int, change int, "
        "attempts int, message bigint, client_side string"
    ),
    "truth": ("subject string, broker int, topic string, what string, version int, change int, t_ns bigint"),
    "views": (
        "observer string, index int, topic string, brokers array<int>, version int, state string, "
        "unseen_ns bigint, seen_ns bigint"
    ),
    "faults": (
        "n int, kind string, case string, targets array<string>, role string, cut array<array<string>>, "
        "begin_ns bigint, healed_ns bigint, end_ns bigint, from_ns bigint, until_ns bigint"
    ),
    "processes": (
        "role string, index int, pid int, t_ns bigint, event string, cpu_ns bigint, rss_bytes bigint, "
        "threads int, code int, wanted boolean"
    ),
    "disks": "role string, index int, t_ns bigint, written_bytes bigint, syncs bigint, sectors bigint",
    "links": "dialler string, acceptor string, t_ns bigint, forward_bytes bigint, back_bytes bigint",
    "deliveries": "message bigint, user int, t_ns bigint",
}
"""Maps each kind of event to its columns. The name of an event file begins with the kind."""

REQUIRED: Final[dict[str, tuple[str, ...]]] = {
    "ops": ("op", "due_ns", "sent_ns", "done_ns", "outcome"),
    "truth": ("subject", "what", "t_ns"),
    "views": ("observer", "index", "topic", "state", "seen_ns"),
    "faults": ("n", "kind", "case", "targets", "begin_ns", "from_ns", "until_ns"),
    "processes": ("role", "index", "pid", "t_ns", "cpu_ns"),
    "disks": ("role", "index", "t_ns"),
    "links": ("dialler", "acceptor", "t_ns"),
    "deliveries": ("message", "t_ns"),
}
"""Maps each kind of event to its required columns. A line that lacks a required column is bad."""

WINDOW: Final = (
    "struct<fault:int,from_ns:bigint,begin_ns:bigint,healed_ns:bigint,until_ns:bigint,targets:array<string>>"
)
"""Fields of one fault, for the functions that compute tables of requests and of changes.

:data:`FAULTS` describes the fields.
"""
GAP: Final = "struct<broker:int,side:string,from_ns:bigint,launched_ns:bigint,to_ns:bigint>"
"""Fields of a gap: a time in which a broker was dead, or in which the clients of a side could not reach it.

``side`` is null if no client could reach the broker. Instants count from the start of the run's measured
time. ``to_ns`` is a very large number if the broker did not come back.
"""

RUNS: Final = (
    "run string, life string, consumes boolean, measure_begin_ns bigint, measure_end_ns bigint, "
    f"windows array<{WINDOW}>, gaps array<{GAP}>"
)
"""Facts about the used runs, with one row per run. Most functions that compute tables need them.

``life`` names the cluster that made the run, from its start to its end. One cluster can make several runs,
one after the other, and all these runs have the same ``life``. The report needs ``life`` because a broker's
state, or a route that an observer shows, can last from one run into the next.

``consumes`` is true if a consumer group reads the messages that the run's producers send.

``windows`` has the faults of the run. ``gaps`` has the times in which brokers could not be reached. The
number of windows and gaps does not grow with the load.
"""

FAULTS: Final = (
    "run string, fault int, kind string, case string, role string, targets array<string>, "
    "from_ns bigint, begin_ns bigint, healed_ns bigint, end_ns bigint, until_ns bigint"
)
"""Faults of the used runs. Instants count from the start of the run's measured time.

The window of a fault is the time [from_ns, until_ns). It has two parts: the quiet time before the fault,
[from_ns, begin_ns), and the time in which the report looks for effects of the fault, [begin_ns, until_ns).
"""

REQUESTS: Final = (
    "run string, op string, target int, side string, topic string, due_ns bigint, sent_ns bigint, "
    "done_ns bigint, outcome string, code int, remark string, verdict string, behind_ns bigint, "
    "changing boolean, queued boolean, version int, message bigint, fault int, phase string, "
    "offset_ns bigint, healed boolean, struck boolean, unreachable boolean"
)
"""Measured operations with verdicts (see :func:`routekeeper.bench.report.requests.judged`)."""


def columns(schema: str) -> list[str]:
    """Return the column names of a DDL schema."""
    return list(typed(schema))


def typed(schema: str) -> dict[str, str]:
    """Return the columns of a DDL schema, with their types."""
    return dict(part.split() for part in schema.split(", "))


def merged(schemas: Iterable[str]) -> str:
    """Return a schema with the columns of all schemas.

    Columns of the same name become one column, so they must have the same type.
    """
    every: dict[str, str] = {}
    for schema in schemas:
        for name, kind in typed(schema).items():
            assert every.setdefault(name, kind) == kind, f"{name} is {every[name]} and {kind}"
    return ", ".join(f"{name} {kind}" for name, kind in every.items())


EVENT: Final = merged(EVENTS.values())
"""Columns of all kinds of events together, because Spark reads and stores all kinds in one table."""
