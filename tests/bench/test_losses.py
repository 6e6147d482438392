"""If a server ends by itself at any time of a run, this counts as a failure of the server's design.

A failure of the benchmark's own programs does not count as a failure of the design.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from routekeeper.bench import director
from routekeeper.bench.events import ProcessSample
from routekeeper.bench.plan import parse_plan
from routekeeper.bench.processes import ClusterError
from routekeeper.bench.report.silver import Source, judge_files
from routekeeper.bench.runfolder import Arm, read_manifest
from routekeeper.bench.session import Session
from tests.bench.lives import a_turn, rows

pytestmark = [pytest.mark.bench, pytest.mark.one_core, pytest.mark.timeout(200)]

PLAN = """
arms = ["independent", "raft"]
servers = 3
brokers = 1
durability = "fsync"
warmup_s = 1.0
linger_s = 0.1
[[series]]
name = "equal"
blocks = 1
timers = { divisor = 60.0, election_timeout_ms = 500 }
[load]
lookup_per_s = 20.0
newcomer_per_s = 5.0
send_per_s = 5.0
send_once_per_s = 5.0
change_per_s = 2.0
lookup_clients = 2
send_clients = 1
sim_brokers = 1
observed_sims = 1
topics = 1
topics_per_sim_broker = 2
message_bytes = 64
timeout_s = 0.5
[[scenarios]]
name = "quiet"
quiet_s = 0.8
[[scenarios]]
name = "leader-fails"
faults = [{ case = "kill", quiet_s = 0.2, jitter_s = 0.0, down_s = 0.3, after_s = 0.3 }]
[[scenarios]]
name = "nameserver-restarts"
faults = [{ case = "one-empty", quiet_s = 0.2, jitter_s = 0.0, down_s = 0.1, after_s = 0.3 }]
[[scenarios]]
name = "partition"
faults = [{ case = "1-2", quiet_s = 0.2, jitter_s = 0.0, down_s = 0.5, after_s = 0.3 }]
"""
SCENARIOS = ["quiet", "leader-fails", "nameserver-restarts", "partition"]


def a_session(
    out: Path, arm: Arm, progress: Callable[[Session, str], object], *, servers: int = 3
) -> Session:
    plan = msgspec.structs.replace(parse_plan(PLAN), servers=servers)
    given = a_turn(out, plan, arm, profile="losses", seed=3)

    def tell(step: str) -> None:
        progress(made, step)

    made = Session(given, tell)
    return made


def start_instead(session: Session, code: str) -> None:
    """Make each server run ``code`` at its next start, with the server's command line as arguments."""
    for process in session.cluster.server_processes:
        process.command = [sys.executable, "-c", code, *process.command]


def kill_in_the_warm_up(session: Session) -> None:
    """Kill one server from outside shortly after the load generator got its configuration."""

    def kill() -> None:
        told = session.cluster.config_path("generator")
        while not told.exists():
            time.sleep(0.01)
        time.sleep(0.2)
        child = session.cluster.server_processes[2].child
        assert child is not None
        os.kill(child.pid, signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the folders of one run, one for each scenario.

    In this run, one server dies in the warm-up. Another server dies while it restarts. In the last scenario,
    a restarted server never begins to serve.
    """
    out = tmp_path_factory.mktemp("losses")
    once = out / "once"
    again = f"""
import os, pathlib, sys
try:
    pathlib.Path({str(once)!r}).touch(exist_ok=False)
except FileExistsError:
    os.execv(sys.argv[1], sys.argv[1:])
sys.exit(3)
"""

    def progress(session: Session, step: str) -> None:
        if step == "leader-fails: kill":
            start_instead(session, again)
        elif step == "nameserver-restarts: one-empty":
            start_instead(session, "import time; time.sleep(600)")
            patch.setattr(director, "RESTART_MAX_S", 2.0)

    with pytest.MonkeyPatch.context() as patch:
        session = a_session(out, "independent", progress)
        session.measure(lambda: kill_in_the_warm_up(session))
        return session.end()


def test_death_in_the_warm_up_loses_the_first_scenario(folders: list[Path]) -> None:
    assert [folder.parts[-3] for folder in folders] == [f"scenario={name}" for name in SCENARIOS]
    manifest = read_manifest(folders[0])
    assert (manifest.lost, manifest.void) == ("nameserver-2 ended with -9", None)
    samples = sorted(rows(folders[0], ProcessSample), key=lambda row: row.t_ns)
    (end,) = (row for row in samples if row.event == "exit")
    assert (end.role, end.index, end.code, end.wanted) == ("nameserver", 2, -9, False)
    assert end.cpu_ns > 0
    starts = [row for row in samples if row.event == "start" and row.t_ns > end.t_ns]
    assert [(row.role, row.index, row.cpu_ns) for row in starts] == [("nameserver", 2, 0)]


def test_death_while_restarting_after_a_fault_loses_the_scenario_and_the_life_goes_on(
    folders: list[Path],
) -> None:
    manifest = read_manifest(folders[1])
    assert manifest.lost is not None
    assert manifest.lost.endswith("ended with 3")
    assert manifest.void is None
    assert manifest.measure_end_ns > manifest.measure_begin_ns + 10**9


def test_server_that_does_not_serve_again_loses_what_was_still_to_come(folders: list[Path]) -> None:
    for folder in folders[2:]:
        manifest = read_manifest(folder)
        assert manifest.void is None
        assert manifest.lost is not None
        assert re.fullmatch(r"nameserver-[012] did not serve within 2 s", manifest.lost)


def test_server_that_ends_before_the_load_has_lost_everything_and_is_reported(tmp_path: Path) -> None:
    def progress(session: Session, step: str) -> None:
        if step == "starting":
            start_instead(session, "import sys; sys.exit(3)")

    session = a_session(tmp_path, "raft", progress)
    session.measure(lambda: pytest.fail("there is no load without servers"))
    folders = session.end()
    assert [folder.parts[-3] for folder in folders] == [f"scenario={name}" for name in SCENARIOS]
    assert not (tmp_path / "void").exists()
    for folder in folders:
        manifest = read_manifest(folder)
        assert (manifest.lost, manifest.void) == ("nameserver-0 ended with 3", None)
        assert manifest.ended_ns is not None
        source = Source(
            run="a run",
            uri=str(folder),
            base=str(tmp_path),
            batch="",
            series="equal",
            scenario=manifest.scenario,
            block=1,
            arm="raft",
            manifest=manifest,
        )
        (judged,) = judge_files([source], [])
        assert judged.left_out is None, "a run without events is a loss, not a gap"


def test_port_that_somebody_else_has_is_no_loss(tmp_path: Path) -> None:
    """The benchmark chooses ports, so a port in use is a failure of the benchmark, not of the design."""
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        port = somebody.getsockname()[1]

        def progress(session: Session, step: str) -> None:
            if step == "starting":
                process = session.cluster.server_processes[0]
                process.command = [*process.command, "--listen", f"127.0.0.1:{port}"]

        with pytest.raises(ClusterError, match="nameserver-0 ended with"):
            a_session(tmp_path, "independent", progress, servers=1).run()
    assert not (tmp_path / "runs").exists()
    assert (tmp_path / "void").exists()


def test_harness_that_fails_makes_the_runs_void(tmp_path: Path) -> None:
    def progress(session: Session, step: str) -> None:
        if step == "quiet":
            session.cluster.observer.signal(signal.SIGKILL)

    session = a_session(tmp_path, "independent", progress, servers=1)
    with pytest.raises(ClusterError, match="prober-0 ended with -9"):
        session.measure(lambda: None)
    assert not (tmp_path / "runs").exists()
    manifests = [read_manifest(path.parent) for path in (tmp_path / "void").rglob("manifest.json")]
    assert {manifest.scenario for manifest in manifests} == set(SCENARIOS)
    assert {(manifest.void, manifest.lost) for manifest in manifests} == {("prober-0 ended with -9", None)}
