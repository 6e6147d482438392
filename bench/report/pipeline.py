"""From run folders to the report's small tables: which Spark job reads what, and what it leaves behind.

JSON is read once per run (``silver/``), requests are judged once (``silver/requests``), everything else is
computed from those. The small tables come to the driver, which writes them to ``marts/``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.report import costs, gold, requests, routes, silver, storage
from bench.report.session import Together
from bench.report.tables import EVENTS, FAULTS, PATH_COLUMNS, REQUESTS, RUN_KEYS, columns

if TYPE_CHECKING:
    from concurrent.futures import Future

REASONS_MAX: Final = 12
"""Reasons kept per run and operation: the most frequent ones; remarks could be as many as requests."""

_T = TypeVar("_T")


def compute(
    spark: SparkSession, roots: Sequence[str], out: str, *, progress: Callable[[str], None]
) -> gold.Gold:
    """Bring ``silver/`` below ``out`` up to date with the runs at or below ``roots``, and return the tables.

    Raises:
        silver.NoRuns: If there is no run.
    """
    sources = silver.find(spark, roots)
    new = silver.new_ones(spark, sources, out)
    progress(f"report: {len(sources)} runs, {len(new)} to be read")
    if new:
        silver.write_events(spark, new, out)
    runs = silver.run_rows(spark, sources)
    found = {kind: silver.events(spark, out, kind) for kind in EVENTS}
    quality: DataFrame | None = None
    for each in found.values():
        counted = silver.line_quality(each)
        quality = counted if quality is None else quality.unionByName(counted)
    assert quality is not None
    known = {source.run for source in sources if source.left_out is None}
    files = collect(spark, quality.orderBy("run", "file"), gold.Lines, out, "files")
    files = [row for row in files if row.run in known]
    sources = silver.judge_files(sources, [(row.run, row.file, row.lines, row.bad) for row in files])
    runs = silver.run_rows(spark, sources)
    good = {kind: each.where("good").drop("file", "good") for kind, each in found.items()}

    faults = collect(
        spark, requests.fault_windows(good["faults"], runs).orderBy("run", "fault"), gold.Fault, out, "faults"
    )
    windows = silver.local_frame(
        spark, [tuple(getattr(row, name) for name in columns(FAULTS)) for row in faults], FAULTS
    )
    if new:
        progress(f"report: judging the requests of {len(new)} runs")
        _judge(
            spark,
            [source for source in sources if source.run in {each.run for each in new}],
            good,
            windows,
            out,
        )
    silver.note_sources(spark, sources, out)
    progress("report: computing tables")
    judged = silver.read(spark, out, "requests", REQUESTS).join(
        F.broadcast(runs.select("run")), on="run", how="inner"
    )
    # Each is read by several tables; none of them grows with requests.
    spans = routes.shown(good["views"], runs).persist()
    changed = routes.changes(good["truth"], runs).persist()
    gaps = requests.broker_gaps(good["truth"], runs).persist()
    visible = routes.visibility(changed, spans, runs, windows)

    with Together() as together:

        def table(frame: DataFrame, row: type[_T], name: str) -> Future[list[_T]]:
            return together.submit(collect, spark, frame, row, out, name)

        recoveries = table(requests.recoveries(judged), gold.Recovery, "recoveries")
        timelines = table(requests.timelines(judged), gold.Bin, "timelines")
        latency = table(requests.latency_histogram(judged), gold.Bucket, "latency_histogram")
        observed = table(routes.observed(spans), gold.Observed, "observed")
        left_out = table(routes.left_out(spans, windows), gold.LeftOut, "left_out")
        back = table(routes.back(spans, windows, gaps), gold.Back, "back")
        given_up = table(routes.given_up(spans, windows), gold.GivenUp, "given_up")
        disagreements = table(routes.disagreements(spans, windows), gold.Disagreement, "disagreements")
        seen = table(routes.visible_histogram(visible), gold.VisibleBucket, "visible_histogram")
        staleness = table(routes.staleness(judged, changed), gold.StaleBin, "staleness")
        currency = table(routes.currency(changed, spans, runs), gold.Currency, "currency")
        topics = requests.new_topics(judged, good["deliveries"], spans, runs, windows)
        brought = table(topics, gold.NewTopic, "new_topics")
        used = table(costs.process_costs(good["processes"], runs), gold.Cost, "costs")
        links = table(costs.link_bytes(good["links"], runs), gold.LinkBytes, "links")
        messages = table(requests.messages(judged, good["deliveries"], runs), gold.Messages, "messages")
        failures = requests.most(requests.failure_reasons(judged), REASONS_MAX)
        reasons = table(failures, gold.Reason, "reasons")
    for kept in (spans, changed, gaps):
        kept.unpersist()
    return gold.Gold(
        sources=sources,
        files=files,
        faults=faults,
        recoveries=recoveries.result(),
        timelines=timelines.result(),
        latency=latency.result(),
        observed=observed.result(),
        left_out=left_out.result(),
        back=back.result(),
        given_up=given_up.result(),
        disagreements=disagreements.result(),
        visible=seen.result(),
        staleness=staleness.result(),
        currency=currency.result(),
        new_topics=brought.result(),
        costs=used.result(),
        links=links.result(),
        messages=messages.result(),
        reasons=reasons.result(),
    )


def _judge(
    spark: SparkSession,
    sources: Sequence[silver.Source],
    good: dict[str, DataFrame],
    windows: DataFrame,
    out: str,
) -> None:
    runs = silver.run_rows(spark, sources)
    ops = good["ops"].join(F.broadcast(runs.select("run")), on="run", how="inner")
    every = ops.unionByName(requests.registrations(ops))
    gaps = requests.broker_gaps(good["truth"], runs)
    judged = requests.judged(every, runs, windows, gaps)
    keys = runs.select("run", *RUN_KEYS)
    wanted = [name for name in columns(REQUESTS) if name != "run"]
    silver.write(
        judged.join(F.broadcast(keys), on="run", how="inner").select(
            *wanted, "batch", *columns(PATH_COLUMNS)
        ),
        storage.join(out, "silver", "requests"),
    )


def collect(spark: SparkSession, frame: DataFrame, row: type[_T], out: str, name: str) -> list[_T]:
    """Bring a small table to the driver, write it below ``out/marts`` and return it as ``row`` objects."""
    table: pa.Table = frame.toArrow()
    storage.write_table(spark, storage.join(out, "marts"), name, table)
    rows: list[dict[str, Any]] = table.to_pylist()
    return [row(**values) for values in rows]
