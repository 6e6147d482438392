"""SIGHUP while a server starts or ends does not kill the server, so a supervisor may send it at any time."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.signals import IN_TERMINAL, inherited
from tests.waiting import WITHIN_S, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow]

ROOT: Final = Path(__file__).resolve().parents[2]
SERVERS: Final = {
    "mqnamesrv": ("--listen", "127.0.0.1:0", "--http", "off", "--data", "data"),
    "mqbroker": ("--listen", "127.0.0.1:0", "--store", "data", "--name", "broker-a"),
}
MODULES: Final = {"mqnamesrv": "routekeeper.nameserver", "mqbroker": "routekeeper.broker"}
#: A program that runs a server and sends itself SIGHUP whenever the server imports a module.
AT_EACH_IMPORT: Final = """
import os, runpy, signal, sys
name = sys.argv[1]
__import__(name)
import routekeeper.remoting.interrupt

def at_import(event, arguments):
    if event == "import" and arguments[0].startswith("routekeeper."):
        os.kill(os.getpid(), signal.SIGHUP)

sys.argv[:2] = [name]
sys.addaudithook(at_import)
runpy.run_module(name, run_name="__main__", alter_sys=True)
"""
SIGNALS_PER_S: Final = 500


@contextlib.contextmanager
def started(folder: Path, *command: str) -> Iterator[subprocess.Popen[str]]:
    """Start a program that has no terminal. Its stderr goes to the file ``log`` in ``folder``."""
    with (
        inherited(signal.SIGHUP, signal.SIG_DFL),
        (folder / "log").open("w") as log,
        subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def ready(process: subprocess.Popen[str], folder: Path) -> str:
    """Read and return the line with which a server reports that it is ready."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert " ready listen=" in line, (process.wait(WITHIN_S), (folder / "log").read_text())
    return line


def program_that_survives(process: subprocess.Popen[str]) -> str:
    """Return the name of the program that a process runs now.

    Return an empty text if SIGHUP would kill the process.
    """
    text = Path(f"/proc/{process.pid}/status").read_text()
    facts = dict(line.split(":\t") for line in text.splitlines() if ":\t" in line)
    heeded = int(facts["SigIgn"], 16) | int(facts["SigCgt"], 16)
    return facts["Name"] if heeded & 1 << (signal.SIGHUP - 1) else ""


def script_that_waits(folder: Path, name: str) -> Path:
    """Return a copy of a start script. It starts Python only after the file ``go on`` is in ``folder``."""
    script, python = folder / "bin" / name, folder / ".venv" / "bin" / "python3"
    for path in (script, python):
        path.parent.mkdir(parents=True)
    shutil.copy(ROOT / "bin" / name, script)
    python.write_text(
        f"""#!/bin/sh
while [ ! -e '{folder}/go on' ]; do sleep 0.05; done
PYTHONPATH='{ROOT}' exec '{sys.executable}' "$@"
"""
    )
    python.chmod(0o755)
    return script


@contextlib.contextmanager
def hangups(process: subprocess.Popen[str]) -> Iterator[None]:
    """Send SIGHUP :data:`SIGNALS_PER_S` times per second while the block runs."""
    stop = threading.Event()

    def send() -> None:
        while not stop.wait(1 / SIGNALS_PER_S) and process.poll() is None:
            process.send_signal(signal.SIGHUP)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("name", SERVERS)
def test_hangup_at_any_moment_of_a_start_is_remembered_and_followed(name: str, tmp_path: Path) -> None:
    command = (sys.executable, "-c", AT_EACH_IMPORT, MODULES[name], *SERVERS[name])
    with started(tmp_path, *command) as process:
        ready(process, tmp_path)
        said = "reloaded changed=nothing refused=nothing"
        wait_until(lambda: said in (tmp_path / "log").read_text(), "the reload that was asked for")
        process.terminate()
        assert process.wait(WITHIN_S) == 0


@pytest.mark.parametrize("name", SERVERS)
def test_hangups_from_the_first_moment_to_the_end_kill_nothing(name: str, tmp_path: Path) -> None:
    with started(tmp_path, "sh", str(script_that_waits(tmp_path, name)), *SERVERS[name]) as process:
        first = wait_until(lambda: program_that_survives(process), "the script begins")
        assert first == "sh", "the script itself, before it looks for a Python"
        with hangups(process):
            (tmp_path / "go on").touch()
            ready(process, tmp_path)
            process.terminate()
            assert process.wait(WITHIN_S) == 0
    assert "exiting at once" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize("name", SERVERS)
def test_terminal_that_closes_ends_what_is_started_in_it(name: str, tmp_path: Path) -> None:
    with started(tmp_path, *IN_TERMINAL, "sh", str(ROOT / "bin" / name), *SERVERS[name]) as process:
        ready(process, tmp_path)
        process.send_signal(signal.SIGHUP)
        assert process.wait(WITHIN_S) == 128 + signal.SIGHUP


def test_hangup_while_a_broker_ends_changes_nothing(tmp_path: Path) -> None:
    # The nameserver never answers, so the broker cannot unregister. The broker ends late, because it waits
    # for the answer.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        words = ("-n", f"127.0.0.1:{silent.getsockname()[1]}", *SERVERS["mqbroker"])
        with started(tmp_path, sys.executable, "-m", MODULES["mqbroker"], *words) as process:
            ready(process, tmp_path)
            process.terminate()
            wait_until(lambda: "stopping" in (tmp_path / "log").read_text(), "the end has begun")
            # Pause the broker, because it must still run when it gets the signal. Without the pause, it could
            # end before.
            process.send_signal(signal.SIGSTOP)
            assert process.poll() is None
            # In the first second after SIGTERM, the broker ignores another signal to end, because it may be a
            # repetition. After this second, the broker would exit at once if it treated SIGHUP as a signal to
            # end.
            time.sleep(1.1)
            process.send_signal(signal.SIGHUP)
            process.send_signal(signal.SIGCONT)
            assert process.wait(WITHIN_S) == 0
            assert "exiting at once" not in (tmp_path / "log").read_text()
