"""The curves of ``mqbench scale`` show a measure over the cluster's size or the servers' distance.

The tests check the points, texts and drawings of curves, and the page.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from routekeeper.bench.runfolder import Arm, Machine
from routekeeper.bench.scale.curves import (
    QUESTIONS,
    Question,
    bend,
    crossings,
    curves_of,
    sentences_of,
    turns_at_crossings,
    written,
)
from routekeeper.bench.scale.drawing import BOTTOM, LEFT, RIGHT, TOP, WIDTH, picture
from routekeeper.bench.scale.order import Order, add_row, begin, read_order, read_rows, series_below
from routekeeper.bench.scale.points import Point, Row, points_of
from routekeeper.bench.scale.report import page_of, write_report
from routekeeper.bench.scale.tables import tables_of

STORM = next(question for question in QUESTIONS if question.name == "storm-over-topics")
FAILOVER = next(question for question in QUESTIONS if question.name == "failover-over-distance")
CHANGE = next(question for question in QUESTIONS if question.name == "change-leader-over-distance")

PUBLISHED = Path(__file__).parents[2] / "docs" / "results" / "full"


def storm(topics: int, *, brokers: int = 10) -> Point:
    name = f"{brokers} brokers with {topics:,} topics each"
    return Point(part="size", kind="storm", name=name, brokers=brokers, topics=topics)


def far(ms: float, **more: Any) -> Point:
    return Point(part="distance", kind="distance", name=f"round trip {ms:g} ms", round_trip_ms=ms, **more)


def row(point: Point, design: Arm, number: int = 1, *, failed: str | None = None, **figures: float) -> Row:
    return Row(
        point=point,
        design=design,
        round=number,
        links="none",
        seconds=1.0,
        load=0.5,
        figures=figures,
        failed=failed,
    )


def storms(design: Arm, by_topics: dict[int, Sequence[float]]) -> list[Row]:
    return [
        row(storm(topics), design, number, restart_right_s=value)
        for topics, values in by_topics.items()
        for number, value in enumerate(values, start=1)
    ]


def test_point_of_a_curve_is_the_median_of_its_rounds_with_their_range() -> None:
    rows = storms("raft", {100: (1.0, 9.0, 2.0), 1_000: (3.0,)})
    # This row belongs to no curve, because all points of a curve have 10 brokers, or 1,000 topics per broker.
    rows.append(row(storm(100, brokers=100), "raft", restart_right_s=50.0))
    (curve,) = curves_of(STORM, rows)
    assert [(dot.x, dot.median, dot.low, dot.high, dot.rounds) for dot in curve.dots] == [
        (100, 2.0, 1.0, 9.0, 3),
        (1_000, 3.0, 3.0, 3.0, 1),
    ]


def test_lossy_point_is_not_on_the_curve_over_the_distance() -> None:
    rows = [
        row(far(5.0), "raft", change_leader_ms=7.0),
        row(far(5.0, loss=0.01), "raft", change_leader_ms=90.0),
    ]
    (curve,) = curves_of(CHANGE, rows)
    assert [dot.median for dot in curve.dots] == [7.0]


def test_curve_bends_where_its_growth_changes_most() -> None:
    bent = storms("zookeeper", {100: (1.0,), 1_000: (1.1,), 10_000: (11.0,)})
    (curve,) = curves_of(STORM, bent)
    found = bend(curve)
    assert found is not None
    assert found.x == 1_000
    (straight,) = curves_of(STORM, storms("zookeeper", {100: (1.0,), 1_000: (10.0,), 10_000: (100.0,)}))
    assert bend(straight) is None
    assert sentences_of(STORM, [curve]) == [
        "ZooKeeper: 1 s at 100 topics, 11 s at 10,000 topics; it grows faster from 1,000 topics on."
    ]
    assert sentences_of(STORM, [straight]) == [
        "ZooKeeper: 1 s at 100 topics, 100 s at 10,000 topics; ten times the size is 10 times the value, "
        "without a bend."
    ]


@pytest.mark.parametrize(
    ("by_topics", "said"),
    [
        (
            {100: (4.0,), 1_000: (5.6,), 10_000: (3.0,)},
            "between 3 s and 5.60 s, without a direction",
        ),
        ({100: (9.0,), 1_000: (8.5,), 10_000: (2.0,)}, "it falls faster from 1,000 topics on"),
        ({100: (9.0,), 1_000: (3.0,), 10_000: (2.9,)}, "it falls slower from 1,000"),
        # The values of the rounds at the first two sizes overlap, so no bend is reported.
        (
            {100: (1.0, 3.0), 1_000: (2.0, 3.0), 10_000: (30.0, 31.0)},
            "ten times the size is 3.9 times the value",
        ),
    ],
    ids=["no direction", "falls faster", "falls slower", "overlapping rounds"],
)
def test_only_a_clear_course_is_said(by_topics: dict[int, Sequence[float]], said: str) -> None:
    (sentence,) = sentences_of(STORM, curves_of(STORM, storms("raft", by_topics)))
    assert said in sentence


def test_curves_that_cross_twice_contradict_no_sentence() -> None:
    rows = storms("independent", {100: (1.0,), 1_000: (5.0,), 10_000: (6.0,)})
    rows += storms("raft", {100: (2.0,), 1_000: (3.0,), 10_000: (9.0,)})
    said = sentences_of(STORM, curves_of(STORM, rows))
    assert said[2:] == ["The curves of independent mode and raft mode cross 2 times."]


def test_figure_that_is_a_time_of_the_plan_says_so() -> None:
    point = msgspec.structs.replace(storm(1_000), spread=True)
    rows = [row(point, "independent", number, spread_right_s=24.6) for number in (1, 2)]
    rows += [row(point, "raft", number, spread_right_s=value) for number, value in ((1, 1.5), (2, 24.6))]
    (table,) = tables_of("size", rows)
    assert table.rows == [[point.name, "24.6 s, set by the plan", "13.1 s (1.50 s to 24.6 s)"]]


def test_curves_cross_where_the_rounds_of_both_lie_apart_on_both_sides() -> None:
    rows = storms("independent", {100: (1.0, 1.2), 1_000: (2.0, 2.5), 10_000: (9.0, 9.5)})
    rows += storms("zookeeper", {100: (3.0, 3.1), 1_000: (2.2, 3.3), 10_000: (4.0, 4.1)})
    (crossing,) = crossings(curves_of(STORM, rows))
    assert (crossing.first, crossing.second) == ("independent", "zookeeper")
    assert (crossing.before.x, crossing.after.x) == (100, 10_000)
    assert (
        "Independent mode is below ZooKeeper up to 100 topics, and above it from 10,000 topics on."
        in sentences_of(STORM, curves_of(STORM, rows))
    )


def test_distance_says_of_each_two_designs_whether_one_is_lower() -> None:
    rows = [row(far(ms), "independent", change_leader_ms=1.0) for ms in (0.0, 20.0)]
    rows += [row(far(ms), "raft", change_leader_ms=2.0 + ms) for ms in (0.0, 20.0)]
    rows += [
        row(far(ms), "zookeeper", number, change_leader_ms=1.5 * ms + 2 + number)
        for ms in (0.0, 20.0)
        for number in (1, 3)
    ]
    assert sentences_of(CHANGE, curves_of(CHANGE, rows)) == [
        "Independent mode: 1 ms at a round trip of 0 ms, 1 ms at a round trip of 20 ms; it hardly changes.",
        "Raft mode: 2 ms at a round trip of 0 ms, 22 ms at a round trip of 20 ms; +1 ms for each ms more.",
        "ZooKeeper: 4 ms at a round trip of 0 ms, 34 ms at a round trip of 20 ms; +1.50 ms for each ms more.",
        # no sentence compares independent mode, because its servers have no links to each other
        "Raft mode is below ZooKeeper at every distance.",
    ]


def test_failover_that_never_happens_counts_against_the_design() -> None:
    """Remove raft mode's failover at 20 ms from two of three published rounds, as if it had not happened."""

    def broken(each: Row) -> Row:
        if (each.design, each.point.name) != ("raft", "round trip 20 ms") or each.round == 1:
            return each
        return msgspec.structs.replace(
            each, figures={name: value for name, value in each.figures.items() if name != "failover_s"}
        )

    rows = read_rows(PUBLISHED / "distance")
    before = sentences_of(FAILOVER, curves_of(FAILOVER, rows))
    assert "Raft mode is below ZooKeeper at every distance." in before
    curves = curves_of(FAILOVER, [broken(each) for each in rows])
    after = sentences_of(FAILOVER, curves)
    assert "Raft mode: not within 40 s in 2 of 3 rounds at a round trip of 20 ms." in after
    assert not any("at every distance" in sentence for sentence in after)
    (raft,) = (curve for curve in curves if curve.design == "raft")
    assert [dot.x for dot in raft.dots if math.isnan(dot.median)] == [20.0], "most rounds have no figure"
    assert not any(20.0 in (crossing.before.x, crossing.after.x) for crossing in crossings(curves))


def test_table_says_in_how_many_rounds_a_failover_did_not_happen() -> None:
    point = far(5.0, loss=0.01)
    rows = [row(point, "raft", 1, failover_s=0.5), row(point, "raft", 2), row(point, "zookeeper", 1)]
    (table,) = tables_of("distance", rows)
    assert table.rows == [
        [
            "every server shows a change after",
            "not within 20 s in 2 of 2 rounds",
            "not within 20 s in 1 of 1 round",
        ],
        [
            "the leader (in independent mode one server) is killed: the next change is accepted after",
            "500 ms; not within 40 s in 1 of 2 rounds",
            "not within 40 s in 1 of 1 round",
        ],
    ]


def test_overlapping_rounds_are_no_crossing() -> None:
    rows = storms("independent", {100: (1.0, 3.0), 1_000: (2.0, 5.0)})
    rows += storms("raft", {100: (2.0, 4.0), 1_000: (1.0, 4.0)})
    assert crossings(curves_of(STORM, rows)) == []


def test_two_more_rounds_are_made_at_the_points_between_which_curves_cross() -> None:
    rows = storms("independent", {100: (1.0, 1.1, 1.2), 10_000: (9.0, 9.1, 9.2)})
    rows += storms("zookeeper", {100: (3.0, 3.1, 3.2), 10_000: (4.0, 4.1, 4.2)})
    turns = turns_at_crossings(rows, ["independent", "zookeeper"])
    assert {(turn.point.topics, turn.design, turn.round) for turn in turns} == {
        (topics, design, number)
        for topics in (100, 10_000)
        for design in ("independent", "zookeeper")
        for number in (4, 5)
    }
    assert turns_at_crossings([each for each in rows if each.round < 3], ["independent"]) == []


def test_failure_is_said_with_its_size_and_drawn_where_there_is_no_figure() -> None:
    rows = storms("raft", {100: (1.0,), 1_000: (2.0,)})
    rows += [row(storm(10_000), "raft", number, failed="Unhealthy: no leader") for number in (1, 2)]
    curves = curves_of(STORM, rows)
    assert sentences_of(STORM, curves)[-1] == "Raft mode failed 2 times in 2 rounds at 10,000 topics."
    drawn = picture(STORM, curves)
    assert len(drawn.lines[0].failures) == 1
    assert len(drawn.lines[0].marks) == 2


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.name)
def test_every_picture_keeps_its_marks_inside(question: Question) -> None:
    points = [point for point in points_of(question.part, links="none") if question.chosen(point)]
    assert len(points) >= 3
    rows = [
        msgspec.structs.replace(row(point, design), figures={question.key: 10.0**power})
        for power, point in enumerate(points)
        for design in ("independent", "raft")
    ]
    drawn = picture(question, curves_of(question, rows))
    for line in drawn.lines:
        for mark in line.marks:
            assert LEFT <= mark.x <= WIDTH - RIGHT
            assert TOP <= mark.high <= mark.y <= mark.low <= BOTTOM
    assert drawn.y_ticks
    assert all(math.isfinite(tick.at) for tick in [*drawn.x_ticks, *drawn.y_ticks])


def test_picture_of_zeros_has_an_axis() -> None:
    rows = [row(far(ms), "raft", change_leader_ms=0.0) for ms in (0.0, 5.0)]
    assert picture(CHANGE, curves_of(CHANGE, rows)).lines[0].marks


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        *(
            (0.5, "s", "500 ms"),
            (12.34, "s", "12.3 s"),
            (1234.0, "ms", "1.23 s"),
        ),
        *((12_345.0, "MB", "12.3 GB"), (1234.6, "s", "1,235 s")),
    ],
)
def test_value_is_written_with_its_unit(value: float, unit: str, text: str) -> None:
    assert written(value, unit) == text


# -- rows of results, and the tables and the page made from them ---------------------------------------------


def order(part: Any = "size", **more: Any) -> Order:
    return Order(
        part=part,
        designs=["independent", "raft"],
        rounds=3,
        links=more.pop("links", "none"),
        small=False,
        seed=1,
        command=["mqbench", "scale"],
        machine=Machine(cpu="a <CPU>", cores=2, memory_bytes=1, system="Linux"),
        versions={},
        commit="abc",
        started_at="2026-11-26T22:00:00Z",
        **more,
    )


def test_rows_are_kept_and_a_line_that_a_kill_has_cut_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "out" / "scale-size-1"
    begin(folder, order())
    first, second = storms("raft", {100: (1.0, 2.0)})
    add_row(folder, first)
    with (folder / "rows.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(second)[:-10])
    assert read_rows(folder) == [first]
    add_row(folder, second)
    assert read_rows(folder) == [first, second]
    assert read_order(folder) == order()
    assert series_below(tmp_path) == [folder]
    with pytest.raises(ValueError, match=r"/out: it holds no series of mqbench scale"):
        read_order(tmp_path / "out")


def several(servers: int) -> Point:
    return Point(part="number", kind="number", name=f"{servers} servers", servers=servers)


def table_of(title: str, rows: Sequence[Row]) -> list[list[str]]:
    (found,) = (table.rows for table in tables_of("number", rows) if table.title.startswith(title))
    return found


def test_rounds_without_an_accepted_change_are_counted_beside_the_median_of_the_others() -> None:
    figures: tuple[dict[str, float], ...] = (
        {"down_1_change_s": 0.6},
        {},
        {"down_1_change_s": 0.8},
        {"down_1_change_s": 0.7},
    )
    rows = [
        msgspec.structs.replace(
            row(several(3), "raft", number), figures={**each, "down_with_changes": float(len(each))}
        )
        for number, each in enumerate(figures, start=1)
    ]
    assert table_of("The leader is killed", rows) == [
        ["1 of 3 down", "700 ms (600 ms to 800 ms); none within 12 s in 1 of 4 rounds"],
        ["2 of 3 down", "none within 8 s"],
    ]
    failed = [row(several(3), "raft", failed="Unhealthy: no leader")]
    assert table_of("The leader is killed", failed)[0] == ["1 of 3 down", "failed"]


def test_servers_that_may_be_down_stand_in_a_table_by_number_of_servers() -> None:
    rows = [
        row(several(servers), "raft", down_with_changes=servers // 2, down_with_answers=servers - 1)
        for servers in (3, 1, 7, 5)
    ]
    assert table_of("Servers that may be down while changes", rows) == [
        *(["3 servers", "1"], ["5 servers", "2"], ["7 servers", "3"])
    ]
    assert [cells[1] for cells in table_of("Servers that may be down while all others", rows)] == [
        *("2", "4", "6")
    ]
    assert not [question for question in QUESTIONS if question.key.startswith("down_")]


def test_gap_of_a_rolling_restart_that_only_returning_brokers_end_is_set_by_the_plan() -> None:
    rows = [
        row(several(3), "independent", rolling_read_gap_s=21.5),
        row(several(3), "raft", rolling_read_gap_s=0.2, rolling_leader_changes=1.0),
    ]
    assert table_of("One server restarts after the other: the longest time without a right", rows) == [
        ["3 servers", "21.5 s, set by the plan", "200 ms"]
    ]
    assert table_of("One server restarts after the other, the leader last", rows) == [["3 servers", "-", "1"]]


def test_failed_messages_stand_beside_the_number_of_sent_messages() -> None:
    away = Point(part="number", kind="away", name="all servers away for 120 s", away_s=120.0)
    figures = {"away_sent": 2400.0, "away_failed": 3.0, "away_right_s": 22.0, "away_failed_after": 0.0}
    rows = table_of(
        "All servers are away", [msgspec.structs.replace(row(away, "independent"), figures=figures)]
    )
    assert rows[0] == ["of 2,400 messages meanwhile failed", "3"]
    assert "independent mode waits for the next registration of a 30 s period" in rows[1][0]
    assert rows[2] == ["of the messages from the start until 2 s after that, failed", "0"]


def test_page_holds_each_part_its_tables_failures_and_points_that_were_left_out(tmp_path: Path) -> None:
    size = storms("independent", {100: (1.0, 1.5), 10_000: (2.0,)})
    size.append(row(storm(10_000), "raft", failed="Unhealthy: no <leader>\nlog"))
    left_out = msgspec.structs.replace(
        size[0], round=3, figures={}, left_out="it takes 9 s, and 3 s were left"
    )
    number = Point(part="number", kind="number", name="3 servers", servers=3)
    numbers = [row(number, "raft", down_1_change_s=0.6, down_with_changes=1.0, change_leader_ms=2.0)]
    numbers.append(
        row(number, "independent", down_1_change_s=0.1, down_2_change_s=0.1, down_with_changes=2.0)
    )
    distance = [row(far(ms), "raft", change_leader_ms=2 + ms) for ms in (0.0, 5.0, 20.0)]
    series = [
        (order("distance", links="kernel"), distance),
        (order("size"), [*size, left_out]),
        (order("number"), numbers),
    ]
    page = page_of(series)
    assert re.findall(r'<section id="(\w+)"', page) == ["size", "distance", "number", "method", "limits"]
    assert "raft mode, 10 brokers with 10,000 topics each, round 1: Unhealthy: no &lt;leader&gt;</li>" in page
    assert "independent mode, 10 brokers with 100 topics each, round 3: it takes 9 s" in page
    assert "passed a TUN device that held them back" in page
    assert "a &lt;CPU&gt;" in page
    assert "://" not in page.replace("http://www.w3.org", ""), "self-contained"
    assert ["2 of 3 down", "100 ms", "none within 8 s"] in tables_of("number", numbers)[0].rows
    write_report(tmp_path, series)
    with (tmp_path / "scale-curves.csv").open() as file:
        lines = list(csv.DictReader(file))
    found = next(line for line in lines if line["question"] == "storm-over-topics" and line["size"] == "100")
    assert (found["design"], found["median"], found["rounds"]) == ("independent", "1.25", "2")
    assert (
        "size,10 brokers with 100 topics each,independent,2,none,0.5,restart_right_s,1.5\n"
        in (tmp_path / "scale-figures.csv").read_text()
    )


def test_page_says_how_much_other_programs_used_where_the_rows_have_it() -> None:
    rows = [
        row(several(3), "raft", change_other_programs_cores=0.1, kills_other_programs_cores=0.5),
        row(several(3), "raft", 2, kills_other_programs_cores=0.2),
    ]
    said = "other programs used 0.20 cores in the median phase, and more than 0.25 in 1 of 3."
    assert said in page_of([(order("number"), rows)])
    without = [row(several(3), "raft", down_1_change_s=0.6)]
    assert "other programs used" not in page_of([(order("number"), without)])


def test_page_names_all_commits_with_which_a_series_was_measured() -> None:
    begun = row(several(3), "raft", down_1_change_s=0.6)
    resumed = msgspec.structs.replace(begun, round=2, commit="def")
    assert "2026-11-26, commits abc and def, a &lt;CPU&gt;" in page_of([(order("number"), [begun, resumed])])
    assert "2026-11-26, commit abc, a &lt;CPU&gt;" in page_of([(order("number"), [begun])])
    assert "2026-11-26, commit def, a &lt;CPU&gt;" in page_of([(order("number"), [resumed])])


def test_titles_of_the_part_distance_are_true_of_independent_mode_which_has_no_leader() -> None:
    rows = [
        row(far(5.0, loss=loss), design, change_leader_ms=1.0, change_follower_ms=1.0, failover_s=0.1)
        for design in ("independent", "raft")
        for loss in (0.0, 0.01)
    ]
    titles = [question.title for question in QUESTIONS if question.part == "distance"]
    titles += [cells[0] for table in tables_of("distance", rows) for cells in table.rows]
    led = [title for title in titles if re.search("leader|follower", title)]
    assert len(led) == 6
    assert [title for title in led if "in independent mode" not in title] == []
