"""Tries after a kill do not slow down an election: a probe pauses before it opens a connection again."""

from __future__ import annotations

import contextlib
import json
import socketserver
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from routekeeper.bench.scale import probes
from routekeeper.bench.scale.distance import spread_figures
from routekeeper.bench.scale.number import ANSWER_S, PatientReader
from routekeeper.bench.scale.probes import FIRST_KEY, Probe, Shown, Trying, first_change_s, spread_of

TRIED_S = 0.7


def connections_max(began: float) -> int:
    """Return the largest number of connections since an instant, with 0.1 s or more between them."""
    return 1 + int((time.monotonic() - began) / 0.1)


class Peer(socketserver.ThreadingTCPServer):
    """A scripted server, which counts connections and requests."""

    daemon_threads = True
    connections = 0
    requests = 0

    @property
    def addr(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class Closing(socketserver.BaseRequestHandler):
    """A ZooKeeper server without a leader, which closes each connection."""

    server: Peer

    def handle(self) -> None:
        self.server.connections += 1


class Refusing(socketserver.StreamRequestHandler):
    """A raft member without a leader, which refuses each request and keeps the connection."""

    server: Peer

    def handle(self) -> None:
        self.server.connections += 1
        while len(size := self.rfile.read(4)) == 4:
            frame = self.rfile.read(struct.unpack(">I", size)[0])
            self.server.requests += 1
            header = json.loads(frame[4 : 4 + (struct.unpack(">I", frame[:4])[0] & 0xFFFFFF)])
            answer = json.dumps({"code": 1, "opaque": header["opaque"], "remark": "no leader"}).encode()
            self.wfile.write(struct.pack(">II", 4 + len(answer), len(answer)) + answer)


@contextlib.contextmanager
def peer(handler: type[socketserver.BaseRequestHandler]) -> Iterator[Peer]:
    with Peer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_server_that_closes_connections_gets_few_of_them() -> None:
    with peer(Closing) as server:
        probe, began = Probe("jute", server.addr, FIRST_KEY), time.monotonic()
        assert first_change_s([probe], 0, within_s=TRIED_S) is None
        assert 1 <= server.connections <= connections_max(began)


def test_member_that_refuses_is_asked_again_soon_over_the_same_connection() -> None:
    with peer(Refusing) as server:
        probe = Probe("remoting", server.addr, FIRST_KEY)
        assert first_change_s([probe], 0, within_s=TRIED_S) is None
        probe.close()
    assert server.connections == 1
    assert server.requests > TRIED_S / 0.1


def test_restart_that_leaves_no_leader_meets_few_new_sessions() -> None:
    with peer(Closing) as server:
        reader = PatientReader(server.addr, answer_s=ANSWER_S)
        began = time.monotonic()
        while time.monotonic() - began < TRIED_S:
            assert reader.count("orders") is None
            time.sleep(0.005)
        of_reader = server.connections
        assert 1 <= of_reader <= connections_max(began)
        probe, began = Probe("jute", server.addr, FIRST_KEY), time.monotonic()
        trying = Trying(probe.change)
        time.sleep(TRIED_S)
        trying.stop()
        assert 1 <= server.connections - of_reader <= connections_max(began)


def test_reader_that_is_refused_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "SHOWN_S", 2.0)
    with peer(Refusing) as server:
        reader = Probe("remoting", server.addr, FIRST_KEY)
        assert spread_of([], [reader], 1).seen == {}
        reader.close()
        assert server.requests > 1


def test_change_that_a_server_does_not_show_counts_as_longer_than_all_others() -> None:
    shown = [Shown(seen={0: 0.010, 1: 0.012}), Shown(seen={0: 0.020, 1: 0.024}), Shown(seen={0: 0.001})]
    assert spread_figures(shown, servers=2) == {
        "everywhere_ms": pytest.approx(24.0),
        "old_ms": pytest.approx(4.0),
    }
    assert spread_figures([*shown, Shown(), Shown()], servers=2) == {}
