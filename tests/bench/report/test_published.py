"""Every published comparison is made again from its raw events, and computed again without our report."""

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
    """Return a file's bytes without the id by which its tables name the folder of the comparison."""
    return re.sub(rb"(?m)(^|,)[0-9a-f]{8}(?=[,/])", rb"\1id", path.read_bytes())


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda folder: folder.name)
def test_raw_events_make_the_published_page_and_its_tables_again(published: Path, tmp_path: Path) -> None:
    """If this fails because the report has changed: python -m routekeeper.bench.publish --again FOLDER."""
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
