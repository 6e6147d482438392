"""Parts of the benchmark of registration storms, in which all brokers register at once.

The tests check the frames, the multi requests to ZooKeeper, the result table and the arguments.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, NoReturn

import pytest
from kazoo.protocol.serialization import write_buffer as text

from routekeeper.bench.group import Missing, Unhealthy
from routekeeper.bench.micro.storm import __main__ as program
from routekeeper.bench.micro.storm.__main__ import arguments_of
from routekeeper.bench.micro.storm.expected import seconds
from routekeeper.bench.micro.storm.rows import ROWS, Sizes, table
from routekeeper.bench.processes import ClusterError
from routekeeper.bench.storm.bystander import Sample
from routekeeper.bench.storm.frames import broker_name, make_topics, register_frame, topic_name
from routekeeper.bench.storm.life import waits
from routekeeper.bench.storm.rightness import spread
from routekeeper.bench.storm.sessions import Session, encode_nodes, lasting_nodes, nodes_of, slices
from routekeeper.bench.wires.wire import Answer, WireError
from routekeeper.nameserver.registration import decode_registration
from routekeeper.nameserver.types import Answer as Refusal
from routekeeper.remoting.command import decode_command
from routekeeper.remoting.frame import split_frame
from routekeeper.remoting.route import DataVersion

VERSION = DataVersion(timestamp=1_700_000_000_123, counter=7)


# -- registrations at nameservers ------------------------------------------------------------------------


@pytest.mark.parametrize("compressed", [False, True])
def test_nameserver_reads_a_registration_made_of_shared_bytes(compressed: bool) -> None:
    topics = make_topics([topic_name(number) for number in range(30)], compressed=compressed)
    pieces = register_frame(5, topics, VERSION)
    assert any(piece is topics.shared for piece in pieces), "the topics' bytes exist once"
    data = b"".join(pieces)
    command = decode_command(split_frame(data, 0, len(data) - 4))
    decoded = decode_registration(command)
    assert not isinstance(decoded, Refusal), decoded
    assert decoded.broker_name == broker_name(5)
    assert decoded.data_version == VERSION
    assert set(decoded.table) == {topic_name(number) for number in range(30)}


# -- registrations in ZooKeeper --------------------------------------------------------------------------


def granted(session: Session, number: int = 99, password: bytes = b"p" * 16) -> None:
    accepted = struct.pack(">iiq", 0, 30_000, number) + text(password)
    session.feed(text(accepted))


def test_broker_has_one_node_for_each_topic_and_parents_come_first() -> None:
    topics = [topic_name(number) for number in range(3)]
    own = [path for path, _ in nodes_of(7, topics)]
    assert own[0] == "/meta/brokers/topics-pub/topic-000000/7-m"
    assert len(own) == 3 + 1
    lasting = [path for path, _ in lasting_nodes([7], topics)]
    for path in own:
        assert path.rpartition("/")[0] in lasting
    for path in lasting[1:]:
        parent = path.rpartition("/")[0]
        assert lasting.index(parent) < lasting.index(path) if parent else True


def test_nodes_are_made_some_hundred_at_a_time() -> None:
    own = nodes_of(7, [topic_name(number) for number in range(1000)])
    assert [len(part) for part in slices(own)] == [300, 300, 300, 101]


def test_request_for_many_nodes_has_known_bytes() -> None:
    session = Session()
    granted(session)
    data = session.create_all(encode_nodes([("/a", b"8"), ("/b", b"8")], ephemeral=True))
    acl = struct.pack(">ii", 1, 31) + text(b"world") + text(b"anyone")
    create = struct.pack(">i?i", 1, False, -1)
    one, two = (create + text(path) + text(b"8") + acl + struct.pack(">i", 1) for path in (b"/a", b"/b"))
    assert data == text(struct.pack(">ii", 1, 14) + one + two + struct.pack(">i?i", -1, True, -1))


def reply(xid: int, *errors: int) -> bytes:
    """Return the answer to a multi request: a success, or an error for each node."""
    parts = [struct.pack(">i?i", -1, False, error) + struct.pack(">i", error) for error in errors]
    body = b"".join(parts) or struct.pack(">i?i", 1, False, 0) + text(b"/a")
    return bytes(text(struct.pack(">iqi", xid, 5, 0) + body + struct.pack(">i?i", -1, True, -1)))


@pytest.mark.parametrize(
    ("errors", "error"),
    [
        ((), None),
        # Error -110 means that an earlier attempt has created the node. Error -2 means that the server
        # skipped a node after an error.
        ((-110, -2), None),
        ((0, -101), "error -101"),
        ((-112, -2), "error -112"),
    ],
)
def test_failure_of_many_nodes_is_found_in_a_successful_answer(
    errors: tuple[int, ...], error: str | None
) -> None:
    session = Session()
    granted(session)
    session.create_all(encode_nodes([("/a", b"8")], ephemeral=True))
    [answer] = session.feed(reply(1, *errors))
    assert answer.error == error


def test_session_is_resumed_with_its_number_and_password() -> None:
    first = Session()
    granted(first, 77, b"q" * 16)
    again = Session(first.identity)
    assert again.hello() == text(struct.pack(">iqiq", 0, 0, 30_000, 77) + text(b"q" * 16) + b"\0")


def test_session_that_the_server_has_forgotten_is_an_error_and_marked() -> None:
    session = Session((77, b"q" * 16))
    with pytest.raises(WireError, match="expired"):
        session.feed(text(struct.pack(">iiq", 0, 0, 0) + text(bytes(16))))
    assert session.expired


def test_ping_is_answered_apart_from_requests() -> None:
    session = Session()
    granted(session)
    assert session.feed(text(struct.pack(">iqi", -2, 5, 0))) == [Answer(-2, None, b"")]


# -- figures and the result table ------------------------------------------------------------------------


def sample(wait_ms: float, own_ms: float = 0.0, outcome: str = "ok") -> Sample:
    return Sample(0, 1, round(wait_ms * 1e6), round(own_ms * 1e6), outcome)


def test_longest_wait_leaves_out_the_bystanders_own_pauses() -> None:
    found = waits([sample(1), sample(900, 890), sample(50, 5), sample(2, outcome="lost")])
    assert found["wait_ms_longest"] == pytest.approx(45)
    assert found["wait_ms_longest_own"] == pytest.approx(5)
    assert (found["queries"], found["queries_failed"]) == (4, 1)


def test_percentiles_count_the_queries_that_a_stalled_client_did_not_send() -> None:
    found = waits([*(sample(0.5) for _ in range(998)), sample(200), sample(100)])
    assert found["wait_ms_p50"] == pytest.approx(0.5)
    # A client should send a query every 2 ms. So a client that waits 200 ms counts as 100 queries, which wait
    # 200, 198, ... ms. A wait of 100 ms counts as 50 queries. The 99th percentile of all 1,148 queries is the
    # 12th longest time.
    assert found["wait_ms_p99"] == pytest.approx(200 - 2 * 11)


@pytest.mark.parametrize(("count", "found"), [(3, [0, 1, 2]), (100, [0, 33, 66, 99])])
def test_topics_asked_for_are_spread_over_all(count: int, found: list[int]) -> None:
    assert spread(count, 4) == found


def test_sizes_follow_from_those_of_the_storm() -> None:
    sizes = Sizes(brokers=100, topics=10_000)
    assert (sizes.small, sizes.crowd, sizes.stranger) == ((40, 1000), (300, 10_000), (1, 100_000))


def test_table_holds_medians_reasons_and_multiples_of_rocketmqs() -> None:
    figures: dict[Any, list[dict[str, float]]] = {
        ("leave", "raft"): [
            {"wait_ms_longest": wait, "wait_ms_longest_own": own, "right_s": 1.5}
            for wait, own in ((80.0, 0.0), (50.0, 0.2), (60.0, 7.4))
        ],
        ("misses", "raft"): [{"answers_per_cpu_s_1": 30_000.0, "answers_per_cpu_s_16": 60_000.0}],
        ("misses", "rocketmq"): [{"answers_per_cpu_s_1": 10_000.0, "answers_per_cpu_s_16": 80_000.0}],
    }
    why_not = {"leave rocketmq": "failed"}
    found = "\n".join(table(Sizes(brokers=10, topics=50), ["raft", "rocketmq"], figures, why_not))
    assert "| | raft | rocketmq | goal |" in found
    assert "| 60.0 (50.0..80.0) + 7 unknown | failed | 50 |" in found
    assert "| 30,000, 3.0x | 10,000 | 3x RocketMQ's |" in found
    assert "| 60,000, 0.8x | 80,000 | 3x RocketMQ's |" in found
    assert "register" not in found, "rows that nobody asked for are left out"


# -- the command line ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rows", "register,flood"], "--rows: 'flood', allowed are register-small, register, rest,"),
        (["--rows", "leave,leave"], "--rows: 'leave' appears twice; name each once"),
        (["--designs", "etcd"], "--designs: 'etcd', allowed are independent, raft, rocketmq, zookeeper"),
        (["--brokers", "301"], "--brokers: 301, allowed are 1 to 300"),
        (["--topics", "0"], "--topics: 0, allowed are 1 to 80000"),
        (["--repeat", "x"], "argument --repeat: invalid int value: 'x'"),
        (["--rest-seconds", "nan"], "--rest-seconds: nan, allowed are 5 to 3600"),
        (["--against", "/no such folder"], "--against: /no such folder is no checkout"),
        (["--data", "/no such folder"], "--data: /no such folder is no folder"),
        (["--python", "true"], "--python: true does not run Python; give a command that takes -c and -m"),
        (["--python", "/no/python"], "--python: /no/python does not run Python; give a command"),
        (["--out", __file__], f"--out: {__file__} is a file; name a folder"),
        (["--fast"], "unrecognized arguments: --fast"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_code_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        arguments_of(words)
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"storm: {said}")


def test_whole_run_is_expected_to_take_at_most_25_minutes() -> None:
    arguments = arguments_of([])
    assert arguments.rows == list(ROWS)
    assert 5 * 60 < seconds(arguments, arguments.designs) <= 25 * 60


def test_other_checkout_stands_beside_this_one_for_our_designs(tmp_path: Path) -> None:
    from routekeeper.bench.micro.storm.__main__ import Bench
    from routekeeper.bench.micro.trees import THIS

    words = ["--designs", "independent,rocketmq", "--against", str(THIS), "--out", str(tmp_path)]
    assert list(Bench(arguments_of(words)).makers) == ["independent", f"independent, {THIS.name}", "rocketmq"]


@pytest.mark.parametrize(
    ("error", "cell"),
    [
        (Unhealthy("not within 300 s"), "failed"),
        (ConnectionResetError(104, "Connection reset by peer"), "failed"),
        (WireError("the session has expired"), "failed"),
        (ClusterError("routekeeper.bench.storm.brokers ended with 1"), "not measured (harness)"),
        (OSError(28, "No space left on device"), "not measured (harness)"),
        (Missing("rocketmq needs Maven"), "not measured (missing program)"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else each,
)
def test_only_an_error_of_the_servers_is_a_failure_in_the_table(
    error: Exception, cell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def life_of(*_: object, **__: object) -> NoReturn:
        raise error

    monkeypatch.setattr(program, "life_of", life_of)
    words = ["--designs", "raft", "--rows", "leave", "--out", str(tmp_path)]
    bench = program.Bench(arguments_of(words))
    bench.run()
    rows = [line for line in bench.report().splitlines() if line.startswith("| 100 x 10,000 leave")]
    assert rows
    assert all(f"| {cell} |" in line for line in rows)
    assert len(bench.failures) == 1
