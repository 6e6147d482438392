"""The load of the raft benchmark is answered by real RouteKeeper and ZooKeeper servers."""

from collections.abc import Iterator

import pytest

from routekeeper.bench.group import Missing, Unhealthy
from routekeeper.bench.micro.raft.__main__ import JOBS
from routekeeper.bench.micro.raft.loading import load
from routekeeper.bench.micro.raft.systems import FACTORIES, MEMBERS, System

pytestmark = [pytest.mark.bench, pytest.mark.one_core, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", params=["routekeeper-fsync", "zookeeper"])
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("systems") / "it"
    try:
        found = FACTORIES[request.param](folder, "")
    except Missing as error:
        pytest.skip(str(error))
    if request.param != "zookeeper":
        with (folder / "namesrv.properties").open("a") as settings:
            # A busy machine may delay the leader's heartbeats. A short timeout would then cause elections.
            settings.write("raftElectionTimeoutMs=3000\n")
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.mark.parametrize("part", JOBS)
def test_writes_are_acknowledged_and_become_visible_on_every_member(system: System, part: str) -> None:
    job, connections, _ = JOBS[part]
    figures = load(system, job=job, connections=connections, warm_s=0.1, measure_s=0.5)
    assert 0 < figures["ms_p50"] <= figures["ms_p99"]
    if part == "visible":
        assert figures["writes"] > 0
        assert figures["polls_per_write"] >= MEMBERS
    else:
        assert figures["per_s"] == pytest.approx(figures["answered"] / figures["seconds"])
        assert len(figures["server_cpu_s"]) == MEMBERS


def test_reads_are_answered(system: System) -> None:
    assert load(system, job="reads", connections=MEMBERS, warm_s=0.1, measure_s=0.5)["answered"] > 0


def test_a_load_that_reaches_no_member_is_an_error_with_the_members_logs(system: System) -> None:
    members, system.clients = system.clients, ["127.0.0.1:1"]
    try:
        with pytest.raises(Unhealthy, match="ConnectionRefusedError"):
            load(system, job="one", connections=1, warm_s=0.1, measure_s=0.1)
    finally:
        system.clients = members
