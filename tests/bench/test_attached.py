"""The benchmark puts load on a running cluster that the user names by its addresses.

The load does not change the cluster.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from routekeeper.bench import compare
from routekeeper.bench.__main__ import main
from routekeeper.bench.arms.interface import FOREIGN_FROM, broker_index
from routekeeper.bench.attached import AttachedCluster
from routekeeper.bench.given import Given, given_cluster, plan_for
from routekeeper.bench.plan import Plan, PlanError, load_plan
from routekeeper.bench.processes import ClusterError
from routekeeper.bench.report.gold import Gold
from routekeeper.bench.report.measures import Place
from routekeeper.bench.report.page import page
from routekeeper.bench.report.silver import Source
from routekeeper.bench.runfolder import read_manifest
from routekeeper.bench.schedule import Comparison
from routekeeper.bench.session import Session
from tests.bench.lives import a_turn
from tests.bench.servers import listed, running
from tests.waiting import wait_until

pytestmark = [pytest.mark.bench, pytest.mark.one_core, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("arm", "servers", "http", "message"),
    [
        (None, ["h:1"], [], "--arm is missing"),
        (
            "zookeeper",
            ["h:1"],
            [],
            "--arm is missing: name the design of the cluster, independent, raft, apache",
        ),
        ("raft", [], [], "names 0 nameservers, allowed are 1 to 9"),
        ("raft", ["h:1", "h:2"], ["h:3"], "--http names 1 addresses for 2 nameservers"),
        ("raft", ["h"], [], "'h' is no HOST:PORT"),
        ("raft", ["h:0"], [], "'h:0' is no HOST:PORT with a port of 1 to 65535"),
        ("raft", ["h:1"], [":2"], "--http: ':2' is no HOST:PORT"),
        ("raft", ["h:1", "h:1"], [], "--nameservers has one address twice"),
    ],
)
def test_what_is_no_cluster_is_refused_by_name(
    arm: str | None, servers: list[str], http: list[str], message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        given_cluster(arm, servers, http)


def test_given_cluster_is_not_struck() -> None:
    given = Given(arm="raft", servers=["h:1"])
    with pytest.raises(PlanError, match="has faults"):
        plan_for(load_plan("smoke"), given)
    plan = plan_for(load_plan("attached"), given)
    assert (plan.arms, plan.servers, plan.lines) == (["raft"], 1, [])


def test_attached_profile_without_addresses_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--profile", "attached", "--out", str(tmp_path)]) == 2
    assert "name it by --arm and --nameservers" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_brokers_of_any_name_have_a_number_each() -> None:
    assert [broker_index(name) for name in ("broker-7", "sim-103", "")] == [7, 103, None]
    names = [f"{kind}-{letter}" for kind in ("broker", "order") for letter in "abcdefghij"]
    names += ["broker-100", "broker-103"]  # simulated brokers use these numbers, too
    found = {broker_index(name) for name in names}
    assert len(found) == len(names)
    assert min(index for index in found if index is not None) >= FOREIGN_FROM


def short_plan() -> Plan:
    plan = load_plan("attached")
    (quiet,) = plan.scenarios
    # Use a small load and a long timeout. The test has no fault, so an answer is late only if the machine is
    # busy.
    load = msgspec.structs.replace(
        plan.load,
        topics=2,
        sim_brokers=2,
        lookup_per_s=20.0,
        newcomer_per_s=4.0,
        send_per_s=5.0,
        send_once_per_s=5.0,
        timeout_s=10.0,
    )
    scenarios = [msgspec.structs.replace(quiet, quiet_s=3.0)]
    return msgspec.structs.replace(plan, scenarios=scenarios, load=load, warmup_s=0.5, linger_s=0.2)


def rows(folder: Path, prefix: str) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in sorted(folder.glob(f"{prefix}-*.jsonl"))
        for line in path.read_text().splitlines()
    ]


def measured(folder: Path) -> list[dict[str, Any]]:
    """Return the operations that were due after the warm-up."""
    begin_ns = read_manifest(folder).measure_begin_ns
    return [op for op in rows(folder, "ops") if op["due_ns"] >= begin_ns]


def test_cluster_given_by_addresses_is_driven_and_gets_a_page_of_its_own(tmp_path: Path) -> None:
    out = tmp_path / "out"
    brokers = ("broker-a", "orders-b")
    with running(tmp_path, brokers=brokers, nameservers=2) as cluster:
        given = given_cluster("independent", cluster.nameservers, cluster.http)
        plan = plan_for(short_plan(), given)
        compare.begin(
            out, Comparison(profile="attached", plan=plan, seed=5, command=["mqbench"], given=given)
        )
        (folder,) = compare.make_runs(out, compare.load(out))
        # after the run, a nameserver needs some seconds to evict the generator's brokers
        for addr in cluster.nameservers:
            wait_until(lambda addr=addr: listed(addr) == set(brokers), "it stays as it was", within_s=30.0)  # type: ignore[misc]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["arm"], manifest["links"], manifest["void"]) == ("independent", "none", None)
    assert (manifest["servers"], manifest["brokers"]) == (2, 2)
    ops = measured(folder)
    assert {op["op"] for op in ops} == {"lookup", "newcomer", "announce", "send", "send_once"}
    assert [op for op in ops if op["outcome"] != "ok"] == []
    numbers = sorted(number for name in brokers if (number := broker_index(name)) is not None)
    assert {tuple(op["brokers"]) for op in ops if op["op"] == "lookup" and "bench-" in op["topic"]} == {
        tuple(numbers)
    }
    assert {op["target"] for op in ops if op["op"] == "send"} == set(numbers)
    up = {row["broker"] for row in rows(folder, "truth") if row["what"] == "up"}
    assert up == set(numbers)
    # The run has no events of these kinds. A test in report/test_planted.py makes a report from a run without
    # them.
    assert [kind for kind in ("deliveries", "disks", "faults", "links") if rows(folder, kind)] == []
    assert "nameserver" not in {row["role"] for row in rows(folder, "processes")}

    source = Source(
        run="b/equal/quiet/1/independent",
        uri="",
        base="",
        batch="b",
        series="equal",
        scenario="quiet",
        block=1,
        arm="independent",
        manifest=read_manifest(folder),
    )
    looked_up = {Place("equal", "quiet", None, "lookup_ms_p50"): {"independent": {("b", 1): 1.0}}}
    text = page(Gold(sources=[source]), looked_up)
    assert "Independent nameservers under load</h1>" in text
    assert "Route look-up, typical" in text
    for of_two_arms in ("Does RocketMQ need", "What to choose", "Ten questions", "Difference", "claims"):
        assert of_two_arms not in text.partition("<body>")[2], of_two_arms


def test_nothing_is_measured_before_the_brokers_of_the_generator_are_listed(tmp_path: Path) -> None:
    """Delay the generator's brokers by 3 s, although the warm-up of the load takes only 0.5 s.

    Measuring must begin only after the brokers are listed.
    """
    late = Path(__file__).with_name("late_brokers.py")

    def progress(step: str) -> None:
        if step == AttachedCluster.first_step:
            command = session.cluster.generator.command
            place = command.index("-f") + 1
            session.cluster.generator.command = [
                *command[:place],
                f"{command[place]},{late}",
                *command[place + 1 :],
            ]

    with running(tmp_path, mode="raft") as cluster:
        session = attached(tmp_path, given_cluster("raft", cluster.nameservers, cluster.http), progress)
        (folder,) = session.run()
    assert (read_manifest(folder).arm, read_manifest(folder).void) == ("raft", None)
    assert "absent" in {op["outcome"] for op in rows(folder, "ops")}, "clients asked before that"
    assert {op["op"] for op in measured(folder)} == {"lookup", "newcomer", "announce", "send", "send_once"}
    assert [op for op in measured(folder) if op["outcome"] != "ok"] == []


def test_arm_that_the_cluster_contradicts_is_not_measured(tmp_path: Path) -> None:
    with running(tmp_path, brokers=()) as cluster:
        given = given_cluster("raft", cluster.nameservers, cluster.http)
        with pytest.raises(
            ClusterError, match="--arm is raft, a nameserver says that its mode is independent"
        ):
            attached(tmp_path, given).run()
        given = given_cluster("independent", cluster.nameservers, cluster.http)
        with pytest.raises(ClusterError, match="the cluster has no broker that is a master"):
            attached(tmp_path, given).run()


def attached(out: Path, given: Given, progress: Callable[[str], None] = print) -> Session:
    plan = plan_for(short_plan(), given)
    turn = a_turn(out / "out", plan, given.arm, profile="attached", seed=1)
    return Session(turn, progress, partial(AttachedCluster, cluster=given))
