"""Each transform on a few literal rows."""

from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.testing import assertDataFrameEqual

from bench.report import schemas
from bench.report import transforms as t

pytestmark = [pytest.mark.spark, pytest.mark.timeout(500)]  # a JVM on a busy machine

S = 1_000_000_000
MEASURED = "run string, file string, good boolean, " + schemas.OPS_SCHEMA


def runs(spark: SparkSession) -> DataFrame:
    """One run that measured from 100 s to 130 s and settles for 2 s."""
    return spark.createDataFrame([("r", 2, 100 * S, 130 * S, 2 * S)], schemas.RUNS_SCHEMA)


def windows(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame(list(rows), schemas.WINDOWS_SCHEMA)


def raw_op(
    due_s: float, *, op: str = "route_wire", target: int = 0, took_s: float = 0.001, good: bool = True
) -> Row:
    due = 100 * S + round(due_s * S)
    return Row(
        run="r",
        file="f",
        good=good,
        op=op,
        worker=0,
        target=target,
        due_ns=due,
        sent_ns=due,
        done_ns=due + round(took_s * S),
        outcome="ok",
        code=None,
        remark=None,
        topic=None,
        version=None,
        change=None,
        attempts=None,
    )


def op(due_ns: int, outcome: str = "ok", **fields: Any) -> Row:
    """One row of ``OPERATIONS_SCHEMA``."""
    values: dict[str, Any] = {
        "run": "r",
        "op": "send",
        "target": 0,
        "due_ns": due_ns,
        "sent_ns": due_ns,
        "done_ns": due_ns + 10,
        "outcome": outcome,
        "code": None,
        "remark": None,
        "attempts": 1,
        "fault": None,
        "steady": True,
        "struck": False,
    }
    return Row(**(values | fields))


def ops(spark: SparkSession, *rows: Row) -> DataFrame:
    return spark.createDataFrame(list(rows), schemas.OPERATIONS_SCHEMA)


def test_lines_that_are_damaged_or_lack_a_needed_column_are_marked_and_counted(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [
            ("r", "a", 1, 2, None),
            ("r", "a", None, 2, "{cu"),
            ("r", "a", None, 2, None),
            ("r", "b", 1, None, None),
        ],
        "run string, file string, needed int, other int, _bad string",
    )
    checked = t.checked(frame, ("needed",))
    assert checked.columns == ["run", "file", "needed", "other", "good"]
    assertDataFrameEqual(
        t.line_quality(checked),
        [Row(run="r", file="a", lines=3, bad=2), Row(run="r", file="b", lines=1, bad=0)],
    )


def test_faults_are_numbered_by_time_and_end_where_the_next_one_begins(spark: SparkSession) -> None:
    faults = spark.createDataFrame(
        [
            ("r", "kill_all", [0, 1], 120 * S, None, None),
            ("r", "kill_one", [1], 105 * S, 108 * S, "leader"),
            ("r", "kill_one", [0], 110 * S, 119 * S, None),
        ],
        "run string, kind string, targets array<int>, begin_ns bigint, end_ns bigint, role string",
    )
    expected = [
        ("r", 1, "kill_one", "leader", [1], 5 * S, 8 * S, 10 * S, 10 * S),
        ("r", 2, "kill_one", None, [0], 10 * S, 19 * S, 20 * S, 20 * S),
        ("r", 3, "kill_all", None, [0, 1], 20 * S, None, 30 * S, 30 * S),
    ]
    assertDataFrameEqual(t.fault_windows(faults, runs(spark)), windows(spark, *expected), ignoreNullable=True)


def test_operations_outside_of_measuring_and_damaged_ones_are_dropped(spark: SparkSession) -> None:
    rows = [raw_op(-0.001), raw_op(0), raw_op(29.999), raw_op(30), raw_op(3, good=False)]
    found = t.operations(spark.createDataFrame(rows, MEASURED), runs(spark), windows(spark)).collect()
    assert sorted(row.due_ns for row in found) == [0, round(29.999 * S)]
    assert {(row.fault, row.steady, row.struck, row.attempts) for row in found} == {(None, True, False, 1)}


def test_an_operation_belongs_to_the_last_fault_that_began_before_it_was_done(spark: SparkSession) -> None:
    rows = [
        raw_op(4.9),
        raw_op(4.9999, target=1),
        raw_op(6, target=0),
        raw_op(6, target=1, op="send"),
        raw_op(9.9),
        raw_op(10),
        raw_op(19, took_s=3),
    ]
    two = windows(
        spark,
        ("r", 1, "kill_one", "leader", [1], 5 * S, 8 * S, 10 * S, 20 * S),
        ("r", 2, "kill_all", None, [0, 1], 20 * S, 21 * S, 23 * S, 30 * S),
    )
    found = t.operations(spark.createDataFrame(rows, MEASURED), runs(spark), two).collect()
    said = {(row.due_ns / S, row.op): (row.fault, row.steady, row.struck) for row in found}
    assert said == {
        (4.9, "route_wire"): (None, True, False),
        (4.9999, "route_wire"): (1, False, True),  # in flight at the kill, to the killed one
        (6.0, "route_wire"): (1, False, False),
        (6.0, "send"): (1, False, False),  # target 1 is a broker here
        (9.9, "route_wire"): (1, False, False),
        (10.0, "route_wire"): (1, True, False),  # settled
        (19.0, "route_wire"): (2, False, True),
    }


def test_no_operations_give_empty_tables_with_their_columns(spark: SparkSession) -> None:
    nothing = t.operations(spark.createDataFrame([], MEASURED), runs(spark), windows(spark))
    assert (
        nothing.schema.simpleString()
        == spark.createDataFrame([], schemas.OPERATIONS_SCHEMA).schema.simpleString()
    )
    histogram = t.latency_histogram(nothing)
    for table in (
        histogram,
        t.percentiles(histogram),
        t.outcomes(nothing),
        t.per_second(nothing),
        t.outages(nothing),
    ):
        assert table.collect() == []


def test_histogram_counts_only_steady_successes_and_never_goes_below_zero(spark: SparkSession) -> None:
    rows = [op(0), op(0), op(0, "error"), op(0, steady=False, fault=1), op(50, sent_ns=40, done_ns=45)]
    found = t.latency_histogram(ops(spark, *rows))
    said = {(row.measure, row.value_ns): row.n for row in found.collect()}
    assert said == {
        ("latency", 10): 2,
        ("service", 10): 2,
        ("lateness", 0): 3,  # twice 0, and once -10, a clock read too early
        ("latency", 0): 1,
        ("service", 5): 1,
    }


def test_percentiles_from_buckets_are_within_the_promised_error_of_exact_ones(spark: SparkSession) -> None:
    rng = np.random.default_rng(5)
    shapes = {
        "a": rng.lognormal(13, 2, 3000),
        "b": np.concatenate([rng.normal(1e6, 1e4, 2900), rng.uniform(1e9, 2e9, 100)]),
        "c": np.full(50, 2**40 - 1),
        "d": np.array([12345.0]),
        "e": 2.0 ** rng.integers(0, 45, 500),
    }
    exact = {name: np.abs(values).astype(np.int64) for name, values in shapes.items()}
    rows = [op(0, op=name, done_ns=int(value)) for name, values in exact.items() for value in values]
    table = t.percentiles(t.latency_histogram(ops(spark, *rows))).where("measure = 'latency'").collect()
    assert {row.op: row.n for row in table} == {name: len(values) for name, values in exact.items()}
    for row in table:
        for quantile, value in zip(
            t.QUANTILES, (row.p50_ns, row.p90_ns, row.p99_ns, row.p999_ns), strict=True
        ):
            assert value == pytest.approx(np.quantile(exact[row.op], quantile), rel=1 / 2**t.HISTOGRAM_BITS)


def test_outcomes_and_seconds_count_every_operation_once(spark: SparkSession) -> None:
    rows = [op(0), op(999_999_999, "error"), op(S, "unknown", done_ns=3 * S), op(S), op(S, op="register")]
    frame = ops(spark, *rows)
    assertDataFrameEqual(
        t.per_second(frame),
        [
            Row(run="r", op="send", second=0, n=2, ok=1),
            Row(run="r", op="send", second=1, n=2, ok=1),
            Row(run="r", op="register", second=1, n=1, ok=1),
        ],
    )
    counted = {(row.op, row.outcome): (row.n, row.slowest_ns) for row in t.outcomes(frame).collect()}
    assert counted == {
        ("send", "ok"): (2, 10),
        ("send", "error"): (1, 10),
        ("send", "unknown"): (1, 2 * S),
        ("register", "ok"): (1, 10),
    }


def test_failures_less_than_the_gap_apart_are_one_outage(spark: SparkSession) -> None:
    tenth = S // 10
    failing = {10: "error", 11: "wrong", 12: "unknown", 40: "error", 40.5: "error"}
    rows = [op(i * tenth, failing.get(i, "ok"), fault=1) for i in range(100)]
    rows += [op(round(40.5 * tenth), "refused", fault=1), op(95 * tenth, "error", fault=2)]
    assertDataFrameEqual(
        t.outages(ops(spark, *rows, op(0, "error"))),  # the last one is in no fault
        [
            Row(
                run="r",
                fault=1,
                op="send",
                struck=False,
                outage=1,
                begin_ns=S,
                end_ns=12 * tenth,
                failed=3,
                wrong=1,
                unknown=1,
            ),
            Row(
                run="r",
                fault=1,
                op="send",
                struck=False,
                outage=2,
                begin_ns=4 * S,
                end_ns=round(40.5 * tenth),
                failed=2,
                wrong=0,
                unknown=0,
            ),
            Row(
                run="r",
                fault=2,
                op="send",
                struck=False,
                outage=1,
                begin_ns=95 * tenth,
                end_ns=95 * tenth,
                failed=1,
                wrong=0,
                unknown=0,
            ),
        ],
    )


def test_rare_requests_that_all_fail_are_one_outage_and_ties_do_not_split_it(spark: SparkSession) -> None:
    rows = [
        op(i * 2 * S, "error", fault=1, op="register", target=target) for i in range(5) for target in (0, 1)
    ]
    (found,) = t.outages(ops(spark, *rows)).collect()
    assert (found.begin_ns, found.end_ns, found.failed) == (0, 8 * S, 10)


def test_a_change_is_visible_when_the_last_nameserver_shows_it(spark: SparkSession) -> None:
    base = 100 * S
    changes = spark.createDataFrame(
        [
            ("r", 0, base, [base + 30, base + 20]),
            ("r", 1, base + S, [base + S + 5, None]),
            ("r", 2, base + 6 * S, [base + 6 * S + 5, base + 6 * S + 5]),
            ("r", 3, base - 1, [base, base]),
        ],
        "run string, change bigint, begun_ns bigint, acked_ns array<bigint>",
    )
    seen = spark.createDataFrame(
        [
            ("r", 0, 0, base + 100, base + 60, None),
            ("r", 0, 1, base + 90, None, None),
            ("r", 1, 0, base + S + 50, None, None),
            ("r", 1, 1, None, base + 2 * S, base + 3 * S),
        ],
        "run string, " + schemas.VISIBILITY_SCHEMA,
    )
    fault = windows(spark, ("r", 1, "kill_one", None, [1], 2 * S, 4 * S, 8 * S, 30 * S))
    found = {row.change: row for row in t.visibility_by_change(changes, seen, runs(spark), fault).collect()}
    assert sorted(found) == [0, 1, 2]  # the last one began before measuring
    assert (found[0].visible_ns, found[0].unsure_ns, found[0].acked_ns) == (100, 40, 30)
    assert (found[0].fault, found[0].steady) == (None, True)
    assert (found[1].seen_on, found[1].visible_ns, found[1].acked_ns) == (1, None, None)
    assert (found[1].fault, found[1].steady) == (1, False)  # begun before the fault, still open when it came
    assert (found[2].seen_on, found[2].visible_ns, found[2].acked_ns, found[2].steady) == (0, None, 5, False)


def test_a_restarted_process_costs_the_sum_of_its_lives_and_one_sample_has_no_rate(
    spark: SparkSession,
) -> None:
    base = 100 * S
    samples = spark.createDataFrame(
        [
            ("r", "nameserver", 0, 7, base - S, 0, 900, 1),  # warm-up
            ("r", "nameserver", 0, 7, base, 10, 5, 1),
            ("r", "nameserver", 0, 7, base + 4 * S, 10 + S, 9, 1),
            ("r", "nameserver", 0, 8, base + 10 * S, 0, 7, 1),
            ("r", "nameserver", 0, 8, base + 12 * S, S, 8, 1),
            ("r", "broker", 1, 9, base, 5, 6, 1),
        ],
        "run string, " + schemas.PROCESSES_SCHEMA,
    )
    found = {row.role: row for row in t.process_cost(samples, runs(spark)).collect()}
    server = found["nameserver"]
    assert (server.cpu_ns, server.alive_ns, server.rss_bytes_max, server.pids) == (2 * S, 6 * S, 9, 2)
    assert server.cores == pytest.approx(1 / 3)
    assert found["broker"].cores is None


def test_reasons_that_differ_in_numbers_only_are_one(spark: SparkSession) -> None:
    rows = [op(i, "error", remark=f"refused: 127.0.0.1:{i}") for i in range(3)]
    rows += [op(5, "error"), op(6, "refused", code=1, remark="busy"), op(7)]
    assertDataFrameEqual(
        t.failure_reasons(ops(spark, *rows)),
        spark.createDataFrame(
            [
                ("r", "send", "error", None, "refused: #.#.#.#:#", 3),
                ("r", "send", "error", None, None, 1),
                ("r", "send", "refused", 1, "busy", 1),
            ],
            "run string, op string, outcome string, code int, remark string, n bigint",
        ),
        ignoreNullable=True,
    )
