"""Configuration of the load generator, which the harness writes.

This module does no I/O and reads no clock.
"""

from pathlib import Path
from typing import Final

import msgspec

from routekeeper.bench.arms.interface import ArmConfig
from routekeeper.bench.events import SIMULATED_FROM, Op
from routekeeper.bench.plan import NEW_TOPIC, Load, Plan, SeriesPlan, scenarios_of

RETRIES: Final = 2
"""Number of retries of a producer that retries: RocketMQ's default of ``retryTimesWhenSendFailed``."""


class GeneratorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration of the load generator.

    The harness writes the configuration into a file as JSON. The generator waits for this file.
    """

    folder: str
    """Folder into which the generator writes its events."""
    arm: ArmConfig
    load: Load
    brokers: list[int]
    """Numbers of the real brokers, in the order of :attr:`Side.brokers`."""
    seed: int
    start_ns: int
    new_topics: list[str]
    """Topics that are created during the run. The file at :func:`begin_path` has the instant of creation."""
    linger_ns: int
    """Time in ns for which users stay connected after the end of the load (see :func:`end_path`)."""


def end_path(config: Path) -> Path:
    """Return the path of the file into which the harness writes the end of the load in ns."""
    return config.with_suffix(".end")


class Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """Instant at which a new topic is created or first used, and the end of the producers' attempts."""

    begin_ns: int
    until_ns: int


def begin_path(config: Path, topic: str) -> Path:
    """Return the path of the file into which the harness writes the :class:`Beginning` of a new topic."""
    return config.with_suffix(f".{topic}")


def new_topics(plan: Plan, series: SeriesPlan) -> list[str]:
    """Return the topics that are created during a run, in the order of their creation."""
    return [
        new_topic(fault.case)
        for scenario in scenarios_of(plan, series)
        if scenario.name == NEW_TOPIC
        for fault in scenario.faults
    ]


def new_topic(case: str) -> str:
    """Return the name of the topic for a case of the scenario ``new-topic``."""
    return f"new-by-{case}"


def topic_name(number: int) -> str:
    """Return the name of one of the topics that the real brokers have."""
    return f"bench-{number}"


def changing_topic(sim: int) -> str:
    """Return the name of the topic whose route the simulated broker with this number changes."""
    return f"sim-{sim}-changing"


def observed_topics(load: Load) -> list[str]:
    """Return the topics for which the harness records each change of a client's or server's route."""
    return [topic_name(0), *(changing_topic(SIMULATED_FROM + number) for number in range(load.observed_sims))]


def paced(load: Load) -> dict[Op, tuple[float, list[str]]]:
    """Return the rate per second and the topics of each kind of operation that reuses its connection."""
    topics = [topic_name(number) for number in range(load.topics)]
    return {
        "lookup": (load.lookup_per_s, [*topics, *observed_topics(load)]),
        "send": (load.send_per_s, topics),
        "send_once": (load.send_once_per_s, topics),
    }


def is_versioned(topic: str) -> bool:
    """Return True if each change of the topic sets its number of queues to the number of changes so far."""
    return topic.startswith("sim-")


def sim_addr(index: int) -> str:
    """Return the address that a simulated broker announces. No client connects to this address."""
    return f"127.0.0.1:{40_000 + index}"
