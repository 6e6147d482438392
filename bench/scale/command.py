"""The command ``mqbench scale``: it measures or resumes a series, or makes the page of several series."""

from __future__ import annotations

import argparse
import random
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from routekeeper.bench import kernel
from routekeeper.bench.machine import commit
from routekeeper.bench.plan import PlanError
from routekeeper.bench.processes import ClusterError
from routekeeper.bench.runfolder import Arm
from routekeeper.bench.scale.order import begin, commits, read_order, read_rows, series_below
from routekeeper.bench.scale.points import ROUNDS
from routekeeper.bench.scale.report import write_report
from routekeeper.bench.scale.series import DESIGNS, Series, available, order_of


def scale(arguments: argparse.Namespace, command: Sequence[str]) -> int:
    """Carry out the command with these arguments; return the exit code.

    Raises:
        PlanError: If the command line cannot be carried out.
    """
    given = [arguments.part is not None, arguments.resume is not None, arguments.report is not None]
    if sum(given) != 1:
        raise PlanError("give one of --part, --resume and --report")
    if arguments.report is not None:
        _check_alone(arguments, f"--report {arguments.report}")
        return report(arguments.report)
    if arguments.resume is not None:
        _check_alone(arguments, f"--resume {arguments.resume}")
        return measure(_resumed(arguments.resume))
    return measure(_begun(arguments, command))


def _check_alone(arguments: argparse.Namespace, beside: str) -> None:
    """Check that the command line has no option that would change the folder or a setting of a series.

    Args:
        beside: The option that names the existing series, for the text of an error.

    Raises:
        PlanError: If the command line has such an option.
    """
    for name in ("out", "designs", "rounds", "links", "small", "seed"):
        value = getattr(arguments, name)
        if value is not None and value is not False:
            kept = "folder" if name == "out" else "settings"
            raise PlanError(f"--{name} beside {beside}: that series keeps its {kept}; leave --{name} out")


def _resumed(folder: Path) -> Series:
    try:
        series = Series(folder, read_order(folder), _say)
    except ValueError as error:
        raise PlanError(f"--resume {error}") from None
    rows, now = series.rows, commit()
    earlier = [each for each in commits(series.order, rows) if each != now]
    if rows and earlier:
        _say(
            f"WARNING: the rows are of commit {', '.join(earlier)}, the next ones of {now}; the page "
            "names all"
        )
    return series


def _begun(arguments: argparse.Namespace, command: Sequence[str]) -> Series:
    designs: list[Arm] = []
    for name in arguments.designs or DESIGNS:
        known = next((each for each in DESIGNS if each == name), None)
        if known is None:
            raise PlanError(f"--designs: {name!r}, allowed are {', '.join(DESIGNS)}")
        designs.append(known)
    designs, lacking = available(designs)
    if lacking is not None:
        _say(lacking)
    if arguments.links is not None and arguments.part != "distance":
        raise PlanError(f"--links beside --part {arguments.part}: only the part distance delays links")
    if arguments.links == "kernel" and (missing := kernel.missing_for_delays()) is not None:
        raise PlanError(f"--links kernel needs {missing}")
    order = order_of(
        arguments.part,
        designs=designs,
        rounds=arguments.rounds or ROUNDS,
        links=(arguments.links or "proxy") if arguments.part == "distance" else "none",
        small=arguments.small,
        seed=arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(2**31),
        command=command,
    )
    out = arguments.out or Path("out")
    folder = out / f"scale-{arguments.part}-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        begin(folder, order)
    except OSError as error:
        raise PlanError(f"--out {out}: {error.strerror}") from None
    return Series(folder, order, _say)


def measure(series: Series) -> int:
    """Measure the missing points of a series, and make the page of the series; return the exit code."""
    minutes = series.expected_s() / 60
    _say(f"{series.order.part}: {minutes:.0f} minutes on two idle cores, at most 75; rows: {series.folder}")
    again = f"to go on, run: {shlex.join(['mqbench', 'scale', '--resume', str(series.folder)])}"
    try:
        series.run()
    except KeyboardInterrupt:
        _say(again)
        raise
    except (ClusterError, OSError) as error:
        _say(str(error))
        _say(again)
        return 1
    failed = [row for row in read_rows(series.folder) if row.failed is not None]
    for row in failed:
        assert row.failed is not None
        _say(f"failed: {row.point.name}, {row.design}, round {row.round}: {row.failed.splitlines()[0]}")
    return report(series.folder)


def report(folder: Path) -> int:
    """Make the page of all series at or below a folder; return the exit code.

    Raises:
        PlanError: If there is no series with rows.
    """
    found = [(read_order(each), read_rows(each)) for each in series_below(folder)]
    if not any(rows for _, rows in found):
        raise PlanError(f"--report {folder}: there is no series of mqbench scale with rows")
    print(write_report(folder, found))
    return 0


def _say(line: str) -> None:
    print(f"mqbench: {line}", file=sys.stderr, flush=True)
