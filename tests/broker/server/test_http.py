"""Tests of a broker's HTTP port: metrics, health checks, and limits on clients.

The metrics have the names of RocketMQ's exporter.
"""

from __future__ import annotations

import asyncio
import errno
import http.client
import json
import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from routekeeper.broker.config import BrokerConfig
from routekeeper.broker.server.loading import load_broker
from routekeeper.broker.server.metrics import Samples, encode, gather
from routekeeper.broker.store.files import DISK
from routekeeper.broker.store.messages import Draft
from routekeeper.broker.tables.state import BrokerState
from routekeeper.remoting.bodies import ConsumerData, HeartbeatData
from routekeeper.remoting.codes import VERSION
from routekeeper.remoting.message import Host
from routekeeper.remoting.route import TopicConfig
from routekeeper.remoting.transport.server_hooks import ServerHooks
from tests.broker.conftest import StartBroker
from tests.broker.server.test_sync_flush import running_broker, settings
from tests.ports import free_addresses

HOST = Host("127.0.0.1", 10911)
BROKER = {"cluster": "DefaultCluster", "broker": "broker-a"}

Figures = dict[tuple[str, frozenset[tuple[str, str]]], float]


def get(addr: str, path: str, *, method: str = "GET", host: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection(addr, timeout=30)
    try:
        connection.request(method, path, headers={} if host is None else {"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def figures(text: str) -> Figures:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def figure(found: Figures, name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


def test_figures_have_the_names_and_labels_of_rocketmqs_exporter(start_broker: StartBroker) -> None:
    broker = start_broker("--http", "127.0.0.1:0")
    addr = broker.ready_line.split("http=")[1]
    wire = broker.wire()
    assert {wire.send_message("T", b"x", queue_id=number).code for number in (0, 0, 1)} == {0}
    consumers = (ConsumerData(group_name="G"),)
    beat = HeartbeatData(client_id="c", consumers=consumers, producer_groups=("P",))
    assert wire.call(34, body=beat.encode()).code == 0
    started = json.loads(wire.call(28).body)["table"]["bootTimestamp"]
    runtime = {
        "cluster": "DefaultCluster",
        "brokerIP": broker.addr,
        "brokerHost": "",
        "des": "V5_3_3",
        "boottime": started,
        "broker_version": str(VERSION),
    }
    offset = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "1"}
    assert wire.call(15, offset).code == 0
    assert wire.call(15, offset | {"queueId": "1", "commitOffset": "0"}).code == 0
    status, text = get(addr, "/metrics")
    assert status == 200
    found = figures(text)
    assert figure(found, "rocketmq_producer_offset", **BROKER, topic="T") == 3
    assert figure(found, "rocketmq_topic_retry_offset", **BROKER, topic="%RETRY%G") == 0
    assert figure(found, "rocketmq_consumer_offset", **BROKER, topic="T", group="G") == 1
    lag = {"group": "G", "topic": "T", "countOfOnlineConsumers": "1", "msgModel": "1"}
    assert figure(found, "rocketmq_group_diff", **lag) == 2
    local = "{}:{}".format(*wire.socket.getsockname())
    assert figure(found, "rocketmq_group_count", caddr=local, localaddr="c", group="G") == 1
    assert figure(found, "rocketmq_producer_count", **BROKER, group="P") == 1
    assert 0 < figure(found, "rocketmq_brokeruntime_commitlog_disk_ratio", **runtime) < 1
    total = figure(found, "rocketmq_brokeruntime_commitlogdir_capacity_total", **runtime)
    assert 0 < figure(found, "rocketmq_brokeruntime_commitlogdir_capacity_free", **runtime) < total
    assert figure(found, "rocketmq_broker_tps", **BROKER, brokerIP=broker.addr) >= 0
    assert figure(found, "rocketmq_brokeruntime_msg_put_total_today_now", **runtime) == 3
    assert figure(found, "mqbroker_requests_total", code="310") == 3
    assert figure(found, "mqbroker_connections") == 1


def test_who_asks_for_health_is_answered_and_nobody_for_more(start_broker: StartBroker) -> None:
    broker = start_broker("--http", "127.0.0.1:0")
    addr = broker.ready_line.split("http=")[1]
    assert get(addr, "/healthz") == (200, "ok\n")
    assert get(addr, "/readyz", host="LOCALHOST:1") == (200, "ready\n")
    assert get(addr, "/")[0] == 404
    assert get(addr, "/metrics", method="POST")[0] == 405
    # A page of another host must not read the metrics through a visitor's browser (DNS rebinding).
    assert get(addr, "/metrics", host="evil.example:80")[0] == 421
    assert broker.stop() == 0


@pytest.fixture
def state(tmp_path: Path) -> BrokerState:
    return load_broker(
        DISK, tmp_path, BrokerConfig(broker_name="broker-a"), store_host=HOST, boot="", now_ms=1
    )[0]


def gathered(state: BrokerState, *, now: float | None = None) -> Figures:
    work = gather(state, now=now)
    try:
        while True:
            next(work)
    except StopIteration as end:
        samples: Samples = end.value
    hooks = ServerHooks({}, time.monotonic)
    exposition = encode(samples, disk=(100, 75), requests={}, connections={}, lines_suppressed=0, hooks=hooks)
    return figures(exposition.decode())


def test_rates_are_those_of_the_last_minute(state: BrokerState) -> None:
    for step in range(13):
        state.stats.sample(10.0 * step)
        list(state.stats.sample_items(10.0 * step))
        state.stats.stored("T", 20, 4000)
        state.stats.handed_out("T", "G", 10, 2000)
        state.stats.sent_back("T", "G")
    state.stats.sample(130.0)
    found = gathered(state)
    group = {**BROKER, "topic": "T", "group": "G"}
    assert figure(found, "rocketmq_producer_tps", **BROKER, topic="T") == 2
    assert figure(found, "rocketmq_producer_message_size", **BROKER, topic="T") == 400
    assert figure(found, "rocketmq_consumer_tps", **group) == 1
    assert figure(found, "rocketmq_consumer_message_size", **group) == 200
    assert figure(found, "rocketmq_send_back_nums", **group) == 0.1
    assert figure(found, "rocketmq_broker_tps", **BROKER, brokerIP=str(HOST)) == 2
    assert figure(found, "rocketmq_broker_qps", **BROKER, brokerIP=str(HOST)) == 1
    runtime = {
        "cluster": "DefaultCluster",
        "brokerIP": str(HOST),
        "brokerHost": "",
        "des": "V5_3_3",
        "boottime": "1",
        "broker_version": str(VERSION),
    }
    for name, value in (
        ("commitlog_disk_ratio", 0.25),
        ("commitlogdir_capacity_total", 100),
        ("commitlogdir_capacity_free", 75),
        ("put_tps10", 2),
        ("put_tps60", 2),
        ("put_tps600", 2),
        ("gettransfered_tps60", 1),
        ("getfound_tps60", 0),
        ("getmiss_tps60", 0),
        ("msg_puttotal_todaymorning", 0),
        ("msg_gettotal_yesterdaymorning", 0),
    ):
        assert figure(found, f"rocketmq_brokeruntime_{name}", **runtime) == value, name


@pytest.mark.parametrize("phase", [0.25, 1.0, 2.5, 4.75, 5.0])
def test_steady_rate_is_the_same_at_each_phase_of_a_scrape(state: BrokerState, phase: float) -> None:
    for number in range(25):
        state.stats.sample(5.0 * number)
        state.stats.stored("T", 100, 4000)
    state.stats.sample(125.0)
    state.stats.stored("T", round(20 * phase), 4000)
    found = gathered(state, now=125.0 + phase)
    rates = {name: value for (name, _), value in found.items() if "brokeruntime_put_tps" in name}
    assert rates == {f"rocketmq_brokeruntime_put_tps{window}": 20 for window in (10, 60, 600)}


def test_lag_of_retries_and_of_dead_letters_has_its_own_names(state: BrokerState) -> None:
    for topic in ("T", "%RETRY%G", "%DLQ%G"):
        state.topics.put(TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1), now_ms=1)
        for _ in range(5):
            draft = Draft(topic=topic, queue_id=0, body=b"", properties="", tags_code=0, born_host=HOST)
            state.store.put(draft, now_ms=1)
    for topic, offset in (("T", 1), ("%RETRY%G", 2), ("%DLQ%G", 3)):
        state.offsets.commit(topic, "G", 0, offset)
    found = gathered(state)
    members = {"group": "G", "countOfOnlineConsumers": "0", "msgModel": "1"}
    assert figure(found, "rocketmq_group_diff", **members, topic="T") == 4
    assert figure(found, "rocketmq_group_retrydiff", **members, topic="%RETRY%G") == 3
    assert figure(found, "rocketmq_group_dlqdiff", **members, topic="%DLQ%G") == 2
    assert figure(found, "rocketmq_topic_retry_offset", **BROKER, topic="%RETRY%G") == 5
    assert figure(found, "rocketmq_topic_dlq_offset", **BROKER, group="G") == 5


def test_names_of_strangers_forge_no_lines(state: BrokerState) -> None:
    state.offsets.commit("T", 'a"} 1\nforged 7 # \\', 0, 1)
    found = gathered(state)
    assert not any(name == "forged" for name, _ in found)
    assert figure(found, "rocketmq_consumer_offset", **BROKER, topic="T", group='a"} 1\nforged 7 # \\') == 1


async def test_broker_whose_disk_does_not_sync_is_ready_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (addr,) = free_addresses(1)

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async with running_broker(tmp_path, settings(flush_disk_type="SYNC_FLUSH", http=addr)) as broker:
        assert await asyncio.to_thread(get, addr, "/readyz") == (200, "ready\n")
        monkeypatch.setattr(os, "fdatasync", broken)
        # Code 10 is RocketMQ's FLUSH_DISK_TIMEOUT: the message is stored, but may not survive a power cut.
        first, second = await broker.send(b"x"), await broker.send(b"y")
        assert (first.code, first.ext_fields["queueOffset"]) == (10, "0")
        assert second.code == 14
        assert "sync of" in (second.remark or "")
        status, text = await asyncio.to_thread(get, addr, "/readyz")
        assert status == 503
        assert re.match("not ready: no messages are taken: (cannot write queue files: )?sync of ", text)
        assert "Input/output error" in text
        assert await asyncio.to_thread(get, addr, "/healthz") == (200, "ok\n")
        found = figures((await asyncio.to_thread(get, addr, "/metrics"))[1])
        assert figure(found, "mqbroker_disk_state", state="refusing") == 1
        assert figure(found, "mqbroker_disk_state", state="ok") == 0


async def test_metrics_need_no_new_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (addr,) = free_addresses(1)
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(("asyncio", "reader")):
            raise RuntimeError("can't start new thread")
        start(thread)

    with ThreadPoolExecutor(1) as own:
        async with running_broker(tmp_path, settings(http=addr)):
            monkeypatch.setattr(threading.Thread, "start", refuse)
            status, _ = await asyncio.get_running_loop().run_in_executor(own, get, addr, "/metrics")
            assert status == 200
            monkeypatch.undo()
