"""Start Spark and end it again, to see whether a report can be made.

Run it by ``python -m routekeeper.bench.report.start``.
"""

import signal

from routekeeper.bench.report.session import interrupted, open_session


def main() -> None:
    """Run the smallest job there is."""
    signal.signal(signal.SIGINT, interrupted)
    spark = open_session(small=True)
    try:
        assert spark.range(1).count() == 1
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
