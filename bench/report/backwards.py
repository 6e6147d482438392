"""Answers of a server that go backwards, which means older than an earlier answer of the same process.

Each function makes a DataFrame from DataFrames with Spark's built-in expressions, and has no other effect.

A design gives no such answers if its reads always show all acknowledged changes. The harness's log shows the
true states. An answer is counted only if the log proves that it is older. Two kinds of answers are counted:

- An answer has an older version. Version A of a topic is older than version B if the topic's broker sent A
  only before it first sent B. If the broker sends A again after B, A is not older than B. Versions count only
  if they were sent before the answer was read.
- An answer lists a broker again, although the broker is gone. First the process listed the broker. Then it
  answered a query that was sent after the broker's end, and did not list the broker. Then it listed the
  broker again, before the broker was started again.

These answers are not compared:

- answers before and after a restart of a server, because the new process may know less, or nothing
- versions that are not in the log
- servers whose process starts are not in the log

A route that vanishes is not counted, because its broker may have left.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from routekeeper.bench.report.routes import ANSWERS

_SERVER: Final = ("life", "index", "topic")
_PROCESS: Final = (*_SERVER, "process")
_JUDGED: Final = ("run", "index", "seen_ns", "fell", "relisted", "older_ns")


def backwards(given: DataFrame, truth: DataFrame, runs: DataFrame) -> DataFrame:
    """Count the answers of servers that went backwards.

    In:  :func:`answers`; valid truth rows with the column ``run``; table ``RUNS``.
    Out: one row per (run, fault) in which at least one answer was compared:

        - fault int: the last fault that began before the answer was read, or null if there was none
        - compared long: number of compared answers
        - fell long: number of answers with an older version than the answer before
        - relisted long: number of answers that list a broker again although it is gone
        - servers long: number of servers that gave such answers
        - longest_ns long: longest time for which one server gave only older answers, or 0 if no server did
    """
    judged = _by_version(given, truth, runs).unionByName(_by_list(given, runs))
    begun = F.filter("windows", lambda w: w["begin_ns"] + F.col("measure_begin_ns") <= F.col("seen_ns"))
    went = (F.col("fell") > 0) | (F.col("relisted") > 0)
    return (
        judged.join(F.broadcast(runs.select("run", "measure_begin_ns", "windows")), on="run", how="inner")
        .withColumn("fault", F.try_element_at(begun, F.lit(-1))["fault"])
        .groupBy("run", "fault")
        .agg(
            F.count("*").alias("compared"),
            F.sum("fell").alias("fell"),
            F.sum("relisted").alias("relisted"),
            F.count_distinct(F.when(went, F.col("index"))).alias("servers"),
            F.max("older_ns").alias("longest_ns"),
        )
        .select("run", "fault", "compared", "fell", "relisted", "servers", "longest_ns")
    )


def answers(views: DataFrame, processes: DataFrame, runs: DataFrame) -> DataFrame:
    """Return each server's answers with the instants at which they were read, and the answering process.

    In:  valid view rows and process rows, with the column ``run``; table ``RUNS``.
    Out: one row per answer, with two instants from the host's clock:

        - run, index, topic, state, brokers, version
        - life string: name of the cluster that made the run. One cluster can make several runs
        - process int: number of processes of this server that had been started when the answer was read
        - seen_ns long: instant at which the answer was first read
        - still_ns long: instant at which the last query with this answer was sent
    """
    life = F.broadcast(runs.select("run", "life"))
    started = (
        processes.where(F.col("role") == "nameserver")
        .join(life, on="run", how="inner")
        .groupBy("life", "index")
        .agg(F.collect_list(F.when(F.col("event") == "start", F.col("t_ns"))).alias("starts"))
    )
    in_order = Window.partitionBy(*_SERVER).orderBy("seen_ns")
    first_ns = F.min("seen_ns").over(Window.partitionBy(*_SERVER))
    # Keep only rows of real readings. At the start of a run, the last view of the preceding run is written
    # again, although nothing was read at that instant.
    was_read = F.col("unseen_ns").isNotNull() | (F.col("seen_ns") == first_ns) | (F.col("state") == "end")
    return (
        views.where(F.col("observer") == "nameserver")
        .join(life, on="run", how="inner")
        .withColumn("was_read", was_read)
        .where("was_read")
        .withColumn("next_ns", F.lead(F.coalesce("unseen_ns", "seen_ns")).over(in_order))
        .join(F.broadcast(started), on=["life", "index"], how="inner")
        .where(F.col("state").isin(*ANSWERS))
        .select(
            *("life", "run", "index", "topic", "state", "version", "seen_ns"),
            F.coalesce("brokers", F.array().cast("array<int>")).alias("brokers"),
            F.coalesce("next_ns", "seen_ns").alias("still_ns"),
            F.size(F.filter("starts", lambda at: at <= F.col("seen_ns"))).alias("process"),
        )
    )


def _by_version(given: DataFrame, truth: DataFrame, runs: DataFrame) -> DataFrame:
    """Judge the answers that show a version of their topic.

    In:  :func:`answers`; valid truth rows with the column ``run``; table ``RUNS``.
    Out: one row per compared answer:

        - run, index, seen_ns
        - fell int: 1 if the answer has an older version than the answer before, otherwise 0
        - relisted int: always 0
        - older_ns long: time from the first of a series of older answers until the end of this answer. 0 if
          this answer is not older
    """
    sent = (
        truth.where((F.col("subject") == "topic") & (F.col("what") == "changing"))
        .join(F.broadcast(runs.select("run", "life")), on="run", how="inner")
        .groupBy("life", "topic", "version")
        .agg(F.collect_list("t_ns").alias("sent"))
    )
    before = F.filter("sent", lambda at: at <= F.col("seen_ns"))
    in_order = Window.partitionBy(*_PROCESS).orderBy("seen_ns")
    earlier = in_order.rowsBetween(Window.unboundedPreceding, -1)
    return _with_age(
        given.join(sent, on=["life", "topic", "version"], how="inner")
        .withColumns({"first_ns": F.array_min(before), "last_ns": F.array_max(before)})
        .where(F.col("first_ns").isNotNull())
        .withColumns(
            {
                "is_older": _is_true(F.col("last_ns") < F.max("first_ns").over(earlier)),
                "fell": _is_true(F.col("last_ns") < F.lag("first_ns").over(in_order)).cast("int"),
                "relisted": F.lit(0),
            }
        ),
        _PROCESS,
    )


def _by_list(given: DataFrame, runs: DataFrame) -> DataFrame:
    """Judge the answers about topics with a broker that was gone for a while.

    In:  :func:`answers`; table ``RUNS``.
    Out: the columns of :func:`_by_version`. The column fell is always 0. The column relisted is 1 if the
        answer lists a broker again.
    """
    begin = F.col("measure_begin_ns")
    gaps = (
        runs.select("life", "measure_begin_ns", F.explode("gaps").alias("gap"))
        .groupBy("life", F.col("gap.broker").alias("broker"), (F.col("gap.from_ns") + begin).alias("from_ns"))
        .agg(F.min(F.col("gap.launched_ns") + begin).alias("launched_ns"))
    )
    concerned = (
        given.select("life", "topic", F.explode("brokers").alias("broker"))
        .groupBy("life", "topic", "broker")
        .agg(F.count("*").alias("answers"))
        .join(F.broadcast(gaps), on=["life", "broker"], how="inner")
        .select("life", "topic", "broker", "from_ns", "launched_ns")
    )
    keys = (*_PROCESS, "broker", "from_ns")
    in_order = Window.partitionBy(*keys).orderBy("seen_ns")
    earlier = in_order.rowsBetween(Window.unboundedPreceding, -1)
    listed = F.col("listed")
    return _with_age(
        given.join(F.broadcast(concerned), on=["life", "topic"], how="inner")
        .withColumn("listed", F.array_contains("brokers", F.col("broker")))
        .withColumn("was_listed", _is_true(F.max("listed").over(earlier)))
        .withColumn("dropped", ~listed & F.col("was_listed") & (F.col("still_ns") >= F.col("from_ns")))
        .withColumn("was_dropped", _is_true(F.max("dropped").over(earlier)))
        .withColumns(
            {
                "is_older": listed & F.col("was_dropped") & (F.col("seen_ns") < F.col("launched_ns")),
                "was_lacking": _is_true(~F.lag("listed").over(in_order)),
            }
        )
        .withColumns(
            {
                "fell": F.lit(0),
                "relisted": (F.col("is_older") & F.col("was_lacking")).cast("int"),
                "still_ns": F.least("still_ns", "launched_ns"),
            }
        ),
        keys,
    )


def _with_age(judged: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """Add ``older_ns``, the time for which a server has given only older answers, at the end of each answer.

    In:  the columns ``keys``, run, index, seen_ns, still_ns, is_older (boolean), fell and relisted (int).
    Out: the columns of :func:`_by_version`.
    """
    in_order = Window.partitionBy(*keys).orderBy("seen_ns").rowsBetween(Window.unboundedPreceding, 0)
    of_one = Window.partitionBy(*keys, "episode")
    is_older = F.col("is_older")
    return (
        judged.withColumn("episode", F.sum((~is_older).cast("int")).over(in_order))
        .withColumn("since_ns", F.min(F.when(is_older, F.col("seen_ns"))).over(of_one))
        .withColumn("older_ns", F.when(is_older, F.col("still_ns") - F.col("since_ns")).otherwise(0))
        .select(*_JUDGED)
    )


def _is_true(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(False))
