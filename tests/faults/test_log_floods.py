"""The number of log lines is limited even if clients cause many log events, but no audit line is left out."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from routekeeper.remoting.bodies import ConsumerData, HeartbeatData
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.transport.blocking import BlockingClient

from .servers import server
from .test_stuck_output import registration

pytestmark = [pytest.mark.faults, pytest.mark.slow]

EVENT_LINES = 400
#: Length in s of a time window. In each window, a program may write at most EVENT_LINES lines for each event.
WINDOW_S = 60.0
EVENTS = 600
WAIT_S = 40.0


class Log:
    """The log of a program that has ended."""

    def __init__(self, path: Path, began: float) -> None:
        self.text, self._lasted_s = path.read_text(), time.monotonic() - began

    @property
    def most(self) -> int:
        """Return the maximum number of lines for one event.

        It is EVENT_LINES for each time window that has begun.
        """
        return EVENT_LINES * (1 + int(self._lasted_s / WINDOW_S))

    def count(self, event: str) -> int:
        return sum(f" {event} " in line for line in self.text.splitlines())

    def left_out(self, event: str) -> int:
        found = re.findall(rf"log lines left out count=(\d+) event={event}$", self.text, re.MULTILINE)
        return sum(map(int, found))


def unregistration(number: int) -> RemotingCommand:
    fields = {
        "brokerName": f"b{number}",
        "brokerAddr": f"127.0.0.1:{1000 + number}",
        "clusterName": "C",
        "brokerId": "0",
    }
    return RemotingCommand.request(RequestCode.UNREGISTER_BROKER, fields)


def test_connection_that_registers_and_unregisters_fills_no_log_and_hides_no_audit(tmp_path: Path) -> None:
    began = time.monotonic()
    with server("nameserver", tmp_path) as running, BlockingClient() as client:
        addr = running.listen
        for number in range(EVENTS):
            for request in (registration(number), unregistration(number)):
                assert client.invoke(addr, request, timeout_s=WAIT_S).code == 0
        fields = {"namespace": "n", "key": "k", "value": "v"}
        change = RemotingCommand.request(RequestCode.PUT_KV_CONFIG, fields)
        assert client.invoke(addr, change, timeout_s=WAIT_S).code == 0
    log = Log(running.log, began)
    for event in ("broker registered", "broker left"):
        assert log.count(event) <= log.most
        assert log.count(event) + log.left_out(event) == EVENTS
    assert log.count("change=PUT_KV_CONFIG") == 1


def test_clients_that_come_and_go_fill_no_log_of_a_broker(tmp_path: Path) -> None:
    beat = HeartbeatData(client_id="c", consumers=(ConsumerData(group_name="G"),)).encode()
    began = time.monotonic()
    with server("broker", tmp_path) as running:
        for _ in range(EVENTS):
            with BlockingClient() as client:
                request = RemotingCommand.request(RequestCode.HEART_BEAT, body=beat)
                assert client.invoke(running.listen, request, timeout_s=WAIT_S).code == 0
    log = Log(running.log, began)
    assert log.count("client gone") <= log.most
    assert log.count("client gone") + log.left_out("client gone") == EVENTS
