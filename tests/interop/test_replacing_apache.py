"""Test that replaces Apache's nameservers by ours one by one, while Apache's broker and clients run.

The test follows docs/operations.md, "Replacing Apache's nameservers one by one".
"""

from __future__ import annotations

import json
import math
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.ports import free_addresses

from .apache import START_S, Apache, ApacheBroker, ask, has_route, wait_until
from .ours import MODES, OurNamesrv, create_topic, our_mqadmin, start_namesrv

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

NAMESRVS = 3

# The broker retries unreachable nameservers every connectTimeoutMillis (here 1000 ms, by default 3000 ms).
BROKER = {"autoCreateTopicEnable": "false", "connectTimeoutMillis": "1000"}


@pytest.mark.parametrize("mode", MODES)
def test_apaches_nameservers_are_replaced_one_by_one_under_traffic(
    apache_5: Apache, tmp_path: Path, mode: str
) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-the-operators\n")
    token.chmod(0o600)
    with ThreadPoolExecutor(NAMESRVS) as pool:
        starts = [pool.submit(apache_5.namesrv) for _ in range(NAMESRVS)]
        old = [start.result() for start in starts]
    addrs = [namesrv.addr for namesrv in old]
    for addr in addrs:
        assert ask(addr, 100, {"namespace": "n", "key": "k", "value": "v"})[0] == 0
    broker = apache_5.broker(addrs, name=f"moving-{mode}", settings=BROKER, wait=False)
    new: list[OurNamesrv] = []
    try:
        broker.wait_for("boot success")
        create_topic(broker.addr, "Moving")
        for addr in addrs:
            register_at(broker, addr)
        for addr in addrs:
            await_route(addr, "Moving", broker)
        traffic = apache_5.traffic(addrs, "Moving", "movers")
        rafts: list[str] = []
        for number, namesrv in enumerate(old):
            namesrv.stop()
            data = tmp_path / f"data-{number}"
            data.mkdir()
            flags = ["--data", str(data), "-c", str(namesrv.home / "namesrv.properties")]
            if mode == "raft":
                rafts += free_addresses(1)
                flags += ["--mode", "raft", "--raft", rafts[-1], "--peers", ",".join(rafts)]
                flags += ["--http-token-file", str(token), "--election-timeout-ms", "2000"]
            if mode == "independent" or number == 0:
                shutil.copy(namesrv.home / "namesrv" / "kvConfig.json", data)
            new.append(start_namesrv(flags, tmp_path / f"ours-{number}", namesrv.addr))
            if len(rafts) > 1:
                http = ";".join(one.http for one in new)
                change = ("--http", http, "--token-file", str(token), "--address", rafts[-1])
                added = our_mqadmin("addMember", *change)
                assert added.returncode == 0, added.stderr
            wait_until(lambda: new[-1].get("/readyz")[0] == 200, "it serves", START_S)
            register_at(broker, namesrv.addr)
            for addr in addrs:
                await_route(addr, "Moving", broker)
        assert clusters(addrs).count(broker.addr) == 1
        create_topic(broker.addr, "BornAfterwards")
        for one in new:
            await_route(one.addr, "BornAfterwards", broker)
            assert ask(one.addr, 101, {"namespace": "n", "key": "k"})[1]["extFields"]["value"] == "v"
            assert json.loads(one.get("/v1/status")[1])["mode"] == mode
        asked = sum(one.requests(105) for one in new)
        wait_until(lambda: sum(one.requests(105) for one in new) > asked + 3, "clients to ask ours")
        assert traffic.end() > 0
        same = our_mqadmin("routeDiff", "--http", ";".join(one.http for one in new))
        assert "the route tables of 3 name servers are equal" in same.stdout, same.stdout + same.stderr
        for one in new:
            one.popen.terminate()
        assert [one.wait(START_S) for one in new] == [0, 0, 0]
        assert not [one.log() for one in new if "Traceback" in one.log()]
    finally:
        for program in (broker, *old, *new):
            program.kill()


def await_route(addr: str, topic: str, broker: ApacheBroker) -> None:
    wait_until(lambda: has_route(addr, topic, broker.addr), f"{topic} at {addr}", START_S)


def register_at(broker: ApacheBroker, addr: str) -> None:
    """Make the broker register repeatedly until the nameserver lists it.

    One registration is not enough: a broker does not register at a nameserver that it has not yet reached.
    """

    hastened = -math.inf

    def registered() -> bool:
        nonlocal hastened
        if has_route(addr, "Moving", broker.addr):
            return True
        if time.monotonic() > hastened + 0.5:
            # Set the permission to its present value: the broker then registers at once.
            assert ask(broker.addr, 25, body=b"brokerPermission=6")[0] == 0
            hastened = time.monotonic()
        return False

    wait_until(registered, f"{broker.name} at {addr}", START_S)


def clusters(addrs: list[str]) -> str:
    listing = our_mqadmin("clusterList", namesrvs=addrs)
    assert listing.returncode == 0, listing.stderr
    return listing.stdout
