"""The scenario without requests comes after the load. It measures what the idle servers cost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from routekeeper.bench.events import DiskSample, LinkSample, Operation, ProcessSample, Truth
from routekeeper.bench.plan import FOLDER, REST, PlanError, Scenario, load_plan, parse_plan
from routekeeper.bench.runfolder import read_manifest
from routekeeper.bench.session import Session
from tests.bench.lives import a_turn, rows

PERIOD_NS = 500_000_000
"""Time in ns between two reports of a broker."""


def test_rest_is_the_last_scenario() -> None:
    text = (FOLDER / "compare.toml").read_text()
    begin, end = text.index('[[scenarios]]\nname = "rest"'), text.index("# Headline measures")
    rest = text[begin:end]
    moved = text[:begin] + text[end:]
    moved = moved.replace("[[scenarios]]", f"{rest}[[scenarios]]", 1)
    with pytest.raises(PlanError, match="scenario 'rest' must be the last one"):
        parse_plan(moved)


@pytest.mark.bench
@pytest.mark.slow
@pytest.mark.one_core
@pytest.mark.timeout(300)
def test_servers_are_measured_when_the_load_is_over_and_nobody_asks(tmp_path: Path) -> None:
    plan = load_plan("smoke")
    plan = msgspec.structs.replace(
        plan,
        brokers=1,
        warmup_s=0.5,
        # Long enough for a broker's report, even if a busy machine delays the report.
        scenarios=[Scenario(name="quiet", quiet_s=1.0), Scenario(name=REST, quiet_s=4.0)],
    )
    began = datetime.now(UTC)
    quiet, rest = Session(a_turn(tmp_path, plan, "raft", profile="smoke", seed=4), lambda step: None).run()
    ended = datetime.now(UTC)
    manifest = read_manifest(rest)
    started = datetime.fromisoformat(manifest.started_at)
    assert began - timedelta(seconds=1) < started < ended - timedelta(seconds=4), "not when it was written"
    assert manifest.started_at == read_manifest(quiet).started_at
    assert (manifest.scenario, manifest.void, manifest.lost) == (REST, None, None)
    begin_ns, end_ns = manifest.measure_begin_ns, manifest.measure_end_ns
    assert end_ns - begin_ns >= 4_000_000_000
    assert begin_ns > read_manifest(quiet).measure_end_ns + round(plan.linger_s * 1e9)
    assert [row for row in rows(rest, Operation) if row.due_ns >= begin_ns] == []
    assert [row for row in rows(rest, Truth) if row.subject == "topic" and row.t_ns >= begin_ns] == []

    written = [row for row in rows(rest, DiskSample) if row.role == "nameserver"]
    assert sorted(row.index for row in written) == [0, 0, 1, 1, 2, 2]
    assert {row.t_ns for row in written if row.t_ns < end_ns - PERIOD_NS} == {written[0].t_ns}
    of_load = [row for row in rows(quiet, DiskSample) if row.role == "nameserver" and row.index == 0]
    first, last = sorted(of_load, key=lambda row: row.t_ns)
    assert (first.written_bytes or 0) < (last.written_bytes or 0), "topics changed"
    assert (first.syncs or 0) < (last.syncs or 0)

    used = [row for row in rows(rest, ProcessSample) if row.role == "nameserver" and row.t_ns >= begin_ns]
    assert {row.index for row in used} == {0, 1, 2}
    passed = [row for row in rows(rest, LinkSample) if row.dialler == "broker-0" and row.t_ns >= begin_ns]
    of_link = [row.forward_bytes for row in passed if row.acceptor == "nameserver-1"]
    assert of_link[-1] > of_link[0], "brokers go on to report"
