"""The report makes the same page again from the raw events of a published comparison.

An independent program computes the same figures from these events.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

import pytest

from routekeeper.bench.publish import PAGE, TABLES, archives, remake, remake_scale
from routekeeper.bench.scale.order import ROWS_NAME, series_below
from routekeeper.bench.scale.report import FILES as SCALE_FILES
from tests.bench import recompute, recompute_controls, recompute_real, recompute_scale

pytestmark = [pytest.mark.spark, pytest.mark.computes]

RESULTS: Final = Path(__file__).parents[3] / "docs" / "results"
PUBLISHED: Final = sorted(folder for folder in RESULTS.iterdir() if folder.is_dir() and archives(folder))
#: Pages that CI makes again. CI leaves out the page of the control runs: it takes as much processor time as
#: the other two pages together, and no text in docs/article takes figures from it.
PAGES: Final = [folder for folder in PUBLISHED if folder.name != "controls"]
#: Functions that compute the rows of the tables in docs/results/NAME.md, by NAME.
TABLES_OF_PAGES: Final = {"real": recompute_real.table, "controls": recompute_controls.tables}
WITH_SCALE: Final = sorted({series.parent for series in series_below(RESULTS)})


def content(path: Path) -> bytes:
    """Return the bytes of a file, with a fixed text in place of the id of the comparison's folder.

    The id is different in each report.
    """
    return re.sub(rb"(?m)(^|,)[0-9a-f]{8}(?=[,/])", rb"\1id", path.read_bytes())


@pytest.mark.parametrize("published", PAGES, ids=lambda folder: folder.name)
def test_raw_events_make_the_published_page_and_its_tables_again(published: Path, tmp_path: Path) -> None:
    """Make the page of a published comparison again, and compare it with the published page.

    If the report has changed on purpose, update the page with this command:

        python -m routekeeper.bench.publish --again FOLDER
    """
    remake(published, tmp_path)
    changed = [name for name in (PAGE, *TABLES) if content(published / name) != content(tmp_path / name)]
    assert not changed, f"python -m routekeeper.bench.publish --again {published}"


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda folder: folder.name)
def test_independent_program_computes_the_same_figures_from_the_raw_events(
    published: Path, tmp_path: Path
) -> None:
    for archive in archives(published):
        shutil.unpack_archive(archive, tmp_path)
    compared, differ = recompute.differences(recompute.figures(tmp_path), published / "values.csv")
    assert (differ, compared >= 12) == ([], True)


@pytest.mark.parametrize("published", WITH_SCALE, ids=lambda folder: folder.name)
def test_rows_make_the_published_page_of_sizes_and_distances_again(published: Path, tmp_path: Path) -> None:
    remake_scale(published, tmp_path)
    changed = [
        name for name in SCALE_FILES if (published / name).read_bytes() != (tmp_path / name).read_bytes()
    ]
    assert not changed, f"python -m routekeeper.bench.publish --again {published}"


@pytest.mark.parametrize("series", series_below(RESULTS), ids=lambda folder: folder.name)
def test_independent_program_computes_the_same_figures_of_sizes_and_distances(
    series: Path, tmp_path: Path
) -> None:
    for archive in series.glob("*.tar.xz"):
        shutil.unpack_archive(archive, tmp_path)
    compared, differ = recompute_scale.differences(recompute_scale.figures(tmp_path), series / ROWS_NAME)
    assert (differ, compared >= 12) == ([], True)


@pytest.mark.parametrize("name", TABLES_OF_PAGES)
def test_tables_of_a_page_are_those_of_the_raw_events(name: str, tmp_path: Path) -> None:
    for archive in archives(RESULTS / name):
        shutil.unpack_archive(archive, tmp_path)
    rows = TABLES_OF_PAGES[name](tmp_path, RESULTS / name / "values.csv")
    page = (RESULTS / f"{name}.md").read_text().splitlines()
    assert [row for row in rows if row not in page] == []
