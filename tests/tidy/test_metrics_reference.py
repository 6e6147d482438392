"""Tests that dashboards, alert rules and docs/metrics.md name only metrics and labels of real servers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tidy.metrics_reference import PAGE, ROOT, Family, expositions, families_of, page

GRAFANA = ROOT / "compose" / "grafana"
PROMETHEUS = ROOT / "compose" / "prometheus"
SERIES = re.compile(r"\b(?:mqnamesrv|mqbroker|rocketmq|process)_\w+")
LABELLED = re.compile(r"\b((?:mqnamesrv|mqbroker|rocketmq|process)_\w+)\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
GROUPED = re.compile(r"\b(?:by|on|group_right|group_left|ignoring|without)\s*\(([^)]*)\)")
SHOWN = re.compile(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}")
#: Labels that Prometheus adds, and the label of histogram buckets.
SCRAPED = frozenset({"job", "instance", "le"})
#: Allowed values of the label ``port``. It names the ports that can use TLS, and so have a certificate.
PORTS = frozenset({"raft", "wire", "http"})


@pytest.fixture(scope="module")
def served() -> dict[str, str]:
    return expositions()


@pytest.fixture(scope="module")
def known(served: dict[str, str]) -> dict[str, Family]:
    """Return all served metrics, by the names of their series."""
    found: dict[str, Family] = {}
    for text in served.values():
        for family in families_of(text).values():
            for name in family.series:
                found[name] = family
    return found


@pytest.mark.slow
def test_page_is_what_the_servers_say(served: dict[str, str]) -> None:
    assert page(served) == PAGE.read_text(), "run python -m tests.tidy.metrics_reference"


def test_page_has_every_metric_that_the_other_pages_name() -> None:
    own = re.compile(r"\b(?:mqnamesrv|mqbroker)_\w*[a-z]\b")
    known = set(own.findall(PAGE.read_text()))
    pages = sorted((ROOT / "docs").glob("*.md"))
    assert {
        (page.name, name) for page in pages for name in own.findall(page.read_text()) if name not in known
    } == set()


def queries() -> Iterator[tuple[str, str, str]]:
    """Yield place, query and texts of each dashboard query and of each alert rule.

    The texts are the legend or the annotations, which may name labels of the query's result.
    """
    for path in sorted(GRAFANA.glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                yield f"{path.name}: {panel['title']}", target["expr"], target["legendFormat"]
    for path in sorted(PROMETHEUS.glob("*alerts.yml")):
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                yield f"{path.name}: {rule['alert']}", rule["expr"], " ".join(rule["annotations"].values())


@pytest.mark.slow
def test_each_query_names_metrics_and_labels_that_are_served(known: dict[str, Family]) -> None:
    faults, count = [], 0
    for where, query, texts in queries():
        names = set(SERIES.findall(re.sub(r"\{[^}]*\}", "", query)))
        count += bool(names)
        faults += [f"{where}: no metric {name}" for name in names - set(known)]
        families = [known[name] for name in names & set(known)]
        labels = SCRAPED.union(*(family.values for family in families))
        for name, matchers in LABELLED.findall(query):
            for label, operator, value in MATCHER.findall(matchers):
                values = known[name].values.get(label) if name in known else None
                if label in SCRAPED:
                    continue
                if values is None:
                    faults.append(f"{where}: {name} has no label {label}")
                    continue
                allowed = values | (PORTS if label == "port" else frozenset())
                if operator in ("=", "!="):
                    words = {value}
                else:
                    words = set(value.split("|"))
                faults += [f"{where}: {name} has no {label}={word}" for word in words - allowed]
        for text in GROUPED.findall(query):
            faults += [f"{where}: no label {label}" for label in set(re.findall(r"\w+", text)) - labels]
        faults += [f"{where}: no label {label}" for label in set(SHOWN.findall(texts)) - labels]
    assert faults == []
    assert count > 50


def test_names_that_nobody_serves_are_noticed() -> None:
    """The patterns find each metric and each label in a query, so that this module checks all of them."""
    query = 'sum by (instance, le) (rate(mqbroker_x_bucket{state=~"a|b", job="j"}[5m])) > on (peer) process_y'
    assert set(SERIES.findall(re.sub(r"\{[^}]*\}", "", query))) == {"mqbroker_x_bucket", "process_y"}
    assert LABELLED.findall(query) == [("mqbroker_x_bucket", 'state=~"a|b", job="j"')]
    assert GROUPED.findall(query) == ["instance, le", "peer"]
    assert SHOWN.findall("{{instance}} {{ $labels.peer }}") == ["instance", "peer"]


def rules(path: Path) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def test_operations_guide_says_what_to_do_about_each_alert_of_a_broker() -> None:
    named = set(re.findall(r"`(Broker[A-Z]\w+)`", (ROOT / "docs" / "operations.md").read_text()))
    assert named == {rule["alert"] for rule in rules(PROMETHEUS / "broker-alerts.yml")}
