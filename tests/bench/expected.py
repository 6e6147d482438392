"""The duration of a whole comparison, as ``mqbench`` announces it before the first run."""

from routekeeper.bench.schedule import REPORT_S, Comparison, blocks_of, expected_s


def expected_minutes(comparison: Comparison) -> float:
    turns = [turn for block in blocks_of(comparison.plan, comparison.seed) for turn in block]
    return (expected_s(comparison.plan, turns, done_s=[]) + REPORT_S) / 60
