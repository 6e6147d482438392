"""Tests of the metrics of a raft group.

Each metric that the alert rules or docs/operations.md name must exist. Counters of both modes are tested in
``test_seen``.
"""

from __future__ import annotations

import asyncio
import functools
import re
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import yaml
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from routekeeper.nameserver.http.app import HttpServer
from routekeeper.nameserver.http.metrics import family, raft_families
from routekeeper.nameserver.modes.group import GroupStatus
from routekeeper.nameserver.replicated import Replicated
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.settings.ranking import load_settings
from routekeeper.nameserver.wire.server import NameServer
from tests.nameserver.http.test_server_http import running
from tests.ports import free_addresses

ROOT = Path(__file__).resolve().parents[3]
CERTS = ROOT / "tests" / "nameserver" / "raft" / "certs"
ALERTS = ROOT / "compose" / "prometheus" / "alerts.yml"
SAMPLE = re.compile(r'(\w+)(?:\{(\w+="(?:[^"\\]|\\.)*"(?:,\w+="(?:[^"\\]|\\.)*")*)\})? (-?[0-9.e+-]+)')
METRIC = re.compile(r"\b(?:mqnamesrv|process)_[a-z_]+\b")


@pytest.fixture(scope="module")
def exposition(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the text of /metrics from a real group of one member.

    The member leads the group, and it has a snapshot and a certificate.
    """
    root = tmp_path_factory.mktemp("metrics")

    async def main() -> str:
        (raft,) = free_addresses(1)
        flags = {
            "mode": "raft",
            "raftAddress": raft,
            "raftPeers": raft,
            "dataDir": str(root),
            "listenPort": "0",
            "raftTlsCert": str(CERTS / "member.pem"),
            "raftTlsKey": str(CERTS / "member.key"),
            "raftTlsCa": str(CERTS / "authority.pem"),
        }
        live = LiveSettings(load_settings(flags=flags).settings)
        async with asyncio.TaskGroup() as group, aiohttp.ClientSession() as web:
            server = NameServer(settings=live, group=group)
            mode = Replicated(live, server, boot_id=secrets.randbits(48))
            await mode.start()
            http = HttpServer(consistency=mode, server=server, settings=live, version="test")
            try:
                addr = await http.start("127.0.0.1", 0)
                loop = asyncio.get_running_loop()
                deadline = loop.time() + 20
                while not mode.status().writes_ready:
                    assert loop.time() < deadline
                    await asyncio.sleep(0.01)
                await mode.member.changes.save_snapshot(deadline=deadline)
                async with web.get(f"http://{addr}/metrics") as answer:
                    assert answer.status == 200
                    return await answer.text()
            finally:
                await http.close()
                await server.close(drain_s=1.0)
                await mode.close()

    return asyncio.run(main())


def families(text: str) -> dict[str, str]:
    """Return the types of the metrics by name; check that each sample follows the TYPE line of its metric."""
    kinds: dict[str, str] = {}
    current = ""
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, current, kind = line.split(" ")
            assert current not in kinds, f"{current} is described twice"
            kinds[current] = kind
        elif not line.startswith("#"):
            match = SAMPLE.fullmatch(line)
            assert match, line
            parts = ("_bucket", "_sum", "_count") if kinds[current] == "histogram" else ("",)
            assert match[1] in {current + part for part in parts}, f"{match[1]} stands below {current}"
    return kinds


@pytest.mark.slow
def test_counters_and_only_they_end_in_total(exposition: str) -> None:
    for name, kind in families(exposition).items():
        assert name.endswith("_total") == (kind == "counter"), name


def test_an_operator_finds_what_contract_and_design_promise(exposition: str) -> None:
    """The metrics contain all figures that an operator of a raft group needs.

    The figures concern:

    - leader, elections, contact and members
    - indexes of the log, and entries that are not applied yet
    - journal, snapshot, and stalls of the disk
    - refused requests, and links between members
    """
    known = set(families(exposition))
    assert known >= {
        "mqnamesrv_raft_term",
        "mqnamesrv_raft_is_leader",
        "mqnamesrv_raft_leader_known",
        "mqnamesrv_raft_leader_changes_total",
        "mqnamesrv_raft_last_contact_seconds",
        "mqnamesrv_raft_contact_limit_seconds",
        "mqnamesrv_raft_commit_index",
        "mqnamesrv_raft_applied_index",
        "mqnamesrv_raft_apply_lag",
        "mqnamesrv_raft_journal_bytes",
        "mqnamesrv_raft_log_bytes",
        "mqnamesrv_raft_snapshot_bytes",
        "mqnamesrv_raft_snapshot_index",
        "mqnamesrv_raft_snapshot_failures_total",
        "mqnamesrv_raft_storage_stalled",
        "mqnamesrv_raft_refused_truncations_total",
        "mqnamesrv_raft_members",
        "mqnamesrv_raft_elections_total",
        "mqnamesrv_raft_storage_stalls_total",
        "mqnamesrv_raft_snapshot_age_seconds",
        "mqnamesrv_raft_refused_reads_total",
        "mqnamesrv_raft_refused_writes_total",
        "mqnamesrv_raft_unknown_outcomes_total",
        "mqnamesrv_raft_certificate_left_seconds",
    }
    assert "mqnamesrv_raft_is_leader 1.0\n" in exposition
    assert 'mqnamesrv_raft_members{kind="voter"} 1.0\n' in exposition
    assert 'mqnamesrv_raft_members{kind="learner"} 0.0\n' in exposition


def test_time_left_names_the_authority_too(exposition: str) -> None:
    for name in ("mqnamesrv_raft_certificate_left_seconds", "mqnamesrv_certificate_left_seconds"):
        help_ = re.search(rf"^# HELP {name} (.*)$", exposition, re.MULTILINE)
        assert help_ is not None
        assert "authority" in help_[1]


def test_where_there_is_no_proc_everything_else_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = functools.partial(ProcessCollector, proc=str(tmp_path / "nothing"))
    monkeypatch.setattr("prometheus_client.ProcessCollector", collector)

    async def main() -> str:
        async with running(tmp_path) as ns:
            status, text = await ns.get("/metrics")
            assert status == 200
            return str(text)

    names = families(asyncio.run(main()))
    assert "mqnamesrv_http_request_seconds" in names
    assert not [name for name in names if name.startswith("process_")]


def test_no_series_is_told_twice(exposition: str) -> None:
    """No time series may appear twice, because Prometheus would then refuse the whole answer."""
    series = [line.rpartition(" ")[0] for line in exposition.splitlines() if not line.startswith("#")]
    assert [name for name in series if series.count(name) > 1] == []


def status_of(**figures: object) -> GroupStatus:
    """Return a member's status with the given figures. All other numbers are 0."""
    counted = ("refused_reads", "refused_writes", "unknown_outcomes", "proposals", "apply_lag")
    barriers = ("barriers", "barriers_confirmed", "barrier_rounds")
    given = {"role": "follower", "me": "a:1"} | dict.fromkeys(counted + barriers, 0) | figures
    return msgspec.convert(given, GroupStatus)


def text_of(families: Iterable[Metric]) -> str:
    class Given(Collector):
        def collect(self) -> Iterable[Metric]:
            return families

        def describe(self) -> Iterable[Metric]:
            return ()

    registry = CollectorRegistry()
    registry.register(Given())
    return generate_latest(registry).decode()


def test_links_are_told_per_peer_and_never_to_oneself() -> None:
    status = status_of(members=["a:1", "b:1", "c:1"], learners=["c:1"], linked=["b:1"])
    text = text_of(raft_families(status))
    assert 'mqnamesrv_raft_link_up{peer="b:1"} 1.0\n' in text
    assert 'mqnamesrv_raft_link_up{peer="c:1"} 0.0\n' in text
    assert 'peer="a:1"' not in text
    assert 'mqnamesrv_raft_members{kind="voter"} 2.0\n' in text


def test_figure_that_is_not_known_is_left_out_and_units_are_seconds() -> None:
    status = status_of(last_contact_ms=None, contact_limit_ms=300, storage_stalled=True)
    text = text_of(raft_families(status))
    assert "last_contact" not in text
    assert "mqnamesrv_raft_contact_limit_seconds 0.3\n" in text
    assert "mqnamesrv_raft_storage_stalled 1.0\n" in text


def test_label_values_are_escaped() -> None:
    labelled = family("m", "Help.", [({"text": 'a"b\\c\nd'}, 1)])
    assert text_of([labelled]).splitlines()[-1] == 'm{text="a\\"b\\\\c\\nd"} 1.0'


def alert_rules() -> list[dict[str, Any]]:
    document = yaml.safe_load(ALERTS.read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def test_alert_rules_are_complete_and_named_once() -> None:
    rules = alert_rules()
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 15
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}, rule["alert"]
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        assert rule["annotations"]["summary"]


def test_operations_guide_names_only_metrics_that_are_served(exposition: str) -> None:
    absent = {
        # A group of one member has no links, and this test registers no broker.
        *("mqnamesrv_raft_link_up", "mqnamesrv_broker_last_seen_oldest_seconds"),
        # A nameserver has these metrics only if RPC hooks or cluster tests are configured. test_rpc_hooks.py
        # and test_cluster_test.py check them.
        *("mqnamesrv_rpc_hook_errors_total", "mqnamesrv_cluster_test_questions_total"),
        "mqnamesrv_cluster_test_kept_answers_total",
    }
    known = set(families(exposition)) | absent
    named = set(METRIC.findall((ROOT / "docs" / "operations.md").read_text())) - {"mqnamesrv_raft_"}
    assert len(named) > 20
    assert sorted(named - known) == []


def test_operations_guide_says_what_to_do_about_each_alert() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    named = set(re.findall(r"`((?:Raft|Nameserver)[A-Z]\w+)`", text))
    assert named == {rule["alert"] for rule in alert_rules()}
