"""The recorded events of a run with real processes show a freeze of two seconds that the tests planted."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import msgspec
import pytest

from routekeeper.bench.events import Fault, Operation, View, event_file
from routekeeper.bench.plan import parse_plan
from routekeeper.bench.runfolder import read_manifest
from routekeeper.bench.session import Session
from tests.bench.lives import a_turn, rows
from tests.bench.recompute import figures
from tests.waiting import wait_until

pytestmark = [pytest.mark.bench, pytest.mark.one_core, pytest.mark.timeout(900)]

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


#: Plan with only one nameserver, so that no client can use another nameserver. Only one user of the load
#: generator makes new clients, so this user is busy while the nameserver hangs.
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


def the_fault(folder: Path) -> Fault:
    (fault,) = rows(folder, Fault)
    return fault


def test_freeze_is_silence_for_as_long_as_it_lasts_and_requests_that_waited_say_so(frozen: Path) -> None:
    fault = the_fault(frozen)
    assert fault.healed_ns is not None
    assert 2 * SECOND <= fault.healed_ns - fault.begin_ns < 2 * SECOND + HELD_UP_NS
    views = [row for row in rows(frozen, View) if (row.observer, row.topic) == ("nameserver", "bench-0")]
    place = max(place for place, row in enumerate(views) if row.seen_ns <= fault.healed_ns)
    assert views[place].state == "silent"
    # The observer sent its last answered query before the freeze, or in the first half second of the freeze.
    # The next answer comes after the freeze.
    assert (views[place].unseen_ns or 0) <= fault.begin_ns + SECOND // 2
    assert views[place + 1].state == "routed"
    # A registration that was due just before the signal may be answered before the freeze. So skip half a
    # second.
    struck = [
        row
        for row in rows(frozen, Operation)
        if row.op == "announce" and fault.begin_ns + SECOND // 2 <= row.due_ns < fault.healed_ns
    ]
    waited = [row for row in struck if row.outcome == "ok"]
    assert waited
    for row in waited:  # a frozen nameserver answers no registration until the freeze ends
        assert row.done_ns >= fault.healed_ns


def test_freeze_of_two_seconds_is_told_as_two_seconds(frozen: Path) -> None:
    """Check the time until the first right answer, and the time of the slowest request.

    Both times show the length of the freeze, because the slowest request waited since the freeze began. A
    test in test_compare.py checks that the report computes the same figures as recompute.py.
    """
    fault = the_fault(frozen)
    assert fault.healed_ns is not None
    found = {measure: value for (_, _, measure, _, _), value in figures(frozen.parents[4]).items()}
    # Look-ups are due every 17 ms on average, and no answer comes before the freeze ends.
    stood_still_s = (fault.healed_ns - fault.begin_ns) / SECOND
    assert stood_still_s >= 2
    assert math.inf > found["right_again_s"] >= stood_still_s
    assert found["slowest_lookup_s"] >= stood_still_s - 0.1


def test_sends_do_not_wait_for_routes(frozen: Path) -> None:
    """Check that sends go on while the only nameserver hangs, because they use cached routes.

    Routes are refreshed in the background. The nameserver hangs for three refresh periods or longer. This is
    case C3 of report/test_misled.py.
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
    """Check that operations are queued while the only user for new clients waits for the frozen server.

    This is case C4 of report/test_misled.py.
    """
    fault = the_fault(frozen)
    assert fault.healed_ns is not None
    operations = rows(frozen, Operation)
    others = [row for row in operations if row.op != "newcomer"]
    # On a busy machine, a few other operations may wait for their users, too.
    assert sum(row.queued for row in others) <= len(others) / 10
    newcomers = sorted((row for row in operations if row.op == "newcomer"), key=lambda row: row.due_ns)
    struck = [row for row in newcomers if fault.begin_ns <= row.due_ns < fault.healed_ns]
    assert len(struck) >= 12
    # The first operation of the freeze may find the user idle. All later operations wait for that user.
    assert all(row.queued for row in struck[1:])
    # If an operation is not marked as queued, it began when it was due. So the user had already finished the
    # earlier operation.
    for earlier, later in itertools.pairwise(newcomers):
        assert later.queued or earlier.done_ns <= later.due_ns
    assert not all(row.queued for row in newcomers if row.due_ns < fault.begin_ns)


def test_users_stay_until_the_end_and_a_linger(frozen: Path) -> None:
    """Check that a simulated broker stays listed for ``linger_s`` after the measurement, then disappears.

    This is case C2 of report/test_misled.py.
    """
    shown = [
        row
        for row in sorted(rows(frozen, View), key=lambda row: row.seen_ns)
        if (row.topic, row.observer) == ("sim-100-changing", "nameserver")
        and row.state in ("routed", "absent")
    ]
    assert [row.state for row in shown][-2:] == ["routed", "absent"]
    assert shown[-1].seen_ns >= read_manifest(frozen).measure_end_ns + SECOND
