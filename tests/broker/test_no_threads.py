"""A broker goes on, and ends in order, on a system that starts no further thread."""

from __future__ import annotations

import sys
import time
import urllib.request
from pathlib import Path

from tests.broker.conftest import StartBroker
from tests.broker.test_faults import read_all

#: Program that runs a broker. As soon as the file in the first argument exists, no thread can be started.
WITHOUT_THREADS = """
import pathlib, runpy, sys, threading

flag, start = pathlib.Path(sys.argv[1]), threading.Thread.start
sys.argv = sys.argv[4:]


def start_or_refuse(thread):
    if flag.exists():
        raise RuntimeError("can't start new thread")
    start(thread)


threading.Thread.start = start_or_refuse
runpy.run_module("routekeeper.broker", run_name="__main__", alter_sys=True)
"""


def test_broker_that_can_start_no_thread_stores_messages_and_ends_at_a_signal(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    flag = tmp_path / "no-threads"
    settings = ("flushIntervalCommitLog=50", "flushConsumerOffsetInterval=50")
    broker = start_broker(
        *("--http", "127.0.0.1:0"),
        *(word for text in settings for word in ("--set", text)),
        prefix=(sys.executable, "-c", WITHOUT_THREADS, str(flag)),
    )
    flag.touch()
    wire = broker.wire()
    assert wire.send_message("T", b"stored").code == 0
    offset = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "1"}
    assert wire.call(15, offset).code == 0
    time.sleep(0.5)  # the log, the topics and the offsets are written meanwhile
    assert wire.send_message("T", b"stored, too").code == 0
    with urllib.request.urlopen(f"http://{broker.ready_line.split('http=')[1].strip()}/metrics") as answer:
        assert b"mqbroker_disk_state" in answer.read()
    assert broker.stop() == 0
    said = broker.log.read_text()
    assert "Traceback" not in said
    assert "ERROR" not in said
    again = start_broker().wire()
    assert read_all(again, "T", 0) == [b"stored", b"stored, too"]
    found = again.call(14, {"consumerGroup": "G", "topic": "T", "queueId": "0"})
    assert (found.code, found.ext_fields["offset"]) == (0, "1")
