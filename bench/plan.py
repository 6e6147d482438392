"""The plan of a comparison, read from ``plans/NAME.toml``, with checks of its values and its durations."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from routekeeper.bench.resolution import RESOLUTION_S
from routekeeper.bench.runfolder import REAL, Arm, Durability, Line, Links, Series
from routekeeper.bench.timers import DOCUMENTED_MS, REAL_PERIOD_MS, Timers
from routekeeper.remoting.files import read_regular

if TYPE_CHECKING:
    import random

FOLDER: Final = Path(__file__).parent / "plans"
LINES_MAX: Final = 8
PLAN_SIZE_MAX: Final = 1024 * 1024

Kind = Literal[
    "stop",
    "kill",
    "freeze",
    "cable",
    "oneway",
    "partition",
    "empty",
    "rolling",
    "update-topic",
    "first-send",
]
"""Kinds of faults, and of ways in which a topic is created.

- ``stop``: SIGTERM and a restart.
- ``kill``: SIGKILL and a restart.
- ``freeze``: SIGSTOP, later SIGCONT.
- ``cable``: cuts both directions of every link of a process.
- ``oneway``: cuts only the directions in which a process sends.
- ``partition``: cuts the links between groups of processes.
- ``empty``: SIGKILL and a restart with an empty disk.
- ``rolling``: SIGTERM and a restart of each server, one after the other.
- ``update-topic``: the harness creates a topic on each broker. This hits no process.
- ``first-send``: producers send to a topic that does not exist, and the brokers create it. This hits no
  process.
"""

NEW_TOPIC: Final = "new-topic"
"""Name of the scenario in which topics are created. Afterwards brokers create topics automatically, so only
the scenario ``REST`` may follow."""

REST: Final = "rest"
"""Name of the last scenario. All users have left, and brokers and servers are at rest."""

SWEEPS: Final[dict[str, tuple[str, str]]] = {
    f"{who}-{length}": (who, length) for who in ("leader", "follower") for length in ("half", "twice", "four")
}
"""Maps each case of a partition with a special length to the isolated server and this length.

The lengths are half of ZooKeeper's session timeout, twice this timeout, and four times this timeout.
"""

CASES: Final[dict[str, dict[str, Kind]]] = {
    "quiet": {},
    "staleness": {},
    "idle-300": {},
    REST: {},
    "broker-dies": {"stop": "stop", "kill": "kill", "freeze": "freeze", "cable": "cable"},
    "nameserver-restarts": {"one-empty": "kill", "all": "kill", "rolling": "rolling", "disk-lost": "empty"},
    "leader-fails": {"kill": "kill", "freeze": "freeze", "cable": "cable", "oneway": "oneway"},
    "partition": dict.fromkeys(("1-2", "1-1-1", "broker-nameserver", *SWEEPS), "partition"),
    NEW_TOPIC: {"update-topic": "update-topic", "first-send": "first-send"},
    "messages": {
        "broker-kill": "kill",
        "broker-cable": "cable",
        "leader-kill": "kill",
        "leader-cable": "cable",
        "1-2": "partition",
    },
}
"""Maps each scenario to its cases, and each case to the kind of its fault."""

COSTS: Final = ("quiet", "idle-300", REST)
"""Scenarios in which the servers' use of resources is measured. During them only the load sends requests."""

DEVICE: Final = ("idle-300",)
"""Scenarios in which only the servers write to the disk, so that all written sectors belong to them."""

REAL_KINDS: Final[tuple[Kind, ...]] = ("kill", "freeze", "empty", "rolling")
"""Kinds of server faults that are possible with RocketMQ's own brokers and clients.

These brokers and clients connect to each other directly, so a proxy cannot cut their links. The only fault of
a broker itself is ``kill``. A ``stop`` would take 10 s. After a ``freeze`` the broker would stay listed for
two minutes, the nameservers' default, because it requests no lease.
"""


_CUTS: Final[tuple[Kind, ...]] = ("cable", "oneway", "partition")
_CONNECT_AGAIN_S: Final = 1.0
"""Seconds after which TCP repeats the first packet of a connection. Source: RFC 6298, section 2."""


def strikes_broker(scenario: str, case: str) -> bool:
    """Return True if the fault of a case hits a broker, and False if it hits servers."""
    return scenario == "broker-dies" or case in ("broker-kill", "broker-cable")


def strikes_every_server(case: str) -> bool:
    """Return True if the fault of a case hits all servers, at the same time or one after the other."""
    return case in ("all", "rolling")


class PlanError(ValueError):
    """A plan is missing, or it has a value that is not allowed."""


class Load(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rates and sizes of an open-loop load.

    A rate is the number of operations per second by all users of one kind together.
    """

    lookup_per_s: float
    newcomer_per_s: float
    send_per_s: float
    send_once_per_s: float
    change_per_s: float
    """Route changes per second, by all simulated brokers together."""
    lookup_clients: int
    """Number of clients with connections of their own. The users that look up routes share these clients."""
    send_clients: int
    """Number of producers for each of the two kinds of sends. Changes in their route caches are recorded."""
    sim_brokers: int
    observed_sims: int
    """Number of simulated brokers whose changing topic the harness observes, at servers and at clients."""
    topics: int
    topics_per_sim_broker: int
    message_bytes: int
    timeout_s: float
    consumers: int = 0
    """Number of consumers that read the sent messages. The consumers form one group and share no client."""
    clients_together: bool = False
    """True if all clients ask for routes at the same instants. Otherwise each client has its own phase."""

    def users(self, op: str) -> int:
        """Return the number of users that share the schedule of a kind of operation.

        The number is 1.25 times the number of users that are busy if every operation runs into its time
        limit. So an operation never waits for a free user.
        """
        rate_per_s, time_outs = {
            "lookup": (self.lookup_per_s, 1),
            # A new client may wait for two time limits: to connect, and for the answer.
            "newcomer": (self.newcomer_per_s, 2),
            "send": (self.send_per_s, 1),
            "send_once": (self.send_once_per_s, 1),
        }[op]
        return math.ceil(1.25 * rate_per_s * time_outs * self.timeout_s)

    @property
    def all_users(self) -> int:
        """The number of all users. Each simulated broker counts as one user."""
        return self.sim_brokers + sum(map(self.users, ("lookup", "newcomer", "send", "send_once")))


class PlannedFault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fault of a scenario.

    Its four times follow one after the other: quiet, jitter (random), down, after.

    ``after_s`` begins when the repair is complete. So ``after_s`` does not contain the time of a restart.
    """

    case: str
    quiet_s: float = 0.6
    jitter_s: float = 0.5
    down_s: float
    after_s: float


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    quiet_s: float = 0.0
    """Seconds without faults, before the first fault."""
    faults: list[PlannedFault] = []


class SeriesPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A series: all runs of a comparison that have the same timers."""

    name: Series
    blocks: int
    timers: Timers
    watches: bool = False
    """True if ZooKeeper's clients set watches. Otherwise they poll, like the clients of the other designs."""
    durability: Durability | None = None
    """Durability of raft in this series, or null for the plan's durability."""
    arms: list[Arm] = []
    """Designs of the plan that the series measures. An empty list means all designs."""
    scenarios: list[str] = []
    """Scenarios of the plan that the series runs. An empty list means all scenarios."""
    cases: list[str] = []
    """Names of the cases that the series runs. An empty list means all cases that are not in ``SWEEPS``."""
    stretch: float = 1.0
    """Factor for the times of a scenario, because longer timers need longer measurements.

    The factor does not apply to ``PlannedFault.quiet_s``. :func:`down_seconds` decides if it applies to
    ``down_s``.
    """
    down_s: dict[str, float] = {}
    """Maps a case to the duration of its fault in s.

    The duration replaces the plan's value. ``stretch`` does not multiply this duration.
    """
    load: Load | None = None
    """Load of this series, or null for the plan's load. The same holds for ``brokers`` and ``warmup_s``."""
    brokers: int | None = None
    warmup_s: float | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One comparison. ``plans/compare.toml`` explains each value."""

    arms: list[Arm]
    servers: int
    brokers: int
    durability: Durability
    links: Links = "proxy"
    warmup_s: float
    linger_s: float
    """Seconds for which users continue after the last measured operation."""
    series: list[SeriesPlan]
    load: Load
    scenarios: list[Scenario]
    lines: list[Line] = []


def plan_in(plan: Plan, series: SeriesPlan) -> Plan:
    """Return the plan with the load, brokers and warm-up of one of its series."""
    return msgspec.structs.replace(
        plan,
        load=plan.load if series.load is None else series.load,
        brokers=plan.brokers if series.brokers is None else series.brokers,
        warmup_s=plan.warmup_s if series.warmup_s is None else series.warmup_s,
    )


def down_seconds(scenario: str, fault: PlannedFault, series: SeriesPlan) -> float:
    """Return the duration of a fault in a series, in s.

    The series' ``stretch`` multiplies the duration of a partition and of a broker's fault, but not the
    duration of other faults. A server's restart and an election take the same time with all divisors of the
    timers. If the duration of such a fault grew with the timers, a server's recovery would seem to depend on
    the timers.
    """
    if fault.case in series.down_s:
        return series.down_s[fault.case]
    scaled = strikes_broker(scenario, fault.case) or CASES[scenario][fault.case] == "partition"
    return fault.down_s * (series.stretch if scaled else 1.0)


def quiet_seconds(fault: PlannedFault, series: SeriesPlan, drawn: float) -> float:
    """Return the quiet time before a fault, in s.

    The series' ``stretch`` multiplies the random part, so that a fault happens with equal probability at
    every instant between two registrations. With a shorter random part, all faults would fall into a part of
    this interval, and averages would be valid only for this part.

    Args:
        drawn: Random number from 0 to 1.
    """
    return fault.quiet_s + drawn * fault.jitter_s * series.stretch


def drawn_in_round(drawn: float, *, block: int, blocks: int) -> float:
    """Move a random number from 0 to 1 into the part of this range that belongs to a round ("block").

    Each round has a different part of the range. So even a few rounds cover all phases of the periodic
    requests of brokers and clients.
    """
    return (block - 1 + drawn) / blocks


def after_seconds(scenario: str, fault: PlannedFault, series: SeriesPlan, links: Links) -> float:
    """Return the time in s for which the effects of a fault are still measured after the repair.

    After a cut by the kernel, this time is longer, because TCP doubles the pause before each repetition of a
    lost packet. So after the repair, a connection may pass no bytes for about as long as the cut has lasted.
    A new connection must wait until TCP repeats its first packet.
    """
    after_s = fault.after_s * series.stretch
    if links == "kernel" and CASES[scenario][fault.case] in _CUTS:
        after_s += down_seconds(scenario, fault, series) + _CONNECT_AGAIN_S
    return after_s


def seconds_of(scenario: str, fault: PlannedFault, series: SeriesPlan, links: Links = "proxy") -> float:
    """Return the expected total time of a fault in s, from the quiet time to the end of its measurement."""
    after_s = after_seconds(scenario, fault, series, links)
    return quiet_seconds(fault, series, 0.5) + down_seconds(scenario, fault, series) + after_s


def scenarios_of(plan: Plan, series: SeriesPlan) -> list[Scenario]:
    """Return the scenarios of a series in the plan's order, each with the cases that the series runs."""
    chosen = [
        msgspec.structs.replace(
            scenario,
            faults=[
                fault
                for fault in scenario.faults
                if fault.case in series.cases or (not series.cases and fault.case not in SWEEPS)
            ],
        )
        for scenario in plan.scenarios
        if not series.scenarios or scenario.name in series.scenarios
    ]
    return [scenario for scenario in chosen if scenario.quiet_s or scenario.faults]


def only_series(plan: Plan, names: Sequence[str]) -> Plan:
    """Return a plan that has only the named series, in the plan's order.

    Raises:
        PlanError: If one of the names is not the name of a series of the plan.
    """
    _known("series", names, {series.name for series in plan.series})
    return msgspec.structs.replace(plan, series=[series for series in plan.series if series.name in names])


def only_scenarios(plan: Plan, names: Sequence[str]) -> Plan:
    """Return a plan with only the named scenarios, and with only the series that run some of their cases.

    Scenarios and series keep the plan's order.

    Raises:
        PlanError: If one of the names is not the name of a scenario of the plan, or if no series runs a case
            of the named scenarios.
    """
    _known("scenarios", names, {scenario.name for scenario in plan.scenarios})
    left = msgspec.structs.replace(plan, scenarios=[each for each in plan.scenarios if each.name in names])
    having = [series for series in plan.series if scenarios_of(left, series)]
    if not having:
        raise PlanError(f"scenarios={','.join(names)}: no chosen series has a case of these scenarios")
    return msgspec.structs.replace(left, series=having)


def without_arm(plan: Plan, arm: Arm) -> Plan:
    """Return a plan without one design, also in series that name their designs."""
    series = [
        msgspec.structs.replace(each, arms=[other for other in each.arms if other != arm])
        for each in plan.series
        if each.arms != [arm]
    ]
    return msgspec.structs.replace(plan, arms=[other for other in plan.arms if other != arm], series=series)


def run_seconds(plan: Plan, series: SeriesPlan) -> float:
    """Return the duration of the load of one run in s, without the time of restarts."""
    scenarios = scenarios_of(plan, series)
    return (
        plan_in(plan, series).warmup_s
        + plan.linger_s
        + sum(scenario.quiet_s for scenario in scenarios) * series.stretch
        + sum(
            seconds_of(scenario.name, fault, series, plan.links)
            for scenario in scenarios
            for fault in scenario.faults
        )
    )


def drawn_order(arms: Sequence[Arm], chance: random.Random) -> list[Arm]:
    """Return the designs of one round in random order."""
    order = list(arms)
    chance.shuffle(order)
    return order


def plans() -> list[str]:
    """Return the names of the plans that are installed with the program."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_plan(name: str) -> Plan:
    """Read and check a named plan, or the plan in a file whose name ends in ``.toml``.

    Raises:
        PlanError: If the name is unknown, the file cannot be read, or a value is out of range. The message
            names the value and its range.
    """
    if name.endswith(".toml"):
        try:
            text = read_regular(name, size_max=PLAN_SIZE_MAX).decode()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise PlanError(f"--profile {name}: {reason}") from None
        try:
            return parse_plan(text)
        except PlanError as error:
            raise PlanError(f"--profile {name}: {error}") from None
    if name not in plans():
        known = ", ".join(plans())
        raise PlanError(f"unknown profile {name!r}, known are: {known}; or the path of a file NAME.toml")
    return parse_plan((FOLDER / f"{name}.toml").read_text())


def parse_plan(text: str) -> Plan:
    """Return the plan in a TOML text after checking its values.

    Raises:
        PlanError: If the text is not TOML, or if a value is out of range.
    """
    try:
        plan = msgspec.convert(tomllib.loads(text), Plan)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise PlanError(str(error)) from None
    _check_order(plan)
    _in_range("servers", plan.servers, 1, 9)
    _in_range("linger_s", plan.linger_s, 0.1, 600)
    _not_twice("arms", plan.arms)
    _not_twice("series", [series.name for series in plan.series])
    _not_twice("scenarios", [scenario.name for scenario in plan.scenarios])
    names = {scenario.name for scenario in plan.scenarios}
    _check_size(plan, "")
    for series in plan.series:
        if any(own is not None for own in (series.load, series.brokers, series.warmup_s)):
            _check_size(plan_in(plan, series), f"series.{series.name}.")
        _check_readers(plan, series)
        where = f"series.{series.name}"
        _in_range(f"{where}.blocks", series.blocks, 1, 1000)
        _in_range(f"{where}.stretch", series.stretch, 0.1, 1000)
        _in_range(f"{where}.timers.divisor", series.timers.divisor, 1, 100)
        _in_range(f"{where}.timers.election_timeout_ms", series.timers.election_timeout_ms, 50, 60_000)
        for name in ("zookeeper_tick_ms", "zookeeper_session_ms"):
            given = getattr(series.timers, name)
            if given is not None:
                _in_range(f"{where}.timers.{name}", given, 10, 600_000)
        _known(f"{where}.arms", series.arms, set(plan.arms))
        _known(f"{where}.scenarios", series.scenarios, names)
        cases = {
            fault.case
            for scenario in plan.scenarios
            if not series.scenarios or scenario.name in series.scenarios
            for fault in scenario.faults
        }
        _known(f"{where}.cases", series.cases, cases)
        _known(f"{where}.down_s", list(series.down_s), cases)
        for case, seconds in series.down_s.items():
            _in_range(f"{where}.down_s.{case}", seconds, 0, 3600)
    for scenario in plan.scenarios:
        if scenario.name not in CASES:
            raise PlanError(f"scenario {scenario.name!r} is unknown, known are: {', '.join(CASES)}")
        _in_range(f"{scenario.name}.quiet_s", scenario.quiet_s, 0, 86_400)
        for fault in scenario.faults:
            _known(f"{scenario.name}.faults.case", [fault.case], set(CASES[scenario.name]))
            where = f"{scenario.name}.{fault.case}"
            _in_range(f"{where}.quiet_s", fault.quiet_s, 0, 3600)
            _in_range(f"{where}.jitter_s", fault.jitter_s, 0, 3600)
            _in_range(f"{where}.down_s", fault.down_s, 0, 3600)
            _in_range(f"{where}.after_s", fault.after_s, 0.1, 3600)
        _not_twice(f"cases of {scenario.name}", [fault.case for fault in scenario.faults])
        if not scenario.quiet_s and not scenario.faults:
            raise PlanError(f"scenario {scenario.name!r} has neither quiet_s nor faults")
    if REAL.keys() & set(plan.arms):
        _check_real(plan)
    if len(plan.lines) > LINES_MAX:
        raise PlanError(f"{len(plan.lines)} headline measures (lines), allowed are {LINES_MAX}")
    _not_twice("lines", [line.name for line in plan.lines])
    by_name = {series.name: series for series in plan.series}
    for line in plan.lines:
        where = f"lines.{line.name}"
        _known(f"{where}.series", [line.series], set(by_name))
        series = by_name[line.series]
        made = {each.name: {fault.case for fault in each.faults} for each in scenarios_of(plan, series)}
        _known(f"{where}.scenario", [line.scenario], set(made))
        if line.case is not None:
            _known(f"{where}.case", [line.case], made[line.scenario])
        _known(f"{where}.arms", list(line.arms), set(series.arms or plan.arms))
        if line.margin <= 0:
            raise PlanError(f"lines.{line.name}.margin={line.margin:g} must be above 0")
        finest = RESOLUTION_S.get(line.measure, 0.0)
        if line.margin < finest:
            raise PlanError(
                f"lines.{line.name}.margin={line.margin:g} s is below the resolution of {line.measure}, "
                f"allowed from {finest:g} s on"
            )
    return plan


def _check_real(plan: Plan) -> None:
    """Check that RocketMQ's own brokers and Java client can execute a plan."""
    where = f"beside {', '.join(arm for arm in plan.arms if arm in REAL)}"
    period_ms = DOCUMENTED_MS["registerNameServerPeriod"]
    for series in plan.series:
        name = f"series.{series.name}.timers.divisor {where}"
        _in_range(name, series.timers.divisor, *(period_ms / each for each in reversed(REAL_PERIOD_MS)))
    _in_range(f"load.consumers {where}", plan.load.consumers, 0, 0)
    for scenario in plan.scenarios:
        for fault in scenario.faults:
            kind = CASES[scenario.name][fault.case]
            allowed = ("kill",) if strikes_broker(scenario.name, fault.case) else REAL_KINDS
            _known(f"fault of {scenario.name}.{fault.case} {where}", [kind], set[str](allowed))


def _check_size(plan: Plan, where: str) -> None:
    """Check the load, brokers and warm-up of a plan, or of a plan for one of its series.

    Args:
        where: Text before the name of a value in error messages, such as ``series.equal.``.
    """
    load = plan.load
    _in_range(f"{where}brokers", plan.brokers, 1, 20)
    _in_range(f"{where}warmup_s", plan.warmup_s, 0, 600)
    for name in ("lookup_per_s", "newcomer_per_s", "send_per_s", "send_once_per_s", "change_per_s"):
        _in_range(f"{where}load.{name}", getattr(load, name), 0, 20_000)
    _in_range(f"{where}load.sim_brokers", load.sim_brokers, 0, 1_000)
    _in_range(f"{where}load.lookup_clients", load.lookup_clients, 1, 1_000)
    _in_range(f"{where}load.send_clients", load.send_clients, 1, 1_000)
    _in_range(f"{where}load.observed_sims", load.observed_sims, 0, load.sim_brokers)
    _in_range(f"{where}load.topics", load.topics, 1, 100_000)
    _in_range(f"{where}load.topics_per_sim_broker", load.topics_per_sim_broker, 2, 10_000)
    _in_range(f"{where}load.consumers", load.consumers, 0, 100)
    _in_range(f"{where}load.message_bytes", load.message_bytes, 1, 4 * 1024 * 1024)
    _in_range(f"{where}load.timeout_s", load.timeout_s, 0.1, 60)
    _in_range(f"{where}users that these rates and load.timeout_s need", load.all_users, 1, 10_000)


def _check_readers(plan: Plan, series: SeriesPlan) -> None:
    """Check that a series has consumers if one of its scenarios needs consumers."""
    if plan_in(plan, series).load.consumers:
        return
    for scenario in scenarios_of(plan, series):
        if scenario.name in ("messages", NEW_TOPIC):
            raise PlanError(
                f"load.consumers=0: the scenario {scenario.name!r} needs a consumer; set at least 1"
            )


def _check_order(plan: Plan) -> None:
    names = [scenario.name for scenario in plan.scenarios]
    if NEW_TOPIC in names and [name for name in names if name != REST][-1] != NEW_TOPIC:
        raise PlanError("scenario 'new-topic' must be the last one: it changes the brokers' settings")
    if REST in names and names[-1] != REST:
        raise PlanError("scenario 'rest' must be the last one: it stops the clients")


def _known(name: str, values: Sequence[str], known: set[str]) -> None:
    for value in values:
        if value not in known:
            raise PlanError(f"{name}={value!r} is unknown, known are: {', '.join(sorted(known))}")


def _not_twice(name: str, values: Sequence[str]) -> None:
    if len(set(values)) < len(values):
        raise PlanError(f"{name} has one value twice: {', '.join(values)}")


def _in_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise PlanError(f"{name}={value:g} is out of range, allowed are {low:g} to {high:g}")
