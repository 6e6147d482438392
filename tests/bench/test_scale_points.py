"""``mqbench scale`` measures the right points in the right order, and names the points it leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

from routekeeper.bench.events import Operation
from routekeeper.bench.runfolder import Arm
from routekeeper.bench.scale.order import read_rows
from routekeeper.bench.scale.points import (
    PARTS,
    SERIES_S,
    Part,
    Point,
    Row,
    Turn,
    designs_for,
    missing_turns,
    points_of,
    turns_of,
)
from routekeeper.bench.scale.probes import longest_gap
from routekeeper.bench.scale.series import DESIGNS, Series, event_of, order_of

POINT = Point(part="size", kind="storm", name="a point")


def row(turn: Turn, *, failed: str | None = None, seconds: float = 10.0) -> Row:
    return Row(
        point=turn.point,
        design=turn.design,
        round=turn.round,
        links="none",
        seconds=seconds,
        load=0.0,
        failed=failed,
    )


@pytest.mark.parametrize("part", PARTS)
def test_each_part_ends_within_75_minutes_with_all_its_rounds_on_two_idle_cores(part: Part) -> None:
    whole = order_of(part, designs=DESIGNS, seed=1, command=[], limit_s=1e9)
    print(f"{part}: {Series(Path('none'), whole, print).expected_s() / 60:.0f} minutes")
    assert Series(Path("none"), whole, print).expected_s() < SERIES_S


@pytest.mark.parametrize("part", PARTS)
def test_guide_names_the_planned_minutes_of_each_part(part: Part) -> None:
    whole = order_of(part, designs=DESIGNS, seed=1, command=[])
    guide = (Path(__file__).parents[2] / "docs" / "benchmark-guide.md").read_text()
    assert (
        f"`--part {part}` takes about {Series(Path('none'), whole, print).expected_s() / 60:.0f} minutes"
        in guide
    )


def test_size_varies_one_thing_at_a_time_and_has_the_corners() -> None:
    storms = {
        (point.brokers, point.topics) for point in points_of("size", links="none") if point.kind == "storm"
    }
    assert {(brokers, 1_000) for brokers in (3, 10, 30, 100)} <= storms
    assert {(10, topics) for topics in (100, 1_000, 10_000)} <= storms
    assert {(3, 100), (3, 10_000), (100, 100), (100, 10_000)} <= storms
    herds = {point.clients for point in points_of("size", links="none") if point.kind == "herd"}
    assert (min(herds), max(herds)) == (8, 2_000)


def test_loss_is_measured_only_where_the_kernel_makes_it() -> None:
    def lossy(links: str) -> list[float]:
        points = points_of("distance", links="kernel" if links == "kernel" else "proxy")
        return [point.loss for point in points if point.loss]

    assert lossy("proxy") == []
    assert lossy("kernel") == [0.01]


def test_names_of_points_are_theirs_alone() -> None:
    for part in PARTS:
        names = [point.name for point in points_of(part, links="kernel")]
        assert len(set(names)) == len(names)


def test_every_round_has_every_design_once_and_none_always_comes_first() -> None:
    turns = turns_of([POINT], ["independent", "raft", "zookeeper"], 3)
    assert len({(turn.design, turn.round) for turn in turns}) == 9
    assert {turns[place].design for place in (0, 3, 6)} == {"independent", "raft", "zookeeper"}


def test_points_say_nothing_of_designs_whose_servers_do_not_talk_or_store() -> None:
    slow = next(point for point in points_of("distance", links="proxy") if point.slow_ms)
    assert designs_for(slow, DESIGNS) == ["raft", "zookeeper"]
    assert designs_for(POINT, DESIGNS) == list(DESIGNS)


def test_finished_turns_and_designs_that_failed_twice_are_not_measured_again() -> None:
    designs: list[Arm] = ["independent", "raft"]
    turns = turns_of([POINT], designs, 3)
    by_design = {design: [turn for turn in turns if turn.design == design] for design in designs}
    rows = [row(by_design["independent"][0])]
    rows += [row(turn, failed="no leader") for turn in by_design["raft"][:2]]
    assert missing_turns(turns, rows) == by_design["independent"][1:]


def test_turn_for_which_no_time_is_left_is_left_out_by_name(tmp_path: Path) -> None:
    said: list[str] = []
    order = order_of("number", designs=["raft"], rounds=1, small=True, seed=1, command=[], limit_s=0.5)
    Series(tmp_path, order, said.append).run()
    rows = read_rows(tmp_path)
    assert len(rows) == len(said) == 3
    assert all(row.left_out is not None and row.left_out.startswith("it takes ") for row in rows)
    assert said[0] == "3 servers, raft, round 1: left out, no time is left"


def test_row_of_a_storm_is_an_operation_of_the_comparison() -> None:
    query = {"kind": "query", "server": 1, "sent_ns": 5, "wait_ns": 7, "own_ns": 2, "outcome": "wrong"}
    assert event_of(query) == Operation(
        op="lookup", user=1, target=1, due_ns=5, sent_ns=5, done_ns=12, outcome="ok", remark="wrong own_ns=2"
    )
    sent = {"kind": "registration", "broker": 3, "server": 0, "sent_ns": 1, "ended_ns": 4, "outcome": "lost"}
    event = event_of(sent)
    assert isinstance(event, Operation)
    assert (event.op, event.user, event.outcome, event.done_ns) == ("announce", 103, "unknown", 4)
    assert event_of({"kind": "check"}) is None


def test_longest_gap_counts_the_beginning_and_the_end() -> None:
    assert longest_gap([2.0, 3.0], 0.0, 4.0) == 2.0
    assert longest_gap([1.0], 0.0, 9.0) == 8.0
    assert longest_gap([], 1.0, 4.0) == 3.0
