"""The raft benchmark computes its tables from samples, and says which targets are reached or missed."""

from typing import Any

from routekeeper.bench.figures import paired, percentile, spread, table
from routekeeper.bench.micro.raft.report import tables, targets


def sample(system: str, part: str, **figures: Any) -> dict[str, Any]:
    base = {"round": 0, "ms_p50": 1.0, "ms_p99": 2.0, "per_s": 1000.0, "answered": 1000}
    return (
        {"part": part, "system": system, "server_cpu_s": [0.1, 0.2], "generator_cpu_s": 0.1} | base | figures
    )


def test_percentile_is_a_value_that_was_measured() -> None:
    assert [percentile([1, 2, 3, 4], share) for share in (0.01, 0.5, 0.51, 0.99, 1.0)] == [1, 2, 3, 4, 4]


def test_spread_shows_median_and_extremes() -> None:
    assert [spread(values, ".1f") for values in ([], [2.0], [3.0, 1.0, 2.0])] == [
        "-",
        "2.0",
        "2.0 (1.0..3.0)",
    ]


def test_paired_ratio_is_taken_round_by_round() -> None:
    assert paired([2.0, 20.0, 9.0], [1.0, 10.0, 3.0]) == 2.0
    assert paired([], []) is None


def test_table_lines_up() -> None:
    assert table(("a", "n"), [("bb", "1"), ("c", "100")]) == ["a     n", "bb    1", "c   100"]


def test_missed_and_reached_targets_are_told_apart() -> None:
    samples = [
        sample("routekeeper-fsync", "ack", ms_p50=0.9),
        sample("zookeeper", "ack", ms_p50=0.8),
        sample("routekeeper-fsync", "writes", per_s=9000.0),
        sample("zookeeper", "writes", per_s=8000.0),
        sample("routekeeper-fsync", "visible", ms_p50=1.0),
        sample("zookeeper", "visible", ms_p50=1.5),
        sample("routekeeper-fsync", "reads", stale_per_s=1000.0, linearizable_per_s=790.0),
    ]
    assert [line.split()[0] for line in targets(samples)] == [
        "MISSED",  # p50 latency of an acknowledgement
        "reached",  # more writes/s than ZooKeeper
        "MISSED",  # twice as many writes/s as ZooKeeper
        "reached",  # latency until a change is visible
        "MISSED",  # rate of linearizable reads
    ]


def test_tables_hold_only_what_was_measured() -> None:
    lines = list(tables([sample("zookeeper", "writes"), sample("routekeeper-fsync", "writes", per_s=500.0)]))
    assert lines[0].strip() == "64 connections, one in flight on each"
    assert [line.split()[0] for line in lines[-2:]] == ["routekeeper-fsync", "zookeeper"]
    assert lines[-1].endswith(" 0.50")
    assert not list(tables([]))
    assert not list(targets([]))


def test_ratios_pair_only_rounds_that_both_have() -> None:
    samples = [sample("routekeeper-fsync", "writes", round=number, per_s=10.0**number) for number in (1, 2)]
    samples += [sample("zookeeper", "writes", round=number, per_s=10.0**number * 4) for number in (0, 2)]
    assert list(tables(samples))[-1].endswith(" 0.25")


def test_interval_of_another_tree_leaves_out_what_chance_explains() -> None:
    ratios = [0.5, *(1.0 + number / 100 for number in range(14)), 9.0]
    samples = [sample("routekeeper-fsync", "writes", round=n, per_s=ratio) for n, ratio in enumerate(ratios)]
    samples += [sample("other tree", "writes", round=number, per_s=1.0) for number in range(len(ratios))]
    assert list(tables(samples))[-1].endswith(" 1.065 (1.030 to 1.110, 16 rounds)")
