"""Tests that Ctrl-C ends a program without a traceback, even while it still imports its modules."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

#: A program that gets SIGINT during its imports, when it begins to import the module ``argv[2]``.
PROGRAM = """
import importlib, os, signal, sys

# Handle the signal as in a terminal: a shell makes its background processes, such as these tests, ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[2]:
            os.kill(os.getpid(), signal.SIGINT)
            signal.sigtimedwait((), 30)  # ended by the signal

sys.meta_path.insert(0, Interrupting())
importlib.import_module(sys.argv[1])
print("went on")
"""


@pytest.mark.parametrize(
    ("program", "module"),
    [
        pytest.param("routekeeper.nameserver.__main__", "routekeeper.nameserver.wire.server", id="mqnamesrv"),
        pytest.param("routekeeper.broker.__main__", "routekeeper.broker.server.process", id="mqbroker"),
        pytest.param("routekeeper.client.mqadmin.__main__", "routekeeper.client.blocking", id="mqadmin"),
        pytest.param("routekeeper.bench.__main__", "routekeeper.bench.compare", id="mqbench"),
        pytest.param("routekeeper.bench.report.__main__", "routekeeper.bench.report.job", id="report"),
    ],
)
def test_interrupt_while_a_program_is_loading_ends_it_quietly(program: str, module: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, program, module],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.stdout, ended.stderr) == ("", "")
    assert ended.returncode == -signal.SIGINT, "a shell shows 130"


def test_other_errors_still_show_where_they_come_from() -> None:
    code = "from routekeeper.remoting.interrupt import end_quietly_when_interrupted as quiet; quiet(); 1 / 0"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert "Traceback" in ended.stderr
    assert "ZeroDivisionError" in ended.stderr
