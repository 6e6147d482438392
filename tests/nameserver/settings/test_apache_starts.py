"""Tests that mqnamesrv starts with the command lines of Apache's mqnamesrv."""

from __future__ import annotations

import pytest

from routekeeper.nameserver.settings.command_line import CommandLine, parse_command_line
from routekeeper.nameserver.settings.declared import ConfigError
from tests.golden.starts import RELEASES, recorded_options


def read(*argv: str) -> CommandLine:
    return parse_command_line(argv, version="mqnamesrv 0")


@pytest.mark.parametrize("release", RELEASES)
def test_options_of_apache_are_read(release: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = [option for option in recorded_options(release) if option.program == "mqnamesrv"]
    assert {option.short for option in options} == {"h", "n", "c", "p"}
    for option in options:
        for flag in (f"-{option.short}", f"--{option.long}"):
            if option.short == "h":
                with pytest.raises(SystemExit) as ended:
                    read(flag)
                assert ended.value.code == 0
                assert capsys.readouterr().out.startswith("usage: mqnamesrv")
                continue
            line = read(flag, "a:1") if option.argument else read(flag)
            assert line.config_file == ("a:1" if option.short == "c" else None)
            assert line.print_config == (option.short == "p")
            assert not line.flags


def test_stray_words_are_left_alone_and_kept_for_a_warning() -> None:
    line = read("listenPort=1", "--listen", "127.0.0.1:2", "other")
    assert line.words == ("listenPort=1", "other")
    assert line.flags == {"bindAddress": "127.0.0.1", "listenPort": "2"}


def test_unknown_flags_are_refused_beside_stray_words() -> None:
    with pytest.raises(ConfigError, match="--no-such-flag"):
        read("word", "--no-such-flag", "x")
