"""Tests that mqnamesrv accepts the settings that Apache's mqnamesrv prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from routekeeper.nameserver.settings.declared import ConfigError
from routekeeper.nameserver.settings.ranking import load_settings
from routekeeper.remoting.properties import parse_properties
from tests.golden.starts import HOME, RELEASES, recorded_settings


@pytest.mark.parametrize("release", RELEASES)
def test_the_settings_that_apache_prints_are_taken(release: str, tmp_path: Path) -> None:
    text = recorded_settings(release, "mqnamesrv").replace(HOME, str(tmp_path))
    loaded = load_settings(file=parse_properties(text))
    assert loaded.settings.kv_path == f"{tmp_path}/namesrv/kvConfig.json"
    assert loaded.settings.listen_port == 9876
    assert len(loaded.warnings) == (1 if release == "5.3.3" else 0)
    if release == "5.3.3":
        assert "socksProxyConfig" in loaded.warnings[0]
    assert not list(tmp_path.iterdir()), "reading settings makes nothing"


def test_a_few_unknown_keys_have_a_line_each() -> None:
    loaded = load_settings(file={"one": "1", "two": "2"})
    assert [warning.split()[2] for warning in loaded.warnings] == ["one", "two"]


@pytest.mark.parametrize(
    "setting",
    [
        *("tls.server.mode=enforcing", "authenticationEnabled=true", "authorizationEnabled=True"),
        *("aclEnable=true", "aclEnable=true # yes", "useTLS=true"),
    ],
)
def test_settings_whose_loss_opens_a_door_refuse_the_start(setting: str) -> None:
    key, _, value = setting.partition("=")
    with pytest.raises(ConfigError, match=f"{key}="):
        load_settings(file={key: value})


@pytest.mark.parametrize("setting", ["tls.server.mode=permissive", "aclEnable=false", "useTLS=false"])
def test_doors_that_are_open_in_rocketmq_too_start(setting: str) -> None:
    key, _, value = setting.partition("=")
    assert load_settings(file={key: value})
