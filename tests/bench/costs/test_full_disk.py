"""A resumed run of ``mqbench costs`` keeps its complete measurements if the disk is full."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from routekeeper.bench.costs.plan import QUICK, steps
from routekeeper.bench.costs.run import ROWS, Failure, Run, begin, complete_rows, make_rows, measure
from tests.bench.costs.rows import row

RUN = Run(command=["mqbench"], date="today", commit="abc", quick=True, designs=["raft"], plan=QUICK)


@contextlib.contextmanager
def files_at_most(size: int) -> Iterator[None]:
    """Let the kernel refuse to write more than ``size`` bytes into a file, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a run with all measurements, and a part of one more."""
    folder = tmp_path / "costs"
    begin(folder, RUN)
    rows = [row(step, life=life) for life in QUICK.lives for step in steps(QUICK, life)]
    lines = [msgspec.json.encode(each) for each in rows]
    (folder / ROWS).write_bytes(b"\n".join(lines) + b"\n" + lines[0][:20])
    return folder


def test_full_disk_loses_no_measurement_of_a_resumed_run(folder: Path) -> None:
    kept = complete_rows(folder, RUN)
    assert kept
    with files_at_most((folder / ROWS).stat().st_size // 2), pytest.raises(OSError, match="too large"):
        make_rows(folder, RUN)
    assert complete_rows(folder, RUN) == kept
    assert make_rows(folder, RUN) == kept
    assert (folder / ROWS).read_bytes().endswith(b"}\n"), "the part of a line is gone"


def test_result_that_cannot_be_written_is_told_with_the_command_that_resumes_the_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "costs.json.new").mkdir()
    (folder / "costs.json").mkdir()
    with pytest.raises(Failure, match="Is a directory"):
        measure([], out=folder.parent, resume=folder, designs=["raft"], quick=True)
    assert f"to go on, run: mqbench costs --resume {folder}" in capsys.readouterr().err
