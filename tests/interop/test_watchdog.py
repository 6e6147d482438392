"""Test that a killed test session leaves no program running."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from .apache import wait_until

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parents[2]

SESSION = """
import subprocess, sys, threading
from tests.interop.watchdog import guard

def start():
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    guard(child.pid)
    print(child.pid, flush=True)

thread = threading.Thread(target=start)  # a thread that ends while its child lives on
thread.start()
thread.join()
sys.stdin.read()
"""


def test_a_guarded_program_outlives_its_thread_but_not_its_session() -> None:
    session = subprocess.Popen(
        [sys.executable, "-c", SESSION], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with session:
        assert session.stdout is not None
        child = psutil.Process(int(session.stdout.readline()))
        assert child.is_running()
        session.kill()
    wait_until(
        lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the end of the child"
    )
