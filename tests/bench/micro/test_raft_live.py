"""The raft benchmark works with real RouteKeeper and ZooKeeper servers.

The servers accept the requests that the benchmark encodes itself, and they replace a stopped leader.
"""

import json
import signal
import urllib.request
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

from routekeeper.bench.group import Missing
from routekeeper.bench.micro.raft.loading import figures_of, load_process, plan_for, run
from routekeeper.bench.micro.raft.systems import FACTORIES, System
from routekeeper.bench.micro.raft.timers import SERIES, equal
from routekeeper.bench.wires.brokers import nodes

pytestmark = [pytest.mark.bench, pytest.mark.one_core, pytest.mark.timeout(300)]
BROKERS = 4
TOPICS = 2
#: Election timeout in ms. It is long, because a busy machine may delay the leader's heartbeats. A shorter
#: timeout would then cause elections.
ELECTION_MS = 3000
LEASE_S = 6


@pytest.fixture(scope="module", params=["routekeeper-fsync", "zookeeper"])
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    try:
        timers = equal(ELECTION_MS, lease_s=SERIES["equal"].lease_s)
        found = FACTORIES[request.param](tmp_path_factory.mktemp("systems") / "it", timers)
    except Missing as error:
        pytest.skip(str(error))
    try:
        found.start()
        yield found
    finally:
        found.stop()


def check_listed(system: System) -> None:
    """Check that the servers list every broker of the load."""
    if system.kind == "remoting":
        for http in system.watched:
            with urllib.request.urlopen(f"http://{http}/v1/brokers", timeout=5) as reply:
                found = [one["broker_name"] for one in json.loads(reply.read())["brokers"]]
            assert sorted(found) == [f"broker-{key:04d}" for key in range(BROKERS)]
    else:
        client = KazooClient(hosts=",".join(system.clients))
        client.start()
        try:
            owners = [
                {client.get(path)[1].ephemeralOwner for path in nodes(key, TOPICS)} for key in range(BROKERS)
            ]
        finally:
            client.stop()
            client.close()
        assert all(len(of_one) == 1 and 0 not in of_one for of_one in owners), "nodes that end with a session"
        assert len(set.union(*owners)) == BROKERS, "each broker has a session of its own"


def test_brokers_are_listed_and_stay_so_beyond_their_lease(system: System) -> None:
    plan = plan_for(
        system,
        job="heartbeats",
        connections=BROKERS,
        warm_s=0.1,
        measure_s=LEASE_S + 2.0,
        topics=TOPICS,
        lease_s=LEASE_S,
    )
    with load_process(plan) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for word in (b"steady\n", b"measured\n"):
            assert process.stdout.readline() == word
            check_listed(system)
            process.stdin.write(b"\n")
            process.stdin.flush()
        figures_of(system, process.communicate()[0])


def test_watchers_are_told_of_every_change(system: System) -> None:
    plan = plan_for(
        system,
        job="watch",
        connections=1,
        warm_s=0.1,
        measure_s=0.6,
        watched=system.watched,
        watchers=5,
    )
    figures = figures_of(system, run(plan))
    assert figures["watchers"] == 3 * 5
    assert figures["writes"] >= 3
    assert 0 < figures["half_ms_p50"] <= figures["ms_p50"] <= figures["ms_p99"]


def test_leader_that_is_stopped_is_replaced_and_comes_back(system: System) -> None:
    leader = system.leader()
    assert leader is not None
    plan = plan_for(system, job="failover", connections=1, warm_s=0.2, measure_s=0.0, by=signal.SIGSTOP)
    plan.members = [addr for index, addr in enumerate(system.clients) if index != leader]
    plan.victim, plan.pids = system.pid(leader), []
    try:
        figures = figures_of(system, run(plan))
    finally:
        system.bring_back(leader, stopped=True)
    system.wait_healthy()
    # SIGSTOP leaves the leader's connections open, so members only notice that no more heartbeats come. The
    # last heartbeat came at most one heartbeat period before the stop.
    assert figures["ms"] > ELECTION_MS / 2
