"""The Spark job that makes the report. It reads run folders, and writes Parquet, CSV and one HTML page.

The same code runs as ``mqbench report``, ``python -m routekeeper.bench.report`` and ``spark-submit --master
URL``. Paths are URIs that Spark understands.
"""

import argparse
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from routekeeper.bench.report import answers, storage
from routekeeper.bench.report.beside import with_facts
from routekeeper.bench.report.conditions import conditions
from routekeeper.bench.report.gold import Gold
from routekeeper.bench.report.measures import Place, Values, downs, floors, set_by_plan, values
from routekeeper.bench.report.page import NEIGHBOURS, divisors_of, named_lines, page
from routekeeper.bench.report.pipeline import compute
from routekeeper.bench.report.session import in_one_process, interrupted, is_small, open_session, submitted
from routekeeper.bench.report.silver import NoRuns


def build_report(roots: Sequence[str], out: str, *, progress: Callable[[str], None]) -> str:
    """Build the report of all runs at or below ``roots``, write it into ``out``, and return the page's path.

    Args:
        roots: URIs of result folders, or of folders within or above them.
        out: Folder for ``report.html``, ``marts/`` (Parquet and CSV), and ``silver/``. The folder ``silver/``
            is kept, so that a later report reads only new or repeated runs.
        progress: Called with one short line per step.

    Raises:
        bench.report.silver.NoRuns: If no run folder is found.
    """
    began = time.monotonic()
    mine = SparkSession.getActiveSession() is None
    progress("report: starting Spark")
    small = is_small(roots)
    spark = open_session(small=small)
    try:
        small = small and in_one_process(str(spark.sparkContext.master))
        gold = compute(spark, roots, out, small=small, progress=progress)
        progress(f"report: tables ready after {time.monotonic() - began:.0f} s; drawing")
        found = values(gold)
        write_values(spark, out, found, floors(gold), conditions(gold).crowded, set_by_plan(gold, found))
        write_conditions(spark, out, gold)
        used = [each for each in gold.sources if each.left_out is None]
        write_undivided(spark, out, answers.taken_apart(found, divisors_of(used), downs(gold)))
        write_lines(spark, out, with_facts(answers.primaries(named_lines(used), found), used, found))
        there = [name for name in NEIGHBOURS if storage.exists(spark, storage.join(out, name))]
        path = storage.join(out, "report.html")
        storage.write(spark, path, page(gold, found, there).encode())
        progress(f"report: done after {time.monotonic() - began:.0f} s")
        return storage.shown(spark, path)
    finally:
        if mine:
            spark.stop()


def write_values(
    spark: SparkSession,
    out: str,
    found: Values,
    below: Mapping[Place, Mapping[str, float]],
    crowded: Collection[answers.Setting] = (),
    planned: Collection[tuple[Place, str]] = (),
) -> None:
    """Write the figures of the page: the values of each run, and the differences of each pair of designs."""
    each = [
        {
            "series": place.series,
            "scenario": place.scenario,
            "case": place.case,
            "measure": place.measure,
            "arm": arm,
            "batch": block[0],
            "block": block[1],
            "value": value,
            "floor": below.get(place, {}).get(arm, 0.0),
            "set_by_plan": (place, arm) in planned,
        }
        for place, arms in found.items()
        for arm, blocks in arms.items()
        for block, value in sorted(blocks.items())
    ]
    pairs = [
        {
            "series": row.place.series,
            "scenario": row.place.scenario,
            "case": row.place.case,
            "measure": row.place.measure,
            "unit": row.measure.unit,
            "material": pair.material,
            "first": pair.arms[0],
            "second": pair.arms[1],
            "difference": pair.estimate.value,
            "low": pair.estimate.low,
            "high": pair.estimate.high,
            "blocks": pair.estimate.blocks,
            "lower_in": pair.estimate.below,
            "higher_in": pair.estimate.above,
            "leaning": pair.leaning,
        }
        for row in answers.rows(found, crowded=crowded, planned=planned)
        for pair in row.pairs
        if pair.estimate is not None
    ]
    for name, rows in (("values", each), ("differences", pairs)):
        storage.write_table(spark, storage.join(out, "marts"), name, pa.Table.from_pylist(rows))


def write_lines(spark: SparkSession, out: str, lines: Sequence[answers.Primary]) -> None:
    """Write the headline measures, which were named before anything ran, and the facts that explain them."""
    rows = [{**msgspec.to_builtins(line.named), "beside": line.beside} for line in lines]
    texts = ("name", "series", "scenario", "case", "measure", "unit", "better", "beside")
    columns = pa.schema(
        [(name, pa.string()) for name in texts] + [("arms", pa.list_(pa.string())), ("margin", pa.float64())]
    )
    storage.write_table(
        spark, storage.join(out, "marts"), "lines", pa.Table.from_pylist(rows, schema=columns)
    )


def write_undivided(spark: SparkSession, out: str, apart: Sequence[answers.Taken]) -> None:
    """Write each recovery's time with RocketMQ's own timers, in s: bounds, parts and measured value.

    - ``least`` and ``most`` are the bounds. They are computed from runs with divided timers, where possible.
    - ``fixed`` and ``scaled`` are the parts. Runs with two divisors determine the parts, and then the two
      bounds are equal. Runs with one divisor give only the bounds.
    - Bounds and parts are empty if the median recovery at one of the used divisors never ended.
    """
    rows = [
        {
            "scenario": taken.place.scenario,
            "case": taken.place.case,
            "measure": taken.place.measure,
            "arm": taken.arm,
            "least": taken.split and taken.split.low,
            "most": taken.split and taken.split.high,
            "fixed": taken.split and taken.split.fixed,
            "scaled": taken.split and taken.split.scaled,
            "measured": taken.measured,
        }
        for taken in apart
    ]
    texts, figures = ("scenario", "case", "measure", "arm"), ("least", "most", "fixed", "scaled", "measured")
    columns = pa.schema(
        [*((name, pa.string()) for name in texts), *((name, pa.float64()) for name in figures)]
    )
    storage.write_table(
        spark, storage.join(out, "marts"), "undivided", pa.Table.from_pylist(rows, schema=columns)
    )


def write_conditions(spark: SparkSession, out: str, gold: Gold) -> None:
    """Write the conditions of each run: other programs' cores, lateness of the load, share of used cores."""
    shared = conditions(gold)
    rows = [
        {
            "run": source.run,
            "others_cores": shared.others_cores.get(source.run),
            "late_ms": shared.late_ms.get(source.run),
            "used_share": shared.used_share.get(source.run),
        }
        for source in gold.sources
        if source.left_out is None
    ]
    figures = ("others_cores", "late_ms", "used_share")
    columns = pa.schema([("run", pa.string()), *((name, pa.float64()) for name in figures)])
    storage.write_table(
        spark, storage.join(out, "marts"), "conditions", pa.Table.from_pylist(rows, schema=columns)
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. The last printed line is the path of the page."""
    parser = argparse.ArgumentParser(prog="mqbench report", description="Compare the arms from run folders.")
    parser.add_argument(
        "runs", nargs="+", metavar="RUNS", help="a result folder, or one within it: a path or URI"
    )
    parser.add_argument("--out", default="out", help="where the report goes (default: %(default)s)")
    parser.add_argument(
        "--master",
        help="Spark master such as spark://host:7077 (default: this machine; spark-submit has its own)",
    )
    options = parser.parse_args(argv)
    if options.master is not None and not submitted():
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--master {shlex.quote(options.master)} pyspark-shell"
    before = signal.getsignal(signal.SIGINT)
    if not submitted():
        signal.signal(signal.SIGINT, interrupted)
    try:
        path = build_report(
            options.runs, options.out, progress=lambda line: print(line, file=sys.stderr, flush=True)
        )
    except NoRuns as error:
        print(f"mqbench report: {error}", file=sys.stderr)
        return 2
    except (OSError, PySparkException, Py4JError) as error:
        print(f"mqbench report: {_reason(error)}", file=sys.stderr)
        return 1
    finally:
        signal.signal(signal.SIGINT, before)
    print(path)
    return 0


def _reason(error: BaseException) -> str:
    """Return the reason of an error in one line.

    An error of the JVM may name only the call that failed. Therefore, return the innermost cause of such an
    error.
    """
    text = str(error)
    cause = getattr(error, "java_exception", None)
    while cause is not None:
        text, cause = str(cause.toString()), cause.getCause()
    return text.partition("\n")[0] or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
