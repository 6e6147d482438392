"""Text on the benchmark's results, and on the comparison of the results with the benchmark's aims.

This module does no I/O and reads no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from routekeeper.bench.figures import interval, middle, paired, percentile, spread, table

Samples = Sequence[Mapping[str, Any]]
OURS: Final = "routekeeper-fsync"
#: The name, in the tables, of the system that runs another checkout of RouteKeeper.
OTHER: Final = "other tree"
_ORDER: Final = (OURS, OTHER, "routekeeper-memory", "zookeeper")
_HOW_TOLD: Final = "ours by blocking queries over HTTP, ZooKeeper by watch and read"
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
    return sorted(found, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name))


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
    yield from _told(samples)
    yield from _reads(samples)
    yield from _ends(samples)
    yield from _idle(samples)
    yield from _elections(samples)


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


def _told(samples: Samples) -> Iterator[str]:
    """Yield tables of the time until clients learn of a change: clients that watch, and clients that poll."""
    for part in ("watch", "watch-many"):
        systems = _systems(samples, part)
        if systems:
            count = _of(samples, part, systems[0], "watchers")[0]
            yield f"\n{count:.0f} watchers told of a change: {_HOW_TOLD}"
            yield from table(
                (
                    "system",
                    "half of them p50 ms",
                    "all p50 ms",
                    "all p99 ms",
                    "ack p50 ms",
                    "server CPU ms a change",
                ),
                [
                    (
                        one,
                        *(
                            spread(_of(samples, part, one, name), ".2f")
                            for name in ("half_ms_p50", "ms_p50", "ms_p99", "ack_ms_p50")
                        ),
                        spread(_cpu_per_change(samples, part, one), ".1f"),
                    )
                    for one in systems
                ],
            )
    for sample in samples:
        if sample["part"] == "poll":
            yield (
                f"\n{sample['watchers']} clients that ask for the route every 30 s, as RocketMQ's and ours do"
                f" ({sample['system']}): one change seen after {sample['ms_p50'] / 1e3:.1f} s (p50),"
                f" {sample['ms_max'] / 1e3:.1f} s (last)"
            )


def _cpu_per_change(samples: Samples, part: str, system: str) -> list[float]:
    return [
        s["server_cpu_s"] / s["writes"] * 1e3 for s in samples if s["part"] == part and s["system"] == system
    ]


def _ends(samples: Samples) -> Iterator[str]:
    borne = {str(s["system"]): s["borne_ms"] for s in samples if s["part"] == "version"}
    for part, how in (("failover", "killed (SIGKILL)"), ("failover-stop", "stopped (SIGSTOP)")):
        systems = _systems(samples, part)
        if systems:
            series = next(s["timers"] for s in samples if s["part"] == part)
            yield f"\nleader {how} to the next acknowledged write, timers: {series}"
            rows = []
            for one in systems:
                took = sorted(_of(samples, part, one, "ms"))
                least, most = borne.get(one, (0, 0))
                rows.append(
                    (
                        one,
                        "-" if not most else f"{least:,}" if least == most else f"{least:,} to {most:,}",
                        f"{len(took)}",
                        f"{percentile(took, 0.5):,.0f}",
                        f"{took[0]:,.0f}",
                        f"{took[-1]:,.0f}",
                    )
                )
            yield from table(("system", "silence borne, ms", "times", "p50 ms", "min ms", "max ms"), rows)


_IDLE_COLUMNS: Final = (
    ("CPU", "cpu_share", ".2%"),
    ("memory MB", "resident_mb", ".0f"),
    ("before brokers", "resident_mb_before", ".0f"),
    ("kB/s with members", "members_kb_per_s", ".2f"),
    ("kB/s with brokers", "clients_kb_per_s", ".2f"),
)


def _idle(samples: Samples) -> Iterator[str]:
    for sample in samples:
        if sample["part"] == "idle":
            rows = [
                (
                    f"{index} {role}",
                    *(
                        format(sample[name][index], form) if name in sample else "-"
                        for _, name, form in _IDLE_COLUMNS
                    ),
                )
                for index, role in enumerate(sample["roles"])
            ]
            total = [
                format(sum(sample[name]), form) if name in sample else "-" for _, name, form in _IDLE_COLUMNS
            ]
            per_s = sample["heartbeats"] / sample["seconds"]
            yield (
                f"\nidle, {sample['system']}, timers: {sample['timers']}: {sample['brokers']} brokers of 10"
                f" topics, {sample['seconds']:.0f} s, {per_s:.1f} heartbeats/s"
                + (", AND THE LEADER CHANGED" if sample["leader_changed"] else "")
            )
            yield from table(("member", *(head for head, _, _ in _IDLE_COLUMNS)), [*rows, ("all", *total)])


def _elections(samples: Samples) -> Iterator[str]:
    for sample in samples:
        if sample["part"] == "elections":
            yield (
                f"\nelections, {sample['system']}, {sample['load']}, {sample['minutes']:g} min:"
                f" {sample['terms']} new terms, {sample['leaders']} changes of leader seen"
            )


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
    took = sorted(_of(samples, "failover", OURS, "ms"))
    if took:
        half = percentile(took, 0.5)
        yield line(
            "leader lost to next write p50 <= 400 ms", f"{half:.0f} ms over {len(took)} kills", half <= 400
        )
        yield line("leader lost to next write max < 1,500 ms", f"{took[-1]:.0f} ms", took[-1] < 1500)
    ratio = paired(
        _of(samples, "reads", OURS, "linearizable_per_s"), _of(samples, "reads", OURS, "stale_per_s")
    )
    if ratio is not None:
        yield line("linearizable reads >= 0.8 of the rate of stale ones", f"{ratio:.2f}", ratio >= 0.8)
    for sample in samples:
        if sample["part"] == "idle" and sample["system"] == OURS:
            cpu = max(sample["cpu_share"])
            yield line("idle: < 2 % CPU per member", f"{cpu:.2%} at most, {sample['system']}", cpu < 0.02)
            followers = [
                kb
                for kb, role in zip(sample.get("members_kb_per_s", ()), sample["roles"], strict=False)
                if role == "follower"
            ]
            if followers:
                most = max(followers)
                yield line("idle: < 10 kB/s of payload per follower", f"{most:.2f} kB/s at most", most < 10)
        elif sample["part"] == "elections":
            text = f"{sample['terms']} in {sample['minutes']:g} min {sample['load']}, {sample['system']}"
            yield line("no election", text, not sample["terms"] and not sample["leaders"])
