"""Tests of nameservers in a test environment that ask production nameservers for routes (``clusterTest``).

In each test, either the nameservers of the test environment or the production nameservers are ours. The other
nameservers are Apache's.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from routekeeper.remoting.route import decode_route
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.nameserver.test_main import started
from tests.nameserver.wire.test_cluster_test import address_server, query, register

from .apache import Apache, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow]


@pytest.mark.parametrize("release", ["4.9.7", "5.3.3"])
def test_our_test_environment_asks_apaches_production(
    release: str, apaches: dict[str, Apache], tmp_path: Path
) -> None:
    theirs = apaches[release].namesrv()
    flags = ("--http", "off", "--clusterTest", "true", "--cluster-test-nameservers", theirs.addr)
    with started(tmp_path, *flags) as (_, ready), BlockingClient() as client:
        register(client, theirs.addr)
        answer = client.invoke(ready["listen"], query("Known"))
        assert answer.code == 0
        assert decode_route(answer.body).broker_datas[0].broker_addrs == {0: "192.0.2.7:10911"}
        assert client.invoke(ready["listen"], query("Nowhere")).code == 17
    theirs.stop()


@pytest.mark.parametrize("release", ["4.9.7", "5.3.3"])
def test_apaches_test_environment_asks_our_production(
    release: str, apaches: dict[str, Apache], tmp_path: Path
) -> None:
    (tmp_path / "rocketmq").mkdir()
    with (
        started(tmp_path, "--http", "off") as (_, ready),
        address_server(tmp_path) as domain,
        BlockingClient() as client,
    ):
        (tmp_path / "rocketmq" / "nsaddr-prod").write_text(ready["listen"])
        register(client, ready["listen"])
        theirs = apaches[release].namesrv(
            settings={"clusterTest": "true", "productEnvName": "prod"},
            properties={"rocketmq.namesrv.domain": domain},
        )
        wait_until(lambda: client.invoke(theirs.addr, query("Known"), timeout_s=10).code == 0, "the route")
        assert client.invoke(theirs.addr, query("Nowhere"), timeout_s=10).code == 17
        theirs.stop()
