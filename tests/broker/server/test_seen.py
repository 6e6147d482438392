"""A broker's metrics of slow requests, refusals and the lag of consumers. The number of series is bounded."""

from __future__ import annotations

from pathlib import Path

import pytest

from routekeeper.broker.store.messages import Draft
from routekeeper.broker.tables.state import BrokerState
from routekeeper.remoting.bodies import ConsumerData, HeartbeatData
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.route import TopicConfig
from tests.broker.conftest import StartBroker
from tests.broker.server.test_http import BROKER, HOST, figure, figures, gathered, get, state
from tests.tls import Authority
from tests.waiting import wait_until

__all__ = ["state"]

SERIES_MAX = 1_000


@pytest.mark.slow
def test_lag_is_told_in_messages_and_in_seconds(start_broker: StartBroker) -> None:
    broker = start_broker("--http", "127.0.0.1:0")
    addr = broker.ready_line.split("http=")[1]
    wire = broker.wire()
    assert {wire.send_message("T", b"x", queue_id=number).code for number in (0, 0, 0, 1)} == {0}
    offset = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "1"}
    assert wire.call(15, offset).code == 0
    assert wire.call(15, offset | {"queueId": "1"}).code == 0
    labels = {"topic": "T", "group": "G"}

    def lag(unit: str) -> float:
        return figure(figures(get(addr, "/metrics")[1]), f"mqbroker_consumer_lag_{unit}", **labels)

    assert lag("messages") == 2
    first = lag("seconds")
    wait_until(lambda: lag("seconds") > first + 0.3, "an age that grows")
    assert lag("seconds") < 60
    assert figure(figures(get(addr, "/metrics")[1]), "mqbroker_consumer_lag_all_messages") == 2
    assert wire.call(15, offset | {"commitOffset": "3"}).code == 0
    found = figures(get(addr, "/metrics")[1])
    assert figure(found, "mqbroker_consumer_lag_all_messages") == 0
    assert not any(name == "mqbroker_consumer_lag_messages" for name, _ in found)


@pytest.mark.slow
def test_requests_are_timed_by_group_and_answers_counted_by_code(start_broker: StartBroker) -> None:
    broker = start_broker("--http", "127.0.0.1:0")
    addr = broker.ready_line.split("http=")[1]
    wire = broker.wire()
    for number in range(5):
        assert wire.send_message("T", b"x", queue_id=number % 4).code == 0
    wire.answer(wire.pull("T", 0))
    wire.answer(wire.pull("T", 100))  # the queue ends below offset 100, so the pull finds no message
    assert wire.call(9_000).code == 3
    beat = HeartbeatData(client_id="c", consumers=(ConsumerData(group_name="G"),))
    assert wire.call(34, body=beat.encode()).code == 0
    assert wire.send_message("T", b"x", queue_id=99).code != 0
    waiting, other = (
        wire.pull("T", 2, sys_flag=6, suspend_ms=30_000),
        broker.wire(),
    )  # the pull at offset 2 waits, because queue 0 has the offsets 0 and 1
    assert other.send_message("T", b"x").code == 0
    assert wire.answer(waiting).code == 0
    found = figures(get(addr, "/metrics")[1])
    timed = {
        dict(labels)["group"]: value
        for (name, labels), value in found.items()
        if name == "mqbroker_request_seconds_count"
    }
    assert timed == {"send": 7, "pull": 2, "client": 1, "admin": 0}
    assert figure(found, "mqbroker_request_seconds_sum", group="send") > 0
    assert figure(found, "mqbroker_answers_total", code="0") == 9
    assert figure(found, "mqbroker_answers_total", code="3") == 1
    assert figure(found, "mqbroker_answers_total", code="other") == 0
    assert figure(found, "mqbroker_loop_late_seconds_count") > 0
    assert figure(found, "mqbroker_disk_state", state="ok") == 1
    for unusual in ("refusing", "unwritten", "hung"):
        assert figure(found, "mqbroker_disk_state", state=unusual) == 0
    for code in (40_001, 40_002):  # a client makes these codes up, so they get no series
        opaque = other.send(RemotingCommand.request(307, {"consumerGroup": "G", "clientId": "c"}))
        asked = wire.receive()
        while asked.code != 307:
            asked = wire.receive()
        wire.socket.sendall(asked.reply(code).encode())
        assert other.answer(opaque).code == code
    assert figure(figures(get(addr, "/metrics")[1]), "mqbroker_answers_total", code="other") == 2


@pytest.mark.slow
def test_connections_are_counted_by_kind(start_broker: StartBroker) -> None:
    broker = start_broker("--http", "127.0.0.1:0")
    addr = broker.ready_line.split("http=")[1]

    def kinds() -> dict[str, float]:
        found = figures(get(addr, "/metrics")[1])
        by_kind = {
            dict(labels)["kind"]: value
            for (name, labels), value in found.items()
            if name == "mqbroker_connections_by_kind"
        }
        assert figure(found, "mqbroker_connections") == sum(by_kind.values())
        return by_kind

    assert kinds() == {"consumer": 0, "producer": 0, "client": 0, "other": 0}
    consumer, producer, both, tool, silent = (broker.wire() for _ in range(5))
    group = (ConsumerData(group_name="G"),)
    for number, (wire, beat) in enumerate(
        (
            (consumer, HeartbeatData(client_id="c", consumers=group)),
            (producer, HeartbeatData(client_id="p", producer_groups=("P",))),
            (both, HeartbeatData(client_id="b", consumers=group, producer_groups=("P",))),
        )
    ):
        assert wire.call(34, body=beat.encode()).code == 0, number
    assert tool.call(26).code == 0
    wait_until(lambda: kinds() == {"consumer": 2, "producer": 1, "client": 1, "other": 1}, "all are seen")
    for wire in (consumer, both):
        goodbye = {"clientID": "c", "consumerGroup": "G"}
        assert wire.call(35, goodbye).code == 0
    assert kinds() == {"consumer": 0, "producer": 2, "client": 2, "other": 1}
    silent.close()
    wait_until(lambda: kinds()["other"] == 0, "one that is closed counts no more")


def test_ever_so_many_groups_make_a_bounded_number_of_series(state: BrokerState) -> None:
    for number in range(5_000):
        state.offsets.commit("T", f"G{number}", 0, number)
        state.stats.handed_out("T", f"G{number}", 1, 1)
    found = gathered(state)
    counts: dict[str, int] = {}
    for name, _ in found:
        counts[name] = counts.get(name, 0) + 1
    assert {name: count for name, count in counts.items() if count > SERIES_MAX} == {}
    assert counts["rocketmq_consumer_offset"] == SERIES_MAX
    assert figure(found, "mqbroker_series_left_out", family="rocketmq_consumer_offset") == 4_000
    # Only ``SERIES_MAX`` groups have a series of this metric: the groups with the greatest offsets.
    assert figure(found, "rocketmq_consumer_offset", **BROKER, topic="T", group="G4999") == 4_999


def test_lag_of_all_groups_is_summed_up_also_where_few_have_a_series(state: BrokerState) -> None:
    state.topics.put(TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1), now_ms=1)
    for _ in range(10):
        state.store.put(
            Draft(topic="T", queue_id=0, body=b"", properties="", tags_code=0, born_host=HOST), now_ms=1
        )
    for number in range(300):
        state.offsets.commit("T", f"G{number}", 0, 0 if number == 7 else 5)
    found = gathered(state)
    lags = [labels for name, labels in found if name == "mqbroker_consumer_lag_messages"]
    assert len(lags) == 100
    assert figure(found, "mqbroker_consumer_lag_messages", topic="T", group="G7") == 10
    assert figure(found, "mqbroker_consumer_lag_all_messages") == 299 * 5 + 10


@pytest.mark.slow
@pytest.mark.skipif(not Authority.is_possible(), reason="openssl is not on this machine")
def test_the_end_of_a_certificate_is_served_under_its_port(start_broker: StartBroker, tmp_path: Path) -> None:
    cert, key = Authority(tmp_path).issue(days=200)
    broker = start_broker("--http", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key)
    found = figures(get(broker.ready_line.split("http=")[1], "/metrics")[1])
    assert 199 < figure(found, "mqbroker_certificate_left_seconds", port="wire") / 86_400 <= 200
