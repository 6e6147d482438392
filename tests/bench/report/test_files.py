"""If event files were changed after their run, the report leaves the run out and names the reason.

Files that were only compressed are still used.
"""

from __future__ import annotations

import dataclasses
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from routekeeper.bench.report.gold import Gold
from tests.bench.report.planted import PlantedRun
from tests.bench.report.test_planted import text_of_page

pytestmark = [pytest.mark.spark, pytest.mark.computes]

NAME: Final = "ops-planted.jsonl"
LINES: Final = 40


def keep(file: Path) -> None:
    """Change nothing in the file."""


def gzipped(file: Path) -> None:
    file.with_name(f"{NAME}.gz").write_bytes(gzip.compress(file.read_bytes()))
    file.unlink()


def zstd(file: Path) -> None:
    with pa.CompressedOutputStream(str(file.with_name(f"{NAME}.zst")), "zstd") as packed:
        packed.write(file.read_bytes())
    file.unlink()


def zero_bytes(file: Path) -> None:
    file.write_bytes(b"")


def half(file: Path) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[: LINES // 2]))


def gzip_without_its_name(file: Path) -> None:
    file.write_bytes(gzip.compress(file.read_bytes()))


def name_of_gzip_alone(file: Path) -> None:
    file.rename(file.with_name(f"{NAME}.gz"))


def cut_gzip(file: Path) -> None:
    gzipped(file)
    packed = file.with_name(f"{NAME}.gz")
    packed.write_bytes(packed.read_bytes()[:-30])


def gone(file: Path) -> None:
    file.unlink()


def changed(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b'"ok"', b'"no"', 1))


def there_twice(file: Path) -> None:
    file.with_name(f"{NAME}.gz").write_bytes(gzip.compress(file.read_bytes()))


def somebody_elses(file: Path) -> None:
    file.with_name("ops-other.jsonl").write_bytes(file.read_bytes())


USED: Final[tuple[Callable[[Path], None], ...]] = (keep, gzipped, zstd)
LEFT_OUT: Final[dict[Callable[[Path], None], str]] = {
    zero_bytes: f"{NAME} has 0 lines, {LINES} were recorded",
    half: f"{NAME} has {LINES // 2} lines, {LINES} were recorded",
    gzip_without_its_name: f"{NAME} has ",
    name_of_gzip_alone: f"{NAME}.gz has 0 lines, {LINES} were recorded",
    cut_gzip: f"{NAME}.gz has ",
    gone: f"{NAME} is missing",
    changed: f"{NAME} is not what was recorded: its lines have another checksum",
    there_twice: f"{NAME} is there twice, compressed and not",
    somebody_elses: "its manifest does not list ops-other.jsonl",
}


def harmed(root: Path) -> None:
    """For each kind of change, write a run folder and change its event file."""
    for harm in (*USED, *LEFT_OUT):
        with PlantedRun(root, scenario=harm.__name__, listed=True) as run:
            run.fault(5.0, 16.0)
            for number in range(LINES):
                run.op("lookup", 5.0 + number / 10, 0.001)
        harm(run.folder / NAME)


@pytest.fixture(scope="module")
def said(planted: tuple[Gold, list[str]]) -> list[str]:
    return planted[1]


@pytest.fixture(scope="module")
def gold(planted: tuple[Gold, list[str]]) -> Gold:
    """Return the shared report tables, limited to the runs of this module."""
    whole, _ = planted
    scenarios = {harm.__name__ for harm in (*USED, *LEFT_OUT)}
    runs = {source.run for source in whole.sources if source.scenario in scenarios}
    tables = {field.name: getattr(whole, field.name) for field in dataclasses.fields(whole)}
    return Gold(**{name: [row for row in rows if row.run in runs] for name, rows in tables.items()})


@pytest.fixture(scope="module")
def text(gold: Gold) -> str:
    return text_of_page(gold)


@pytest.mark.parametrize("harm", USED, ids=lambda harm: harm.__name__)
def test_run_whose_events_are_whole_is_used_compressed_or_not(
    gold: Gold, harm: Callable[[Path], None]
) -> None:
    (source,) = (source for source in gold.sources if source.scenario == harm.__name__)
    assert source.left_out is None
    (found,) = (row for row in gold.recoveries if row.run == source.run and row.scope == "all")
    assert found.n == LINES


@pytest.mark.parametrize("harm", LEFT_OUT, ids=lambda harm: harm.__name__)
def test_run_whose_events_are_not_whole_is_left_out_with_its_reason(
    gold: Gold, text: str, said: list[str], harm: Callable[[Path], None]
) -> None:
    (source,) = (source for source in gold.sources if source.scenario == harm.__name__)
    assert source.left_out is not None
    assert source.left_out.startswith(LEFT_OUT[harm])
    assert [row for row in gold.recoveries if row.run == source.run] == []
    assert f"report: left out {source.run}: {source.left_out}" in said
    assert f"{harm.__name__}/1/raft {source.left_out}" in text
    assert f"The page uses {len(USED)} of {len(USED) + len(LEFT_OUT)} runs" in text
