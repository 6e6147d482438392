"""Servers work with a wall clock after the year 2262, whose time Python cannot represent.

mqadmin prints a message's born timestamp even if no date can represent it. The client chooses this timestamp.
"""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from routekeeper.client.mqadmin.__main__ import main
from tests.broker.server.test_http import get
from tests.ports import free_addresses

from .conftest import WAIT_S, StartBroker, Wire

pytestmark = [pytest.mark.slow]

PROGRAM = """
import sys, time

real, years = time.clock_gettime, 300

def far(clock):
    return real(clock) + (years * 31_557_600 if clock == time.CLOCK_REALTIME else 0)

def overflow():
    raise OverflowError("timestamp too large to convert to C _PyTime_t")

time.clock_gettime, time.time, time.time_ns = far, overflow, overflow  # as CPython has them at that time
from routekeeper.{program}.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("program", ["broker", "nameserver"])
def test_server_works_with_a_clock_three_hundred_years_ahead(program: str, tmp_path: Path) -> None:
    wire_addr, http_addr = free_addresses(2)
    place = ["--store" if program == "broker" else "--data", str(tmp_path / "data")]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", PROGRAM.format(program=program)),
                *("--listen", wire_addr, "--http", http_addr, *place),
            ],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        assert "ready" in process.stdout.readline(), (tmp_path / "log").read_text()
        wire = Wire(wire_addr)
        if program == "broker":
            assert wire.send_message("T", b"x").code == 0
            # The broker must also deliver a delayed message when this clock says that it is due.
            assert wire.send_message("T", b"later", properties="DELAY\x011\x02").code == 0
            found = wire.answer(wire.pull("T", 1, sys_flag=6, suspend_ms=15_000))
            assert found.body.count(b"later") == 1
            span = wire.call(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"})
        else:
            span = wire.call(206)
        assert span.code == 0
        assert get(http_addr, "/metrics")[0] == get(http_addr, "/readyz")[0] == 200
        wire.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    text = (tmp_path / "log").read_text()
    assert re.match(r"23\d\d-", text)
    assert "Traceback" not in text


def test_message_born_beyond_the_calendar_is_shown(start_broker: StartBroker) -> None:
    broker = start_broker()
    for born_ms in (2**63 - 1, -(2**63), 253_402_300_800_000):
        message_id = broker.wire().send_message("T", b"x", g=str(born_ms)).ext_fields["msgId"]
        out, err = io.StringIO(), io.StringIO()
        arguments = ["queryMsgById", "-i", message_id, "-t", "T", "-n", broker.addr]
        main(arguments, environment={}, out=out, err=err)
        (line,) = (line for line in out.getvalue().splitlines() if line.startswith("Born Timestamp:"))
        assert line.split()[-1] == str(born_ms)
