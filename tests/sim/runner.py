"""Plays seeds one after the other, or in several processes."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from .scenario import Result, run_seed
from .stock import run_stock


def play_one(options: argparse.Namespace, seed: int) -> Result:
    """Play one seed; in a process of its own, if there are workers."""
    members = options.members or (3 if seed % 2 else 5)
    if options.stock:
        return run_stock(seed, members=members, seconds=options.seconds, faults=options.faults)
    return run_seed(
        seed,
        members=members,
        seconds=options.seconds,
        faults=options.faults,
        durability=options.durability,
    )


def results(one: Callable[[int], Result], seeds: range, workers: int) -> Iterable[Result]:
    """Results in order of seeds."""
    if workers <= 1:
        yield from map(one, seeds)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        try:
            yield from pool.map(one, seeds, chunksize=4)
        finally:
            pool.shutdown(cancel_futures=True)
