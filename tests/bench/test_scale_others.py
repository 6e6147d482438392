"""``mqbench scale`` measures the CPU use of other programs, and never counts its own programs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from routekeeper.bench.events import ProcessSample
from routekeeper.bench.scale import others
from routekeeper.bench.scale.others import counting_others, harness_s

BURN_S = 0.2
#: A program that uses some processor time, prints a line, and waits for the end of its standard input.
BURN = f"""
import sys, time
while time.process_time() < {BURN_S}:
    pass
print(flush=True)
sys.stdin.read()
"""


def test_time_of_a_child_counts_as_the_harness_while_it_runs_and_after_its_end() -> None:
    before = harness_s()
    command = [sys.executable, "-c", BURN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        running = harness_s() - before
        child.kill()
    ended = harness_s() - before
    assert BURN_S <= running <= ended


def sample(t_s: float, cpu_s: float) -> ProcessSample:
    return ProcessSample(
        role="machine", index=0, pid=0, t_ns=round(t_s * 1e9), cpu_ns=round(cpu_s * 1e9), rss_bytes=0
    )


@pytest.mark.parametrize(
    ("machine", "own", "cores"),
    [
        (((10.0, 100.0), (14.0, 107.0)), (1.0, 6.0), 0.5),
        (((10.0, 100.0), (14.0, 104.9)), (1.0, 6.0), 0.0),
        (((10.0, 100.0), (10.4, 100.8)), (1.0, 1.0), None),
    ],
    ids=["others use half a core", "never below zero", "too short for the kernel's ticks"],
)
def test_cores_of_other_programs_are_the_machines_time_without_the_harness(
    machine: tuple[tuple[float, float], tuple[float, float]],
    own: tuple[float, float],
    cores: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    samples, used = iter(machine), iter(own)
    monkeypatch.setattr(others, "sample_machine", lambda: sample(*next(samples)))
    monkeypatch.setattr(others, "harness_s", lambda: next(used))
    found: dict[str, float] = {}
    with counting_others(found, "kills"):
        pass
    assert found == ({} if cores is None else {"kills_other_programs_cores": pytest.approx(cores)})


def test_failed_phase_has_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(others, "SHORTEST_S", 0.0)
    found: dict[str, float] = {}
    with pytest.raises(OSError, match="lost"), counting_others(found, "kills"):
        raise OSError("lost")
    assert found == {}
