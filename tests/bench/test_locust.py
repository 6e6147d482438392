"""``bench/locustfile.py`` works like any Locust file.

The tests run it headless and from Locust's web page, and in two processes. They also run each file of users
alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bench.servers import Cluster, listed, running
from tests.ports import free_ports

pytestmark = [pytest.mark.bench, pytest.mark.one_core, pytest.mark.timeout(500)]

BENCH = Path(__file__).resolve().parents[2] / "bench"
EVERYTHING = {
    ("RMQ", "route"),
    ("HTTP", "route"),
    ("RMQ", "send"),
    ("RMQ", "receive"),
    ("RMQ", "register"),
}
#: Files of ``bench/users`` that can run alone, and their requests. Locust accepts the folder itself ("."),
#: too. The consumer's file runs together with the producer's in test_locust_start.py, because a consumer gets
#: no messages without a producer.
BY_FILE = {
    "wire_user.py": {("RMQ", "route")},
    "http_user.py": {("HTTP", "route")},
    "producer_user.py": {("RMQ", "send")},
    "registrar_user.py": {("RMQ", "register")},
    ".": EVERYTHING,
}
UNTIL = Path(__file__).with_name("until_served.py")


def locust(cluster: Cluster, files: list[Path], *options: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "locust", "-f", ",".join(map(str, files)), *options]
    command += ["--host", ";".join(cluster.nameservers), "--loglevel", "WARNING"]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **environment},
    )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster"), mode="raft", nameservers=1) as started:
        yield started


@pytest.fixture(scope="module")
def runs(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """Run Locust with each file, all at the same time, and return Locust's results by file."""
    folder = tmp_path_factory.mktemp("locust")
    started = {}
    for number, (name, expected) in enumerate({"locustfile.py": EVERYTHING, **BY_FILE}.items()):
        files = [BENCH / "users" / name]
        options = [
            "--headless",
            "-u",
            "5",
            "-r",
            "5",
            "-t",
            "200s",
        ]
        processes = 0
        if name != "locustfile.py":  # locustfile.py itself must work with its default settings
            options += ["--rate", "5", "--request-timeout-s", "20", "--group", f"locust-{number}"]
        else:
            files, processes = [BENCH / name], 2
            (port,) = free_ports(1)
            options += ["-u", "10", "--processes", "2", "--master-bind-host", "127.0.0.1"]
            options += ["--master-bind-port", str(port), "--master-port", str(port)]
        started[name] = locust(
            cluster,
            [*files, UNTIL],
            *options,
            UNTIL_SERVED=",".join(" ".join(kind) for kind in expected),
            UNTIL_PROCESSES=str(processes),
            UNTIL_FILE=str(folder / f"{number}.json"),
        )
    try:
        said = {name: process.communicate(timeout=300)[0] for name, process in started.items()}
        for name, process in started.items():
            assert process.returncode == 0, f"{name}: {said[name][-4000:]}"
        yield {
            name: json.loads((folder / f"{number}.json").read_text()) for number, name in enumerate(started)
        }
    finally:
        for process in started.values():
            process.kill()
            process.communicate()


def kinds(entries: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(entry["method"], entry["name"]) for entry in entries}


def check(entries: list[dict[str, Any]], expected: set[tuple[str, str]]) -> None:
    assert kinds(entries) == expected
    for entry in entries:
        assert entry["num_failures"] == 0, entry
        assert entry["num_requests"] > 0
        assert 0 <= entry["min_response_time"] <= entry["max_response_time"]


@pytest.mark.parametrize("name", BY_FILE)
def test_users_of_each_file_do_what_they_are_for(runs: dict[str, list[dict[str, Any]]], name: str) -> None:
    check(runs[name], BY_FILE[name])


def test_all_users_by_defaults_in_two_processes(runs: dict[str, list[dict[str, Any]]]) -> None:
    entries = runs["locustfile.py"]
    check(entries, EVERYTHING)
    # Two users of each kind make 10 operations a second each. The load is an open loop, in which users make
    # every operation that is due, even if they are late.
    for entry in entries:
        if entry["name"] == "route":
            ended = entry["last_request_timestamp"]
            assert entry["num_requests"] <= 2 * 10 * (ended - entry["start_time"] + 1)
            # On a busy machine, one of the two users may start late, so demand the operations of one user
            # only. A worker reports its counts every 3 s, so the operations of the last 6 s may be missing.
            began = min(map(int, entry["num_reqs_per_sec"]))
            assert entry["num_requests"] >= 10 * (ended - began - 6)


def test_simulated_brokers_leave_with_their_users(
    cluster: Cluster, runs: dict[str, list[dict[str, Any]]]
) -> None:
    assert runs
    assert listed(cluster.nameservers[0]) == {"broker-a"}


def get(url: str, data: bytes | None = None) -> Any:
    with urllib.request.urlopen(url, data, timeout=10) as reply:
        body = reply.read().decode()
    return json.loads(body) if "json" in reply.headers["Content-Type"] else body


def until(url: str, condition: Any) -> Any:
    deadline = time.monotonic() + 200
    while True:
        try:
            found = get(url)
            if condition(found):
                return found
        except (urllib.error.URLError, ConnectionError):
            found = None
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_web_page_starts_stops_and_starts_again(cluster: Cluster) -> None:
    """Check that the schedule of operations begins with each Locust test, not when the file is loaded.

    So a Locust test begins without a backlog of operations that were due earlier.
    """
    (port,) = free_ports(1)
    options = ["--web-host", "127.0.0.1", "--web-port", str(port), "--class-picker"]
    process = locust(cluster, [BENCH / "locustfile.py"], *options)
    page = f"http://127.0.0.1:{port}"
    loaded = time.monotonic()
    try:
        shown = until(f"{page}/", lambda text: "RegistrarUser" in text)
        assert cluster.nameservers[0] in shown
        assert "registrar_rate" in shown
        for begun in range(2):
            # Wait long enough for a clear result. If the schedule had begun when the file was loaded, the
            # operations that were due since that time would appear below as a backlog.
            time.sleep(max(0.0, loaded + 8 - time.monotonic()))
            swarm_at = time.monotonic()
            form = {"request_timeout_s": "20"} | {
                "user_count": "5",
                "spawn_rate": "5",
                "host": cluster.nameservers[0],
                "rate": "5",
            }
            assert get(f"{page}/swarm", urllib.parse.urlencode(form).encode())["success"]
            # Locust answers from a cache for two seconds. The first answers may describe the test that was
            # stopped.
            found = until(
                f"{page}/stats/requests",
                lambda stats: (
                    stats["state"] in ("spawning", "running")
                    and kinds(stats["stats"]) >= EVERYTHING
                    and stats["total_rps"] > 0
                ),
            )
            routes = next(
                each for each in found["stats"] if (each["method"], each["name"]) == ("RMQ", "route")
            )
            assert found["fail_ratio"] == 0, (begun, found["errors"])
            took_ms = (time.monotonic() - swarm_at) * 1000
            assert routes["max_response_time"] < took_ms, "due since before the test began"
            assert get(f"{page}/stop", b"")["success"]
            until(f"{page}/stats/requests", lambda stats: stats["state"] == "stopped")
    finally:
        process.terminate()
        said = process.communicate(timeout=120)[0]
    assert "Traceback" not in said, said[-4000:]
