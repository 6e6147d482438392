"""Program that fuzzes all code which unknown clients can reach, and prints the figures.

``python -m tests.fuzz [--seconds S] [--seed N]`` runs the fuzzer in this process. ``--served [--topics N]
[--hostile N]`` instead sends requests to real nameserver processes with a large table, see
:mod:`tests.fuzz.served`.
"""

from __future__ import annotations

import argparse
import os
import sys

from tests.fuzz import coverage, served
from tests.fuzz.run import Harm, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    parser.add_argument(
        "--coverage",
        action="store_true",
        help="print the share of lines that are reached, for each file or folder",
    )
    parser.add_argument("--served", action="store_true", help="send requests to real processes")
    parser.add_argument("--topics", type=int, default=20_000)
    parser.add_argument("--hostile", type=int, default=16)
    arguments = parser.parse_args()
    if arguments.coverage:
        print(*coverage.lines(coverage.measure(arguments.seed)), sep="\n")
        return 0
    if arguments.served:
        seconds = min(arguments.seconds, 10.0)
        return served.main(topics=arguments.topics, hostile=arguments.hostile, seconds=seconds)
    print(f"seed {arguments.seed}", flush=True)
    try:
        figures = run(arguments.seed, seconds=arguments.seconds)
    except Harm as harm:
        print(f"HARM {harm}", file=sys.stderr)
        return 1
    print("\n".join(figures.lines()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
