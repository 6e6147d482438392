"""Program that makes a report of run folders: ``python -m routekeeper.bench.report RUNS... [--out DIR]``."""

from routekeeper.remoting.interrupt import end_quietly_when_interrupted

# Handle interrupts before the other modules are loaded. Loading takes a while, and an interrupt in that time
# would end with a traceback.
end_quietly_when_interrupted()
# ruff: noqa: E402

import sys

from routekeeper.bench.report.job import main

if __name__ == "__main__":
    sys.exit(main())
