"""Test of an Apache master with synchronous replication and its slaves at our nameservers.

In each mode, our nameservers give a slave its master's address. After the master is gone, they give consumers
the slave's address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import pytest

from routekeeper import AsyncClient, ConsumeFrom, ConsumerConfig, ReceivedMessage
from routekeeper.bench.timers import divide_periods

from .apache import START_S, Apache, ApacheBroker, ask, wait_until
from .ours import MODES, Fleet, OurDeployment, create_topic, in_parallel, route
from .patient import patient

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

NAME = "pair"
TOPIC, ALONE = "Copied", "Alone"
COUNT = 50


def test_slaves_find_their_master_copy_it_and_serve_when_it_is_gone(
    fleet: Fleet, apaches: dict[str, Apache]
) -> None:
    apache = apaches["4.9.7"]  # a 5.3.3 slave asks its master for topics only one minute after its start
    java = apaches["5.3.3"]
    deployments = [fleet.ours(mode) for mode in MODES]
    everywhere = [addr for deployment in deployments for addr in deployment.addrs]
    settings = fleet.broker_settings() | {
        "autoCreateTopicEnable": "false",
        "brokerName": NAME,
        "slaveReadEnable": "true",  # without this setting, a slave sends every consumer to the master
    }
    master = apache.broker(everywhere, name=NAME, settings=settings | {"brokerRole": "SYNC_MASTER"})
    started: list[ApacheBroker] = [master]
    slaves: list[tuple[OurDeployment, ApacheBroker, dict[str, str]]] = []
    try:
        for topic in (TOPIC, ALONE):
            create_topic(master.addr, topic, queues=1)
        alone = java.produce(deployments[0].addrs, ALONE, 1)
        assert alone.get("status SLAVE_NOT_AVAILABLE") == "1", alone
        for number, deployment in enumerate(deployments, 1):
            # The slave knows only the nameservers of one mode, and these give it the master's address.
            role = {"brokerRole": "SLAVE", "brokerId": str(number)}
            slave = apache.broker(
                deployment.addrs, name=f"slave-{number}", settings=settings | role, wait=False
            )
            started.append(slave)
            slaves.append((deployment, slave, {str(number): slave.addr}))

        def joined(deployment: OurDeployment, slave: ApacheBroker, itself: dict[str, str]) -> None:
            slave.wait_for("boot success")
            both = {"0": master.addr} | itself
            deployment.everywhere(
                lambda addr: addrs_of(addr) == both, f"{both} in mode {deployment.mode}", START_S
            )
            wait_until(lambda: copied(slave, ALONE) == 1, f"the first copy of {deployment.mode}", START_S)
            # A slave copies messages at once, but asks its master for the topics only every 10 s.
            wait_until(lambda: knows(slave), f"the topics of {deployment.mode}", START_S)

        in_parallel(*(partial(joined, *each) for each in slaves))
        sent = java.produce(deployments[0].addrs, TOPIC, COUNT)
        assert sent["status SEND_OK"] == str(COUNT), sent
        for deployment, slave, _ in slaves:
            wait_until(lambda s=slave: copied(s, TOPIC) == COUNT, f"the copy of {deployment.mode}", START_S)  # type: ignore[misc]
        master.kill()

        def consume(deployment: OurDeployment, itself: dict[str, str]) -> None:
            mode, addrs = deployment.mode, deployment.addrs
            deployment.everywhere(lambda addr: addrs_of(addr) == itself, "the master is gone")
            facts = java.consume(addrs, TOPIC, f"of_a_slave_{mode}", COUNT)
            assert (facts["distinct"], facts["duplicates"]) == (str(COUNT), "0"), facts
            assert asyncio.run(read(addrs, f"ours_of_a_slave_{mode}")) == set(range(COUNT))

        in_parallel(*(partial(consume, deployment, itself) for deployment, _, itself in slaves))
    finally:
        for broker in started:
            broker.kill()


def addrs_of(namesrv: str) -> dict[str, str]:
    found = route(namesrv, TOPIC)
    return {} if found is None else dict(found["brokerDatas"][0]["brokerAddrs"])


def copied(slave: ApacheBroker, topic: str) -> int:
    code, header, _ = ask(slave.addr, 30, {"topic": topic, "queueId": "0"})
    return int(header["extFields"]["offset"]) if code == 0 else 0


def knows(slave: ApacheBroker) -> bool:
    return f'"{TOPIC}"'.encode() in ask(slave.addr, 21)[2]


async def read(addrs: Sequence[str], group_name: str) -> set[int]:
    """Read the topic with our own push consumer; return the received numbers."""
    seen: set[int] = set()
    done = asyncio.Event()

    async def listen(batch: Sequence[ReceivedMessage]) -> None:
        seen.update(int(message.body) for message in batch)
        if len(seen) == COUNT:
            done.set()

    config = divide_periods(patient(addrs), 10)
    group = ConsumerConfig(group=group_name, consume_from=ConsumeFrom.FIRST_OFFSET)
    async with (
        AsyncClient(config=config) as client,
        client.push_consumer(group, {TOPIC: "*"}, listen),
        asyncio.timeout(START_S),
    ):
        await done.wait()
    return seen
