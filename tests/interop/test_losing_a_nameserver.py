"""Test of Apache's broker and clients while one of our nameservers is killed and restarted."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from .apache import START_S, Apache, has_route, listed, wait_until
from .ours import REGISTER_MS, SCAN_MS, RouteWatch, in_parallel, routed_topic, start_again, start_namesrvs

pytestmark = pytest.mark.interop


def test_apaches_programs_survive_the_loss_of_a_nameserver(
    apaches: dict[str, Apache], tmp_path: Path
) -> None:
    in_parallel(
        lambda: lose_one("independent", apaches["4.9.7"], tmp_path),
        lambda: lose_one("raft", apaches["5.3.3"], tmp_path),
    )


def lose_one(mode: str, apache: Apache, folder: Path) -> None:
    namesrvs = start_namesrvs(mode, folder, {"scanNotActiveBrokerInterval": str(SCAN_MS)})
    addrs = [namesrv.addr for namesrv in namesrvs]
    settings = {"autoCreateTopicEnable": "false", "registerNameServerPeriod": str(REGISTER_MS)}
    broker = apache.broker(addrs, name=f"broker-{mode}", settings=settings, hasten=True)
    try:
        topic = routed_topic(addrs, broker.addr, "Survivor")
        consumer = apache.consumer(addrs, topic, "survivors", 200)
        consumer.wait_for("ready")
        lost = next((n for n in namesrvs if n.role == "leader"), namesrvs[0])
        left = [addr for addr in addrs if addr != lost.addr]
        lost.kill()
        if mode == "raft":
            wait_until(lambda: "leader" in [n.role for n in namesrvs if n is not lost], "a new leader")
        with closing(RouteWatch(left, {topic: broker.addr})) as watch:
            # Leave out the killed nameserver's address. A new Java client tries only one of its three
            # addresses in a call. So the first call would fail in one of three cases.
            assert apache.produce(left, topic, 200)["status SEND_OK"] == "200"
            assert consumer.wait(START_S) == 0, consumer.text()
            assert "distinct 200\n" in consumer.text()
            routed_topic(left, broker.addr, "BornWithout")

            namesrvs.append(start_again(lost))
            if mode == "raft":
                # A restarted raft member reads its own log, so it lists the broker before the broker
                # registers again.
                assert listed(lost.addr, broker.addr)
            wait_until(
                lambda: has_route(lost.addr, "BornWithout", broker.addr),
                "the broker to report to the one that came back",
                START_S,
            )
        assert watch.missing == []
        assert len(watch.unanswered) <= watch.answered / 20, watch.unanswered
    finally:
        broker.kill()
        for namesrv in namesrvs:
            namesrv.kill()
