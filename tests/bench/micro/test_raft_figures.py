"""The raft benchmark computes its tables from samples, and says which targets are reached or missed."""

from typing import Any

import pytest

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
        *(sample("routekeeper-fsync", "failover", ms=ms) for ms in (100.0, 200.0, 1600.0)),
        sample("routekeeper-fsync", "reads", stale_per_s=1000.0, linearizable_per_s=790.0),
        sample(
            "routekeeper-fsync",
            "idle",
            cpu_share=[0.01, 0.03, 0.01],
            members_kb_per_s=[9.0, 30.0, 10.5],
            roles=["follower", "leader", "follower"],
        ),
        sample("routekeeper-fsync", "elections", load="idle", minutes=20.0, terms=0, leaders=0),
        sample("routekeeper-fsync", "elections", load="busy", minutes=20.0, terms=1, leaders=1),
    ]
    assert [line.split()[0] for line in targets(samples)] == [
        "MISSED",  # p50 latency of an acknowledgement
        "reached",  # more writes/s than ZooKeeper
        "MISSED",  # twice as many writes/s as ZooKeeper
        "reached",  # latency until a change is visible
        "reached",  # median time of a failover
        "MISSED",  # longest time of a failover
        "MISSED",  # rate of linearizable reads
        "MISSED",  # CPU time
        "MISSED",  # network bytes of the second follower
        "reached",
        "MISSED",
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


def test_ends_of_leaders_stand_beside_the_silence_that_is_borne() -> None:
    samples: list[dict[str, Any]] = [
        {"part": "version", "system": "zookeeper", "version": "3.9.5", "borne_ms": (800, 800)},
        {"part": "version", "system": "routekeeper-fsync", "version": "0.1.0", "borne_ms": (600, 1200)},
        *(sample("zookeeper", "failover", ms=ms, timers="equal") for ms in (900.0, 700.0, 800.0)),
        *(sample("routekeeper-fsync", "failover-stop", ms=ms, timers="equal") for ms in (1200.0, 1000.0)),
    ]
    lines = list(tables(samples))
    assert lines[0].strip() == "leader killed (SIGKILL) to the next acknowledged write, timers: equal"
    assert lines[2].split() == ["zookeeper", "800", "3", "800", "700", "900"]
    assert lines[3].strip() == "leader stopped (SIGSTOP) to the next acknowledged write, timers: equal"
    assert lines[5].split() == ["routekeeper-fsync", "600", "to", "1,200", "2", "1,000", "1,000", "1,200"]


def test_stops_do_not_count_as_kills_towards_a_target() -> None:
    stopped = sample("routekeeper-fsync", "failover-stop", ms=5000.0, timers="defaults")
    assert not list(targets([stopped]))


def test_watchers_are_told_apart_by_number_and_cpu_is_by_change() -> None:
    samples = [
        sample(one, part, watchers=watchers, half_ms_p50=1.0, ack_ms_p50=0.5, writes=10, server_cpu_s=0.2)
        for part, watchers, one in (
            ("watch", 3, "zookeeper"),
            ("watch-many", 300, "zookeeper"),
            ("watch-many", 300, "routekeeper-fsync"),
        )
    ]
    lines = list(tables(samples))
    assert [line.split()[0] for line in lines if "watchers told" in line] == ["3", "300"]
    assert [line.split()[0] for line in lines[-2:]] == ["routekeeper-fsync", "zookeeper"]
    assert lines[-1].split()[-1] == "20.0"


def test_polling_is_said_in_seconds() -> None:
    polled = sample("routekeeper-fsync", "poll", watchers=300, ms_p50=15_040.0, ms_max=29_960.0)
    [line] = tables([polled])
    assert line.endswith("one change seen after 15.0 s (p50), 30.0 s (last)")


@pytest.mark.parametrize("changed", [False, True])
def test_idle_members_are_added_up_and_what_was_not_counted_is_a_dash(changed: bool) -> None:
    idle = sample(
        "zookeeper",
        "idle",
        leader_changed=changed,
        timers="equal",
        brokers=300,
        seconds=20.0,
        heartbeats=150,
        roles=["leader", "follower", "follower"],
        cpu_share=[0.03, 0.01, 0.01],
        resident_mb=[80.0, 70.0, 70.0],
        resident_mb_before=[30.0, 30.0, 30.0],
    )
    lines = list(tables([idle]))
    head, _, warning = lines[0].partition(", AND ")
    assert head.strip() == "idle, zookeeper, timers: equal: 300 brokers of 10 topics, 20 s, 7.5 heartbeats/s"
    assert bool(warning) == changed
    assert lines[-1].split() == ["all", "5.00%", "220", "90", "-", "-"]
    assert not list(targets([idle]))  # these samples are of ZooKeeper, and only RouteKeeper has targets
