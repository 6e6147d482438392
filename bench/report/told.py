"""The harness's own records of each run: faults, and times in which brokers were dead or unreachable.

This module does no I/O and reads no clock.

The number of these records depends on the harness and not on the load. So the driver can hold all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from routekeeper.bench.cuts import SIDES, side_of
from routekeeper.bench.events import SIMULATED_FROM
from routekeeper.bench.report.gold import Fault
from routekeeper.bench.report.silver import Source

FOREVER: Final = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A time in which a broker was dead or unreachable, in ns from the start of the measured time."""

    run: str
    broker: int
    side: str | None = None
    """Name of the side whose clients could not reach the broker, or None if no client could reach it."""
    from_ns: int
    launched_ns: int
    """Earliest instant at which the broker may be reachable again, because its process starts or a cut ends.

    The harness notices the end of the gap only at ``to_ns``.
    """
    to_ns: int
    """Instant at which the gap ended, or a very large number if the broker did not come back."""


def faults(rows: Sequence[Mapping[str, Any]], sources: Sequence[Source]) -> list[Fault]:
    """Return the faults, with instants that count from the start of the measured time.

    Args:
        rows: Valid fault events, with the column ``run``.
    """
    begins = {source.run: begin for source, begin, _ in _slots(sources)}

    found = []
    for row in rows:
        begin = begins.get(row["run"])
        if begin is not None:
            kept = {name: row[name] for name in ("run", "kind", "case", "role", "targets")}
            instants: dict[str, Any] = {
                name: None if row[name] is None else row[name] - begin
                for name in ("from_ns", "begin_ns", "healed_ns", "end_ns", "until_ns")
            }
            found.append(Fault(fault=row["n"], **kept, **instants))
    return sorted(found, key=lambda each: (each.run, each.fault))


def gaps(
    rows: Sequence[Mapping[str, Any]], launches: Sequence[Mapping[str, Any]], sources: Sequence[Source]
) -> list[Gap]:
    """Return the times in which each broker was gone. If such a time spans several runs, each run gets a row.

    Args:
        rows: Valid truth events of brokers, with the column ``run``: ``up``, ``down``, ``cut``, ``healed``.
        launches: Run, broker and ``t_ns`` of each start of a broker's process.
    """
    life_of = {source.run: source.life for source, _, _ in _slots(sources)}
    launched: dict[tuple[str, int], list[int]] = defaultdict(list)
    for row in launches:
        if row["run"] in life_of:
            launched[life_of[row["run"]], row["broker"]].append(row["t_ns"])
    facts: dict[tuple[str, int, bool], list[tuple[int, str]]] = defaultdict(list)
    for row in rows:
        life = life_of.get(row["run"])
        if life is not None:
            of_link = row["what"] in ("cut", "healed")
            facts[life, row["broker"], of_link].append((row["t_ns"], row["what"]))
    found = []
    for (life, broker, _), told in facts.items():
        told.sort()
        for place, (t_ns, what) in enumerate(told):
            if what not in ("down", "cut"):
                continue
            next_ns = told[place + 1][0] if place + 1 < len(told) else None
            within = [at for at in launched[life, broker] if t_ns < at and (next_ns is None or at < next_ns)]
            launched_ns = min(within) if what == "down" and within else next_ns
            for source, begin, end in _slots(sources):
                if source.life == life and t_ns < end and (next_ns is None or next_ns > begin):
                    found.append(
                        Gap(
                            run=source.run,
                            broker=broker,
                            from_ns=t_ns - begin,
                            launched_ns=FOREVER if launched_ns is None else launched_ns - begin,
                            to_ns=FOREVER if next_ns is None else next_ns - begin,
                        )
                    )
    return sorted(found, key=lambda each: (each.run, each.broker, each.from_ns))


def gaps_of_sides(rows: Sequence[Mapping[str, Any]], sources: Sequence[Source]) -> list[Gap]:
    """Return the times in which a partition kept the clients of one side from reaching a living broker.

    Args:
        rows: Valid fault events, with the column ``run``.
    """
    manifests = {source.run: source.manifest for source, _, _ in _slots(sources)}
    found = []
    for row in rows:
        manifest = manifests.get(row["run"])
        if manifest is None or not row["cut"]:
            continue
        apart = {frozenset(direction) for direction in row["cut"]}
        names = {name for direction in row["cut"] for name in direction}
        sides = sorted(name for name in names if not name.startswith(("nameserver-", "broker-")))
        places = {index: f"broker-{index}" for index in range(manifest.brokers)}
        # A cut does not name a simulated broker. It names the broker's side, to which clients belong, too.
        for number in range(manifest.sim_brokers):
            places[SIMULATED_FROM + number] = side_of(number, SIDES)
        back_ns = [row[name] for name in ("healed_ns", "end_ns") if row[name] is not None]
        for broker, place in places.items():
            if place in row["targets"]:
                continue  # no client can reach this broker, so gaps() returns its gap
            found += [
                Gap(
                    run=row["run"],
                    broker=broker,
                    side=side,
                    from_ns=row["begin_ns"] - manifest.measure_begin_ns,
                    launched_ns=min(back_ns) - manifest.measure_begin_ns if back_ns else FOREVER,
                    to_ns=max(back_ns) - manifest.measure_begin_ns if back_ns else FOREVER,
                )
                for side in sides
                if frozenset((side, place)) in apart
            ]
    return found


def _slots(sources: Sequence[Source]) -> list[tuple[Source, int, int]]:
    return [
        (source, source.manifest.measure_begin_ns, source.manifest.measure_end_ns)
        for source in sources
        if source.left_out is None and source.manifest is not None
    ]
