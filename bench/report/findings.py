"""What the tables say: values per mode, paired differences with their intervals, and the rules drawn from
them (pure).

The difference is always raft minus independent within a pair of runs. It is shown only if its interval
excludes 0.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from bench.report.intervals import (
    Estimate,
    Sample,
    mean_of_runs,
    percentile_difference,
    percentile_of_merged,
    sample,
)
from bench.report.marts import Marts, Run, Window

MODES: Final = ("independent", "raft")
OPS: Final = ("route_wire", "route_http", "send", "register")
FAULTS: Final = ("kill_one", "kill_all")
GENERATOR_CORES_MAX: Final = 0.6
"""Above it the generator's own queue is part of what it measures (bench-notes: at 25k/s all of p90)."""

OP_NAMES: Final = {
    "route_wire": "route over the wire",
    "route_http": "route over HTTP",
    "send": "send through a broker",
    "register": "registration",
}
FAULT_NAMES: Final = {
    "kill_one": "one nameserver killed",
    "kill_all": "all nameservers killed and restarted",
}
PARTS: Final = ("struck", "others", "brokers")
"""Where an operation went during a fault, see :func:`part_of`."""

Unit = Literal["ms", "per_s", "percent", "mib", "per_10k"]
Verdict = Literal["independent", "raft", "none", "few", "unpaired"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One quantity in both modes.

    ``verdict``: the mode that is better; ``none`` if no difference could be shown; ``few`` if there are too
    few pairs for an interval; ``unpaired`` if no pair has a value on both sides.
    """

    key: str
    label: str
    unit: Unit
    lower_is_better: bool
    independent: Estimate | None
    raft: Estimate | None
    difference: Estimate | None
    per_run: Mapping[str, Sequence[float]]
    """Mode to its runs' own values, for plots."""

    @property
    def verdict(self) -> Verdict:
        """See the class."""
        if self.difference is None:
            return "unpaired"
        if self.difference.low is None:
            return "few"
        if not self.difference.excludes_zero():
            return "none"
        return "raft" if (self.difference.value < 0) == self.lower_is_better else "independent"

    def of(self, mode: str) -> Estimate | None:
        """Return the estimate of one mode."""
        return self.independent if mode == "independent" else self.raft


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What came out of one scenario."""

    name: str
    runs: list[Run]
    pairs: list[tuple[str, str]]
    """(independent run, raft run)."""
    comparisons: dict[str, Comparison] = field(default_factory=dict)

    def of_mode(self, mode: str) -> list[str]:
        """Return the names of the runs of one mode."""
        return [run.run for run in self.runs if run.manifest is not None and run.manifest.mode == mode]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a user may care about, and the quantity that decides it."""

    need: str
    key: str


RULES: Final = (
    Rule(
        need="Clients must get correct routes soon after all nameservers have crashed",
        key="recovery.kill_all.route_wire.struck",
    ),
    Rule(need="A new topic or broker must be known everywhere at once", key="visible.p99"),
    Rule(
        need="Clients must find routes at the other nameservers while one is down",
        key="unavailable.kill_one.route_wire.others",
    ),
    Rule(
        need="Brokers must be able to register at the other nameservers while one is down",
        key="unavailable.kill_one.register.others",
    ),
    Rule(need="Messages must not fail while nameservers do", key="sends.failed"),
    Rule(need="The slowest route queries matter in quiet times", key="latency.p99.route_wire"),
    Rule(need="Registrations must be acknowledged fast", key="latency.p99.register"),
    Rule(need="Nameservers should use little CPU", key="cpu.nameserver"),
    Rule(need="Nameservers should use little memory", key="rss.nameserver"),
)

HEADLINES: Final = {
    "latency.p99.route_wire": "Route queries over the wire, slowest 1 %",
    "latency.p99.route_http": "Route queries over HTTP, slowest 1 %",
    "latency.p99.send": "Sends through a broker, slowest 1 %",
    "latency.p99.register": "Registrations, slowest 1 %",
    "visible.p50": "Registration visible on all nameservers, typical",
    "visible.p99": "Registration visible on all nameservers, slowest 1 %",
    "unavailable.kill_one.route_wire.others": "One nameserver killed: no right routes at the others for",
    "unavailable.kill_one.register.others": "One nameserver killed: no registration at the others for",
    "recovery.kill_all.route_wire.struck": "All killed and restarted: until routes are right again",
    "recovery.kill_all.register.struck": "All killed and restarted: until registrations are accepted again",
    "sends.failed": "Failed sends, of 10,000",
    "sends.unknown": "Sends with unknown outcome, of 10,000",
    "cpu.nameserver": "CPU of one nameserver, of one core",
    "rss.nameserver": "Memory of one nameserver, peak",
}
"""Comparisons of the first screen, in this order, and what they are called there."""


def find(marts: Marts) -> list[Scenario]:
    """Compare the modes in each scenario, in order of the scenarios' names."""
    names = sorted({run.manifest.scenario for run in marts.runs if run.manifest and not run.left_out})
    return [_scenario(name, marts) for name in names]


def pairs_of(runs: Iterable[Run]) -> list[tuple[str, str]]:
    """Return (independent run, raft run) of every pair that has both, in order of their numbers.

    Pairs are numbered within a result folder: a prefix ``N:`` of the run's name belongs to the number.
    """
    by_pair: dict[tuple[str, int], dict[str, str]] = defaultdict(dict)
    for run in runs:
        if run.manifest is not None:
            batch = run.run.rpartition(":")[0]
            by_pair[batch, run.manifest.pair].setdefault(run.manifest.mode, run.run)
    return [
        (sides["independent"], sides["raft"])
        for _, sides in sorted(by_pair.items())
        if all(mode in sides for mode in MODES)
    ]


def steady_s(run: Run, windows: Iterable[Window]) -> float:
    """Return how many measured seconds of a run lay outside of faults and their settling."""
    assert run.manifest is not None
    measured = run.manifest.measure_end_ns - run.manifest.measure_begin_ns
    disturbed = sum(
        max(min(window.quiet_ns, measured) - max(window.begin_ns, 0), 0)
        for window in windows
        if window.run == run.run
    )
    return (measured - disturbed) / 1e9


def flagged_generators(marts: Marts) -> dict[str, float]:
    """Return the runs whose busiest generator process was above the limit, with the cores it used."""
    busiest: dict[str, float] = {}
    for cost in marts.costs:
        if cost.role == "generator" and cost.cores is not None:
            busiest[cost.run] = max(busiest.get(cost.run, 0.0), cost.cores)
    return {run: cores for run, cores in sorted(busiest.items()) if cores > GENERATOR_CORES_MAX}


def _scenario(name: str, marts: Marts) -> Scenario:
    runs = [run for run in marts.runs if run.manifest and run.manifest.scenario == name and not run.left_out]
    scenario = Scenario(name=name, runs=runs, pairs=pairs_of(runs))
    found = [
        *_latencies(scenario, marts),
        *_throughputs(scenario, marts),
        *_visibilities(scenario, marts),
        *_faults(scenario, marts),
        *_sends(scenario, marts),
        *_costs(scenario, marts),
    ]
    scenario.comparisons.update({comparison.key: comparison for comparison in found})
    return scenario


def compare_means(
    scenario: Scenario,
    values: Mapping[str, float],
    *,
    key: str,
    label: str,
    unit: Unit,
    lower_is_better: bool = True,
) -> list[Comparison]:
    """Compare one value per run; empty if no run has one."""
    sides = {mode: [values[run] for run in scenario.of_mode(mode) if run in values] for mode in MODES}
    if not any(sides.values()):
        return []
    # inf - inf: neither side ever ended, so the pair says nothing about a difference
    differences = [
        _minus(values[right], values[left])
        for left, right in scenario.pairs
        if left in values and right in values
    ]
    return [
        Comparison(
            key=key,
            label=label,
            unit=unit,
            lower_is_better=lower_is_better,
            independent=mean_of_runs(sides["independent"]) if sides["independent"] else None,
            raft=mean_of_runs(sides["raft"]) if sides["raft"] else None,
            difference=mean_of_runs(differences) if differences else None,
            per_run=sides,
        )
    ]


def compare_percentile(
    scenario: Scenario,
    rows: Mapping[str, Sequence[tuple[float, int]]],
    quantile: float,
    *,
    key: str,
    label: str,
) -> list[Comparison]:
    """Compare a percentile of merged (value in ms, count) rows; empty if there are none."""
    sides = {mode: [run for run in scenario.of_mode(mode) if rows.get(run)] for mode in MODES}
    if not any(sides.values()):
        return []

    def merged(runs: Sequence[str]) -> Sample:
        return sample(
            [(index, value, n) for index, run in enumerate(runs) for value, n in rows[run]], runs=len(runs)
        )

    pairs = [(left, right) for left, right in scenario.pairs if rows.get(left) and rows.get(right)]
    return [
        Comparison(
            key=key,
            label=label,
            unit="ms",
            lower_is_better=True,
            independent=percentile_of_merged(merged(sides["independent"]), quantile)
            if sides["independent"]
            else None,
            raft=percentile_of_merged(merged(sides["raft"]), quantile) if sides["raft"] else None,
            difference=percentile_difference(
                merged([left for left, _ in pairs]), merged([right for _, right in pairs]), quantile
            )
            if pairs
            else None,
            per_run={
                mode: [percentile_of_merged(merged([run]), quantile).value for run in runs]
                for mode, runs in sides.items()
            },
        )
    ]


def _minus(right: float, left: float) -> float:
    return 0.0 if math.isinf(right) and math.isinf(left) else right - left


def _latencies(scenario: Scenario, marts: Marts) -> Iterable[Comparison]:
    rows: dict[tuple[str, str], dict[str, list[tuple[float, int]]]] = defaultdict(lambda: defaultdict(list))
    for bucket in marts.histogram:
        rows[bucket.measure, bucket.op][bucket.run].append((bucket.value_ns / 1e6, bucket.n))
    for measure in ("latency", "service"):
        for op in OPS:
            for name, quantile in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999)):
                if measure == "service" and name == "p999":
                    continue  # above p99 the generator's timer is most of it
                yield from compare_percentile(
                    scenario,
                    rows[measure, op],
                    quantile,
                    key=f"{measure}.{name}.{op}",
                    label=f"{OP_NAMES[op]}, {'latency' if measure == 'latency' else 'service time'} "
                    f"{name.replace('p999', 'p99.9')}",
                )


def _throughputs(scenario: Scenario, marts: Marts) -> Iterable[Comparison]:
    seconds = {run.run: steady_s(run, marts.windows) for run in scenario.runs}
    for op in OPS:
        answered: dict[str, int] = {}
        for row in marts.outcomes:
            if row.op == op and row.steady and seconds.get(row.run, 0) > 0:
                good = row.n if row.outcome == "ok" else 0
                answered[row.run] = answered.get(row.run, 0) + good
        yield from compare_means(
            scenario,
            # rounded: where equal counts meet seconds that differ in the last bit, there is no difference
            {run: round(n / seconds[run], 6) for run, n in answered.items()},
            key=f"throughput.{op}",
            label=f"{OP_NAMES[op]}, answered per second",
            unit="per_s",
            lower_is_better=False,
        )


def _visibilities(scenario: Scenario, marts: Marts) -> Iterable[Comparison]:
    quiet: dict[str, list[tuple[float, int]]] = defaultdict(list)
    disturbed: dict[str, list[tuple[float, int]]] = defaultdict(list)
    acked: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for row in marts.visible:
        visible_ms = math.inf if row.visible_ns is None else row.visible_ns / 1e6
        (quiet if row.steady else disturbed)[row.run].append((visible_ms, 1))
        if row.steady:
            acked[row.run].append((math.inf if row.acked_ns is None else row.acked_ns / 1e6, 1))
    cases = (
        ("acked", acked, "registration acknowledged by all nameservers"),
        ("visible", quiet, "registration visible on all nameservers"),
        ("visible_fault", disturbed, "registration around a fault visible on all nameservers"),
    )
    for prefix, rows, label in cases:
        for name, quantile in (("p50", 0.5), ("p99", 0.99)):
            yield from compare_percentile(
                scenario, rows, quantile, key=f"{prefix}.{name}", label=f"{label}, {name}"
            )


def part_of(op: str, *, struck: bool) -> str:
    """Return which servers an operation went to: ``brokers``, the ``struck`` nameservers or the
    ``others``."""
    return "brokers" if op == "send" else "struck" if struck else "others"


def where(kind: str, part: str) -> str:
    """Return the words for a part in a fault: ``at the killed nameserver``."""
    if part == "brokers":
        return "at the brokers"
    if part == "others":
        return "at the surviving nameservers"
    return "at the killed nameservers" if kind == "kill_all" else "at the killed nameserver"


def _faults(scenario: Scenario, marts: Marts) -> Iterable[Comparison]:
    windows = {(window.run, window.fault): window for window in marts.windows}
    # attempts decide which combinations exist: no failure among them is a 0, not a gap
    attempts: dict[tuple[str, str, str, str], set[int]] = defaultdict(set)
    disturbed: dict[tuple[str, str, str, str], int] = defaultdict(int)
    failed: dict[tuple[str, str, str, str], int] = defaultdict(int)
    length_ms: dict[tuple[str, str, str, str], float] = defaultdict(float)
    until_ms: dict[tuple[str, str, str, str, int], float] = defaultdict(float)
    for row in marts.outcomes:
        if row.fault is not None and (row.run, row.fault) in windows:
            kind = windows[row.run, row.fault].kind
            place = (kind, row.op, part_of(row.op, struck=row.struck), row.run)
            attempts[place].add(row.fault)
            if not row.steady:
                disturbed[place] += row.n
                failed[place] += row.n if row.outcome != "ok" else 0
    for outage in marts.outages:
        window = windows.get((outage.run, outage.fault))
        if window is not None:
            place = (window.kind, outage.op, part_of(outage.op, struck=outage.struck), outage.run)
            length_ms[place] += (outage.end_ns - outage.begin_ns) / 1e6
            lasted = max(outage.end_ns - window.begin_ns, 0) / 1e6
            until_ms[(*place, outage.fault)] = max(until_ms[(*place, outage.fault)], lasted)

    def each(value: Callable[[tuple[str, str, str, str]], float | None]) -> dict[str, float]:
        chosen = {place: value(place) for place in attempts if place[:3] == (kind, op, part)}
        return {place[3]: number for place, number in chosen.items() if number is not None}

    for kind in FAULTS:
        for op in OPS:
            for part in PARTS:
                place_name = "" if part == "brokers" else f" {where(kind, part)}"
                name = f"{FAULT_NAMES[kind]}: {OP_NAMES[op]}{place_name}"
                yield from compare_means(
                    scenario,
                    each(lambda place: length_ms[place] / len(attempts[place])),
                    key=f"unavailable.{kind}.{op}.{part}",
                    label=f"{name}, time without right answers",
                    unit="ms",
                )
                yield from compare_means(
                    scenario,
                    each(
                        lambda place: (
                            sum(until_ms[(*place, fault)] for fault in attempts[place]) / len(attempts[place])
                        )
                    ),
                    key=f"recovery.{kind}.{op}.{part}",
                    label=f"{name}, from the kill to the last failure",
                    unit="ms",
                )
                yield from compare_means(
                    scenario,
                    each(lambda place: 100 * failed[place] / disturbed[place] if disturbed[place] else None),
                    key=f"failed.{kind}.{op}.{part}",
                    label=f"{name}, failed requests until it had settled",
                    unit="percent",
                )


def _sends(scenario: Scenario, marts: Marts) -> Iterable[Comparison]:
    for key, label, wanted in (
        ("sends.failed", "sends that failed for certain, per 10,000", ("error", "refused", "wrong")),
        ("sends.unknown", "sends with unknown outcome, per 10,000", ("unknown",)),
    ):
        totals: dict[str, int] = defaultdict(int)
        hits: dict[str, int] = defaultdict(int)
        for row in marts.outcomes:
            if row.op == "send":
                totals[row.run] += row.n
                hits[row.run] += row.n if row.outcome in wanted else 0
        rates = {run: 1e4 * hits[run] / total for run, total in totals.items()}
        yield from compare_means(scenario, rates, key=key, label=label, unit="per_10k")


def _costs(scenario: Scenario, marts: Marts) -> Iterable[Comparison]:
    for role, label in (
        ("nameserver", "per nameserver"),
        ("broker", "per broker"),
        ("generator", "generator"),
    ):
        cores: dict[str, list[float]] = defaultdict(list)
        memory: dict[str, list[float]] = defaultdict(list)
        for cost in marts.costs:
            if cost.role == role:
                memory[cost.run].append(cost.rss_bytes_max / 2**20)
                if cost.cores is not None:
                    cores[cost.run].append(100 * cost.cores)
        yield from compare_means(
            scenario,
            {run: sum(values) / len(values) for run, values in cores.items()},
            key=f"cpu.{role}",
            label=f"CPU {label}, % of one core",
            unit="percent",
        )
        yield from compare_means(
            scenario,
            {run: sum(values) / len(values) for run, values in memory.items()},
            key=f"rss.{role}",
            label=f"memory {label}, peak",
            unit="mib",
        )
