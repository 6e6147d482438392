"""Silver: the events of all runs as typed Parquet, partitioned as the runs are; a run is read from JSON once.

::

    OUT/silver/KIND/batch=B/series=S/scenario=C/block=N/arm=A/part-*.parquet
    OUT/silver/sources/      which runs are in it, and by which manifest

A run whose manifest has changed since (a void attempt made again) is read anew.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.report import storage
from bench.report.session import Together
from bench.report.tables import BAD, EVENTS, PATH_COLUMNS, REQUIRED, RUN_KEYS, RUNS, columns
from bench.runfolder import FORMAT, Manifest

BAD_LINES_MAX: Final = 1
"""Per file: the line that a killed process was writing. More means that the file cannot be trusted."""

_RUN: Final = re.compile(
    r"^(?P<base>.*?)/?series=(?P<series>[^/]+)/scenario=(?P<scenario>[^/]+)/block=(?P<block>[0-9]+)"
    r"/arm=(?P<arm>[^/]+)(?P<attempt>/attempt=[0-9]+)?/[^/]+$"
)


class NoRuns(Exception):
    """There is nothing below the given folders that looks like a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One run folder; ``left_out`` says why it is in no figure, None if it is."""

    run: str
    uri: str
    base: str
    """The folder above ``series=``."""
    batch: str
    series: str
    scenario: str
    block: int
    arm: str
    manifest: Manifest | None
    left_out: str | None = None

    @property
    def stamp(self) -> str:
        """What changes when the run is made again."""
        if self.manifest is None:
            return "none"
        m = self.manifest
        return f"{FORMAT} {m.attempt} {m.started_at} {m.started_ns} {m.ended_ns} {m.measure_end_ns}"


def find(spark: SparkSession, roots: Sequence[str]) -> list[Source]:
    """Find the runs at or below ``roots`` and read their manifests; void attempts are named, too.

    Raises:
        NoRuns: If there are none.
    """
    folders: dict[str, bytes | None] = {}
    for path in sorted({path for root in roots for path in storage.listing(spark, root)}):
        folder, _, name = path.rpartition("/")
        if _RUN.match(path) is not None and name == "manifest.json":
            folders[folder] = storage.read(spark, path)
        elif _RUN.match(path) is not None and name.endswith(".jsonl"):
            folders.setdefault(folder, None)
    found = {}
    for folder, manifest in folders.items():
        match = _RUN.match(f"{folder}/manifest.json")
        assert match is not None, "it was matched before"
        comparison = match["base"].removesuffix("/runs").removesuffix("/void")
        batch = hashlib.sha256(comparison.encode()).hexdigest()[:8]
        found[folder] = _source(folder, match, batch, manifest)
    if not found:
        raise NoRuns(f"no run folder (series=*/scenario=*/block=*/arm=*) in {', '.join(roots)}")
    return list(found.values())


def _source(folder: str, match: re.Match[str], batch: str, content: bytes | None) -> Source:
    manifest, left_out = None, None
    if content is None:
        left_out = "it has no manifest.json"
    else:
        try:
            manifest = msgspec.json.decode(content, type=Manifest)
        except msgspec.MsgspecError as error:
            left_out = f"its manifest.json cannot be read: {error}"
    if manifest is not None:
        said = (manifest.series, manifest.scenario, manifest.block, manifest.arm)
        if manifest.format > FORMAT:
            left_out = f"its manifest has format {manifest.format}, this program knows up to {FORMAT}"
        elif said != (match["series"], match["scenario"], int(match["block"]), match["arm"]):
            left_out = "its manifest names another run than its folder"
        elif manifest.void is not None:
            left_out = f"the harness failed: {manifest.void}"
        elif manifest.ended_ns is None:
            left_out = "it was never completed"
    run = "/".join((batch, match["series"], match["scenario"], match["block"], match["arm"]))
    if match["attempt"]:
        run += match["attempt"]
        left_out = left_out or "it was made again"
    return Source(
        run=run,
        uri=folder,
        base=match["base"],
        batch=batch,
        series=match["series"],
        scenario=match["scenario"],
        block=int(match["block"]),
        arm=match["arm"],
        manifest=manifest,
        left_out=left_out,
    )


def new_ones(spark: SparkSession, sources: Sequence[Source], out: str) -> list[Source]:
    """Return the usable runs that silver lacks, and drop what it holds of an earlier making of them."""
    path = storage.join(out, "silver", "sources")
    known = {}
    if storage.exists(spark, path):
        known = {row.run: row.stamp for row in spark.read.parquet(path).collect()}
    wanted = [source for source in sources if source.left_out is None]
    for source in sources:
        if source.run in known and (source.left_out is not None or known[source.run] != source.stamp):
            for kind in (*EVENTS, "requests"):
                storage.delete(spark, storage.join(out, "silver", kind, _partition(source)))
    return [source for source in wanted if known.get(source.run) != source.stamp]


def note_sources(spark: SparkSession, sources: Sequence[Source], out: str) -> None:
    """Write down what silver holds now; called last, so that what broke before is done again."""
    kept = [source for source in sources if source.left_out is None]
    table = pa.table({"run": [each.run for each in kept], "stamp": [each.stamp for each in kept]})
    spark.createDataFrame(table).coalesce(1).write.mode("overwrite").parquet(
        storage.join(out, "silver", "sources")
    )


def _partition(source: Source) -> str:
    return "/".join(f"{key}={getattr(source, key)}" for key in RUN_KEYS)


def write_events(spark: SparkSession, sources: Sequence[Source], out: str) -> None:
    """Read all events of these runs once, and write them typed."""
    with Together() as together:
        jobs = [together.submit(_write_kind, spark, kind, sources, out) for kind in EVENTS]
    for job in jobs:
        job.result()


def _write_kind(spark: SparkSession, kind: str, sources: Sequence[Source], out: str) -> None:
    for batch in sorted({source.batch for source in sources}):
        same = [source for source in sources if source.batch == batch]
        write(_read_json(spark, kind, EVENTS[kind], same), storage.join(out, "silver", kind))


def _read_json(spark: SparkSession, kind: str, schema: str, sources: Sequence[Source]) -> DataFrame:
    names = columns(schema)
    needed = F.col(BAD).isNull()
    for name in REQUIRED[kind]:
        needed = needed & F.col(name).isNotNull()
    return (
        spark.read.schema(f"{schema}, {BAD} string, {PATH_COLUMNS}")
        .option("basePath", sources[0].base)
        .option("pathGlobFilter", f"{kind}-*.jsonl")
        .option("mode", "PERMISSIVE")
        .option("columnNameOfCorruptRecord", BAD)
        .json([storage.without_glob(source.uri) for source in sources])
        .select(
            *names,
            F.col("_metadata.file_name").alias("file"),
            needed.alias("good"),
            F.lit(sources[0].batch).alias("batch"),
            *columns(PATH_COLUMNS),
        )
    )


def write(frame: DataFrame, path: str) -> None:
    """Write a silver table; only the partitions that ``frame`` holds are replaced."""
    (
        frame.write.mode("overwrite")
        .option("partitionOverwriteMode", "dynamic")
        .option("compression", "zstd")
        .partitionBy(*RUN_KEYS)
        .parquet(path)
    )


def read(spark: SparkSession, out: str, kind: str, schema: str) -> DataFrame:
    """Read a silver table: its columns and ``run``; empty if no run has such rows."""
    path = storage.join(out, "silver", kind)
    keys = f"batch string, {PATH_COLUMNS}"
    run = F.concat_ws("/", *(F.col(key).cast("string") for key in RUN_KEYS)).alias("run")
    wanted = [name for name in columns(schema) if name != "run"]
    if not storage.exists(spark, path):
        empty = ", ".join(part for part in schema.split(", ") if not part.startswith("run "))
        return local_frame(spark, [], f"run string, {empty}")
    plain = ", ".join(part for part in schema.split(", ") if not part.startswith("run "))
    return spark.read.schema(f"{plain}, {keys}").parquet(storage.without_glob(path)).select(run, *wanted)


def events(spark: SparkSession, out: str, kind: str) -> DataFrame:
    """Read the events of one kind, with run, file and good."""
    return read(spark, out, kind, f"{EVENTS[kind]}, file string, good boolean")


def line_quality(found: DataFrame) -> DataFrame:
    """Count lines and bad lines.

    In:  run, file, good.
    Out: one row per (run, file): lines long, bad long.
    """
    bad = F.sum(F.when(F.col("good"), 0).otherwise(1))
    return (
        found.groupBy("run", "file")
        .agg(F.count("*").alias("lines"), bad.alias("bad"))
        .select("run", "file", "lines", "bad")
    )


def run_rows(spark: SparkSession, sources: Sequence[Source]) -> DataFrame:
    """Return ``RUNS`` of the runs that are used."""
    rows = [
        (
            source.run,
            f"{source.batch}/{source.series}/{source.block}/{source.arm}/{manifest.session}",
            *(source.batch, source.series, source.scenario, source.block, source.arm),
            *(manifest.measure_begin_ns, manifest.measure_end_ns),
        )
        for source in sources
        if source.left_out is None and (manifest := source.manifest) is not None
    ]
    return local_frame(spark, rows, RUNS)


def judge_files(sources: Sequence[Source], files: Sequence[tuple[str, str, int, int]]) -> list[Source]:
    """Leave out the runs that hold no operations or more damaged lines than a killed process explains (pure).

    Args:
        files: (run, file, lines, bad).
    """
    judged = []
    for source in sources:
        mine = [row for row in files if row[0] == source.run]
        damaged = max(mine, key=lambda row: row[3], default=None)
        reason = source.left_out
        if reason is None and damaged is not None and damaged[3] > BAD_LINES_MAX:
            reason = f"{damaged[3]} of {damaged[2]} lines of {damaged[1]} are damaged, {BAD_LINES_MAX} may be"
        if reason is None and not mine:
            reason = "it holds no events"
        judged.append(replace(source, left_out=reason))
    return judged


_ARROW: Final = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
    "array<int>": pa.list_(pa.int32()),
    "array<string>": pa.list_(pa.string()),
    "array<array<string>>": pa.list_(pa.list_(pa.string())),
}


def local_frame(spark: SparkSession, rows: Sequence[tuple[object, ...]], schema: str) -> DataFrame:
    """Make a frame of the driver's own rows by Arrow: of a list Spark would make Python tasks."""
    parts = [part.split() for part in schema.split(", ")]
    arrays = [
        pa.array([row[place] for row in rows], type=_ARROW[kind]) for place, (_, kind) in enumerate(parts)
    ]
    return spark.createDataFrame(pa.table(arrays, names=[name for name, _ in parts]), schema)
