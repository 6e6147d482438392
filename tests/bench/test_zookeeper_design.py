"""The benchmark's ZooKeeper clients send failed requests again and set their watches again.

The sessions of clients are local, and the sessions of brokers are global.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from kazoo.exceptions import NodeExistsError

from routekeeper.bench.arms.interface import ArmConfig, Listing, Side
from routekeeper.bench.arms.layout import nodes_of
from routekeeper.bench.arms.servers import ZooKeepers, four_letters, wait_until
from routekeeper.bench.arms.zookeeper import Unreachable, ZooKeeperArm, connect, until_served
from routekeeper.bench.network import ProxyNetwork
from routekeeper.bench.processes import allow_connections
from routekeeper.bench.timers import Timers
from routekeeper.client.directory import Directory
from tests.bench.test_disk import ENTRIES, SIZE, check_counts

pytestmark = [pytest.mark.bench, pytest.mark.slow, pytest.mark.one_core, pytest.mark.timeout(400)]

SESSION_MS = 6000
TIMEOUT_S = 5.0
WRITE_S = 60.0
"""Time limit in s for one write, in which a client may lose its connection several times."""


class Ensemble:
    def __init__(self, folder: Path) -> None:
        allow_connections()
        # 3000 ms, because a busy machine may delay the leader's heartbeats
        timers = Timers(divisor=20.0, election_timeout_ms=3000, zookeeper_session_ms=SESSION_MS)
        self.servers = ZooKeepers(
            "zookeeper",
            folder,
            timers,
            lambda row: None,
            count=3,
            network=ProxyNetwork(folder, lambda row: None),
        )
        self.side = Side(name="test", servers=self.servers.clients)

    def start(self) -> None:
        for process in self.servers._network.carriers():
            process.launch()
            process.wait_ready()
        self.servers.start()
        wait_until(self.servers.ready, "the ensemble does not serve", [], 60)

    def arm(
        self, *, watches: bool = False, divisor: float = 1.0, timeout_s: float = TIMEOUT_S
    ) -> ZooKeeperArm:
        return ZooKeeperArm(
            ArmConfig(
                kind="zookeeper",
                sides=[self.side],
                lease_ms=SESSION_MS,
                refresh_ms=3_600_000,
                heartbeat_ms=1500,
                divisor=divisor,
                timeout_s=timeout_s,
                watches=watches,
            )
        )

    def followers(self) -> list[int]:
        found: list[int] = []

        def are_two() -> bool:
            found[:] = [index for index in range(3) if self.servers.role(index) == "follower"]
            return len(found) == 2

        wait_until(are_two, "not two servers follow", [], 60)
        return found

    def restart(self, index: int) -> None:
        self.servers.processes[index].launch()
        wait_until(self.servers.ready, "the ensemble does not serve", [], 60)


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    made = Ensemble(tmp_path_factory.mktemp("ensemble"))
    try:
        made.start()
        yield made
    finally:
        for process in [*made.servers.processes, *made.servers._network.carriers()]:
            process.kill()
        made.servers._network.close()


def listing(index: int, version: int = 1) -> Listing:
    return Listing(
        index=index, addr=f"127.0.0.1:{index}", topics={f"topic-{index}": version}, version=version
    )


def test_t3_each_server_counts_what_it_wrote_and_its_syncs(ensemble: Ensemble) -> None:
    client = connect([ensemble.servers.clients[0]], session_s=10)

    def create(path: str) -> None:
        # The server may have created the node before the client lost its connection.
        with contextlib.suppress(NodeExistsError):
            client.create(path, bytes(SIZE))

    def write() -> None:
        for number in range(ENTRIES):
            until_served(client, partial(create, f"/entry-{number}"), time.monotonic() + WRITE_S)

    client.start()
    try:
        check_counts(ensemble.servers, write)
    finally:
        client.stop()
        client.close()


def test_clients_and_a_broker_go_on_elsewhere_when_their_server_dies(ensemble: Ensemble) -> None:
    """Check that a look-up and a registration are sent again, and that a client sets its watch again.

    The server is paused before it is killed. So it dies while both requests wait for its answer. Another
    broker changes a watched topic in the pause, so that the watch at this server cannot fire.
    """
    arm, watches = ensemble.arm(), ensemble.arm(watches=True)
    victim = ensemble.followers()[0]  # server 0 or 1, because two of the three servers follow
    index = 3 + victim  # with this number, the broker connects to ``victim`` first
    topic = f"topic-{index}"
    broker = arm.broker(ensemble.side)
    other = arm.broker(ensemble.side)  # with the number 20, this broker connects to server 2 first
    client = arm.client(ensemble.side, victim)
    watching = watches.producer_client(ensemble.side, victim, seed=1, hooks=())
    try:
        (told,) = broker.announce(listing(index))
        assert (told.outcome, told.target) == ("ok", victim)
        assert other.announce(listing(20))[0].outcome == "ok"
        assert client.look_up(topic).target == victim
        directory = watching.core.directory
        watching.run(directory.refresh_quietly("topic-20"))
        wait_until(lambda: queues(directory, "topic-20") == 1, "the route is not known", [])
        with ThreadPoolExecutor() as pool:
            ensemble.servers.processes[victim].signal(signal.SIGSTOP)
            looking = pool.submit(client.look_up, topic)
            registering = pool.submit(broker.announce, listing(index, version=7))
            changed = other.announce(listing(20, version=7))
            time.sleep(0.2)  # in this time, the threads send both requests
            ensemble.servers.processes[victim].kill()
        assert changed[0].outcome == "ok"
        again = looking.result()
        assert (again.outcome, again.brokers) == ("ok", [index])
        assert again.target != victim
        assert registering.result()[0].outcome == "ok"
        wait_until(lambda: queues(directory, "topic-20") == 7, "the change is not known", [])
        found = client.look_up(topic)
        assert (found.outcome, found.version) == ("ok", 7)
    finally:
        watching.close()
        client.close()
        other.close()
        broker.close()
        ensemble.restart(victim)


def test_client_that_sends_all_the_time_leaves_a_server_that_hangs(ensemble: Ensemble) -> None:
    arm = ensemble.arm(timeout_s=0.3)
    broker = arm.broker(ensemble.side)
    victim = ensemble.followers()[0]
    client = arm.client(ensemble.side, victim)
    try:
        wait_until(lambda: broker.announce(listing(2))[0].outcome == "ok", "not announced", [])
        wait_until(lambda: client.look_up("topic-2").target == victim, "another server answers", [])
        ensemble.servers.processes[victim].signal(signal.SIGSTOP)
        until = time.monotonic() + WRITE_S
        while client.look_up("topic-2").outcome != "ok":
            assert time.monotonic() < until, "the client stays with the server that hangs"
    finally:
        # Start a new process of the server. The old process would still count old sessions in the next test,
        # and might leave the ensemble for a moment.
        ensemble.servers.processes[victim].kill()
        client.close()
        broker.close()
        ensemble.restart(victim)


def test_sessions_of_clients_are_local_and_those_of_brokers_are_not(ensemble: Ensemble) -> None:
    arm = ensemble.arm()
    server = ensemble.followers()[0]
    before = sessions(ensemble, server)
    client = arm.client(ensemble.side, server)
    client.look_up("topic-1")
    # On a busy machine the server counts a new session late. It may also still count an earlier session that
    # has ended.
    wait_until(lambda: sessions(ensemble, server)["local"] == before["local"] + 1, "not local", [])
    clients = sessions(ensemble, server)
    broker = arm.broker(ensemble.side)
    (told,) = broker.announce(listing(6 + server))
    assert told.outcome == "ok"
    try:
        assert clients["global"] == before["global"]
        wait_until(lambda: sessions(ensemble, server)["global"] == before["global"] + 1, "not upgraded", [])
    finally:
        client.close()
        broker.close()


def sessions(ensemble: Ensemble, index: int) -> dict[str, int]:
    told = dict(
        line.split("\t")[:2]
        for line in four_letters(ensemble.servers.clients[index], b"mntr").splitlines()
        if "\t" in line
    )
    return {
        "local": int(told.get("zk_local_sessions", -1)),
        "global": int(told.get("zk_global_sessions", -1)),
    }


def queues(directory: Directory, topic: str) -> int:
    found = directory.routes.publish(topic)
    return 0 if found is None else len(found.queues)


def requests(caplog: pytest.LogCaptureFixture, path: str = "") -> int:
    """Return the number of requests that kazoo has logged so far. It logs all requests except pings.

    Args:
        path: Count only requests for this node.
    """
    sent = (record.getMessage() for record in caplog.records if record.message.startswith("Sending request"))
    return sum(path in line for line in sent)


@pytest.mark.parametrize("watches", [True, False])
def test_only_a_client_that_does_not_watch_asks_by_period(
    ensemble: Ensemble, caplog: pytest.LogCaptureFixture, watches: bool
) -> None:
    caplog.set_level(logging.DEBUG, "routekeeper.bench.arms.zookeeper")
    arm = ensemble.arm(watches=watches, divisor=60.0)
    broker = arm.broker(ensemble.side)
    assert broker.announce(listing(21))[0].outcome == "ok"
    client = arm.producer_client(ensemble.side, 0, seed=1, hooks=())
    try:
        directory = client.core.directory
        client.run(directory.refresh_quietly("topic-21"))
        client.run(directory.refresh_quietly("unknown"))
        client.start()
        before = requests(caplog)
        assert before
        if watches:
            time.sleep(2.2)  # in this time, a client without watches would poll four times
            assert requests(caplog) == before
        else:
            # In each of four poll periods, the client sends four requests. Three are for the topic that has a
            # broker, and one is for the unknown topic.
            wait_until(lambda: requests(caplog) >= before + 4 * 4, "the client does not ask", [])
        assert broker.announce(listing(21, version=3))[0].outcome == "ok"
        wait_until(lambda: queues(directory, "topic-21") == 3, "the change is not known", [])
    finally:
        client.close()
        broker.close()


def test_a_watching_client_learns_of_a_change_that_was_made_while_it_was_cut_off(ensemble: Ensemble) -> None:
    arm = ensemble.arm(watches=True)
    broker = arm.broker(ensemble.side)
    assert broker.announce(listing(22))[0].outcome == "ok"
    victim = ensemble.followers()[0]
    cut_off = Side(name="cut off", servers=[ensemble.side.servers[victim]])  # the client's only server
    client = arm.producer_client(cut_off, 0, seed=1, hooks=())
    try:
        directory = client.core.directory
        client.run(directory.refresh("topic-22"))
        ensemble.servers.processes[victim].kill()
        assert broker.announce(listing(22, version=5))[0].outcome == "ok"
        with pytest.raises(Unreachable):
            client.run(directory.refresh("topic-22"))  # the refresh fails, so the client sets no watch
        ensemble.restart(victim)
        wait_until(lambda: queues(directory, "topic-22") == 5, "the change is not known", [])
    finally:
        client.close()
        broker.close()


def test_a_watching_client_whose_first_read_fails_reads_again(ensemble: Ensemble) -> None:
    # Only the client needs a short timeout. On a busy disk, a broker's first announcement may take seconds.
    arm = ensemble.arm(watches=True, timeout_s=0.5)
    broker = ensemble.arm(timeout_s=WRITE_S).broker(ensemble.side)
    assert broker.announce(listing(23, version=4))[0].outcome == "ok"
    victim = ensemble.followers()[0]
    ensemble.servers.processes[victim].kill()
    alone = Side(name="alone", servers=[ensemble.side.servers[victim]])
    client = arm.producer_client(alone, 0, seed=1, hooks=())
    try:
        client.run(client.core.directory.refresh_quietly("topic-23"))
        assert queues(client.core.directory, "topic-23") == 0
        ensemble.restart(victim)
        wait_until(lambda: queues(client.core.directory, "topic-23") == 4, "the route is not read", [])
    finally:
        client.close()
        broker.close()


def test_a_watching_client_learns_the_address_of_a_broker_that_announced_its_topics_first(
    ensemble: Ensemble, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "routekeeper.bench.arms.zookeeper")
    arm = ensemble.arm(watches=True)
    maker = arm.connected(ensemble.side, 0)
    nodes = dict(nodes_of(24, "127.0.0.1:24", {"topic-24": 2}))
    *of_topics, of_broker = nodes
    client = arm.producer_client(ensemble.side, 1, seed=1, hooks=())
    try:
        directory = client.core.directory
        client.run(directory.refresh_quietly("topic-24"))  # neither the topic nor its broker exists yet
        for path in of_topics:
            maker.create_async(path, nodes[path], ephemeral=True, makepath=True).get(timeout=TIMEOUT_S)
        wait_until(lambda: requests(caplog, of_broker) >= 2, "the missing address is not watched", [])
        maker.create_async(of_broker, nodes[of_broker], ephemeral=True, makepath=True).get(timeout=TIMEOUT_S)
        wait_until(lambda: queues(directory, "topic-24") == 2, "the broker is not known", [])
    finally:
        client.close()
        maker.stop()
        maker.close()
