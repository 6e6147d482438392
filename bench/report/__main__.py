"""``python -m routekeeper.bench.report RUNS... [--out DIR]``."""

from routekeeper.remoting.interrupt import end_quietly_when_interrupted

end_quietly_when_interrupted()  # before the rest is loaded, which takes a while
# ruff: noqa: E402

import sys

from routekeeper.bench.report.job import main

if __name__ == "__main__":
    sys.exit(main())
