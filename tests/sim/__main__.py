"""Runs the simulator once for each seed: ``python -m tests.sim --seeds 1-100``.

The program prints each failure and the command that repeats the failed run. Other options:

- ``--stock`` runs the published PySyncObj under the same faults and prints its defects.
- ``--planted NAME`` plants a bug in the code and prints the first seed that catches this bug. ``--planted
  all`` plants every bug, one after the other.
- ``--coverage`` prints for each module of the nameserver how many lines the seeds have run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest

from .lines import Lines
from .plants import PLANTS, Planted
from .runner import play_one, results
from .scenario import FAULTS, Result
from .summary import Summary

HASH_SEED = "0"
SAYS_S = 60.0
"""Seconds between two progress lines if the output is not a terminal."""
CLEAR = "\x1b[K"
INTERRUPTED = 130  # exit status 128 + SIGINT, as a shell reports it
NOT_REPEATED = {"--seeds": 1, "--seed": 1, "--workers": 1, "--keep-going": 0, "--verbose": 0}
"""Options that are omitted in the command that replays a seed, with the number of values of each option."""


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        # A run depends on the order of sets of strings, and this order depends on Python's hash seed. So
        # start this program again with a fixed hash seed.
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "tests.sim", *arguments])
    if options.planted:
        names = list(PLANTS) if options.planted == "all" else [options.planted]
        return max([plant(name, seeds_of(options.seeds)) for name in names])
    if options.coverage:
        return cover(options)
    return play(options, arguments)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="20", help="seeds to run: A-B, or N for 1-N")
    parser.add_argument("--seed", type=int, help="run only this seed")
    parser.add_argument(
        "--members",
        type=int,
        default=0,
        help="number of members: 3 or 5; 0: 3 for odd seeds, 5 for even seeds",
    )
    parser.add_argument("--seconds", type=float, default=12.0, help="virtual time with faults in s")
    parser.add_argument("--faults", help=f"faults to cause (default: the seed decides): {', '.join(FAULTS)}")
    parser.add_argument("--durability", choices=("memory", "journal", "fsync"))
    parser.add_argument("--workers", type=int, default=1, help="number of processes that share the seeds")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failure")
    parser.add_argument("--verbose", action="store_true", help="print the events of each run")
    parser.add_argument(
        "--stock", action="store_true", help="run the published library, and print its defects"
    )
    parser.add_argument(
        "--planted", choices=("all", *PLANTS), help="plant a bug, and print the first seed that catches it"
    )
    parser.add_argument(
        "--coverage", action="store_true", help="print which lines of the nameserver have run"
    )
    options = parser.parse_args(arguments)
    if options.seed is not None:
        options.seeds = f"{options.seed}-{options.seed}"
    options.faults = options.faults.split(",") if options.faults else None
    return options


def seeds_of(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last) + 1) if last else range(1, int(first) + 1)


def play(options: argparse.Namespace, arguments: list[str]) -> int:
    """Run all seeds; return 0 if no seed failed, 1 if a seed failed, 130 if the user interrupted the run."""
    seeds, begun = seeds_of(options.seeds), time.monotonic()
    summary, said_at = Summary(seeds), begun
    played = results(partial(play_one, options), seeds, options.workers)
    live = sys.stdout.isatty()
    with interrupts() as interrupted, contextlib.closing(played):
        for result in played:
            summary.add(result)
            if options.stock:
                defects = {violation.split()[1] for violation in result.violations}
                summary.count += Counter({f"seeds with {name}": 1 for name in defects})
            if (result.violations and not options.stock) or options.verbose:
                show(result)
            if result.violations:
                if not options.stock or options.verbose:
                    print("replay:", replay(result.seed, arguments), flush=True)
                if not options.keep_going and not options.stock:
                    break
            if interrupted:
                print(f"{CLEAR if live else ''}interrupted; what was done:", flush=True)
                break
            if time.monotonic() - said_at > (1.0 if live else SAYS_S) and summary.played < len(seeds):
                said_at = time.monotonic()
                took = said_at - begun
                ends = time.strftime("%H:%M", time.localtime(time.time() + summary.left_s(took)))
                print(summary.progress(took, ends), end=CLEAR + "\r" if live else "\n", flush=True)
    print(*summary.lines(time.monotonic() - begun), sep="\n", flush=True)
    for seed in summary.failed if not options.stock else ():
        print("replay:", replay(seed, arguments))
    if interrupted:
        return INTERRUPTED
    return 1 if summary.failed and not options.stock else 0


@contextlib.contextmanager
def interrupts() -> Iterator[list[int]]:
    """Handle Ctrl-C.

    The first Ctrl-C ends the run after the current seed. A second Ctrl-C ends the run at once.
    """
    noted: list[int] = []

    def note(number: int, frame: object) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def plant(name: str, seeds: range) -> int:
    """Print the first seed that catches a planted bug; return 0 if there is one, else 1."""
    planted: Planted = PLANTS[name]
    begun = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        planted.install(patch)
        for seed in seeds:
            found = planted.caught_by(seed)
            if found:
                print(
                    f"{name}: caught by seed {seed} after {time.monotonic() - begun:.1f} s: {found}",
                    flush=True,
                )
                return 0
    print(f"{name}: not caught by seeds {seeds.start}-{seeds.stop - 1}", flush=True)
    return 1


def cover(options: argparse.Namespace) -> int:
    """Print for each module of the nameserver how many lines of its functions the seeds have run."""
    lines = Lines()
    with lines.recording():
        failed = [seed for seed in seeds_of(options.seeds) if play_one(options, seed).violations]
    all_run = all_there = 0
    for name, (run, there) in lines.report().items():
        if run:
            all_run, all_there = all_run + run, all_there + there
            print(f"{100 * run / there:5.1f} %  {run:4} of {there:4}  {name}")
        else:
            print(f"{'':7}  not run, {there:4}  {name}")
    print(f"{100 * all_run / all_there:5.1f} %  {all_run:4} of {all_there:4}  of what was run at all")
    if failed:
        print("seeds that failed:", *failed)
    return 1 if failed else 0


def show(result: Result) -> None:
    print(f"seed {result.seed} {result.settings} trace={result.trace}")
    print(f"  {result.events} events in {result.seconds:.2f} s; {dict(sorted(result.count.items()))}")
    for line in result.what:
        print("  ", line)
    for violation in result.violations:
        print("  VIOLATION", violation)


def replay(seed: int, arguments: list[str]) -> str:
    """Return the command that runs one seed of this run again."""
    kept = []
    skip = 0
    for argument in arguments:
        name, _, value = argument.partition("=")
        if skip:
            skip -= 1
        elif name in NOT_REPEATED:
            skip = 0 if value else NOT_REPEATED[name]
        else:
            kept.append(f'"{argument}"' if " " in argument else argument)
    return " ".join(["PYTHONHASHSEED=0 python -m tests.sim --verbose --seed", str(seed), *kept])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
