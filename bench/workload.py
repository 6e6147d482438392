"""A named workload, read from ``workloads/NAME.toml`` and checked."""

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from bench.manifest import Durability
from bench.samples import FaultKind

if TYPE_CHECKING:
    import random

FOLDER: Final = Path(__file__).parent / "workloads"

#: Documented RocketMQ timers in milliseconds, before the division. Source: BrokerConfig, NamesrvConfig,
#: ClientConfig of 5.3.
TIMERS_MS: Final = {
    "registerNameServerPeriod": 30_000,
    "brokerLease": 120_000,
    "scanNotActiveBrokerInterval": 5_000,
    "pollNameServerInterval": 30_000,
    "heartbeatBrokerInterval": 30_000,
}


class WorkloadError(ValueError):
    """A workload file is missing or a value in it is not allowed."""


class Load(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Open-loop rates and sizes; rates are operations per second over all users of a kind."""

    route_wire_per_s: float
    route_http_per_s: float
    send_per_s: float
    register_per_s: float
    wire_users: int
    http_users: int
    send_users: int
    sim_brokers: int
    topics: int
    topics_per_sim_broker: int
    message_bytes: int
    timeout_s: float


class PlannedFault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fault of the schedule: when, after the warm-up, and for how long.

    Its instant is drawn between ``at_s`` and ``at_s + jitter_s``: at a fixed one, every run would meet the
    brokers at the same point of their registration period.
    """

    kind: FaultKind
    at_s: float
    jitter_s: float = 0.0
    down_s: float


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One workload; see ``workloads/compare.toml`` for what each value means."""

    timer_divisor: float
    nameservers: int
    brokers: int
    durability: Durability
    warmup_s: float
    measure_s: float
    settle_s: float
    load: Load
    faults: list[PlannedFault]

    def fault_times_s(self, chance: "random.Random") -> list[float]:
        """Draw the instant of each fault; both modes of a pair use one seed, hence the same instants."""
        return [fault.at_s + chance.uniform(0, fault.jitter_s) for fault in self.faults]

    def timers_ms(self) -> dict[str, int]:
        """Return the timers as used in the run."""
        return {name: round(value / self.timer_divisor) for name, value in TIMERS_MS.items()}


def profiles() -> list[str]:
    """Return the names of the workloads that come with the program."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_workload(profile: str) -> Workload:
    """Read and check a named workload.

    Raises:
        WorkloadError: Unknown name, or a value out of its range; the message names value and range.
    """
    path = FOLDER / f"{profile}.toml"
    if profile not in profiles():
        raise WorkloadError(f"unknown profile {profile!r}, known are: {', '.join(profiles())}")
    return parse_workload(path.read_text())


def parse_workload(text: str) -> Workload:
    """Check the text of a workload file; see :func:`load_workload`."""
    try:
        workload = msgspec.convert(tomllib.loads(text), Workload)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise WorkloadError(str(error)) from None
    load = workload.load
    _in_range("timer_divisor", workload.timer_divisor, 1, 100)
    _in_range("nameservers", workload.nameservers, 1, 9)
    _in_range("brokers", workload.brokers, 1, 20)
    _in_range("warmup_s", workload.warmup_s, 0, 600)
    _in_range("measure_s", workload.measure_s, 1, 86_400)
    _in_range("settle_s", workload.settle_s, 0, 600)
    for name in ("route_wire_per_s", "route_http_per_s", "send_per_s"):
        _in_range(f"load.{name}", getattr(load, name), 0, 20_000)
    _in_range("load.register_per_s", load.register_per_s, 0, 2_000)
    for name in ("wire_users", "http_users", "send_users", "sim_brokers"):
        _in_range(f"load.{name}", getattr(load, name), 0, 1_000)
    _in_range("load.topics", load.topics, 1, 100_000)
    _in_range("load.topics_per_sim_broker", load.topics_per_sim_broker, 2, 10_000)
    _in_range("load.message_bytes", load.message_bytes, 1, 4 * 1024 * 1024)
    _in_range("load.timeout_s", load.timeout_s, 0.1, 60)
    free_at = 0.0
    for fault in workload.faults:
        _in_range(f"faults.{fault.kind}.at_s", fault.at_s, free_at, workload.measure_s)
        _in_range(f"faults.{fault.kind}.jitter_s", fault.jitter_s, 0, workload.measure_s - fault.at_s)
        latest = fault.at_s + fault.jitter_s
        _in_range(f"faults.{fault.kind}.down_s", fault.down_s, 0, workload.measure_s - latest)
        free_at = latest + fault.down_s
    return workload


def _in_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise WorkloadError(f"{name}={value:g} is out of range, allowed are {low:g} to {high:g}")
