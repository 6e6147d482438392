"""The raft benchmark plans equal timers, counts bytes per connection, and waits until a process has ended."""

import os
import signal
import subprocess
import sys

import pytest

from routekeeper.bench.micro.raft.counters import Connection, moved, payloads
from routekeeper.bench.micro.raft.load import states, wait_ended
from routekeeper.bench.micro.raft.timers import SERIES, equal


def test_equal_timers_are_noticed_alike() -> None:
    timers = SERIES["equal"]
    assert timers.election_ms is not None
    assert timers.borne_ms("routekeeper-fsync") == (600, 1200)
    borne, same = timers.borne_ms("zookeeper")
    # In raft mode, each of two followers draws a timeout from T to 2T. The shorter timeout is 4/3 T on
    # average.
    assert borne == same == timers.election_ms * 4 / 3
    # ZooKeeper's leader sends a ping every half tick. RouteKeeper's leader sends six heartbeats per election
    # timeout.
    assert timers.tick_ms / 2 == timers.heartbeat_ms == timers.election_ms / 6


def test_default_timers_are_each_systems_own() -> None:
    timers = SERIES["defaults"]
    assert (timers.election_ms, timers.heartbeat_ms) == (None, None)
    assert [timers.borne_ms(name) for name in ("routekeeper-memory", "zookeeper")] == [
        (500, 1000),
        (10_000, 10_000),
    ]


def test_equal_timers_leave_a_start_its_time() -> None:
    timers = equal(60, lease_s=1)
    assert timers.init_limit * timers.tick_ms == 20_000


@pytest.mark.parametrize("election_ms", [0, -6, 500, 601])
def test_timers_that_cannot_be_alike_are_refused(election_ms: int) -> None:
    with pytest.raises(ValueError, match=f"election_ms={election_ms}, allowed are multiples of 6"):
        equal(election_ms, lease_s=1)


LINES = (
    'ESTAB 0 0 127.0.0.1:20001 127.0.0.1:50001 users:(("python",pid=11,fd=7)) cubic bytes_sent:900'
    " bytes_acked:700 bytes_received:300 segs_out:4",
    'ESTAB 0 0 [::ffff:127.0.0.1]:50002 [::ffff:127.0.0.1]:20002 users:(("java",pid=12,fd=8)) bytes_acked:10',
    'ESTAB 0 0 127.0.0.1:20003 127.0.0.1:50003 users:(("python",pid=11,fd=9)) cubic rtt:1/2',
    "TIME-WAIT 0 0 127.0.0.1:20001 127.0.0.1:50009 timer:(timewait,1sec,0)",
)
BUSY = """
import threading
for _ in range(3):
    threading.Thread(target=lambda: [0 for _ in iter(int, 1)]).start()
print(1, flush=True)
"""


def test_payload_is_what_was_acknowledged_and_received() -> None:
    assert payloads(LINES) == {
        Connection(11, "127.0.0.1:20001", "127.0.0.1:50001"): 1000,
        Connection(12, "[::ffff:127.0.0.1]:50002", "[::ffff:127.0.0.1]:20002"): 10,
        Connection(11, "127.0.0.1:20003", "127.0.0.1:50003"): 0,
    }


def test_moved_bytes_are_told_apart_by_port_and_process() -> None:
    to_client = Connection(11, "h:100", "h:9001")
    to_member = Connection(11, "h:9002", "h:200")  # process 11 opened this connection to a member
    from_member = Connection(12, "h:200", "h:9002")
    # the port is neither a member's nor a client's, for example an HTTP port
    other = Connection(11, "h:300", "h:9003")
    stranger = Connection(99, "h:100", "h:9004")
    closed = Connection(12, "h:100", "h:9005")
    before = {to_client: 100, from_member: 7, closed: 5000}
    after = {to_client: 150, to_member: 30, from_member: 37, other: 1000, stranger: 1000}
    assert moved(before, after, pids=[11, 12], member_ports={"200"}, client_ports={"100"}) == {
        "members": [30, 30],
        "clients": [50, 0],
    }


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_process_has_ended_once_no_thread_runs(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            assert len(states(process.pid)) == 4
            assert not set(states(process.pid)) <= {"T", "Z", "X"}
            os.kill(process.pid, number)
            wait_ended(process.pid)
            assert set(states(process.pid)) <= {"T", "Z", "X"}
        finally:
            process.kill()


def test_states_of_nobody_are_none() -> None:
    assert states(2**22 + 1) == []
