"""The bytes that the kernel counts for each connection are added up by process and side."""

from routekeeper.bench.micro.raft.counters import Connection, moved, payloads

LINES = (
    'ESTAB 0 0 127.0.0.1:20001 127.0.0.1:50001 users:(("python",pid=11,fd=7)) cubic bytes_sent:900'
    " bytes_acked:700 bytes_received:300 segs_out:4",
    'ESTAB 0 0 [::ffff:127.0.0.1]:50002 [::ffff:127.0.0.1]:20002 users:(("java",pid=12,fd=8)) bytes_acked:10',
    'ESTAB 0 0 127.0.0.1:20003 127.0.0.1:50003 users:(("python",pid=11,fd=9)) cubic rtt:1/2',
    "TIME-WAIT 0 0 127.0.0.1:20001 127.0.0.1:50009 timer:(timewait,1sec,0)",
)


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
