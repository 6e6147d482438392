"""In a comparison with real processes, the kernel cuts links completely and for the planned time.

No network objects are left after a run, even if the run fails or is interrupted.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import psutil
import pytest

from routekeeper.bench import compare, kernel
from routekeeper.bench.__main__ import main
from routekeeper.bench.events import Fault, Operation, View
from routekeeper.bench.kernel import KernelNetwork
from routekeeper.bench.links import Direction, both_ways
from routekeeper.bench.plan import Plan, PlannedFault, Scenario, load_plan
from routekeeper.bench.runfolder import read_manifest, run_folder
from routekeeper.bench.schedule import Comparison
from tests.bench.lives import E
from tests.bench.lives import rows as rows_of

pytestmark = [pytest.mark.bench, pytest.mark.one_core, pytest.mark.timeout(600)]

#: Two times in s for each scenario and case: length of the cut, and time after the cut. If brokers must be
#: evicted during a cut, the cut is longer than the lease of 2 s. After a cut, a TCP connection may wait 3 s
#: before it sends lost data again. On a busy machine, some more seconds pass until each server lists all
#: brokers.
CASES: Final = {
    ("broker-dies", "cable"): (3.0, 1.3),
    ("leader-fails", "oneway"): (2.0, 4.0),
    ("partition", "1-2"): (3.0, 6.0),
}
#: Cases that each design runs. One design per case is enough, because the kernel treats all designs alike.
RUN: Final = {
    "independent": [("broker-dies", "cable"), ("partition", "1-2")],
    "raft": [("leader-fails", "oneway")],
    "zookeeper": [("partition", "1-2")],
}
every_cut = pytest.mark.parametrize(
    ("arm", "scenario", "case"), [(arm, *cut) for arm, cuts in RUN.items() for cut in cuts]
)
SECOND: Final = 10**9
#: Seconds by which a busy machine may delay the process that cuts and heals links.
HELD_UP_S: Final = 2.5
#: Instants in ns at which cuts took effect, in order. A cut takes effect a moment after its fault begins.
HOLDS_NS: Final[list[int]] = []


def left(pid: int | None = None) -> list[str]:
    """Return the network objects (namespaces, links, routes) that a harness process has left in the kernel.

    Their names contain the id of the process.

    Args:
        pid: Id of the process. None means this process.
    """
    mine = f"rkb{os.getpid() if pid is None else pid}-"
    return [line for what in ("netns", "link", "route") for line in ip(what).splitlines() if mine in line]


def ip(what: str) -> str:
    return subprocess.run(["ip", what], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module", autouse=True)
def able() -> Iterator[None]:
    lacking = kernel.missing()
    if lacking is not None:
        pytest.skip(f"links cut by the kernel need {lacking}")
    yield
    assert left() == []


def plan_of(cases: dict[tuple[str, str], tuple[float, float]]) -> Plan:
    smoke = load_plan("smoke")
    scenarios = [
        Scenario(name=name, faults=[PlannedFault(case=case, jitter_s=0.0, down_s=down_s, after_s=after_s)])
        for (name, case), (down_s, after_s) in cases.items()
    ]
    load = msgspec.structs.replace(smoke.load, newcomer_per_s=24.0, send_per_s=20.0, change_per_s=10.0)
    return msgspec.structs.replace(smoke, links="kernel", load=load, scenarios=scenarios)


class Noting(KernelNetwork):
    """A network that records the instant at which each cut took effect, in HOLDS_NS."""

    def cut(self, directions: Sequence[Direction]) -> int:
        holds_ns = super().cut(directions)
        HOLDS_NS.append(holds_ns)
        return holds_ns


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("kernel")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kernel, "KernelNetwork", Noting)
        for arm, cuts in RUN.items():
            plan = msgspec.structs.replace(plan_of({cut: CASES[cut] for cut in cuts}), arms=[arm])
            compare.begin(out / arm, Comparison(profile="smoke", plan=plan, seed=5, command=["mqbench"]))
            assert main(["run", "--resume", str(out / arm)]) == 0
            assert left() == []
    return out


def folder(out: Path, arm: str, scenario: str) -> Path:
    return next((out / arm / "runs").glob(f"series=equal/scenario={scenario}/block=1/arm={arm}"))


def rows(out: Path, arm: str, scenario: str, kind: type[E]) -> list[E]:
    return rows_of(folder(out, arm, scenario), kind)


def fault_of(out: Path, arm: str, scenario: str) -> tuple[Fault, int, int]:
    (fault,) = rows(out, arm, scenario, Fault)
    assert fault.healed_ns is not None
    assert fault.end_ns is not None
    return fault, fault.begin_ns, fault.end_ns


@every_cut
def test_cut_lasts_as_planned_and_its_window_knows_of_repetitions(
    out: Path, arm: str, scenario: str, case: str
) -> None:
    down_s, after_s = CASES[scenario, case]
    fault, begin_ns, end_ns = fault_of(out, arm, scenario)
    manifest = read_manifest(folder(out, arm, scenario))
    assert (manifest.links, manifest.lost, manifest.void) == ("kernel", None, None)
    assert fault.healed_ns is not None
    assert down_s <= (fault.healed_ns - begin_ns) / SECOND < down_s + HELD_UP_S
    assert 0 <= (end_ns - fault.healed_ns) / SECOND < HELD_UP_S, "a moment, where others use the machine"
    assert (fault.until_ns - end_ns) / SECOND == pytest.approx(after_s + down_s + 1, abs=0.001)


@every_cut
def test_nothing_passes_a_cut_and_everything_before_and_after_it(
    out: Path, arm: str, scenario: str, case: str
) -> None:
    fault, begin_ns, end_ns = fault_of(out, arm, scenario)
    assert fault.healed_ns is not None
    cut = {(sender, receiver) for sender, receiver in fault.cut or []}
    # HOLDS_NS may also contain older cuts, from a void attempt of the same run. Ignore the cuts before this
    # fault.
    holds_ns = min(at_ns for at_ns in HOLDS_NS if at_ns >= begin_ns)
    assert holds_ns < fault.healed_ns
    before, within, after = 0, [], []
    for operation in rows(out, arm, scenario, Operation):
        if operation.outcome != "ok" or operation.target is None or operation.client_side is None:
            continue
        kind = "broker" if operation.op in ("send", "send_once") else "nameserver"
        ends = (operation.client_side, f"{kind}-{operation.target}")
        if cut.isdisjoint({ends, ends[::-1]}):
            continue
        before += operation.done_ns < begin_ns
        # If only one direction is cut, the answer to an earlier request may still arrive. So only requests
        # that were sent after the cut took effect count.
        if operation.sent_ns > holds_ns and operation.done_ns < fault.healed_ns:
            within.append(operation)
        if operation.done_ns > end_ns:
            after.append((operation.done_ns - end_ns) / SECOND)
    print(
        f"{arm} {scenario} {case}: {before} before, {len(after)} after, the first {min(after, default=-1)} s"
    )
    assert within == []
    assert before > 0
    assert len(after) > 3


def test_independent_nameservers_disagree_for_as_long_as_the_cut_lasts(out: Path) -> None:
    """Check the time for which independent nameservers disagree on a topic that changes during a cut.

    The disagreement begins when only some of the servers accept the change. It ends when the broker registers
    again after the cut and reaches the other servers.
    """
    fault, begin_ns, end_ns = fault_of(out, "independent", "partition")
    assert fault.healed_ns is not None
    views = sorted(
        (
            row
            for row in rows(out, "independent", "partition", View)
            if row.observer == "nameserver" and row.topic.startswith("sim-") and row.state == "routed"
        ),
        key=lambda row: row.seen_ns,
    )
    (topic,) = {row.topic for row in views}
    told = [
        row
        for row in rows(out, "independent", "partition", Operation)
        if (row.op, row.topic, row.outcome) == ("announce", topic, "ok")
    ]
    reached = {row.target for row in told if begin_ns < row.sent_ns and row.done_ns < fault.healed_ns}
    away = {0, 1, 2} - reached
    assert reached
    assert away
    shown: dict[int, int | None] = {}
    since: View | None = None
    # Time spans in which servers showed different versions. Most are short, because each change reaches one
    # server before another. The longest time span is that of the cut.
    apart: list[tuple[View, View]] = []
    for row in views:
        shown[row.index] = row.version
        if len({*shown.values()}) > 1:
            since = row if since is None else since
        elif since is not None:
            apart.append((since, row))
            since = None
    first, last = max(apart, key=lambda span: span[1].seen_ns - span[0].seen_ns)
    from_s, until_s = (first.seen_ns - begin_ns) / SECOND, (last.seen_ns - end_ns) / SECOND
    print(f"they differ from {from_s:.2f} to {until_s:.2f} s")
    assert first.seen_ns < fault.healed_ns
    assert last.seen_ns > fault.healed_ns
    # On a busy machine the observer may be late, so the first query whose answer shows the change proves
    # nothing. But the last query whose answer does not show the change must have been sent before a server
    # accepted the change.
    changes = [row for row in told if row.change is not None and row.target in reached]
    accepted_ns = min(row.done_ns for row in changes if row.sent_ns > begin_ns)
    assert (first.unseen_ns or 0) <= accepted_ns
    reported_ns = min(row.done_ns for row in told if row.done_ns > end_ns and row.target in away)
    again = next(row for row in views if row.index in away and row.seen_ns > end_ns)
    assert (again.unseen_ns or 0) <= reported_ns


@pytest.mark.parametrize(("arm", "scenario"), [("raft", "leader-fails"), ("zookeeper", "partition")])
def test_cluster_is_whole_again_within_the_window(out: Path, arm: str, scenario: str) -> None:
    """Check that at the end of the run each server lists all brokers.

    On a busy machine a server may be silent at the end. Then the server's last list counts.
    """
    fault, _, end_ns = fault_of(out, arm, scenario)
    shown: dict[int, list[tuple[int, str]]] = {}
    for row in sorted(rows(out, arm, scenario, View), key=lambda row: row.seen_ns):
        if row.observer == "nameserver" and row.topic == "bench-0" and row.seen_ns < fault.until_ns:
            shown.setdefault(row.index, []).append((row.seen_ns, f"{row.state} {row.brokers}"))
    for index, each in shown.items():
        print(index, [(round((at_ns - end_ns) / SECOND, 2), what) for at_ns, what in each])
    for each in shown.values():
        healed = max(place for place, (at_ns, _) in enumerate(each) if at_ns <= end_ns)
        assert "routed [0, 1]" in [what for _, what in each[healed:]]
        assert [what for _, what in each if not what.startswith("silent")][-1] == "routed [0, 1]"
    assert shown.keys() == {0, 1, 2}


def test_interrupted_run_leaves_nothing(tmp_path: Path) -> None:
    """Send a signal to the harness only, and check that the harness then ends its processes.

    A terminal would send the signal to all processes, but a run in the background has no terminal.
    """
    command = [
        sys.executable,
        "-m",
        "routekeeper.bench",
        "run",
        "--profile",
        "smoke",
        "--links",
        "kernel",
    ]
    program = subprocess.Popen(
        [*command, "--out", str(tmp_path)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert program.stderr is not None
    said = next((line for line in program.stderr if ": quiet; ends about" in line), None)
    started = psutil.Process(program.pid).children(recursive=True)
    assert left(program.pid) != []
    program.terminate()
    _, rest = program.communicate(timeout=120)
    assert said is not None
    assert len(started) > 5
    assert program.returncode == 130, rest
    _, alive = psutil.wait_procs(started, timeout=60)
    assert [process.cmdline() for process in alive] == []
    assert left(program.pid) == []


def test_failed_run_leaves_nothing(tmp_path: Path) -> None:
    """Prevent the brokers' start, so the harness fails. It must still remove all network objects."""
    plan = plan_of({("partition", "1-2"): (1.0, 1.0)})
    plan = msgspec.structs.replace(plan, arms=["independent"])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("routekeeper.bench.cluster._NO_NEW_TOPICS", "noSuchSetting=1")
        patched.setattr(compare, "ATTEMPTS_MAX", 1)
        compare.begin(tmp_path / "out", Comparison(profile="smoke", plan=plan, seed=1, command=["mqbench"]))
        assert main(["run", "--resume", str(tmp_path / "out")]) == 1
    place = run_folder(tmp_path / "out", series="equal", scenario="partition", block=1, arm="independent")
    assert not place.exists()
    assert left() == []


def test_what_a_killed_harness_left_is_removed_by_the_next() -> None:
    code = "import os, signal\nfrom routekeeper.bench.kernel import KernelNetwork\n"
    code += "n = KernelNetwork(['broker-0'])\n"
    dead = subprocess.Popen([sys.executable, "-c", f"{code}os.kill(os.getpid(), signal.SIGKILL)"])
    assert dead.wait(30) == -9
    assert left(dead.pid) != []
    KernelNetwork([]).close()
    assert left(dead.pid) == []


def test_two_runs_at_a_time_stand_beside_each_other() -> None:
    names = ["nameserver-0", "broker-0"]
    one, other = KernelNetwork(names), KernelNetwork(names)
    try:
        assert one.host("broker-0") != other.host("broker-0")
        one.cut(both_ways(["broker-0"], ["nameserver-0"]))
        assert not reaches(one, "broker-0", "nameserver-0")
        assert reaches(one, "side-b", "nameserver-0")
        assert reaches(other, "broker-0", "nameserver-0")
        one.heal()
        assert reaches(one, "broker-0", "nameserver-0")
    finally:
        one.close()
        other.close()
    assert left() == []


def reaches(network: KernelNetwork, dialler: str, acceptor: str) -> bool:
    """Return True if a link is open.

    No program listens on the port. So a connection over an open link is refused at once, and a connection
    over a cut link times out.
    """
    host = network.dialled(dialler, acceptor, ":9").rpartition(":")[0]
    code = f"import socket; socket.create_connection(('{host}', 9), timeout=0.5)"
    done = subprocess.run(
        network.command(dialler, [sys.executable, "-c", code]), capture_output=True, text=True, check=False
    )
    assert "ConnectionRefusedError" in done.stderr or "TimeoutError" in done.stderr, done.stderr
    return "ConnectionRefusedError" in done.stderr
