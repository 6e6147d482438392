"""Time limits for closing a client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from routekeeper.bench.timers import divide_periods
from routekeeper.client.blocking import Client
from routekeeper.client.config import ClientConfig, ConsumeFrom, ConsumerConfig, ProducerConfig
from routekeeper.client.errors import SendNotApplied, SendOutcomeUnknown
from routekeeper.client.producer import Message
from routekeeper.client.queue_reader import ReceivedMessage
from routekeeper.remoting.codes import RequestCode
from tests.client.conftest import Process


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.one_core
def test_close_has_one_deadline_for_all_hanging_workers(
    nameserver: Process, broker: Process, eventually: Callable[..., None]
) -> None:
    hanging, end, lock = [0], threading.Event(), threading.Lock()

    def hang(messages: Sequence[ReceivedMessage]) -> None:
        with lock:
            hanging[0] += 1
        end.wait(60)

    started = Client(divide_periods(ClientConfig(nameservers=(nameserver.addr,), shutdown_s=2.0), 10))
    try:
        producer = started.producer("senders")
        for number in range(8):
            producer.send(Message(topic="Hanging", body=b"%d" % number))
        group = ConsumerConfig(group="hanging", consume_from=ConsumeFrom.FIRST_OFFSET, workers=8)
        started.consume(group, {"Hanging": "*"}, hang)
        eventually(lambda: hanging[0] == 8, "every worker hangs")
        began = time.monotonic()
        started.close()
        # ``shutdown_s`` is 2 s for all eight workers together. If the client waited 2 s for one worker after
        # the other, closing would take 16 s or more.
        assert time.monotonic() - began < 8
    finally:
        end.set()
        started.close()


@pytest.mark.slow
def test_close_waits_no_longer_for_sends_in_threads_and_each_has_an_outcome(
    new_peer: Callable[..., Any], answers: Any, route_body: Any
) -> None:
    peer = new_peer()
    routes = answers({"T": route_body(broker_a=peer.addr)})
    peer.answer = lambda request: None if request.code == RequestCode.SEND_MESSAGE_V2 else routes(request)
    config = ClientConfig(nameservers=(peer.addr,), shutdown_s=1.0, call_timeout_s=0.5)
    started = Client(config, send_threads=2)
    producer = started.producer(ProducerConfig(group="g", send_timeout_s=5.0, retry_times=0))
    futures = [producer.send_async(Message(topic="T", body=b"x")) for _ in range(8)]
    began = time.monotonic()
    started.close()
    # Two threads make the eight sends. If each send took its 5 s, closing would take 20 s.
    assert time.monotonic() - began < 10
    for future in futures:
        assert isinstance(future.exception(10), SendNotApplied | SendOutcomeUnknown)
