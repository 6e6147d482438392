"""Measures storms: many brokers register, leave or return at once, in four systems with three servers each.

    python -m routekeeper.bench.micro.storm                                    every row, all designs, once
    python -m routekeeper.bench.micro.storm --rows register,leave --designs independent,raft --repeat 3
    python -m routekeeper.bench.micro.storm --brokers 40 --topics 1000
    python -m routekeeper.bench.micro.storm --against TREE --rows register     compare with another checkout

README.md in the folder above describes the measurements. No test runs this program.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final, NoReturn

from routekeeper.bench import interpreter
from routekeeper.bench.group import Missing, Unhealthy
from routekeeper.bench.machine import commit, this_machine, versions
from routekeeper.bench.micro.raft.systems import System
from routekeeper.bench.micro.storm import expected
from routekeeper.bench.micro.storm.life import Life, life_of
from routekeeper.bench.micro.storm.rows import LARGE, PERIOD_S, ROWS, Row, Sizes, rows_not_for, table
from routekeeper.bench.micro.storm.servers import DESIGNS, HEAP_MB, Design, factory_of
from routekeeper.bench.micro.trees import program_of
from routekeeper.bench.processes import ClusterError
from routekeeper.bench.storm.life import load_now
from routekeeper.bench.wires.wire import WireError

BROKERS_MAX: Final = 300
TOPICS_MAX: Final = 80_000
REST_MIN_S: Final = 5.0
#: Errors of the design's servers. ``ConnectionError`` and ``TimeoutError`` are an ``OSError``, too, but any
#: other ``OSError`` is one of the harness or of the machine.
OF_DESIGN: Final = (Unhealthy, WireError, ConnectionError, TimeoutError)


class Bench:
    """All measurements of one run, and the file into which their results are written."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.sizes = Sizes(brokers=arguments.brokers, topics=arguments.topics)
        self.makers: dict[str, Callable[[Path, int], System]] = {}
        self.designs: dict[str, Design] = {}
        for design in arguments.designs:
            self._add(design, design, None)
            if arguments.against is not None and design in ("independent", "raft"):
                self._add(f"{design}, {arguments.against.resolve().name}", design, arguments.against)
        self.figures: dict[tuple[Row, str], list[dict[str, Any]]] = {}
        self.why_not: dict[str, str] = {}
        self.failures: list[str] = []
        self.folder: Path = arguments.out
        self._raw: IO[str]
        self._begun = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M:%S} UTC, load {load_now():.1f}"

    def _add(self, column: str, design: Design, tree: Path | None) -> None:
        self.makers[column] = factory_of(design, tree=tree, python=self.arguments.python)
        self.designs[column] = design

    def run(self) -> None:
        columns = list(self.makers)
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "storm.jsonl").open("w") as self._raw:
            for repetition in range(self.arguments.repeat):
                # Begin each repetition with another design, so that no design always has the same place in
                # the order.
                shift = repetition % len(columns)
                for column in [*columns[shift:], *columns[:shift]]:
                    self._measure(column, repetition)

    def _measure(self, column: str, repetition: int) -> None:
        wanted = [row for row in self.arguments.rows if row not in rows_not_for(self.designs[column])]
        for row in self.arguments.rows:
            if row not in wanted:
                self.why_not[f"{row} {column}"] = "not measured"
        groups: list[list[Row]] = [[row] for row in wanted if row not in LARGE]
        large = [row for row in LARGE if row in wanted]
        groups = (
            [group for group in groups if group == ["register-small"]]
            + [large] * bool(large)
            + [group for group in groups if group != ["register-small"]]
        )
        for group in groups:
            try:
                self._live(column, group, repetition)
            except Missing as error:
                self._fail(column, group, "not measured (missing program)", error)
            except OF_DESIGN as error:
                self._fail(column, group, "failed", error)
            except (ClusterError, OSError) as error:
                self._fail(column, group, "not measured (harness)", error)

    def _fail(self, column: str, group: list[Row], outcome: str, error: Exception) -> None:
        self.failures.append(f"{', '.join(group)}, {column}: {outcome}: {error}")
        print(f"FAILED {self.failures[-1]}", flush=True)
        for row in group:
            self.why_not.setdefault(f"{row} {column}", outcome)

    def _live(self, column: str, group: list[Row], repetition: int) -> None:
        """Start a design's servers, make the measurements in ``group``, and stop the servers."""

        def record(row: dict[str, Any]) -> None:
            self._raw.write(json.dumps({"design": column, "repetition": repetition, **row}) + "\n")

        first = group[0]
        brokers, topics = {
            "register-small": self.sizes.small,
            "crowd": self.sizes.crowd,
            "stranger": self.sizes.stranger,
            "misses": (1, 2),  # RocketMQ refuses a new broker with a single topic
        }.get(first, self.sizes.large)
        plan = {"brokers": brokers, "topics": topics, "compressed": self.arguments.compressed}
        print(f"{column}: {', '.join(group)}: {brokers:,} x {topics:,}, load {load_now():.1f}", flush=True)
        with life_of(self.makers[column], plan=plan, data=self.arguments.data, record=record) as life:
            record(
                {"kind": "servers", "rows": group, "version": life.system.version(), "pids": life.system.pids}
            )
            if set(group) & set(LARGE):
                self._keep("register", column, group, life.register())
            for row in group:
                if row != "register":
                    self._keep(row, column, group, self._make(row, life))
        self._raw.flush()

    def _make(self, row: Row, life: Life) -> dict[str, Any]:
        match row:
            case "register-small" | "crowd" | "register":
                return life.register()
            case "rest":
                return life.rest(self.arguments.rest_seconds)
            case "restart":
                return life.restart()
            case "restart-spread":
                return life.restart(spread_s=PERIOD_S)
            case "leave":
                return life.leave()
            case "misses":
                return life.misses(self.arguments.seconds)
            case "stranger":
                return life.stranger(self.arguments.stranger_seconds)

    def _keep(self, row: Row, column: str, group: list[Row], found: dict[str, Any]) -> None:
        if row in group:
            self.figures.setdefault((row, column), []).append(found)
        shown = " ".join(
            f"{key}={value:,.4g}" for key, value in found.items() if isinstance(value, int | float)
        )
        print(f"  {row}: {shown}", flush=True)

    # -- the result ------------------------------------------------------------------------------------

    def report(self) -> str:
        """Return the table of results, and the conditions of the measurement."""
        machine = this_machine()
        about = self.arguments.interpreter
        others = [
            found["other_programs_cores"]
            for of_all in self.figures.values()
            for found in of_all
            if "other_programs_cores" in found
        ]
        bodies = "compressed" if self.arguments.compressed else "as JSON, the default of RocketMQ's brokers"
        found = [
            *table(self.sizes, list(self.makers), self.figures, self.why_not, HEAP_MB),
            "",
            f"- Machine: {machine.cpu}, {machine.cores} cores, {machine.memory_bytes / 1e9:.0f} GB, "
            f"{machine.system}; begun {self._begun}, ended at load {load_now():.1f}.",
            f"- Other programs used {max(others):.2f} cores in the worst phase, "
            f"{sorted(others)[len(others) // 2]:.2f} in the median one."
            if others
            else "- No phase was measured.",
            f"- Servers' Python: {interpreter.describe(about)}.",
            *([] if about["optimised"] else [f"- WARNING: {interpreter.WARNING}."]),
            f"- RouteKeeper {commit()}, ZooKeeper {versions().get('zookeeper', 'absent')}.",
            f"- Registrations {bodies}. Repetitions: {self.arguments.repeat}.",
            f"- Command: `python -m routekeeper.bench.micro.storm {' '.join(sys.argv[1:])}`".rstrip(),
        ]
        found += [f"- Without a result: {failure.splitlines()[0]}" for failure in self.failures]
        return "\n".join(found) + "\n"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Print the message in one line, without the usage text, and exit with code 2."""
        self.exit(2, f"storm: {message}\n")


def _names(parser: argparse.ArgumentParser, flag: str, value: str, allowed: tuple[str, ...]) -> list[str]:
    found = value.split(",")
    for name in found:
        if name not in allowed:
            parser.error(f"{flag}: {name!r}, allowed are {', '.join(allowed)}, by comma")
        if found.count(name) > 1:
            parser.error(f"{flag}: {name!r} appears twice; name each once")
    return found


def arguments_of(words: list[str] | None = None) -> argparse.Namespace:
    parser = _Parser(
        prog="python -m routekeeper.bench.micro.storm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rows", default=",".join(ROWS), help="rows, separated by commas (default %(default)s)"
    )
    parser.add_argument(
        "--designs", default=",".join(DESIGNS), help="designs, separated by commas (default %(default)s)"
    )
    parser.add_argument(
        "--brokers", type=int, default=100, help="brokers of the large storm (default %(default)s)"
    )
    parser.add_argument(
        "--topics", type=int, default=10_000, help="topics of each broker (default %(default)s)"
    )
    parser.add_argument("--repeat", type=int, default=1, help="number of repetitions (default %(default)s)")
    parser.add_argument(
        "--rest-seconds", type=float, default=60.0, help="measured time at rest in s (default %(default)s)"
    )
    parser.add_argument(
        "--stranger-seconds",
        type=float,
        default=15.0,
        help="time of frequent changes in s (default %(default)s)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=3.0,
        help="time of each case of missing topics in s (default %(default)s)",
    )
    parser.add_argument(
        "--compressed", action="store_true", help="brokers send their registrations compressed"
    )
    parser.add_argument(
        "--against", type=Path, metavar="TREE", help="measure another checkout's servers, too"
    )
    parser.add_argument("--python", default="", help="command that runs our servers (default: this Python)")
    parser.add_argument("--data", type=Path, help="folder for the servers' files (default: a temporary one)")
    parser.add_argument(
        "--out", type=Path, help="folder for storm.jsonl and storm.md (default out/storm-TIME)"
    )
    found = parser.parse_args(words)
    found.rows = _names(parser, "--rows", found.rows, ROWS)
    found.designs = _names(parser, "--designs", found.designs, DESIGNS)
    for flag, least, most in (
        ("brokers", 1, BROKERS_MAX),
        ("topics", 1, TOPICS_MAX),
        ("repeat", 1, 100),
        ("rest_seconds", REST_MIN_S, 3600),
        ("stranger_seconds", 1, 600),
        ("seconds", 0.5, 60),
    ):
        value = getattr(found, flag)
        if not least <= value <= most:
            parser.error(f"--{flag.replace('_', '-')}: {value:g}, allowed are {least:g} to {most:g}")
    if found.against is not None and not (found.against / "nameserver" / "__main__.py").is_file():
        parser.error(f"--against: {found.against} is no checkout: it has no nameserver/__main__.py")
    if found.data is not None and not found.data.is_dir():
        parser.error(f"--data: {found.data} is no folder")
    python, _ = program_of(None, found.python)
    try:
        command = [*shlex.split(python), "-I", interpreter.__file__, "--about"]
        found.interpreter = json.loads(subprocess.check_output(command, stderr=subprocess.DEVNULL))
    except (OSError, ValueError, subprocess.CalledProcessError):
        parser.error(f"--python: {found.python} does not run Python; give a command that takes -c and -m")
    if found.out is not None and found.out.exists() and not found.out.is_dir():
        parser.error(f"--out: {found.out} is a file; name a folder")
    if found.out is None:
        found.out = Path("out") / f"storm-{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}"
    return found


def _terminated(number: int, stack_frame: object) -> NoReturn:
    raise KeyboardInterrupt  # so that the program ends all processes that it started, as after Ctrl-C


def main(words: list[str] | None = None) -> int:
    arguments = arguments_of(words)
    # Also set SIGINT: a shell makes its background processes ignore this signal.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _terminated)
    bench = Bench(arguments)
    seconds = expected.seconds(arguments, [bench.designs[column] for column in bench.makers])
    print(f"expected time: {seconds / 60:.0f} minutes; samples and table: {bench.folder}", flush=True)
    ended = 130
    try:
        bench.run()
        ended = 1 if bench.failures else 0
    except KeyboardInterrupt:
        print("storm: interrupted; the table holds the rows that were complete", file=sys.stderr)
    report = bench.report()
    (bench.folder / "storm.md").write_text(report)
    print(f"\n{report}", end="")
    return ended


if __name__ == "__main__":
    sys.exit(main())
