"""The TLS certificate changes while a server handles thousands of requests.

No request may fail.
"""

from __future__ import annotations

import re
import socket
import ssl
import threading
import time
import urllib.request
from pathlib import Path
from typing import Final

import pytest

from routekeeper.remoting.command import RemotingCommand, decode_command
from routekeeper.remoting.frame import FrameDecoder
from tests.faults.servers import SERVERS, Running, server
from tests.faults.test_tls_servers import serial
from tests.tls import Authority
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.alone]

#: Each connection has DEPTH requests in flight, and CONNECTIONS connections are open at a time. After each
#: batch of DEPTH requests, new connections replace NEW of the connections.
DEPTH: Final = 16
CONNECTIONS: Final = 8
NEW: Final = 2
#: Number of requests per second that the load sends over all its connections.
WANTED_PER_S: Final = 2_500
#: Minimum number of requests that the server must answer during each change of the certificate.
SERVED: Final = 5_000
#: Requests of the load. Their answers are short, so that the client does not limit the rate.
REQUESTS: Final = {
    "nameserver": RemotingCommand.request(106),
    "broker": RemotingCommand.request(30, {"topic": "TBW102", "queueId": "0"}),
}
COUNTERS: Final = {
    "nameserver": 'mqnamesrv_requests_total{code="106"}',
    "broker": 'mqbroker_requests_total{code="30"}',
}


def served(running: Running) -> float:
    """Return the number of the load's requests that the server has answered, by the server's own counter."""
    with urllib.request.urlopen(f"http://{running.http}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    found = re.search(rf"^{re.escape(COUNTERS[running.kind])} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


class Load:
    """Threads that each keep several requests in flight on one connection.

    Some threads make a new connection for each batch of requests. The other threads keep their connections.

    Attributes:
        answered: Number of requests that were answered with success.
        connected: Number of TLS handshakes that succeeded.
        failed: Errors that ended threads.
    """

    def __init__(self, running: Running, context: ssl.SSLContext) -> None:
        self._running, self._context = running, context
        self._frames = REQUESTS[running.kind].encode() * DEPTH
        self._stop = threading.Event()
        self.answered = 0
        self.connected = 0
        self.failed: list[str] = []
        self._threads = [
            threading.Thread(target=self._ask, args=(number < NEW,)) for number in range(CONNECTIONS)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, comes_anew: bool) -> None:
        try:
            while not self._stop.is_set():
                with self._running.connect(self._context) as link:
                    self.connected += 1
                    while not self._stop.is_set():
                        began = time.monotonic()
                        self._batch(link)
                        pause_s = began + CONNECTIONS * DEPTH / WANTED_PER_S - time.monotonic()
                        # This sleep does not wait for an event. It sets the rate of the load.
                        time.sleep(max(pause_s, 0))
                        if comes_anew:
                            break
        except (OSError, AssertionError) as error:
            self.failed.append(repr(error))

    def _batch(self, link: socket.socket) -> None:
        link.sendall(self._frames)
        decoder, left = FrameDecoder(), DEPTH
        while left:
            data = link.recv(1 << 16)
            if not data:
                raise ConnectionError(f"closed with {left} requests unanswered")
            for frame in decoder.feed(data):
                assert decode_command(frame).code == 0
                left -= 1
        self.answered += DEPTH


@SERVERS
def test_certificate_changes_under_load_and_a_broken_one_is_not_taken(kind: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, its_key = authority.issue(days=10)
    context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    flags = ("--tls-mode", "enforcing", "--tls-cert", cert, "--tls-key", its_key)
    with server(kind, tmp_path, *flags, http=True) as running, Load(running, context) as load:
        wait_until(lambda: load.answered > WANTED_PER_S, "a load")
        running.says("tls certificate ends soon")
        for _ in range(2):
            before, connected = serial(running, context), load.connected
            count = served(running)
            authority.issue()
            wait_until(lambda: serial(running, context) != before, "the new certificate", every_s=0.1)  # noqa: B023
            answered = load.answered
            wait_until(
                lambda: load.answered > answered + SERVED and load.connected > connected + 10,  # noqa: B023
                "the load goes on, and new connections were made during the change",
            )
            assert served(running) - count > SERVED
        running.says("tls certificate read again")
        before = serial(running, context)
        Path(cert).write_text("no certificate")
        running.says("tls certificate not taken, the former one goes on error=")
        assert serial(running, context) == before
        assert load.failed == []
