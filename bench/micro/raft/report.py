"""Text on the benchmark's results, and on the comparison of the results with the benchmark's aims.

This module does no I/O and reads no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from routekeeper.bench.figures import interval, middle, paired, spread, table

Samples = Sequence[Mapping[str, Any]]
OURS: Final = "routekeeper-fsync"
#: The name, in the tables, of the system that runs another checkout of RouteKeeper.
OTHER: Final = "other tree"
_ORDER: Final = (OURS, OTHER, "routekeeper-memory", "zookeeper")
_HEADS: Final = {
    "ack": "one in flight",
    "writes": "64 connections, one in flight on each",
    "ack-large": "one in flight, 20 kB",
    "writes-large": "64 connections, one in flight on each, 20 kB",
    "visible": "visible on all three members",
}


def _of(samples: Samples, part: str, system: str, name: str) -> list[float]:
    return [float(s[name]) for s in samples if s["part"] == part and s["system"] == system and name in s]


def _systems(samples: Samples, part: str) -> list[str]:
    found = {str(s["system"]) for s in samples if s["part"] == part}
    return [name for name in _ORDER if name in found]


def _cpu_per_1000(samples: Samples, part: str, system: str, name: str) -> list[float]:
    found = []
    for sample in samples:
        if sample["part"] == part and sample["system"] == system:
            used = sample[name]
            found.append((sum(used) if isinstance(used, list) else used) / sample["answered"] * 1000)
    return found


def tables(samples: Samples) -> Iterator[str]:
    """Yield a table for each measured part; a cell has the median of the rounds (smallest, largest)."""
    for part, head in _HEADS.items():
        systems = _systems(samples, part)
        if not systems:
            continue
        yield f"\n{head}"
        if part == "visible":
            yield from table(
                ("system", "p50 ms", "p99 ms", "ack p50 ms", "polls per write", "p50, ours / this"),
                [
                    (
                        one,
                        *(
                            spread(_of(samples, part, one, name), ".2f")
                            for name in ("ms_p50", "ms_p99", "ack_ms_p50")
                        ),
                        spread(_of(samples, part, one, "polls_per_write"), ".0f"),
                        _ratio(samples, part, one, "ms_p50"),
                    )
                    for one in systems
                ],
            )
            continue
        ratio, ratio_head = ("per_s", "writes/s") if part.startswith("writes") else ("ms_p50", "p50")
        yield from table(
            (
                "system",
                "p50 ms",
                "p99 ms",
                "writes/s",
                "server CPU s per 1,000",
                "generator's",
                f"{ratio_head}, ours / this",
            ),
            [
                (
                    one,
                    spread(_of(samples, part, one, "ms_p50"), ".2f"),
                    spread(_of(samples, part, one, "ms_p99"), ".2f"),
                    spread(_of(samples, part, one, "per_s"), ",.0f"),
                    spread(_cpu_per_1000(samples, part, one, "server_cpu_s"), ".2f"),
                    spread(_cpu_per_1000(samples, part, one, "generator_cpu_s"), ".2f"),
                    _ratio(samples, part, one, ratio),
                )
                for one in systems
            ],
        )
    yield from _reads(samples)


def _ratio(samples: Samples, part: str, system: str, name: str) -> str:
    if system == OURS:
        return "-"
    ours, theirs = (
        {s["round"]: float(s[name]) for s in samples if s["part"] == part and s["system"] == one}
        for one in (OURS, system)
    )
    # Omit a round in which the measurement of one of the two systems failed.
    both = sorted(ours.keys() & theirs.keys())
    ratio = paired([ours[number] for number in both], [theirs[number] for number in both])
    if ratio is None:
        return "-"
    if system != OTHER:
        return f"{ratio:.2f}"
    low, high = interval([ours[number] / theirs[number] for number in both])
    return f"{ratio:.3f} ({low:.3f} to {high:.3f}, {len(both)} rounds)"


def _reads(samples: Samples) -> Iterator[str]:
    systems = _systems(samples, "reads")
    if systems:
        yield "\nreads over the wire, 64 connections, one in flight on each"
        rows = []
        for one in systems:
            stale = _of(samples, "reads", one, "stale_per_s")
            linear = _of(samples, "reads", one, "linearizable_per_s")
            ratio = paired(linear, stale)
            rows.append(
                (
                    one,
                    spread(stale, ",.0f"),
                    spread(linear, ",.0f"),
                    "-" if ratio is None else f"{ratio:.2f}",
                    spread(_of(samples, "reads", one, "linearizable_ms_p50"), ".2f"),
                )
            )
        yield from table(("system", "stale/s", "linearizable/s", "ratio", "linearizable p50 ms"), rows)


def targets(samples: Samples) -> Iterator[str]:
    """Yield a line of text for each measured aim of the benchmark. The line says if the aim was reached."""

    def line(text: str, value: str, ok: bool) -> str:
        return f"{'reached' if ok else 'MISSED '}  {text}: {value}"

    def mid(part: str, system: str, name: str) -> float | None:
        values = _of(samples, part, system, name)
        return middle(values) if values else None

    ours, theirs = mid("ack", OURS, "ms_p50"), mid("ack", "zookeeper", "ms_p50")
    if ours is not None and theirs is not None:
        yield line("ack p50 <= ZooKeeper's", f"{ours:.2f} ms, ZooKeeper {theirs:.2f} ms", ours <= theirs)
    ours, theirs = mid("writes", OURS, "per_s"), mid("writes", "zookeeper", "per_s")
    if ours is not None and theirs is not None:
        text = f"{ours:,.0f}/s, ZooKeeper {theirs:,.0f}/s, x {ours / theirs:.2f}"
        yield line("writes/s with 64 in flight above ZooKeeper's", text, ours > theirs)
        yield line("goal: twice ZooKeeper's", f"x {ours / theirs:.2f}", ours >= 2 * theirs)
    ours, theirs = mid("visible", OURS, "ms_p50"), mid("visible", "zookeeper", "ms_p50")
    if ours is not None and theirs is not None:
        text = f"{ours:.2f} ms, ZooKeeper {theirs:.2f} ms"
        yield line("visible on all p50 <= ZooKeeper's", text, ours <= theirs)
    ratio = paired(
        _of(samples, "reads", OURS, "linearizable_per_s"), _of(samples, "reads", OURS, "stale_per_s")
    )
    if ratio is not None:
        yield line("linearizable reads >= 0.8 of the rate of stale ones", f"{ratio:.2f}", ratio >= 0.8)
