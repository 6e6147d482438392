"""Compute the table of docs/results/real.md from the raw events of the profile ``real``.

``python -m tests.bench.recompute_real RESULTS values.csv`` prints the table's rows. RESULTS is a folder into
which the archives of docs/results/real were unpacked.

The report's measures come from values.csv, which recompute.py checks. All other figures come from the events.
This file imports no code of the benchmark.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from tests.bench.recompute import WAITED, Life, Row, Run

ARMS = ("independent", "independent-real", "raft", "raft-real")
"""Designs of the profile, in the order of the table's columns. "-real" means RocketMQ's own programs."""
POLL_NS = 10_000_000_000
"""Time between two route queries of a client in this profile."""

Values = dict[str, list[float]]
"""Values of one row: a list with one value for each round, by design."""
Place = tuple[str, str, str]
"""Scenario, case and measure of a figure."""


def lives(results: Path) -> Iterator[Life]:
    by_life: dict[object, list[Run]] = defaultdict(list)
    for path in sorted(results.glob("runs/series=equal/*/*/*/manifest.json")):
        run = Run(path.parent)
        if run.manifest["void"] is None and run.manifest["ended_ns"] is not None:
            by_life[run.life].append(run)
    return map(Life, by_life.values())


def in_run(life: Life, run: Run, kinds: tuple[str, ...]) -> list[Row]:
    return [op for op in life.ops[id(run)] if op["op"] in kinds and run.begin <= op["due_ns"] < run.end]


def failed(kind: str, life: Life, run: Run, *, until_ns: int | None = None) -> tuple[int, int]:
    """Return the numbers of failed operations and of all operations of this kind after the fault began."""
    (fault,) = run.faults
    begin = fault["begin_ns"]
    ops = [op for op in in_run(life, run, (kind,)) if begin <= op["due_ns"] < begin + (until_ns or 2**62)]
    return sum(op["outcome"] not in ("ok", "absent") for op in ops), len(ops)


def delayed_newcomers(life: Life, run: Run) -> tuple[int, int]:
    """Return the numbers of new clients without a right answer within 250 ms, and of all new clients.

    Only clients count that asked after the fault began, and that asked a server that the fault did not hit.
    """
    (fault,) = run.faults
    asked = [
        op
        for op in in_run(life, run, ("newcomer",))
        if op["due_ns"] >= fault["begin_ns"] and f"nameserver-{op['target']}" not in fault["targets"]
    ]
    slow = [op for op in asked if op["outcome"] != "ok" or op["done_ns"] - op["due_ns"] > WAITED]
    return len(slow), len(asked)


def listed_again_s(life: Life, run: Run) -> float:
    """Return the time in s from the instant at which a restarted broker is ready until all servers list it.

    The time is negative if all servers list the broker before it is ready.
    """
    (fault,) = run.faults
    (broker,) = (int(name.rpartition("-")[2]) for name in fault["targets"])
    first: dict[tuple[int, str], int] = {}
    for span in life.spans:
        place = span["index"], span["topic"]
        if (
            span["observer"] == "nameserver"
            and span["seen"] > fault["healed_ns"]
            and broker in span["brokers"]
        ):
            first[place] = min(first.get(place, span["since"]), span["since"])
    return float((max(first.values()) - fault["end_ns"]) / 1e9)


def seconds(value: float) -> str:
    if abs(value) < 0.0095:
        return "0.00" if value else "0"
    return f"{value:.2f}" if abs(value) < 1 else f"{value:.1f}"


def spread(values: list[float]) -> str:
    return f"{seconds(median(values))} ({seconds(min(values))} to {seconds(max(values))})"


def share(counts: list[tuple[int, int]]) -> str:
    bad, all_ = (sum(column) for column in zip(*counts, strict=True))
    return f"{bad:,} of {all_:,}"


def table(results: Path, values: Path) -> list[str]:
    """Return the rows of the table as Markdown."""
    known: dict[Place, Values] = defaultdict(lambda: defaultdict(list))
    with values.open(newline="") as file:
        for figure in sorted(csv.DictReader(file), key=lambda figure: int(figure["block"])):
            place = figure["scenario"], figure["case"], figure["measure"]
            known[place][figure["arm"]].append(float(figure["value"]))
    counts: dict[tuple[str, str], dict[str, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    again: Values = defaultdict(list)
    rates: Values = defaultdict(list)
    for life in lives(results):
        for run in life.runs:
            if run.scenario == "quiet":
                all_ops = in_run(life, run, ("lookup", "newcomer", "announce", "send", "send_once"))
                rates[run.arm].append(len(all_ops) / ((run.end - run.begin) / 1e9))
                continue
            counts[run.scenario, "newcomer"][run.arm].append(delayed_newcomers(life, run))
            for kind in ("lookup", "send"):
                counts[run.scenario, kind][run.arm].append(failed(kind, life, run))
            counts[run.scenario, "send_once"][run.arm].append(
                failed("send_once", life, run, until_ns=POLL_NS)
            )
            if run.scenario == "broker-dies":
                again[run.arm].append(listed_again_s(life, run))

    def row(label: str, cell: Callable[[str], str], arms: tuple[str, ...] = ARMS) -> str:
        return f"| {label} | " + " | ".join(cell(arm) if arm in arms else "–" for arm in ARMS) + " |"

    def of(*place: str) -> Callable[[str], str]:
        return lambda arm: spread(known[place][arm])  # type: ignore[index]

    def more(*place: str) -> Callable[[str], str]:
        """Return a function that writes the cell of a design with RocketMQ's own programs.

        The cell has the range of the rounds' differences. A difference is the value with RocketMQ's programs
        minus the value with our programs in the same round.
        """

        def cell(arm: str) -> str:
            if not arm.endswith("-real"):
                return "–"
            ours, theirs = known[place][arm.removesuffix("-real")], known[place][arm]  # type: ignore[index]
            return spread([their - our for their, our in zip(theirs, ours, strict=True)])

        return cell

    def count(scenario: str, kind: str) -> Callable[[str], str]:
        return lambda arm: share(counts[scenario, kind][arm])

    independent = ("independent", "independent-real")
    dies, restarts, leads = (
        ("broker-dies", "kill"),
        ("nameserver-restarts", "one-empty"),
        ("leader-fails", "kill"),
    )
    return [
        row("a broker is killed: the last nameserver drops it after", of(*dies, "left_by_nameservers_s")),
        row("the last client (asking every 10 s) drops it after", of(*dies, "left_by_clients_s")),
        row("the same, RocketMQ's own minus ours, round by round", more(*dies, "left_by_clients_s")),
        row("sends without retries that fail in these 10 s", count("broker-dies", "send_once")),
        row("sends with two retries that fail", count("broker-dies", "send")),
        row("the broker is ready again: all nameservers list it after", lambda arm: spread(again[arm])),
        row(
            "one nameserver restarts empty: it answers new clients right again after",
            of(*restarts, "newcomer_right_s"),
            independent,
        ),
        row("the leader (or any nameserver) is killed: slowest look-up", of(*leads, "slowest_lookup_s")),
        row("look-ups that fail", count("leader-fails", "lookup")),
        row(
            "new clients of the other two nameservers: refused, or answered after more than 250 ms",
            count("leader-fails", "newcomer"),
        ),
        row("operations per second of a quiet time", lambda arm: f"{median(rates[arm]):.0f}"),
        row(
            "processor time in s that three nameservers use in a minute of it",
            of("quiet", "", "cpu_s_per_min"),
        ),
    ]


if __name__ == "__main__":
    print("\n".join(table(Path(sys.argv[1]), Path(sys.argv[2]))))
