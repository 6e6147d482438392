"""The plan of a run of ``mqbench costs``: the numbers of brokers, topics and clients, and the durations.

This module does no I/O and reads no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from routekeeper.bench.costs.fit import ALONE, HELD_OUT
from routekeeper.bench.costs.units import Design, Numbers

#: Seconds of RocketMQ's registerNameServerPeriod, and of its pollNameServerInterval. A measurement without
#: events takes a multiple of this period, so that each broker and each client sends equally many requests.
PERIOD_S: Final = 30.0
#: Number of topics of each broker while the cost of brokers is measured. One topic would be too few, because
#: a nameserver handles a registration with one topic as a change of this topic.
TOPICS_OF_A_BROKER: Final = 2
#: Pause in s before each measurement. In this time, the servers finish the work that the new load has caused.
SETTLE_S: Final = 4.0
#: Time in s to start and stop a design's servers, without the warm-up (:attr:`Plan.warm_s`).
LIFE_S: Final[dict[Design, float]] = {"independent": 6.0, "raft": 7.0, "zookeeper": 13.0}


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and durations of the measurements of one run.

    - A unit is a broker, a topic or a client.
    - A window is the time of one measurement.
    - A series is a group of windows. From window to window only one number changes, for example the number of
      brokers. The servers alone, and each mixture, are a series of one window.
    - A life is the time from one start of the servers to their stop.

    Attributes:
        period_s: Period of heartbeats and polls.
        alone_s: Length of the window with the servers alone.
        rest_s: Length of a window with few units and without events, and of a mixture's window.
        rest_many_s: Length of a window with many units and without events.
        rate_s: Length of a window with events.
        warm_s: Length of the load before the first window. In this time, a JVM compiles its code.
        reads_heaps: True to make a JVM collect garbage after each window, and then read its heap.
        lives: Names of the series that are measured in each life.
        base: Brokers, and topics of each broker, while the cost of clients or events is measured.
        topic_brokers: Number of brokers while the number of topics varies.
        brokers, topics, polling, watching: Numbers of units, one for each window. ``topics`` are topics of
            each broker.
        changes, newcomers, lookups: Events a second, one rate for each window.
        mixtures: Mixtures (all units together) to predict. Each has as many brokers as ``base``, because the
            cost of an answer depends on the number of brokers in it.
    """

    period_s: float
    alone_s: float
    rest_s: float
    rest_many_s: float
    rate_s: float
    settle_s: float
    warm_s: dict[Design, float]
    reads_heaps: bool
    lives: dict[str, list[str]]
    base: Numbers
    topic_brokers: int
    brokers: list[int]
    topics: list[int]
    polling: list[int]
    watching: list[int]
    changes: list[float]
    newcomers: list[float]
    lookups: list[float]
    mixtures: list[Numbers]


class Step(Numbers, frozen=True, kw_only=True):
    """One measurement: the numbers of brokers, topics and clients, and the events that happen during it."""

    series: str
    seconds: float
    comes_back: bool = False
    """True if all brokers disconnect and register again in this step.

    The step ends with the last registration.
    """


FULL: Final = Plan(
    period_s=PERIOD_S,
    alone_s=2 * PERIOD_S,
    rest_s=2 * PERIOD_S,
    rest_many_s=PERIOD_S,
    rate_s=12.0,
    settle_s=SETTLE_S,
    warm_s={"independent": 4.0, "raft": 4.0, "zookeeper": 20.0},
    reads_heaps=True,
    lives={
        "brokers": [ALONE, "broker"],
        "topics": ["topic", "registration"],
        "polling": ["polling"],
        "watching": ["watching"],
        "events": ["change", "newcomer", "lookup"],
        "mixtures": [*HELD_OUT],
    },
    base=Numbers(brokers=12, topics=100),
    topic_brokers=10,
    brokers=[50, 100, 200, 300],
    topics=[100, 250, 500, 1000],
    polling=[200, 400, 700, 1000],
    watching=[200, 400, 700, 1000],
    changes=[0.5, 1.0, 2.0, 4.0],
    newcomers=[2.0, 4.0, 8.0, 16.0],
    lookups=[10.0, 20.0, 40.0, 80.0],
    mixtures=[
        Numbers(brokers=12, topics=500, polling=20, watching=20, changes=1.0, newcomers=2.0, lookups=10.0),
        Numbers(brokers=12, topics=200, polling=400, watching=100, changes=0.5, newcomers=8.0, lookups=40.0),
    ],
)
#: A short plan to try or to test the program. Its measurements are too short for meaningful figures.
QUICK: Final = Plan(
    period_s=0.2,
    alone_s=0.2,
    rest_s=0.2,
    rest_many_s=0.2,
    rate_s=0.2,
    settle_s=0.02,
    warm_s={"independent": 0.2, "raft": 0.2, "zookeeper": 0.2},
    reads_heaps=False,
    lives={
        "all": [
            *(ALONE, "broker", "topic", "registration", "polling", "watching"),
            *("change", "newcomer", "lookup", *HELD_OUT),
        ]
    },
    base=Numbers(brokers=4, topics=10),
    topic_brokers=3,
    brokers=[4, 8, 12, 16],
    topics=[10, 20, 30, 40],
    polling=[5, 10, 15, 20],
    watching=[5, 10, 15, 20],
    changes=[10.0, 20.0, 30.0, 40.0],
    newcomers=[10.0, 20.0, 30.0, 40.0],
    lookups=[10.0, 20.0, 30.0, 40.0],
    mixtures=[
        Numbers(brokers=4, topics=12, polling=4, watching=4, changes=10.0, newcomers=10.0, lookups=10.0),
        Numbers(brokers=4, topics=20, polling=15, watching=5, changes=10.0, newcomers=20.0, lookups=20.0),
    ],
)


def steps(plan: Plan, life: str) -> list[Step]:
    """Return the measurements of one life, in order.

    A life is the time from a start of the servers to their stop.
    """
    return [step for series in plan.lives[life] for step in _steps(plan, series)]


def _steps(plan: Plan, series: str) -> list[Step]:
    match series:
        case "alone":
            return [Step(series=series, seconds=plan.alone_s)]
        case "broker":
            return [
                Step(series=series, seconds=plan.rest_s, brokers=count, topics=TOPICS_OF_A_BROKER)
                for count in plan.brokers
            ]
        case "topic":
            return [
                Step(series=series, seconds=plan.rest_many_s, brokers=plan.topic_brokers, topics=count)
                for count in plan.topics
            ]
        case "registration":
            return [
                Step(series=series, seconds=0.0, brokers=plan.topic_brokers, topics=count, comes_back=True)
                for count in plan.topics
            ]
        case _ if series in HELD_OUT:
            mixture = plan.mixtures[HELD_OUT.index(series)]
            return [Step(series=series, seconds=plan.rest_s, **msgspec.structs.asdict(mixture))]
    is_rest = series in ("polling", "watching")
    name = series if is_rest else f"{series}s"
    seconds = plan.rest_many_s if is_rest else plan.rate_s
    beside = msgspec.structs.asdict(plan.base)
    return [
        Step(series=series, seconds=seconds, **(beside | {name: number})) for number in getattr(plan, name)
    ]


def minutes(plan: Plan, designs: Sequence[Design]) -> float:
    """Return the expected duration of all runs in minutes."""
    windows = sum(
        plan.settle_s + (1.0 if step.comes_back else step.seconds)
        for life in plan.lives
        for step in steps(plan, life)
    )
    return sum(windows + len(plan.lives) * (plan.warm_s[one] + LIFE_S[one]) for one in designs) / 60.0
