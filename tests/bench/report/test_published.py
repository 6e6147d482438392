"""Published comparisons: from their raw events, the report makes the same page again.

An independent program computes the same figures.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

import pytest

from routekeeper.bench.publish import PAGE, TABLES, archives, remake
from tests.bench import recompute

pytestmark = [pytest.mark.spark, pytest.mark.computes, pytest.mark.timeout(1800)]

RESULTS: Final = Path(__file__).parents[3] / "docs" / "results"
PUBLISHED: Final = sorted(folder for folder in RESULTS.iterdir() if folder.is_dir() and archives(folder))


def content(path: Path) -> bytes:
    """Return the bytes of a file, with a fixed text in place of the id of the comparison's folder.

    The id is different in each report.
    """
    return re.sub(rb"(?m)(^|,)[0-9a-f]{8}(?=[,/])", rb"\1id", path.read_bytes())


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda folder: folder.name)
def test_raw_events_make_the_published_page_and_its_tables_again(published: Path, tmp_path: Path) -> None:
    """Make the page of a published comparison again and compare it.

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
