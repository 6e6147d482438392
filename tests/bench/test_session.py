"""The recorded events of a run with real processes show the faults that the tests planted."""

from __future__ import annotations

import itertools
import math
import os
import signal
import threading
import time
import zlib
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from routekeeper.bench.events import (
    Delivery,
    Fault,
    Operation,
    ProcessSample,
    Truth,
    View,
    event_file,
)
from routekeeper.bench.plan import parse_plan
from routekeeper.bench.report import measures
from routekeeper.bench.report.gold import Gold
from routekeeper.bench.report.pipeline import compute
from routekeeper.bench.resolution import WAITED_NS
from routekeeper.bench.runfolder import read_manifest
from routekeeper.bench.session import Session
from tests.bench.lives import a_turn, rows
from tests.waiting import wait_until

pytestmark = [pytest.mark.bench, pytest.mark.one_core, pytest.mark.timeout(900)]


PLAN = """
arms = ["independent", "raft", "zookeeper"]
servers = 3
brokers = 2
durability = "fsync"
warmup_s = 1.0
linger_s = 0.5
[[series]]
name = "equal"
blocks = 1
timers = { divisor = 30.0, election_timeout_ms = 500 }
[load]
lookup_per_s = 20.0
newcomer_per_s = 2.0
send_per_s = 5.0
send_once_per_s = 5.0
change_per_s = 2.0
lookup_clients = 3
send_clients = 1
sim_brokers = 2
observed_sims = 1
topics = 1
topics_per_sim_broker = 3
message_bytes = 64
consumers = 1
timeout_s = 6.0
[[scenarios]]
name = "quiet"
quiet_s = 3.0
[[scenarios]]
name = "leader-fails"
faults = [{ case = "freeze", jitter_s = 0.0, down_s = 2.0, after_s = 1.0 }]
[[scenarios]]
name = "partition"
faults = [{ case = "broker-nameserver", jitter_s = 0.0, down_s = 9.0, after_s = 6.0 }]
"""
SECOND = 1_000_000_000
#: Time in ns for which a busy machine may delay a process.
HELD_UP_NS = 5 * SECOND // 2


def see_brokers_leave(session: Session) -> None:
    """Wait until the observer has seen that no server lists the generator's simulated brokers.

    Without this wait, the observer might be stopped too early on a busy machine.
    """
    path = event_file(session.given.spool, View, "observer")

    def all_gone() -> bool:
        lines = path.read_bytes().splitlines(keepends=True)
        views = [msgspec.json.decode(line, type=View) for line in lines if line.endswith(b"\n")]
        last = {row.index: row.state for row in views if row.topic == "sim-100-changing"}
        return set(last.values()) == {"absent"}

    wait_until(all_gone, "the observer sees that nobody lists the generator's brokers")


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Run the plan with independent nameservers; return the folders of its scenarios.

    The test kills one nameserver in the scenario "quiet".
    """
    plan = parse_plan(PLAN)
    given = a_turn(tmp_path_factory.mktemp("life"), plan, "independent", profile="planted", seed=11)
    session: Session
    steps: list[str] = []
    listed: list[int] = []

    def progress(step: str) -> None:
        steps.append(step)
        if step == "quiet":
            child = session.cluster.server_processes[2].child
            assert child is not None
            pid = child.pid
            threading.Timer(0.3, lambda: os.kill(pid, signal.SIGKILL)).start()

        # A killed server must list all brokers again before its next fault.
        if step.startswith(("leader-fails", "partition")):
            deadline = time.monotonic() + 60
            listed.clear()
            while listed != [4, 4, 4] and time.monotonic() < deadline:
                listed[:] = [session.cluster.servers.listed(index) for index in range(3)]

    session = Session(given, progress)
    session.measure(lambda: None)
    while session.cluster.generator.alive:
        time.sleep(0.01)
    gone_ns = time.monotonic_ns()
    see_brokers_leave(session)
    folders = session.end()
    end_ns = int((given.out / "work" / given.name / "generator.end").read_text())
    # 30 users act as new clients in turn, two users each second, so each user acts once in 15 s. When the
    # measurement ends, the load generator must not wait until the last user would act again.
    assert gone_ns - end_ns < 13 * 10**9
    assert listed == [4, 4, 4]  # two real brokers, and two that the generator simulates
    assert steps[0] == "starting"
    return folders


#: Plan with one nameserver, so that no client can use another one. Only one user makes new clients, so this
#: user is busy while the nameserver hangs.
FREEZE = """
arms = ["independent"]
servers = 1
brokers = 1
durability = "fsync"
warmup_s = 1.0
linger_s = 1.0
[[series]]
name = "equal"
blocks = 1
timers = { divisor = 60.0, election_timeout_ms = 500 }
[load]
lookup_per_s = 60.0
newcomer_per_s = 8.0
send_per_s = 15.0
send_once_per_s = 15.0
change_per_s = 2.0
lookup_clients = 3
send_clients = 1
sim_brokers = 1
observed_sims = 1
topics = 1
topics_per_sim_broker = 2
message_bytes = 64
timeout_s = 6.0
[[scenarios]]
name = "leader-fails"
faults = [{ case = "freeze", quiet_s = 1.5, jitter_s = 0.0, down_s = 2.0, after_s = 1.5 }]
"""


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run whose only nameserver was frozen for two seconds."""
    plan = parse_plan(FREEZE)
    given = a_turn(
        tmp_path_factory.mktemp("frozen"), plan, "independent", profile="planted", seed=12, block=2
    )
    session: Session

    def progress(step: str) -> None:
        if step == "starting":
            command = session.cluster.generator.command
            locustfile = command.index("-f") + 1
            few = Path(__file__).with_name("few_newcomers.py")
            everybody, newcomers = plan.load.all_users, plan.load.users("newcomer")
            assert newcomers > 10
            session.cluster.generator.command = [
                str(everybody - newcomers + 1) if word == str(everybody) else word
                for word in (
                    *command[:locustfile],
                    f"{command[locustfile]},{few}",
                    *command[locustfile + 1 :],
                )
            ]

    session = Session(given, progress)
    session.measure(lambda: None)
    see_brokers_leave(session)
    (folder,) = session.end()
    return folder


@pytest.fixture(scope="module")
def gold(
    life: list[Path], frozen: Path, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Gold:
    """Return the report's tables of both runs, ``life`` and ``frozen``."""
    return compute(
        spark,
        [str(folder) for folder in (*life, frozen)],
        str(tmp_path_factory.mktemp("told")),
        small=True,
        progress=print,
    )


def the_fault(folder: Path) -> Fault:
    (fault,) = rows(folder, Fault)
    return fault


def test_server_that_died_by_itself_has_lost_and_the_run_is_not_void(life: list[Path]) -> None:
    quiet, leader_fails, partition = map(read_manifest, life)
    assert quiet.void is None
    assert quiet.lost == "nameserver-2 ended with -9"
    assert (leader_fails.lost, partition.lost) == (None, None)
    ends = [row for row in rows(life[0], ProcessSample) if row.event == "exit"]
    assert [(row.role, row.index, row.code, row.wanted) for row in ends] == [("nameserver", 2, -9, False)]
    assert ends[0].cpu_ns > 0
    starts = [
        row
        for row in rows(life[0], ProcessSample)
        if row.event == "start" and row.t_ns >= quiet.measure_begin_ns
    ]
    assert [(row.role, row.index, row.cpu_ns) for row in starts] == [("nameserver", 2, 0)]


def test_nobody_reads_the_servers_while_their_cost_is_measured(life: list[Path]) -> None:
    """Check that the observer does not read the servers while the servers' cost is measured.

    For a server, listing 300 idle brokers to the observer costs more than the brokers themselves.
    """
    quiet, leader_fails, _ = life
    begin_ns = read_manifest(quiet).measure_begin_ns  # the file also has the route lists of the warm-up
    read = [row for row in rows(quiet, View) if row.observer == "nameserver" and row.seen_ns >= begin_ns]
    assert read == []
    before = [
        row
        for row in rows(leader_fails, View)
        if row.observer == "nameserver" and row.seen_ns < the_fault(leader_fails).begin_ns
    ]
    assert {row.index for row in before if row.state == "routed"} == {0, 1, 2}


def test_manifest_lists_the_events_as_they_were_recorded(life: list[Path]) -> None:
    for folder in life:
        listed = read_manifest(folder).files
        assert listed is not None
        assert {"ops-generator-0.jsonl", "views-observer.jsonl", "truth-harness.jsonl"} <= listed.keys()
        for path in folder.glob("*.jsonl"):
            lines = path.read_bytes().splitlines()
            assert (listed[path.name].lines, listed[path.name].crc32_sum) == (
                *(len(lines), sum(map(zlib.crc32, lines))),
            )


def test_freeze_is_silence_for_as_long_as_it_lasts_and_requests_that_waited_say_so(life: list[Path]) -> None:
    fault = the_fault(life[1])
    assert fault.healed_ns is not None
    assert 2 * SECOND <= fault.healed_ns - fault.begin_ns < 2 * SECOND + HELD_UP_NS
    frozen = int(fault.targets[0].rpartition("-")[2])
    views = [
        row
        for row in rows(life[1], View)
        if row.observer == "nameserver" and row.index == frozen and row.topic == "bench-0"
    ]
    place = max(place for place, row in enumerate(views) if row.seen_ns <= fault.healed_ns)
    assert views[place].state == "silent"
    # The observer sent its last answered query before the freeze, or in the first half second of the freeze.
    # The next answer comes after the freeze.
    assert (views[place].unseen_ns or 0) <= fault.begin_ns + SECOND // 2
    assert views[place + 1].state == "routed"
    struck = [
        row
        for row in rows(life[1], Operation)
        if row.op == "announce" and row.target == frozen and fault.begin_ns <= row.due_ns < fault.healed_ns
    ]
    waited = [row for row in struck if row.outcome == "ok"]
    assert waited
    for row in waited:  # a frozen nameserver answers no registration until the freeze ends
        assert row.done_ns >= fault.healed_ns


def test_server_that_died_by_itself_loses_every_figure_of_its_run(gold: Gold) -> None:
    every = measures.values(gold)
    quiet = [arms["independent"] for place, arms in every.items() if place.scenario == "quiet"]
    assert quiet
    assert {value for blocks in quiet for value in blocks.values()} == {math.inf}
    others = [arms["independent"] for place, arms in every.items() if place.scenario == "partition"]
    assert any(math.isfinite(value) for blocks in others for value in blocks.values())


def test_what_was_acknowledged_is_handed_to_the_group_through_faults_of_nameservers(life: list[Path]) -> None:
    """Compare the messages of acknowledged sends with the delivered messages.

    The event files have both, so lost messages can be counted.
    """
    handed = [row.message for folder in life for row in rows(folder, Delivery)]
    last_ns = read_manifest(life[-1]).measure_end_ns - 4 * SECOND
    acknowledged = {
        row.message
        for folder in life
        for row in rows(folder, Operation)
        if row.op in ("send", "send_once") and row.outcome == "ok" and row.due_ns < last_ns
    }
    assert len(acknowledged) > 50
    assert acknowledged <= set(handed)


def test_freeze_of_two_seconds_is_told_as_two_seconds(gold: Gold, frozen: Path) -> None:
    """Check two figures that show the freeze's length: the first right answer, and the slowest request.

    The slowest request waited since the freeze began.
    """
    fault = the_fault(frozen)
    assert fault.healed_ns is not None
    asked = [
        row
        for row in rows(frozen, Operation)
        if row.op == "lookup"
        and fault.from_ns <= row.due_ns < fault.until_ns
        and row.done_ns > fault.begin_ns
    ]
    waited = [row for row in asked if row.outcome != "ok" or row.done_ns - row.due_ns > WAITED_NS]
    last_ns = max(row.due_ns for row in waited)
    again_ns = min(row.done_ns for row in asked if row.outcome == "ok" and row.done_ns >= last_ns)
    (found,) = (
        row
        for row in gold.recoveries
        if "/leader-fails/2/" in row.run and (row.op, row.scope) == ("lookup", "all")
    )
    assert found.recovered_ns == again_ns - fault.begin_ns
    assert found.slowest_ns == max(row.done_ns - row.due_ns for row in asked if row.outcome == "ok")
    # Lookups are due every 17 ms on average; no answer comes before the freeze ends.
    stood_still_ns = fault.healed_ns - fault.begin_ns
    assert stood_still_ns >= 2 * SECOND
    assert found.recovered_ns >= stood_still_ns
    assert found.slowest_ns >= stood_still_ns - SECOND // 10


def test_sends_do_not_wait_for_routes(frozen: Path) -> None:
    """Check that sends go on while the only nameserver hangs: routes are refreshed in the background.

    The nameserver hangs for three refresh periods or longer (case C3 of report/test_misled.py).
    """
    fault = the_fault(frozen)
    assert fault.healed_ns is not None
    sends = [
        row
        for row in rows(frozen, Operation)
        if row.op in ("send", "send_once") and fault.begin_ns <= row.due_ns < fault.healed_ns
    ]
    assert len(sends) >= 50
    assert {row.outcome for row in sends} == {"ok"}
    # Routes are due for a refresh every 0.5 s. If sends waited for a refresh, all of them would wait until
    # the nameserver goes on. A busy machine delays a few sends.
    late = [row for row in sends if row.done_ns >= fault.healed_ns and row.done_ns - row.due_ns > SECOND]
    assert len(late) < len(sends) / 4


def test_operation_that_found_no_free_user_says_so(frozen: Path) -> None:
    """Check operations while the only user for new clients waits for the frozen server: they are queued.

    This is case C4 of report/test_misled.py.
    """
    fault = the_fault(frozen)
    assert fault.healed_ns is not None
    operations = rows(frozen, Operation)
    assert {row.op for row in operations if row.queued} <= {"newcomer"}
    newcomers = sorted((row for row in operations if row.op == "newcomer"), key=lambda row: row.due_ns)
    struck = [row for row in newcomers if fault.begin_ns <= row.due_ns < fault.healed_ns]
    assert len(struck) >= 12
    # The first operation of the freeze may find the user idle. All later ones wait for that user.
    assert all(row.queued for row in struck[1:])
    # An operation that is not marked as queued began when it was due: the user had already finished the
    # operation that was due before.
    for earlier, later in itertools.pairwise(newcomers):
        assert later.queued or earlier.done_ns <= later.due_ns
    assert not all(row.queued for row in newcomers if row.due_ns < fault.begin_ns)


def test_change_is_a_truth_and_a_heartbeat_is_none(life: list[Path]) -> None:
    """Check that a registration with the same content each second is a heartbeat: it records no change.

    This is case C5 of report/test_misled.py.
    """
    facts = [row for folder in life for row in rows(folder, Truth) if row.subject == "topic"]
    begun = [row.change for row in facts if row.what == "changing"]
    assert None not in begun
    assert len(begun) == len(set(begun)) > 20
    told = [row for folder in life for row in rows(folder, Operation) if row.op == "announce"]
    # Each change leaves two rows: a fact (``Truth``) and a registration (``Operation``). At the end of the
    # run, one of the two rows of the last change may be missing.
    assert len({row.change for row in told if row.change is not None} ^ set(begun)) <= 2
    heartbeats = [row for row in told if row.change is None]
    assert len(heartbeats) > 3 * len(set(begun)) / 2, "every second, to each of three nameservers"


def test_cut_between_one_broker_and_one_nameserver_is_disagreement_until_it_heals(life: list[Path]) -> None:
    fault = the_fault(life[2])
    assert fault.healed_ns is not None
    server, broker = (int(name.rpartition("-")[2]) for name in fault.targets)
    # Leave out the rows with the state "silent": on a busy machine, a server may not answer for a moment.
    views = [
        row
        for row in rows(life[2], View)
        if (row.observer, row.topic) == ("nameserver", "bench-0") and row.state in ("routed", "absent")
    ]

    def lists(index: int, at_ns: int) -> bool:
        seen = [row for row in views if row.index == index and row.seen_ns <= at_ns]
        return broker in (seen[-1].brokers or [])

    others = [index for index in range(3) if index != server]
    # The lease runs from the broker's last report. Brokers report once a second, so the last report may have
    # come one second before the cut, or even earlier on a busy machine.
    lease_ns, heartbeat_ns = 4 * SECOND, SECOND
    assert lists(server, fault.begin_ns + lease_ns - heartbeat_ns - HELD_UP_NS)
    assert not lists(server, fault.healed_ns)
    for instant in (fault.begin_ns, fault.healed_ns - 1, fault.until_ns):
        assert all(lists(index, instant) for index in others)
    assert lists(server, fault.until_ns)


def test_every_run_says_who_lives_and_what_is_shown_when_it_begins(life: list[Path]) -> None:
    for folder in life:
        manifest = read_manifest(folder)
        lives = {row.broker for row in rows(folder, Truth) if row.subject == "broker" and row.what == "up"}
        assert lives == {0, 1}
        begun = [row for row in rows(folder, View) if row.unseen_ns is None]
        assert {(row.observer, row.index) for row in begun if row.topic == "bench-0"} >= {
            ("client", 0),
            ("client", 1),
            ("nameserver", 0),
            ("nameserver", 1),
        }
        for operation in rows(folder, Operation):  # the first scenario's file also holds the warm-up
            assert operation.due_ns < manifest.measure_end_ns


def test_users_stay_until_the_end_and_a_linger(life: list[Path], frozen: Path) -> None:
    """Check that a simulated broker stays listed for ``linger_s`` after the measurement, then disappears.

    This is case C2 of report/test_misled.py.
    """
    for folder, servers, linger_ns in ((life[-1], 3, SECOND // 2), (frozen, 1, SECOND)):
        leave_ns = read_manifest(folder).measure_end_ns + linger_ns
        changing = [
            row
            for row in rows(folder, View)
            if (row.topic, row.observer) == ("sim-100-changing", "nameserver")
            and row.state in ("routed", "absent")
        ]
        for index in range(servers):
            shown = sorted((row for row in changing if row.index == index), key=lambda row: row.seen_ns)
            assert [row.state for row in shown][-2:] == ["routed", "absent"]
            assert shown[-1].seen_ns >= leave_ns


def test_load_is_late_by_little(life: list[Path]) -> None:
    operations = [row for folder in life for row in rows(folder, Operation)]
    kinds = {"lookup", "newcomer", "announce", "send", "send_once"}
    assert {row.op for row in operations} == kinds
    waited = [row for row in operations if row.queued]
    assert len(waited) <= len(operations) / 100
    assert all(row.due_ns <= row.sent_ns <= row.done_ns for row in operations)
