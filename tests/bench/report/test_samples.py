"""What the recorder puts into files, and what the manifest refuses."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from bench import samples
from bench.manifest import (
    Machine,
    Manifest,
    ManifestError,
    find_run_folders,
    read_manifest,
    run_folder,
    write_manifest,
)
from bench.samples import Change, EventLog, Fault, Operation, ProcessSample, Recorder, Visibility


def operation(due_ns: int = 1, **fields: object) -> Operation:
    values = {
        "op": "send",
        "worker": 0,
        "target": 1,
        "due_ns": due_ns,
        "sent_ns": due_ns,
        "done_ns": due_ns + 5,
    }
    return msgspec.convert(values | {"outcome": "ok"} | fields, Operation)


def manifest(**fields: object) -> Manifest:
    return msgspec.structs.replace(
        Manifest(
            mode="raft",
            scenario="compare",
            rep=2,
            pair=2,
            order_in_pair=1,
            profile="quick",
            seed=7,
            durability="journal",
            nameservers=3,
            brokers=2,
            timer_divisor=10.0,
            timers_ms={"registerNameServerPeriod": 3000},
            workload={"route_wire_per_s": 100},
            machine=Machine(cpu="test", cores=2, memory_bytes=1, system="test"),
            versions={"python": "3.11"},
            commit="unknown",
            command=["mqbench", "compare"],
            started_at="2026-01-01T00:00:00Z",
            started_ns=0,
            measure_begin_ns=1,
            measure_end_ns=2,
        ),
        **fields,
    )


def test_each_kind_goes_to_its_own_file_and_reads_back_equal(tmp_path: Path) -> None:
    events: list[samples.Event] = [
        operation(remark="é", outcome="error", code=1),
        Change(change=0, broker=1, topic="t", begun_ns=5, acked_ns=[6, None], outcomes=["ok", "unknown"]),
        Visibility(change=0, nameserver=2, seen_ns=9, unseen_ns=6),
        Fault(kind="kill_one", targets=[1], begin_ns=3, role="leader"),
        ProcessSample(role="generator", index=0, pid=9, t_ns=1, cpu_ns=2, rss_bytes=3),
    ]
    with EventLog(tmp_path, "p1") as log:
        for event in events:
            log.record(event)
    assert len(list(tmp_path.iterdir())) == len(events)
    for event in events:
        (line,) = samples.event_file(tmp_path, type(event), "p1").read_bytes().splitlines()
        assert msgspec.json.decode(line, type=type(event)) == event


def test_nothing_is_written_before_the_flush_is_due(tmp_path: Path) -> None:
    log = EventLog(tmp_path, "p1")
    path = samples.event_file(tmp_path, Operation, "p1")
    log.record(operation())
    log.flush_if_due(1_000)
    first = path.stat().st_size
    assert first > 0
    log.record(operation())
    log.flush_if_due(1_000 + samples.FLUSH_INTERVAL_NS - 1)
    assert path.stat().st_size == first
    log.flush_if_due(1_000 + samples.FLUSH_INTERVAL_NS)
    assert path.stat().st_size == 2 * first
    log.close()


def test_the_file_holds_whole_lines_whenever_the_buffer_runs_over(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "x.jsonl")
    sizes = set()
    for index in range(3_000):
        recorder.record(operation(index + 1, remark="r" * (index % 90)))
        data = (tmp_path / "x.jsonl").read_bytes() if index % 50 == 0 else b""
        assert not data or data.endswith(b"\n")
        sizes.add(len(data))
    recorder.close()
    recorder.close()
    assert len(sizes) > 3
    lines = (tmp_path / "x.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["due_ns"] for line in lines] == list(range(1, 3_001))


def test_an_event_larger_than_the_buffer_is_written_whole(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "x.jsonl")
    recorder.record(operation(topic="t" * (samples.BUFFER_SIZE + 1)))
    assert (tmp_path / "x.jsonl").read_bytes().endswith(b"\n")
    recorder.close()


def test_two_processes_cannot_share_a_file(tmp_path: Path) -> None:
    with EventLog(tmp_path, "p1") as first, EventLog(tmp_path, "p1") as second:
        first.record(operation())
        with pytest.raises(FileExistsError):
            second.record(operation())


@pytest.mark.parametrize("name", ["", "a/b", "..\n", "x" * 65])
def test_a_process_name_that_makes_no_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="process name"):
        EventLog(tmp_path, name)


def test_remarks_are_one_short_line() -> None:
    assert samples.short_remark(" a \nb") == "a"
    assert len(samples.short_remark("x" * 1000)) == samples.REMARK_LENGTH_MAX


def test_a_killed_process_leaves_what_it_flushed(tmp_path: Path) -> None:
    program = (
        "import sys, signal, pathlib\n"
        "from bench.samples import EventLog, Fault\n"
        "log = EventLog(pathlib.Path(sys.argv[1]), 'p')\n"
        "for i in range(100): log.record(Fault(kind='kill_all', targets=[0], begin_ns=i))\n"
        "log.flush()\n"
        "log.record(Fault(kind='kill_all', targets=[0], begin_ns=100))\n"
        "print('ready', flush=True)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        os.kill(child.pid, signal.SIGKILL)
        child.wait(timeout=30)
    lines = samples.event_file(tmp_path, Fault, "p").read_bytes().splitlines()
    assert [json.loads(line)["begin_ns"] for line in lines] == list(range(100))


def test_recording_is_cheap_enough_for_an_open_loop(tmp_path: Path) -> None:
    with EventLog(tmp_path, "p1") as log:
        begin = time.process_time_ns()
        for index in range(20_000):
            log.record(operation(index + 1))
        spent = time.process_time_ns() - begin
    assert spent / 20_000 < 50_000  # generous: measured 1 to 2 us; catches a flush or an open per event


def test_manifest_reads_back_equal_and_replaces_the_first_one(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, mode="raft", scenario="compare", rep=2)
    folder.mkdir(parents=True)
    write_manifest(folder, manifest())
    final = manifest(ended_ns=99)
    write_manifest(folder, final)
    assert read_manifest(folder) == final
    assert [path.name for path in folder.iterdir()] == ["manifest.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no manifest.json"),
        (b"{", "cannot be read"),
        (b'{"mode":"raft"}', "cannot be read"),
        (msgspec.json.encode(manifest(format=99)), "format 99"),
        (msgspec.json.encode(manifest(rep=3)), "rep=3"),
    ],
    ids=["missing", "cut", "fields missing", "newer format", "wrong folder"],
)
def test_an_untrustworthy_manifest_is_refused(tmp_path: Path, text: bytes | None, message: str) -> None:
    folder = run_folder(tmp_path, mode="raft", scenario="compare", rep=2)
    folder.mkdir(parents=True)
    if text is not None:
        (folder / "manifest.json").write_bytes(text)
    with pytest.raises(ManifestError, match=message):
        read_manifest(folder)


def test_run_folders_are_found_from_any_root_once(tmp_path: Path) -> None:
    one = run_folder(tmp_path, mode="raft", scenario="a", rep=1)
    two = run_folder(tmp_path, mode="independent", scenario="a", rep=1)
    for folder in (one, two):
        (folder / "data").mkdir(parents=True)
    assert find_run_folders([tmp_path]) == [two, one]
    assert find_run_folders([one, tmp_path / "runs", one]) == [two, one]
    assert find_run_folders([tmp_path / "nowhere"]) == []


def test_a_scenario_that_is_no_path_component_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="scenario"):
        run_folder(tmp_path, mode="raft", scenario="a/b", rep=1)
