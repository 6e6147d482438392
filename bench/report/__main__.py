"""``python -m routekeeper.bench.report RUNS... [--out DIR]``."""

from routekeeper.remoting.interrupt import end_quietly_when_interrupted

# These lines run before the other modules are loaded, because loading takes a while.
end_quietly_when_interrupted()
# ruff: noqa: E402

import sys

from routekeeper.bench.report.job import main

if __name__ == "__main__":
    sys.exit(main())
