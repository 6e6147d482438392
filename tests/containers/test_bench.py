"""Tests of compose/bench.yaml together with compose/raft.yaml.

The tests start and stop a load on Locust's web page, run the comparison of the designs, and read Spark's
report.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_until

from .composition import WIRE, Composition, running
from .engine import BENCH_IMAGE, Engine, say

pytestmark = [pytest.mark.containers, pytest.mark.timeout(3600)]

#: Kinds of requests that bench/locustfile.py sends.
KINDS = {("RMQ", "route"), ("HTTP", "route"), ("RMQ", "send"), ("RMQ", "receive"), ("RMQ", "register")}


@pytest.fixture(scope="session")
def bench_image(engine: Engine, image: str, base: str) -> str:
    began = time.monotonic()
    engine.fetch("requirements-bench.lock")
    engine.build("bench", BENCH_IMAGE, base)
    say(f"bench image {engine.image_mb(BENCH_IMAGE):.0f} MB in {time.monotonic() - began:.0f} s")
    return BENCH_IMAGE


def test_locust_answers_spark_runs_and_the_page_appears(engine: Engine, bench_image: str) -> None:
    with running(engine, "raft", "bench") as cluster:
        drive_by_page(cluster)

        began = time.monotonic()
        said = cluster.compose("--profile", "bench", "run", "--rm", "compare", timeout_s=1200)
        took_s = time.monotonic() - began
        say(f"bench: compare attached to the raft group made a page in {took_s:.0f} s")
        page = read(cluster, last_line(said))
        assert "Raft nameservers under load</h1>" in page
        assert "Route look-up, typical" in page

        began = time.monotonic()
        said = cluster.compose("--profile", "bench", "run", "--rm", "spark", timeout_s=1200)
        say(f"bench: spark made a page of what lay in the volume in {time.monotonic() - began:.0f} s")
        page = read(cluster, last_line(said))
        assert "Raft nameservers under load</h1>" in page


def drive_by_page(cluster: Composition) -> None:
    """Start and stop a load on Locust's web page, as a user does in a browser on the host."""
    cluster.compose("--profile", "bench", "up", "--detach", "--no-build", "locust")
    page = f"http://127.0.0.1:{cluster.variables['LOCUST_PORT']}"
    try:
        shown = wait_until(lambda: get(f"{page}/"), "Locust's page answers")
        for name in ("RegistrarUser", WIRE):
            assert name in shown
        form = {
            "user_count": "10",
            "spawn_rate": "10",
            "host": WIRE,
            "request_timeout_s": "20",
        }
        assert json.loads(get(f"{page}/swarm", form))["success"]

        def stats() -> dict[str, Any]:
            found: dict[str, Any] = json.loads(get(f"{page}/stats/requests") or "{}")
            kinds = {(row["method"], row["name"]) for row in found.get("stats", ())}
            return found if kinds >= KINDS else {}

        found = wait_until(stats, "every kind of request is made")
        assert found["errors"] == []
        assert json.loads(get(f"{page}/stop", {}))["success"]
    except AssertionError as error:
        error.add_note(f"-- log of locust\n{cluster.log('locust')[-3000:]}")
        raise
    total = next(row for row in found["stats"] if row["name"] == "Aggregated")
    say(f"bench: Locust's page started a load: {total['num_requests']} requests, none failed")
    cluster.engine.podman("rm", "--force", "--time", "0", cluster.container("locust"))


def get(url: str, form: dict[str, str] | None = None) -> str:
    """Return a web page, or the answer to a form, or an empty text if the server does not answer yet."""
    data = None if form is None else urllib.parse.urlencode(form).encode()
    try:
        with urllib.request.urlopen(url, data, timeout=30) as reply:
            text: str = reply.read().decode()
            return text
    except (urllib.error.URLError, ConnectionError):
        return ""


def last_line(said: str) -> str:
    path = said.split()[-1]
    assert Path(path).name == "report.html", said
    return path


def read(cluster: Composition, path: str) -> str:
    """Return the content of a file in the volume that the bench services share."""
    volume = f"{cluster.project}_out:/out:ro"
    return cluster.engine.podman("run", "--rm", "--volume", volume, BENCH_IMAGE, "cat", path)
