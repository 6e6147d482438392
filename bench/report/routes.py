"""Times in which observed routes were wrong or old, or in which servers disagreed.

Each function makes a DataFrame from DataFrames with Spark's built-in expressions, and has no other effect.

An observer is a nameserver or a client whose routes the harness reads again and again. A view is the route of
one topic as an observer shows it. A view begins at an unknown instant between two readings: the last reading
without the view, and the first reading with it. The middle between these two readings counts as the start.

A disagreement counts only for the time in which it is certain. Otherwise two observers that are read 20 ms
apart would seem to disagree for 20 ms after each change.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from routekeeper.bench.report.requests import ROUTE_OPS, histogram
from routekeeper.bench.resolution import OBSERVE_EVERY_S, WAITED_NS

ANSWERS: Final = ("routed", "absent")
"""States in which an observer gives an answer. Without an answer, it cannot disagree with other observers."""


_PAUSE_NS: Final = round(OBSERVE_EVERY_S * 1_000_000_000)
"""Pause in ns between two readings of the routes that a server lists."""

LINGER_NS: Final = 60_000_000_000
"""Time in ns after a run's measured time, in which the run's last changes may still become visible."""


def shown(views: DataFrame, runs: DataFrame) -> DataFrame:
    """Turn the recorded views of each observer into spans: times in which the observed route did not change.

    In:  valid view rows with the column ``run``; table ``RUNS``.
    Out: one row per span, with instants that count from the start of the run's measured time:

        - run, observer, index, topic, state
        - brokers array<int>: empty unless the state is ``routed``
        - version int
        - since_ns, until_ns long: start and end of the span, each in the middle of two readings
        - seen_ns, still_ns long: first and last instant at which the view was certainly shown
        - unsure_ns long: the largest error of since_ns
        - open boolean: true if no reading showed the span's end
    """
    in_order = Window.partitionBy("life", "observer", "index", "topic").orderBy("seen_ns")
    ended = F.col("next_state").isNull() | (F.col("next_state") == "end")
    unseen = F.coalesce("unseen_ns", "seen_ns")
    next_middle = (F.coalesce("next_unseen_ns", "next_seen_ns") + F.col("next_seen_ns")) / 2
    spans = (
        views.join(F.broadcast(runs.select("run", "life")), on="run", how="inner")
        .select(
            *("life", "observer", "index", "topic", "brokers", "version", "state", "unseen_ns", "seen_ns"),
            F.lead("state").over(in_order).alias("next_state"),
            F.lead("unseen_ns").over(in_order).alias("next_unseen_ns"),
            F.lead("seen_ns").over(in_order).alias("next_seen_ns"),
        )
        .where(F.col("state") != "end")
        .select(
            *("life", "observer", "index", "topic", "state"),
            F.sort_array(F.coalesce("brokers", F.array().cast("array<int>"))).alias("brokers"),
            "version",
            ((unseen + F.col("seen_ns")) / 2).cast("bigint").alias("since_ns"),
            F.when(ended, F.coalesce("next_seen_ns", "seen_ns"))
            .otherwise(next_middle.cast("bigint"))
            .alias("until_ns"),
            "seen_ns",
            F.coalesce("next_unseen_ns", "next_seen_ns", "seen_ns").alias("still_ns"),
            ((F.col("seen_ns") - unseen) / 2).cast("bigint").alias("unsure_ns"),
            ended.alias("open"),
        )
    )
    begin = F.col("measure_begin_ns")
    instants = ("since_ns", "until_ns", "seen_ns", "still_ns")
    return (
        spans.join(F.broadcast(_slots(runs)), on="life", how="inner")
        .where((F.col("until_ns") >= begin) & (F.col("since_ns") < F.col("measure_end_ns") + LINGER_NS))
        .select(
            *("run", "observer", "index", "topic", "state", "brokers", "version"),
            *((F.col(name) - begin).alias(name) for name in instants),
            *("unsure_ns", "open"),
        )
    )


def observed(spans: DataFrame) -> DataFrame:
    """List the kinds of observers that a run had.

    Without observers, a value of 0 in another table says nothing about a run.

    In:  :func:`shown`.
    Out: one row per (run, observer):

        - apart_ns long: median time from the last reading before a route changed to the first reading after
          the change. Null if no route changed
    """
    return (
        spans.groupBy("run", "observer")
        .agg(
            F.median(F.when(F.col("unsure_ns") > 0, 2 * F.col("unsure_ns"))).cast("bigint").alias("apart_ns"),
        )
        .select("run", "observer", "apart_ns")
    )


def left_out(spans: DataFrame, runs: DataFrame) -> DataFrame:
    """Compute the time for which each observer still listed a broker that a fault had removed.

    Only spans count that were first read before the fault was undone. The window of a fault ends at
    ``until_fault_ns``.

    In:  :func:`shown`; table ``RUNS``.
    Out: one row per (run, fault, observer, index) that may have listed the broker after the fault began:

        - left_out_ns long: time from the fault's start until the end of the last span that listed the broker

            - 0 if this span ended before the fault began (a span ends in the middle of two readings)
            - null if a span that listed the broker lasted beyond the window, or if no reading showed its end
    """
    dead = _targets(runs, "broker")
    listing = (
        spans.join(F.broadcast(dead), on="run", how="inner")
        .where(
            F.array_contains("brokers", F.col("target"))
            & (F.col("seen_ns") < F.coalesce("healed_ns", "until_fault_ns"))  # before the broker came back
            & (_gone_ns() > F.col("begin_ns"))
        )
        .select(
            *("run", "fault", "observer", "index"),
            F.when(
                ~F.col("open") & (F.col("until_ns") <= F.col("until_fault_ns")),
                F.greatest(F.col("until_ns") - F.col("begin_ns"), F.lit(0).cast("bigint")),
            ).alias("left_out_ns"),
        )
    )
    return (
        listing.groupBy("run", "fault", "observer", "index")
        .agg(
            F.when(F.count("left_out_ns") == F.count("*"), F.max("left_out_ns")).alias("left_out_ns"),
        )
        .select("run", "fault", "observer", "index", "left_out_ns")
    )


def _gone_ns() -> Column:
    """Return the instant of the first reading without the view of a span."""
    # until_ns is the middle between still_ns and this instant
    return 2 * F.col("until_ns") - F.col("still_ns")


def back(spans: DataFrame, runs: DataFrame) -> DataFrame:
    """Compute the time from a broker's return until each observer lists the broker again.

    In:  :func:`shown`; ``RUNS``.
    Out: one row per (run, fault, observer, index) that did not list the broker when it came back:

        - back_ns long: time from the broker's return until it was listed for all its topics. Null if the
          broker was not yet listed when the window or the observation ended
    """
    gaps = runs.select("run", F.explode("gaps").alias("gap")).select(
        "run", F.col("gap.broker").alias("target"), "gap.from_ns", "gap.to_ns"
    )
    came = (
        _targets(runs, "broker")
        .join(F.broadcast(gaps), on=["run", "target"], how="inner")
        .where((F.col("from_ns") >= F.col("begin_ns")) & (F.col("to_ns") < F.col("until_fault_ns")))
        .select("run", "fault", "target", "begin_ns", "until_fault_ns", F.col("to_ns").alias("up_ns"))
    )
    held = _first_listed(spans).withColumnRenamed("broker", "target")
    lacking = (
        spans.where(F.col("state").isin(*ANSWERS))
        .join(F.broadcast(came), on="run", how="inner")
        .join(held, on=["run", "topic", "target"], how="inner")
        .where(
            ~F.array_contains("brokers", F.col("target"))
            & (F.col("listed_ns") < F.col("begin_ns"))
            & (F.col("until_ns") > F.col("up_ns"))
            & (F.col("since_ns") < F.col("until_fault_ns"))
        )
    )
    listed = F.when(
        ~F.col("open") & (F.col("until_ns") <= F.col("until_fault_ns")), F.col("until_ns") - F.col("up_ns")
    )
    return (
        lacking.groupBy("run", "fault", "observer", "index")
        .agg(F.when(F.count(listed) == F.count("*"), F.max(listed)).alias("back_ns"))
        .select("run", "fault", "observer", "index", "back_ns")
    )


def _first_listed(spans: DataFrame) -> DataFrame:
    """Return the instant at which an observer first listed a broker, for each (run, topic, broker).

    The column listed_ns long has this instant.

    The callers need this instant to exclude topics that were created after a fault, or in the next scenario.
    During the fault, no route of such a topic existed, so no route can have omitted the broker.
    """
    return (
        spans.select("run", "topic", "since_ns", F.explode("brokers").alias("broker"))
        .groupBy("run", "topic", "broker")
        .agg(F.min("since_ns").alias("listed_ns"))
    )


def given_up(spans: DataFrame, runs: DataFrame) -> DataFrame:
    """Find views that omit living brokers which no fault had hit.

    In:  :func:`shown`; table ``RUNS``.
    Out: one row per (run, fault, observer):

        - given_up_ns long: the time in all, within the fault's window, for which one observer did not list
          one living broker for one topic. The largest such time counts
        - brokers long: number of different brokers that were missing
    """
    begin = F.greatest("seen_ns", "begin_ns")
    end = F.least("still_ns", "until_fault_ns")
    missing = (
        spans.where(F.col("state").isin(*ANSWERS))
        .join(_first_listed(spans), on=["run", "topic"], how="inner")
        .join(F.broadcast(_windows(runs)), on="run", how="inner")
        .where(
            (end > begin)
            & (F.col("listed_ns") < F.col("begin_ns"))
            & ~F.array_contains("brokers", F.col("broker"))
            & ~F.array_contains("targets", F.concat(F.lit("broker-"), F.col("broker")))
        )
        .select(
            *("run", "fault", "observer", "index", "topic", "broker"),
            (end - begin).alias("span_ns"),
        )
    )
    return (
        missing.groupBy("run", "fault", "observer", "index", "topic", "broker")
        .agg(F.sum("span_ns").alias("span_ns"))
        .groupBy("run", "fault", "observer")
        .agg(
            F.max("span_ns").alias("given_up_ns"),
            F.count_distinct("broker").alias("brokers"),
        )
        .select("run", "fault", "observer", "given_up_ns", "brokers")
    )


def disagreements(spans: DataFrame, runs: DataFrame) -> DataFrame:
    """Compute the time in which two nameservers certainly gave different answers, and count the topics.

    In:  :func:`shown`; ``RUNS``.
    Out: one row per (run, fault, about) with a disagreement:

        - about string: ``brokers`` (different brokers are listed) or ``queues`` (different queue counts)
        - disagree_ns long: time in which nameservers differed about at least one topic
        - topics long: number of such topics
        - agree_ns long: time from the end of the fault until the last disagreement ended, at least 0. If the
          fault did not end, the time counts from the start of the fault. Null if a disagreement lasted beyond
          the window. These disagreements do not count:

            - a disagreement that lasted, within the window, for less than the pause between two readings
            - a disagreement about queues that began after the fault had ended, and lasted for at most
              ``WAITED_NS`` within the window. The harness changes the queues all the time, and servers show
              a change at slightly different instants
    """
    # Compare only spans of the same second. Otherwise a topic that changes all the time would give too many
    # pairs of spans.
    seconds = F.sequence(_second(F.col("seen_ns")), _second(F.col("still_ns") - 1))
    answers = spans.where(
        (F.col("observer") == "nameserver")
        & F.col("state").isin(*ANSWERS)
        & (F.col("seen_ns") < F.col("still_ns"))
    ).select(
        "run",
        "topic",
        "index",
        "brokers",
        "version",
        "seen_ns",
        "still_ns",
        (F.col("seen_ns") - 2 * F.col("unsure_ns")).alias("unseen_ns"),
        _gone_ns().alias("gone_ns"),
        F.explode(seconds).alias("second"),
    )
    left, right = answers.alias("left"), answers.alias("right")
    seen = F.greatest("left.seen_ns", "right.seen_ns")
    still = F.least("left.still_ns", "right.still_ns")
    lists_differ = F.col("left.brokers") != F.col("right.brokers")
    counts_differ = F.coalesce(F.col("left.version") != F.col("right.version"), F.lit(False))
    together = (
        (F.col("left.run") == F.col("right.run"))
        & (F.col("left.topic") == F.col("right.topic"))
        & (F.col("left.second") == F.col("right.second"))
        # count a pair of spans only in the second in which they begin to overlap
        & (F.col("left.second") == _second(seen))
        & (F.col("left.index") < F.col("right.index"))
        & (lists_differ | counts_differ)
        & (seen < still)
    )
    differing = left.join(right, on=together, how="inner").select(
        F.col("left.run").alias("run"),
        F.col("left.topic").alias("topic"),
        F.explode(
            F.array_compact(F.array(F.when(lists_differ, "brokers"), F.when(counts_differ, "queues")))
        ).alias("about"),
        seen.alias("seen_ns"),
        still.alias("still_ns"),
        F.greatest("left.unseen_ns", "right.unseen_ns").alias("unseen_ns"),
        F.least("left.gone_ns", "right.gone_ns").alias("gone_ns"),
    )
    over_ns = F.coalesce("healed_ns", "begin_ns")
    lasted_ns = F.least("agreed_ns", "until_fault_ns") - F.col("differed_ns")
    counts = (lasted_ns >= _PAUSE_NS) & (
        (F.col("about") == "brokers") | (F.col("differed_ns") < over_ns) | (lasted_ns > WAITED_NS)
    )
    agree_ns = F.greatest(F.col("agreed_ns") - over_ns, F.lit(0).cast("bigint"))
    outlasts = counts & (F.col("agreed_ns") >= F.col("until_fault_ns"))
    return (
        _in_faults(_episodes(differing), runs, "about")
        .groupBy("run", "fault", "about")
        .agg(
            F.sum("new_ns").alias("disagree_ns"),
            F.count_distinct("topic").alias("topics"),
            F.when(
                ~F.bool_or(outlasts), F.max(F.when(counts, agree_ns).otherwise(F.lit(0).cast("bigint")))
            ).alias("agree_ns"),
        )
        .select("run", "fault", "about", "disagree_ns", "topics", "agree_ns")
    )


def _episodes(differing: DataFrame) -> DataFrame:
    """Add the start and the end of a whole disagreement to each of its pieces.

    If a topic changes while two servers disagree, the disagreement consists of several pieces. A piece
    continues an earlier piece if the readings show no time in which neither of them can have lasted.

    In:  rows with run, about, topic, and four instants in ns:

        - seen_ns, still_ns: first and last instant at which the servers certainly disagreed
        - unseen_ns, gone_ns: earliest possible start and latest possible end of the piece

    Out: the same rows, with differed_ns long and agreed_ns long: start and end of the disagreement.
    """
    in_order = Window.partitionBy("run", "about", "topic").orderBy("unseen_ns", "gone_ns")
    before = F.max("gone_ns").over(in_order.rowsBetween(Window.unboundedPreceding, -1))
    is_new = F.coalesce(F.col("unseen_ns") > before, F.lit(True))
    episode = Window.partitionBy("run", "about", "topic", "episode")
    return (
        differing.withColumn("is_new", is_new.cast("int"))
        .withColumn(
            "episode",
            F.sum("is_new").over(in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)),
        )
        .withColumns(
            {
                "differed_ns": F.min("seen_ns").over(episode),
                "agreed_ns": F.max("still_ns").over(episode),
            }
        )
        .drop("is_new", "episode")
    )


def unanswering(spans: DataFrame, runs: DataFrame) -> DataFrame:
    """Compute the time in which at least one nameserver certainly refused to answer or was silent.

    In:  :func:`shown`; ``RUNS``.
    Out: one row per (run, fault) with such a time: unanswering_ns long.
    """
    silent = spans.where((F.col("observer") == "nameserver") & ~F.col("state").isin(*ANSWERS))
    return (
        _in_faults(silent, runs, "observer")
        .groupBy("run", "fault")
        .agg(F.sum("new_ns").alias("unanswering_ns"))
        .select("run", "fault", "unanswering_ns")
    )


def _in_faults(spans: DataFrame, runs: DataFrame, kind: str) -> DataFrame:
    """Cut spans at the start of each fault, and at the end of the fault's window.

    In:  rows with run, topic, seen_ns, still_ns, and the column whose name is ``kind``; ``RUNS``.
    Out: one row per span and fault:

        - the columns of the span, and those of the fault (see :func:`_windows`)
        - new_ns long: length of the part that no earlier span of the same run, fault and kind covers
    """
    clipped = (
        spans.join(F.broadcast(_windows(runs)), on="run", how="inner")
        .withColumns(
            {
                "seen_ns": F.greatest("seen_ns", "begin_ns"),
                "still_ns": F.least("still_ns", "until_fault_ns"),
            }
        )
        .where(F.col("seen_ns") < F.col("still_ns"))
    )
    in_order = Window.partitionBy("run", "fault", kind).orderBy("seen_ns", "still_ns")
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    known = F.coalesce(F.max("still_ns").over(before), F.lit(-(2**62)))
    return clipped.select(
        "*", F.greatest(F.col("still_ns") - F.greatest("seen_ns", known), F.lit(0)).alias("new_ns")
    )


def _second(instant_ns: Column) -> Column:
    return F.floor(instant_ns / 1_000_000_000)


def changes(truth: DataFrame, runs: DataFrame) -> DataFrame:
    """Compute the instants at which each change of a topic was first sent and first acknowledged.

    In:  valid truth rows with the column ``run``; table ``RUNS``.
    Out: one row per (run, topic, version), with instants that count from the start of the measured time:

        - begun_ns long: instant at which the change was first sent
        - acked_ns long: instant of the first acknowledgement, or null if the change was never acknowledged
    """

    def instant(what: str) -> Column:
        return F.min(F.when(F.col("what") == what, F.col("t_ns")))

    begin = F.col("measure_begin_ns")
    return (
        truth.where((F.col("subject") == "topic") & F.col("what").isin("changing", "changed"))
        .join(F.broadcast(runs.select("run", "life")), on="run", how="inner")
        .groupBy("life", "topic", "version")
        .agg(instant("changing").alias("begun_ns"), instant("changed").alias("acked_ns"))
        .join(F.broadcast(_slots(runs)), on="life", how="inner")
        .where(F.col("begun_ns").isNotNull())
        .select(
            "run",
            "topic",
            "version",
            (F.col("begun_ns") - begin).alias("begun_ns"),
            (F.col("acked_ns") - begin).alias("acked_ns"),
        )
    )


def visibility(first: DataFrame, runs: DataFrame) -> DataFrame:
    """Compute the time until all observers of a kind showed a change, or a later change.

    In:  :func:`first_shown`; table ``RUNS``.
    Out: one row per (run, topic, version, observer) of changes that began while measuring:

        - begun_ns long: start of the change, from the start of the measured time
        - acked_ns long: from begun_ns until the acknowledgement
        - seen_on, observers long: number of observers that showed the change, and number of all observers
        - visible_ns long: from begun_ns until all observers showed the change. Null if one observer never did
        - unsure_ns long: the largest error of visible_ns
        - fault int, phase string: as in ``REQUESTS``
    """
    by_change = first.groupBy("run", "topic", "version", "observer").agg(
        F.max("begun_ns").alias("begun_ns"),
        F.max("acked_ns").alias("acked_ns"),
        F.count("first").alias("seen_on"),
        F.count("*").alias("observers"),
        F.max("first").alias("last"),
    )
    visible = F.greatest(F.col("last.since_ns") - F.col("begun_ns"), F.lit(0).cast("bigint"))
    placed = (
        by_change.join(F.broadcast(runs), on="run", how="inner")
        .where(
            (F.col("begun_ns") >= 0)
            & (F.col("begun_ns") < F.col("measure_end_ns") - F.col("measure_begin_ns"))
        )
        .withColumn(
            "window",
            F.try_element_at(
                F.filter(
                    "windows",
                    lambda w: (w["from_ns"] <= F.col("begun_ns")) & (F.col("begun_ns") < w["until_ns"]),
                ),
                F.lit(1),
            ),
        )
    )
    window = F.col("window")
    return placed.select(
        *("run", "topic", "version", "observer", "begun_ns"),
        (F.col("acked_ns") - F.col("begun_ns")).alias("acked_ns"),
        "seen_on",
        "observers",
        F.when(F.col("seen_on") == F.col("observers"), visible).alias("visible_ns"),
        F.col("last.unsure_ns").alias("unsure_ns"),
        window["fault"].alias("fault"),
        F.when(window.isNull(), "quiet")
        .when(F.col("begun_ns") >= window["begin_ns"], F.lit("fault"))
        .otherwise(F.lit("reference"))
        .alias("phase"),
    )


def first_shown(changed: DataFrame, spans: DataFrame) -> DataFrame:
    """Compute the instant at which each observer first showed a change, or a later change.

    In:  :func:`changes`; :func:`shown`.
    Out: one row per (run, observer, index, topic, version):

        - begun_ns, acked_ns long: as for :func:`changes`
        - first struct: since_ns and unsure_ns, or null if the observer never showed the change
    """
    span = spans.where(F.col("version").isNotNull())
    watching = span.groupBy("run", "observer", "index", "topic").agg(F.count("*").alias("spans"))
    wanted = watching.join(changed, on=["run", "topic"], how="inner").select(
        *("run", "observer", "index", "topic", "version"),
        F.lit(None).cast("bigint").alias("since_ns"),
        F.lit(None).cast("bigint").alias("unsure_ns"),
        "begun_ns",
        "acked_ns",
    )
    both = span.select(
        *("run", "observer", "index", "topic", "version", "since_ns", "unsure_ns"),
        F.lit(None).cast("bigint").alias("begun_ns"),
        F.lit(None).cast("bigint").alias("acked_ns"),
    ).unionByName(wanted)
    # Sort the rows backwards, so that Spark's window ends at the current row. If the window ended at the end
    # of the partition, Spark would compute the window again for each row.
    from_here = (
        Window.partitionBy("run", "observer", "index", "topic")
        .orderBy(F.desc("version"))
        .rangeBetween(Window.unboundedPreceding, Window.currentRow)
    )
    first = F.min(F.when(F.col("since_ns").isNotNull(), F.struct("since_ns", "unsure_ns"))).over(from_here)
    return both.select(
        "run", "observer", "index", "topic", "version", "begun_ns", "acked_ns", first.alias("first")
    ).where(F.col("begun_ns").isNotNull())


AGES_MS: Final = (10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000)
"""Ages of a change in ms. At each age, the report counts the observers that know the change."""


def currency(first: DataFrame, changed: DataFrame, runs: DataFrame) -> DataFrame:
    """Count the observers that know a change, at each age of the change (time since the change began).

    When a later change of the topic begins, the earlier change is no longer counted.

    In:  :func:`first_shown`; :func:`changes`; ``RUNS``.
    Out: one row per (run, observer, age_ms):

        - n long: number of pairs of a change and an observer
        - current long: number of those pairs in which the observer showed the change, or a later change
    """
    newer = F.lead("begun_ns").over(Window.partitionBy("run", "topic").orderBy("version"))
    lasting = changed.select("run", "topic", "version", newer.alias("newer_ns"))
    known = (
        first.join(lasting, on=["run", "topic", "version"], how="inner")
        .join(F.broadcast(runs), on="run", how="inner")
        .withColumn("end_ns", F.col("measure_end_ns") - F.col("measure_begin_ns"))
        .where((F.col("begun_ns") >= 0) & (F.col("begun_ns") < F.col("end_ns")))
        .select(
            *("run", "observer", "begun_ns"),
            F.least(F.coalesce("newer_ns", "end_ns"), "end_ns").alias("until_ns"),
            F.col("first.since_ns").alias("since_ns"),
        )
    )

    def count(age_ms: int) -> Column:
        at = F.col("begun_ns") + F.lit(age_ms * 1_000_000)
        lasts = at < F.col("until_ns")
        return F.struct(
            F.lit(age_ms).alias("age_ms"),
            F.sum(lasts.cast("int")).alias("n"),
            F.sum((lasts & F.coalesce(F.col("since_ns") <= at, F.lit(False))).cast("int")).alias("current"),
        )

    # Count all twelve ages in one pass. With one row for each age, Spark would handle twelve times as many
    # rows.
    return (
        known.groupBy("run", "observer")
        .agg(F.array(*map(count, AGES_MS)).alias("ages"))
        .select("run", "observer", F.explode("ages").alias("age"))
        .select("run", "observer", "age.age_ms", "age.n", "age.current")
        .where(F.col("n") > 0)
    )


def visible_histogram(visible: DataFrame) -> DataFrame:
    """Count changes by two times: the time until they were acknowledged, and until they were visible.

    In:  :func:`visibility`.
    Out: one row per (run, observer, phase, fault, measure, value_ns): n long.

        - measure: ``visible``, or ``acked`` (only of observer ``nameserver``)
        - value_ns bigint: the bucket's middle, or null for changes that were never visible, or never
          acknowledged
    """
    spans = F.array_compact(
        F.array(
            F.struct(F.lit("visible").alias("measure"), F.col("visible_ns").alias("span_ns")),
            F.when(
                F.col("observer") == "nameserver",
                F.struct(F.lit("acked").alias("measure"), F.col("acked_ns").alias("span_ns")),
            ),
        )
    )
    spread = visible.select("run", "observer", "phase", "fault", F.explode(spans).alias("span")).select(
        "run", "observer", "phase", "fault", "span.measure", "span.span_ns"
    )
    return histogram(spread, ("run", "observer", "phase", "fault", "measure"))


def staleness(requests: DataFrame, changed: DataFrame) -> DataFrame:
    """Count all answers, and the up-to-date answers, by their age.

    An answer is stale if a later version was acknowledged before the request was sent. Its age is the time
    from that acknowledgement until the request was sent. The age of an up-to-date answer is the time from the
    acknowledgement of its own version until the request was sent. An up-to-date answer that overlaps a change
    is not counted.

    In:  ``REQUESTS``; :func:`changes`.
    Out: one row per (run, fault, phase, side, op, bin):

        - n, current long: numbers of all answers, and of up-to-date answers
        - bin int: twice the binary logarithm of the age in ms, rounded down
    """
    own = changed.select("run", "topic", "version", F.col("acked_ns").alias("own_acked_ns"))
    current = F.col("behind_ns").isNull()
    keys = ("run", "fault", "phase", "side", "op", "bin")
    return (
        requests.where(F.col("version").isNotNull() & (F.col("outcome") == "ok"))
        .where(F.col("op").isin(*ROUTE_OPS) & ~(current & F.col("changing")))
        .join(own, on=["run", "topic", "version"], how="left")
        .withColumn("age_ns", F.coalesce("behind_ns", F.col("sent_ns") - F.col("own_acked_ns")))
        .where(F.col("age_ns") >= 0)
        .withColumn(
            "bin",
            F.floor(2 * F.log2(F.greatest(F.col("age_ns") / 1e6, F.lit(1.0)))).cast("int"),
        )
        .groupBy(*keys)
        .agg(F.count("*").alias("n"), F.sum(current.cast("int")).alias("current"))
        .select(*keys, "n", "current")
    )


def _slots(runs: DataFrame) -> DataFrame:
    return runs.select("run", "life", "measure_begin_ns", "measure_end_ns")


def _windows(runs: DataFrame) -> DataFrame:
    """Return one row per run and fault, with the times and the targets of the fault."""
    return runs.select("run", F.explode("windows").alias("window")).select(
        *("run", "window.fault", "window.targets", "window.begin_ns", "window.healed_ns"),
        F.col("window.until_ns").alias("until_fault_ns"),
    )


def _targets(runs: DataFrame, role: str) -> DataFrame:
    """Return one row per fault and target of a role. The column target is the index of the target process."""
    return (
        _windows(runs)
        .select("run", "fault", "begin_ns", "healed_ns", "until_fault_ns", F.explode("targets").alias("name"))
        .where(F.col("name").startswith(f"{role}-"))
        .select(
            *("run", "fault", "begin_ns", "healed_ns", "until_fault_ns"),
            F.regexp_extract("name", "([0-9]+)$", 1).cast("int").alias("target"),
        )
    )
