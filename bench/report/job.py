"""The Spark job: run folders in, Parquet, CSV and one HTML page out.

Runs unchanged as ``mqbench report``, ``python -m bench.report`` and ``spark-submit --master URL job.py``.
Spark reads the JSONL once, writes it as typed zstd Parquet (``silver/``), and computes every table from that.
The tables are small; they come to the driver, which writes them (``marts/``, Parquet and CSV) and draws the
page.
"""

import argparse
import contextlib
import csv
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.jre import ensure_java
from bench.manifest import Manifest, ManifestError, find_run_folders, read_manifest, run_files
from bench.report import marts as m
from bench.report import schemas, transforms
from bench.report.findings import Comparison, Scenario, find
from bench.report.render import page
from bench.samples import Change, Event, Fault, Operation, ProcessSample, Visibility

BAD_LINES_MAX: Final = 1
"""Per file: the line that a killed process was writing. More means that the file cannot be trusted."""

_T = TypeVar("_T")
_INTERRUPTED: Final = 130  # as a shell says it: 128 + SIGINT
_END_S: Final = 3.0
_LAPTOP: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
"""Used only where nobody chose a Spark master; on a cluster its own settings rule."""


_ARROW_TYPES: Final = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "array<int>": pa.list_(pa.int32()),
    "array<bigint>": pa.list_(pa.int64()),
    "array<string>": pa.list_(pa.string()),
}


class NoRuns(Exception):
    """There is nothing below the given folders that looks like a run."""


def build_report(run_roots: list[Path], out: Path, *, progress: Callable[[str], None]) -> Path:
    """Build the report of all runs at or below ``run_roots`` into ``out``.

    Args:
        run_roots: Run folders or folders above them, see :func:`bench.manifest.find_run_folders`.
        out: Created if missing. Gets ``report.html``, ``marts/*.parquet``, ``marts/*.csv``, ``silver/``;
        older ones
            are replaced.
        progress: Called with one short line per step.

    Returns:
        The path of ``report.html``.

    Raises:
        NoRuns: If no run folder is found.
    """
    began = time.monotonic()
    runs = find_runs(run_roots)
    if not runs:
        raise NoRuns(f"no run folder (mode=*/scenario=*/rep=*) in {', '.join(map(str, run_roots))}")
    for folder in (out / "marts", out / "silver"):
        folder.mkdir(parents=True, exist_ok=True)
    mine = SparkSession.getActiveSession() is None
    progress(f"report: {len(runs)} run folders; starting Spark")
    spark = open_session()
    try:
        tables = compute(spark, runs, out, progress=progress)
        progress(f"report: tables ready after {time.monotonic() - began:.0f} s; comparing modes and drawing")
    finally:
        if mine:
            spark.stop()
    scenarios = find(tables)
    write_rows(out / "marts", "comparisons", [row for each in scenarios for row in comparison_rows(each)])
    write_rows(out / "marts", "runs", [run_row(run) for run in tables.runs])
    path = out / "report.html"
    path.write_text(page(tables, scenarios), encoding="utf-8")
    progress(f"report: done after {time.monotonic() - began:.0f} s")
    return path.resolve()


def find_runs(roots: list[Path]) -> list[m.Run]:
    """Name the runs and say which cannot be used and why, as far as the manifests tell."""
    folders = find_run_folders(roots)
    batches = sorted({folder.parents[2] for folder in folders})
    found = []
    for folder in folders:
        mode, scenario, rep = (part.partition("=")[2] for part in folder.parts[-3:])
        prefix = f"{batches.index(folder.parents[2]) + 1}:" if len(batches) > 1 else ""
        name = f"{prefix}{mode}/{scenario}/{rep}"
        try:
            manifest = read_manifest(folder)
        except ManifestError as error:
            found.append(m.Run(run=name, folder=folder, manifest=None, left_out=str(error)))
            continue
        found.append(m.Run(run=name, folder=folder, manifest=manifest, left_out=_why_void(manifest)))
    return found


def _why_void(manifest: Manifest) -> str | None:
    if manifest.void is not None:
        return f"the harness voided it: {manifest.void}"
    if manifest.ended_ns is None:
        return "it was never completed"
    return None


def compute(spark: SparkSession, runs: list[m.Run], out: Path, *, progress: Callable[[str], None]) -> m.Marts:
    """Read the events of the runs, write ``silver/`` and ``marts/`` below ``out``, and return the tables."""
    usable = [run for run in runs if run.manifest is not None]
    times = local_frame(
        spark,
        [_times(run.run, run.manifest) for run in usable if run.manifest is not None],
        schemas.RUNS_SCHEMA,
    )
    progress("report: reading events")
    silver: dict[type[Event], DataFrame] = {}
    for kind in (Operation, Change, Visibility, Fault, ProcessSample):
        path = str((out / "silver" / kind.__name__.lower()).resolve())
        read_events(spark, kind, usable).write.mode("overwrite").option("compression", "zstd").parquet(path)
        silver[kind] = spark.read.parquet(path)

    quality = None
    for events in silver.values():
        counted = transforms.line_quality(events)
        quality = counted if quality is None else quality.unionByName(counted)
    assert quality is not None
    files = collect(quality.orderBy("run", "file"), m.FileLines, out, "files")
    runs = judge_files(runs, files)
    kept = [run.run for run in runs if run.left_out is None]

    def good(kind: type[Event]) -> DataFrame:
        return silver[kind].where(F.col("good") & F.col("run").isin(kept))

    progress(f"report: computing tables of {len(kept)} runs")
    windows = collect(
        transforms.fault_windows(good(Fault), times).orderBy("run", "fault"), m.Window, out, "faults"
    )
    faults = local_frame(spark, [_window_row(window) for window in windows], schemas.WINDOWS_SCHEMA)
    ops_path = str((out / "silver" / "measured").resolve())
    measured = transforms.operations(good(Operation), times, faults)
    measured.write.mode("overwrite").option("compression", "zstd").parquet(ops_path)
    ops = spark.read.parquet(ops_path)
    histogram_path = str((out / "silver" / "histogram").resolve())
    transforms.latency_histogram(ops).write.mode("overwrite").option("compression", "zstd").parquet(
        histogram_path
    )
    histogram = spark.read.parquet(histogram_path)
    visible = transforms.visibility_by_change(good(Change), good(Visibility), times, faults)
    return m.Marts(
        runs=runs,
        files=files,
        windows=windows,
        histogram=collect(histogram, m.Bucket, out, "latency_histogram"),
        percentiles=collect(
            transforms.percentiles(histogram).orderBy("run", "op", "measure"), m.Percentiles, out, "latency"
        ),
        outcomes=collect(transforms.outcomes(ops), m.Outcomes, out, "outcomes"),
        seconds=collect(transforms.per_second(ops), m.Second, out, "per_second"),
        outages=collect(transforms.outages(ops), m.Outage, out, "outages"),
        visible=collect(visible, m.Visible, out, "visibility"),
        costs=collect(
            transforms.process_cost(good(ProcessSample), times).orderBy("run", "role", "index"),
            m.Cost,
            out,
            "processes",
        ),
        reasons=collect(transforms.failure_reasons(ops), m.Reason, out, "failure_reasons"),
    )


def judge_files(runs: list[m.Run], files: list[m.FileLines]) -> list[m.Run]:
    """Leave out the runs that hold no operations or more damaged lines than a killed process explains
    (pure)."""
    judged = []
    for run in runs:
        damaged = [file for file in files if file.run == run.run and file.bad > BAD_LINES_MAX]
        asked = any(file.run == run.run and file.file.startswith("ops-") for file in files)
        reason = run.left_out
        if reason is None and damaged:
            worst = max(damaged, key=lambda file: file.bad)
            reason = f"{worst.bad} of {worst.lines} lines of {worst.file} are damaged, {BAD_LINES_MAX} may be"
        if reason is None and not asked:
            reason = "it holds no operations"
        judged.append(m.Run(run=run.run, folder=run.folder, manifest=run.manifest, left_out=reason))
    return judged


def read_events(spark: SparkSession, kind: type[Event], runs: list[m.Run]) -> DataFrame:
    """Read all files of one kind: the columns of its schema, run, file, good; a damaged line is a row too."""
    schema = f"{schemas.EVENT_SCHEMAS[kind]}, {schemas.BAD} string, {schemas.PARTITION_COLUMNS}"
    columns = [part.split()[0] for part in schemas.EVENT_SCHEMAS[kind].split(", ")]
    frame: DataFrame | None = None
    for base in sorted({run.folder.parents[2] for run in runs}):
        batch = [run for run in runs if run.folder.parents[2] == base]
        paths = [_no_glob(path) for path in run_files([run.folder for run in batch], kind)]
        if not paths:
            continue
        prefix = batch[0].run.rpartition(":")
        read = (
            spark.read.schema(schema)
            .option("basePath", str(base))
            .option("mode", "PERMISSIVE")
            .option("columnNameOfCorruptRecord", schemas.BAD)
            .json(paths)
            .select(
                F.concat(
                    F.lit(prefix[0] + prefix[1]),
                    F.concat_ws("/", "mode", "scenario", F.col("rep").cast("string")),
                ).alias("run"),
                F.col("_metadata.file_name").alias("file"),
                *columns,
                schemas.BAD,
            )
        )
        frame = read if frame is None else frame.unionByName(read)
    if frame is None:
        frame = local_frame(
            spark, [], f"run string, file string, {schemas.EVENT_SCHEMAS[kind]}, {schemas.BAD} string"
        )
    return transforms.checked(frame, schemas.REQUIRED[kind])


def local_frame(spark: SparkSession, rows: list[tuple[Any, ...]], schema: str) -> DataFrame:
    """Make a frame of the driver's own rows by Arrow: of a list Spark would make Python tasks."""
    names, types = zip(*(part.split() for part in schema.split(", ")), strict=True)
    columns = [[row[place] for row in rows] for place in range(len(names))]
    arrays = [pa.array(column, type=_ARROW_TYPES[kind]) for column, kind in zip(columns, types, strict=True)]
    return spark.createDataFrame(pa.table(arrays, names=list(names)), schema)


def collect(frame: DataFrame, row: type[_T], out: Path, name: str) -> list[_T]:
    """Bring a small table to the driver, write it below ``out/marts`` and return it as ``row`` objects."""
    table = frame.toArrow()
    rows = table.to_pylist()
    pq.write_table(table, out / "marts" / f"{name}.parquet", compression="zstd")
    _write_csv(out / "marts" / f"{name}.csv", table.column_names, rows)
    return [row(**values) for values in rows]


def write_rows(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    """Write a table that the driver made, as Parquet and CSV."""
    pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet", compression="zstd")
    _write_csv(folder / f"{name}.csv", list(rows[0]) if rows else [], rows)


def comparison_rows(scenario: Scenario) -> list[dict[str, Any]]:
    """Return one row per comparison of a scenario."""

    def row(comparison: Comparison) -> dict[str, Any]:
        sides = {
            "independent": comparison.independent,
            "raft": comparison.raft,
            "difference": comparison.difference,
        }
        values: dict[str, Any] = {
            "scenario": scenario.name,
            "key": comparison.key,
            "label": comparison.label,
            "unit": comparison.unit,
            "verdict": comparison.verdict,
        }
        for name, estimate in sides.items():
            values |= {
                name: estimate.value if estimate else None,
                f"{name}_low": estimate.low if estimate else None,
                f"{name}_high": estimate.high if estimate else None,
                f"{name}_runs": estimate.runs if estimate else 0,
            }
        return values

    return [row(comparison) for comparison in scenario.comparisons.values()]


def run_row(run: m.Run) -> dict[str, Any]:
    """Return the row of the ``runs`` table."""
    manifest = run.manifest
    return {
        "run": run.run,
        "left_out": run.left_out,
        "pair": manifest.pair if manifest else None,
        "order_in_pair": manifest.order_in_pair if manifest else None,
        "seed": manifest.seed if manifest else None,
        "durability": manifest.durability if manifest else None,
        "timer_divisor": manifest.timer_divisor if manifest else None,
        "commit": manifest.commit if manifest else None,
        "started_at": manifest.started_at if manifest else None,
    }


def open_session() -> SparkSession:
    """Return the active session, or start one: on the master that was given, else on this machine."""
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers start the python3 first on PATH
    builder = SparkSession.builder.appName("mqbench report").config("spark.sql.session.timeZone", "UTC")
    if not _submitted():
        ensure_java()
        if "master" not in os.environ.get("PYSPARK_SUBMIT_ARGS", ""):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else Spark warns about the host's name
            for key, value in _LAPTOP.items():
                builder = builder.config(key, value)
    handler = signal.getsignal(signal.SIGINT)
    session = builder.getOrCreate()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)  # Spark has put one of its own there
    return session


def _submitted() -> bool:
    """Whether spark-submit runs this, in a JVM of its own."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the last line printed is the path of the page."""
    parser = argparse.ArgumentParser(prog="mqbench report", description="Compare the modes from run folders.")
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN_FOLDER", help="a run folder, or a folder that holds some"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out"),
        help="where the report goes (default: %(default)s)",
    )
    parser.add_argument(
        "--master",
        help="Spark master such as spark://host:7077 (default: this machine; spark-submit has its own)",
    )
    options = parser.parse_args(argv)
    if options.master is not None and not _submitted():
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--master {shlex.quote(options.master)} pyspark-shell"
    before = signal.getsignal(signal.SIGINT)
    if not _submitted():
        signal.signal(signal.SIGINT, _interrupted)
    try:
        path = build_report(
            options.runs, options.out, progress=lambda line: print(line, file=sys.stderr, flush=True)
        )
    except NoRuns as error:
        print(f"mqbench report: {error}", file=sys.stderr)
        return 2
    finally:
        signal.signal(signal.SIGINT, before)
    print(path)
    return 0


def _interrupted(number: int, frame: object) -> NoReturn:
    """End Spark's JVM and workers, then this process, from wherever it is.

    A JVM that was just being started would wait for this process for ever; and an exception in the middle of
    a call into the JVM becomes many, each with its traceback.
    """
    import psutil  # where somebody else submits the job, this may be absent, and has nothing to do

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    children = psutil.Process().children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.terminate()
    for child in psutil.wait_procs(children, timeout=_END_S)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    os._exit(_INTERRUPTED)


def _times(run: str, manifest: Manifest) -> tuple[str, int, int, int, int]:
    settle_ns = manifest.settle_ms * 1_000_000
    return run, manifest.nameservers, manifest.measure_begin_ns, manifest.measure_end_ns, settle_ns


def _window_row(window: m.Window) -> tuple[Any, ...]:
    return (
        *(window.run, window.fault, window.kind, window.role, window.targets),
        *(window.begin_ns, window.end_ns, window.quiet_ns, window.until_ns),
    )


def _no_glob(path: Path) -> str:
    """Spark takes paths as patterns."""
    return "".join(f"\\{char}" if char in "\\[]{}*?" else char for char in str(path))


def _write_csv(path: Path, columns: list[str], rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for row in rows:
            writer.writerow(
                [" ".join(map(str, cell)) if isinstance(cell, list) else cell for cell in row.values()]
            )


if __name__ == "__main__":
    sys.exit(main())
