"""Tests that docs/configuration.md has the settings that the programs declare, each in a row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from routekeeper.broker.command_line import OWN_SETTINGS
from routekeeper.broker.config import BrokerConfig
from routekeeper.nameserver.settings.declared import BY_KEY, INERT, ConfigError
from routekeeper.nameserver.settings.ranking import load_settings
from routekeeper.remoting.properties import parse_properties
from tests.tidy.settings_reference import PAGE, page

STARTS = Path(__file__).resolve().parents[1] / "golden" / "starts"


def test_page_is_what_the_programs_declare() -> None:
    assert page() == PAGE.read_text(), "run python -m tests.tidy.settings_reference"


def test_each_setting_has_its_row() -> None:
    nameserver, broker = PAGE.read_text().split("\n## mqbroker\n")
    assert set(re.findall(r"^\| `([^`]+)` \|", nameserver, re.MULTILINE)) == set(BY_KEY)
    assert set(re.findall(r"^\| `([^`]+)` \|", broker, re.MULTILINE)) == set(BrokerConfig().to_properties())


def test_keys_without_effect_may_have_any_value_and_the_controller_may_not() -> None:
    listed = PAGE.read_text().partition(" accepted and without effect:\n")[2].partition("\n")[0]
    keys = re.findall(r"`([^`]+)`", listed)
    assert {*keys, "enableControllerInNamesrv"} == set(INERT)
    for key in keys:
        other = {"true": "false", "false": "true"}.get(INERT[key], "7")
        assert load_settings(file={key: other}).settings.inert == {key: other}
    assert "`enableControllerInNamesrv` may only be `false`" in PAGE.read_text()
    with pytest.raises(ConfigError):
        load_settings(file={"enableControllerInNamesrv": "true"})


def test_broker_key_that_rocketmq_lacks_is_explained() -> None:
    rocketmqs: set[str] = set()
    for recorded in STARTS.glob("*-mqbroker-p.properties"):
        rocketmqs |= parse_properties(recorded.read_text()).keys()
    assert {"brokerIP1", "maxMessageSize"} <= rocketmqs
    ours = BrokerConfig().to_properties().keys() - rocketmqs
    named = set(re.findall(r"\w+", OWN_SETTINGS))
    # Keys with these prefixes are properties of RocketMQ's Java machine (-D), which it does not print.
    assert sorted(key for key in ours - named if not key.startswith(("rocketmq.", "tls."))) == []
