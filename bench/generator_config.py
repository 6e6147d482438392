"""Configuration of the load generator, which the harness writes (pure)."""

from pathlib import Path
from typing import Final

import msgspec

from routekeeper.bench.arms.interface import ArmConfig
from routekeeper.bench.events import SIMULATED_FROM, Op
from routekeeper.bench.plan import NEW_TOPIC, Load, Plan, SeriesPlan, scenarios_of

RETRIES: Final = 2
"""Of producers that retry: RocketMQ's default of ``retryTimesWhenSendFailed``."""


class GeneratorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration; the harness writes it into a JSON file for which the generator waits."""

    folder: str
    """Where events go."""
    arm: ArmConfig
    load: Load
    brokers: list[int]
    """Numbers of the real brokers, in the order in which sides name them."""
    seed: int
    start_ns: int
    new_topics: list[str]
    """Topics that come to be; :func:`begin_path` says when."""
    linger_ns: int
    """How long users stay after the load's end, which :func:`end_path` names once it is known."""


def end_path(config: Path) -> Path:
    """Return the file, beside the configuration, into which the harness writes the end of the load in ns."""
    return config.with_suffix(".end")


class Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """The instant of a new topic's creation or first send, and how long producers try to send to it."""

    begin_ns: int
    until_ns: int


def begin_path(config: Path, topic: str) -> Path:
    """Return the file into which the harness writes the :class:`Beginning` of a new topic."""
    return config.with_suffix(f".{topic}")


def new_topics(plan: Plan, series: SeriesPlan) -> list[str]:
    """Return the new topics of a run, in order."""
    return [
        new_topic(fault.case)
        for scenario in scenarios_of(plan, series)
        if scenario.name == NEW_TOPIC
        for fault in scenario.faults
    ]


def new_topic(case: str) -> str:
    """Return the topic of a case of the scenario ``new-topic``."""
    return f"new-by-{case}"


def topic_name(number: int) -> str:
    """Return one of the topics that the real brokers hold."""
    return f"bench-{number}"


def changing_topic(sim: int) -> str:
    """Return the topic of a simulated broker that changes."""
    return f"sim-{sim}-changing"


def observed_topics(load: Load) -> list[str]:
    """Return the topics whose views are recorded."""
    return [topic_name(0), *(changing_topic(SIMULATED_FROM + number) for number in range(load.observed_sims))]


def paced(load: Load) -> dict[Op, tuple[float, list[str]]]:
    """Return the rates and topics of the operations of clients that stay."""
    topics = [topic_name(number) for number in range(load.topics)]
    return {
        "lookup": (load.lookup_per_s, [*topics, *observed_topics(load)]),
        "send": (load.send_per_s, topics),
        "send_once": (load.send_once_per_s, topics),
    }


def is_versioned(topic: str) -> bool:
    """Return whether the topic's queues count its changes."""
    return topic.startswith("sim-")


def sim_addr(index: int) -> str:
    """Return the address that a simulated broker announces; no client connects to it."""
    return f"127.0.0.1:{40_000 + index}"
