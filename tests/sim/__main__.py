"""Play seeds: ``python -m tests.sim --seeds 1-100``. Prints what failed, with the command that repeats it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter

from .scenario import FAULTS, ON_REQUEST, Result, run_seed

HASH_SEED = "0"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", default="1-20", help="A-B, or one seed")
    parser.add_argument("--members", type=int, default=0, help="3 or 5; 0 has the seed choose")
    parser.add_argument("--seconds", type=float, default=12.0, help="of trouble, in virtual time")
    parser.add_argument("--faults", help=f"instead of a seed's choice: {', '.join((*FAULTS, *ON_REQUEST))}")
    parser.add_argument("--durability", choices=("memory", "journal", "fsync"))
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failure")
    parser.add_argument("--verbose", action="store_true", help="what happened in each run")
    options = parser.parse_args(arguments)
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        # The order of sets of texts is part of a run.
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "tests.sim", *arguments])
    first, _, last = options.seeds.partition("-")
    faults = options.faults.split(",") if options.faults else None
    failed, total, begun = 0, Counter[str](), time.monotonic()
    seeds = range(int(first), int(last or first) + 1)
    for seed in seeds:
        members = options.members or (5 if seed % 4 == 0 else 3)
        result = run_seed(
            seed, members=members, seconds=options.seconds, faults=faults, durability=options.durability
        )
        total += result.count
        if result.violations or options.verbose:
            show(result)
        if result.violations:
            failed += 1
            print("replay:", replay(result.seed, arguments), flush=True)
            if not options.keep_going:
                break
    took = time.monotonic() - begun
    print(f"{len(seeds)} seeds, {failed} failed, {took:.1f} s")
    print(", ".join(f"{name} {count}" for name, count in sorted(total.items())))
    return 1 if failed else 0


def show(result: Result) -> None:
    print(f"seed {result.seed} {result.settings} trace={result.trace}")
    print(f"  {result.events} events in {result.seconds:.2f} s; {dict(sorted(result.count.items()))}")
    for line in result.what:
        print("  ", line)
    for violation in result.violations:
        print("  VIOLATION", violation)


def replay(seed: int, arguments: list[str]) -> str:
    """The command that plays one seed of this call again."""
    kept = []
    skip = False
    for argument in arguments:
        if skip or argument in ("--seeds", "--keep-going", "--verbose") or argument.startswith("--seeds="):
            skip = argument == "--seeds"
            continue
        kept.append(f'"{argument}"' if " " in argument else argument)
    return " ".join(["PYTHONHASHSEED=0 python -m tests.sim --verbose --seeds", str(seed), *kept])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
