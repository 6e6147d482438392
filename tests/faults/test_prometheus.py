"""A real Prometheus reads the metrics of a nameserver (over HTTPS) and a broker.

It evaluates our alert rules and dashboards.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.faults.servers import server
from tests.ports import free_ports
from tests.tidy.test_metrics_reference import PROMETHEUS, queries
from tests.tls import AUTHORITY, key, pem
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.one_core,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not on this machine"),
]


def configuration(folder: Path, nameserver: str, broker: str) -> Path:
    """Write our Prometheus configuration, changed for this test.

    It has the addresses of the test's servers, HTTPS for the nameserver only, and periods of 1 s.
    """
    text = (PROMETHEUS / "prometheus.yml").read_text()
    text = re.sub(r"\b(10|5)s\b", "1s", text)
    secured = f'scheme: https\n    tls_config: {{ca_file: "{AUTHORITY}"}}\n    static_configs:'
    text = text.replace("static_configs:", secured, 1)
    text = re.sub(r'\["namesrv-1.*\]', f'["{nameserver}"]', text)
    text = re.sub(r'\["broker-1.*\]', f'["{broker}"]', text)
    for rules in PROMETHEUS.glob("*alerts.yml"):
        shutil.copy(rules, folder)
    file = folder / "prometheus.yml"
    file.write_text(text)
    return file


@contextmanager
def running(folder: Path, file: Path) -> Iterator[str]:
    """Run Prometheus, and yield the address of its API."""
    (port,) = free_ports(1)
    command = ["prometheus", f"--config.file={file}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    with (
        (folder / "prometheus.log").open("w") as log,
        subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}"], cwd=folder, stdout=log, stderr=log
        ) as process,
    ):
        try:
            yield f"http://127.0.0.1:{port}/api/v1"
        finally:
            process.kill()


def ask(api: str, path: str, **parameters: str) -> Any:
    """Return the data of an answer, or None if there is no answer yet or Prometheus refuses the request."""
    try:
        with urllib.request.urlopen(
            f"{api}/{path}?{urllib.parse.urlencode(parameters)}", timeout=20
        ) as answer:
            return json.load(answer)["data"]
    except OSError:
        return None


def test_prometheus_scrapes_over_https_and_answers_the_queries_of_dashboards_and_rules(
    tmp_path: Path,
) -> None:
    for name in ("namesrv", "broker", "prometheus"):
        (tmp_path / name).mkdir()
    secured = ("--http-tls-cert", pem("member"), "--http-tls-key", key("member"))
    with (
        server("nameserver", tmp_path / "namesrv", *secured, http=True) as nameserver,
        server("broker", tmp_path / "broker", "-n", nameserver.listen, http=True) as broker,
        running(
            tmp_path / "prometheus", configuration(tmp_path / "prometheus", nameserver.http, broker.http)
        ) as api,
    ):

        def states() -> list[tuple[str, str]]:
            targets = (ask(api, "targets") or {"activeTargets": ()})["activeTargets"]
            return sorted((target["labels"]["job"], target["health"]) for target in targets)

        wait_until(lambda: states() == [("mqbroker", "up"), ("mqnamesrv", "up")], "both are scraped")

        def rules() -> list[Any]:
            groups = (ask(api, "rules") or {"groups": ()})["groups"]
            return [rule for group in groups for rule in group["rules"]]

        wait_until(lambda: {rule["health"] for rule in rules()} == {"ok"}, "every rule was evaluated")

        def answers() -> dict[str, Any]:
            """Return the result of each query, or None for a query that Prometheus refuses."""
            return {
                where: ask(api, "query", query=query.replace("$instance", ".*"))
                for where, query, _ in queries()
            }

        def with_data() -> bool:
            found = answers()
            return None not in found.values() and sum(bool(each["result"]) for each in found.values()) > 15

        # Wait until the queries have data, because rates need two scrapes. Most alerts have no data, because
        # nothing is wrong.
        wait_until(with_data, "every query is answered, many with data", every_s=1.0)
        kinds = ask(api, "query", query="count(mqbroker_connections_by_kind)")["result"]
        assert kinds[0]["value"][1] == "4"
