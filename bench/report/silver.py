"""The folder ``silver`` with the events of all runs as typed Parquet, so that each run's JSON is read once.

::

    OUT/silver/events/batch=B/series=S/scenario=C/block=N/arm=A/part-*.parquet
    OUT/silver/sources.json      maps each run in silver to a text made of its manifest

Each run is one partition. All kinds of events of a run are in the same folder, because opening many small
files takes longer than reading them. If the manifest of a run has changed, the run was made again, and its
JSON is read again.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from routekeeper.bench.report import storage
from routekeeper.bench.report.tables import (
    BAD,
    EVENT,
    EVENTS,
    PATH_COLUMNS,
    REQUIRED,
    RUN_KEYS,
    columns,
    typed,
)
from routekeeper.bench.runfolder import FORMAT, FileSum, Manifest

KIND: Final = "file_kind"
"""Name of the column with a row's kind, one of :data:`EVENTS`. A file's name begins with its rows' kind."""

BAD_LINES_MAX: Final = 1
"""Largest number of bad lines in a sound file, because a killed process can leave one unfinished line."""

SUFFIXES: Final = (".jsonl", ".jsonl.gz", ".jsonl.zst")
"""Endings of event files' names. Spark decides by the ending how to decompress a file."""
_EVENT_FILES: Final = f"{{{','.join(EVENTS)}}}-*{{{','.join(SUFFIXES)}}}"  # a file pattern in Hadoop's syntax
_EVENT_FILE: Final = re.compile(rf"({'|'.join(EVENTS)})-.*\.jsonl(\.gz|\.zst)?")

_RUN: Final = re.compile(
    r"^(?P<base>.*?)/?series=(?P<series>[^/]+)/scenario=(?P<scenario>[^/]+)/block=(?P<block>[0-9]+)"
    r"/arm=(?P<arm>[^/]+)(?P<attempt>/attempt=[0-9]+)?/[^/]+$"
)


class NoRuns(Exception):
    """The given folders contain no run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One run folder. ``left_out`` is the reason why the report does not use the run, or None."""

    run: str
    uri: str
    base: str
    """Path of the folder that contains the ``series=...`` folder of the run."""
    batch: str
    series: str
    scenario: str
    block: int
    arm: str
    manifest: Manifest | None
    left_out: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    """Maps each event file's name before compression to its present name."""

    @property
    def life(self) -> str:
        """Name of the cluster that made the run. A cluster can make several runs, one after the other."""
        session = "" if self.manifest is None else self.manifest.session
        return f"{self.batch}/{self.series}/{self.block}/{self.arm}/{session}"

    @property
    def stamp(self) -> str:
        """Text that changes if the run is made again."""
        if self.manifest is None:
            return "none"
        m = self.manifest
        return f"{FORMAT} {m.attempt} {m.started_at} {m.started_ns} {m.ended_ns} {m.measure_end_ns}"


def find(spark: SparkSession, roots: Sequence[str]) -> list[Source]:
    """Find the runs at or below ``roots``, even runs that failed and do not count, and read their manifests.

    Raises:
        NoRuns: If there are no runs.
    """
    folders: dict[str, bytes | None] = {}
    names: dict[str, list[str]] = defaultdict(list)
    wanted = f"{{manifest.json,{_EVENT_FILES}}}"
    for path in sorted({path for root in roots for path in storage.listing(spark, root, wanted)}):
        folder, _, name = path.rpartition("/")
        if _RUN.match(path) is not None and name == "manifest.json":
            folders[folder] = storage.read(spark, path)
        elif _RUN.match(path) is not None and _EVENT_FILE.fullmatch(name) is not None:
            folders.setdefault(folder, None)
            names[folder].append(name)
    found = {}
    for folder, manifest in folders.items():
        match = _RUN.match(f"{folder}/manifest.json")
        assert match is not None, "it was matched before"
        comparison = match["base"].removesuffix("/runs").removesuffix("/void")
        batch = hashlib.sha256(comparison.encode()).hexdigest()[:8]
        found[folder] = _source(folder, match, batch, manifest, names[folder])
    if not found:
        raise NoRuns(f"no run folder (series=*/scenario=*/block=*/arm=*) in {', '.join(roots)}")
    return list(found.values())


def _source(
    folder: str, match: re.Match[str], batch: str, content: bytes | None, names: Sequence[str]
) -> Source:
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
        else:
            left_out = _misfiled(names, manifest.files)
    run = "/".join((batch, match["series"], match["scenario"], match["block"], match["arm"]))
    if match["attempt"]:
        run += match["attempt"]
        left_out = left_out or "another attempt replaces it"
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
        names={_as_recorded(name): name for name in names},
    )


def _misfiled(names: Sequence[str], listed: Mapping[str, FileSum] | None) -> str | None:
    """Compare the names of a run's event files with its manifest. Return the first mismatch, or None.

    Args:
        names: Existing files.
        listed: Files that the manifest lists, or None if the manifest is too old to list files.
    """
    there = Counter(map(_as_recorded, names))
    for name, times in sorted(there.items()):
        if times > 1:
            return f"{name} is there twice, compressed and not"
        if listed is not None and name not in listed:
            return f"its manifest does not list {name}"
    missing = sorted(set(listed or ()) - set(there))
    return f"{missing[0]} is missing" if missing else None


def _as_recorded(name: str) -> str:
    """Return the name that an event file had before it was compressed."""
    return name[: name.rindex(".jsonl")] + ".jsonl"


def sums(spark: SparkSession, sources: Sequence[Source]) -> DataFrame | None:
    """Count the lines of the event files, and add up the CRC-32 of their lines.

    Return None if no manifest lists files. A run's manifest records the same two figures for each file, so
    that :func:`judge_sums` can compare them.

    In:  runs that are to be read.
    Out: one row per (run, file) that has a line: lines long, crc32_sum long. If a file cannot be unpacked
        completely, the figures hold for the unpacked part.
    """
    found: DataFrame | None = None
    for batch in sorted({source.batch for source in sources if _is_listed(source)}):
        mine = [source for source in sources if source.batch == batch and _is_listed(source)]
        read = (
            spark.read.schema(f"value string, {PATH_COLUMNS}")
            .option("basePath", mine[0].base)
            .option("pathGlobFilter", _EVENT_FILES)
            .option("lineSep", "\n")
            .option("ignoreCorruptFiles", "true")
            .text([storage.without_glob(source.uri) for source in mine])
            .select(
                F.concat_ws("/", F.lit(batch), *columns(PATH_COLUMNS)).alias("run"),
                F.col("_metadata.file_name").alias("file"),
                F.crc32("value").alias("crc32"),
            )
        )
        found = read if found is None else found.unionByName(read)
    if found is None:
        return None
    return (
        found.groupBy("run", "file")
        .agg(F.count("*").alias("lines"), F.sum("crc32").alias("crc32_sum"))
        .select("run", "file", "lines", "crc32_sum")
    )


def _is_listed(source: Source) -> bool:
    return source.manifest is not None and bool(source.manifest.files)


def judge_sums(
    sources: Sequence[Source], checked: Sequence[Source], found: Sequence[tuple[str, str, int, int]]
) -> list[Source]:
    """Leave out the runs with a damaged file, whose figures differ from the manifest.

    Args:
        checked: Runs whose lines and checksums were counted.
        found: (run, file, lines, crc32_sum) of the files that have a line.
    """
    there = {(run, _as_recorded(file)): (file, lines, crc32_sum) for run, file, lines, crc32_sum in found}
    mine = {source.run for source in checked if _is_listed(source)}
    judged = []
    for source in sources:
        reason = source.left_out
        listed = source.manifest.files if source.manifest is not None and source.run in mine else None
        for name, sums in sorted((listed or {}).items()):
            file, lines, crc32_sum = there.get((source.run, name), (source.names.get(name, name), 0, 0))
            if reason is None and lines != sums.lines:
                reason = f"{file} has {lines} lines, {sums.lines} were recorded"
            elif reason is None and crc32_sum != sums.crc32_sum:
                reason = f"{file} is not what was recorded: its lines have another checksum"
        judged.append(replace(source, left_out=reason))
    return judged


def new_ones(spark: SparkSession, sources: Sequence[Source], out: str) -> list[Source]:
    """Return the usable runs that silver does not contain yet, and remove outdated partitions from silver.

    A partition is outdated if its run was made again, or if the report does not use the run any more.
    """
    path = storage.join(out, "silver", "sources.json")
    known: dict[str, str] = {}
    if storage.exists(spark, path):
        known = msgspec.json.decode(storage.read(spark, path), type=dict[str, str])
    wanted = [source for source in sources if source.left_out is None]
    for source in sources:
        if source.run in known and (source.left_out is not None or known[source.run] != source.stamp):
            storage.delete(spark, storage.join(out, "silver", "events", _partition(source)))
    return [source for source in wanted if known.get(source.run) != source.stamp]


def note_sources(spark: SparkSession, sources: Sequence[Source], out: str) -> None:
    """Record which runs silver contains now.

    Call this function last. If an interrupt comes first, the record is missing, and the runs are read again.
    """
    kept = {source.run: source.stamp for source in sources if source.left_out is None}
    storage.write(spark, storage.join(out, "silver", "sources.json"), msgspec.json.encode(kept))


def _partition(source: Source) -> str:
    return "/".join(f"{key}={getattr(source, key)}" for key in RUN_KEYS)


def write_events(spark: SparkSession, sources: Sequence[Source], out: str) -> None:
    """Read all events of these runs once, and write them with typed columns.

    The partitions of other runs stay as they are.
    """
    found: DataFrame | None = None
    for batch in sorted({source.batch for source in sources}):
        read = _read_json(spark, [source for source in sources if source.batch == batch])
        found = read if found is None else found.unionByName(read)
    if found is None:
        return
    (
        found.write.mode("overwrite")
        .option("partitionOverwriteMode", "dynamic")
        .option("compression", "zstd")
        .partitionBy(*RUN_KEYS)
        .parquet(storage.join(out, "silver", "events"))
    )


def _read_json(spark: SparkSession, sources: Sequence[Source]) -> DataFrame:
    complete = F.lit(False)
    for kind, names in REQUIRED.items():
        needed = F.col(KIND) == kind
        for name in names:
            needed = needed & F.col(name).isNotNull()
        complete = complete | needed
    return (
        spark.read.schema(f"{EVENT}, {BAD} string, {PATH_COLUMNS}")
        .option("basePath", sources[0].base)
        .option("pathGlobFilter", _EVENT_FILES)
        .option("mode", "PERMISSIVE")
        .option("columnNameOfCorruptRecord", BAD)
        .json([storage.without_glob(source.uri) for source in sources])
        .select(
            *columns(EVENT),
            BAD,
            F.col("_metadata.file_name").alias("file"),
            F.substring_index("_metadata.file_name", "-", 1).alias(KIND),
            F.lit(sources[0].batch).alias("batch"),
            *columns(PATH_COLUMNS),
        )
        .select(
            *columns(EVENT),
            "file",
            KIND,
            (F.col(BAD).isNull() & complete).alias("good"),
            *RUN_KEYS,
        )
    )


def events(spark: SparkSession, out: str) -> DataFrame:
    """Read the events of all kinds from silver, with the columns run, file, :data:`KIND` and good (valid)."""
    path = storage.join(out, "silver", "events")
    schema = f"{EVENT}, file string, {KIND} string, good boolean"
    run = F.concat_ws("/", *(F.col(key).cast("string") for key in RUN_KEYS)).alias("run")
    if not storage.exists(spark, path):
        return local_frame(spark, [], f"run string, {schema}")
    return (
        spark.read.schema(f"{schema}, batch string, {PATH_COLUMNS}")
        .parquet(storage.without_glob(path))
        .select(run, *columns(schema))
    )


def of_kind(found: DataFrame, kind: str) -> DataFrame:
    """Keep the valid events of one kind, with their run.

    In:  :func:`events`.
    Out: run and the columns of the kind.
    """
    return found.where((F.col(KIND) == kind) & F.col("good")).select("run", *columns(EVENTS[kind]))


def launches_of_brokers(found: DataFrame) -> DataFrame:
    """Keep the start times of brokers' processes, in ns of the host's clock.

    In:  :func:`events`.
    Out: run, broker int, t_ns long.
    """
    return (
        of_kind(found, "processes")
        .where((F.col("role") == "broker") & (F.col("event") == "start"))
        .select("run", F.col("index").alias("broker"), "t_ns")
    )


def line_quality(found: DataFrame) -> DataFrame:
    """Count all lines and bad lines of each file.

    In:  :func:`events`.
    Out: one row per (run, file): lines long, bad long.
    """
    bad = F.sum(F.when(F.col("good"), 0).otherwise(1))
    return (
        found.groupBy("run", "file")
        .agg(F.count("*").alias("lines"), bad.alias("bad"))
        .select("run", "file", "lines", "bad")
    )


def judge_files(sources: Sequence[Source], files: Sequence[tuple[str, str, int, int]]) -> list[Source]:
    """Leave out the runs that have no events, and the runs with too many bad lines.

    A killed process can leave one bad line in a file.

    Args:
        files: (run, file, lines, bad).
    """
    of_run: dict[str, list[tuple[str, str, int, int]]] = defaultdict(list)
    for row in files:
        of_run[row[0]].append(row)
    judged = []
    for source in sources:
        mine = of_run[source.run]
        damaged = max(mine, key=lambda row: row[3], default=None)
        reason = source.left_out
        if reason is None and damaged is not None and damaged[3] > BAD_LINES_MAX:
            reason = f"{damaged[3]} of {damaged[2]} lines of {damaged[1]} are damaged, {BAD_LINES_MAX} may be"
        has_lost = source.manifest is not None and source.manifest.lost is not None
        # If a design failed before the load began, its run has no events. The run stays, because the failure
        # is a result.
        if reason is None and not mine and not has_lost:
            reason = "it holds no events"
        judged.append(replace(source, left_out=reason))
    return judged


_ARROW: Final = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
}


def _arrow(kind: str) -> pa.DataType:
    """Return the Arrow type of a type in Spark's DDL."""
    if kind.startswith("array<"):
        return pa.list_(_arrow(kind.removeprefix("array<").removesuffix(">")))
    if kind.startswith("struct<"):
        parts = kind.removeprefix("struct<").removesuffix(">").split(",")
        return pa.struct([(part.partition(":")[0], _arrow(part.partition(":")[2])) for part in parts])
    return _ARROW[kind]


def arrow_schema(schema: str) -> pa.Schema:
    """Return the Arrow schema of a schema in Spark's DDL."""
    return pa.schema([(name, _arrow(kind)) for name, kind in typed(schema).items()])


def local_frame(spark: SparkSession, rows: Sequence[tuple[object, ...]], schema: str) -> DataFrame:
    """Return a DataFrame with rows that the driver holds.

    Spark gets the rows as an Arrow table, because it would start Python processes to read a plain list.
    """
    kinds = arrow_schema(schema)
    arrays = [pa.array([row[place] for row in rows], type=kind.type) for place, kind in enumerate(kinds)]
    return spark.createDataFrame(pa.table(arrays, schema=kinds), schema)
