"""Tests of output that a thread writes: without a reader, no caller blocks, and dropped lines are counted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading

import pytest

from routekeeper.remoting.line_limit import (
    EVENT_LINES,
    EVENT_LINES_PER_SUBJECT,
    EVENT_WINDOW_S,
    EVENTS_MAX,
    EventLimit,
)
from routekeeper.remoting.output import OutputThread

WAIT_S = 30.0


class Reader:
    """A stream that blocks each write until the test allows it."""

    def __init__(self) -> None:
        self.reads = threading.Event()
        self.text = b""

    def write(self, data: bytes) -> None:
        assert self.reads.wait(WAIT_S)
        self.text += data


def test_lines_above_the_bound_are_dropped_and_counted_and_a_line_says_so_at_their_place() -> None:
    reader = Reader()
    output = OutputThread(reader.write, bytes_max=40)
    for number in range(10):
        output.put(b"line %03d..\n" % number)  # 11 bytes, so three lines fit into 40 bytes
    assert output.dropped == 7
    assert output.is_full is False
    reader.reads.set()
    output.drain(WAIT_S)
    output.put(b"later\n")
    output.drain(WAIT_S)
    said = reader.text.decode().splitlines()
    assert said[:3] == ["line 000..", "line 001..", "line 002.."]
    # If the thread begins to write before the last lines are dropped, the output has two lines with counts of
    # dropped lines. So add the counts.
    counts = [re.fullmatch(r"(\d) lines were dropped", line) for line in said[3:-1]]
    assert sum(int(count[1]) for count in counts if count) == 7
    assert all(counts)
    assert said[-1] == "later"
    assert output.dropped == 7


def test_drain_waits_no_longer_than_it_may_and_only_once() -> None:
    reader = Reader()
    output = OutputThread(reader.write)
    output.put(b"x\n")
    output.drain(0.01)
    output.drain(WAIT_S * 100)  # must return at once, because the first call reached its time limit
    reader.reads.set()


def test_line_for_which_no_thread_could_be_started_is_written_with_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    reader = Reader()
    reader.reads.set()
    output = OutputThread(reader.write)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        output.put(b"first\n")
    output.put(b"second\n")
    output.drain(WAIT_S)
    assert reader.text == b"first\nsecond\n"


def test_a_program_that_can_start_no_thread_writes_its_last_lines_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    reader = Reader()
    reader.reads.set()
    output = OutputThread(reader.write)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    output.put(b"first\nsecond\n")
    assert len(reader.text) == 0
    output.drain(WAIT_S)
    assert reader.text == b"first\nsecond\n"
    output.put(b"third\n")
    output.drain(WAIT_S)
    assert reader.text.endswith(b"third\n")


NO_THREADS = """
import sys, threading, time
def refuse(thread):
    raise RuntimeError("can't start new thread")
threading.Thread.start = refuse
from routekeeper.remoting.output import write_stderr_in_thread
write_stderr_in_thread()
for number in range(1_000):
    print(f"{number:03d} " + "x" * 200, file=sys.stderr)
began = time.monotonic()
sys.stderr.output.drain(1.0)
print(time.monotonic() - began, flush=True)
"""


def test_a_program_that_can_start_no_thread_ends_though_nobody_reads_its_lines() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", NO_THREADS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    took_s = float(process.stdout.readline())  # without a limit, this line would never come
    assert took_s >= 1.0
    _, text = process.communicate(timeout=WAIT_S)
    # A pipe takes 64 KiB, so it has the first lines.
    assert text.splitlines()[:2] == [f"{number:03d} " + "x" * 200 for number in range(2)]
    assert len(text) < 200_000


def test_output_that_is_full_begins_to_write_when_a_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    reader = Reader()
    reader.reads.set()
    output = OutputThread(reader.write, bytes_max=10)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        output.put(b"012345678\n")
        assert output.is_full
    output.drop()
    output.drain(WAIT_S)
    assert reader.text == b"012345678\n1 lines were dropped\n"


def test_lines_that_nobody_can_take_are_counted() -> None:
    def broken(data: bytes) -> None:
        raise BrokenPipeError

    output = OutputThread(broken)
    output.put(b"x\ny\n")
    output.drain(WAIT_S)
    assert output.dropped == 2


PROGRAM = """
import logging, sys, threading
from routekeeper.remoting.output import lines_dropped, set_up_logging
set_up_logging(level="DEBUG", style=sys.argv[1])
for number in range(30_000):
    logging.debug("%05d %s", number, "x" * 300)  # this level has no limit but the bytes
assert 0 < lines_dropped() < 30_000
print(lines_dropped(), flush=True)
sys.stdin.readline()
sys.stderr.output.drain(30)
logging.info("the last line")
raise SystemExit("an error that nobody catches")
"""


@pytest.mark.parametrize("style", ["text", "json"])
@pytest.mark.slow
def test_program_goes_on_while_nobody_reads_its_log_and_says_how_much_is_missing(style: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, style],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    dropped = int(process.stdout.readline())  # the program continues although no process has read its log
    _, text = process.communicate("go on\n", timeout=WAIT_S)
    said = text.splitlines()
    assert any(f"{dropped} log lines were dropped" in line for line in said)
    assert "the last line" in said[-2]
    assert said[-1] == "an error that nobody catches"
    assert len(text) < 5 << 20, "what waits is bounded in bytes"


def test_partial_lines_of_a_terminal_come_out_as_they_are_flushed() -> None:
    program = (
        "import sys\nfrom routekeeper.remoting.output import write_stderr_in_thread\n"
        "write_stderr_in_thread()\n"
        "print('half', end='', file=sys.stderr, flush=True)\nprint(' and €', file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "latin-1"},
        timeout=WAIT_S,
        check=True,
    )
    assert done.stderr == b"half and \\u20ac\n"


def test_one_event_and_one_subject_hide_no_other_and_what_is_left_out_is_told_once() -> None:
    limit = EventLimit()
    assert sum(limit.allow("left", "broker a", 0.0) for _ in range(1000)) == EVENT_LINES_PER_SUBJECT
    rest = EVENT_LINES - EVENT_LINES_PER_SUBJECT
    assert sum(limit.allow("left", f"broker {number}", 1.0) for number in range(1000)) == rest
    assert limit.allow("registered", "broker a", 1.0)
    assert limit.turn(EVENT_WINDOW_S - 1) == []
    assert limit.turn(EVENT_WINDOW_S) == [("left", 2000 - EVENT_LINES)]
    assert limit.turn(3 * EVENT_WINDOW_S) == []
    assert limit.allow("left", "broker a", 3 * EVENT_WINDOW_S)


def test_events_without_end_are_bounded_together() -> None:
    limit = EventLimit()
    allowed = sum(limit.allow(f"event {number}", "", 0.0) for number in range(EVENTS_MAX + 5000))
    assert allowed == EVENTS_MAX + EVENT_LINES_PER_SUBJECT
