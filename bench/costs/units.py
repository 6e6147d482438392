"""Units whose cost is measured, quantities of a cost, and the form of rows and results (pure)."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from routekeeper.bench.runfolder import Machine

Design = Literal["independent", "raft", "zookeeper"]
DESIGNS: Final[tuple[Design, ...]] = ("independent", "raft", "zookeeper")

Quantity = Literal["cpu_s", "network_bytes", "disk_bytes", "syncs", "memory_bytes"]
QUANTITIES: Final[tuple[Quantity, ...]] = ("cpu_s", "network_bytes", "disk_bytes", "syncs", "memory_bytes")
STANDING: Final[Quantity] = "memory_bytes"
"""A quantity that is held, not used up."""

Unit = Literal["broker", "topic", "polling", "watching", "registration", "change", "newcomer", "lookup"]
AT_REST: Final[tuple[Unit, ...]] = ("broker", "topic", "polling", "watching")
"""Units that cost something for each minute that they are there."""
EVENTS: Final[tuple[Unit, ...]] = ("registration", "change", "newcomer", "lookup")
"""Units that cost something each time they happen."""
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
"""Name of a quantity, and the unit in which it is printed: so much of the measured unit."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One window of one run: the numbers in it and the use of each of the three servers.

    Attributes:
        series: The unit whose number varies, ``alone``, or ``held-out``.
        seconds: Length of the window.
        brokers, pairs, polling, watching: Numbers during the whole window; a pair is a topic at a broker.
        registrations, changes, newcomers, lookups: Events in the window.
        topics: Topics in all; changes and clients are spread evenly over them.
        cpu_s: CPU that each server's process used in the window.
        members_bytes: Bytes that each server sent to and received from the others, by the kernel's count;
            None if they were not counted.
        clients_bytes: Bytes between each server and the generator, which plays brokers and clients.
        disk_bytes, syncs: Bytes that each server wrote to its files in the window, and its syncs; None if a
            file was replaced meanwhile.
        memory_bytes: Memory of each server after the window; of a JVM, of its heap after a collection.
        resident_bytes: Resident memory of each server after the window.
        others_cores: Processor cores that all other programs of the machine used.
        generator_cores: Processor cores that the generator used.
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

    def count(self, unit: Unit) -> float:
        """Return the number of a unit: at rest, or events a minute."""
        match unit:
            case "broker":
                return self.brokers
            case "topic":
                return self.pairs
            case "polling":
                return self.polling
            case "watching":
                return self.watching
            case "registration":
                return self._a_minute(self.registrations)
            case "change":
                return self._a_minute(self.changes)
            case "newcomer":
                return self._a_minute(self.newcomers)
            case "lookup":
                return self._a_minute(self.lookups)

    def use(self, quantity: Quantity) -> float | None:
        """Return the use of all servers: of a minute, or the memory held; None if it was not counted."""
        match quantity:
            case "cpu_s":
                return self._a_minute(sum(self.cpu_s))
            case "network_bytes":
                if self.members_bytes is None:
                    return None
                return self._a_minute(sum(self.members_bytes) + sum(self.clients_bytes))
            case "disk_bytes":
                return None if self.disk_bytes is None else self._a_minute(sum(self.disk_bytes))
            case "syncs":
                return None if self.syncs is None else self._a_minute(sum(self.syncs))
            case "memory_bytes":
                return float(sum(self.memory_bytes))

    def _a_minute(self, value: float) -> float:
        return value * 60.0 / self.seconds


class Slope(msgspec.Struct, frozen=True, kw_only=True):
    """A straight line through the uses at several sizes, by least squares.

    Attributes:
        sizes, uses: The points.
        slope: The cost of one unit at rest for a minute, or of one event, or the memory of one unit; without
            the units that come with it.
        residuals: Use minus line, by point.
        told: The slope is significant: over the range of sizes, it is more than twice the largest residual.
            If not, it counts as 0.
    """

    sizes: list[float]
    uses: list[float]
    slope: float
    intercept: float
    residuals: list[float]
    told: bool

    @property
    def cost(self) -> float:
        """Return the cost that the arithmetic uses."""
        return self.slope if self.told else 0.0


class HeldOut(msgspec.Struct, frozen=True, kw_only=True):
    """A mixture of units that was not used for any slope, with its predicted and its measured use."""

    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Return the relative error of the prediction; infinite if nothing was measured."""
        if self.measured == 0:
            return 0.0 if self.predicted == 0 else float("inf")
        return self.predicted / self.measured - 1.0


class DesignCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of one design with three servers.

    Attributes:
        alone: Use of the servers with neither brokers nor clients, a minute or held.
        resident_alone_bytes: Their resident memory then; of a JVM this is more than its heap.
        slopes: By unit and quantity.
        held_out: By quantity, of each mixture.
        others_cores_max: The most cores that other programs used in a window.
    """

    alone: dict[Quantity, float]
    resident_alone_bytes: float
    slopes: dict[Unit, dict[Quantity, Slope]]
    held_out: list[dict[Quantity, HeldOut]]
    others_cores_max: float


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one run of ``mqbench costs``.

    Attributes:
        quick: It was made with short timers, to try the program: its figures have no meaning.
        held_out_counts: Numbers of each mixture.
        brokers_in_an_answer: Number of brokers of each topic when clients and lookups were measured.
        changes_a_minute_max: The most changes that were measured.
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
