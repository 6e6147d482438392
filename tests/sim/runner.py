"""The part of the simulator that runs all seeds, one after the other or in several processes.

If a seed fails, the other seeds still run.
"""

from __future__ import annotations

import argparse
import gc
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

from .scenario import Result, run_seed
from .stock import run_stock

GC_THRESHOLD = (50_000, 20, 100)


def play_one(options: argparse.Namespace, seed: int) -> Result:
    """Run one seed. An exception of the simulator itself also counts as a failure."""
    # Less frequent garbage collections save 5 % of the time.
    gc.set_threshold(*GC_THRESHOLD)
    begun = time.process_time()
    try:
        result = _play(options, seed)
    except Exception:
        result = Result(
            seed=seed,
            settings="",
            violations=(f"the simulator raises: {traceback.format_exc()}",),
            count=Counter(),
            trace="",
            seconds=0.0,
            events=0,
        )
    return replace(result, cpu_s=time.process_time() - begun)


def _play(options: argparse.Namespace, seed: int) -> Result:
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


def results(one: Callable[[int], Result], seeds: range, workers: int) -> Generator[Result, None, None]:
    """Yield the results in the order of the seeds."""
    if workers <= 1:
        yield from map(one, seeds)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_leave_interrupts) as pool:
        try:
            yield from pool.map(one, seeds)
        finally:
            pool.shutdown(cancel_futures=True)


def _leave_interrupts() -> None:
    """Ignore Ctrl-C in a worker process.

    The main process handles Ctrl-C, and lets the worker finish its current seed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
