"""Tests of Apache's brokers at our nameservers: registration, kept routes, and removal of a killed broker."""

from __future__ import annotations

import signal

import pytest

from .apache import BINARY, RELEASES, Apache, ask, listed, wait_until
from .ours import CLUSTER, MODES, PAIRS, Fleet, OurDeployment, RouteWatch, route, routed_topic

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("release", RELEASES)
def test_a_broker_registers_all_its_topics_everywhere(deployment: OurDeployment, release: str) -> None:
    broker = deployment.apache[release]
    code, _, body = ask(broker.addr, 21)
    assert code == 0, "the broker's own topics"
    own = ["SELF_TEST_TOPIC", CLUSTER, broker.name, "OFFSET_MOVED_EVENT"]
    assert all(f'"{name}"'.encode() in body for name in own)
    for addr in deployment.addrs:
        assert listed(addr, broker.addr)
        for topic in [*own, deployment.kept[release]]:
            found = route(addr, topic)
            assert found is not None, topic
            brokers = {data["brokerName"]: data for data in found["brokerDatas"]}
            assert brokers[broker.name]["brokerAddrs"] == {"0": broker.addr}
            assert brokers[broker.name]["cluster"] == CLUSTER
            assert broker.name in {data["brokerName"] for data in found["queueDatas"]}


def test_an_identical_route_is_given_by_every_nameserver(deployment: OurDeployment) -> None:
    for topic in (*deployment.kept.values(), "TBW102", CLUSTER, "SELF_TEST_TOPIC"):
        routes = [route(addr, topic) for addr in deployment.addrs]
        assert routes[0] is not None, topic
        assert routes[1:] == [routes[0], routes[0]], topic


@pytest.mark.parametrize(("deployment", "release"), PAIRS, indirect=["deployment"])
def test_a_killed_broker_is_gone_everywhere(
    deployment: OurDeployment, apaches: dict[str, Apache], fleet: Fleet, release: str
) -> None:
    name, topic = f"victim-{release[0]}", f"Victim{release[0]}"
    settings = fleet.broker_settings() | {"autoCreateTopicEnable": "false"}
    # A compressed registration of 5.3.3 has a header that says it is not compressed. Apache's own nameserver
    # cannot read such a registration, but ours must.
    settings |= {"compressedRegister": "true"}
    victim = apaches[release].broker(
        deployment.addrs, name=name, settings=settings, properties=BINARY, hasten=True
    )
    try:
        routed_topic(deployment.addrs, victim.addr, topic)
    finally:
        victim.kill()
    gone_s = deployment.everywhere(
        lambda addr: not listed(addr, victim.addr) and route(addr, topic) is None, f"{name} gone"
    )
    assert gone_s < 60, "a closed connection is evidence at once, a lease is two minutes"
    for other in deployment.apache.values():
        assert all(listed(addr, other.addr) for addr in deployment.addrs), "a neighbour went with it"


def test_a_broker_lives_by_its_heartbeats_and_a_frozen_one_leaves_with_its_lease(
    fleet: Fleet, apaches: dict[str, Apache]
) -> None:
    deployments = [fleet.ours(mode) for mode in MODES]
    addrs = [addr for deployment in deployments for addr in deployment.addrs]
    # The broker asks for a lease of 15 s and renews it every second by request 904. It registers 10 s after
    # its start and then every 60 s, so later only these heartbeats keep the lease. The lease is long, because
    # a busy machine may pause the broker for some seconds.
    settings = {
        "enableSlaveActingMaster": "true",
        "brokerNotActiveTimeoutMillis": "15000",
        "registerNameServerPeriod": "60000",
        "autoCreateTopicEnable": "false",
    }
    broker = apaches["5.3.3"].broker(
        addrs, name="frozen", settings=fleet.broker_settings() | settings, hasten=True
    )
    watch = RouteWatch(addrs, {broker.name: broker.addr})
    try:
        wait_until(lambda: watch.seconds > 32, "two leases to pass", 90)
        assert watch.missing == []
        assert watch.answered > len(addrs)
        broker.popen.send_signal(signal.SIGSTOP)
        for addr in addrs:
            wait_until(lambda a=addr: not listed(a, broker.addr), f"{addr} to drop it", 60)  # type: ignore[misc]
        assert not any(route(addr, broker.name) for addr in addrs)
        broker.popen.send_signal(signal.SIGCONT)
        apaches["5.3.3"].await_broker(broker, addrs)
    finally:
        watch.close()
        broker.kill()


@pytest.mark.timeout(600)
def test_routes_are_kept_over_many_periods(deployment: OurDeployment, patience: float) -> None:
    watch = deployment.watch
    before = [namesrv.requests(103) for namesrv in deployment.namesrvs]
    wait_until(lambda: watch.seconds >= patience, "the time to pass", patience + 1)
    assert watch.missing == []
    assert len(watch.unanswered) <= watch.answered / 20, watch.unanswered[:5]
    assert watch.answered >= patience, "the watch did not see enough"
    after = [namesrv.requests(103) for namesrv in deployment.namesrvs]
    assert min(after) >= 3 * len(deployment.apache), (before, after)
    for broker in deployment.apache.values():
        assert broker.popen.poll() is None
        assert all(listed(addr, broker.addr) for addr in deployment.addrs)
