"""Every scenario and case of the full comparison works, in a shortened form with real processes.

The three designs share the code that starts, cuts, freezes and kills processes. So each design runs only
those cases in which it behaves differently from the other designs. Together, the three designs run every
case. In test_compare.py, each design runs the cases of the profile ``smoke``.

No other test runs at the same time as the run of ZooKeeper. A busy machine would delay ZooKeeper's JVMs, and
a test checks that ZooKeeper's clients see changes at once. During the run of another design, one more test
may run. All tests read the raw events.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import statistics
import tempfile
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil
import pytest

from routekeeper.bench import cluster, director, session
from routekeeper.bench.arms.servers import four_letters
from routekeeper.bench.events import (
    Delivery,
    DiskSample,
    Fault,
    LinkSample,
    Operation,
    ProcessSample,
    Truth,
    View,
)
from routekeeper.bench.plan import CASES, REST, SWEEPS, Plan, Scenario, load_plan
from routekeeper.bench.runfolder import Arm, Manifest, read_manifest
from routekeeper.bench.session import Session
from tests.bench.lives import E, a_turn, hold_brokers, written_so_far
from tests.bench.lives import rows as rows_of

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]  # a run of one design takes more than a minute

ARMS: Final[tuple[Arm, ...]] = ("independent", "raft", "zookeeper")
#: Cases that each design runs, by scenario.
RUN: Final[dict[Arm, dict[str, tuple[str, ...]]]] = {
    "independent": {
        "broker-dies": ("stop", "freeze"),
        "nameserver-restarts": ("one-empty",),
        "partition": ("1-1-1", "broker-nameserver"),
        "messages": ("broker-kill", "broker-cable"),
        "new-topic": ("first-send",),
    },
    "raft": {
        "broker-dies": ("stop", "cable"),
        "nameserver-restarts": ("one-empty", "all", "rolling", "disk-lost"),
        "leader-fails": ("freeze", "cable", "oneway"),
        "partition": ("1-2", "1-1-1", "broker-nameserver"),
        "messages": ("leader-kill", "leader-cable", "1-2"),
        "new-topic": ("update-topic", "first-send"),
    },
    "zookeeper": {
        "broker-dies": ("cable",),
        "nameserver-restarts": ("one-empty",),
        "leader-fails": ("oneway",),
        "partition": ("1-2", "broker-nameserver"),
        "new-topic": ("update-topic",),
    },
}
SECOND: Final = 10**9
#: Folder in memory that holds the runs if at least ROOM bytes are free there.
MEMORY: Final = Path("/dev/shm")
ROOM: Final = 4 * 1024**3
#: Divisor of the timers. With it, a lease lasts 3 s, and brokers register and clients refresh routes every
#: 0.75 s.
DIVISOR: Final = 40.0
#: Two times in s for each scenario and case: length of the fault, and time after the fault. The times leave
#: room for leases (3 s), for elections and for a busy machine.
SHORT: Final[dict[tuple[str, str], tuple[float, float]]] = {
    # The broker is down for less than a lease, so the servers drop it only if it unregisters.
    ("broker-dies", "stop"): (2.0, 4.0),
    ("broker-dies", "freeze"): (5.7, 4.6),
    ("broker-dies", "cable"): (8.0, 5.2),
    ("nameserver-restarts", "one-empty"): (0.3, 6.0),
    ("nameserver-restarts", "all"): (0.3, 2.5),
    ("nameserver-restarts", "rolling"): (0.0, 1.5),
    ("nameserver-restarts", "disk-lost"): (0.3, 2.0),
    ("leader-fails", "freeze"): (3.5, 1.5),
    ("leader-fails", "cable"): (2.5, 1.5),
    ("leader-fails", "oneway"): (2.5, 1.5),
    ("partition", "1-2"): (6.0, 5.0),
    ("partition", "1-1-1"): (6.0, 5.0),
    ("partition", "broker-nameserver"): (6.0, 5.0),
    ("messages", "broker-kill"): (1.0, 1.0),
    ("messages", "broker-cable"): (1.5, 1.0),
    ("messages", "leader-kill"): (1.0, 1.0),
    ("messages", "leader-cable"): (1.5, 1.0),
    ("messages", "1-2"): (1.5, 1.0),
    ("new-topic", "update-topic"): (0.0, 4.0),
    ("new-topic", "first-send"): (0.0, 5.0),
}
#: Times of one design that replace times of SHORT. ZooKeeper's times are long enough for the restart of a
#: JVM, and for a session that ZooKeeper ends one tick after its timeout. If a broker is cut off from one
#: server, these two designs still list the broker, so the time after the cut may be short. In raft mode, no
#: server may drop a broker in the case "1-1-1". A cut of 4 s shows this, because it is longer than a lease.
OWN: Final[dict[Arm, dict[tuple[str, str], tuple[float, float]]]] = {
    "raft": {
        ("partition", "1-2"): (10.0, 5.0),  # long: each new leader waits before it judges a silent broker
        ("partition", "1-1-1"): (4.0, 5.0),
        ("partition", "broker-nameserver"): (6.0, 1.0),
    },
    "zookeeper": {
        ("broker-dies", "cable"): (5.5, 4.2),
        ("nameserver-restarts", "one-empty"): (0.3, 3.0),
        ("partition", "1-2"): (7.0, 4.0),  # long: a new leader starts each session's timeout again
        ("partition", "broker-nameserver"): (6.0, 1.0),
    },
}
QUIET: Final = {"quiet": 1.0, "staleness": 5.0}
#: Length in s of the scenario without requests, which only raft mode runs. It is long enough for a broker's
#: report, even if a busy machine delays the report.
REST_S: Final = 3.0


def short_plan(arm: Arm) -> Plan:
    """Return the full plan with all scenarios, but only one design's cases, each as short as possible."""
    plan = load_plan("full")
    short = SHORT | OWN.get(arm, {})
    scenarios = [
        msgspec.structs.replace(
            scenario,
            quiet_s=QUIET.get(scenario.name, 0.0),
            faults=[
                msgspec.structs.replace(
                    fault,
                    quiet_s=0.3,
                    jitter_s=0.1,
                    down_s=short[scenario.name, fault.case][0],
                    after_s=short[scenario.name, fault.case][1],
                )
                for fault in scenario.faults
                if fault.case in RUN[arm].get(scenario.name, ())
            ],
        )
        for scenario in plan.scenarios
    ]
    if arm == "raft":
        scenarios.append(Scenario(name=REST, quiet_s=REST_S))
    load = msgspec.structs.replace(
        plan.load,
        lookup_per_s=10.0,
        newcomer_per_s=24.0 if arm == "independent" else 6.0,
        send_per_s=8.0,
        send_once_per_s=8.0,
        change_per_s=4.0,
        send_clients=2,
        lookup_clients=2,
        sim_brokers=2,
        observed_sims=1,
        topics=2,
        topics_per_sim_broker=2,
    )
    # ZooKeeper's clients watch in this plan. test_compare.py tests ZooKeeper's clients that poll.
    timers = msgspec.structs.replace(plan.series[0].timers, divisor=DIVISOR)
    series = [msgspec.structs.replace(plan.series[0], blocks=1, watches=True, scenarios=[], timers=timers)]
    # On a slow machine, consumers need more than 2 s to receive the messages of a topic that is made last.
    return msgspec.structs.replace(
        plan, scenarios=scenarios, load=load, series=series, lines=[], warmup_s=1.5, linger_s=6.0
    )


class Life:
    """The run of one design's cluster, and what was seen on the servers' disks during the run.

    Before each step of the run, :meth:`progress` puts a mark file on each disk. A lost mark file shows that a
    step emptied the disk.
    """

    def __init__(self, out: Path, plan: Plan, arm: Arm) -> None:
        self.arm = arm
        self.step = ""
        self.marked: dict[str, list[bool]] = {}
        self.syncs: list[list[int]] = []
        self.launched_s: list[float] = []
        self.session = Session(
            a_turn(out, plan, arm, profile="full", seed=5),
            self.progress,
        )
        self.folders: dict[str, Path] = {}
        self._rows: dict[tuple[str, type], list[Any]] = {}

    def progress(self, step: str) -> None:
        """Record which servers' disks still have the mark file, and then write a mark file to every disk.

        The run calls this function before each of its steps. If a disk has lost its mark file, the previous
        step emptied this disk.
        """
        if step == "starting":
            return
        if step == "quiet":
            for process in self.session.cluster.brokers:
                assert process.child is not None
                self.launched_s.append(psutil.Process(process.child.pid).create_time())
        if step == "nameserver-restarts: one-empty" and self.arm == "independent":
            hold_brokers(self.session, self.newcomer_was_wrong)
        if step == "quiet" or (step.startswith("broker-dies") and len(self.syncs) == 1):
            self.syncs.append([self.synced(index) for index in range(3)])
        marks = [self.session.cluster.started.data_of(index) / "mark" for index in range(3)]
        self.marked[self.step] = [mark.exists() for mark in marks]
        for mark in marks:
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
        self.step = step

    def newcomer_was_wrong(self, index: int, after_ns: int) -> bool:
        """Return True if a server gave a wrong answer to a new client that was due after `after_ns`.

        An answer is wrong if it does not list all three brokers.
        """
        return any(
            (row.op, row.target) == ("newcomer", index)
            and row.due_ns > after_ns
            and row.outcome in ("ok", "absent")
            and row.brokers != [0, 1, 2]
            for row in written_so_far(self.session, Operation, "generator-0")
        )

    def synced(self, index: int) -> int:
        """Return a number that shows if a server syncs its files.

        For ZooKeeper, this is the number of syncs that the server reports. For our nameservers, it is the
        number of files that the process has open with O_DSYNC.
        """
        servers = self.session.cluster.started
        if self.arm == "zookeeper":
            told = four_letters(servers.clients[index], b"mntr").splitlines()
            return int(dict(line.split("\t") for line in told)["zk_cnt_fsynctime"])
        child = servers.processes[index].child
        assert child is not None
        found = 0
        for path in Path(f"/proc/{child.pid}/fdinfo").iterdir():
            # ignore files of connections that are closed while this loop reads /proc
            with contextlib.suppress(FileNotFoundError):
                said = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
                found += int(said["flags"], 8) & os.O_DSYNC != 0
        return found

    def run(self) -> None:
        began = datetime.now(UTC)
        folders = self.session.run()
        self.lasted = began, datetime.now(UTC)
        self.folders = {read_manifest(folder).scenario: folder for folder in folders}

    def rows(self, scenario: str, kind: type[E]) -> list[E]:
        """Return a scenario's events of one type, in the order of their files, and keep them in memory."""
        key = scenario, kind
        if key not in self._rows:
            self._rows[key] = rows_of(self.folders[scenario], kind)
        return self._rows[key]

    def manifests(self) -> Iterator[Manifest]:
        return map(read_manifest, self.folders.values())

    def fault(self, scenario: str, case: str) -> Fault:
        (found,) = (row for row in self.rows(scenario, Fault) if row.case == case)
        return found

    def targets(self, fault: Fault, role: str) -> list[int]:
        return [int(name.rpartition("-")[2]) for name in fault.targets if name.startswith(f"{role}-")]

    def samples(self, scenario: str, role: str, index: int) -> list[ProcessSample]:
        found = [row for row in self.rows(scenario, ProcessSample) if (row.role, row.index) == (role, index)]
        return sorted(found, key=lambda row: row.t_ns)

    def views(self, scenario: str, topic: str = "bench-0") -> dict[tuple[str, int], list[View]]:
        """Return the route lists of a topic that each nameserver and each client showed, in order of time."""
        found: dict[tuple[str, int], list[View]] = {}
        for row in sorted(self.rows(scenario, View), key=lambda row: row.seen_ns):
            if row.topic == topic and row.state != "end":
                found.setdefault((row.observer, row.index), []).append(row)
        return found


def shown_between(views: list[View], begin_ns: int, end_ns: int) -> list[View]:
    """Return all route lists that an observer showed at some time between two instants."""
    return [
        view
        for place, view in enumerate(views)
        if view.seen_ns < end_ns and (place + 1 == len(views) or views[place + 1].seen_ns >= begin_ns)
    ]


def shown_at(views: list[View], at_ns: int) -> View:
    return [view for view in views if view.seen_ns <= at_ns][-1]


def said_at(views: list[View], at_ns: int) -> View:
    """Return the last route list that was shown before an instant.

    Skip times in which the server did not answer, because a busy server may be late.
    """
    return [view for view in views if view.seen_ns <= at_ns and view.state != "silent"][-1]


def lived(life: Life) -> Life:
    """Run a cluster. Observers read less often than in a comparison, so that the test needs only one core."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "SAMPLE_EVERY_S", 0.5)
        patch.setattr(cluster, "OBSERVE_EVERY_S", 0.1)
        # the limits are long, because these tests do not judge how fast processes start and end
        patch.setattr(session, "GENERATOR_END_S", 300.0)
        for module in (cluster, director):
            patch.setattr(module, "RESTART_MAX_S", 300.0)
        life.run()
    return life


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a folder in memory if enough memory is free, else a folder on the disk.

    In one run on a busy disk, a sync took more than a second. ZooKeeper's servers therefore elected a new
    leader, although the scenario only stopped a broker.
    """
    if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= ROOM:
        with tempfile.TemporaryDirectory(prefix="every-scenario-", dir=MEMORY) as found:
            yield Path(found)
    else:
        yield tmp_path_factory.mktemp("every-scenario")


@pytest.fixture(scope="module")
def independent(folder: Path) -> Life:
    return lived(Life(folder, short_plan("independent"), "independent"))


@pytest.fixture(scope="module")
def raft(folder: Path) -> Life:
    return lived(Life(folder, short_plan("raft"), "raft"))


@pytest.fixture(scope="module")
def zookeeper(folder: Path) -> Life:
    return lived(Life(folder, short_plan("zookeeper"), "zookeeper"))


@pytest.fixture
def life(request: pytest.FixtureRequest, arm: Arm) -> Life:
    found = request.getfixturevalue(arm)
    assert isinstance(found, Life)
    return found


def mark_of(arm: Arm) -> pytest.MarkDecorator:
    return pytest.mark.alone if arm == "zookeeper" else pytest.mark.one_core


def of(*arms: Arm) -> pytest.MarkDecorator:
    """Return a decorator that runs a test once for each of these designs."""
    return pytest.mark.parametrize("arm", [pytest.param(arm, marks=mark_of(arm)) for arm in arms])


def cases(*kinds: str) -> pytest.MarkDecorator:
    """Return a decorator that runs a test for each case of these kinds, in each design that has the case."""
    found = [
        pytest.param(arm, scenario, case, marks=mark_of(arm))
        for arm in ARMS
        for scenario, run in RUN[arm].items()
        for case in run
        if CASES[scenario][case] in kinds
    ]
    return pytest.mark.parametrize(("arm", "scenario", "case"), found)


def cases_of(scenario: str) -> pytest.MarkDecorator:
    """Return a decorator that runs a test for each case of a scenario, in each design that has the case."""
    found = [
        pytest.param(arm, case, marks=mark_of(arm)) for arm in ARMS for case in RUN[arm].get(scenario, ())
    ]
    return pytest.mark.parametrize(("arm", "case"), found)


def test_the_three_designs_together_run_every_case() -> None:
    smoke = {each.name: {fault.case for fault in each.faults} for each in load_plan("smoke").scenarios}
    for scenario in set(CASES) - {"idle-300"}:
        run = {case for arm in ARMS for case in RUN[arm].get(scenario, ())} | smoke.get(scenario, set())
        # All cases of the scenario must run, except the cases in SWEEPS, which repeat case "1-2" with other
        # lengths.
        assert run == CASES[scenario].keys() - SWEEPS.keys(), scenario


@of(*ARMS)
def test_every_scenario_and_case_was_run_and_no_server_lost(life: Life, arm: Arm) -> None:
    assert set(life.folders) == RUN[arm].keys() | QUIET.keys() | ({REST} if arm == "raft" else set())
    for scenario in life.folders:
        assert {row.case for row in life.rows(scenario, Fault)} == set(RUN[arm].get(scenario, ()))
    assert {(manifest.lost, manifest.void) for manifest in life.manifests()} == {(None, None)}
    assert {manifest.watches for manifest in life.manifests()} == {life.arm == "zookeeper"}


@cases("stop", "kill", "empty")
def test_whoever_is_ended_is_gone_until_it_is_started_again(life: Life, scenario: str, case: str) -> None:
    fault = life.fault(scenario, case)
    assert fault.healed_ns is not None
    assert fault.end_ns is not None
    assert fault.targets
    for name in fault.targets:
        role, _, index = name.rpartition("-")
        mine = life.samples(scenario, role, int(index))
        during = [row for row in mine if fault.begin_ns <= row.t_ns < fault.until_ns]
        ends = [row for row in during if row.event == "exit"]
        starts = [row for row in during if row.event == "start"]
        assert [row.wanted for row in ends] == [True], name
        assert (ends[0].code == -9) == (case != "stop"), name
        assert len(starts) == 1, name
        assert fault.healed_ns <= starts[0].t_ns <= fault.end_ns
        assert starts[0].pid != ends[0].pid
        # On a busy machine, the new process may be sampled just before its start is recorded.
        assert [row for row in during if row.t_ns > ends[0].t_ns and row.pid == ends[0].pid] == []
    others = {
        (row.role, row.index)
        for row in life.rows(scenario, ProcessSample)
        if row.event != "sample" and fault.begin_ns <= row.t_ns < fault.until_ns
    }
    assert {f"{role}-{index}" for role, index in others} == set(fault.targets)


@cases("freeze")
def test_whoever_is_frozen_does_nothing_until_it_goes_on(life: Life, scenario: str, case: str) -> None:
    fault = life.fault(scenario, case)
    assert fault.healed_ns is not None
    (name,) = fault.targets
    role, _, index = name.rpartition("-")
    mine = life.samples(scenario, role, int(index))
    frozen = [row for row in mine if fault.begin_ns + SECOND // 10 < row.t_ns < fault.healed_ns]
    assert len(frozen) >= 2
    assert len({(row.pid, row.cpu_ns) for row in frozen}) == 1
    later = [row for row in mine if row.t_ns > fault.healed_ns]
    assert {row.pid for row in later} == {frozen[0].pid}
    assert later[-1].cpu_ns > frozen[0].cpu_ns


def passed(life: Life, begin_ns: int, end_ns: int) -> dict[tuple[str, str], int]:
    """Return the number of bytes that passed through each link in a time span, by sender and receiver.

    The number is the last reading of the link's counter in the time span minus the first reading.
    """
    counts: dict[tuple[str, str], list[LinkSample]] = {}
    every = [row for scenario in life.folders for row in life.rows(scenario, LinkSample)]
    for row in sorted(every, key=lambda row: row.t_ns):
        if begin_ns < row.t_ns < end_ns:
            counts.setdefault((row.dialler, row.acceptor), []).append(row)
    found: dict[tuple[str, str], int] = {}
    for (dialler, acceptor), rows in counts.items():
        for direction, many in (
            ((dialler, acceptor), rows[-1].forward_bytes - rows[0].forward_bytes),
            ((acceptor, dialler), rows[-1].back_bytes - rows[0].back_bytes),
        ):
            found[direction] = found.get(direction, 0) + many
    return found


@cases("cable", "oneway", "partition")
def test_cut_lets_nothing_through_in_the_directions_that_it_names(
    life: Life, scenario: str, case: str
) -> None:
    fault = life.fault(scenario, case)
    assert fault.healed_ns is not None
    assert fault.cut
    cut = {(sender, receiver) for sender, receiver in fault.cut}
    # skip the first 0.25 s of the fault, because the cut takes effect a moment after the fault begins
    during = passed(life, fault.begin_ns + SECOND // 4, fault.healed_ns)
    before = passed(life, fault.begin_ns - 8 * SECOND, fault.begin_ns)
    assert {way: many for way, many in during.items() if way in cut and many} == {}
    used = {way for way, many in before.items() if many}
    assert used & cut, "what was cut had been in use"
    (first, *_) = fault.targets
    if CASES[scenario][case] == "oneway":
        # Only messages from the leader are cut, so messages to the leader must still arrive.
        into = passed(life, fault.begin_ns - SECOND // 2, fault.healed_ns)
        assert {sender for sender, _ in cut} == {first}
        assert any(many for (_, receiver), many in into.items() if receiver == first)
    assert {way for way, many in during.items() if many} - cut, "nobody else was cut off"


@of("raft")
def test_rolling_restart_takes_one_server_at_a_time(life: Life) -> None:
    fault = life.fault("nameserver-restarts", "rolling")
    away = []
    for index in life.targets(fault, "nameserver"):
        mine = [
            row
            for row in life.samples("nameserver-restarts", "nameserver", index)
            if row.event != "sample" and fault.begin_ns <= row.t_ns < fault.until_ns
        ]
        assert [row.event for row in mine] == ["exit", "start"]
        away.append((mine[0].t_ns, mine[1].t_ns))
    assert len(away) == 3
    assert all(end_ns < begin_ns for (_, end_ns), (begin_ns, _) in itertools.pairwise(away))


@of("raft")
def test_lost_disk_is_empty_and_the_others_are_not(life: Life) -> None:
    (target,) = life.targets(life.fault("nameserver-restarts", "disk-lost"), "nameserver")
    assert life.marked["nameserver-restarts: disk-lost"] == [index != target for index in range(3)]
    assert life.marked["nameserver-restarts: one-empty"] == [True, True, True]


@of(*ARMS)
def test_every_arm_that_stores_anything_syncs_it(life: Life) -> None:
    """Check that a server that stores its data syncs its files.

    A server in raft mode has one file open with O_DSYNC. ZooKeeper's own number of syncs increases during the
    run.
    """
    before, after = life.syncs
    match life.arm:
        case "independent":
            assert before == after == [0, 0, 0]
        case "raft":
            assert before == after == [1, 1, 1], "the journal is open for synchronous writes"
        case "zookeeper":
            assert all(later > earlier for earlier, later in zip(before, after, strict=True))
    wanted = None if life.arm == "independent" else "fsync"
    assert {manifest.durability for manifest in life.manifests()} == {wanted}


@cases_of("broker-dies")
def test_broker_that_is_away_is_left_out_by_everybody_and_comes_back(life: Life, case: str) -> None:
    fault = life.fault("broker-dies", case)
    (broker,) = life.targets(fault, "broker")
    views = life.views("broker-dies")
    assert len(views) == 3 + 4 + 2  # 3 nameservers, 4 producers, 2 consumers
    for who, shown in views.items():
        assert broker in (said_at(shown, fault.begin_ns).brokers or []), who
        during = shown_between(shown, fault.begin_ns, fault.until_ns)
        assert any(broker not in (view.brokers or []) for view in during if view.state == "routed"), who
        assert said_at(shown, fault.until_ns).brokers == [0, 1, 2], who


@of("zookeeper")
def test_surviving_broker_whose_session_expired_registers_anew(life: Life) -> None:
    fault = life.fault("broker-dies", "cable")
    assert fault.healed_ns is not None
    (broker,) = life.targets(fault, "broker")
    pids = {
        row.pid
        for row in life.samples("broker-dies", "broker", broker)
        if fault.begin_ns < row.t_ns < fault.until_ns
    }
    assert len(pids) == 1, "the broker lived on"
    for who, shown in life.views("broker-dies").items():
        if who[0] == "nameserver":
            assert broker not in (shown_at(shown, fault.healed_ns).brokers or []), who
            assert broker in (said_at(shown, fault.until_ns).brokers or []), who


@of(*ARMS)
def test_only_an_independent_server_that_restarted_empty_gives_newcomers_wrong_answers(life: Life) -> None:
    fault = life.fault("nameserver-restarts", "one-empty")
    assert fault.healed_ns is not None
    (target,) = life.targets(fault, "nameserver")
    asked = [
        row
        for row in life.rows("nameserver-restarts", Operation)
        if (row.op, row.target) == ("newcomer", target) and fault.healed_ns < row.due_ns < fault.until_ns
    ]
    assert any(row.outcome == "ok" and row.brokers == [0, 1, 2] for row in asked)
    answered = [row for row in asked if row.outcome in ("ok", "absent")]
    wrong = [row for row in answered if row.brokers != [0, 1, 2]]
    assert bool(wrong) == (life.arm == "independent"), wrong


@cases_of("leader-fails")
def test_it_is_the_leader_that_is_struck_and_the_others_go_on_without_it(life: Life, case: str) -> None:
    fault = life.fault("leader-fails", case)
    assert fault.healed_ns is not None
    assert fault.role == "leader"
    (target,) = life.targets(fault, "nameserver")
    told = [
        row
        for row in life.rows("leader-fails", Operation)
        if row.op == "announce"
        and row.change is not None
        and row.outcome == "ok"
        and row.target != target
        and fault.begin_ns < row.due_ns < fault.healed_ns
    ]
    assert told, "a change was taken while the leader was away"


@of("raft", "zookeeper")
def test_partition_of_one_against_two(life: Life) -> None:
    """Check that a server without a majority cannot change its route lists, and that other servers can."""
    fault = life.fault("partition", "1-2")
    assert fault.healed_ns is not None
    (alone,) = life.targets(fault, "nameserver")
    views = life.views("partition")
    for index in range(3):
        shown = views["nameserver", index]
        if index != alone:
            last = said_at(shown, fault.healed_ns - SECOND // 10)
            assert (last.state, last.brokers) == ("routed", [1, 2]), index
        else:
            last = shown_at(shown, fault.healed_ns - SECOND // 10)
            assert last.state in ("refused", "silent") or last.brokers == [0, 1, 2], last
        assert said_at(shown, fault.until_ns).brokers == [0, 1, 2], "all agree again"


@of("independent", "raft")
def test_partition_into_three(life: Life) -> None:
    """Check that an independent nameserver lists only the brokers that it can reach.

    In raft mode, no server has a majority, so no server may change its route lists.
    """
    fault = life.fault("partition", "1-1-1")
    assert fault.healed_ns is not None
    views = life.views("partition")
    at_ns = fault.healed_ns - SECOND // 10
    if life.arm == "independent":
        last = [said_at(views["nameserver", index], at_ns) for index in range(3)]
        assert sorted(view.brokers or [] for view in last) == [[0], [1], [2]]
    else:
        for index in range(3):
            shown = shown_at(views["nameserver", index], at_ns)
            assert shown.state in ("refused", "silent") or shown.brokers == [0, 1, 2], shown
    for index in range(3):
        assert said_at(views["nameserver", index], fault.until_ns).brokers == [0, 1, 2]


@of(*ARMS)
def test_broker_cut_off_from_one_nameserver(life: Life) -> None:
    fault = life.fault("partition", "broker-nameserver")
    assert fault.healed_ns is not None
    (server,), (broker,) = life.targets(fault, "nameserver"), life.targets(fault, "broker")
    views = life.views("partition")
    for index in range(3):
        shown = views["nameserver", index]
        last = said_at(shown, fault.healed_ns - SECOND // 10)
        listed = broker in (last.brokers or [])
        assert listed == (life.arm != "independent" or index != server), index
        assert said_at(shown, fault.until_ns).brokers == [0, 1, 2]


def handed_to_consumers(life: Life) -> set[int]:
    """Return the messages of a run that consumers received, also if a later scenario had begun by then."""
    return {row.message for scenario in life.folders for row in life.rows(scenario, Delivery)}


@of(*ARMS)
def test_what_was_acknowledged_is_read_back_through_every_fault(life: Life) -> None:
    handed = handed_to_consumers(life)
    for scenario in life.folders.keys() - {REST}:
        acknowledged: set[int | None] = {
            row.message
            for row in life.rows(scenario, Operation)
            if row.op in ("send", "send_once", "first_send") and row.outcome == "ok"
        }
        assert acknowledged
        assert acknowledged <= handed, (scenario, acknowledged - handed)


@cases_of("new-topic")
def test_new_topic_is_found_by_everybody_sent_to_and_read(life: Life, case: str) -> None:
    fault = life.fault("new-topic", case)
    assert fault.targets == []
    topic = f"new-by-{case}"
    tries = [row for row in life.rows("new-topic", Operation) if row.topic == topic]
    assert {row.op for row in tries} == {"first_send"}
    assert all(fault.begin_ns <= row.due_ns < fault.until_ns for row in tries)
    assert all(row.due_ns <= row.sent_ns <= row.done_ns for row in tries)
    accepted = [row for row in tries if row.outcome == "ok"]
    assert len({row.user for row in accepted}) == len(accepted) == 4, "each producer, once"
    handed = handed_to_consumers(life)
    assert handed >= {row.message for row in accepted}
    views = life.views("new-topic", topic)
    # More brokers than wanted may list the topic. On a busy machine, a broker may make the topic after its
    # producer has stopped waiting for it.
    wanted = {0, 1, 2} if case == "update-topic" else {row.target for row in accepted}
    for index in range(3):
        assert said_at(views["nameserver", index], fault.begin_ns).state == "absent"
        assert set(said_at(views["nameserver", index], fault.until_ns).brokers or []) >= wanted


def delays(life: Life) -> list[float]:
    """Return the time in s from each change until a client showed it, for each client.

    All changes come from a scenario without faults.
    """
    found = []
    for topic in ("sim-100-changing",):
        views = life.views("staleness", topic)
        for fact in life.rows("staleness", Truth):
            if (fact.what, fact.topic) != ("changed", topic):
                continue
            for (observer, _), shown in views.items():
                seen = [view.seen_ns for view in shown if (view.version or 0) >= (fact.version or 0)]
                if (
                    observer == "client"
                    and seen
                    and seen[0] > read_manifest(life.folders["staleness"]).measure_begin_ns
                ):
                    found.append((seen[0] - fact.t_ns) / 1e9)
    return found


@of("zookeeper")
def test_clients_that_watch_learn_of_a_change_at_once(life: Life) -> None:
    watching = delays(life)
    assert len(watching) >= 8
    assert statistics.median(watching) < 0.2


@of("independent", "raft")
def test_clients_that_poll_learn_of_a_change_at_their_next_question(life: Life) -> None:
    """Check that some clients learn of a change late.

    Each client asks every 0.75 s. If servers sent a message about each change, all clients would know it at
    once.
    """
    assert max(delays(life)) > 0.2


def arc(instants_s: list[float], period_s: float) -> float:
    """Return the length in s of the shortest part of a period that contains the phases of all instants.

    A phase is an instant modulo the period.
    """
    phases = sorted(instant % period_s for instant in instants_s)
    gaps = [after - before for before, after in itertools.pairwise([*phases, phases[0] + period_s])]
    return period_s - max(gaps)


def usual_phase(instants_s: list[float], period_s: float) -> float:
    """Return the phase (instant modulo period) that is closest to most of these instants.

    The function ignores a few instants that are late because the machine is busy.
    """
    phases = [instant % period_s for instant in instants_s]
    return min(phases, key=lambda one: statistics.median_low(arc([one, other], period_s) for other in phases))


@of(*ARMS)
def test_brokers_are_spread_over_the_period_in_which_they_report(life: Life) -> None:
    """Check that the run starts the brokers at different instants of the registration period.

    Each broker registers at fixed intervals from its start on. Brokers in a real cluster do not all register
    at the same instants.
    """
    # With the run's seed 5, the phases of the three brokers span more than 0.15 s of the period.
    assert arc(life.launched_s, 0.75) > 0.15


@of("independent", "raft")
def test_clients_are_spread_over_the_period_in_which_they_ask(life: Life) -> None:
    own = []
    for place in range(6):
        shown = life.views("staleness", "sim-100-changing")["client", place]
        # skip the first route list, which is older than the scenario
        seen = [view.seen_ns / SECOND for view in shown[1:]]
        assert len(seen) >= 2
        own.append(usual_phase(seen, 0.75))
    # With the run's seed, the phases span a third of the period. If all clients started together, the phases
    # would span 0.
    assert arc(own, 0.75) > 0.15


@of(*ARMS)
def test_nobody_reads_the_servers_while_their_cost_is_measured(life: Life) -> None:
    """Check that the observer does not read the servers while the servers' cost is measured.

    A server uses more CPU to list 300 idle brokers to the observer than to serve these brokers.
    """
    begin_ns = read_manifest(life.folders["quiet"]).measure_begin_ns  # the file also has the warm-up's rows
    observed = [row for row in life.rows("quiet", View) if row.observer == "nameserver"]
    assert [row for row in observed if row.seen_ns >= begin_ns] == []
    assert {row.index for row in observed if row.state == "routed"} == {0, 1, 2}


@of("independent")
def test_manifest_lists_the_events_as_they_were_recorded(life: Life) -> None:
    for folder in life.folders.values():
        listed = read_manifest(folder).files
        assert listed is not None
        assert {"ops-generator-0.jsonl", "views-observer.jsonl", "truth-harness.jsonl"} <= listed.keys()
        for path in folder.glob("*.jsonl"):
            lines = path.read_bytes().splitlines()
            assert (listed[path.name].lines, listed[path.name].crc32_sum) == (
                *(len(lines), sum(map(zlib.crc32, lines))),
            )


@of(*ARMS)
def test_no_operation_is_sent_before_it_is_due_or_done_before_it_is_sent(life: Life) -> None:
    operations = [row for scenario in life.folders for row in life.rows(scenario, Operation)]
    kinds = {"lookup", "newcomer", "announce", "send", "send_once", "first_send"}
    assert {row.op for row in operations} == kinds
    assert [row for row in operations if not row.due_ns <= row.sent_ns <= row.done_ns] == []


@of("independent")
def test_change_is_a_truth_and_a_heartbeat_is_none(life: Life) -> None:
    """Check that a registration with unchanged content counts as a heartbeat and records no change.

    This is case C5 of report/test_misled.py.
    """
    facts = [row for scenario in life.folders for row in life.rows(scenario, Truth) if row.subject == "topic"]
    begun = [row.change for row in facts if row.what == "changing"]
    assert None not in begun
    assert len(begun) == len(set(begun)) > 20
    operations = (row for scenario in life.folders for row in life.rows(scenario, Operation))
    told = [row for row in operations if row.op == "announce"]
    # Each change leaves two rows, one fact (``Truth``) and one registration (``Operation``). At the end of
    # the run, one of the two rows of the last change may be missing.
    assert len({row.change for row in told if row.change is not None} ^ set(begun)) <= 2
    heartbeats = [row for row in told if row.change is None]
    assert len(heartbeats) > len(set(begun)) / 2, "every 0.75 s, to each of three nameservers"


@of("independent")
def test_every_run_says_who_lives_and_what_is_shown_when_it_begins(life: Life) -> None:
    for scenario, folder in life.folders.items():
        up = [row.broker for row in life.rows(scenario, Truth) if (row.subject, row.what) == ("broker", "up")]
        assert set(up) == {0, 1, 2}, scenario
        begun = [row for row in life.rows(scenario, View) if row.unseen_ns is None and row.topic == "bench-0"]
        assert {(row.observer, row.index) for row in begun} >= {
            ("client", 0),
            ("client", 1),
            ("nameserver", 0),
            ("nameserver", 1),
        }, scenario
        end_ns = read_manifest(folder).measure_end_ns
        for operation in life.rows(scenario, Operation):  # the first scenario's file also holds the warm-up
            assert operation.due_ns < end_ns


@of("raft")
def test_servers_are_measured_when_the_load_is_over_and_nobody_asks(life: Life) -> None:
    """Check the scenario without requests, which measures idle servers after the load has ended."""
    quiet, manifest = read_manifest(life.folders["quiet"]), read_manifest(life.folders[REST])
    started = datetime.fromisoformat(manifest.started_at)
    began, ended = life.lasted
    assert began - timedelta(seconds=1) < started
    assert started < ended - timedelta(seconds=REST_S), "not when it was written"
    assert manifest.started_at == quiet.started_at
    begin_ns, end_ns = manifest.measure_begin_ns, manifest.measure_end_ns
    assert end_ns - begin_ns >= REST_S * SECOND
    before_ns = max(each.measure_end_ns for each in life.manifests() if each.scenario != REST)
    assert begin_ns > before_ns + round(life.session.plan.linger_s * SECOND)
    assert [row for row in life.rows(REST, Operation) if row.due_ns >= begin_ns] == []
    assert [row for row in life.rows(REST, Truth) if row.subject == "topic" and row.t_ns >= begin_ns] == []

    written = [row for row in life.rows(REST, DiskSample) if row.role == "nameserver"]
    assert sorted(row.index for row in written) == [0, 0, 1, 1, 2, 2]
    assert {row.t_ns for row in written if row.t_ns < end_ns - SECOND // 2} == {written[0].t_ns}
    of_load = [row for row in life.rows("quiet", DiskSample) if (row.role, row.index) == ("nameserver", 0)]
    first, last = sorted(of_load, key=lambda row: row.t_ns)
    assert (first.written_bytes or 0) < (last.written_bytes or 0), "topics changed"
    assert (first.syncs or 0) < (last.syncs or 0)

    used = [row for row in life.rows(REST, ProcessSample) if row.role == "nameserver"]
    assert {row.index for row in used if row.t_ns >= begin_ns} == {0, 1, 2}
    passed = [
        row.forward_bytes
        for row in life.rows(REST, LinkSample)
        if (row.dialler, row.acceptor) == ("broker-0", "nameserver-1") and row.t_ns >= begin_ns
    ]
    assert passed[-1] > passed[0], "brokers go on to report"
