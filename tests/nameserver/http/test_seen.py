"""Tests of the metrics that show slow requests, refused requests and lost brokers, in both modes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.registration import RegisterBody, encode_register_body
from routekeeper.remoting.route import DataVersion, TopicConfig
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.faults.servers import Running, server
from tests.nameserver.http.test_server_http import running
from tests.ports import free_addresses
from tests.tls import Authority
from tests.waiting import WITHIN_S, wait_until

pytestmark = pytest.mark.slow

GROUPS = {"route", "register", "unregister", "list", "admin"}
REASONS = {"closed", "expired", "unregistered", "displaced", "moved", "fenced"}


class Nameserver:
    """A nameserver that runs as a separate process."""

    def __init__(self, process: Running, mode: str) -> None:
        self.mode, self.pid, self.addr, self.http = mode, process.pid, process.listen, process.http
        wait_until(lambda: self.get("/readyz") == 200, "readiness")

    def get(self, path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=WITHIN_S) as answer:
                return int(answer.status)
        except OSError:
            return 0

    def json(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self.http}{path}", timeout=WITHIN_S) as answer:
            return json.load(answer)

    def figures(self) -> Mapping[str, float]:
        """Return the samples of /metrics, as a dict by name and labels."""
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=WITHIN_S) as answer:
            text = answer.read().decode()
        return {
            sample.name
            + "".join(f" {name}={value}" for name, value in sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def figure(self, name: str) -> float:
        return self.figures()[name]

    @contextlib.contextmanager
    def broker(self, name: str) -> Iterator[BlockingClient]:
        """Register a broker, and yield the connection over which it registered."""
        with BlockingClient() as client:
            assert self.register(client, name).code == 0
            yield client

    def register(self, client: BlockingClient, name: str, counter: int = 1) -> RemotingCommand:
        topics = tuple(TopicConfig(topic_name=f"{name}-{number}") for number in range(2))
        body = RegisterBody(data_version=DataVersion(counter=counter), topic_configs=topics)
        encoded = encode_register_body(body, compressed=False, version=479)
        return client.invoke(self.addr, RemotingCommand.request(103, self.fields(name), encoded))

    def fields(self, name: str) -> dict[str, str]:
        return {
            "brokerName": name,
            "brokerAddr": f"{name}:10911",
            "clusterName": "C",
            "haServerAddr": f"{name}:10912",
            "brokerId": "0",
        }


@pytest.fixture(scope="module", params=["independent", "raft"])
def nameserver(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Nameserver]:
    """Yield one nameserver of each mode for all tests. Each test registers its own brokers."""
    (raft,) = free_addresses(1)
    more = ("--raft", raft, "--peers", raft, "--durability", "fsync") if request.param == "raft" else ()
    folder = tmp_path_factory.mktemp(request.param)
    with server("nameserver", folder, "--mode", request.param, *more, http=True) as process:
        yield Nameserver(process, request.param)


@pytest.fixture
def client() -> Iterator[BlockingClient]:
    with BlockingClient() as client:
        yield client


def ask(nameserver: Nameserver, client: BlockingClient, code: int, **fields: str) -> int:
    return client.invoke(nameserver.addr, RemotingCommand.request(code, fields)).code


def test_requests_are_timed_by_group_and_the_groups_are_few(
    nameserver: Nameserver, client: BlockingClient
) -> None:
    def counts() -> dict[str, float]:
        name = "mqnamesrv_request_seconds_count group="
        return {key.removeprefix(name): value for key, value in nameserver.figures().items() if name in key}

    before = counts()
    assert set(before) == GROUPS
    with nameserver.broker("timed") as broker:
        for _ in range(200):
            assert ask(nameserver, client, 105, topic="timed-0") == 0
        assert ask(nameserver, client, 206) == 0
        assert ask(nameserver, client, 100, namespace="N", key="k", value="v") == 0
        assert (
            broker.invoke(nameserver.addr, RemotingCommand.request(104, nameserver.fields("timed"))).code == 0
        )
    for code in range(9_000, 9_020):
        # Code 3 means that the nameserver does not know the request code.
        assert ask(nameserver, client, code) == 3
    after = counts()
    grown = {group: after[group] - before[group] for group in GROUPS}
    # The nameserver measures only every 64th route query that its cache answers. Only then does it add the
    # queries since the last measurement to the count. The count may therefore be wrong by up to 64.
    assert grown.pop("route") == pytest.approx(200, abs=64)
    assert grown == {"register": 1, "unregister": 1, "list": 1, "admin": 1}
    assert nameserver.figure("mqnamesrv_request_seconds_sum group=register") > 0


def test_answers_are_counted_by_their_codes(nameserver: Nameserver, client: BlockingClient) -> None:
    def counts() -> dict[str, float]:
        name = "mqnamesrv_answers_total code="
        return {key.removeprefix(name): value for key, value in nameserver.figures().items() if name in key}

    before = counts()
    assert {"0", "17", "other"} <= set(before)
    with nameserver.broker("answered"):
        for number in range(50):
            assert ask(nameserver, client, 105, topic=f"nobody-{number}") == 17
            assert ask(nameserver, client, 105, topic="nobody") == 17
            assert ask(nameserver, client, 105, topic="answered-0") == 0
        assert ask(nameserver, client, 9_000) == 3
        assert ask(nameserver, client, 105) == 17  # the cache does not answer a query without a topic
        assert ask(nameserver, client, 100) == 1  # the answer has code 1, because the key is missing
    after = counts()
    grown = {code: after[code] - before.get(code, 0) for code in after if after[code] != before.get(code, 0)}
    assert grown == {"0": 51, "17": 101, "3": 1, "1": 1}
    assert len(after) < 20


def test_misses_are_counted_once_however_they_arrive(nameserver: Nameserver) -> None:
    """Each query counts once, even if many queries for unknown topics arrive in one TCP segment.

    The nameserver looks up such queries twice, but must not count them twice.
    """
    before = nameserver.figure("mqnamesrv_answers_total code=17")
    host, _, port = nameserver.addr.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=WITHIN_S) as plain:
        for names in (["m"] * 4, [*["m"] * 4, "new-1", "m", "new-2"], ["m", "new-1", "new-2"] * 5):
            frames = [
                RemotingCommand.request(105, {"topic": name}).with_opaque(10 + number).encode()
                for number, name in enumerate(names)
            ]
            plain.sendall(b"".join(frames))
            received = b""
            while received.count(b'"code":17') < len(names):
                received += plain.recv(65536)
    assert nameserver.figure("mqnamesrv_answers_total code=17") - before == 26


def test_a_write_of_the_group_is_timed_where_it_waits(nameserver: Nameserver, client: BlockingClient) -> None:
    names = [f"mqnamesrv_raft_{step}_seconds_count" for step in ("commit", "fsync", "apply")]
    before = nameserver.figures()
    if nameserver.mode == "independent":
        assert "mqnamesrv_request_seconds_count group=admin" in before
        assert not set(names) & set(before)  # independent mode has no raft log
        return
    for number in range(5):
        assert ask(nameserver, client, 100, namespace="N", key=f"k{number}", value="v") == 0
    after = nameserver.figures()
    assert after[names[0]] - before[names[0]] == 5
    assert after[names[1]] > before[names[1]]
    assert after[names[2]] - before[names[2]] >= 5
    for step in ("commit", "fsync", "apply"):
        assert 0 < after[f"mqnamesrv_raft_{step}_seconds_sum"] < WITHIN_S


@pytest.mark.one_core
def test_a_loop_that_stood_still_is_seen(nameserver: Nameserver) -> None:
    def late() -> float:
        found = nameserver.figures()
        name = "mqnamesrv_loop_late_seconds"
        return found[f"{name}_count"] - found[f"{name}_bucket le=0.25"]

    before = late()
    os.kill(nameserver.pid, signal.SIGSTOP)
    time.sleep(0.6)  # meanwhile the process is stopped, so its event loop is late
    os.kill(nameserver.pid, signal.SIGCONT)
    wait_until(lambda: late() > before, "a turn of the loop that was late")


def test_brokers_that_are_gone_are_counted_by_the_reason(nameserver: Nameserver) -> None:
    def counts() -> dict[str, float]:
        name = "mqnamesrv_brokers_gone_total reason="
        return {key.removeprefix(name): value for key, value in nameserver.figures().items() if name in key}

    before = counts()
    assert set(before) == REASONS
    with nameserver.broker("gone-1") as broker:
        request = RemotingCommand.request(104, nameserver.fields("gone-1"))
        assert broker.invoke(nameserver.addr, request).code == 0
        wait_until(lambda: counts()["unregistered"] == before["unregistered"] + 1, "a goodbye")
    with nameserver.broker("gone-2"):
        pass
    wait_until(lambda: counts()["closed"] == before["closed"] + 1, "a closed connection")
    assert counts() == before | {reason: before[reason] + 1 for reason in ("unregistered", "closed")}


def test_the_age_of_the_last_heartbeat_grows_until_the_next_one(nameserver: Nameserver) -> None:
    def age_ms() -> int:
        (found,) = nameserver.json("/v1/brokers?prefix=aged")["brokers"]
        return int(found["last_seen_ms"])

    def oldest() -> float:
        return nameserver.figure("mqnamesrv_broker_last_seen_oldest_seconds")

    with nameserver.broker("aged") as broker:
        wait_until(lambda: age_ms() >= 700, "an age of 700 ms")
        assert 0.5 < oldest() < WITHIN_S
        begun = time.monotonic()
        assert nameserver.register(broker, "aged").code == 0
        assert age_ms() <= (time.monotonic() - begun) * 1000, (
            "it counts from this heartbeat, not from the first"
        )
    wait_until(lambda: not nameserver.json("/v1/brokers")["brokers"], "no broker")
    assert "mqnamesrv_broker_last_seen_oldest_seconds" not in nameserver.figures()


def test_connections_are_counted_by_kind(nameserver: Nameserver, client: BlockingClient) -> None:
    def counts() -> tuple[float, ...]:
        found = nameserver.figures()
        return tuple(
            found[f"mqnamesrv_connections_by_kind kind={kind}"] for kind in ("broker", "client", "other")
        )

    wait_until(lambda: counts() == (0, 0, 0), "no connection")
    host, _, port = nameserver.addr.rpartition(":")
    with nameserver.broker("counted"), socket.create_connection((host, int(port))):
        wait_until(lambda: counts() == (1, 0, 1), "a broker, and one who has said nothing")
        assert ask(nameserver, client, 105, topic="counted-0") == 0
        assert counts() == (1, 1, 1)
        with BlockingClient() as tool:
            assert ask(nameserver, tool, 206) == 0
            assert counts() == (1, 2, 1)
    wait_until(lambda: counts() == (0, 1, 0), "the client alone")


@pytest.mark.skipif(not Authority.is_possible(), reason="openssl is not on this machine")
async def test_the_end_of_each_certificate_is_served_under_its_port(tmp_path: Path) -> None:
    cert, key = Authority(tmp_path).issue(days=200)
    async with running(tmp_path) as ns:
        assert "mqnamesrv_certificate_left_seconds" not in (await ns.get("/metrics"))[1]
    async with running(tmp_path, tls_cert=cert, tls_key=key) as ns:
        found = re.findall(
            r'^mqnamesrv_certificate_left_seconds\{port="(\w+)"\} (\S+)$',
            (await ns.get("/metrics"))[1],
            re.MULTILINE,
        )
        ((port, left_s),) = found
        assert port == "wire"
        assert 199 < float(left_s) / 86_400 <= 200
