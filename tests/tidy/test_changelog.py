"""Tests that CHANGELOG.md has the form of Keep a Changelog, and begins with the package's version."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_newest_release_is_the_version_that_is_built() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"(?m)^## (.*)$", text)
    assert headings[0] == "[Unreleased]"
    releases = [re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d", each) for each in headings[1:]]
    assert None not in releases, "## [VERSION] - YEAR-MONTH-DAY"
    newest = releases[0]
    assert newest is not None
    assert newest[1] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert set(re.findall(r"(?m)^### (.*)$", text)) <= KINDS
