"""Log lines of a client about a long failure: one at the start, one each minute, and one at the end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from routekeeper.bench.timers import divide_periods
from routekeeper.client.blocking import Client
from routekeeper.client.config import ClientConfig, ConsumeFrom, ConsumerConfig
from routekeeper.client.producer import Message
from routekeeper.client.queue_reader import ReceivedMessage
from routekeeper.client.trouble import TroubleLog
from routekeeper.remoting.bodies import ConsumerIdList
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from tests.client.conftest import Process

NOTHING_THERE = {"nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0", "suggestWhichBrokerId": "0"}


class Script:
    """A server that is nameserver and broker, with 8 empty queues. Pulls and route requests may fail."""

    def __init__(self, peer: Any, routes: Callable[[RemotingCommand], Any]) -> None:
        self.failing: set[int] = set()
        self.asked: dict[int, int] = {}
        self._routes = routes
        peer.answer = self.answer

    def answer(self, request: RemotingCommand) -> Any:
        self.asked[request.code] = self.asked.get(request.code, 0) + 1
        if request.code in self.failing:
            return request.reply(1, remark="[NO_QUORUM] of the test")
        match request.code:
            case RequestCode.GET_CONSUMER_LIST_BY_GROUP:
                return request.reply(body=ConsumerIdList(consumer_ids=("me",)).encode())
            case RequestCode.QUERY_CONSUMER_OFFSET:
                return request.reply(22, remark="Not found")
            case RequestCode.PULL_MESSAGE:
                return request.reply(19, ext_fields=NOTHING_THERE)
        return self._routes(request)


def warnings(caplog: pytest.LogCaptureFixture, word: str) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and word in record.getMessage()
    ]


def lines(trouble: TroubleLog, events: str, caplog: pytest.LogCaptureFixture, **values: Any) -> list[str]:
    """Return the log lines after ``events``, which has one character for each second.

    The character x is a failure, o is a success, and - is a second without an event.
    """
    caplog.set_level(logging.WARNING)
    for second, event in enumerate(events):
        if event == "x":
            trouble.failed(float(second), "it fails second=%d", second, **values)
        elif event == "o":
            trouble.worked(float(second), **values)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("events", "wanted"),
    [
        ("ooo", []),
        ("x", ["it fails second=0"]),
        ("x" * 60, ["it fails second=0"]),
        (
            "x" * 121,
            ["it fails second=0", "it fails second=60 failures=60", "it fails second=120 failures=60"],
        ),
        ("xxxoo", ["it fails second=0", "it works failures=3"]),
        ("xo" * 30, ["it fails second=0", "it works failures=1"]),
        (
            "xo" + "-" * 58 + "xo",
            ["it fails second=0", "it works failures=1", "it fails second=60", "it works failures=1"],
        ),
    ],
)
def test_lines_are_written_at_the_start_once_a_minute_and_at_the_end(
    events: str, wanted: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert lines(TroubleLog(logging.getLogger("t"), "it works"), events, caplog) == wanted


def test_trouble_is_over_when_every_part_of_it_works(caplog: pytest.LogCaptureFixture) -> None:
    trouble = TroubleLog(logging.getLogger("t"), "it works")
    lines(trouble, "x", caplog, source="a")
    lines(trouble, "-x-", caplog, source="b")
    lines(trouble, "---o", caplog, source="a")
    assert lines(trouble, "----o", caplog, source="b") == ["it fails second=0", "it works failures=2"]


def test_what_works_now_and_then_is_over_after_a_quiet_time(caplog: pytest.LogCaptureFixture) -> None:
    trouble = TroubleLog(logging.getLogger("t"), "it works", quiet_s=10.0)
    assert lines(trouble, "xoxoxooooooo", caplog) == ["it fails second=0"]
    assert lines(trouble, "-" * 20 + "o", caplog) == ["it fails second=0", "it works failures=3"]


@pytest.mark.slow
def test_pulls_that_fail_are_told_when_it_starts_and_when_it_is_over(
    new_peer: Callable[..., Any],
    answers: Any,
    route_body: Any,
    eventually: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    peer = new_peer()
    script = Script(peer, answers({"T": route_body(queues=8, broker_a=peer.addr)}))
    script.failing.add(RequestCode.PULL_MESSAGE)
    config = ClientConfig(nameservers=(peer.addr,), client_id="me", shutdown_s=1.0)
    with Client(config) as started:
        group = ConsumerConfig(group="g", consume_from=ConsumeFrom.FIRST_OFFSET)
        started.consume(group, {"T": "*"}, lambda messages: None)
        eventually(lambda: script.asked.get(RequestCode.PULL_MESSAGE, 0) >= 24, "each queue failed thrice")
        assert len(warnings(caplog, "pull")) == 1
        script.failing.clear()
        eventually(lambda: len(warnings(caplog, "pull")) == 2, "the end of the trouble is told")
        count = script.asked[RequestCode.PULL_MESSAGE]
        eventually(lambda: script.asked[RequestCode.PULL_MESSAGE] >= count + 24, "pulls go on")
    assert len(warnings(caplog, "pull")) == 2
    assert "pulls work again broker=broker-a" in warnings(caplog, "pull")[1]


@pytest.mark.slow
def test_route_refreshes_that_fail_are_told_when_it_starts_and_when_it_is_over(
    new_peer: Callable[..., Any],
    answers: Any,
    route_body: Any,
    eventually: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    topics = [f"T{number}" for number in range(5)]
    peer = new_peer()
    script = Script(peer, answers({topic: route_body(broker_a=peer.addr) for topic in topics}))
    config = ClientConfig(nameservers=(peer.addr,), route_refresh_s=0.05, shutdown_s=1.0)
    with Client(config) as started:
        producer = started.producer("g")
        for topic in topics:
            producer.send(Message(topic=topic, body=b"x"))
        peer.hang_up.add(RequestCode.GET_ROUTEINFO_BY_TOPIC)
        requests = len(peer.requests)
        eventually(lambda: len(peer.requests) > requests + 40, "many refreshes failed")
        assert len(warnings(caplog, "route")) == 1
        peer.hang_up.clear()
        eventually(lambda: len(warnings(caplog, "route")) == 2, "the end of the trouble is told")
        count = script.asked[RequestCode.GET_ROUTEINFO_BY_TOPIC]
        eventually(lambda: script.asked[RequestCode.GET_ROUTEINFO_BY_TOPIC] > count + 40, "refreshes go on")
    assert len(warnings(caplog, "route")) == 2
    assert "routes are refreshed again" in warnings(caplog, "route")[1]


@pytest.mark.slow
def test_a_consumer_that_cannot_learn_its_offsets_says_so_once(
    new_peer: Callable[..., Any],
    answers: Any,
    route_body: Any,
    eventually: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    peer = new_peer()
    script = Script(peer, answers({"T": route_body(queues=8, broker_a=peer.addr)}))
    script.failing.add(RequestCode.QUERY_CONSUMER_OFFSET)
    config = ClientConfig(nameservers=(peer.addr,), client_id="me", shutdown_s=1.0)
    with Client(config) as started:
        group = ConsumerConfig(group="g", consume_from=ConsumeFrom.FIRST_OFFSET)
        started.consume(group, {"T": "*"}, lambda messages: None)
        eventually(
            lambda: script.asked.get(RequestCode.QUERY_CONSUMER_OFFSET, 0) >= 24, "three rounds failed"
        )
        assert len(warnings(caplog, "start offset unknown")) == 1
        script.failing.clear()
        eventually(
            lambda: len(warnings(caplog, "works again group=g")) == 1, "the end of the trouble is told"
        )


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.parametrize("broadcast", [False, True])
def test_a_listener_that_always_fails_writes_one_line_and_not_one_for_each_message(
    broadcast: bool,
    nameserver: Process,
    broker: Process,
    eventually: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic, calls, lock = f"AlwaysFails{broadcast}", [0], threading.Lock()

    def listen(messages: Sequence[ReceivedMessage]) -> None:
        with lock:
            calls[0] += 1
        raise TypeError("of the user's own")

    with Client(divide_periods(ClientConfig(nameservers=(nameserver.addr,)), 10)) as started:
        producer = started.producer("senders")
        for number in range(200):
            producer.put(Message(topic=topic, body=b"%d" % number))
        producer.flush()
        group = ConsumerConfig(
            group=f"always_fails_{broadcast}", consume_from=ConsumeFrom.FIRST_OFFSET, broadcast=broadcast
        )
        started.consume(group, {topic: "*"}, listen)
        eventually(lambda: calls[0] >= 200, "every message failed")
    told = warnings(caplog, group.group)
    assert len(told) == 1, told[:5]
    assert caplog.text.count("Traceback") == 1


@pytest.mark.slow
def test_messages_that_were_put_and_not_sent_are_told_while_the_program_runs(
    new_peer: Callable[..., Any],
    answers: Any,
    route_body: Any,
    eventually: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    peer = new_peer()
    script = Script(peer, answers({"T": route_body(broker_a=peer.addr)}))
    script.failing.add(RequestCode.SEND_BATCH_MESSAGE)
    with Client(ClientConfig(nameservers=(peer.addr,))) as started:
        producer = started.producer("g")
        for _ in range(3):
            producer.put(Message(topic="T", body=b"x"))
            producer.flush()
        assert len(warnings(caplog, "not sent")) == 1
        script.failing.clear()
        producer.put(Message(topic="T", body=b"x"))
        producer.flush()
        assert len(warnings(caplog, "sent again")) == 1
