"""Locust's users start even if servers or topics do not exist yet, and refuse invalid arguments."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from routekeeper.bench.processes import Process
from tests.bench.servers import running
from tests.ports import free_addresses

pytestmark = [pytest.mark.bench, pytest.mark.one_core, pytest.mark.timeout(300)]

USERS = Path(__file__).resolve().parents[2] / "bench" / "users"
UNTIL = Path(__file__).with_name("until_served.py")
DEADLINE_S = 150.0


def locust(host: str, *options: str, **environment: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "locust",
        "--headless",
        "--host",
        host,
        "--loglevel",
        "WARNING",
        *options,
    ]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
    )


@contextlib.contextmanager
def until(host: str, folder: Path, served: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Start Locust, which ends after enough requests of each kind in ``served``, and yield its process."""
    process = locust(
        host, *options, UNTIL_SERVED=served, UNTIL_PROCESSES="0", UNTIL_FILE=str(folder / "found.json")
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str], folder: Path, said: str) -> dict[str, dict[str, Any]]:
    """Wait until Locust ends, and return its statistics by the name of the request.

    Args:
        said: Output of Locust that the test has read before.
    """
    said += process.communicate(timeout=DEADLINE_S)[0]
    assert process.returncode == 0, said[-4000:]
    assert "Traceback" not in said, said[-4000:]
    return {entry["name"]: entry for entry in json.loads((folder / "found.json").read_text())}


def read_until(process: subprocess.Popen[str], pattern: str) -> str:
    """Read a process's output up to the first line that matches ``pattern``, and return what was read."""
    assert process.stdout is not None
    deadline = time.monotonic() + DEADLINE_S
    said = ""
    while time.monotonic() < deadline:
        line = process.stdout.readline()
        said += line
        assert line, f"ended: {said[-4000:]}"
        if re.search(pattern, line):
            return said
    raise AssertionError(said[-4000:])


@contextlib.contextmanager
def broker(folder: Path, nameserver: str) -> Iterator[None]:
    (addr,) = free_addresses(1)
    options = ["-n", nameserver, "--listen", addr, "--name", "broker-late", "--store", str(folder / "late")]
    process = Process(
        role="broker",
        index=0,
        command=[sys.executable, "-m", "routekeeper.broker", *options],
        log=folder / "late.log",
    )
    process.launch()
    try:
        process.wait_ready()
        yield
    finally:
        process.kill()


BAD = {
    "--topics=0": "--topics: 0, allowed are 1 to ",
    "--rate=nan": "--rate: nan, allowed are ",
    "--rate=-1": "--rate: -1",
    "--registrar-rate=inf": "--registrar-rate: inf",
    "--message-bytes=-1": "--message-bytes: -1",
    "--request-timeout-s=0": "--request-timeout-s: ",
    "--group=two words": "--group: group 'two words' has characters outside",
    "--http-addrs=nowhere": "--http-addrs: address 'nowhere' is not host:port",
    "--host=nowhere": "--host: address 'nowhere' is not host:port",
}


#: Program that reads one list of options from each line of stdin. Locust parses the list, and then the
#: program runs the checks that run when Locust starts.
JUDGE = f"""
import contextlib, io, json, sys
from locust import events
from locust.argument_parser import get_parser
from locust.env import Environment
from locust.util.load_locustfile import load_locustfile
load_locustfile({str(USERS.with_name("locustfile.py"))!r})
for line in sys.stdin:
    options = get_parser().parse_args(json.loads(line))
    said, code = io.StringIO(), 0
    with contextlib.redirect_stderr(said):
        try:
            environment = Environment(events=events, parsed_options=options, host=options.host)
            events.init.fire(environment=environment, runner=None, web_ui=None)
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, said.getvalue()]))
"""


@pytest.mark.slow
def test_bad_argument_is_named_in_one_line() -> None:
    """Check all bad arguments in one process, because importing Locust takes seconds of CPU time."""
    lists = [["--host", "127.0.0.1:1", "--headless"]] + [
        ["--host", "127.0.0.1:1", "--headless", bad] for bad in BAD
    ]
    done = subprocess.run(
        [sys.executable, "-c", JUDGE],
        input="".join(f"{json.dumps(each)}\n" for each in lists),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    good, *found = (json.loads(line) for line in done.stdout.splitlines())
    assert good == [0, ""]
    for (bad, said), (code, printed) in zip(BAD.items(), found, strict=True):
        assert (code, printed.count("\n")) == (2, 1), (bad, printed)
        assert printed.startswith(f"locust: {said}"), (bad, printed)


@pytest.mark.slow
def test_bad_argument_ends_locust_at_the_start_with_one_line() -> None:
    options = ["-f", str(USERS.with_name("locustfile.py")), "-t", "1s", "--only-summary", "--rate=nan"]
    process = locust("127.0.0.1:1", *options)
    said = process.communicate(timeout=DEADLINE_S)[0]
    assert process.returncode == 2, said[-2000:]
    assert len(said.splitlines()) == 1, said[-2000:]
    assert said.startswith(f"locust: {BAD['--rate=nan']}"), said


@pytest.mark.slow
def test_consumers_that_meet_no_nameserver_try_again_and_count(tmp_path: Path) -> None:
    (wire,) = free_addresses(1)
    files = ",".join(str(path) for path in (USERS / "producer_user.py", USERS / "consumer_user.py", UNTIL))
    options = ["-f", files, "-u", "2", "-r", "2", "--rate", "5", "--exit-code-on-error", "0"]
    with until(wire, tmp_path, "RMQ receive,RMQ send", *options) as process:
        said = read_until(process, r"RMQ\s+receive\s+[0-9]+\s+[1-9][0-9]*\(")
        with running(tmp_path, wire=[wire]):
            found = ended(process, tmp_path, said)
    for entry in found.values():
        assert 0 < entry["num_failures"] < entry["num_requests"], entry


@pytest.mark.slow
def test_users_wait_for_topics_that_are_not_made_yet_and_count_no_failures(tmp_path: Path) -> None:
    files = ",".join(str(USERS / f"{kind}_user.py") for kind in ("wire", "http", "producer", "consumer"))
    options = ["-f", f"{files},{UNTIL}", "-u", "4", "-r", "4", "--rate", "5", "--request-timeout-s", "20"]
    with running(tmp_path, brokers=()) as cluster:
        (addr,) = cluster.nameservers
        with until(addr, tmp_path, "RMQ route,HTTP route,RMQ send,RMQ receive", *options) as process:
            said = read_until(process, "topics are not ready")
            said += read_until(process, "Aggregated")  # a line of Locust's table shows that users have begun
            with broker(tmp_path, addr):
                found = ended(process, tmp_path, said)
    failures = {name: entry["num_failures"] for name, entry in found.items()}
    assert failures == {"route": 0, "send": 0, "receive": 0}
