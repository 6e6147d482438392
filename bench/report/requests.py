"""Requests of clients and brokers: verdicts on their answers, waiting times, and recoveries from faults.

Each function makes a DataFrame from DataFrames and has no other effect. The functions use only Spark's
built-in expressions, so the executors need none of our code.

The instant at which a request was due decides to which fault and to which time step it belongs. A request is
judged by the harness's log, which contains the true state of every broker and topic.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from routekeeper.bench.resolution import WAITED_NS

LATE_NS: Final = 1_000_000_000
"""Longest time in ns for a message or an answer. A message or answer that takes longer counts as late."""

BIN_NS: Final = 100_000_000
"""Width in ns of one time step of the timelines."""

HISTOGRAM_BITS: Final = 7
"""Number of bits that choose a bucket. There are 2 ** 7 buckets from one power of two to the next.

So a bucket's middle is within 0.4 % of each value in the bucket.
"""

UNANSWERED: Final = ("refused", "failed")
WRONG: Final = ("missing", "ghost", *UNANSWERED)
"""Verdicts with which a request counts as disturbed, no matter how fast the answer came."""

ROUTE_OPS: Final = ("lookup", "newcomer")


def holders(ops: DataFrame, runs: DataFrame) -> DataFrame:
    """Collect the brokers of each topic: every broker that any answer of the cluster lists.

    A server lists only brokers that have registered the topic, so the union of all answers is the true list.

    In:  valid operation rows with the column ``run``; table ``RUNS``.
    Out: one row per (life, topic): holders array<int>, the numbers of the brokers. ``life`` names a cluster
        of one design from its start to its end. A cluster can make several runs, one after the other.
    """
    return (
        ops.where(F.col("brokers").isNotNull())
        .join(F.broadcast(runs.select("run", "life")), on="run", how="inner")
        .groupBy("life", "topic", "brokers")
        .agg(F.count("*").alias("n"))
        .select("life", "topic", F.explode("brokers").alias("broker"))
        .groupBy("life", "topic")
        .agg(F.sort_array(F.collect_set("broker")).alias("holders"))
        .select("life", "topic", "holders")
    )


def superseded(changed: DataFrame) -> DataFrame:
    """Compute for each version of a topic the instants at which a later version was sent and acknowledged.

    If the next version was never acknowledged, the first acknowledgement of any later version counts.

    In:  :func:`routekeeper.bench.report.routes.changes`.
    Out: one row per (run, topic, version) that has a later version:

        - newer_begun_ns long: instant at which the next version was first sent
        - newer_acked_ns long: instant of the first acknowledgement, or null if no later version was
          acknowledged
    """
    # Sort the rows backwards, so that Spark's window ends at the current row. If the window ended at the end
    # of the partition, Spark would compute the window again for each row.
    from_here = (
        Window.partitionBy("run", "topic")
        .orderBy(F.desc("version"))
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    return changed.select(
        *("run", "topic"),
        (F.col("version") - 1).alias("version"),
        F.col("begun_ns").alias("newer_begun_ns"),
        F.min("acked_ns").over(from_here).alias("newer_acked_ns"),
    )


def judged(ops: DataFrame, runs: DataFrame, held: DataFrame, changed: DataFrame) -> DataFrame:
    """Judge each operation that was due in the measured time, and find the fault to which it belongs.

    The verdict on a route is the first of these that is true:

    - ``missing``: the route omits a broker that the client can reach, and that did not come back since the
      fault began.
    - ``ghost``: the route lists a broker that the client cannot reach. The broker is dead, or the fault has
      cut it off from the client's side.
    - ``returning``: the route omits a broker that has come back since the fault began. This is neither right
      nor wrong.
    - ``stale``: the route has an old version. A later version of the topic had been acknowledged before the
      request was sent.
    - ``right``: none of the above.

    A broker that disappeared or came back between request and answer does not change the verdict.

    The verdict on an operation that reads no route is ``right`` if the operation succeeded. Any operation is
    ``refused`` if the server declined it, and ``failed`` if it failed in another way.

    The window of a fault has two parts: a quiet time before the fault, and the time in which the report looks
    for effects of the fault (see :data:`routekeeper.bench.report.tables.FAULTS`). An operation has one of
    three phases:

    - ``reference``: it was due in the quiet time before a fault, and was answered before the fault began.
    - ``fault``: it was due in the second part of the window. An operation that was in flight when the fault
      began has this phase, too. The offset of such an operation is negative.
    - ``quiet``: it was due in no window.

    In:  valid operation rows with the column ``run``, including :func:`registrations`; table ``RUNS``;
        :func:`holders`; :func:`routekeeper.bench.report.routes.changes`.
    Out: ``REQUESTS``, with these columns among others:

        - behind_ns: for a stale answer, the time from the acknowledgement of a later version until the
          request was sent
        - changing: true if the sending of a later version had begun before the answer came
        - fault: the fault in whose window the operation was due, or null if it was due in no window
        - healed: true if the fault was already undone when the operation was due
        - offset_ns: time from the start of the fault until the operation was due
        - unreachable: true if a route lists a broker that the client cannot reach, also if the verdict is
          ``missing``
    """
    due, done, begin = F.col("due_ns"), F.col("done_ns"), F.col("measure_begin_ns")
    window = F.col("window")
    in_fault = (due >= window["begin_ns"]) | (done > window["begin_ns"])
    phase = F.when(window.isNull(), "quiet").when(in_fault, F.lit("fault")).otherwise(F.lit("reference"))
    mine = F.coalesce(F.col("client_side"), F.lit(""))
    known = (
        ops.join(F.broadcast(runs), on="run", how="inner")
        .withColumn("gaps", F.filter("gaps", lambda gap: gap["side"].isNull() | (gap["side"] == mine)))
        .withColumns({name: F.col(name) - begin for name in ("due_ns", "sent_ns", "done_ns")})
        .where((due >= 0) & (due < F.col("measure_end_ns") - begin))
        .join(F.broadcast(held), on=["life", "topic"], how="left")
        .join(superseded(changed), on=["run", "topic", "version"], how="left")
        .withColumn("behind_ns", _behind_ns())
        .withColumn(
            "window",
            F.try_element_at(
                F.filter("windows", lambda w: (w["from_ns"] <= due) & (due < w["until_ns"])), F.lit(1)
            ),
        )
    )
    return known.select(
        "run",
        "op",
        "target",
        F.col("client_side").alias("side"),
        "topic",
        "due_ns",
        "sent_ns",
        "done_ns",
        "outcome",
        "code",
        "remark",
        _verdict().alias("verdict"),
        F.col("behind_ns"),
        F.coalesce(F.col("newer_begun_ns") <= done, F.lit(False)).alias("changing"),
        F.coalesce("queued", F.lit(False)).alias("queued"),
        "version",
        "message",
        window["fault"].alias("fault"),
        phase.alias("phase"),
        (due - window["begin_ns"]).alias("offset_ns"),
        F.coalesce(due >= window["healed_ns"], F.lit(False)).alias("healed"),
        F.coalesce(
            F.array_contains(window["targets"], F.concat(F.lit("nameserver-"), F.col("target")))
            & ~F.col("op").isin("send", "send_once", "first_send"),
            F.lit(False),
        ).alias("struck"),
        (_answered() & _haunted()).alias("unreachable"),
    )


def _behind_ns() -> Column:
    """Return the time in ns from the acknowledgement of a later version until the route was requested.

    Return null if no later version had been acknowledged.
    """
    route = F.col("op").isin(*ROUTE_OPS) & (F.col("outcome") == "ok")
    behind = F.col("sent_ns") - F.col("newer_acked_ns")
    return F.when(route & (behind >= 0), behind)


def _answered() -> Column:
    """Return true for a route query that was answered. "There is no route" is an answer, too."""
    return F.col("op").isin(*ROUTE_OPS) & F.col("outcome").isin("ok", "absent")


def _listed() -> Column:
    return F.coalesce("brokers", F.array().cast("array<int>"))


def _haunted() -> Column:
    """Return true if a route lists a broker that was gone from the request to the answer.

    From the start of its new process on, a broker does not count as gone.
    """
    sent, done = F.col("sent_ns"), F.col("done_ns")

    def gone(broker: Column) -> Column:
        return F.exists(
            "gaps",
            lambda gap: (gap["broker"] == broker) & (gap["from_ns"] <= sent) & (gap["launched_ns"] > done),
        )

    return F.exists(_listed(), lambda broker: F.coalesce(gone(broker), F.lit(False)))


def _verdict() -> Column:
    sent, done = F.col("sent_ns"), F.col("done_ns")

    def overlaps(broker: Column) -> Column:
        return F.exists(
            "gaps", lambda gap: (gap["broker"] == broker) & (gap["from_ns"] <= done) & (gap["to_ns"] > sent)
        )

    listed = _listed()

    struck = F.col("window")["begin_ns"]

    def returned(broker: Column) -> Column:
        """Return true if a broker came back after the present fault began.

        A broker that came back before the fault does not count, because servers had enough time to list it.
        """
        return F.exists(
            "gaps",
            lambda gap: (
                (gap["broker"] == broker)
                & (gap["to_ns"] <= sent)
                & F.coalesce((sent < struck) | (gap["to_ns"] > struck), F.lit(True))
            ),
        )

    def lacks(*, new: bool) -> Column:
        """Return true if the route omits a broker that the client can reach.

        If ``new`` is True, check only the brokers that came back after the present fault began. If it is
        False, check only the other brokers.
        """
        return F.exists(
            F.coalesce("holders", F.array().cast("array<int>")),
            lambda broker: (
                ~F.array_contains(listed, broker)
                & ~F.coalesce(overlaps(broker), F.lit(False))
                & (F.coalesce(returned(broker), F.lit(False)) == F.lit(new))
            ),
        )

    route = F.col("op").isin(*ROUTE_OPS)
    return (
        F.when(_answered() & lacks(new=False), "missing")
        .when(_answered() & _haunted(), "ghost")
        .when(_answered() & lacks(new=True), "returning")
        .when(F.col("behind_ns").isNotNull(), "stale")
        .when((F.col("outcome") == "ok") | (route & (F.col("outcome") == "absent")), "right")
        .when(F.col("outcome") == "refused", "refused")
        .otherwise("failed")
    )


def registrations(ops: DataFrame) -> DataFrame:
    """Join the requests that one broker sent to all servers at the same time into one operation.

    The operation succeeds when the first server accepts its request. If the servers replicate their table,
    the change is then safe, and all servers will show it. Without replication, the other servers may not know
    the change yet. This is visible in the routes that they return.

    A heartbeat does not count as a registration, for three reasons:

    - It changes nothing.
    - A raft member answers it without a leader.
    - ZooKeeper's brokers send no heartbeats.

    In:  valid operation rows with the column ``run``.
    Out: the same columns. The column op is ``registration``, or ``heartbeat`` if the request changes nothing.
        The column target is null.
    """
    accepted = F.col("outcome") == "ok"
    of_all = (
        ops.where(F.col("op") == "announce")
        .groupBy("run", "user", "due_ns", "change")
        .agg(
            F.min("sent_ns").alias("sent_ns"),
            F.coalesce(F.min(F.when(accepted, F.col("done_ns"))), F.max("done_ns")).alias("done_ns"),
            F.max(F.coalesce("queued", F.lit(False))).alias("queued"),
            F.max(accepted).alias("accepted"),
            F.min_by("outcome", F.struct(~accepted, F.col("done_ns"))).alias("outcome"),
            F.min_by("remark", F.struct(~accepted, F.col("done_ns"))).alias("remark"),
            F.min("client_side").alias("client_side"),
            F.max("version").alias("version"),
        )
    )
    filled: dict[str, Column] = {
        "op": F.when(F.col("change").isNull(), "heartbeat").otherwise("registration"),
        "target": F.lit(None).cast("int"),
        "code": F.lit(None).cast("int"),
        "topic": F.lit(None).cast("string"),
        "brokers": F.lit(None).cast("array<int>"),
        "attempts": F.lit(1),
        "message": F.lit(None).cast("bigint"),
    }
    return of_all.select(*(filled.get(name, F.col(name)).alias(name) for name in ops.columns))


def recoveries(requests: DataFrame) -> DataFrame:
    """Compute the effect of a fault on each kind of operation, and the end of its recovery.

    A request is disturbed in any of these cases:

    - It failed, or its answer was wrong.
    - The client waited longer than ``WAITED_NS`` for the answer.
    - The answer is stale by more than ``WAITED_NS``. For the client, this is no better than an equally
      long wait for the new route.

    To find the end of the recovery, take the instant at which the last disturbed request was due. The
    recovery ends with the first right answer that came at or after this instant. For requests to a single
    server (``newcomer``, ``announce``), each server has its own recovery, and the latest end counts.

    In:  ``REQUESTS``.
    Out: one row per (run, fault, op, scope). The scope ``all`` counts all requests. The scope ``struck``
        counts requests to servers that the fault hit, and ``others`` counts requests to all other servers.
        The scopes ``side-a``... count the requests of clients on one side. The columns are numbers of
        requests (long):

        - n: all requests
        - right, stale, missing, ghost, refused, failed: requests with this verdict (see :func:`judged`)
        - waited: right answers for which the client waited longer than ``WAITED_NS``
        - late: right answers for which the client waited longer than ``LATE_NS``
        - queued: requests that were sent late, because no user was free when they were due
        - unreachable: routes that list a broker which the client cannot reach

        and times (long):

        - behind_ns: the largest ``behind_ns`` of a stale answer, or 0 without a stale answer
        - recovered_ns: from the fault's start until the end of the recovery. 0 if no request was disturbed.
          Null if no right answer came after the last disturbed request
        - first_ns: from the fault's start until the first disturbed request was due
        - slowest_ns: the longest wait for a right answer
        - lateness_ns: the longest delay with which the generator sent a request
        - gap_ns: the longest time after the fault's start in which no request was due. For requests to a
          single server, it is the longest such time of any server. A disturbance that is shorter may stay
          unnoticed
    """
    keys = ["run", "fault", "op", "scope"]
    per_server = F.col("op").isin("newcomer", "announce") & F.col("target").isNotNull()
    scopes = F.array_compact(
        F.array(
            F.lit("all"),
            F.when(per_server & F.col("struck"), "struck").when(per_server, "others"),
            F.col("side"),
        )
    )
    latency = F.col("done_ns") - F.col("due_ns")
    right = F.col("verdict") == "right"
    old = (F.col("verdict") == "stale") & (F.col("behind_ns") > WAITED_NS)
    wrong = F.col("verdict").isin(*WRONG) | old
    during = requests.where(F.col("phase") == "fault").select(
        *("run", "fault", "op", "verdict", "behind_ns", "queued", "offset_ns", "unreachable"),
        F.explode(scopes).alias("scope"),
        (F.col("offset_ns") + latency).alias("answered_ns"),
        latency.alias("latency_ns"),
        (F.col("sent_ns") - F.col("due_ns")).alias("lateness_ns"),
        right.alias("right"),
        (wrong | (latency > WAITED_NS)).alias("disturbed"),
        F.when(per_server, F.col("target")).alias("server"),
    )
    disturbed = F.when(F.col("disturbed"), F.col("offset_ns"))
    begin = F.lit(0).cast("bigint")
    in_order = Window.partitionBy(*keys, "server").orderBy("offset_ns")
    before = F.lag("offset_ns", 1, 0).over(in_order)
    whole = in_order.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    # Shuffle the rows once, for the figures by server and for the figures by scope.
    during = during.repartition(*keys).withColumns(
        {
            "gap_ns": F.greatest("offset_ns", begin) - F.greatest(before, begin),
            "last_ns": F.max(disturbed).over(whole),
        }
    )
    stays_right = F.col("right") & (F.col("answered_ns") >= F.col("last_ns"))
    during = during.withColumn("again_ns", F.min(F.when(stays_right, F.col("answered_ns"))).over(whole))

    def count(condition: Column, name: str) -> Column:
        return F.sum(condition.cast("int")).alias(name)

    totals = during.groupBy(*keys).agg(
        F.count("*").alias("n"),
        count(F.col("right"), "right"),
        *(
            count(F.col("verdict") == each, each)
            for each in ("stale", "missing", "ghost", "refused", "failed")
        ),
        count(F.col("unreachable"), "unreachable"),
        count(F.col("right") & (F.col("latency_ns") > WAITED_NS), "waited"),
        count(F.col("right") & (F.col("latency_ns") > LATE_NS), "late"),
        count(F.col("queued"), "queued"),
        F.min(disturbed).alias("first_ns"),
        F.max("last_ns").alias("last_ns"),
        F.bool_or(F.col("last_ns").isNotNull() & F.col("again_ns").isNull()).alias("never"),
        F.max("again_ns").alias("again_ns"),
        F.max(F.when(F.col("right"), F.col("latency_ns"))).alias("slowest_ns"),
        F.max("lateness_ns").alias("lateness_ns"),
        F.max("gap_ns").alias("gap_ns"),
        F.coalesce(F.max(F.when(F.col("verdict") == "stale", F.col("behind_ns"))), begin).alias("behind_ns"),
    )
    return totals.select(
        *keys,
        *("n", "right", "stale", "missing", "ghost", "refused", "failed", "waited", "late"),
        *("queued", "unreachable", "behind_ns", "first_ns"),
        F.when(F.col("last_ns").isNull(), begin)
        .when(~F.col("never"), F.greatest("again_ns", begin))
        .alias("recovered_ns"),
        *("slowest_ns", "lateness_ns", "gap_ns"),
    )


def outcomes(requests: DataFrame) -> DataFrame:
    """Count the outcomes of route reads for each side of a fault, before, during and after the fault.

    In:  ``REQUESTS``.
    Out: one row per (run, fault, stage, op, side):

        - stage: ``before`` or ``during`` the fault, or ``after`` it was undone
        - n, right, stale, wrong, returning, refused, failed long: numbers of reads. ``wrong`` counts the
          verdicts missing and ghost
    """
    verdict = F.col("verdict")
    named = ("right", "stale", "returning", "refused", "failed")
    stage = F.when(F.col("phase") == "reference", "before").otherwise(
        F.when(F.col("healed"), "after").otherwise("during")
    )
    return (
        requests.where((F.col("phase") != "quiet") & F.col("op").isin(*ROUTE_OPS))
        .groupBy("run", "fault", stage.alias("stage"), "op", "side")
        .agg(
            F.count("*").alias("n"),
            *(F.sum((verdict == each).cast("int")).alias(each) for each in named),
            F.sum(verdict.isin("missing", "ghost").cast("int")).alias("wrong"),
        )
        .select("run", "fault", "stage", "op", "side", "n", "wrong", *named)
    )


def timelines(requests: DataFrame) -> DataFrame:
    """Count the operations that were due in each time step around a fault.

    In:  ``REQUESTS``.
    Out: one row per (run, fault, op, bin):

        - bin int: number of the step from the fault's start, negative before it. A step takes ``BIN_NS``
        - n, right, failed long: numbers of operations. ``failed`` counts the verdicts refused, failed,
          missing and ghost
        - slowest_ns long: the longest wait for any answer
    """
    return (
        requests.where(F.col("phase") != "quiet")
        .groupBy("run", "fault", "op", F.floor(F.col("offset_ns") / BIN_NS).cast("int").alias("bin"))
        .agg(
            F.count("*").alias("n"),
            F.sum((F.col("verdict") == "right").cast("int")).alias("right"),
            F.sum(F.col("verdict").isin(*WRONG).cast("int")).alias("failed"),
            F.max(F.col("done_ns") - F.col("due_ns")).alias("slowest_ns"),
        )
        .select("run", "fault", "op", "bin", "n", "right", "failed", "slowest_ns")
    )


def latency_histogram(requests: DataFrame) -> DataFrame:
    """Count the operations outside of faults by their latency.

    The latency is the time from the instant at which the operation was due until the answer came. The counts
    of several runs can be added up.

    In:  ``REQUESTS``.
    Out: one row per (run, phase, op, value_ns): n long. phase: ``reference`` or ``quiet``. value_ns bigint:
        the bucket's middle, or null for operations that failed or were refused.
    """
    latency = F.when(~F.col("verdict").isin(*UNANSWERED), F.col("done_ns") - F.col("due_ns"))
    calm = requests.where(F.col("phase") != "fault")
    return histogram(calm.select("run", "phase", "op", latency.alias("span_ns")), ("run", "phase", "op"))


def lateness_histogram(requests: DataFrame) -> DataFrame:
    """Count the answered operations by the delay with which the generator sent them.

    The counts of several phases or runs can be added up.

    In:  ``REQUESTS``.
    Out: one row per (run, phase, value_ns): n long. value_ns bigint: the middle of the bucket.
    """
    answered = requests.where(~F.col("verdict").isin(*UNANSWERED))
    lateness = (F.col("sent_ns") - F.col("due_ns")).alias("span_ns")
    return histogram(answered.select("run", "phase", lateness), ("run", "phase"))


def histogram(spans: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """Count durations in buckets whose width grows with the duration (log-linear buckets).

    Each combination of keys may have a thousand buckets, so use keys with few values.

    In:  keys, and span_ns long: the duration, or null if it never ended.
    Out: one row per (keys, value_ns):

        - value_ns bigint: the bucket's middle, or null for durations that never ended
        - n long: number of durations in the bucket
    """
    span = F.greatest("span_ns", F.lit(0).cast("bigint"))  # a null becomes 0 here, and null again below
    magnitude = F.floor(F.log2(F.greatest(span, F.lit(1)).cast("double"))).cast("int")
    exponent = F.greatest(magnitude - F.lit(HISTOGRAM_BITS), F.lit(0))
    mantissa = F.call_function("shiftright", F.col("span_ns"), F.col("exponent"))
    width = F.call_function("shiftleft", F.lit(1).cast("bigint"), F.col("exponent"))
    middle = F.col("mantissa") * width + F.call_function("shiftright", width, F.lit(1))
    return (
        spans.select(
            *keys,
            F.when(F.col("span_ns").isNotNull(), span).alias("span_ns"),
            F.when(F.col("span_ns").isNotNull(), exponent).alias("exponent"),
        )
        .groupBy(*keys, "exponent", mantissa.alias("mantissa"))
        .agg(F.count("*").alias("n"))
        .select(*keys, middle.alias("value_ns"), "n")
    )


def failure_reasons(requests: DataFrame) -> DataFrame:
    """Count the operations that failed, by the reason of the failure.

    Digits in a remark (ports, durations) become ``#``, so that equal reasons are counted together.

    In:  ``REQUESTS``.
    Out: one row per (run, phase, op, outcome, code, remark): n long.
    """
    remark = F.regexp_replace("remark", "[0-9]+", "#")
    return (
        requests.where(F.col("verdict").isin(*UNANSWERED))
        .groupBy("run", "phase", "op", "outcome", "code", remark.alias("remark"))
        .agg(F.count("*").alias("n"))
        .select("run", "phase", "op", "outcome", "code", "remark", "n")
    )


def most(reasons: DataFrame, limit: int) -> DataFrame:
    """Keep the ``limit`` most frequent reasons for each (run, phase, op).

    In, out: :func:`failure_reasons`.
    """
    by_number = Window.partitionBy("run", "phase", "op").orderBy(F.desc("n"), "outcome", "code", "remark")
    return (
        reasons.withColumn("place", F.row_number().over(by_number))
        .where(F.col("place") <= limit)
        .select("run", "phase", "op", "outcome", "code", "remark", "n")
    )


def messages(requests: DataFrame, deliveries: DataFrame, runs: DataFrame) -> DataFrame:
    """Count the outcomes of sent messages.

    A message also counts as read if it is read in a later run of the same cluster.

    In:  ``REQUESTS``; valid delivery rows with the column ``run``; table ``RUNS``.
    Out: one row per (run, fault, op) of runs whose plan has a consumer group:

        - sent long: all messages
        - failed long: messages whose sending failed
        - unknown long: messages of which the producer does not know whether they arrived
        - lost long: messages that were acknowledged and never read
        - repeated long: messages that were read more than once
        - late long: messages that were read more than ``LATE_NS`` after they were due
    """
    handed = deliveries.join(F.broadcast(runs.select("run", "life")), on="run", how="inner")
    read = handed.groupBy("life", "message").agg(F.count("*").alias("times"), F.min("t_ns").alias("read_ns"))
    watched = runs.where("consumes").select("run", "life", "measure_begin_ns")
    times = F.coalesce("times", F.lit(0))
    waited_ns = F.col("read_ns") - F.col("measure_begin_ns") - F.col("due_ns")
    acknowledged = F.col("outcome") == "ok"
    return (
        requests.where(F.col("message").isNotNull())
        .join(F.broadcast(watched), on="run", how="inner")
        .join(read, on=["life", "message"], how="left")
        .groupBy("run", "fault", "op")
        .agg(
            F.count("*").alias("sent"),
            F.sum(F.col("outcome").isin("refused", "error", "absent").cast("int")).alias("failed"),
            F.sum((F.col("outcome") == "unknown").cast("int")).alias("unknown"),
            F.sum((acknowledged & (times == 0)).cast("int")).alias("lost"),
            F.sum((times > 1).cast("int")).alias("repeated"),
            F.sum(F.coalesce(waited_ns > LATE_NS, F.lit(False)).cast("int")).alias("late"),
        )
        .select("run", "fault", "op", "sent", "failed", "unknown", "lost", "repeated", "late")
    )


def new_topics(requests: DataFrame, deliveries: DataFrame, spans: DataFrame, runs: DataFrame) -> DataFrame:
    """Compute the time until a new topic could be used, and the number of brokers that had it in the end.

    In:  ``REQUESTS``; valid delivery rows with the column ``run``;
        :func:`routekeeper.bench.report.routes.shown`; table ``RUNS``.
    Out: one row per (run, fault) in which producers tried to send to a new topic:

        - sent_ns long: time from the fault's start until every producer had succeeded, or null if a producer
          never succeeded
        - read_ns long: time from the fault's start until the consumer group got its first message. Null if
          the group got no message
        - brokers long: number of brokers that any nameserver listed for the topic at the end of the window
    """
    tries = requests.where((F.col("op") == "first_send") & F.col("fault").isNotNull())
    ok = F.col("outcome") == "ok"
    answered_ns = F.col("offset_ns") + F.col("done_ns") - F.col("due_ns")
    # A producer stops after its first success. So a failed attempt after the last success of all producers
    # shows that one producer never succeeded.
    of_producers = tries.groupBy("run", "fault", "topic").agg(
        F.max(F.when(ok, answered_ns)).alias("sent_ns"),
        F.max(F.when(~ok, F.col("offset_ns"))).alias("failed_ns"),
    )
    lives = runs.select("run", "life", "measure_begin_ns")
    begin_ns = F.col("measure_begin_ns") + F.col("due_ns") - F.col("offset_ns")
    handed = deliveries.join(F.broadcast(lives.select("run", "life")), on="run", how="inner").select(
        "life", "message", "t_ns"
    )
    of_group = (
        tries.join(F.broadcast(lives), on="run", how="inner")
        .select("run", "fault", "life", "message", begin_ns.alias("begin_ns"))
        .join(handed, on=["life", "message"], how="inner")
        .groupBy("run", "fault")
        .agg(F.min(F.col("t_ns") - F.col("begin_ns")).alias("read_ns"))
    )
    ends = runs.select("run", F.explode("windows").alias("window")).select(
        "run", "window.fault", F.col("window.until_ns").alias("end_ns")
    )
    # Take the routes shortly before the end of the window, because brokers may be restarting at the end.
    last_ns = F.col("end_ns") - WAITED_NS
    of_brokers = (
        spans.where((F.col("observer") == "nameserver") & (F.col("state") == "routed"))
        .join(F.broadcast(of_producers.select("run", "fault", "topic")), on=["run", "topic"], how="inner")
        .join(F.broadcast(ends), on=["run", "fault"], how="inner")
        .where((F.col("since_ns") < last_ns) & (F.col("until_ns") >= last_ns))
        .select("run", "fault", F.explode("brokers").alias("broker"))
        .groupBy("run", "fault")
        .agg(F.count_distinct("broker").alias("brokers"))
    )
    return (
        of_producers.join(of_group, on=["run", "fault"], how="left")
        .join(of_brokers, on=["run", "fault"], how="left")
        .select(
            "run",
            "fault",
            F.when(F.coalesce(F.col("failed_ns") < F.col("sent_ns"), F.lit(True)), F.col("sent_ns")).alias(
                "sent_ns"
            ),
            "read_ns",
            F.coalesce("brokers", F.lit(0)).alias("brokers"),
        )
    )
