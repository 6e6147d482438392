"""A run with RocketMQ's own brokers and Java client works, even if a broker is killed twice.

The tests take about 90 s.
"""

from __future__ import annotations

import itertools
import subprocess
import time
from pathlib import Path
from typing import Final

import msgspec
import pytest

from routekeeper.bench.arms.apache_brokers import client_command, missing
from routekeeper.bench.arms.interface import Side
from routekeeper.bench.arms.servers import wait_until
from routekeeper.bench.cluster import Cluster
from routekeeper.bench.events import Fault, Operation, ProcessSample, View
from routekeeper.bench.java_client import rows as rows_of
from routekeeper.bench.java_client import settings
from routekeeper.bench.plan import Plan, PlannedFault, Scenario, load_plan
from routekeeper.bench.ports import HOST, free_ports
from routekeeper.bench.processes import ClusterError
from routekeeper.bench.real import RealCluster
from routekeeper.bench.runfolder import read_manifest
from routekeeper.bench.schedule import SessionPlan
from routekeeper.bench.session import Session
from tests.bench.lives import a_turn, rows

# The timeout is long because Maven may have to fetch the jars.
pytestmark = [pytest.mark.bench, pytest.mark.one_core, pytest.mark.timeout(900)]

BROKERS: Final = 2
POLL_S: Final = 2.0
REGISTERS_S: Final = 10.0
QUIET_S: Final = 6.0


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    if (lacking := missing()) is not None:
        pytest.skip(f"RocketMQ's own brokers need {lacking}")
    plan = load_plan("real")
    # To keep the test short, clients ask for routes more often than the profile allows. A RocketMQ broker
    # still registers every 10 s, for the first time 10 s after its start. So a killed broker may be started
    # again at once, because nameservers list it only 10 s later. The broker is killed twice, because only a
    # few random sends meet the dead broker.
    dies = PlannedFault(case="kill", quiet_s=0.4, jitter_s=0.1, down_s=1.0, after_s=REGISTERS_S + POLL_S + 6)
    (series,) = plan.series
    plan = msgspec.structs.replace(
        plan,
        brokers=BROKERS,
        warmup_s=2 * POLL_S,
        series=[msgspec.structs.replace(series, timers=msgspec.structs.replace(series.timers, divisor=15.0))],
        scenarios=[
            Scenario(name="quiet", quiet_s=QUIET_S),
            Scenario(name="broker-dies", faults=[dies, dies]),
        ],
    )
    return Session(a_life(tmp_path_factory.mktemp("real"), plan), lambda step: None, RealCluster).run()


def a_life(out: Path, plan: Plan) -> SessionPlan:
    return a_turn(out, plan, "independent-real", profile="real", seed=8)


def test_java_does_what_our_clients_do_elsewhere(folders: list[Path]) -> None:
    quiet = folders[0]
    manifest = read_manifest(quiet)
    assert (manifest.arm, manifest.lost, manifest.void) == ("independent-real", None, None)
    assert manifest.versions["rocketmq"] == "5.3.3"
    assert manifest.timers["registerNameServerPeriod"].used_ms == 1000 * POLL_S
    assert manifest.timers["brokerLease"].used_ms == 120_000
    done = [row for row in rows(quiet, Operation) if row.due_ns >= manifest.measure_begin_ns]
    by_op = {op: [row for row in done if row.op == op] for op in ("lookup", "send", "send_once")}
    for op, per_s in (("lookup", 40.0), ("send", 20.0), ("send_once", 20.0)):
        assert abs(len(by_op[op]) - QUIET_S * per_s) <= 4, op
    for each in by_op.values():
        assert all(row.user >= 100_000 and row.due_ns <= row.sent_ns <= row.done_ns for row in each)
        assert sum(row.outcome == "ok" for row in each) > 0.9 * len(each)
        assert {row.client_side for row in each} == {"side-a", "side-b"}
    assert {row.target for row in by_op["send"]} == {0, 1}
    asked = [row.brokers for row in by_op["lookup"] if row.topic == "bench-0" and row.outcome == "ok"]
    assert asked
    assert all(brokers == [0, 1] for brokers in asked)
    versions = {row.version for row in by_op["lookup"] if row.topic == "sim-100-changing"}
    assert len(versions) > 1, "simulated brokers go on changing their topics"
    assert {row.op for row in done} >= {"newcomer", "announce"}, "and new clients come"
    roles = {(row.role, row.index) for row in rows(quiet, ProcessSample)}
    assert {("broker", 0), ("broker", 1), ("generator", 0), ("generator", 1)} <= roles


def test_killed_broker_is_left_by_nameservers_and_java_and_comes_back(
    folders: list[Path],
) -> None:
    dies = folders[1]
    faults = rows(dies, Fault)
    assert len(faults) == 2
    failed = repeated = 0
    for fault in faults:
        dead = int(fault.targets[0].removeprefix("broker-"))
        others = sorted({0, 1} - {dead})
        for observer in ("nameserver", "client"):
            shown = [row for row in views(dies, observer) if fault.begin_ns < row.seen_ns < fault.until_ns]
            everybody = {row.index for row in shown}
            assert len(everybody) == (3 if observer == "nameserver" else 6)
            for index in everybody:
                mine = [row for row in shown if row.index == index]
                changes = [brokers for brokers, _ in itertools.groupby(row.brokers for row in mine)]
                assert changes[-2:] == [others, [0, 1]], (observer, index)
                assert len(changes) == 2 or changes == [[0, 1], others, [0, 1]], changes
                left_out = next(row for row in mine if row.brokers == others)
                # A kill closes the connection, so nameservers must not wait for the lease of two minutes. The
                # bound is 10 s, because the restarted broker may register again after that time.
                assert (left_out.seen_ns - fault.begin_ns) / 1e9 < REGISTERS_S
        begun = [row for row in rows(dies, Operation) if fault.begin_ns <= row.due_ns < fault.until_ns]
        once = [row for row in begun if row.op == "send_once" and row.outcome != "ok"]
        again = [row for row in begun if row.op == "send" and row.outcome == "ok" and row.attempts > 1]
        assert (
            fault.healed_ns is not None
        )  # after ``healed_ns``, the restarted broker may answer a repeated send, too
        assert {row.target for row in again if row.done_ns < fault.healed_ns} <= set(others)
        failed, repeated = failed + sum(row.target == dead for row in once), repeated + len(again)
    assert failed, "a client that has not asked again sends to the dead broker"
    assert repeated, "its retries reach another"


def views(folder: Path, observer: str) -> list[View]:
    """Return an observer's route lists of one topic in order of time, without unanswered queries."""
    found = [row for row in rows(folder, View) if (row.observer, row.topic) == (observer, "bench-0")]
    answers = (row for row in found if row.state in ("routed", "absent"))
    return sorted(answers, key=lambda row: row.seen_ns)


def sender(
    folder: Path, due_in_s: list[float], end_in_s: float | None
) -> tuple[int, list[Operation | View], str]:
    """Run the Java program without a nameserver. Its look-ups are due ``due_in_s`` seconds from now.

    Returns:
        The program's exit code, the rows of its output lines, and its log.
    """
    load = msgspec.structs.replace(
        load_plan("real").load,
        lookup_per_s=1.0,
        send_per_s=0.0,
        send_once_per_s=0.0,
        timeout_s=0.5,
        topics=0,
        observed_sims=0,
        lookup_clients=1,
        send_clients=1,
    )
    sides = [Side(name="side-a", servers=[f"{HOST}:{free_ports(1)[0]}"])]
    output, planned, end = folder / "output", folder / "schedule", folder / "end"
    described = folder / "properties"
    described.write_text(
        settings(
            load,
            sides,
            retries=2,
            refresh_ms=10_000,
            heartbeat_ms=10_000,
            linger_ns=200_000_000,
            output=output,
            schedule=planned,
            end=end,
        )
    )
    said = folder / "said"
    with said.open("wb") as sink:
        process = subprocess.Popen(client_command(folder / "home", described), stdout=sink, stderr=sink)
    try:
        wait_until(lambda: "client ready" in said.read_text(), "the Java program is not ready", [])
        now_ns = time.monotonic_ns()
        if end_in_s is not None:
            end.write_text(str(now_ns + round(end_in_s * 1e9)))
        lines = [f"lookup {n} {now_ns + round(each * 1e9)} bench-0\n" for n, each in enumerate(due_in_s)]
        (folder / "new").write_text("".join(lines))
        (folder / "new").rename(planned)
        code = process.wait(60)
    finally:
        process.kill()
        process.wait()
    return code, list(rows_of(output.read_bytes().splitlines(), sides)), said.read_text()


@pytest.fixture
def java() -> None:
    if (lacking := missing()) is not None:
        pytest.skip(f"the Java client needs {lacking}")


@pytest.mark.usefixtures("java")
def test_java_client_ends_when_the_load_does_and_not_with_its_schedule(tmp_path: Path) -> None:
    code, found, said = sender(tmp_path, due_in_s=[4.0, 4.5, 40.0], end_in_s=9.0)
    assert code == 0, said
    assert [row.outcome for row in found if isinstance(row, Operation)] == ["error", "error"]
    first, second = found
    assert isinstance(first, Operation)
    assert isinstance(second, Operation)
    assert second.due_ns - first.due_ns == 500_000_000
    # Each look-up is sent when it is due, or later on a busy machine. The program must not send all look-ups
    # at its start or at its end.
    assert 0 <= first.sent_ns - first.due_ns < 4_000_000_000
    assert second.sent_ns >= second.due_ns
    assert first.remark == "RemotingConnectException: connect to null failed"


@pytest.mark.usefixtures("java")
def test_java_client_whose_schedule_is_over_before_the_load_says_so(tmp_path: Path) -> None:
    code, _, said = sender(tmp_path, due_in_s=[1.0], end_in_s=None)
    assert code == 3
    assert "the schedule of lookup is over, the load is not" in said


class OurBrokers(RealCluster):
    """RocketMQ's own Java client with our brokers, which start faster than RocketMQ's own."""

    _broker = Cluster._broker
    _broker_addr = Cluster._broker_addr


@pytest.mark.usefixtures("java")
def test_run_whose_java_client_ends_is_void(tmp_path: Path) -> None:
    plan = msgspec.structs.replace(
        load_plan("real"),
        servers=1,
        brokers=1,
        warmup_s=0.5,
        scenarios=[Scenario(name="quiet", quiet_s=20.0)],
    )
    killed: list[int] = []

    def strike(step: str) -> None:
        assert isinstance(session.cluster, RealCluster)
        child = session.cluster.java.child
        if step == "quiet" and child is not None:
            killed.append(child.pid)
            child.kill()

    session = Session(a_life(tmp_path, plan), strike, OurBrokers)
    with pytest.raises(ClusterError, match="the Java client: generator-1 ended with -9"):
        session.run()
    assert killed
    assert list((tmp_path / "void").rglob("manifest.json"))
