"""The measurement of one part (size, distance or number), with a row for each point; it can be resumed."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from routekeeper.bench.arms import apache
from routekeeper.bench.chance import stream
from routekeeper.bench.events import Operation, Outcome, ProcessSample
from routekeeper.bench.group import Missing, Unhealthy
from routekeeper.bench.machine import commit, this_machine, versions
from routekeeper.bench.processes import ArmLost, ClusterError, allow_connections
from routekeeper.bench.recorder import EventLog
from routekeeper.bench.runfolder import Arm
from routekeeper.bench.scale.curves import turns_at_crossings
from routekeeper.bench.scale.distance import measure_distance, measure_slow_disk
from routekeeper.bench.scale.groups import ScaleGroup
from routekeeper.bench.scale.number import measure_away, measure_number
from routekeeper.bench.scale.order import Order, add_row, read_rows
from routekeeper.bench.scale.points import (
    ROUNDS,
    SERIES_S,
    LinkKind,
    Part,
    Row,
    Turn,
    measured_s,
    missing_turns,
    points_of,
    turns_of,
)
from routekeeper.bench.scale.size import measure_herd, measure_storm
from routekeeper.bench.schedule import ATTEMPTS_MAX
from routekeeper.bench.slow_disk import SlowDisks
from routekeeper.bench.slow_disk import missing as missing_slow_disk
from routekeeper.bench.wires.wire import WireError

DESIGNS: Final[tuple[Arm, ...]] = ("independent", "raft", "zookeeper", "apache")
#: Maps the outcome of a query during a storm to the outcome that the comparison's events use for it.
_OUTCOMES: Final[dict[str, Outcome]] = {
    "ok": "ok",
    "wrong": "ok",
    "refused": "refused",
    "lost": "unknown",
    "unanswered": "unknown",
}
#: Errors of the design's servers: they ended, did not serve in time, or refused a request or a connection.
_OF_DESIGN: Final = (Unhealthy, ArmLost, WireError, ConnectionError, TimeoutError)
#: Errors of the harness or of the machine. ``ConnectionError`` and ``TimeoutError`` are an ``OSError``, too,
#: but come from the servers.
_OF_HARNESS: Final = (Missing, ClusterError, OSError, subprocess.SubprocessError)
#: Texts in a server's log by which the machine, and not the design, is the reason for the server's end.
_OF_MACHINE: Final = (os.strerror(errno.ENOSPC), os.strerror(errno.EADDRINUSE))


class Series:
    """The measurements of one part (size, distance or number), stored in one folder."""

    def __init__(self, folder: Path, order: Order, progress: Callable[[str], None]) -> None:
        self.folder = folder
        self.order = order
        self._progress = progress
        self.points = points_of(order.part, links=order.links, small=order.small)

    @property
    def rows(self) -> list[Row]:
        return read_rows(self.folder)

    def turns(self) -> list[Turn]:
        return turns_of(self.points, self.order.designs, self.order.rounds)

    def expected_s(self) -> float:
        """Return the expected duration of the missing measurements in s, at most the remaining time limit."""
        rows = self.rows
        spent = sum(row.seconds for row in rows)
        missing = sum(measured_s(turn, rows) for turn in missing_turns(self.turns(), rows))
        return min(missing, max(0.0, self.order.limit_s - spent))

    def run(self) -> None:
        """Make every measurement (point, design, round) that has no row yet.

        If there is too little time for a measurement, write a row that says so instead.

        Raises:
            ClusterError: If the harness or the machine failed in each attempt of one measurement. This
                measurement has no row.
            OSError: If a row cannot be written.
        """
        allow_connections()
        for turn in missing_turns(self.turns(), self.rows):
            self._measure(turn)
        for turn in missing_turns(turns_at_crossings(self.rows, self.order.designs), self.rows):
            self._measure(turn)

    def _measure(self, turn: Turn) -> None:
        rows = self.rows
        if not missing_turns([turn], rows):
            return  # the design has failed too often at this point
        left_s = self.order.limit_s - sum(row.seconds for row in rows)
        expected_s = measured_s(turn, rows)
        load = os.getloadavg()[0]
        where = f"{turn.point.name}, {turn.design}, round {turn.round}"
        if expected_s > left_s:
            self._keep(
                turn, load, 0.0, left_out=f"it takes {expected_s:.0f} s, and {max(0, left_s):.0f} s were left"
            )
            self._progress(f"{where}: left out, no time is left")
            return
        if (lacking := missing_slow_disk() if turn.point.slow_ms else None) is not None:
            self._keep(turn, load, 0.0, left_out=f"it needs {lacking}")
            self._progress(f"{where}: left out, it needs {lacking}")
            return
        for _ in range(ATTEMPTS_MAX):
            self._progress(where)
            began = time.monotonic()
            figures: dict[str, float] = {}
            failed = None
            try:
                figures = self._measured(turn)
            except (*_OF_DESIGN, *_OF_HARNESS) as error:
                failed = f"{type(error).__name__}: {error}".strip()
                if not is_of_design(error):
                    self._progress(f"{where}: is void: {failed.splitlines()[0]}")
                    continue
                self._progress(f"{where}: failed: {failed.splitlines()[0]}")
            self._keep(turn, load, time.monotonic() - began, figures=figures, failed=failed)
            return
        raise ClusterError(f"{where}: {ATTEMPTS_MAX} attempts failed; the harness failed, not the design")

    def _keep(self, turn: Turn, load: float, seconds: float, **outcome: Any) -> None:
        row = Row(
            point=turn.point,
            design=turn.design,
            round=turn.round,
            links=self.order.links,
            seconds=round(seconds, 3),
            load=round(load, 2),
            commit=commit(),
            **outcome,
        )
        add_row(self.folder, row)

    def _measured(self, turn: Turn) -> dict[str, float]:
        point = turn.point
        events = self.folder / "events" / _path_of(turn)
        shutil.rmtree(events, ignore_errors=True)  # an interrupted measurement may have left files
        events.mkdir(parents=True)
        work = self.folder / "work"
        shutil.rmtree(work, ignore_errors=True)
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, work, ignore_errors=True)
            log = stack.enter_context(EventLog(events, "scale-0"))
            notes = stack.enter_context((events / "notes.jsonl").open("wb"))

            def record(row: dict[str, Any]) -> None:
                event = event_of(row)
                if event is None:
                    notes.write(orjson.dumps(row, option=orjson.OPT_NON_STR_KEYS) + b"\n")
                else:
                    log.record(event)

            disks = SlowDisks(work / "slow", more_ms=point.slow_ms) if point.slow_ms else None
            group = ScaleGroup(
                turn.design,
                work / "servers",
                count=point.servers,
                links=self.order.links if point.kind == "distance" else "none",
                record=log.record,
                slow=disks,
            )
            match point.kind:
                case "storm":
                    return measure_storm(group, point, record)
                case "herd":
                    return measure_herd(group, point, record)
                case "distance":
                    return measure_distance(group, point, record)
                case "slow-disk":
                    assert disks is not None, "this point has a slow disk"
                    return measure_slow_disk(group, point, record, disks)
                case "number":
                    chance = stream(self.order.seed, f"losses {turn.round} {point.name}")
                    return measure_number(group, point, record, chance)
                case "away":
                    stack.callback(group.stop)
                    group.start()
                    return measure_away(group, point, work, log.record, turn.round)


def is_of_design(error: Exception) -> bool:
    """Return True if an error is a failure of the measured design, False if the harness or machine failed."""
    return isinstance(error, _OF_DESIGN) and not any(text in str(error) for text in _OF_MACHINE)


def _path_of(turn: Turn) -> Path:
    """Return the folder of a measurement's events. Spark makes columns of the parts of this path."""
    name = "".join(letter if letter.isalnum() else "-" for letter in turn.point.name).strip("-")
    return Path(f"point={name}") / f"round={turn.round}" / f"arm={turn.design}"


def event_of(row: dict[str, Any]) -> Operation | ProcessSample | None:
    """Convert a row of a storm to an event of the comparison; return None if there is no such event.

    - The user number of a query is the number of the server that was asked.
    - The user number of a broker is 100 plus the broker's number.
    - If the process that sent a query may have read the answer late, the query's remark has ``own_ns``: the
      largest possible delay in ns.
    """
    match row["kind"]:
        case "query":
            outcome = row["outcome"]
            remark = "wrong" if outcome == "wrong" else None
            if own_ns := row["own_ns"]:
                remark = f"{remark or ''} own_ns={own_ns}".strip()
            return Operation(
                op="lookup",
                user=row["server"],
                target=row["server"],
                due_ns=row["sent_ns"],
                sent_ns=row["sent_ns"],
                done_ns=row["sent_ns"] + row["wait_ns"],
                outcome=_OUTCOMES[outcome],
                remark=remark,
            )
        case "registration":
            outcome = row["outcome"]
            return Operation(
                op="announce",
                user=100 + row["broker"],
                target=row["server"],
                due_ns=row["sent_ns"],
                sent_ns=row["sent_ns"],
                done_ns=row["ended_ns"],
                outcome="ok"
                if outcome == "ok"
                else "unknown"
                if outcome in ("lost", "unanswered")
                else "refused",
                remark=None if outcome == "ok" else outcome[:200],
            )
        case "server":
            return ProcessSample(
                role="nameserver",
                index=row["server"],
                pid=row["pid"],
                t_ns=row["t_ns"],
                cpu_ns=round(row["cpu_s"] * 1e9),
                rss_bytes=round(row["memory_mb"] * 1e6),
            )
    return None


def available(designs: Sequence[Arm]) -> tuple[list[Arm], str | None]:
    """Return the designs that this machine can run, and the reason why a design is left out, or None."""
    lacking = apache.missing()
    if lacking is None or "apache" not in designs:
        return list(designs), None
    return [design for design in designs if design != "apache"], f"apache is left out: it needs {lacking}"


def order_of(
    part: Part,
    *,
    designs: Sequence[Arm],
    rounds: int = ROUNDS,
    links: LinkKind = "proxy",
    small: bool = False,
    seed: int,
    command: Sequence[str],
    limit_s: float = SERIES_S,
) -> Order:
    return Order(
        part=part,
        designs=list(designs),
        rounds=rounds,
        links=links,
        small=small,
        seed=seed,
        command=list(command),
        machine=this_machine(),
        versions=versions(),
        commit=commit(),
        started_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        limit_s=limit_s,
    )
