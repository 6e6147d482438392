"""From event rows to the report's tables: pure functions ``DataFrame -> DataFrame``.

They use built-in expressions only, so that a cluster's executors need nothing of ours. None reads, writes or
owns a session. Instants are bigint ns; after :func:`operations` and its siblings they count from the run's
measure begin.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from bench.report.schemas import BAD

HISTOGRAM_BITS: Final = 7
"""Buckets per power of two: 2 ** 7, so that a bucket's middle is within 0.4 % of each value in it."""

QUANTILES: Final = (0.5, 0.9, 0.99, 0.999)
OUTAGE_GAP_NS_MIN: Final = 1_000_000_000
"""Failures closer together than this are one outage, or than three times the interval of the requests."""

_SECOND_NS: Final = 1_000_000_000


def checked(raw: DataFrame, required: tuple[str, ...]) -> DataFrame:
    """Mark the rows that can be used.

    In:  event rows with ``_bad``.
    Out: the same columns without ``_bad``; good boolean, false where the line was damaged or lacks a column
        that every line must have.
    """
    good = F.col(BAD).isNull()
    for name in required:
        good = good & F.col(name).isNotNull()
    return raw.select(*(name for name in raw.columns if name != BAD), good.alias("good"))


def line_quality(events: DataFrame) -> DataFrame:
    """Count lines and bad lines.

    In:  run, file, good.
    Out: one row per (run, file): lines long, bad long.
    """
    bad = F.sum(F.when(F.col("good"), 0).otherwise(1))
    return (
        events.groupBy("run", "file")
        .agg(F.count("*").alias("lines"), bad.alias("bad"))
        .select("run", "file", "lines", "bad")
    )


def fault_windows(faults: DataFrame, runs: DataFrame) -> DataFrame:
    """Number the faults of each run and say how long each one's effects are looked for.

    In:  good fault rows with ``run``; ``RUNS_SCHEMA``.
    Out: ``WINDOWS_SCHEMA``. quiet_ns: end of the fault and the settling time after it, at most until_ns;
        without an end it is until_ns. until_ns: begin of the next fault, or the end of measuring.
    """
    in_order = Window.partitionBy("run").orderBy("begin_ns", "kind")
    numbered = faults.join(F.broadcast(runs), on="run", how="inner").select(
        "run",
        F.row_number().over(in_order).alias("fault"),
        "kind",
        "role",
        "targets",
        (F.col("begin_ns") - F.col("measure_begin_ns")).alias("begin_ns"),
        (F.col("end_ns") - F.col("measure_begin_ns")).alias("end_ns"),
        "settle_ns",
        (
            F.coalesce(F.lead("begin_ns").over(in_order), F.col("measure_end_ns")) - F.col("measure_begin_ns")
        ).alias("until_ns"),
    )
    quiet = F.least(F.coalesce(F.col("end_ns") + F.col("settle_ns"), F.col("until_ns")), F.col("until_ns"))
    return numbered.select(
        "run",
        "fault",
        "kind",
        "role",
        "targets",
        "begin_ns",
        "end_ns",
        quiet.alias("quiet_ns"),
        "until_ns",
    )


def operations(events: DataFrame, runs: DataFrame, windows: DataFrame) -> DataFrame:
    """Keep the measured operations and say which fault, if any, each belongs to.

    An operation belongs to the last fault that began before it was done: what was in flight when a process
    was killed counts for the kill.

    In:  operation rows with run, good; ``RUNS_SCHEMA``; ``WINDOWS_SCHEMA``.
    Out: ``OPERATIONS_SCHEMA``. fault: null before the first one. steady: due before any fault, or when the
        fault had settled. struck: it went to a nameserver that this fault killed (never true of sends).
    """
    due, done = F.col("due_ns"), F.col("done_ns")
    last_fault = _last_fault(done)
    return (
        _since_measuring(events.where(F.col("good")), runs, ["due_ns", "sent_ns", "done_ns"])
        .where((due >= 0) & (due < F.col("measured_ns")))
        .join(F.broadcast(_windows_by_run(windows)), on="run", how="left")
        .withColumn("last_fault", last_fault)
        .select(
            "run",
            "op",
            "target",
            "due_ns",
            "sent_ns",
            "done_ns",
            "outcome",
            "code",
            "remark",
            F.coalesce("attempts", F.lit(1)).alias("attempts"),
            F.col("last_fault.fault").alias("fault"),
            F.coalesce(due >= F.col("last_fault.quiet_ns"), F.lit(True)).alias("steady"),
            (
                (F.col("op") != "send")
                & F.coalesce(F.array_contains("last_fault.targets", F.col("target")), F.lit(False))
            ).alias("struck"),
        )
    )


def latency_histogram(ops: DataFrame) -> DataFrame:
    """Count successful steady operations in log-linear buckets; rows of several runs add up.

    In:  ``OPERATIONS_SCHEMA``.
    Out: one row per (run, op, measure, value_ns): n long. measure: ``latency`` from due to done, ``service``
        from sent to done, ``lateness`` from due to sent. value_ns bigint: the middle of the bucket.
    """
    spans = F.array(
        F.struct(F.lit("latency").alias("measure"), (F.col("done_ns") - F.col("due_ns")).alias("span_ns")),
        F.struct(F.lit("service").alias("measure"), (F.col("done_ns") - F.col("sent_ns")).alias("span_ns")),
        F.struct(F.lit("lateness").alias("measure"), (F.col("sent_ns") - F.col("due_ns")).alias("span_ns")),
    )
    magnitude = F.floor(F.log2(F.greatest(F.col("span_ns"), F.lit(1)).cast("double"))).cast("int")
    exponent = F.greatest(magnitude - F.lit(HISTOGRAM_BITS), F.lit(0))
    mantissa = F.call_function("shiftright", F.col("span_ns"), F.col("exponent"))
    width = F.call_function("shiftleft", F.lit(1).cast("bigint"), F.col("exponent"))
    return (
        ops.where(F.col("steady") & (F.col("outcome") == "ok"))
        .select("run", "op", F.explode(spans).alias("span"))
        .select("run", "op", "span.measure", F.greatest("span.span_ns", F.lit(0)).alias("span_ns"))
        .select("run", "op", "measure", "span_ns", exponent.alias("exponent"))
        .groupBy("run", "op", "measure", "exponent", mantissa.alias("mantissa"))
        .agg(F.count("*").alias("n"))
        .select(
            "run",
            "op",
            "measure",
            (F.col("mantissa") * width + F.call_function("shiftright", width, F.lit(1))).alias("value_ns"),
            "n",
        )
    )


def percentiles(histogram: DataFrame) -> DataFrame:
    """Read percentiles off merged histograms.

    In:  rows of :func:`latency_histogram`.
    Out: one row per (run, op, measure): n long; p50_ns, p90_ns, p99_ns, p999_ns double.
    """
    return (
        histogram.groupBy("run", "op", "measure")
        .agg(
            F.sum("n").alias("n"),
            F.percentile("value_ns", list(QUANTILES), F.col("n")).alias("p"),
        )
        .select(
            "run",
            "op",
            "measure",
            "n",
            *(F.col("p")[i].alias(name) for i, name in enumerate(("p50_ns", "p90_ns", "p99_ns", "p999_ns"))),
        )
    )


def outcomes(ops: DataFrame) -> DataFrame:
    """Count outcomes.

    In:  ``OPERATIONS_SCHEMA``.
    Out: one row per (run, op, fault, steady, struck, outcome): n long; slowest_ns long, the longest latency.
    """
    return (
        ops.groupBy("run", "op", "fault", "steady", "struck", "outcome")
        .agg(F.count("*").alias("n"), F.max(F.col("done_ns") - F.col("due_ns")).alias("slowest_ns"))
        .select("run", "op", "fault", "steady", "struck", "outcome", "n", "slowest_ns")
    )


def per_second(ops: DataFrame) -> DataFrame:
    """Count operations by the second in which they were due.

    In:  ``OPERATIONS_SCHEMA``.
    Out: one row per (run, op, second): second long since measure begin; n long; ok long.
    """
    return (
        ops.groupBy("run", "op", F.floor(F.col("due_ns") / _SECOND_NS).alias("second"))
        .agg(F.count("*").alias("n"), F.sum((F.col("outcome") == "ok").cast("int")).alias("ok"))
        .select("run", "op", "second", "n", "ok")
    )


def outages(ops: DataFrame) -> DataFrame:
    """Join failures that follow each other closely into outages.

    An outage lasts from when its first failed request was due until its last one was due: a caller's timeout
    does not lengthen it, and a lone failure has length 0. Wrong and empty answers are failures too.

    In:  ``OPERATIONS_SCHEMA``.
    Out: one row per (run, fault, op, struck, outage): outage int from 1; begin_ns, end_ns long; failed long,
        of these wrong, unknown long.
    """
    keys = ["run", "fault", "op", "struck"]
    during = ops.where(F.col("fault").isNotNull())
    interval = (F.max("due_ns") - F.min("due_ns")) / F.greatest(F.count("*") - 1, F.lit(1))
    gaps = during.groupBy(*keys).agg(
        F.greatest(F.lit(OUTAGE_GAP_NS_MIN), (3 * interval).cast("bigint")).alias("gap_ns")
    )
    in_order = Window.partitionBy(*keys).orderBy("due_ns", "done_ns")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    since_last = F.col("due_ns") - F.lag("due_ns").over(in_order)
    return (
        during.where(F.col("outcome") != "ok")
        .join(gaps, on=keys, how="inner")
        .select(
            *keys,
            "due_ns",
            "done_ns",
            "outcome",
            F.coalesce(since_last > F.col("gap_ns"), F.lit(True)).alias("first"),
        )
        .select(
            *keys,
            "due_ns",
            "outcome",
            F.sum(F.col("first").cast("int")).over(so_far).cast("int").alias("outage"),
        )
        .groupBy(*keys, "outage")
        .agg(
            F.min("due_ns").alias("begin_ns"),
            F.max("due_ns").alias("end_ns"),
            F.count("*").alias("failed"),
            F.sum((F.col("outcome") == "wrong").cast("int")).alias("wrong"),
            F.sum((F.col("outcome") == "unknown").cast("int")).alias("unknown"),
        )
        .select(*keys, "outage", "begin_ns", "end_ns", "failed", "wrong", "unknown")
    )


def visibility_by_change(
    changes: DataFrame, visibility: DataFrame, runs: DataFrame, windows: DataFrame
) -> DataFrame:
    """Say for each change when all nameservers showed it.

    In:  good change and visibility rows with ``run``; ``RUNS_SCHEMA``; ``WINDOWS_SCHEMA``.
    Out: one row per measured (run, change): begun_ns long; seen_on, nameservers int; visible_ns long, from
        begun until the last nameserver was seen to show it, null if one never was; unsure_ns long, by how
        much polling may have found that late; acked_ns long, from begun to the last acknowledgement, null if
        one is missing; fault int; steady boolean, as for operations.
    """
    by_change = visibility.groupBy("run", "change").agg(
        F.count("seen_ns").cast("int").alias("seen_on"),
        F.max("seen_ns").alias("seen_ns"),
        F.max("unseen_ns").alias("unseen_ns"),
        F.max("gave_up_ns").alias("gave_up_ns"),
    )
    joined = changes.join(by_change, on=["run", "change"], how="left").select(
        "run", "change", "begun_ns", "acked_ns", "seen_on", "seen_ns", "unseen_ns", "gave_up_ns"
    )
    begun = F.col("begun_ns")
    acks = F.filter("acks", lambda ack: ack.isNotNull())
    all_seen = F.coalesce("seen_on", F.lit(0)) >= F.col("nameservers")
    over = F.coalesce(F.greatest("seen_ns", "gave_up_ns"), begun)
    return (
        _since_measuring(
            joined.withColumnsRenamed({"acked_ns": "acks"}),
            runs,
            ["begun_ns", "seen_ns", "unseen_ns", "gave_up_ns"],
        )
        .where((begun >= 0) & (begun < F.col("measured_ns")))
        .join(F.broadcast(_windows_by_run(windows)), on="run", how="left")
        .withColumn("last_fault", _last_fault(over))
        .select(
            "run",
            "change",
            "begun_ns",
            F.coalesce("seen_on", F.lit(0)).alias("seen_on"),
            "nameservers",
            F.when(all_seen, F.col("seen_ns") - begun).alias("visible_ns"),
            F.when(all_seen, F.col("seen_ns") - F.greatest(F.coalesce("unseen_ns", begun), begun)).alias(
                "unsure_ns"
            ),
            F.when(
                F.size(acks) >= F.col("nameservers"), F.array_max(acks) - F.col("measure_begin_ns") - begun
            ).alias("acked_ns"),
            F.col("last_fault.fault").alias("fault"),
            F.coalesce(begun >= F.col("last_fault.quiet_ns"), F.lit(True)).alias("steady"),
        )
    )


def process_cost(samples: DataFrame, runs: DataFrame) -> DataFrame:
    """Say what each process used while measuring; one that was restarted is the sum of its lives.

    In:  good process rows with ``run``; ``RUNS_SCHEMA``.
    Out: one row per (run, role, index): cpu_ns long; alive_ns long, time covered by samples; cores double,
        CPU per time alive, null where there is only one sample; rss_bytes_max long; pids int.
    """
    t = F.col("t_ns")
    lives = (
        _since_measuring(samples, runs, ["t_ns"])
        .where((t >= 0) & (t <= F.col("measured_ns")))
        .groupBy("run", "role", "index", "pid")
        .agg(
            (F.max("cpu_ns") - F.min("cpu_ns")).alias("cpu_ns"),
            (F.max("t_ns") - F.min("t_ns")).alias("alive_ns"),
            F.max("rss_bytes").alias("rss_bytes_max"),
        )
    )
    return (
        lives.groupBy("run", "role", "index")
        .agg(
            F.sum("cpu_ns").alias("cpu_ns"),
            F.sum("alive_ns").alias("alive_ns"),
            F.max("rss_bytes_max").alias("rss_bytes_max"),
            F.count("*").cast("int").alias("pids"),
        )
        .select(
            "run",
            "role",
            "index",
            "cpu_ns",
            "alive_ns",
            F.try_divide("cpu_ns", "alive_ns").alias("cores"),
            "rss_bytes_max",
            "pids",
        )
    )


def failure_reasons(ops: DataFrame) -> DataFrame:
    """Count why operations failed; numbers in a remark (ports, durations) become ``#`` so that reasons group.

    In:  ``OPERATIONS_SCHEMA``.
    Out: one row per (run, op, outcome, code, remark): n long.
    """
    remark = F.regexp_replace("remark", "[0-9]+", "#")
    return (
        ops.where(F.col("outcome") != "ok")
        .groupBy("run", "op", "outcome", "code", remark.alias("remark"))
        .agg(F.count("*").alias("n"))
        .select("run", "op", "outcome", "code", "remark", "n")
    )


def _since_measuring(events: DataFrame, runs: DataFrame, instants: list[str]) -> DataFrame:
    """Join the runs and let ``instants`` count from the measure begin; adds measured_ns, how long that
    lasted."""
    begin = F.col("measure_begin_ns")
    return (
        events.join(F.broadcast(runs), on="run", how="inner")
        .withColumns({name: F.col(name) - begin for name in instants})
        .withColumn("measured_ns", F.col("measure_end_ns") - begin)
    )


def _windows_by_run(windows: DataFrame) -> DataFrame:
    """One row per run: windows, its faults in order."""
    window = F.struct("fault", "begin_ns", "quiet_ns", "targets")
    return windows.groupBy("run").agg(F.array_sort(F.collect_list(window)).alias("windows"))


def _last_fault(instant: Column) -> Column:
    """The last of ``windows`` that began at or before ``instant``; null if none did."""
    return F.try_element_at(F.filter("windows", lambda window: window["begin_ns"] <= instant), F.lit(-1))
