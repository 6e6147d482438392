"""A comparison of the designs (independent mode, raft mode, ZooKeeper), in rounds.

Each round runs all designs in random order.

A comparison can be stopped and resumed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final, Self

import msgspec

from routekeeper.bench.attached import AttachedCluster
from routekeeper.bench.plan import PlanError, plan_in, scenarios_of
from routekeeper.bench.processes import ClusterError
from routekeeper.bench.real import RealCluster
from routekeeper.bench.runfolder import REAL, ManifestError, read_manifest, run_folder
from routekeeper.bench.schedule import (
    ATTEMPTS_MAX,
    REPORT_S,
    Comparison,
    SessionPlan,
    Turn,
    blocks_of,
    expected_s,
)
from routekeeper.bench.session import Session

FILE_NAME: Final = "comparison.json"


class Teller:
    """A printer of progress on stderr.

    On a terminal it changes one line. Elsewhere it prints one line for each step.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._begun = time.monotonic()
        self._number = 0
        self._what = ""
        self._end = ""
        self._last = ""

    def begin(self, number: int, what: str, left_s: float) -> None:
        """Show that another run begins, and when the last run will end (in about ``left_s`` seconds).

        Args:
            number: Number of the run, from 1 on.
            what: Series, round and design of the run.
        """
        self._number = number
        self._what = what
        self._end = f"{datetime.now() + timedelta(seconds=left_s):%H:%M}"
        self._last = ""

    def __call__(self, step: str) -> None:
        if step == self._last:
            return
        self._last = step
        elapsed = time.monotonic() - self._begun
        place = f"run {self._number} of {self._total}, {self._what}"
        line = f"[{elapsed:4.0f} s] {place}: {step}; ends about {self._end}"
        if sys.stderr.isatty():
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def say(self, line: str) -> None:
        """Print a line that stays on the screen."""
        clear = "\r\x1b[K" if sys.stderr.isatty() else ""
        print(f"{clear}mqbench: {line}", file=sys.stderr, flush=True)


def begin(out: Path, comparison: Comparison) -> None:
    """Make a comparison's folder, with a file of its settings."""
    out.mkdir(parents=True)
    (out / FILE_NAME).write_bytes(msgspec.json.format(msgspec.json.encode(comparison), indent=2) + b"\n")


def load(out: Path) -> Comparison:
    """Read the settings of the comparison in a folder.

    Raises:
        PlanError: If the folder has no settings that this program can read.
    """
    try:
        return msgspec.json.decode((out / FILE_NAME).read_bytes(), type=Comparison)
    except OSError as error:
        raise PlanError(f"{out} holds no comparison: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise PlanError(f"{out / FILE_NAME} is of another version of mqbench: {error}") from None


def is_made(out: Path, comparison: Comparison, turn: Turn) -> bool:
    """Return True if all runs of one design in one round ("turn") are complete and may be used.

    A run must not be used (it is void) if the harness itself failed, and not the design.
    """
    series = {one.name: one for one in comparison.plan.series}
    for scenario in scenarios_of(comparison.plan, series[turn.series]):
        folder = run_folder(out, series=turn.series, scenario=scenario.name, block=turn.block, arm=turn.arm)
        try:
            manifest = read_manifest(folder)
        except ManifestError:
            return False
        if manifest.ended_ns is None or manifest.void is not None or manifest.seed != turn.seed:
            return False
    return True


def missing_turns(out: Path, comparison: Comparison) -> list[Turn]:
    """Return the turns (runs of one design in one round) that are not complete, in the comparison's order."""
    every = [turn for block in blocks_of(comparison.plan, comparison.seed) for turn in block]
    return [turn for turn in every if not is_made(out, comparison, turn)]


def make_runs(out: Path, comparison: Comparison) -> list[Path]:
    """Make every missing run, and return the folders of these runs.

    Finished runs of an interrupted round are kept. A design that runs later has the same load and faults,
    because both come from the round's seed. A run is repeated if its cluster could not be stopped.
    """
    folders: list[Path] = []
    for _ in range(ATTEMPTS_MAX):
        ending = _make_missing(out, comparison)
        folders += ending.folders
        if not ending.void:
            break
    return folders


def next_attempt(out: Path, comparison: Comparison, turn: Turn) -> int:
    """Return the number after the last void attempt of a turn. So no attempt replaces an earlier manifest."""
    series = {one.name: one for one in comparison.plan.series}
    last = 0
    for scenario in scenarios_of(comparison.plan, series[turn.series]):
        folder = run_folder(out, series=turn.series, scenario=scenario.name, block=turn.block, arm=turn.arm)
        for path in (out / "void" / folder.relative_to(out / "runs")).glob("attempt=*"):
            last = max(last, int(path.name.removeprefix("attempt=")))
    return last + 1


def _make_missing(out: Path, comparison: Comparison) -> Ending:
    """Make every missing run once, and return the object that has stopped the runs' clusters."""
    plan = comparison.plan
    number = sum(map(len, blocks_of(plan, comparison.seed)))
    turns = missing_turns(out, comparison)
    teller = Teller(number)
    made = number - len(turns)
    if not turns:
        teller.say(f"all {number} runs are there already; everything is in {out}")
    else:
        if made:
            teller.say(f"{made} runs are there already")
        total_s = expected_s(plan, turns, done_s=[]) + REPORT_S
        teller.say(f"{len(turns)} runs, about {total_s / 60:.0f} minutes; everything goes to {out}")
    series = {one.name: one for one in plan.series}
    done: list[tuple[Turn, float]] = []
    with Ending(teller) as ending:
        for position, turn in enumerate(turns):
            left_s = expected_s(plan, turns[position:], done_s=done) + REPORT_S
            what = f"{turn.series}, block {turn.block} of {series[turn.series].blocks}, {turn.arm}"
            begun = time.monotonic()
            first = next_attempt(out, comparison, turn)
            for attempt in range(first, first + ATTEMPTS_MAX):
                teller.begin(made + position + 1, what, left_s)
                given = SessionPlan(
                    out=out,
                    plan=plan_in(plan, series[turn.series]),
                    series=series[turn.series],
                    arm=turn.arm,
                    block=turn.block,
                    order_in_block=turn.order,
                    attempt=attempt,
                    profile=comparison.profile,
                    seed=turn.seed,
                    command=tuple(comparison.command),
                )
                try:
                    session = _session(given, comparison, teller)
                    session.measure(ending.wait)
                except (ClusterError, OSError) as error:  # OSError: the run's folder cannot be made
                    teller.say(f"{what}: attempt {attempt} is void: {error}")
                else:
                    ending.begin(session.end, what)
                    break
            done.append((turn, time.monotonic() - begun))
    return ending


class Ending:
    """A second thread that stops one run's cluster while the next run's cluster starts.

    These two steps may overlap, because only the measurement itself needs a quiet machine.
    """

    def __init__(self, teller: Teller) -> None:
        self.folders: list[Path] = []
        self.void = False
        """True if the cluster of a run could not be stopped properly."""
        self._teller = teller
        self._pool = ThreadPoolExecutor(1)
        self._running: Future[list[Path]] | None = None
        self._what = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._pool:
            self.wait()

    def begin(self, end: Callable[[], list[Path]], what: str) -> None:
        """Call ``end`` in another thread. ``end`` must stop a run's cluster and return the run's folders."""
        self.wait()
        self._what = what
        self._running = self._pool.submit(end)

    def wait(self) -> None:
        """Wait until the last cluster has stopped. Set :attr:`void` if stopping failed."""
        # Forget the run before its result is read. Otherwise its error would be raised again in every later
        # run.
        running, self._running = self._running, None
        if running is None:
            return
        try:
            self.folders += running.result()
        except ClusterError as error:
            self.void = True
            self._teller.say(f"{self._what} is void: {error}")


def _session(given: SessionPlan, comparison: Comparison, teller: Teller) -> Session:
    if comparison.given is not None:
        return Session(given, teller, partial(AttachedCluster, cluster=comparison.given))
    if given.arm in REAL:
        return Session(given, teller, RealCluster)
    return Session(given, teller)
