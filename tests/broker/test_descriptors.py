"""A broker without free file descriptors refuses messages for a while, but reports no broken disk."""

from __future__ import annotations

import resource
import time

import pytest

from routekeeper.remoting.codes import ResponseCode
from tests.broker.conftest import StartBroker

pytestmark = [pytest.mark.faults, pytest.mark.slow]

WITHIN_S = 30.0


def test_messages_are_taken_again_once_there_are_descriptors(start_broker: StartBroker) -> None:
    # The log files are small, so that the messages below need new files.
    broker = start_broker(
        "--set",
        "maxMessageSize=4096",
        "--set",
        "mappedFileSizeCommitLog=70000",
    )
    wire = broker.wire()
    assert wire.send_message("T", b"before").code == ResponseCode.SUCCESS
    pid = broker.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    deadline = time.monotonic() + WITHIN_S
    # Descriptors that are open stay open. The broker can open no further descriptors.
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
    while "Too many open files" not in broker.log.read_text():
        assert time.monotonic() < deadline, broker.log.read_text()
        wire.send_message("T", bytes(4000))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    deadline = time.monotonic() + WITHIN_S
    while (answer := wire.send_message("T", b"after")).code != ResponseCode.SUCCESS:
        assert time.monotonic() < deadline, answer.remark
        time.sleep(0.05)
    assert broker.process.poll() is None
