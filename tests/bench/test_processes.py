"""The benchmark counts all CPU time of a run's processes, and notices if a process ends unexpectedly."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from routekeeper.bench.events import ProcessSample
from routekeeper.bench.processes import Process, sample_process

BURN = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"


def a_process(code: str, folder: Path, rows: list[ProcessSample]) -> Process:
    return Process(
        role="nameserver",
        index=0,
        command=[sys.executable, "-c", code],
        log=folder / "log",
        record=rows.append,
        serves=True,
    )


def wait_for_death(process: Process) -> str:
    deadline = time.monotonic() + 30
    while True:
        death = process.died()
        if death is not None:
            return death
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_cpu_of_a_process_that_nobody_sampled_is_in_its_last_row(tmp_path: Path) -> None:
    rows: list[ProcessSample] = []
    process = a_process(BURN, tmp_path, rows)
    process.launch()
    death = wait_for_death(process)
    assert death == "nameserver-0 ended with 0"
    assert [row.event for row in rows] == ["start", "exit"]
    assert rows[0].cpu_ns == 0
    assert rows[1].cpu_ns >= 300_000_000
    assert rows[1].wanted is False


def test_killed_process_has_not_died_by_itself_and_can_start_again(tmp_path: Path) -> None:
    rows: list[ProcessSample] = []
    process = a_process("print('x ready', flush=True)\nimport time; time.sleep(60)", tmp_path, rows)
    for _ in range(2):
        process.launch()
        process.wait_ready()
        assert process.died() is None
        process.kill()
        assert process.died() is None
    assert [(row.event, row.code, row.wanted) for row in rows] == [
        ("start", None, None),
        ("exit", -9, True),
    ] * 2
    assert rows[0].pid != rows[2].pid


def test_death_after_a_restart_is_noticed(tmp_path: Path) -> None:
    rows: list[ProcessSample] = []
    process = a_process("print('x ready', flush=True)\nimport sys; sys.exit(7)", tmp_path, rows)
    process.launch()
    process.kill()
    process.launch()
    assert wait_for_death(process) == "nameserver-0 ended with 7"


def test_cpu_counts_every_thread_and_is_finer_than_the_kernel_s_ticks() -> None:
    burn = (
        "import threading, time\n"
        "def burn():\n"
        "    end = time.thread_time() + 0.1\n"
        "    while time.thread_time() < end: pass\n"
        "thread = threading.Thread(target=burn); thread.start(); thread.join()\n"
        "print(time.process_time_ns(), flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        own_ns = int(child.stdout.readline())
        sample = sample_process(child.pid, role="nameserver", index=0)
        child.communicate("\n")
    assert sample is not None
    assert own_ns <= sample.cpu_ns < own_ns + 9_000_000
    assert sample.cpu_ns % 10_000_000 != 0


def test_bytes_that_are_no_text_do_not_end_the_reading_of_its_lines(tmp_path: Path) -> None:
    code = "import os, time\nos.write(1, b'\\xff\\xfe\\nx ready\\n')\ntime.sleep(60)"
    process = a_process(code, tmp_path, [])
    process.launch()
    assert process.wait_ready() == "x ready"
    process.kill()
