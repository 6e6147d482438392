"""Tiny storms with real servers: samples add up, answers are right, only servers' pauses are published."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from routekeeper.bench.group import Missing
from routekeeper.bench.micro.raft.load import wait_ended
from routekeeper.bench.micro.raft.systems import MEMBERS
from routekeeper.bench.micro.storm.life import Life, life_of
from routekeeper.bench.micro.storm.servers import factory_of
from routekeeper.bench.storm.bystander import Sample
from routekeeper.bench.storm.frames import topic_name
from routekeeper.bench.storm.life import waits
from routekeeper.bench.storm.rightness import ChildrenReader, RouteReader

pytestmark = [pytest.mark.bench, pytest.mark.one_core, pytest.mark.slow, pytest.mark.timeout(300)]

BROKERS, TOPICS = 4, 20
PAUSE_S = 0.5
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module", params=["independent", "raft", "zookeeper"])
def storm(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Life, Rows]]:
    rows: Rows = []
    try:
        with life_of(
            factory_of(request.param, tree=None, python=""),
            plan={"brokers": BROKERS, "topics": TOPICS},
            data=tmp_path_factory.mktemp("storm"),
            record=rows.append,
        ) as life:
            yield life, rows
    except Missing as error:
        pytest.skip(str(error))


def of_phase(rows: Rows, phase: str, kind: str) -> Rows:
    return [row for row in rows if row.get("phase") == phase and row["kind"] == kind]


def last_counts(rows: Rows, phase: str) -> dict[int, int]:
    """Return how many brokers each server's last answer listed."""
    return {row["server"]: row["brokers"] for row in of_phase(rows, phase, "check")}


def test_storm_is_counted_and_ends_with_right_answers_everywhere(storm: tuple[Life, Rows]) -> None:
    life, rows = storm
    found = life.register()
    sent = of_phase(rows, "register", "registration")
    servers = {(row["broker"], row["server"]) for row in sent if row["outcome"] == "ok"}
    # One session with one server of ZooKeeper's, a connection to each of the nameservers.
    assert len(servers) == BROKERS * (1 if life.system.kind == "jute" else MEMBERS)
    assert found["registrations"] == len(sent)
    assert found["failures"] == sum(row["outcome"] != "ok" for row in sent)
    assert all(row["sent_ns"] <= row["ended_ns"] for row in sent)
    assert last_counts(rows, "register") == dict.fromkeys(range(MEMBERS), BROKERS)
    asked = of_phase(rows, "register", "query")
    assert found["queries"] == len(asked) > 0
    assert {row["server"] for row in asked} == set(range(MEMBERS))
    assert Counter(row["outcome"] for row in asked) == {"ok": len(asked)}
    longest_ms = max(row["wait_ns"] - row["own_ns"] for row in asked) / 1e6
    assert found["wait_ms_longest"] == pytest.approx(max(longest_ms, 0.0))
    assert 0 < found["right_s"] < found["seconds"]
    assert found["cpu_s"] > 0
    assert found["memory_mb"] > 10


def test_every_topic_lists_every_broker_after_the_storm(storm: tuple[Life, Rows]) -> None:
    life, _ = storm
    life.register()
    for addr in life.system.clients:
        reader = ChildrenReader(addr) if life.system.kind == "jute" else RouteReader(addr)
        try:
            assert {reader.count(topic_name(number)) for number in range(TOPICS)} == {BROKERS}
        finally:
            reader.close()


def asked_while(life: Life, happens: Callable[[], None]) -> list[Sample]:
    """Return the bystander's samples from shortly before to shortly after an action."""
    life.bystander.ask(b"start")
    time.sleep(0.1)
    happens()
    time.sleep(0.1)
    life.bystander.tell(b"stop")
    return [Sample(*fields) for fields in life.bystander.hear()]


def pause(pid: int, seconds: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_ended(pid)
        time.sleep(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)


def test_pause_of_a_server_shows_in_the_bystanders_waits(storm: tuple[Life, Rows]) -> None:
    life, _ = storm
    index = next(index for index in range(MEMBERS) if index != life.system.leader())
    samples = asked_while(life, lambda: pause(life.system.pid(index), PAUSE_S))
    longest_ms = {
        server: waits([one for one in samples if one.server == server])["wait_ms_longest"]
        for server in range(MEMBERS)
    }
    # The visible part of the pause depends on the bystander's last request, and on its own pauses.
    assert longest_ms[index] > 0.8 * PAUSE_S * 1e3
    assert longest_ms[index] == max(longest_ms.values())


def test_pause_of_the_bystander_is_not_published_as_a_servers(storm: tuple[Life, Rows]) -> None:
    life, _ = storm
    index = next(index for index in range(MEMBERS) if index != life.system.leader())

    def both() -> None:
        """Stop a server for a moment, so that a query is in flight, and the bystander for longer."""
        os.kill(life.system.pid(index), signal.SIGSTOP)
        try:
            time.sleep(0.05)
            os.kill(life.bystander.pid, signal.SIGSTOP)
            time.sleep(0.05)
        finally:
            os.kill(life.system.pid(index), signal.SIGCONT)
        time.sleep(PAUSE_S)
        os.kill(life.bystander.pid, signal.SIGCONT)

    samples = asked_while(life, both)
    waited_ms = max(one.wait_ns for one in samples if one.server == index) / 1e6
    published = waits(samples)
    assert waited_ms > PAUSE_S * 1e3
    assert published["wait_ms_longest"] < waited_ms - 0.9 * PAUSE_S * 1e3


def test_servers_that_restart_are_right_again_and_brokers_leave_at_once(storm: tuple[Life, Rows]) -> None:
    life, rows = storm
    life.register()
    pids = life.system.pids
    found = life.restart()
    assert not set(pids) & set(life.system.pids)
    assert last_counts(rows, "restart") == dict.fromkeys(range(MEMBERS), BROKERS)
    assert 0 < found["first_right_s"] <= found["right_s"]
    if life.system.leader() is not None:
        assert found["leader_changes"] >= 1
    gone = life.leave()
    assert last_counts(rows, "leave") == dict.fromkeys(range(MEMBERS), 0)
    assert gone["right_s"] > 0


def test_interrupt_ends_everything_that_was_started(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "routekeeper.bench.micro.storm", "--brokers", "3", "--topics", "10"]
    command += ["--rows", "rest", "--designs", "independent", "--out", str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("  register:"):
                break
        started = children_of(process.pid)
        assert len(started) == MEMBERS + 2, "servers, brokers, bystander"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "storm: interrupted; the table holds the rows that were complete\n"
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
    assert (tmp_path / "out" / "storm.md").read_text().startswith("| | independent | goal |")


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
