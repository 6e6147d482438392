"""The Spark jobs that make the report's small tables from run folders.

- The JSON of each run is read only once. The folder ``silver/`` keeps the events in typed form.
- The driver receives the harness's own records: faults, and starts and ends of brokers.
- All other tables are computed in one job. So an intermediate result that several tables use is computed
  only once.
- The driver receives these small tables, and writes them to ``marts/``.

So the number of Spark jobs does not grow with the number of tables.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from routekeeper.bench.plan import CASES, NEW_TOPIC
from routekeeper.bench.report import backwards, costs, gold, requests, routes, silver, storage, told
from routekeeper.bench.report.tables import EVENTS, FAULTS, GAP, RUNS, WINDOW

REASONS_MAX: Final = 12
"""Number of the most frequent failure reasons that are kept for each run and operation.

Without this limit there could be as many different reasons as requests.
"""

_T = TypeVar("_T")


def compute(
    spark: SparkSession,
    roots: Sequence[str],
    out: str,
    *,
    small: bool = False,
    progress: Callable[[str], None],
) -> gold.Gold:
    """Read the runs at or below ``roots``, and return the tables. Update ``silver/`` below ``out``.

    Args:
        small: True if there is so little data that Spark spends more time on plans than on rows. Allowed only
            if executors run in the driver's process (see
            :func:`routekeeper.bench.report.session.in_one_process`).

    Raises:
        silver.NoRuns: If there is no run.
    """
    sources = silver.find(spark, roots)
    new = silver.new_ones(spark, sources, out)
    progress(f"report: {len(sources)} runs, {len(new)} to be read")
    sums = silver.sums(spark, new)
    if sums is not None:
        found_sums = gather({"sums": sums})["sums"].to_pylist()
        rows_of = [(row["run"], row["file"], row["lines"], row["crc32_sum"]) for row in found_sums]
        sources = silver.judge_sums(sources, new, rows_of)
        used = {source.run for source in sources if source.left_out is None}
        new = [source for source in new if source.run in used]
    silver.write_events(spark, new, out)
    found = silver.events(spark, out)
    if small:
        found = found.localCheckpoint(eager=False)  # so that the files are read once for all tables
    facts = gather(
        {
            "files": silver.line_quality(found),
            "faults": silver.of_kind(found, "faults"),
            "brokers": silver.of_kind(found, "truth").where(F.col("subject") == "broker"),
            "launches": silver.launches_of_brokers(found),
        }
    )
    known = {source.run for source in sources if source.left_out is None}
    files = [row for row in _rows(facts["files"], gold.Lines) if row.run in known]
    files.sort(key=lambda row: (row.run, row.file))
    sources = silver.judge_files(sources, [(row.run, row.file, row.lines, row.bad) for row in files])
    for source in sources:
        if source.left_out is not None:
            progress(f"report: left out {source.run}: {source.left_out}")
    caused = facts["faults"].to_pylist()
    faults = told.faults(caused, sources)
    gaps = told.gaps(facts["brokers"].to_pylist(), facts["launches"].to_pylist(), sources)
    gaps += told.gaps_of_sides(caused, sources)
    silver.note_sources(spark, sources, out)
    progress("report: computing tables")
    runs = _run_rows(spark, sources, faults, gaps)
    kinds = {row.file.partition("-")[0] for row in files}
    kept, frames = _frames(found, runs, kinds, new_topics=any(map(_is_new_topic, faults)), small=small)
    try:
        tables = gather(frames)
    finally:
        for frame in kept:
            frame.unpersist()
    tables["files"] = facts["files"].filter(pc.is_in(facts["files"]["run"], pa.array(sorted(known))))
    tables["faults"] = _table(faults, silver.arrow_schema(FAULTS))
    for name, table in tables.items():
        storage.write_table(spark, storage.join(out, "marts"), name, table)

    def rows(name: str, kind: type[_T]) -> list[_T]:
        return _rows(tables[name], kind)

    return gold.Gold(
        sources=sources,
        files=files,
        faults=faults,
        recoveries=rows("recoveries", gold.Recovery),
        outcomes=rows("outcomes", gold.Outcomes),
        timelines=rows("timelines", gold.Bin),
        latency=rows("latency_histogram", gold.Bucket),
        lateness=rows("lateness_histogram", gold.LateBucket),
        observed=rows("observed", gold.Observed),
        left_out=rows("left_out", gold.LeftOut),
        back=rows("back", gold.Back),
        given_up=rows("given_up", gold.GivenUp),
        disagreements=rows("disagreements", gold.Disagreement),
        unanswering=rows("unanswering", gold.Unanswering),
        backward=rows("backward", gold.Backward),
        visible=rows("visible_histogram", gold.VisibleBucket),
        staleness=rows("staleness", gold.StaleBin),
        currency=rows("currency", gold.Currency),
        new_topics=rows("new_topics", gold.NewTopic),
        costs=rows("costs", gold.Cost),
        disks=rows("disks", gold.DiskCost),
        fault_costs=rows("fault_costs", gold.FaultCost),
        links=rows("links", gold.LinkBytes),
        messages=rows("messages", gold.Messages),
        reasons=rows("reasons", gold.Reason),
    )


def _run_rows(
    spark: SparkSession,
    sources: Sequence[silver.Source],
    faults: Sequence[gold.Fault],
    gaps: Sequence[told.Gap],
) -> DataFrame:
    """Return the table ``RUNS``, with one row for each used run."""
    windows_of: dict[str, list[dict[str, object]]] = defaultdict(list)
    for fault in sorted(faults, key=lambda each: each.fault):
        windows_of[fault.run].append({name: getattr(fault, name) for name in _fields(WINDOW)})
    gaps_of: dict[str, list[dict[str, object]]] = defaultdict(list)
    for gap in gaps:
        gaps_of[gap.run].append({name: getattr(gap, name) for name in _fields(GAP)})
    rows = [
        (
            source.run,
            source.life,
            manifest.workload.get("load", {}).get("consumers", 0) > 0,
            manifest.measure_begin_ns,
            manifest.measure_end_ns,
            windows_of[source.run],
            gaps_of[source.run],
        )
        for source in sources
        if source.left_out is None and (manifest := source.manifest) is not None
    ]
    return silver.local_frame(spark, rows, RUNS)


def _fields(struct: str) -> list[str]:
    return [part.partition(":")[0] for part in struct.removeprefix("struct<").removesuffix(">").split(",")]


def _is_new_topic(fault: gold.Fault) -> bool:
    return fault.kind in CASES[NEW_TOPIC].values()


def _frames(
    found: DataFrame, runs: DataFrame, kinds: set[str], *, new_topics: bool, small: bool
) -> tuple[list[DataFrame], dict[str, DataFrame]]:
    """Return two results: the frames that Spark keeps until all tables are computed, and the tables by name.

    Args:
        kinds: Kinds of events that exist. A table that needs another kind is empty, and is not computed.
    """
    good = {kind: silver.of_kind(found, kind) for kind in EVENTS}
    kept: list[DataFrame] = []

    def keep(frame: DataFrame) -> DataFrame:
        """Return a frame that Spark computes only once, although several tables read it.

        If the frame does not fit into memory, Spark moves it to disk.

        With little data, the returned frame has no plan. With a plan, Spark would analyse the plan again for
        each table. On a cluster the frame keeps its plan, because Spark needs it to repeat the work of a lost
        executor.
        """
        if small:
            return frame.localCheckpoint(eager=False)
        kept.append(frame.persist())
        return frame

    spans = keep(routes.shown(good["views"], runs))
    changed = keep(routes.changes(good["truth"], runs))
    first = keep(routes.first_shown(changed, spans))
    ops = good["ops"].unionByName(requests.registrations(good["ops"]))
    judged = keep(requests.judged(ops, runs, requests.holders(good["ops"], runs), changed))
    given = keep(backwards.answers(good["views"], good["processes"], runs))
    handed = good["deliveries"]
    frames = {
        "recoveries": requests.recoveries(judged),
        "outcomes": requests.outcomes(judged),
        "timelines": requests.timelines(judged),
        "latency_histogram": requests.latency_histogram(judged),
        "lateness_histogram": requests.lateness_histogram(judged),
        "reasons": requests.most(requests.failure_reasons(judged), REASONS_MAX),
        "staleness": routes.staleness(judged, changed),
        "messages": requests.messages(judged, handed, runs),
        "new_topics": requests.new_topics(judged, handed, spans, runs),
        "observed": routes.observed(spans),
        "left_out": routes.left_out(spans, runs),
        "back": routes.back(spans, runs),
        "given_up": routes.given_up(spans, runs),
        "disagreements": routes.disagreements(spans, runs),
        "unanswering": routes.unanswering(spans, runs),
        "backward": backwards.backwards(given, good["truth"], runs),
        "visible_histogram": routes.visible_histogram(routes.visibility(first, runs)),
        "currency": routes.currency(first, changed, runs),
        "costs": costs.process_costs(good["processes"], runs),
        "disks": costs.disk_costs(good["disks"]),
        "fault_costs": costs.fault_costs(good["processes"], runs),
        "links": costs.link_bytes(good["links"], runs),
    }
    empty = {
        "new_topics": not new_topics,
        "links": "links" not in kinds,
        "disks": "disks" not in kinds,
        "backward": "processes" not in kinds,
        "costs": "processes" not in kinds,
        "fault_costs": "processes" not in kinds,
    }
    return kept, {name: frame.limit(0) if empty.get(name) else frame for name, frame in frames.items()}


def gather(frames: Mapping[str, DataFrame]) -> dict[str, pa.Table]:
    """Compute small tables in one job, and bring them to the driver.

    The rows of all tables become rows of one wide table. Tables share the columns of the wide table by type.
    For example, the second ``bigint`` column of every table uses the same column of the wide table. So few
    cells of a row are null.
    """
    shared: dict[str, list[str]] = {}  # maps a type to the columns of the wide table
    assigned: dict[str, dict[str, str]] = {}  # for each table: maps a column to its wide column
    for name, frame in frames.items():
        used: Counter[str] = Counter()
        assigned[name] = {}
        for column, kind in frame.dtypes:
            of_kind = shared.setdefault(kind, [])
            if used[kind] == len(of_kind):
                of_kind.append(f"c{sum(map(len, shared.values()))}")
            assigned[name][column] = of_kind[used[kind]]
            used[kind] += 1
    wide: list[DataFrame] = []
    for name, frame in frames.items():
        own = {target: column for column, target in assigned[name].items()}
        wide.append(
            frame.select(
                F.lit(name).alias("mart"),
                *(
                    F.col(own[target]).alias(target)
                    if target in own
                    else F.lit(None).cast(kind).alias(target)
                    for kind, of_kind in shared.items()
                    for target in of_kind
                ),
            )
        )
    table: pa.Table = reduce(DataFrame.union, wide).toArrow()
    marts = table["mart"]
    return {
        name: _in_order(
            table.select(list(columns.values())).rename_columns(list(columns)).filter(pc.equal(marts, name))
        )
        for name, columns in assigned.items()
    }


def _in_order(table: pa.Table) -> pa.Table:
    """Return the table with sorted rows. Tasks end in any order, but equal runs must make equal pages."""
    return table.sort_by(
        [(field.name, "ascending") for field in table.schema if not pa.types.is_nested(field.type)]
    )


def _rows(table: pa.Table, row: type[_T]) -> list[_T]:
    names = table.column_names
    every = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return [row(**dict(zip(names, values, strict=True))) for values in every]


def _table(rows: Sequence[object], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist([{name: getattr(row, name) for name in schema.names} for row in rows], schema)
