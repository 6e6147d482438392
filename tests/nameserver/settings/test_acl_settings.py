"""Tests of the settings that allow requests only from certain accounts or networks.

Both restrictions are off by default. A setting without effect is an error, so that nobody relies on it.
"""

from __future__ import annotations

import pytest

from routekeeper.nameserver.settings.command_line import parse_command_line
from routekeeper.nameserver.settings.declared import ConfigError
from routekeeper.nameserver.settings.ranking import load_settings


def test_nobody_is_checked_unless_it_is_set() -> None:
    settings = load_settings().settings
    assert (settings.acl, settings.acl_file, settings.admin_networks) == ("off", "", "")


def test_flags_and_keys_of_the_file_name_the_same() -> None:
    line = parse_command_line(
        ["--acl", "all", "--acl-file", "f.yml", "--admin-networks", "10.0.0.0/8"], version="x"
    )
    of_file = load_settings(file={"acl": "all", "aclFile": "f.yml", "adminNetworks": "10.0.0.0/8"}).settings
    assert load_settings(flags=line.flags).settings == of_file
    assert of_file.acl == "all"


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"acl": "admin"}, "--acl admin needs --acl-file FILE"),
        ({"aclFile": "f.yml"}, "--acl-file f.yml needs --acl admin or --acl all"),
        ({"acl": "off", "aclFile": "f.yml"}, "--acl-file f.yml needs --acl admin or --acl all"),
        ({"acl": "on", "aclFile": "f.yml"}, "acl=on is none of off, admin, all"),
        ({"adminNetworks": "10.0.0.1/8"}, "--admin-networks '10.0.0.1/8' has bits set behind its prefix"),
        ({"adminNetworks": ","}, "--admin-networks names no network"),
    ],
)
def test_setting_that_would_protect_nothing_is_refused(settings: dict[str, str], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        load_settings(flags=settings)
