"""``mqbench``: the command that runs comparisons and other measurements, and makes their reports."""

from routekeeper.bench import interpreter
from routekeeper.bench.extra import end_without_extra
from routekeeper.remoting.interrupt import end_quietly_when_interrupted, ending_signals
from routekeeper.remoting.terminal import print_any_text
from routekeeper.remoting.wall_clock import bear_far_clocks

# Call these functions before the slow imports below. Otherwise an interrupt during an import would print a
# traceback.
end_quietly_when_interrupted()
bear_far_clocks()
print_any_text()
# Check for missing packages here, because the imports below would end in a traceback if a package is missing.
end_without_extra("mqbench")
# ruff: noqa: E402

import argparse
import contextlib
import importlib.metadata
import math
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from routekeeper.bench import compare as comparing
from routekeeper.bench import kernel
from routekeeper.bench.arms import apache, apache_brokers
from routekeeper.bench.costs import advice as arithmetic
from routekeeper.bench.costs.published import load_costs
from routekeeper.bench.costs.units import DESIGNS, Design
from routekeeper.bench.given import ARMS, given_cluster, plan_for
from routekeeper.bench.plan import PlanError, load_plan, only_scenarios, only_series, plans, without_arm
from routekeeper.bench.play.orders import DIVISORS
from routekeeper.bench.runfolder import REAL, find_run_folders
from routekeeper.bench.schedule import Comparison, blocks_of
from routekeeper.bench.surroundings import nameless, own_spark
from routekeeper.remoting.flags import add_print_completion
from routekeeper.remoting.output import set_up_logging

DEFAULT_PROFILE: Final = "compare"
DEFAULT_OUT: Final = Path("out")
DEFAULT_PARTITION_S: Final = 300.0
"""Length of one partition, in s, for ``advise``."""
ATTACHED: Final = "attached"
"""Name of the profile for a cluster that already runs. With it, ``mqbench`` starts only the load."""

_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_USUAL: Final = ("WARNING: Using incubator", "Using Spark's default", "Setting ", "To adjust ", "Picked up ")
"""Beginnings of lines that Spark prints at every start. Such a line never states why Spark failed."""
_INTERRUPT_S: Final = 5.0
"""Seconds for which ``mqbench`` waits, after an interrupt, until the report's process has ended Spark."""


def is_here(folders: Sequence[str], out: str, master: str | None) -> bool:
    """Return True if the report can use the Spark that PySpark itself contains.

    If a path is a URI or ``master`` is set, the report uses the Spark that environment variables such as
    ``SPARK_HOME`` name.
    """
    return master is None and not any(_URI.match(each) for each in (*folders, out))


def make_report(folders: Sequence[str], out: str, master: str | None = None) -> int:
    """Run the report's job in a separate process, and return the exit code of this process.

    The last line that the job prints is the report's path.

    Args:
        folders: Paths of runs' folders, or URIs that Spark understands.
        out: Path of the report's folder, or a URI that Spark understands.
    """
    command = [sys.executable, "-m", "routekeeper.bench.report", *folders, "--out", out]
    if master is not None:
        command += ["--master", master]
    own = is_here(folders, out, master)
    child = subprocess.Popen(command, env=own_spark(os.environ) if own else None)
    try:
        return child.wait()
    except KeyboardInterrupt:
        _await_interrupted(child)
        raise


def spark_problem() -> str | None:
    """Start Spark as a test, and end it again.

    Returns:
        None if Spark started, else one line that says why it did not start.
    """
    child = subprocess.Popen(
        [sys.executable, "-m", "routekeeper.bench.report.start"],
        env=own_spark(os.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        said = child.communicate()[1].decode(errors="replace")
    except KeyboardInterrupt:
        _await_interrupted(child)
        raise
    if child.returncode == 0:
        return None
    lines = [line for line in said.splitlines() if line.strip() and not line.startswith(_USUAL)]
    return lines[0] if lines else f"it exited with {child.returncode}"


def check_out(out: Path) -> None:
    """Make the folder for results, unless it exists.

    Raises:
        PlanError: If the folder cannot be made, or files cannot be written in the folder.
    """
    if out.exists() and not out.is_dir():
        raise PlanError(f"--out {out}: this is a file; name a folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise PlanError(f"--out {out}: {error.strerror}") from None


def _await_interrupted(child: subprocess.Popen[bytes]) -> None:
    """Wait until an interrupted process has ended its children and has exited.

    Ctrl-C in a terminal interrupts ``mqbench`` and its child process. A signal that another program sends to
    ``mqbench`` does not reach the child. If the child still runs after 5 s, this function interrupts the
    child. After 10 s it kills the child.
    """
    try:
        child.wait(_INTERRUPT_S)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGINT)
        try:
            child.wait(_INTERRUPT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def asked_for(arguments: argparse.Namespace, command: Sequence[str]) -> tuple[Path, Comparison]:
    """Return the folder and the settings of a new comparison, or of the comparison that ``--resume`` names.

    Raises:
        PlanError: If the arguments contradict each other, or if this machine lacks a needed program.
    """
    if arguments.resume is not None:
        check_alone(arguments)
        comparison = comparing.load(arguments.resume)
        check_links(comparison)
        return arguments.resume, comparison
    profile = arguments.profile or DEFAULT_PROFILE
    plan = load_plan(profile)
    given = None
    if arguments.nameservers or arguments.http or arguments.arm is not None:
        given = given_cluster(arguments.arm, arguments.nameservers, arguments.http)
        plan = plan_for(plan, given)
    elif profile == ATTACHED:
        raise PlanError(
            f"profile {ATTACHED!r} measures a running cluster: name it by --arm and --nameservers"
        )
    elif REAL.keys() & set(plan.arms):
        if (lacking := apache_brokers.missing()) is not None:
            raise PlanError(f"profile {profile!r} runs RocketMQ's own brokers: it needs {lacking}")
    elif (lacking := apache.missing()) is not None and "apache" in plan.arms:
        print(f"mqbench: the arm apache is left out: it needs {lacking}", file=sys.stderr)
        plan = without_arm(plan, "apache")
    if arguments.series:
        plan = only_series(plan, arguments.series)
    if arguments.scenarios:
        plan = only_scenarios(plan, arguments.scenarios)
    if arguments.blocks is not None:
        series = [msgspec.structs.replace(one, blocks=arguments.blocks) for one in plan.series]
        plan = msgspec.structs.replace(plan, series=series)
    if arguments.links is not None:
        plan = msgspec.structs.replace(plan, links=arguments.links)
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(2**31)
    parent = arguments.out or DEFAULT_OUT
    out = parent / time.strftime("%Y%m%d-%H%M%S")
    comparison = Comparison(
        profile=Path(profile).stem if profile.endswith(".toml") else profile,
        plan=plan,
        seed=seed,
        command=list(command),
        given=given,
    )
    check_links(comparison)
    check_out(parent)
    comparing.begin(out, comparison)
    return out, comparison


def check_alone(arguments: argparse.Namespace) -> None:
    """Check that the command line has no flag that changes the comparison which ``--resume`` names.

    Raises:
        PlanError: If the command line has a flag that sets a property of the comparison.
    """
    beside = {
        "--out": arguments.out,
        "--profile": arguments.profile,
        "--seed": arguments.seed,
        "--blocks": arguments.blocks,
        "--series": arguments.series,
        "--scenarios": arguments.scenarios,
        "--links": arguments.links,
        "--arm": arguments.arm,
        "--nameservers": arguments.nameservers,
        "--http": arguments.http,
    }
    for name, value in beside.items():
        if value not in (None, []):
            raise PlanError(
                f"{name} beside --resume {arguments.resume}: a resumed comparison keeps its settings; "
                f"leave {name} out, or begin another comparison without --resume"
            )


def check_links(comparison: Comparison) -> None:
    """Check that this machine can cut network links as ``--links`` asks.

    Raises:
        PlanError: If ``--links kernel`` is set, but this machine lacks a program for it, or the profile never
            cuts links.
    """
    if comparison.plan.links != "kernel":
        return
    if comparison.given is not None or REAL.keys() & set(comparison.plan.arms):
        raise PlanError(f"profile {comparison.profile!r} cuts no links: leave --links kernel out")
    if (lacking := kernel.missing()) is not None:
        raise PlanError(f"--links kernel needs {lacking}")


def make_runs(out: Path, comparison: Comparison) -> list[Path]:
    """Make the missing runs. After an interrupt, print the command that resumes the comparison."""
    if not interpreter.about()["optimised"]:
        print(f"mqbench: warning: {interpreter.WARNING}", file=sys.stderr)
    try:
        return comparing.make_runs(out, comparison)
    except KeyboardInterrupt:
        print(f"\nmqbench: to go on, run: mqbench compare --resume {out}", file=sys.stderr)
        raise


def say_missing(out: Path, comparison: Comparison, command: str, *, then: str = "") -> bool:
    """Return True if runs are missing. Print their number, and the command that makes them.

    Args:
        command: Subcommand of ``mqbench`` that resumes the comparison: ``compare`` or ``run``.
        then: More text on the consequences.
    """
    missing = len(comparing.missing_turns(out, comparison))
    if not missing:
        return False
    number = sum(map(len, blocks_of(comparison.plan, comparison.seed)))
    again = shlex.join(["mqbench", command, "--resume", str(out)])
    verb = "is" if missing == 1 else "are"
    print(
        f"mqbench: {missing} of {number} runs {verb} missing, because each attempt failed{then}. "
        f"To make what is missing, run: {again}",
        file=sys.stderr,
    )
    return True


def report_roots(out: Path) -> list[str]:
    """Return the folders that the report shows: those of the runs, and those of runs that do not count."""
    return [str(out / name) for name in ("runs", "void") if name == "runs" or (out / name).is_dir()]


def compare(arguments: argparse.Namespace, command: Sequence[str]) -> int:
    if (lacking := nameless()) is not None:
        raise PlanError(lacking)
    out, comparison = asked_for(arguments, command)
    if (problem := spark_problem()) is not None:
        print(f"mqbench: Spark, which makes the report, does not start: {problem}", file=sys.stderr)
        return 1
    code = 1
    try:
        make_runs(out, comparison)
        if not find_run_folders([out]):
            print("mqbench: no run was completed, so there is no report", file=sys.stderr)
            say_missing(out, comparison, "compare")
            return 1
        if comparing.missing_turns(out, comparison):
            print("mqbench: the report of the completed runs follows", file=sys.stderr)
        else:
            print("mqbench: all runs are done; the report follows", file=sys.stderr)
        code = make_report(report_roots(out), str(out))
    finally:
        if code != 0 and find_run_folders([out]):
            again = shlex.join(["mqbench", "report", *report_roots(out), "--out", str(out)])
            print(f"mqbench: the runs are kept; to make their page, run: {again}", file=sys.stderr)
    page = out / "report.html"
    if code == 0 and arguments.open:
        webbrowser.open(page.resolve().as_uri())
    if say_missing(out, comparison, "compare", then="; the report shows the others" if code == 0 else ""):
        return code or 1
    return code


def run(arguments: argparse.Namespace, command: Sequence[str]) -> int:
    out, comparison = asked_for(arguments, command)
    folders = make_runs(out, comparison)
    for folder in folders:
        print(folder)
    return 1 if say_missing(out, comparison, "run") else 0


def report(arguments: argparse.Namespace, command: Sequence[str]) -> int:
    # Check local folders before the slow start of Spark's JVM. Folders that URIs name can be checked only by
    # Spark.
    missing = [each for each in arguments.folders if not _URI.match(each) and not Path(each).is_dir()]
    if missing:
        print(f"mqbench: no such folder: {missing[0]}", file=sys.stderr)
        return 2
    if is_here(arguments.folders, arguments.out, arguments.master):
        if (lacking := nameless()) is not None:
            raise PlanError(lacking)
        check_out(Path(arguments.out))
    return make_report(arguments.folders, arguments.out, arguments.master)


def scale(arguments: argparse.Namespace, command: Sequence[str]) -> int:
    # Do not import at the top. The import is slow, because it also loads the load generators, which other
    # commands do not need.
    from routekeeper.bench.scale.command import scale as measure_or_report

    return measure_or_report(arguments, command)


def costs(arguments: argparse.Namespace, command: Sequence[str]) -> int:
    try:
        # Do not import at the top, because these modules exist only in a checkout.
        from routekeeper.bench.costs.run import Failure, measure
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("routekeeper.bench.micro"):
            raise
        print(
            "mqbench: costs needs bench/micro, which pip does not install; run it in a checkout",
            file=sys.stderr,
        )
        return 2
    out = arguments.out or DEFAULT_OUT
    if arguments.resume is None:
        check_out(out)
    elif arguments.quick or arguments.designs is not None or arguments.out is not None:
        raise PlanError(
            f"--quick, --designs or --out beside --resume {arguments.resume}: a resumed run keeps its folder "
            "and its settings; leave them out"
        )
    try:
        path = measure(
            command,
            out=out,
            resume=arguments.resume,
            designs=arguments.designs or list(DESIGNS),
            quick=arguments.quick,
        )
    except Failure as error:
        print(f"mqbench: {error}", file=sys.stderr)
        return 1
    print(path)
    return 0


def advise(arguments: argparse.Namespace, command: Sequence[str]) -> int:
    numbers = {name: getattr(arguments, name) for name in NUMBERS}
    given = [name for name, value in numbers.items() if value is not None]
    if arguments.folder is not None:
        others = arguments.source, arguments.partition_lasts_s
        if given or others != (None, None) or arguments.json:
            raise PlanError(f"advise {arguments.folder}: with a report's folder, leave all other flags out")
        return advise_by_report(arguments.folder)
    if len(given) < len(NUMBERS):
        flags = [f"--{name.replace('_', '-')}" for name in NUMBERS if name not in given]
        raise PlanError(f"advise needs {', '.join(flags)}, or only the folder of a report")
    advice = arithmetic.advise(
        load_costs(arguments.source),
        arithmetic.Installation(
            partition_lasts_s=arguments.partition_lasts_s or DEFAULT_PARTITION_S, **numbers
        ),
    )
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(advice)).decode())
    else:
        print("\n".join(arithmetic.lines(advice)))
    return 0


def advise_by_report(folder: Path) -> int:
    from routekeeper.bench.report.advice import NoReport, advice  # imported here: pyarrow loads slowly

    try:
        found = advice(folder)
    except NoReport as error:
        print(f"mqbench: {error}", file=sys.stderr)
        return 2
    if not found:
        print(f"mqbench: {folder} compares no two designs", file=sys.stderr)
        return 1
    for need, choice, because in found:
        print(f"{need}: {choice}\n    {because}")
    return 0


def picture(arguments: argparse.Namespace, command: Sequence[str]) -> int:
    from routekeeper.bench.report.picture import NoPicture
    from routekeeper.bench.report.picture import picture as make_picture

    if not arguments.page.is_file():
        print(f"mqbench: no such page: {arguments.page}", file=sys.stderr)
        return 2
    try:
        make_picture(
            arguments.page,
            arguments.file,
            width=arguments.width,
            height=arguments.height,
            dark=arguments.dark,
            section=arguments.section,
        )
    except NoPicture as error:
        print(f"mqbench: {error}", file=sys.stderr)
        return 1
    print(arguments.file)
    return 0


def play(arguments: argparse.Namespace, command: Sequence[str]) -> int:
    from routekeeper.bench.play import program  # imported here, because aiohttp loads slowly

    listen = program.listen_at(arguments.listen)
    if arguments.replay is not None:
        return program.play_again(arguments.replay, listen=listen, opens=not arguments.no_open)
    check_out(arguments.out)
    return program.play(
        program.designs_of(arguments.designs),
        listen=listen,
        opens=not arguments.no_open,
        divisor=arguments.divisor,
        out=arguments.out,
    )


def addresses(text: str) -> list[str]:
    return [addr.strip() for addr in text.split(";")]


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def designs(text: str) -> list[Design]:
    found = names(text)
    for name in found:
        if name not in DESIGNS or found.count(name) > 1:
            raise argparse.ArgumentTypeError(f"{text}: allowed are {', '.join(DESIGNS)}, each once")
    return [design for design in DESIGNS if design in found]


def number(low: float, high: float, *, whole: bool = False) -> Callable[[str], float]:
    """Return a type for argparse that converts text to a number from ``low`` to ``high``."""

    def read(text: str) -> float:
        kind = "a whole number" if whole else "a number"
        value = math.nan
        with contextlib.suppress(ValueError):
            if not whole:
                value = float(text)
            elif text.isascii() and text.isdecimal():  # int() also reads 1_280, +300 and blanks
                value = int(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text} is not {kind} from {low:,} to {high:,}")
        return value

    return read


#: Arguments of ``advise`` that describe an installation. Each has a function that converts its text to a
#: number, and a help text.
NUMBERS: Final = {
    "brokers": (number(1, 100_000, whole=True), "brokers, masters and slaves"),
    "topics": (number(1, 10_000_000, whole=True), "topics; advise assumes that each broker has all of them"),
    "clients": (number(0, 10_000_000, whole=True), "producers and consumers"),
    "changes_a_day": (number(0, 1e9), "changes of routes per day"),
    "restarts_a_month": (number(0, 1e6), "restarts of single servers per month"),
    "rtt_ms": (number(0, 60_000), "round-trip time between servers, ms"),
    "partition_minutes_a_year": (number(0, 527_040), "minutes per year in which the network is partitioned"),
}


def add_run_arguments(child: argparse.ArgumentParser) -> None:
    """Add the arguments that choose the runs."""
    child.add_argument("--out", type=Path, help="folder for runs and report (default: out)")
    child.add_argument(
        "--profile",
        metavar="NAME",
        help=f"plan of the comparison: {', '.join(plans())}, or the path of a file NAME.toml "
        "(default: compare)",
    )
    child.add_argument(
        "--blocks", type=number(1, 1000, whole=True), help="rounds of each series (default: the profile's)"
    )
    child.add_argument(
        "--series", type=names, default=[], metavar="NAME,...", help="only these series of the profile"
    )
    child.add_argument(
        "--scenarios", type=names, default=[], metavar="NAME,...", help="only these scenarios of the series"
    )
    child.add_argument(
        "--links",
        choices=("proxy", "kernel"),
        help="cut links by a proxy between the processes, or by the kernel between network namespaces, which "
        "needs root and iproute2 (default: proxy)",
    )
    child.add_argument(
        "--seed", type=int, help="seed of loads and faults (default: drawn at random and recorded)"
    )
    child.add_argument(
        "--resume", type=Path, metavar="FOLDER", help="go on with the comparison in this folder"
    )
    given = child.add_argument_group("a running cluster", f"for --profile {ATTACHED}")
    given.add_argument("--arm", choices=ARMS, help="design of the cluster")
    for name, what in (
        ("nameservers", "its nameservers"),
        ("http", "HTTP addresses of its nameservers, by which mqbench sees whether they are ready"),
    ):
        given.add_argument(
            f"--{name}", type=addresses, default=[], metavar="HOST:PORT;...", help=f"{what} (default: none)"
        )


def add_scale_arguments(child: argparse.ArgumentParser) -> None:
    """Add the arguments of ``mqbench scale``."""
    child.add_argument("--part", choices=("size", "distance", "number"), help="series to measure")
    child.add_argument("--out", type=Path, help="folder for the series' folder (default: out)")
    child.add_argument(
        "--designs",
        type=names,
        metavar="NAME,...",
        help="independent, raft, zookeeper, apache (RocketMQ's own nameserver); default: all that can run "
        "here",
    )
    child.add_argument(
        "--rounds", type=number(1, 1000, whole=True), help="rounds of each point (default: 3; 5 at crossings)"
    )
    child.add_argument(
        "--links",
        choices=("proxy", "kernel"),
        help="delay links between servers in the part distance by a proxy or by the kernel; the kernel can "
        "also lose packets, and needs root, iproute2 and /dev/net/tun (default: proxy)",
    )
    child.add_argument(
        "--small",
        action="store_true",
        help="tiny sizes, for a trial of some minutes; the part number takes about 12",
    )
    child.add_argument(
        "--seed",
        type=int,
        help="seed that decides which server is lost, and when (default: drawn at random and recorded)",
    )
    child.add_argument("--resume", type=Path, metavar="FOLDER", help="go on with the series in this folder")
    child.add_argument(
        "--report", type=Path, metavar="FOLDER", help="make the page of all series at or below this folder"
    )


def parser() -> argparse.ArgumentParser:
    """Return the command line of ``mqbench``."""
    version = importlib.metadata.version("routekeeper")
    top = argparse.ArgumentParser(
        prog="mqbench",
        description="Compare RocketMQ's independent nameservers, raft mode and ZooKeeper under load and with "
        "faults.",
    )
    top.add_argument("--version", action="version", version=f"mqbench {version}")
    add_print_completion(top)
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    child = commands.add_parser(
        "compare", help="run three designs in turn under load and faults, then make the report"
    )
    add_run_arguments(child)
    child.add_argument("--open", action="store_true", help="open the page in the browser at the end")
    child.set_defaults(do=compare)
    child = commands.add_parser("run", help="do the same without the report; print the runs' folders")
    add_run_arguments(child)
    child.set_defaults(do=run)
    child = commands.add_parser("report", help="make the report of run folders; print its path last")
    child.add_argument(
        "folders",
        nargs="+",
        metavar="RUN_FOLDER",
        help="run folders, or folders that contain some: paths or URIs",
    )
    child.add_argument("--out", default="out", help="folder for the report, or its URI (default: out)")
    child.add_argument("--master", help="Spark master, such as spark://host:7077 (default: this machine)")
    child.set_defaults(do=report)
    child = commands.add_parser(
        "scale", help="measure the designs at other sizes, distances and numbers of servers, or make its page"
    )
    add_scale_arguments(child)
    child.set_defaults(do=scale)
    child = commands.add_parser(
        "costs",
        help="measure what each broker, topic, client and change costs, with RocketMQ's own timers",
    )
    child.add_argument("--out", type=Path, help="folder for the run (default: out)")
    child.add_argument(
        "--designs",
        type=designs,
        metavar="NAME,...",
        help=f"only these designs (default: {','.join(DESIGNS)})",
    )
    child.add_argument(
        "--quick",
        action="store_true",
        help="use short timers and small sizes to try the program; its figures mean nothing",
    )
    child.add_argument("--resume", type=Path, metavar="FOLDER", help="go on with the run in this folder")
    child.set_defaults(do=costs)
    child = commands.add_parser(
        "advise",
        help="estimate what each design costs an installation of given numbers; or print which design to "
        "choose by a report",
    )
    child.add_argument(
        "folder",
        type=Path,
        nargs="?",
        metavar="REPORT_FOLDER",
        help="print which design to choose for which need, by the report in this folder",
    )
    for name, (read, help_) in NUMBERS.items():
        child.add_argument(f"--{name.replace('_', '-')}", type=read, metavar="N", help=help_)
    child.add_argument(
        "--partition-lasts-s",
        type=number(1, 10_000_000),
        metavar="N",
        help=f"length of one partition, s (default: {DEFAULT_PARTITION_S:g})",
    )
    child.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="FILE",
        help="unit costs that mqbench costs measured (default: the published ones)",
    )
    child.add_argument("--json", action="store_true", help="print JSON")
    child.set_defaults(do=advise)
    child = commands.add_parser(
        "play",
        help="run three designs side by side and break them by hand in the browser; Ctrl-C ends everything",
    )
    child.add_argument(
        "--listen",
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="address of the page (default: a free port of 127.0.0.1)",
    )
    child.add_argument(
        "--designs",
        type=names,
        default=["independent", "raft", "zookeeper"],
        metavar="NAME,...",
        help="designs to run (default: independent,raft,zookeeper)",
    )
    child.add_argument("--no-open", action="store_true", help="do not open the page in the browser")
    child.add_argument(
        "--divisor",
        type=float,
        choices=DIVISORS,
        default=10.0,
        help="number by which RocketMQ's timers are divided; 1 for its own timers (default: 10)",
    )
    child.add_argument(
        "--out", type=Path, default=Path("out"), help="folder for saved sessions (default: out)"
    )
    child.add_argument("--replay", type=Path, metavar="FOLDER", help="show a saved session")
    child.set_defaults(do=play)
    child = commands.add_parser(
        "picture", help="make a picture of a page as a browser shows it; needs chromium"
    )
    child.add_argument("page", type=Path, metavar="PAGE", help="report.html")
    child.add_argument("file", type=Path, metavar="FILE.png", help="file of the picture")
    child.add_argument(
        "--width",
        type=number(200, 4000, whole=True),
        default=1280,
        help="width of the page in pixels (default: 1280); a picture below 500 has a margin at its right",
    )
    child.add_argument(
        "--height",
        type=number(200, 20_000, whole=True),
        default=1600,
        help="height of the picture in pixels (default: 1600); the page below it is not shown",
    )
    child.add_argument("--dark", action="store_true", help="show the page in its dark colours")
    child.add_argument(
        "--section",
        metavar="NAME",
        help="first section of the picture: a scenario such as partition, or a part of the page such as "
        "trust (default: the page's top)",
    )
    child.set_defaults(do=picture)
    return top


def _interrupt(*_: object) -> NoReturn:
    """Turn a signal into ``KeyboardInterrupt``, so that ``mqbench`` stops the servers before it ends."""
    raise KeyboardInterrupt


def without_out(words: Sequence[str]) -> list[str]:
    """Return a command line without ``--out FOLDER``, for the records of the measurement.

    The records are published, and a person who repeats the measurement has another folder.
    """
    kept = list[str]()
    left = iter(words)
    for word in left:
        option, equals, _ = word.partition("=")
        if len(option) < 3 or not "--out".startswith(option):
            kept.append(word)
        elif not equals:
            next(left, None)
    return kept


def main(argv: Sequence[str] | None = None) -> int:
    set_up_logging(level="WARNING")
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = parser().parse_args(words)
    for number in ending_signals():
        signal.signal(number, _interrupt)
    try:
        return int(arguments.do(arguments, ["mqbench", *without_out(words)]))
    except PlanError as error:
        print(f"mqbench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nmqbench: interrupted; finished runs are kept", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
