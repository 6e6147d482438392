"""The page of one or more series, and its tables as CSV: ``mqbench scale --report FOLDER``."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import jinja2

from routekeeper.bench.files import write_at_once
from routekeeper.bench.scale import drawing
from routekeeper.bench.scale.curves import NAMES, Answer, answers_of
from routekeeper.bench.scale.drawing import picture
from routekeeper.bench.scale.order import Order, commits
from routekeeper.bench.scale.others import OTHERS
from routekeeper.bench.scale.points import PARTS, TRIED_S, TRIED_WITHOUT_MAJORITY_S, Part, Row
from routekeeper.bench.scale.tables import tables_of

#: If other programs use more CPU cores than this, a phase of a measurement counts as disturbed.
BUSY: Final = 0.25
#: Names of the written files: the page and its two tables.
FILES: Final = ("scale.html", "scale-curves.csv", "scale-figures.csv")
_TITLES: Final[dict[Part, str]] = {
    "size": "Size: brokers, topics and clients",
    "distance": "Distance between the servers, and slow disks",
    "number": "Number of servers",
}
_LINKS: Final = {
    "none": "Nothing delayed links between servers.",
    "proxy": (
        "A proxy between the servers made the distance: it held each byte back, the handshake of a "
        "connection included, and lost nothing."
    ),
    "kernel": (
        "The kernel made the distance: packets between the servers' network namespaces passed a TUN "
        "device that held them back; where packets are lost, it lost 1 % in each direction."
    ),
}


def sections_of(series: Sequence[tuple[Order, Sequence[Row]]]) -> list[dict[str, Any]]:
    """Return the sections of the page, one for each part that was measured."""
    found = []
    for part in PARTS:
        of_part = [(order, rows) for order, rows in series if order.part == part]
        rows = [row for _, several in of_part for row in several]
        if rows:
            found.append(
                {
                    "name": part,
                    "title": _TITLES[part],
                    "about": " ".join(_about(order, theirs) for order, theirs in of_part),
                    "answers": [
                        (answer, picture(answer.question, answer.curves))
                        for answer in answers_of(rows)
                        if answer.question.part == part
                    ],
                    "tables": tables_of(part, rows),
                    "failures": _failures(rows),
                    "left_out": _left_out(rows),
                }
            )
    return found


def _about(order: Order, rows: Sequence[Row]) -> str:
    measured = [row for row in rows if row.left_out is None]
    others = [value for row in measured for name, value in row.figures.items() if name.endswith(OTHERS)]
    busy = (
        f"; other programs used {statistics.median(others):.2f} cores in the median phase, and more than "
        f"{BUSY:g} in {sum(value > BUSY for value in others)} of {len(others)}"
        if others
        else ""
    )
    minutes = sum(row.seconds for row in rows) / 60
    small = " A trial with tiny sizes: its figures say nothing about real ones." if order.small else ""
    links = f" {_LINKS[order.links]}" if order.part == "distance" else ""
    measured_by = commits(order, rows)
    program = f"{'commit' if len(measured_by) == 1 else 'commits'} {' and '.join(measured_by)}"
    return (
        f"{order.started_at[:10]}, {program}, {order.machine.cpu}, {order.machine.cores} cores; "
        f"{len(measured)} measurements in {minutes:.0f} minutes{busy}.{links}{small}"
    )


def _failures(rows: Iterable[Row]) -> list[str]:
    return [
        f"{NAMES[row.design]}, {row.point.name}, round {row.round}: {row.failed.splitlines()[0]}"
        for row in rows
        if row.failed is not None
    ]


def _left_out(rows: Iterable[Row]) -> list[str]:
    return [
        f"{NAMES[row.design]}, {row.point.name}, round {row.round}: {row.left_out}."
        for row in rows
        if row.left_out is not None
    ]


METHOD: Final = (
    "Servers run with their default timers: raft mode's election timeout is 0.5 to 1 s, ZooKeeper's tick "
    "is 2 s and its sessions 30 s. The simulated brokers of the part size register only when a "
    "measurement says so.",
    "One process plays the brokers. RocketMQ's brokers register with every nameserver. In ZooKeeper each "
    "broker has a session with one server and an ephemeral node below each topic.",
    "ZooKeeper's persistent nodes, the parents of topics and brokers, exist before any clock starts. "
    "Brokers make their own nodes by requests (multi) of 300 nodes, four in flight at a time.",
    "Every route is right when each server lists every broker for 16 topics that are spread over all, the "
    "first and the last among them.",
    "A separate client measures the longest wait. It asks each server for a topic of one more broker, "
    "which has ten topics, and asks again 2 ms after each answer. After a restart, nameservers without a "
    "disk know this topic when that broker has registered again. Time in which the client did not run is "
    "not counted.",
    "A client that watches holds a waiting HTTP query (our nameservers) or a ZooKeeper watch. A client "
    "that polls asks every 30 s, as RocketMQ's clients do.",
    "A failover lasts from the kill of the leader's process to the first change that a surviving server "
    "acknowledges. The harness tries all survivors at the same time. A try lasts 0.25 s and four round "
    "trips at most.",
    "Independent mode has no leader and no followers. There the first server takes the leader's place in "
    "the part distance, and the second server takes the follower's.",
    "The answers of two servers differ in age by the time between the first and the last server that "
    "shows a change. RocketMQ's broker reports to every server; ZooKeeper's has one session, here with "
    "the leader.",
    "The part number kills the leader again and again. Before each kill, the servers that are left get "
    "time to elect a leader; if there is none, any server is killed. A change counts if it is accepted "
    f"within {TRIED_S:g} s while a majority lives, and within {TRIED_WITHOUT_MAJORITY_S:g} s after that. A "
    "server's answer counts if it is right by then.",
    "In independent mode a change counts when one server has it; the others do not learn it.",
    "In the rolling restarts of the part number, brokers of nameservers return over 30 s, as RocketMQ's "
    "do. ZooKeeper's return after 1 s, because their clients connect again at once. In independent mode "
    "the time without a right answer is set by this plan: an operator who waits 30 s between restarts of "
    "several servers sees no gap.",
    "The series leaves out a point for which its 75 minutes leave no time, and names it.",
)

LIMITS: Final = (
    "All servers, brokers and clients share the cores and one disk of one machine. Where a restart takes "
    "as long at the smallest size as at others, that is the start of three processes: two cores start "
    "three Java virtual machines in some 5 s.",
    "All brokers have the same topics with the same numbers of queues. Our nameserver stores equal values "
    "once, so real brokers need more memory there. The other systems store something for each pair of "
    "broker and topic.",
    "Java virtual machines fill the heap that they may have (ZooKeeper 3 GB, RocketMQ 4 GB) before they "
    "collect garbage. Resident memory shows that; the table beside it shows what they keep.",
    "A change of all topics was measured seconds after the servers' start. A Java virtual machine "
    "compiles code only after it has run often, so these systems would be several times faster later. The "
    "same holds for lone changes at 0 and 1 ms, after 30 changes without a clock, and for those of the "
    "part number, after 200.",
    "Raft mode and ZooKeeper answer from their disks after a restart. So they are right before brokers "
    "are back, and they also list a broker that died meanwhile.",
    "ZooKeeper's read-only mode was off: without a majority its servers answer nothing. Raft mode ran with "
    "its default freshness of reads: without a majority its servers refuse queries, too. With "
    "routeFreshness=stale every server that is left would answer.",
    "Only links between servers were delayed. Each broker and client was next to each server, so "
    "independent mode shows no effect of the distance: there, a broker that is far from a server waits "
    "one round trip for that server. At 0 ms the proxy was still in the way.",
    "A killed process closes its connections, and the others notice at once. After the loss of a machine "
    "they wait for their time-outs.",
    "One thread plays all clients that watch. With 2,000 of them, its own work is part of the time.",
)


def page_of(series: Sequence[tuple[Order, Sequence[Row]]]) -> str:
    """Return the page of these series as one self-contained HTML file."""
    sections = sections_of(series)
    shown = {row.design for _, rows in series for row in rows}
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("routekeeper.bench.scale"), autoescape=True, trim_blocks=True
    )
    return environment.get_template("page.html.j2").render(
        parts=sections,
        names={design: name for design, name in NAMES.items() if design in shown},
        method=METHOD,
        limits=LIMITS,
        width=drawing.WIDTH,
        height=drawing.HEIGHT,
        left=drawing.LEFT,
        bottom=drawing.BOTTOM,
    )


def curves_csv(answers: Sequence[Answer]) -> str:
    """Return a CSV table with one line for each point of each curve."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(
        [
            "part",
            "question",
            "size",
            "size_of",
            "design",
            "unit",
            "median",
            "low",
            "high",
            "rounds",
            "failures",
        ]
    )
    for answer in answers:
        question = answer.question
        for curve in answer.curves:
            for dot in curve.dots:
                values = [
                    "" if math.isnan(value) else f"{value:.6g}" for value in (dot.median, dot.low, dot.high)
                ]
                table.writerow(
                    [
                        *(question.part, question.name, f"{dot.x:g}", question.x_name, curve.design),
                        *(question.unit, *values, dot.rounds, dot.failures),
                    ]
                )
    return out.getvalue()


def rows_csv(rows: Sequence[Row]) -> str:
    """Return a CSV table with one line for each figure of each row."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(["part", "point", "design", "round", "links", "load", "figure", "value"])
    for row in rows:
        fixed = [row.point.part, row.point.name, row.design, row.round, row.links, f"{row.load:g}"]
        for name, value in row.figures.items():
            table.writerow([*fixed, name, f"{value:.6g}"])
    return out.getvalue()


def write_report(folder: Path, series: Sequence[tuple[Order, Sequence[Row]]]) -> Path:
    """Write the page and the tables of these series into a folder; return the page's path."""
    rows = [row for _, several in series for row in several]
    texts = (page_of(series), curves_csv(answers_of(rows)), rows_csv(rows))
    for name, text in zip(FILES, texts, strict=True):
        write_at_once(folder / name, [text.encode()])
    return folder / FILES[0]
