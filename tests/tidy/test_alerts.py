"""Tests of the alert rules and the dashboards with Prometheus' own tool.

The tool must accept all rules and queries, and the alerts must fire at the right times.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.tidy.test_metrics_reference import PROMETHEUS, queries

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not on this machine")

CASES: Final = Path(__file__).with_name("alerts.yml")
RULES: Final = sorted(map(str, PROMETHEUS.glob("*alerts.yml")))


def promtool(*words: str) -> str:
    """Run promtool, which must succeed, and return its output."""
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_rules_and_configuration_are_taken() -> None:
    promtool("check", "rules", *RULES)
    promtool("check", "config", str(PROMETHEUS / "prometheus.yml"))


def test_queries_of_dashboards_are_taken(tmp_path: Path) -> None:
    found = [query for where, query, _ in queries() if ".json: " in where]
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(found)]
    file = tmp_path / "dashboards.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": rules}]}))
    assert f"{len(found)} rules found" in promtool("check", "rules", str(file))
    assert len(found) > 40


def test_alerts_come_when_they_are_due(tmp_path: Path) -> None:
    file = tmp_path / "cases.yml"
    file.write_text(yaml.safe_dump(yaml.safe_load(CASES.read_text()) | {"rule_files": RULES}))
    assert "SUCCESS" in promtool("test", "rules", str(file))
