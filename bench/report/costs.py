"""Resources that processes, disks and links used during the measured time.

Each function makes a DataFrame from DataFrames, without other inputs or effects.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F


def process_costs(samples: DataFrame, runs: DataFrame) -> DataFrame:
    """Sum the resources of each role in the measured time.

    A process that was started during the run counts from its start. An index is the number of a process
    within its role. If a process is started again, the new process gets the same index.

    In:  ``samples``, valid process rows with the column ``run``; ``runs``, the table ``RUNS``.
    Out: one row per (run, role):

        - covered_ns long: time from the first to the last sample. All other columns are for this time
        - cpu_ns long
        - rss_bytes long: sum over all indexes of the largest resident size. If an index had several
          processes, only the largest process counts
        - pids long: number of processes
        - processes long: number of indexes
        - busiest double: CPU cores that the busiest process used on average
        - died long: processes that ended although the harness did not end them
    """
    t = F.col("t_ns")
    lives = (
        samples.join(F.broadcast(runs), on="run", how="inner")
        .where((t >= F.col("measure_begin_ns")) & (t <= F.col("measure_end_ns")))
        .groupBy("run", "role", "index", "pid")
        .agg(
            (F.max("cpu_ns") - F.min("cpu_ns")).alias("cpu_ns"),
            (F.max("t_ns") - F.min("t_ns")).alias("alive_ns"),
            F.min("t_ns").alias("first_ns"),
            F.max("t_ns").alias("last_ns"),
            F.max("rss_bytes").alias("rss_bytes"),
            F.max(
                (F.coalesce((F.col("event") == "exit") & ~F.col("wanted"), F.lit(False))).cast("int")
            ).alias("died"),
        )
    )
    each = lives.groupBy("run", "role", "index").agg(
        F.min("first_ns").alias("first_ns"),
        F.max("last_ns").alias("last_ns"),
        F.sum("cpu_ns").alias("cpu_ns"),
        F.max("rss_bytes").alias("rss_bytes"),
        F.count("*").alias("pids"),
        F.max(F.try_divide("cpu_ns", "alive_ns")).alias("busiest"),
        F.sum("died").alias("died"),
    )
    return (
        each.groupBy("run", "role")
        .agg(
            (F.max("last_ns") - F.min("first_ns")).alias("covered_ns"),
            F.sum("cpu_ns").alias("cpu_ns"),
            F.sum("rss_bytes").alias("rss_bytes"),
            F.sum("pids").alias("pids"),
            F.count("*").alias("processes"),
            F.max("busiest").alias("busiest"),
            F.sum("died").alias("died"),
        )
        .select(
            *("run", "role", "covered_ns", "cpu_ns", "rss_bytes", "pids", "processes"),
            *("busiest", "died"),
        )
    )


def fault_costs(samples: DataFrame, runs: DataFrame) -> DataFrame:
    """Sum the resources that each role used from the start of each fault.

    A process that was started after the start of the fault counts from its own start. The window of a fault
    ends at ``until_ns``.

    In:  ``samples``, valid process rows with the column ``run``; ``runs``, the table ``RUNS``.
    Out: one row per (run, fault, role):

        - cpu_ns long: from the last sample before the fault until the last sample in the window
        - started long: number of processes that were started after the start of the fault
    """
    window = F.col("window")
    at = F.col("t_ns") - F.col("measure_begin_ns")
    before = at <= window["begin_ns"]
    each = (
        samples.join(F.broadcast(runs), on="run", how="inner")
        .withColumn("window", F.explode("windows"))
        .where(at < window["until_ns"])
        .groupBy("run", window["fault"].alias("fault"), "role", "pid")
        .agg(
            (F.max("cpu_ns") - F.coalesce(F.max(F.when(before, F.col("cpu_ns"))), F.min("cpu_ns"))).alias(
                "cpu_ns"
            ),
            F.max((~before & (F.col("event") == "start")).cast("int")).alias("started"),
        )
    )
    return (
        each.groupBy("run", "fault", "role")
        .agg(F.sum("cpu_ns").alias("cpu_ns"), F.sum("started").alias("started"))
        .select("run", "fault", "role", "cpu_ns", "started")
    )


def disk_costs(samples: DataFrame) -> DataFrame:
    """Sum the bytes that servers and the disk device wrote, from the first to the last sample of a run.

    In:  ``samples``, valid disk rows with the column ``run``.
    Out: one row per (run, role): covered_ns, written_bytes, syncs, sectors long. A figure is null in two
        cases:

        - A server does not report it.
        - A server's last figure is smaller than its first, because its files were replaced during the run.
    """

    def grown(name: str) -> Column:
        first, last = F.min_by(name, "t_ns"), F.max_by(name, "t_ns")
        return F.when(last >= first, last - first).alias(name)

    def total(name: str) -> Column:
        return F.when(F.count(name) == F.count("*"), F.sum(name)).alias(name)

    return (
        samples.groupBy("run", "role", "index")
        .agg(
            (F.max("t_ns") - F.min("t_ns")).alias("covered_ns"),
            *map(grown, ("written_bytes", "syncs", "sectors")),
        )
        .groupBy("run", "role")
        .agg(F.max("covered_ns").alias("covered_ns"), *map(total, ("written_bytes", "syncs", "sectors")))
        .select("run", "role", "covered_ns", "written_bytes", "syncs", "sectors")
    )


def link_bytes(links: DataFrame, runs: DataFrame) -> DataFrame:
    """Sum the bytes that passed the links of the harness's proxy in the measured time.

    In:  ``links``, valid link rows with the column ``run``; ``runs``, the table ``RUNS``.
    Out: one row per (run, dialler, acceptor):

        - covered_ns long: time from the first to the last sample
        - bytes long: bytes in both directions in this time
    """
    t = F.col("t_ns")
    return (
        links.join(F.broadcast(runs), on="run", how="inner")
        .where((t >= F.col("measure_begin_ns")) & (t <= F.col("measure_end_ns")))
        .groupBy("run", "dialler", "acceptor")
        .agg(
            (F.max("t_ns") - F.min("t_ns")).alias("covered_ns"),
            (
                F.max("forward_bytes") - F.min("forward_bytes") + F.max("back_bytes") - F.min("back_bytes")
            ).alias("bytes"),
        )
        .select("run", "dialler", "acceptor", "covered_ns", "bytes")
    )
