"""The measurements of a storm of registrations, and the table with their results.

This module does no I/O and reads no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from routekeeper.bench.figures import spread

Row = Literal[
    "register-small",
    "register",
    "rest",
    "restart",
    "restart-spread",
    "leave",
    "crowd",
    "misses",
    "stranger",
]
ROWS: Final[tuple[Row, ...]] = (
    "register-small",
    "register",
    "rest",
    "restart",
    "restart-spread",
    "leave",
    "crowd",
    "misses",
    "stranger",
)
#: Maps a measurement and a design to the results. The results are one mapping of names to values for each
#: repetition.
Figures = Mapping[tuple[Row, str], Sequence[Mapping[str, Any]]]
_OF_ROCKETMQ: Final = "rocketmq"
#: RocketMQ's registerNameServerPeriod in s.
PERIOD_S: Final = 30.0
#: Measurements that use the same servers and brokers, one after the other in this order.
LARGE: Final[tuple[Row, ...]] = ("register", "rest", "restart", "restart-spread", "leave")


def rows_not_for(design: str) -> tuple[Row, ...]:
    """Return the measurements that a design cannot make, because ZooKeeper lacks some of the requests."""
    return ("crowd", "misses", "stranger") if design == "zookeeper" else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Numbers of brokers, and of topics that each broker registers.

    The sizes of all measurements have fixed proportions to the measurement "large". By default, brokers x
    topics are:

    - small: 40 x 1,000;
    - large: 100 x 10,000;
    - crowd: 300 x 10,000;
    - stranger: 1 x 100,000, as any process on the network could register them.
    """

    brokers: int
    topics: int

    @property
    def small(self) -> tuple[int, int]:
        return max(1, self.brokers * 2 // 5), max(1, self.topics // 10)

    @property
    def large(self) -> tuple[int, int]:
        return self.brokers, self.topics

    @property
    def crowd(self) -> tuple[int, int]:
        return 3 * self.brokers, self.topics

    @property
    def stranger(self) -> tuple[int, int]:
        return 1, min(100_000, 10 * self.topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the printed table.

    Attributes:
        key: Name of the value among the measured values.
        goal: The aim for our two designs, with the default sizes.
        shared: True to show each value also as a multiple of RocketMQ's value.
    """

    row: Row
    text: str
    key: str
    form: str = ",.1f"
    goal: str = ""
    shared: bool = False


def lines(sizes: Sizes) -> list[Line]:
    small, large, crowd = (f"{b:,} x {t:,}" for b, t in (sizes.small, sizes.large, sizes.crowd))
    wait = "longest wait of a cached route query, ms"
    until_right = "longest wait of a route query until a right answer, ms"
    stranger = f"one stranger changes {sizes.stranger[1]:,} topics again and again"
    restart = f"{large}, all servers killed and restarted, brokers back at once"
    spread_out = f"{large}, all servers killed and restarted, brokers back over {PERIOD_S:g} s"
    found = [
        Line(
            row="register-small", text=f"{small} register at once: {wait}", key="wait_ms_longest", goal="20"
        ),
        Line(row="register", text=f"{large} register at once: {wait}", key="wait_ms_longest", goal="100"),
        Line(row="register", text=f"{large}: right everywhere after, s", key="right_s"),
        Line(row="register", text=f"{large}: failed registrations", key="failures", form=",.0f", goal="0"),
        Line(
            row="register",
            text=f"{large}: cached route queries without a right answer",
            key="queries_failed",
            form=",.0f",
        ),
        Line(row="register", text=f"{large}: leader changes", key="leader_changes", form=",.0f", goal="0"),
        Line(row="register", text=f"{large}: CPU of three servers until then, s", key="cpu_s"),
        Line(
            row="register",
            text=f"{large}: largest memory of one server, resident, MB",
            key="memory_mb",
            form=",.0f",
            goal="250, raft 350",
        ),
        Line(
            row="register",
            text=f"{large}: the same of a JVM's heap after a collection, MB",
            key="heap_kept_mb",
            form=",.0f",
        ),
        Line(
            row="rest",
            text=f"{large} at rest: CPU of three servers, s a minute",
            key="cpu_s_a_minute",
            goal="2.5",
        ),
        Line(
            row="restart",
            text=f"{restart}: first right answer of the last server, s",
            key="first_right_s",
            goal="raft 2.5",
        ),
        Line(row="restart", text=f"{restart}: right everywhere after, s", key="right_s"),
        Line(row="restart", text=f"{restart}: failed registrations", key="failures", form=",.0f"),
        Line(
            row="restart",
            text=f"{restart}: leader changes, of which one is needed",
            key="leader_changes",
            form=",.0f",
        ),
        Line(row="restart", text=f"{restart}: {until_right}", key="wait_ms_longest", form=",.0f"),
        Line(
            row="restart-spread",
            text=f"{spread_out}: first right answer of the last server, s",
            key="first_right_s",
            goal="raft 2.5",
        ),
        Line(row="restart-spread", text=f"{spread_out}: right everywhere after, s", key="right_s"),
        Line(row="restart-spread", text=f"{spread_out}: {until_right}", key="wait_ms_longest", form=",.0f"),
        Line(row="leave", text=f"{large} leave at once: {wait}", key="wait_ms_longest", goal="50"),
        Line(row="leave", text=f"{large} leave at once: gone everywhere after, s", key="right_s"),
        Line(
            row="crowd",
            text=f"{crowd} register at once: connections of brokers cut",
            key="cut",
            form=",.0f",
            goal="0",
        ),
        Line(row="crowd", text=f"{crowd}: failed registrations", key="failures", form=",.0f"),
        Line(
            row="crowd",
            text=f"{crowd}: cached route queries without a right answer",
            key="queries_failed",
            form=",.0f",
        ),
        Line(row="crowd", text=f"{crowd}: leader changes", key="leader_changes", form=",.0f"),
        Line(
            row="crowd",
            text=f"{crowd}: largest memory of one server, resident, MB",
            key="memory_mb",
            form=",.0f",
            goal="600",
        ),
        Line(row="crowd", text=f"{crowd}: right everywhere after, s", key="right_s"),
        Line(row="crowd", text=f"{crowd}: {wait}", key="wait_ms_longest"),
    ]
    found += [
        Line(
            row="misses",
            text=f"{topic}, {depth} in flight: answers per second of CPU",
            key=f"answers_per_cpu_s_{key}{depth}",
            form=",.0f",
            goal=goal,
            shared=True,
        )
        for depth in (1, 16)
        for key, topic, goal in (
            ("", "a topic that nobody has, 100 names again and again", "3x RocketMQ's"),
            ("fresh_", "a topic that nobody has, each name once", ""),
            ("known_", "a topic that is there", ""),
        )
    ]
    found.append(
        Line(row="stranger", text=f"{stranger}: leader changes", key="leader_changes", form=",.0f", goal="0")
    )
    found += [
        Line(row="stranger", text=f"{stranger}: {name}, ms", key=f"wait_ms_{key}", goal=goal)
        for key, name, goal in (
            ("p50", "median wait of a cached route query", ""),
            ("p99", "p99", "50"),
            ("longest", "longest", ""),
        )
    ]
    return found


def table(
    sizes: Sizes,
    columns: Sequence[str],
    figures: Figures,
    why_not: Mapping[str, str],
    heaps: Mapping[Any, int] = {},
) -> list[str]:
    """Return the table as Markdown; a cell has the median of the repetitions (smallest, largest).

    Args:
        columns: Designs.
        heaps: Largest heap of a design's JVMs, in MB.
        why_not: Text in place of a missing value. A key is the name of the row, a blank, and the design.
    """
    rows = {row for row, _ in figures} | {key.split()[0] for key in why_not}
    heads = [f"{column}, -Xmx{heaps[column]}m" if column in heaps else column for column in columns]
    found = [f"| | {' | '.join(heads)} | goal |", f"|---|{'---|' * len(columns)}---|"]
    for line in lines(sizes):
        if line.row not in rows:
            continue
        cells = [_cell(line, column, figures, why_not) for column in columns]
        found.append(f"| {line.text} | {' | '.join(cells)} | {line.goal} |")
    return found


def _values(line: Line, column: str, figures: Figures) -> list[float]:
    of_all = [found.get(line.key) for found in figures.get((line.row, column), ())]
    return [value for value in of_all if value is not None]


def _cell(line: Line, column: str, figures: Figures, why_not: Mapping[str, str]) -> str:
    values = _values(line, column, figures)
    if not values:
        return why_not.get(f"{line.row} {column}", "-")
    cell = spread(values, line.form)
    theirs = _values(line, _OF_ROCKETMQ, figures) if line.shared and column != _OF_ROCKETMQ else []
    if theirs:
        cell += f", {sum(values) / len(values) / (sum(theirs) / len(theirs)):.1f}x"
    if line.key == "wait_ms_longest":
        own = [found["wait_ms_longest_own"] for found in figures[line.row, column]]
        if max(own) >= 1:
            cell += f" + {max(own):,.0f} unknown"
    return cell
