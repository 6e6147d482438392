"""The benchmark gives RocketMQ's Java client the right input, and makes events from its output lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from routekeeper.bench.arms.interface import Side
from routekeeper.bench.events import Operation, View
from routekeeper.bench.java_client import LinesError, rows, schedule, settings, without_java
from routekeeper.bench.jre import java_major
from routekeeper.bench.plan import load_plan

LOAD = load_plan("real").load
SIDES = [
    Side(name="side-a", servers=["127.0.0.1:1001", "127.0.0.1:1002"]),
    Side(name="side-b", servers=["127.0.0.1:2001", "127.0.0.1:2002"]),
]
SEND: dict[str, Any] = {
    "what": "operation",
    "op": "send",
    "client": 1,
    "user": 7,
    "number": 20,
    "due_ns": 1_000,
    "begin_ns": 1_200,
    "end_ns": 5_000,
    "queued": False,
    "topic": "bench-1",
    "tries": 1,
}
LOOKUP = {**SEND, "op": "lookup", "topic": "sim-100-changing", "tries": 0, "server": "127.0.0.1:2002"}


def rows_of(*lines: dict[str, Any]) -> list[Operation | View]:
    return list(rows([msgspec.json.encode(line) for line in lines], SIDES))


def operation_of(line: dict[str, Any]) -> Operation:
    (row,) = rows_of(line)
    assert isinstance(row, Operation)
    return row


def test_send_becomes_the_row_that_our_client_would_have_made() -> None:
    row = operation_of({**SEND, "status": "SEND_OK", "broker": "broker-2", "tries": 2, "queued": True})
    assert row == Operation(
        op="send",
        user=100_007,
        target=2,
        due_ns=1_000,
        sent_ns=1_200,
        done_ns=5_000,
        outcome="ok",
        queued=True,
        topic="bench-1",
        attempts=2,
        message=40,
        client_side="side-b",
    )


def test_messages_with_and_without_retries_have_different_numbers() -> None:
    numbers = {
        operation_of({**SEND, "op": op, "number": number, "status": "SEND_OK"}).message
        for op in ("send", "send_once")
        for number in (20, 21)
    }
    assert numbers == {40, 41, 42, 43}


def test_stored_message_that_was_not_copied_in_time_is_sent() -> None:
    row = operation_of({**SEND, "status": "FLUSH_SLAVE_TIMEOUT", "broker": "broker-0"})
    assert (row.outcome, row.remark) == ("ok", "FLUSH_SLAVE_TIMEOUT")


@pytest.mark.parametrize(
    ("errors", "code", "outcome"),
    [
        (["MQClientException", "RemotingConnectException"], 10_001, "error"),
        (["MQClientException", "RemotingTimeoutException"], 10_002, "unknown"),
        (["MQClientException", "RemotingSendRequestException"], None, "unknown"),
        (["RemotingTooMuchRequestException"], None, "unknown"),
        (["MQClientException", "MQBrokerException"], 14, "error"),
        (["MQClientException"], 10_005, "error"),
    ],
)
def test_failed_send_is_unknown_where_something_may_have_arrived(
    errors: list[str], code: int | None, outcome: str
) -> None:
    row = operation_of(
        {**SEND, "errors": errors, "code": code, "remark": "it broke\nthere", "broker": "broker-1"}
    )
    assert (row.outcome, row.code, row.target) == (outcome, code, 1)
    assert row.remark == f"{errors[-1]}: it broke"


def test_look_up_tells_who_was_asked_and_what_was_shown() -> None:
    row = operation_of({**LOOKUP, "brokers": ["sim-100"], "queues": 9})
    assert (row.outcome, row.target, row.brokers, row.version) == ("ok", 1, [100], 9)
    assert (row.message, row.attempts) == (None, 1)
    steady = operation_of({**LOOKUP, "topic": "bench-0", "brokers": ["broker-2", "broker-0"], "queues": 4})
    assert (steady.brokers, steady.version) == ([0, 2], None)
    assert operation_of({**LOOKUP, "server": None}).target is None
    assert operation_of({**LOOKUP, "client": 2}).target is None, "that server is not of this side"


@pytest.mark.parametrize(
    ("code", "remark", "outcome"),
    [
        (17, "CODE: 17  DESC: No topic route info in name server for the topic: x", "absent"),
        (1, "CODE: 1  DESC: [NO_QUORUM] no leader is known", "refused"),
        (1, "CODE: 1  DESC: broken", "error"),
        (None, "connect to null failed", "error"),
        (None, None, "error"),
    ],
)
def test_failed_look_up_says_why(code: int | None, remark: str | None, outcome: str) -> None:
    row = operation_of({**LOOKUP, "errors": ["MQClientException"], "code": code, "remark": remark})
    assert (row.outcome, row.code, row.brokers, row.version) == (outcome, code, None, None)


def test_route_tables_become_views() -> None:
    found = rows_of(
        {
            "what": "view",
            "client": 4,
            "topic": "bench-0",
            "brokers": ["broker-1"],
            "queues": 4,
            "seen_ns": 10,
        },
        {
            "what": "view",
            "client": 4,
            "topic": "sim-101-changing",
            "brokers": ["sim-101"],
            "queues": 8,
            "unseen_ns": 15,
            "seen_ns": 20,
        },
        {"what": "end", "client": 4, "topic": "bench-0", "seen_ns": 30},
    )
    common: dict[str, Any] = {"observer": "client", "index": 4}
    assert found == [
        View(**common, topic="bench-0", state="routed", brokers=[1], seen_ns=10),
        View(
            **common,
            topic="sim-101-changing",
            state="routed",
            brokers=[101],
            version=8,
            unseen_ns=15,
            seen_ns=20,
        ),
        View(**common, topic="bench-0", state="end", seen_ns=30),
    ]


@pytest.mark.parametrize(
    "line", [b"", b'{"what":"operation"', b'{"what":"rest"}', b'{"what":"end","client":1}']
)
def test_line_that_is_none_of_the_clients_is_named(line: bytes) -> None:
    good = msgspec.json.encode({**SEND, "status": "SEND_OK"})
    with pytest.raises(LinesError, match="line 2 of the Java client cannot be read"):
        list(rows([good, line], SIDES))


def test_schedule_names_every_operation_up_to_its_horizon() -> None:
    due: dict[str, list[int]] = {}
    for line in schedule(LOAD, 5, 1_000_000_000, 10_000_000_000):
        op, number, due_ns, topic = line.split()
        assert line.endswith("\n")
        assert topic.startswith("bench-") or op == "lookup", "nobody sends to simulated brokers"
        assert int(number) == len(due.setdefault(op, []))
        due[op].append(int(due_ns))
    assert {op: len(each) for op, each in due.items()} == {"lookup": 400, "send": 200, "send_once": 200}
    for each in due.values():
        assert each == sorted(each)
        assert each[0] >= 1_000_000_000
        assert each[-1] < 11_000_000_000
    assert list(schedule(LOAD, 5, 0, 10**9)) == list(schedule(LOAD, 5, 0, 10**9))
    assert list(schedule(LOAD, 5, 0, 10**9)) != list(schedule(LOAD, 6, 0, 10**9))


def test_what_java_does_is_not_done_twice() -> None:
    rest = without_java(LOAD)
    assert [rest.users(op) for op in ("lookup", "send", "send_once")] == [0, 0, 0]
    assert rest.send_clients == 0, "their routes are not watched either"
    assert (rest.newcomer_per_s, rest.change_per_s, rest.sim_brokers) == (
        LOAD.newcomer_per_s,
        LOAD.change_per_s,
        LOAD.sim_brokers,
    )


def test_settings_hold_what_the_java_program_reads() -> None:
    text = settings(
        LOAD,
        SIDES,
        retries=2,
        refresh_ms=10_000,
        heartbeat_ms=10_000,
        linger_ns=500_000_000,
        output=Path("/out/ä \\ b"),
        schedule=Path("/s"),
        end=Path("/e"),
    )
    said = dict(line.split("=", 1) for line in text.splitlines())
    assert said["nameservers.1"] == "127.0.0.1:2001;127.0.0.1:2002"
    assert said["observed"] == "bench-0,sim-100-changing,sim-101-changing"
    assert said["users.send"] == "75"
    assert said["timeout_ms"] == "3000"
    assert said["output"] == "/out/\\u00e4 \\\\ b"
    source = (Path(__file__).parents[2] / "bench" / "java" / "Sender.java").read_text()
    for name in said:
        asked = name.partition(".")[0] + "." if "." in name else f'"{name}"'
        assert asked in source, f"nobody reads {name}"


@pytest.mark.parametrize(
    ("said", "major"),
    [("javac 17.0.21.1\n", 17), ("javac 1.8.0_402\n", 8), ("javac 21\n", 21), ("no javac", None)],
)
def test_compilers_version_is_read(said: str, major: int | None) -> None:
    assert java_major(said) == major
