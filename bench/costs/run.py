"""A run of ``mqbench costs``, from the start of the servers to the file of unit costs."""

from __future__ import annotations

import contextlib
import datetime
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from routekeeper.bench.costs import players
from routekeeper.bench.costs.fit import HELD_OUT, NotEnough, counts_of, design_costs, held_out
from routekeeper.bench.costs.measured import (
    Disk,
    members_bytes,
    memory_bytes,
    read_after,
    read_before,
    servers_of,
    watch_addresses,
)
from routekeeper.bench.costs.plan import FULL, QUICK, Plan, Step, minutes, steps
from routekeeper.bench.costs.units import Costs, Design, DesignCosts, Row, Unit
from routekeeper.bench.files import write_at_once
from routekeeper.bench.group import Missing, Unhealthy, cpu_s
from routekeeper.bench.machine import commit, this_machine, versions
from routekeeper.bench.micro.raft.systems import System
from routekeeper.bench.plan import PlanError
from routekeeper.bench.processes import ClusterError, allow_connections
from routekeeper.bench.storm.blocking import make_nodes
from routekeeper.bench.storm.frames import topic_name
from routekeeper.bench.storm.life import Child
from routekeeper.bench.storm.sessions import lasting_nodes

RUN: Final = "run.json"
ROWS: Final = "rows.jsonl"
RESULT: Final = "costs.json"
TRIES: Final = 3
"""Number of times that the harness tries to measure a life (see :class:`Plan`), before it gives up."""
_NUMBERS: Final = (
    *("brokers", "pairs", "polling", "watching"),
    *("registrations", "changes", "newcomers", "lookups"),
)


class Failure(Exception):
    """Servers, or simulated brokers and clients, failed. Complete measurements are kept."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a run."""

    command: list[str]
    date: str
    commit: str
    quick: bool
    designs: list[Design]
    plan: Plan


def begin(folder: Path, run: Run) -> None:
    folder.mkdir(parents=True)
    (folder / RUN).write_bytes(msgspec.json.format(msgspec.json.encode(run)))


def load(folder: Path) -> Run:
    """Return the parameters of a run in a folder.

    Raises:
        PlanError: If the folder has no run.
    """
    try:
        return msgspec.json.decode((folder / RUN).read_bytes(), type=Run)
    except (OSError, msgspec.MsgspecError) as error:
        raise PlanError(f"--resume {folder}: no run of costs was begun there: {error}") from None


def complete_rows(folder: Path, run: Run) -> list[Row]:
    """Return the measurements of all complete lives.

    A life is the time from a start of the servers to their stop.
    """
    path = folder / ROWS
    found: dict[tuple[Design, str], list[Row]] = {}
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            row = msgspec.json.decode(line, type=Row)
        except msgspec.MsgspecError:
            # An interrupt has cut this line off, so the life of this row is incomplete. The statement after
            # the loop omits all rows of this life.
            continue
        found.setdefault((row.design, row.life), []).append(row)
    return [
        row for (_, life), rows in found.items() if len(rows) == len(steps(run.plan, life)) for row in rows
    ]


def commits(run: Run, rows: Sequence[Row]) -> list[str]:
    """Return the commits with which these rows were measured, in the order of the rows."""
    return list(dict.fromkeys(row.commit or run.commit for row in rows))


def announce(run: Run, *, done: int = 0) -> None:
    """Print the plan and its expected duration."""
    plan = run.plan
    lives = len(plan.lives) * len(run.designs)
    total = minutes(plan, run.designs)
    print(
        f"mqbench: {', '.join(run.designs)}, three servers each; {lives - done} of {lives} lives, "
        f"about {total * (lives - done) / lives:.0f} minutes",
        file=sys.stderr,
    )
    for life in plan.lives:
        for step in steps(plan, life):
            numbers = msgspec.to_builtins(step)
            shown = " ".join(
                f"{key}={value:g}"
                for key, value in numbers.items()
                if key not in ("series", "seconds", "comes_back") and value
            )
            print(f"  {life}: {step.series}: {step.seconds:g} s {shown}".rstrip(), file=sys.stderr)


def make_rows(folder: Path, run: Run) -> list[Row]:
    """Make the measurements that are missing, and return all measurements.

    A life is the time from a start of the servers to their stop. If an interrupt ended a life early, measure
    the whole life again.

    Raises:
        Unhealthy: If servers failed, or refused requests of the simulated brokers and clients.
        ClusterError: If the process of the simulated brokers and clients ended.
    """
    allow_connections()
    rows = complete_rows(folder, run)
    done = {(row.design, row.life) for row in rows}
    announce(run, done=len(done))
    now = commit()
    earlier = [each for each in commits(run, rows) if each != now]
    if earlier and len(done) < len(run.plan.lives) * len(run.designs):
        print(
            f"mqbench: WARNING: the rows are of commit {', '.join(earlier)}, the next ones of {now}; the "
            "result names all",
            file=sys.stderr,
        )
    # Leave out rows of incomplete lives in one step. A full disk or a kill must not lose complete lives.
    write_at_once(folder / ROWS, (msgspec.json.encode(row) + b"\n" for row in rows))
    with (folder / ROWS).open("ab") as file:
        for life in run.plan.lives:
            for design in run.designs:
                if (design, life) in done:
                    continue
                for row in _complete_life(run.plan, design, life):
                    rows.append(row)
                    _write(file, row)
    return rows


def _complete_life(plan: Plan, design: Design, life: str) -> list[Row]:
    """Start the servers and measure all series of ``life``. After a failure, repeat the whole life.

    A repetition often succeeds, because servers may fail only because the machine was busy.

    Raises:
        Unhealthy: If servers failed in the last try.
        ClusterError: If the process of the brokers and clients ended in the last try.
    """
    attempts, now = 1, commit()
    for tries_left in reversed(range(TRIES)):
        rows: list[Row] = []
        try:
            for row in life_rows(plan, design, life):
                rows.append(msgspec.structs.replace(row, attempts=attempts, commit=now))
                _show(row)
        except (Unhealthy, ClusterError) as error:
            if not tries_left:
                raise
            attempts += isinstance(error, Unhealthy)  # a failure of the harness says nothing about the design
            print(f"mqbench: made anew: {error}", file=sys.stderr)
        else:
            break
    return rows


def _write(file: BinaryIO, row: Row) -> None:
    file.write(msgspec.json.encode(row) + b"\n")
    file.flush()


def _show(row: Row) -> None:
    numbers = {key: getattr(row, key) for key in _NUMBERS}
    shown = " ".join(f"{key}={value}" for key, value in numbers.items() if value)
    used = f"CPU {row.use('cpu_s'):.3f} s a minute, others {row.others_cores:.2f} cores"
    print(f"  {row.design}, {row.series}: {shown} {used}", file=sys.stderr, flush=True)


def life_rows(plan: Plan, design: Design, life: str) -> Iterator[Row]:
    """Start a design's servers, yield one measurement for each step of the plan, then stop the servers."""
    with tempfile.TemporaryDirectory(prefix="mqbench-costs-") as name, contextlib.ExitStack() as stack:
        system = servers_of(design, Path(name) / "servers")
        stack.callback(system.stop)
        system.start()
        own = players.Plan(
            kind=system.kind,
            servers=system.clients,
            watched=watch_addresses(system),
            period_s=plan.period_s,
        )
        windows = Windows(plan, design, life, system, stack.enter_context(Child(players.__name__, own)))
        windows.warm()
        for step in steps(plan, life):
            yield windows.row(step)


class Windows:
    """The measurements between one start and one stop of a design's servers.

    For each measurement, this class connects brokers and clients, and then measures the resources that the
    servers use.
    """

    def __init__(self, plan: Plan, design: Design, life: str, system: System, child: Child) -> None:
        self._plan = plan
        self._design = design
        self._life = life
        self._system = system
        self._child = child
        self._disk = Disk(system)
        self._series = ""
        self._lasting: set[str] = set()

    def _bring(self, **numbers: Any) -> None:
        """Connect these numbers of brokers and clients.

        With ZooKeeper, first create the persistent nodes below which the brokers' nodes will lie.
        """
        if self._system.kind == "jute":
            names = [topic_name(number) for number in range(numbers["topics"])]
            new = [
                node
                for node in lasting_nodes(range(numbers["brokers"]), names)
                if node[0] not in self._lasting
            ]
            make_nodes(self._system.clients[0], new)
            self._lasting.update(path for path, _ in new)
        self._do("bring", **numbers)

    def warm(self) -> None:
        """Cause all kinds of events for some seconds before the first measurement.

        In this time, a JVM compiles its code.
        """
        plan = self._plan
        self._bring(brokers=plan.base.brokers, topics=plan.base.topics, changes=1.0)
        self._do(
            "run",
            seconds=plan.warm_s[self._design],
            changes=max(plan.changes),
            newcomers=max(plan.newcomers),
            lookups=max(plan.lookups),
        )
        self._do("clear")

    def row(self, step: Step) -> Row:
        """Connect the brokers and clients of a step, and measure the resources that the servers use."""
        if step.series != self._series:
            self._do("clear")
            self._series = step.series
        own = {
            key: getattr(step, key)
            for key in ("brokers", "topics", "polling", "watching", "changes", "newcomers", "lookups")
        }
        self._bring(**own)
        time.sleep(self._plan.settle_s)
        before = read_before(self._system, self._disk)
        self._do("begin")
        child_s = cpu_s(self._child.pid)
        if step.comes_back:
            self._do("come_back")
        else:
            self._do("run", seconds=step.seconds, **own)
        generator_s = cpu_s(self._child.pid) - child_s
        after = read_after(self._system, self._disk)
        counts = self._do("count")
        seconds = after.t - before.t
        used = [late - early for early, late in zip(before.cpu_s, after.cpu_s, strict=True)]
        machine_s = after.machine_s - before.machine_s
        disk = _between(before.disk, after.disk)
        memory, resident = memory_bytes(self._system, heaps=self._plan.reads_heaps)
        return Row(
            design=self._design,
            life=self._life,
            series=step.series,
            seconds=seconds,
            brokers=step.brokers,
            pairs=step.brokers * step.topics,
            topics=step.topics,
            polling=step.polling,
            watching=step.watching,
            registrations=counts.registrations,
            changes=counts.changes,
            newcomers=counts.newcomers,
            lookups=counts.lookups,
            cpu_s=used,
            members_bytes=members_bytes(self._system, before, after),
            clients_bytes=counts.bytes,
            disk_bytes=None if disk is None else [size for size, _ in disk],
            syncs=None if disk is None else [count for _, count in disk],
            memory_bytes=memory,
            resident_bytes=resident,
            others_cores=max(0.0, machine_s - sum(used) - generator_s) / seconds,
            generator_cores=generator_s / seconds,
        )

    def _do(self, word: str, **numbers: Any) -> players.Counts:
        found = self._child.ask(msgspec.json.encode(players.Command(do=word, **numbers)))
        if "failure" in found:
            tails = "\n".join(map(self._system.log_tail, range(len(self._system.clients))))
            raise Unhealthy(f"{self._design}, {self._life}: {found['failure']}\n{tails}")
        return msgspec.convert(found["counts"], players.Counts)


def _between(
    before: list[tuple[int, int]] | None, after: list[tuple[int, int]] | None
) -> list[tuple[int, int]] | None:
    if before is None or after is None:
        return None
    return [(late[0] - early[0], late[1] - early[1]) for early, late in zip(before, after, strict=True)]


def result(run: Run, rows: Sequence[Row]) -> Costs:
    """Return the unit costs, computed from all measurements.

    Raises:
        NotEnough: If measurements are missing.
    """
    designs: dict[Design, DesignCosts] = {}
    counts: list[dict[Unit, float]] = []
    for design in run.designs:
        found = design_costs(design, rows)
        mixtures = [row for name in HELD_OUT for row in rows if (row.design, row.series) == (design, name)]
        if len(mixtures) < len(run.plan.mixtures):
            raise NotEnough(f"{design}: {len(mixtures)} of {len(run.plan.mixtures)} mixtures were measured")
        counts = [counts_of(row) for row in mixtures]
        designs[design] = msgspec.structs.replace(found, held_out=[held_out(found, row) for row in mixtures])
    return Costs(
        date=run.date,
        commit=", ".join(commits(run, rows)),
        command=run.command,
        quick=run.quick,
        machine=this_machine(),
        versions=versions(),
        held_out_counts=counts,
        changes_a_minute_max=max(row.count("change") for row in rows if row.series == "change"),
        brokers_in_an_answer=run.plan.base.brokers,
        designs=designs,
    )


def measure(
    command: Sequence[str],
    *,
    out: Path,
    resume: Path | None,
    designs: Sequence[Design],
    quick: bool,
) -> Path:
    """Measure unit costs, and return the path of the result.

    Raises:
        PlanError: If the folder to resume has no run.
        Failure: If servers, simulated brokers and clients, or a write to the disk failed.
    """
    if resume is not None:
        folder, run = resume, load(resume)
    else:
        now = datetime.datetime.now(datetime.UTC)
        folder = out / f"costs-{now:%Y%m%d-%H%M%S}"
        run = Run(
            command=list(command),
            date=f"{now:%Y-%m-%d %H:%M} UTC",
            commit=commit(),
            quick=quick,
            designs=list(designs),
            plan=QUICK if quick else FULL,
        )
        begin(folder, run)
    path = folder / RESULT
    try:
        rows = make_rows(folder, run)
        found = result(run, rows)
        write_at_once(path, [msgspec.json.format(msgspec.json.encode(found)), b"\n"])
    except NotEnough as error:
        raise Failure(f"{folder / ROWS}: {error}") from error
    except (KeyboardInterrupt, Unhealthy, ClusterError, Missing, OSError) as error:
        print(f"mqbench: to go on, run: mqbench costs --resume {folder}", file=sys.stderr)
        if isinstance(error, KeyboardInterrupt):
            raise
        raise Failure(str(error)) from error
    return path
