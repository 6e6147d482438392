"""Small registration storms with real servers give complete counts and end with right answers.

A pause of a server shows in the measured waiting times, but a pause of the benchmark's process does not.
"""

from __future__ import annotations

import dataclasses
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
from routekeeper.bench.micro.raft.systems import MEMBERS, System
from routekeeper.bench.micro.storm.life import Life, life_of
from routekeeper.bench.micro.storm.servers import Design, factory_of
from routekeeper.bench.storm.bystander import Sample
from routekeeper.bench.storm.frames import topic_name
from routekeeper.bench.storm.life import waits
from routekeeper.bench.storm.rightness import ChildrenReader, RouteReader

pytestmark = [pytest.mark.bench, pytest.mark.one_core, pytest.mark.slow, pytest.mark.timeout(300)]

BROKERS, TOPICS = 4, 20
PAUSE_S = 0.5
#: Number of tries of each test that pauses a process. A try fails if a busy machine delays the processes of
#: the test.
TRIES = 20
#: Part of a pause, in ms, that may remain in a waiting time. The process that sends the queries (the
#: bystander) subtracts its own pauses, but not the first millisecond of each iteration of its loop.
ROUND_MS = 1.5
Rows = list[dict[str, Any]]


def servers_of(design: Design) -> Callable[[Path, int], System]:
    """Return a function that creates the servers of one design.

    RouteKeeper's servers get a long election timeout, so that a leader on a busy machine keeps its term.
    """
    made = factory_of(design, tree=None, python="")

    def patient(folder: Path, pairs: int) -> System:
        system = made(folder, pairs)
        if design == "raft":
            with (folder / "namesrv.properties").open("a") as settings:
                settings.write("raftElectionTimeoutMs=3000\n")
        return system

    return patient


@dataclasses.dataclass(slots=True)
class Storm:
    """Servers at which all brokers have registered, and the rows and figures of this storm."""

    life: Life
    rows: Rows
    found: dict[str, Any]


@pytest.fixture(scope="module", params=["raft", "zookeeper"])
def storm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storm]:
    rows: Rows = []
    try:
        with life_of(
            servers_of(request.param),
            plan={"brokers": BROKERS, "topics": TOPICS},
            data=tmp_path_factory.mktemp("storm"),
            record=rows.append,
        ) as life:
            yield Storm(life, rows, life.register())
    except Missing as error:
        pytest.skip(str(error))


def of_phase(rows: Rows, phase: str, kind: str) -> Rows:
    return [row for row in rows if row.get("phase") == phase and row["kind"] == kind]


def last_counts(rows: Rows, phase: str) -> dict[int, int]:
    """Return the number of brokers that each server's last answer listed, by index of the server."""
    return {row["server"]: row["brokers"] for row in of_phase(rows, phase, "check")}


def test_storm_is_counted_and_ends_with_right_answers_everywhere(storm: Storm) -> None:
    life, rows, found = storm.life, storm.rows, storm.found
    sent = of_phase(rows, "register", "registration")
    servers = {(row["broker"], row["server"]) for row in sent if row["outcome"] == "ok"}
    # In ZooKeeper, each broker has one session, with one server. In all other designs, each broker registers
    # at every nameserver.
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


def test_every_topic_lists_every_broker_after_the_storm(storm: Storm) -> None:
    life = storm.life
    for addr in life.system.clients:
        reader = ChildrenReader(addr) if life.system.kind == "jute" else RouteReader(addr)
        try:
            assert {reader.count(topic_name(number)) for number in range(TOPICS)} == {BROKERS}
        finally:
            reader.close()


def asked_while(life: Life, happens: Callable[[], None]) -> list[Sample]:
    """Run an action, and return the queries that were sent from 0.1 s before the action to 0.1 s after it.

    The process that sends them ("bystander") always has one query in flight at each server.
    """
    life.bystander.ask(b"start")
    time.sleep(0.1)
    happens()
    time.sleep(0.1)
    life.bystander.tell(b"stop")
    return [Sample(*fields) for fields in life.bystander.hear()]


def stands_still(pid: int) -> bool:
    """Return True if the kernel has stopped every thread of a process."""
    stats = Path(f"/proc/{pid}/task").glob("*/stat")
    return all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in stats)


@dataclasses.dataclass(slots=True)
class Pause:
    """The start and the end, in ns, of a period in which a process certainly did not run."""

    stopped_ns: int = 0
    resumed_ns: int = 0

    def stop(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        while not stands_still(pid):
            time.sleep(0.001)
        self.stopped_ns = time.monotonic_ns()

    def resume(self, pid: int) -> None:
        self.resumed_ns = time.monotonic_ns()
        os.kill(pid, signal.SIGCONT)

    def waiting(self, samples: list[Sample], server: int) -> list[Sample]:
        """Return the queries to a server that were sent before the pause ended and answered later."""
        return [
            one
            for one in samples
            if one.server == server and one.sent_ns < self.resumed_ns <= one.sent_ns + one.wait_ns
        ]

    def answers(self, samples: list[Sample], server: int) -> bool:
        """Return True if a query to a server was both sent and answered during the pause."""
        return any(
            one.server == server
            and self.stopped_ns < one.sent_ns
            and one.sent_ns + one.wait_ns < self.resumed_ns
            for one in samples
        )


def test_pause_of_a_server_shows_in_the_bystanders_waits(storm: Storm) -> None:
    life = storm.life
    index = next(index for index in range(MEMBERS) if index != life.system.leader())
    pid = life.system.pids[index]
    pause = Pause()

    def stand_still() -> None:
        try:
            pause.stop(pid)
            time.sleep(PAUSE_S)
        finally:
            pause.resume(pid)

    for _ in range(TRIES):
        samples = asked_while(life, stand_still)
        waiting = pause.waiting(samples, index)
        answered = {other for other in range(MEMBERS) if pause.answers(samples, other)}
        if waiting and answered == set(range(MEMBERS)) - {index}:
            break
    assert answered == set(range(MEMBERS)) - {index}, "the others are asked all the while"
    (query,) = waiting
    # A query measures only a part of the pause. The pause may begin before the query is sent, and the query's
    # sender (the bystander) may be delayed as well.
    visible_ns = pause.resumed_ns - max(query.sent_ns, pause.stopped_ns) - query.own_ns
    published = waits([one for one in samples if one.server == index])
    assert published["wait_ms_longest"] >= visible_ns / 1e6
    assert published["wait_ms_longest"] <= max(one.wait_ns for one in samples if one.server == index) / 1e6


def test_pause_of_the_bystander_is_not_published_as_a_servers(storm: Storm) -> None:
    life = storm.life
    index = next(index for index in range(MEMBERS) if index != life.system.leader())
    server, own = life.system.pids[index], life.bystander.pid
    pause = Pause()

    def both() -> None:
        """Pause a server for 0.1 s, and pause the bystander for longer while the bystander's query waits."""
        try:
            Pause().stop(server)
            time.sleep(0.05)
            pause.stop(own)
            time.sleep(0.05)
        finally:
            os.kill(server, signal.SIGCONT)
        time.sleep(PAUSE_S)
        pause.resume(own)

    for _ in range(TRIES):
        samples = asked_while(life, both)
        in_flight = [one for one in pause.waiting(samples, index) if one.sent_ns < pause.stopped_ns]
        if in_flight:  # otherwise try again, because no query was in flight when the bystander was paused
            break
    (query,) = in_flight
    stood_still_ms = (pause.resumed_ns - pause.stopped_ns) / 1e6
    assert stood_still_ms > PAUSE_S * 1e3
    assert waits(in_flight)["wait_ms_longest"] <= query.wait_ns / 1e6 - stood_still_ms + ROUND_MS


def test_servers_that_restart_are_right_again_and_brokers_leave_at_once(storm: Storm) -> None:
    life, rows = storm.life, storm.rows
    pids = life.system.pids
    found = life.restart()
    assert not set(pids) & set(life.system.pids)
    assert last_counts(rows, "restart") == dict.fromkeys(range(MEMBERS), BROKERS)
    assert 0 < found["first_right_s"] <= found["right_s"]
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
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert errors == "storm: interrupted; the table holds the rows that were complete\n"
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
    assert (tmp_path / "out" / "storm.md").read_text().startswith("| | independent | goal |")


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
