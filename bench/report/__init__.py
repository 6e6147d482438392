"""The report of a benchmark: a PySpark job from run folders to marts and one HTML page."""

from collections.abc import Callable
from pathlib import Path

__all__ = ["build_report"]


def build_report(run_roots: list[Path], out: Path, *, progress: Callable[[str], None]) -> Path:
    """Build the report of all runs at or below ``run_roots``; see :func:`bench.report.job.build_report`."""
    from bench.report.job import build_report as build  # late: importing this package must not load Spark

    return build(run_roots, out, progress=progress)
