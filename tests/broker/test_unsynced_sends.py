"""With SYNC_FLUSH, sends wait for a hung disk. The broker must not keep the bodies of these sends."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from routekeeper.remoting.command import RemotingCommand
from tests.broker.conftest import StartBroker
from tests.faults.servers import memory
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow]

#: Program that runs a broker. While a certain file exists, each sync of the log waits.
SYNC_WAITS = """
import os, pathlib, runpy, sys, time

flag, real = pathlib.Path(sys.argv[1]), os.fdatasync
sys.argv = sys.argv[4:]


def held(descriptor):
    while flag.exists() and "commitlog" in os.readlink(f"/proc/self/fd/{descriptor}"):
        time.sleep(0.01)
    real(descriptor)


os.fdatasync = held
runpy.run_module("routekeeper.broker", run_name="__main__", alter_sys=True)
"""

COUNT, SIZE = 3000, 60_000
SYSTEM_BUSY = 2


def test_bodies_of_sends_that_wait_for_the_disk_take_no_memory(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    flag = tmp_path / "waits"
    broker = start_broker(
        *("--set", "flushDiskType=SYNC_FLUSH", "--set", "syncFlushTimeout=600000"),
        prefix=(sys.executable, "-c", SYNC_WAITS, str(flag)),
    )
    wire, other = broker.wire(), broker.wire()
    assert wire.send_message("T", bytes(SIZE)).code == 0
    before = memory(broker.process.pid, "VmHWM")
    flag.touch()
    ext = {"a": "PG", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": ""}
    frames = b"".join(
        RemotingCommand(code=310, ext_fields=ext, body=bytes(SIZE), opaque=number).encode()
        for number in range(COUNT)
    )
    codes: dict[int, int] = {}

    def receive() -> None:
        while len(codes) < COUNT:
            answer = wire.receive(600)
            assert answer.opaque not in codes, "each gets one answer"
            codes[answer.opaque] = answer.code

    receiver = threading.Thread(target=receive)
    receiver.start()
    try:
        wire.socket.settimeout(600)
        wire.socket.sendall(frames)

        def stored() -> int:
            return int(other.call(30, {"topic": "T", "queueId": "0"}).ext_fields["offset"]) - 1

        wait_until(lambda: stored() + len(codes) == COUNT, "all are stored or refused")
        assert set(codes.values()) <= {SYSTEM_BUSY}, "none that is stored is answered before the sync"
        grown = memory(broker.process.pid, "VmHWM") - before
        waiting = COUNT - len(codes)
    finally:
        flag.unlink()
        receiver.join(600)
    assert Counter(codes.values())[0] == waiting == stored()
    assert grown < 64 << 20
    assert wire.send_message("T", bytes(SIZE)).code == 0, "nothing counts as waiting any more"
