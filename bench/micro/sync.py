"""Measures the time of one sync (fdatasync) for files with different content before the write.

    python -m routekeeper.bench.micro.sync [--folder DIR] [--rounds 8] [--blocks 1000]

The benchmark writes blocks to a file and syncs each block, like the journal of a raft group. There are four
kinds of files:

- a growing file;
- a file with allocated blocks;
- a file of durable zeros, as the journal uses;
- a file that held other data before, like a reused segment.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Final

from routekeeper.bench import interpreter

KINDS: Final = ("grows", "allocated", "zeros", "used before")
BLOCK: Final = 2048  # in bytes: about the size of a registration of ten topics


def prepared(path: Path, kind: str, size: int) -> int:
    """Create a file with the content of ``kind``, sync it, and return its file descriptor."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    if kind == "allocated":
        os.posix_fallocate(file, 0, size)
    elif kind != "grows":
        os.pwrite(file, bytes(size) if kind == "zeros" else os.urandom(size), 0)
    os.fsync(file)
    return file


def median_us(file: int, blocks: int) -> float:
    """Write blocks from the file's start on, and sync after each block.

    Return the median time in µs that one write with its sync took.
    """
    block = os.urandom(BLOCK)
    taken = []
    for number in range(blocks):
        begun = time.perf_counter_ns()
        os.pwrite(file, block, number * BLOCK)
        os.fdatasync(file)
        taken.append(time.perf_counter_ns() - begun)
    return statistics.median(taken) / 1000


def main(argv: list[str] | None = None) -> None:
    """In each round, measure all kinds of files in random order; then print a line for each kind."""
    parser = argparse.ArgumentParser(
        prog="python -m routekeeper.bench.micro.sync",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--folder", type=Path, help="folder on the disk to test (default: a temporary one)")
    parser.add_argument("--rounds", type=int, default=8, help="rounds over all kinds (default %(default)s)")
    parser.add_argument("--blocks", type=int, default=1000, help="blocks of a round (default %(default)s)")
    given = parser.parse_args(argv)
    if not (1 <= given.rounds <= 1000 and 1 <= given.blocks <= 100_000):
        parser.error("--rounds must be 1 to 1000, --blocks 1 to 100000")
    if given.folder is not None and not given.folder.is_dir():
        parser.error(f"--folder: {given.folder} is no folder")
    print(interpreter.said(), flush=True)
    found = defaultdict(list)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for _ in range(given.rounds):
            for kind in random.sample(KINDS, len(KINDS)):
                file = prepared(Path(folder, "file"), kind, given.blocks * BLOCK)
                try:
                    found[kind].append(median_us(file, given.blocks))
                finally:
                    os.close(file)
    for kind in KINDS:
        rounds = found[kind]
        least, most = min(rounds), max(rounds)
        print(f"{kind:12} {statistics.median(rounds):6.0f} us ({least:.0f} to {most:.0f})", flush=True)


if __name__ == "__main__":
    main()
