"""mqbroker is started with Apache's command lines."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from routekeeper.broker.command_line import parse_command_line
from routekeeper.broker.errors import SettingError
from routekeeper.remoting.codes import ResponseCode
from tests.broker.conftest import StartBroker
from tests.golden.starts import RELEASES, keys_of, recorded_options, recorded_settings


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "routekeeper.broker", *argv],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.slow
def test_options_of_apache_are_read(tmp_path: Path) -> None:
    file = tmp_path / "broker.properties"
    file.write_text("traceOn=false\n")
    values = {"n": "127.0.0.1:1;127.0.0.1:2", "c": str(file)}
    options, others = (
        sorted(
            (option for option in recorded_options(release) if option.program == "mqbroker"),
            key=lambda option: option.short,
        )
        for release in RELEASES
    )
    assert options == others
    assert {option.short for option in options} == {"h", "n", "c", "p", "m"}
    for spelling in ("-{0.short}", "--{0.long}"):
        given: list[str] = []
        for option in options:
            if option.argument:
                given += [spelling.format(option), values[option.short]]
        for option in options:
            if option.argument:
                continue
            done = run(spelling.format(option), *given)
            assert (done.returncode, done.stderr) == (0, ""), option
            if option.short == "h":
                assert done.stdout.startswith("usage: mqbroker"), option
                continue
            assert "namesrvAddr=127.0.0.1:1;127.0.0.1:2\n" in done.stdout, option
            assert ("traceOn=false\n" in done.stdout) == (option.short == "p"), option


@pytest.mark.slow
def test_the_settings_that_apache_takes_for_important_are_printed() -> None:
    important, all_of_them = run("-m"), run("-p")
    assert important.returncode == 0
    ours = keys_of(important.stdout)
    theirs = set().union(*(keys_of(recorded_settings(of, "mqbroker", "-m")) for of in RELEASES))
    assert theirs & keys_of(all_of_them.stdout) <= ours < keys_of(all_of_them.stdout)
    assert ours <= theirs


@pytest.mark.faults
def test_stray_words_and_the_flag_of_the_proxy_are_left_alone_and_named(start_broker: StartBroker) -> None:
    broker = start_broker("autoCreateTopicEnable=false", "other", "--enable-proxy")
    assert broker.wire().send_message("MadeBySend", b"x").code == 0
    assert broker.stop() == 0
    log = broker.log.read_text()
    assert re.search(r"WARNING .*ignored word='?autoCreateTopicEnable=false'? .*--set", log)
    assert re.search(r"WARNING .*ignored word='?other", log)
    # The quick start of RocketMQ 5 has this flag.
    assert re.search(r"WARNING .*--enable-proxy .*gRPC", log)


@pytest.mark.faults
def test_flags_of_the_proxy_start_a_broker_and_are_named(start_broker: StartBroker, tmp_path: Path) -> None:
    """A broker starts although the command line has flags of the proxy, and one warning names these flags.

    The command line comes from RocketMQ's issue 6854 on GitHub.
    """
    settings, proxy = tmp_path / "broker1.conf", tmp_path / "rmq-proxy1.json"
    settings.write_text("autoCreateTopicEnable=false\n")
    proxy.write_text('{"rocketMQClusterName": "DefaultCluster"}\n')
    broker = start_broker("-c", str(settings), "-pc", str(proxy), "-pm", "local", "--enable-proxy")
    answer = broker.wire().send_message("NotMade", b"x")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST, "the settings of -c are in force"
    assert broker.stop() == 0
    log = broker.log.read_text()
    (warning,) = [line for line in log.splitlines() if "gRPC" in line]
    assert re.search(r"WARNING .*=-pc -pm --enable-proxy ", warning)
    assert "unknown setting" not in log, "the proxy's file is not read"


@pytest.mark.parametrize("words", [("-bc", "F"), ("--brokerConfigPath", "F"), ("-c", "F", "-bc", "F")])
def test_the_settings_file_may_have_the_flag_of_the_proxy(words: tuple[str, ...]) -> None:
    arguments, others = parse_command_line([*words, "-pc", "P", "--proxyMode", "local"])
    assert (arguments.config, arguments.print_config, others) == ("F", False, ())


def test_two_settings_files_are_refused() -> None:
    with pytest.raises(SettingError, match="-c F and -bc G"):
        parse_command_line(["-c", "F", "-bc", "G"])


@pytest.mark.slow
def test_an_unknown_flag_is_refused_beside_stray_words() -> None:
    done = run("word", "--no-such-flag", "x", "-p")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--no-such-flag" in done.stderr
    assert len(done.stderr.splitlines()) == 1
