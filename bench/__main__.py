"""``mqbench``: run the comparison, single runs, and the report."""

from remoting.interrupt import end_quietly_when_interrupted

end_quietly_when_interrupted()  # before the rest is loaded, which takes a while
# ruff: noqa: E402

import argparse
import importlib.metadata
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, get_args

from bench.cluster import Addresses, ClusterError
from bench.manifest import Mode, run_folder
from bench.run import RunPlan, run_once
from bench.workload import Workload, WorkloadError, load_workload, profiles

_INTERRUPT_S: Final = 5.0
"""How long the report may take to end Spark after an interrupt, s."""

MODES: Final[tuple[Mode, ...]] = get_args(Mode)


class Teller:
    """Says on stderr what is going on: one line that renews itself on a terminal, else one line per step."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._begun = time.monotonic()
        self._done = 0
        self._what = ""
        self._last = ""

    def begin(self, what: str) -> None:
        self._what = what
        self._last = ""

    def finish(self) -> None:
        self._done += 1

    def __call__(self, step: str) -> None:
        elapsed = time.monotonic() - self._begun
        line = f"[{elapsed:4.0f} s] run {self._done + 1} of {self._total}, {self._what}: {step}"
        if sys.stderr.isatty():
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        elif not step.startswith("second ") or (step != self._last and step.split()[1].endswith(("0", "5"))):
            print(line, file=sys.stderr, flush=True)
        self._last = step

    def end(self) -> None:
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def plans(
    *, pairs: int, modes: Sequence[Mode], profile: str, seed: int, command: Sequence[str]
) -> list[RunPlan]:
    """Return the runs in order: pair by pair, and which mode begins alternates from pair to pair.

    A machine that grows slower over the minutes then slows both modes alike.
    """
    chance = random.Random(seed)
    found: list[RunPlan] = []
    for pair in range(1, pairs + 1):
        run_seed = chance.randrange(2**31)  # both runs of a pair get the same load
        order = list(modes) if pair % 2 else list(reversed(modes))
        for position, mode in enumerate(order):
            found.append(
                RunPlan(
                    mode=mode,
                    scenario=profile,
                    profile=profile,
                    rep=pair,
                    pair=pair,
                    order_in_pair=position,
                    seed=run_seed,
                    command=tuple(command),
                )
            )
    return found


def make_runs(
    out: Path, schedule: Sequence[RunPlan], workload: Workload, attached: Addresses | None = None
) -> list[Path]:
    """Make the runs one after the other; a void one is said and left in its folder for the report."""
    teller = Teller(len(schedule))
    folders = []
    for plan in schedule:
        teller.begin(f"pair {plan.pair}, {plan.mode}")
        try:
            folders.append(run_once(out, plan, workload, teller, attached=attached))
        except ClusterError as error:
            teller.end()
            print(f"mqbench: run is void: {error}", file=sys.stderr)
            folders.append(run_folder(out, mode=plan.mode, scenario=plan.scenario, rep=plan.rep))
        teller.finish()
    teller.end()
    return folders


def make_report(folders: Sequence[Path], out: Path, master: str | None = None) -> int:
    """Run the report's job in a process of its own; its last line is the path that it wrote."""
    command = [sys.executable, "-m", "bench.report", *map(str, folders), "--out", str(out)]
    if master is not None:
        command += ["--master", master]
    child = subprocess.Popen(command)
    try:
        return child.wait()
    except KeyboardInterrupt:
        _await_interrupted(child)
        raise


def _await_interrupted(child: subprocess.Popen[bytes]) -> None:
    """Give a process time to end what it started; a terminal has interrupted it, too, others have not."""
    try:
        child.wait(_INTERRUPT_S)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGINT)
        try:
            child.wait(_INTERRUPT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def compare(arguments: argparse.Namespace, command: Sequence[str]) -> int:
    workload = load_workload(arguments.profile)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    out = arguments.out / stamp
    out.mkdir(parents=True)
    schedule = plans(
        pairs=arguments.pairs,
        modes=MODES,
        profile=arguments.profile,
        seed=arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(2**31),
        command=command,
    )
    seconds = len(schedule) * (workload.warmup_s + workload.measure_s + 10)
    print(
        f"mqbench: {arguments.pairs} pairs of runs, each once per mode, about {seconds / 60:.0f} minutes; "
        f"everything goes to {out}",
        file=sys.stderr,
    )
    folders = make_runs(out, schedule, workload)
    print("mqbench: runs are done, making the report", file=sys.stderr)
    return make_report(folders, out)


def run(arguments: argparse.Namespace, command: Sequence[str]) -> int:
    workload = load_workload(arguments.profile)
    schedule = plans(
        pairs=arguments.pairs,
        modes=[arguments.mode],
        profile=arguments.profile,
        seed=arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(2**31),
        command=command,
    )
    existing = [
        folder
        for plan in schedule
        if (
            folder := run_folder(arguments.out, mode=plan.mode, scenario=plan.scenario, rep=plan.rep)
        ).exists()
    ]
    if existing:
        print(f"mqbench: {existing[0]} exists already; name another --out", file=sys.stderr)
        return 2
    attached = None
    if arguments.nameservers:
        attached = Addresses(wire=arguments.nameservers, http=arguments.http, brokers=arguments.brokers)
        if len(attached.wire) != len(attached.http) or not attached.brokers:
            raise WorkloadError(
                "--nameservers, --http and --brokers go together, an HTTP address per nameserver"
            )
        if workload.faults:
            raise WorkloadError(f"profile {arguments.profile!r} has faults, a given cluster has none")
    for folder in make_runs(arguments.out, schedule, workload, attached):
        print(folder)
    return 0


def report(arguments: argparse.Namespace, command: Sequence[str]) -> int:
    missing = [folder for folder in arguments.folders if not folder.is_dir()]
    if missing:
        print(f"mqbench: no such folder: {missing[0]}", file=sys.stderr)
        return 2
    return make_report(arguments.folders, arguments.out, arguments.master)


def positive(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 1000:
        raise argparse.ArgumentTypeError(f"{value} is out of range, allowed are 1 to 1000")
    return value


def parser() -> argparse.ArgumentParser:
    """Return the command line of ``mqbench``."""
    version = importlib.metadata.version("routekeeper")
    top = argparse.ArgumentParser(
        prog="mqbench", description="Measure what the consistency mode costs and gives."
    )
    top.add_argument("--version", action="version", version=f"mqbench {version}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def common(child: argparse.ArgumentParser, pairs: int) -> None:
        child.add_argument(
            "--out", type=Path, default=Path("out"), help="folder for runs and report (default: out)"
        )
        child.add_argument(
            "--profile",
            default="compare",
            help=f"workload (default: compare; known: {', '.join(profiles())})",
        )
        child.add_argument("--pairs", type=positive, default=pairs, help=f"repetitions (default: {pairs})")
        child.add_argument(
            "--seed", type=int, help="seed of the load (default: drawn, and kept in the manifest)"
        )

    child = commands.add_parser(
        "compare", help="run both modes in turn under load and faults, then the report"
    )
    common(child, 5)
    child.set_defaults(do=compare)
    child = commands.add_parser("run", help="make runs of one mode; prints their folders")
    common(child, 1)
    child.add_argument("--mode", choices=MODES, required=True, help="consistency mode")
    for name, what in (
        ("nameservers", "over the wire"),
        ("http", "over HTTP"),
        ("brokers", "of the brokers"),
    ):
        child.add_argument(
            f"--{name}",
            type=lambda text: text.split(";"),
            default=[],
            metavar="HOST:PORT;...",
            help=f"drive a running cluster: addresses {what} (default: a cluster of our own)",
        )
    child.set_defaults(do=run)
    child = commands.add_parser("report", help="make the report of run folders; prints its path last")
    child.add_argument(
        "folders", nargs="+", type=Path, metavar="RUN_FOLDER", help="run folders, or folders of them"
    )
    child.add_argument("--out", type=Path, default=Path("out"), help="folder for the report (default: out)")
    child.add_argument("--master", help="Spark master, such as spark://host:7077 (default: this machine)")
    child.set_defaults(do=report)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = parser().parse_args(words)
    try:
        return int(arguments.do(arguments, ["mqbench", *words]))
    except WorkloadError as error:
        print(f"mqbench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nmqbench: interrupted; finished runs are kept", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
