"""A program that starts and ends Spark, to check that this machine can make reports.

Run it by ``python -m routekeeper.bench.report.start``.
"""

import signal

from routekeeper.bench.report.session import interrupted, open_session


def main() -> None:
    """Start Spark, run a job that counts one row, and end Spark."""
    signal.signal(signal.SIGINT, interrupted)
    spark = open_session(small=True)
    try:
        assert spark.range(1).count() == 1
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
