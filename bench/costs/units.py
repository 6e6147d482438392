"""Units of work (broker, topic, client, event), quantities of their costs, and the structure of the results.

This module does no I/O and reads no clock.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from routekeeper.bench.runfolder import Machine

Design = Literal["independent", "raft", "zookeeper"]
DESIGNS: Final[tuple[Design, ...]] = ("independent", "raft", "zookeeper")

Quantity = Literal["cpu_s", "network_bytes", "disk_bytes", "syncs", "memory_bytes"]
QUANTITIES: Final[tuple[Quantity, ...]] = ("cpu_s", "network_bytes", "disk_bytes", "syncs", "memory_bytes")
STANDING: Final[Quantity] = "memory_bytes"
"""The quantity that is measured at one instant. All other quantities are added up over time."""

Unit = Literal["broker", "topic", "polling", "watching", "registration", "change", "newcomer", "lookup"]
AT_REST: Final[tuple[Unit, ...]] = ("broker", "topic", "polling", "watching")
"""Units that exist for some time. Their costs are per minute."""
EVENTS: Final[tuple[Unit, ...]] = ("registration", "change", "newcomer", "lookup")
"""Units that happen at one instant. Their costs are per event."""
UNITS: Final[tuple[Unit, ...]] = (*AT_REST, *EVENTS)

WORDS: Final[dict[Unit, str]] = {
    "broker": "a broker at rest",
    "topic": "a topic at one broker",
    "polling": "a client at rest that polls",
    "watching": "a client at rest that watches",
    "registration": "a topic of a broker that comes back",
    "change": "a route change",
    "newcomer": "a new client",
    "lookup": "a lookup",
}

QUANTITY_WORDS: Final[dict[Quantity, tuple[str, float, str]]] = {
    "cpu_s": ("CPU of the three servers", 1.0, "s"),
    "network_bytes": ("network, sent and received by the three servers", 1e6, "MB"),
    "disk_bytes": ("written to files by the three servers", 1e6, "MB"),
    "syncs": ("syncs of the three servers", 1.0, "syncs"),
    "memory_bytes": ("memory of the three servers", 1e6, "MB"),
}
"""Maps a quantity to its name, to the number by which a printed value is divided, and to the printed unit."""

#: The field of :class:`Row` that counts a unit.
_COUNTED: Final[dict[Unit, str]] = {
    "broker": "brokers",
    "topic": "pairs",
    "polling": "polling",
    "watching": "watching",
    "registration": "registrations",
    "change": "changes",
    "newcomer": "newcomers",
    "lookup": "lookups",
}


class Numbers(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Numbers of brokers, of topics of each broker, of clients, and of events a second, at the same time."""

    brokers: int = 0
    topics: int = 0
    polling: int = 0
    watching: int = 0
    changes: float = 0.0
    newcomers: float = 0.0
    lookups: float = 0.0


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement: numbers of brokers, topics and clients, and the resources that each server used.

    The window is the time of the measurement.

    Attributes:
        series: The unit whose number varies. Other series are ``alone`` (servers without brokers and clients)
            and ``held-out`` (all units together).
        seconds: Length of the window.
        brokers, pairs, polling, watching: Numbers during the whole window. A pair is a topic at a broker.
        registrations, changes, newcomers, lookups: Numbers of events in the window.
        topics: Number of different topics. Changes and clients are spread evenly over the topics.
        cpu_s: CPU time that each server's process used in the window.
        members_bytes: Bytes that each server exchanged with the other servers, as the kernel counts them.
            None if they were not counted.
        clients_bytes: Bytes between each server and the generator, which simulates brokers and clients.
        disk_bytes, syncs: Bytes that each server wrote to its files in the window, and its syncs. None if
            they were not counted.
        memory_bytes: Memory of each server after the window. For a JVM, its heap after a garbage collection.
        resident_bytes: Resident memory of each server after the window.
        others_cores: Average number of processor cores that all other programs of the machine used.
        generator_cores: Average number of processor cores that the generator used.
        attempts: Number of the attempt that measured this. In each attempt before, the servers failed.
        commit: Commit of the program that measured; None in rows of older programs, which measured with the
            commit of the run's begin.
    """

    design: Design
    life: str
    series: str
    seconds: float
    brokers: int = 0
    pairs: int = 0
    topics: int = 0
    polling: int = 0
    watching: int = 0
    registrations: int = 0
    changes: int = 0
    newcomers: int = 0
    lookups: int = 0
    cpu_s: list[float]
    members_bytes: list[int] | None
    clients_bytes: list[int]
    disk_bytes: list[int] | None
    syncs: list[int] | None
    memory_bytes: list[int]
    resident_bytes: list[int]
    others_cores: float
    generator_cores: float
    attempts: int = 1
    commit: str | None = None

    def count(self, unit: Unit) -> float:
        """Return the number of brokers, topics or clients, or the number of events per minute."""
        count: int = getattr(self, _COUNTED[unit])
        return self._a_minute(count) if unit in EVENTS else count

    def use(self, quantity: Quantity) -> float | None:
        """Return how much of a resource all servers together use.

        The unit is CPU seconds, bytes or syncs per minute; for memory it is bytes. Return None if the use was
        not counted.
        """
        if quantity == STANDING:
            return float(sum(self.memory_bytes))
        network = self.members_bytes, self.clients_bytes
        of_servers: Any = network if quantity == "network_bytes" else (getattr(self, quantity),)
        return None if None in of_servers else self._a_minute(sum(map(sum, of_servers)))

    def _a_minute(self, value: float) -> float:
        return value * 60.0 / self.seconds


class Slope(msgspec.Struct, frozen=True, kw_only=True):
    """A straight line that shows how the use of a resource grows with the number of units.

    The line is fitted by least squares to the measurements.

    Attributes:
        sizes, uses: Numbers of units, and the measured use at each number.
        slope: Cost of one broker, topic or client per minute, cost of one event, or memory of one unit. The
            cost of a broker does not include its topics.
        residuals: Measured use minus the line's value, for each point.
        told: True if the slope is significant. Then the line rises, from the smallest to the largest number
            of units, by more than twice the largest residual.
    """

    sizes: list[float]
    uses: list[float]
    slope: float
    intercept: float
    residuals: list[float]
    told: bool

    @property
    def cost(self) -> float:
        """Return the slope if it is significant, otherwise 0."""
        return self.slope if self.told else 0.0


class HeldOut(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted and measured use of brokers, topics and clients together.

    The prediction does not use this measurement.
    """

    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Return (predicted - measured) / measured.

        If the measured use is 0, return 0 for a prediction of 0, and infinity for any other prediction.
        """
        if self.measured == 0:
            return 0.0 if self.predicted == 0 else float("inf")
        return self.predicted / self.measured - 1.0


class DesignCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of one design with three servers.

    Attributes:
        alone: Use of the servers without brokers and clients, by quantity: the use per minute, or the memory.
        resident_alone_bytes: Resident memory of the servers without brokers and clients. The resident memory
            of a JVM is larger than its heap, which ``alone`` contains.
        slopes: Slopes by unit and quantity.
        held_out: Predicted and measured use by quantity, one dict for each mixture (all units together).
        others_cores_max: Largest number of cores that other programs used during a measurement.
        attempts_max: Largest number of attempts that a measurement needed.
    """

    alone: dict[Quantity, float]
    resident_alone_bytes: float
    slopes: dict[Unit, dict[Quantity, Slope]]
    held_out: list[dict[Quantity, HeldOut]]
    others_cores_max: float
    attempts_max: int = 1


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one run of ``mqbench costs``.

    Attributes:
        commit: Commits of the program that measured, separated by commas.
        quick: True if the run used the short plan for trying the program. Its figures have no meaning.
        held_out_counts: Numbers of units, one dict for each mixture (all units together).
        brokers_in_an_answer: Number of brokers of each topic when clients and lookups were measured.
        changes_a_minute_max: Largest measured number of changes per minute.
    """

    date: str
    commit: str
    command: list[str]
    quick: bool
    machine: Machine
    versions: dict[str, str]
    held_out_counts: list[dict[Unit, float]]
    brokers_in_an_answer: int
    changes_a_minute_max: float
    designs: dict[Design, DesignCosts]
