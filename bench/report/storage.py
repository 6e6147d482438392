"""Files in any file system that Spark can reach.

Paths are strings, with or without a scheme (``file:``, ``hdfs:``, ``s3a:``). A path without a scheme means
this machine, unless the settings of the Spark cluster say otherwise.
"""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession


def join(base: str, *parts: str) -> str:
    """Return a path below ``base``."""
    return "/".join([base.rstrip("/"), *parts])


def without_glob(path: str) -> str:
    """Return the path with a backslash before each character that Spark would take as a wildcard."""
    return "".join(f"\\{char}" if char in "\\[]{}*?" else char for char in path)


def qualified(spark: SparkSession, path: str) -> str:
    """Return the full URI of a path, in the form in which Spark prints it."""
    jpath = _path(spark, path)
    return str(_file_system(spark, jpath).makeQualified(jpath).toString())


def shown(spark: SparkSession, path: str) -> str:
    """Return a path for people to read. It is the full URI, or the plain path of a file of this machine."""
    full = qualified(spark, path)
    return full.removeprefix("file:") if urlsplit(full).scheme == "file" else full


def exists(spark: SparkSession, path: str) -> bool:
    """Return True if a file or folder exists."""
    jpath = _path(spark, path)
    return bool(_file_system(spark, jpath).exists(jpath))


def delete(spark: SparkSession, path: str) -> None:
    """Remove a file, or a folder with its content. Do nothing if it does not exist."""
    jpath = _path(spark, path)
    _file_system(spark, jpath).delete(jpath, True)


def listing(spark: SparkSession, path: str, names: str) -> list[str]:
    """Return the full URI of every file at or below ``path`` whose name matches a pattern.

    Args:
        names: The pattern in Hadoop's syntax, such as ``{manifest.json,*.jsonl}``.
    """
    if not exists(spark, path):
        return []
    found = (
        spark.read.format("binaryFile")
        .option("recursiveFileLookup", "true")
        .option("pathGlobFilter", names)
        .load(without_glob(path))
    )
    # Fetch all names with one call into the JVM, because a thousand calls would take seconds.
    text = str(_jvm(spark).org.apache.hadoop.util.StringUtils.join("\n", found._jdf.inputFiles()))
    # Write "file:/" instead of "file:///", as Hadoop does when it prints a path. Otherwise one file would
    # have two names.
    return [re.sub(r"^(\w+):///", r"\1:/", unquote(uri)) for uri in text.split("\n") if uri]


def read(spark: SparkSession, path: str) -> bytes:
    """Return the content of a small file."""
    jpath = _path(spark, path)
    stream = _file_system(spark, jpath).open(jpath)
    try:
        return bytes(stream.readAllBytes())
    finally:
        stream.close()


def write(spark: SparkSession, path: str, content: bytes) -> None:
    """Write a whole file, and replace an older file. Create missing folders."""
    jpath = _path(spark, path)
    full = urlsplit(qualified(spark, path))
    # Write a local file in Python, which is faster: the JVM would get the bytes as encoded text.
    if full.scheme == "file":
        here = Path(str(jpath.toUri().getPath())).absolute()
        here.parent.mkdir(parents=True, exist_ok=True)
        here.write_bytes(content)
        return
    stream = _file_system(spark, jpath).create(jpath, True)
    try:
        stream.write(content)
    finally:
        stream.close()


def write_table(spark: SparkSession, folder: str, name: str, table: pa.Table) -> None:
    """Write a small table as ``NAME.parquet`` and ``NAME.csv``. In CSV, no text begins like a formula."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    write(spark, join(folder, f"{name}.parquet"), sink.getvalue().to_pybytes())
    text = _csv(table.column_names, zip(*(column.to_pylist() for column in table.columns), strict=True))
    write(spark, join(folder, f"{name}.csv"), text.encode())


def _csv(columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(map(_cell, columns))
    for row in rows:
        writer.writerow(map(_cell, row))
    return text.getvalue()


_FORMULA_BEGINS: Final = ("=", "+", "-", "@", "\t", "\r", "\n")


def _cell(value: Any) -> Any:
    """Return a value for a CSV cell. A text that a spreadsheet would compute gets an apostrophe in front.

    Remarks, topics and addresses come from servers, so they are not trusted. If such a text begins with "=",
    a spreadsheet could run it as a command. Numbers are written unchanged.
    """
    if isinstance(value, list):
        value = " ".join(map(str, value))
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_BEGINS) else value


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._gateway.jvm  # type: ignore[union-attr] # classic session


def _path(spark: SparkSession, path: str) -> Any:
    return _jvm(spark).org.apache.hadoop.fs.Path(path)


def _file_system(spark: SparkSession, path: Any) -> Any:
    found = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    found.setWriteChecksum(False)  # without this, Hadoop adds a hidden checksum file to each local file
    return found
