"""``python -m bench.report RUN_FOLDER... [--out DIR]``."""

import sys

from bench.report.job import main

if __name__ == "__main__":
    sys.exit(main())
