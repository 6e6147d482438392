"""Starts Spark and ends it again, to check that reports can be made on this machine.

Run it by ``python -m routekeeper.bench.report.start``.
"""

import signal

from routekeeper.bench.report.session import interrupted, open_session


def main() -> None:
    """Run a minimal Spark job, which counts one row."""
    signal.signal(signal.SIGINT, interrupted)
    spark = open_session(small=True)
    try:
        assert spark.range(1).count() == 1
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
