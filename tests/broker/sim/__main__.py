"""Program that runs seeds of the store simulation: ``python -m tests.broker.sim FIRST LAST``."""

from __future__ import annotations

import logging
import sys
import time
import traceback
from collections import Counter

from .broker import Simulation


def main(first: int, last: int) -> int:
    logging.disable(logging.CRITICAL)
    started, count, failed = time.process_time(), Counter[str](), []
    for seed in range(first, last):
        simulation = Simulation(seed)
        try:
            simulation.run()
        except Exception:
            failed.append(seed)
            print(f"seed {seed}")
            traceback.print_exc(limit=-4)
        count += simulation.count
    print(f"seeds={last - first} failed={failed} cpu_s={time.process_time() - started:.0f}")
    for name, number in sorted(count.items()):
        print(f"  {number:>10} {name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
