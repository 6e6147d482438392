"""Tests that docs/configuration.md has the settings that the programs declare, each in a row."""

from __future__ import annotations

import re

from routekeeper.broker.config import BrokerConfig
from routekeeper.nameserver.settings.declared import BY_KEY
from tests.tidy.settings_reference import PAGE, page


def test_page_is_what_the_programs_declare() -> None:
    assert page() == PAGE.read_text(), "run python -m tests.tidy.settings_reference"


def test_each_setting_has_its_row() -> None:
    nameserver, broker = PAGE.read_text().split("\n## mqbroker\n")
    assert set(re.findall(r"^\| `([^`]+)` \|", nameserver, re.MULTILINE)) == set(BY_KEY)
    assert set(re.findall(r"^\| `([^`]+)` \|", broker, re.MULTILINE)) == set(BrokerConfig().to_properties())
