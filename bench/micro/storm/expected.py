"""Estimate of a run's duration on two idle cores, from the measured durations of the run's parts.

This module does no I/O and reads no clock.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

from routekeeper.bench.micro.storm.rows import LARGE, Row, Sizes, rows_not_for
from routekeeper.bench.micro.storm.servers import Design

#: Time in s to start and stop a design's servers, with the simulated brokers and clients.
LIFE_S: Final[dict[Design, float]] = {"independent": 6, "raft": 7, "rocketmq": 12, "zookeeper": 12}
#: Maps a measurement to two times in s: its duration with few topics, and the additional time for each
#: million pairs of broker and topic.
ROW_S: Final[dict[Row, tuple[float, float]]] = {
    "register-small": (2, 12),
    "register": (2, 14),
    "rest": (5, 0),
    "restart": (5, 16),
    "restart-spread": (35, 4),
    "leave": (2, 8),
    "crowd": (5, 14),
    "misses": (2, 0),
    "stranger": (3, 10),
}
_ZOOKEEPER_TIMES: Final = 3.0


def seconds(arguments: argparse.Namespace, designs: Sequence[Design]) -> float:
    sizes = Sizes(brokers=arguments.brokers, topics=arguments.topics)
    of_row = {"register-small": sizes.small, "crowd": sizes.crowd, "stranger": sizes.stranger}
    found = 0.0
    for design in designs:
        rows = [row for row in arguments.rows if row not in rows_not_for(design)]
        large = [row for row in rows if row in LARGE]
        found += LIFE_S[design] * (len(rows) - len(large) + bool(large))
        for row in [*rows, *(["register"] if large and "register" not in large else [])]:
            fixed, a_million = ROW_S[row]
            brokers, topics = of_row.get(row, sizes.large)
            times = _ZOOKEEPER_TIMES if design == "zookeeper" else 1.0
            found += fixed + times * a_million * brokers * topics / 1e6
        found += arguments.rest_seconds * ("rest" in rows)
        found += arguments.stranger_seconds * ("stranger" in rows)
        found += 6 * (arguments.seconds + (12 if design == "rocketmq" else 1)) * ("misses" in rows)
    return found * float(arguments.repeat)
