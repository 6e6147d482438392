"""Tables of the page, for results that the page does not show as curves.

This module does no I/O and reads no clock.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from routekeeper.bench.runfolder import Arm
from routekeeper.bench.scale.curves import NAMES, rounds_written, written
from routekeeper.bench.scale.points import FAILOVER_S, PERIOD_S, SHOWN_S, Part, Point, Row, tried_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    title: str
    heads: list[str]
    rows: list[list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A kind of row in a table. The table has one row for each chosen point.

    Attributes:
        text: First cell of the row; if it is empty, the row begins with the name of its point.
        key: Name of the figure in the row.
        unit: Unit of the figure; empty for a plain number.
        chosen: Function that returns True if the table has a row for a point.
        plan: Range of values that follow from the plan, in the figure's unit. If the values of all rounds lie
            in this range, the cell says so, because such values tell nothing about the design.
        within_s: Seconds after which the harness ends the wait for this event; see :class:`Question`.
    """

    text: str = ""
    key: str
    unit: str
    chosen: Callable[[Point], bool]
    plan: tuple[float, float] | None = None
    within_s: float | None = None


#: Range of the time until the last broker is back, if the brokers' return is spread over a period. Eleven
#: brokers share the period: ten brokers, and one broker that never leaves. So the last of the ten comes back
#: after nine elevenths (0.82) of the period.
_RETURN_S: Final = (0.8 * PERIOD_S, 1.05 * PERIOD_S)
_RETURN_MS: Final = (1e3 * _RETURN_S[0], 1e3 * _RETURN_S[1])
#: Range of the time until the last broker is back, after a rolling restart. The time begins with the restart
#: of the last server. The brokers of the first server come back earlier, because that server restarts first.
_ROLL_S: Final = (0.3 * PERIOD_S, 1.05 * PERIOD_S)


def tables_of(part: Part, rows: Sequence[Row]) -> list[Table]:
    """Return the tables of a part; leave out tables that have no figures."""
    found = [_table(title, lines, rows) for title, lines in _TABLES[part]]
    if part == "number":
        found = [_losses(rows), *found, _away(rows)]
    return [table for table in found if table.rows]


def _table(title: str, lines: Sequence[_Line], rows: Sequence[Row]) -> Table:
    designs = [design for design in NAMES if any(row.design == design for row in rows)]
    found: list[list[str]] = []
    for line in lines:
        points = {row.point.name: row.point for row in rows if line.chosen(row.point)}
        for point in sorted(
            points.values(), key=lambda point: (point.brokers, point.topics, point.clients, point.servers)
        ):
            cells = [_cell_of(line, rows, point, design) for design in designs]
            if any(cells):
                found.append([line.text or point.name, *(cell or "-" for cell in cells)])
    return Table(title=title, heads=["", *(NAMES[design] for design in designs)], rows=found)


def _cell_of(line: _Line, rows: Sequence[Row], point: Point, design: str) -> str:
    """Return a cell of :func:`_table`; it says in how many rounds the event did not happen in time."""
    cell = _cell(rows, point, design, line.key, line.unit, line.plan)
    measured = [row for row in rows if row.point.name == point.name and row.design == design]
    measured = [row for row in measured if row.failed is None and row.left_out is None]
    missing = sum(line.key not in row.figures for row in measured)
    if line.within_s is None or not missing:
        return cell
    none = f"not within {line.within_s:g} s in {missing} of {rounds_written(len(measured))}"
    return f"{cell}; {none}" if cell else none


def _cell(
    rows: Sequence[Row],
    point: Point,
    design: str,
    key: str,
    unit: str,
    plan: tuple[float, float] | None = None,
) -> str:
    of_point = [row for row in rows if row.point.name == point.name and row.design == design]
    values = [row.figures[key] for row in of_point if key in row.figures]
    if values:
        cell = written(statistics.median(values), unit) if unit else f"{statistics.median(values):,.0f}"
        if len(values) > 1 and max(values) > min(values):
            low, high = (
                written(each, unit) if unit else f"{each:,.0f}" for each in (min(values), max(values))
            )
            cell += f" ({low} to {high})"
        if plan is not None and all(plan[0] <= value <= plan[1] for value in values):
            cell += ", set by the plan"
        return cell
    return "failed" if any(row.failed is not None for row in of_point) else ""


def _losses(rows: Sequence[Row]) -> Table:
    """Return the table of times from a kill until the next accepted change.

    The table has one row for each pair of a number of servers and a number of killed servers.
    """
    designs: list[Arm] = [row.design for row in rows]
    known = [design for design in NAMES if design in designs]
    found: list[list[str]] = []
    points = {row.point.name: row.point for row in rows if row.point.kind == "number"}
    for point in sorted(points.values(), key=lambda point: point.servers):
        for down in range(1, point.servers):
            cells = [_loss(rows, point, design, down) for design in known]
            found.append([f"{down} of {point.servers} down", *cells])
    return Table(
        title="The leader is killed, again and again (in independent mode any server): the next change is "
        "accepted after",
        heads=["", *(NAMES[design] for design in known)],
        rows=found,
    )


def _loss(rows: Sequence[Row], point: Point, design: str, down: int) -> str:
    """Return a cell of :func:`_losses`; it says in how many rounds no change was accepted."""
    key = f"down_{down}_change_s"
    measured = [
        row.figures
        for row in rows
        if row.point.name == point.name and row.design == design and "down_with_changes" in row.figures
    ]
    without = sum(key not in figures for figures in measured)
    none = f"none within {tried_s(point.servers, down):g} s"
    if measured and without == len(measured):
        return none
    cell = _cell(rows, point, design, key, "s")
    return f"{cell}; {none} in {without} of {len(measured)} rounds" if without else cell or "-"


def _away(rows: Sequence[Row]) -> Table:
    """Return the table of messages and routes while all servers are down, and after their restart."""
    sent = sorted({row.figures["away_sent"] for row in rows if "away_sent" in row.figures})
    many = " or ".join(f"{each:,.0f}" for each in sent) or "all"
    lines = [
        _Line(text=text, key=key, unit=unit, chosen=_of_kind("away"))
        for text, key, unit in (
            (f"of {many} messages meanwhile failed", "away_failed", ""),
            (
                "servers start again: every server lists every broker after (independent mode waits for the "
                "next registration of a 30 s period)",
                "away_right_s",
                "s",
            ),
            ("of the messages from the start until 2 s after that, failed", "away_failed_after", ""),
        )
    ]
    return _table("All servers are away for minutes, brokers and a producer go on", lines, rows)


def _several(point: Point) -> bool:
    return point.kind == "number" and point.servers > 1


def _of_kind(kind: str) -> Callable[[Point], bool]:
    return lambda point: point.kind == kind


def _lossy(point: Point) -> bool:
    return point.kind == "distance" and point.loss > 0


_SLOW: Final = (
    ("a change at the leader, no disk is slow", "slow_none_change_leader_ms"),
    ("a change at the leader, its own disk is slow", "slow_leader_change_leader_ms"),
    ("a change at the leader, a follower's disk is slow", "slow_follower_change_leader_ms"),
    ("a change at a follower, no disk is slow", "slow_none_change_follower_ms"),
    ("a change at a follower, the leader's disk is slow", "slow_leader_change_follower_ms"),
    ("a change at a follower, its own disk is slow", "slow_follower_change_follower_ms"),
)
_LOSSY: Final = (
    ("a lone change at the leader (in independent mode at one server)", "change_leader_ms", "ms", None),
    (
        "a lone change at a follower (in independent mode at another server)",
        "change_follower_ms",
        "ms",
        None,
    ),
    ("every server shows a change after", "everywhere_ms", "ms", SHOWN_S),
    (
        "the leader (in independent mode one server) is killed: the next change is accepted after",
        "failover_s",
        "s",
        FAILOVER_S,
    ),
)
_TABLES: Final[dict[Part, list[tuple[str, list[_Line]]]]] = {
    "size": [
        (
            "All servers restart, brokers come back at once: every route is right after",
            [_Line(key="restart_right_s", unit="s", chosen=_of_kind("storm"))],
        ),
        (
            "The same, brokers come back over 30 s",
            [_Line(key="spread_right_s", unit="s", chosen=attrgetter("spread"), plan=_RETURN_S)],
        ),
        (
            "The longest wait for the route of the broker that comes back last of these",
            [_Line(key="spread_wait_ms_longest", unit="ms", chosen=attrgetter("spread"), plan=_RETURN_MS)],
        ),
        (
            "Largest resident memory of one server",
            [_Line(key="register_memory_mb", unit="MB", chosen=_of_kind("storm"))],
        ),
        (
            "What a Java virtual machine keeps after a collection of garbage",
            [_Line(key="register_heap_kept_mb", unit="MB", chosen=_of_kind("storm"))],
        ),
        (
            "Clients that ask every 30 s: the last one knows a change after",
            [_Line(key="poll_ms_last", unit="ms", chosen=attrgetter("polling"), plan=_RETURN_MS)],
        ),
    ],
    "distance": [
        (
            "A slow disk: each sync of one server takes 20 ms more",
            [_Line(text=text, key=key, unit="ms", chosen=_of_kind("slow-disk")) for text, key in _SLOW],
        ),
        (
            "1 % of the packets between servers are lost, the round trip takes 5 ms",
            [
                _Line(text=text, key=key, unit=unit, chosen=_lossy, within_s=within_s)
                for text, key, unit, within_s in _LOSSY
            ],
        ),
    ],
    "number": [
        (
            "Servers that may be down while changes go on; the plan keeps one server up",
            [_Line(key="down_with_changes", unit="", chosen=_several)],
        ),
        (
            "Servers that may be down while all others give right answers; the plan keeps one server up",
            [_Line(key="down_with_answers", unit="", chosen=_several)],
        ),
        (
            "One server restarts after the other: the longest time without a right answer",
            [
                _Line(
                    key="rolling_read_gap_s",
                    unit="s",
                    chosen=_of_kind("number"),
                    plan=_ROLL_S,
                )
            ],
        ),
        (
            "One server restarts after the other, the leader last: changes of the leader",
            [_Line(key="rolling_leader_changes", unit="", chosen=_of_kind("number"))],
        ),
    ],
}
