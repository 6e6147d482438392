"""Tests of the nameserver's settings.

The tests cover the sources of settings and their priority, RocketMQ's names, checks, and changes at run time.
"""

from __future__ import annotations

import pytest

from routekeeper.nameserver.settings.changes import (
    ChangeInvalid,
    ChangeRefused,
    LiveSettings,
    check_changes,
    parse_changes,
)
from routekeeper.nameserver.settings.command_line import parse_command_line
from routekeeper.nameserver.settings.declared import (
    RUNTIME_KEYS,
    ConfigError,
    NamesrvSettings,
    format_settings,
    read_address,
)
from routekeeper.nameserver.settings.ranking import load_settings
from routekeeper.remoting.addresses import is_loopback
from routekeeper.remoting.http.hosts import AllowedHosts
from routekeeper.remoting.properties import parse_properties

RAFT = {"mode": "raft", "raftAddress": "127.0.0.1:1", "raftPeers": "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"}


def test_defaults_are_the_pinned_ones() -> None:
    settings = load_settings().settings
    assert settings == NamesrvSettings(inert=settings.inert)
    assert settings.listen == ("127.0.0.1", 9876)
    assert settings.http_listen == ("127.0.0.1", 9880)
    assert settings.mode == "independent"
    assert settings.durability == "journal"
    assert settings.kv_path == "./data/kvConfig.json"
    assert settings.store_path == "./data/namesrv.properties"
    assert settings.scan_interval_ms == 10_000


@pytest.mark.parametrize(
    ("http", "raft", "told"),
    [
        ("0.0.0.0:9880", "ns1:9878", "ns1:9880"),
        ("[::]:9880", "[fe80::1]:9878", "[fe80::1]:9880"),
        ("10.0.0.1:80", "ns1:9878", "10.0.0.1:80"),
        ("127.0.0.1:9880", "ns1:9878", ""),
        ("127.0.0.1:9880", "127.0.0.1:9878", "127.0.0.1:9880"),
        ("127.0.0.1:0", "127.0.0.1:9878", ""),
        ("off", "ns1:9878", ""),
    ],
)
def test_members_are_told_an_http_address_only_if_it_leads_there(http: str, raft: str, told: str) -> None:
    flags = {
        "mode": "raft",
        "raftAddress": raft,
        "raftPeers": raft,
        "httpListen": http,
        "raftSecretFile": "s",
    }
    assert load_settings(flags=flags).settings.http_told == told


def test_flags_rank_above_stored_above_file_above_defaults() -> None:
    key = "waitSecondsForService"
    sources = ({"flags": {key: "1"}}, {"stored": {key: "2"}}, {"file": {key: "3"}})
    for first in range(4):
        merged = {name: values for source in sources[first:] for name, values in source.items()}
        assert load_settings(**merged).settings.wait_seconds_for_service == (1, 2, 3, 45)[first]


def test_unknown_keys_of_a_file_are_named_and_rocketmqs_own_are_not() -> None:
    loaded = load_settings(
        file={"orderMessageEnabel": "true", "serverWorkerThreads": "32", "useEpollNativeSelector": "true"}
    )
    assert loaded.warnings == ("unknown key orderMessageEnabel in the configuration file is ignored",)
    assert "serverWorkerThreads=32" in format_settings(loaded.settings)


def test_nameservers_of_a_production_that_is_never_asked_are_named() -> None:
    (warning,) = load_settings(file={"clusterTestNameservers": "a:1"}).warnings
    assert warning.startswith("clusterTestNameservers has no effect")
    assert not load_settings(file={"clusterTestNameservers": "a:1", "clusterTest": "true"}).warnings


def test_stored_settings_cannot_bring_what_318_could_not_change() -> None:
    loaded = load_settings(stored={"dataDir": "/tmp/x", "enableTopicList": "false"})
    assert loaded.settings.data_dir == "./data"
    assert not loaded.settings.enable_topic_list
    assert loaded.warnings == ("key dataDir in the stored settings is ignored",)


def test_properties_text_sets_what_java_would_read() -> None:
    text = "# RocketMQ's file\nlistenPort = 9999\nproductEnvName:\\u4e2d\\\n   x\nrocketmqHome=C:\\\\mq\n"
    settings = load_settings(file=parse_properties(text)).settings
    assert settings.listen_port == 9999
    assert settings.product_env_name == "\u4e2dx"
    assert settings.inert == {"rocketmqHome": "C:\\mq"}


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ({"listenPort": "x"}, "listenPort=x is no whole number"),
        ({"listenPort": "65536"}, "outside 0 to 65535"),
        ({"orderMessageEnable": "yes"}, "neither true nor false"),
        ({"mode": "zookeeper"}, "none of independent, raft"),
        ({"httpListen": "9880"}, "is not HOST:PORT"),
        ({"httpListen": "127.0.0.1:9876"}, "are both"),
        ({"dataDir": ""}, "dataDir is empty"),
        ({"routeFreshness": "fresh"}, "none of stale, default"),
        ({"routeFreshness": "fresh"}, "none of stale, default, linearizable"),
        ({"routeFreshness": "linearizable"}, "routeFreshness=linearizable needs --mode raft"),
        ({"raftPeers": "127.0.0.1:1"}, "--peers needs --mode raft"),
        ({"mode": "raft"}, "needs --raft"),
        (RAFT | {"raftAddress": "127.0.0.1:9"}, "is not among"),
        (RAFT | {"raftPeers": "127.0.0.1:1,127.0.0.1:1"}, "twice"),
        (RAFT | {"raftPeers": "127.0.0.1:1,127.0.0.1"}, "is not HOST:PORT"),
        pytest.param(
            RAFT | {"raftPeers": "127.0.0.1:1,127.0.0.1:" + 5000 * "9"}, "is not HOST:PORT", id="digits"
        ),
        (RAFT | {"raftDurability": "disk"}, "none of memory, journal, fsync"),
        (RAFT | {"raftTlsCert": "c"}, "go together: --raft-tls-key, --raft-tls-ca is missing"),
        (RAFT | {"raftTlsCert": "c", "raftTlsCa": "a"}, "go together: --raft-tls-key is missing"),
        ({"raftTlsCa": "c"}, "--raft-tls-ca needs --mode raft"),
        ({"raftForceNewCluster": "true"}, "--force-new-cluster needs --mode raft"),
        ({"raftDurability": "fsync"}, "--durability needs --mode raft"),
        ({"raftElectionTimeoutMs": "400"}, "--election-timeout-ms needs --mode raft"),
        ({"raftSecretFile": "s"}, "--raft-secret-file needs --mode raft"),
        (
            {"mode": "raft", "raftAddress": "127.0.0.1:0", "raftPeers": "127.0.0.1:0,127.0.0.1:2"},
            "--peers 127.0.0.1:0 needs a port of 1 to 65535",
        ),
        (RAFT | {"raftListen": "0.0.0.0:1"}, "needs --raft-secret-file"),
        (
            {"mode": "raft", "raftAddress": "ns1:1", "raftPeers": "ns1:1,ns2:1"},
            "needs --raft-secret-file",
        ),
        (RAFT | {"raftElectionTimeoutMs": "1"}, "outside 50"),
    ],
    ids=str,
)
def test_setting_that_cannot_be_used_is_named_in_one_line(file: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(file=file)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "write"),
    [
        ("ns1:9880", "; write ns1"),
        ("https://ns1", "; write ns1"),
        ("http://ns1:9880/", "; write ns1"),
        ("[fd00::1]:9880", "; write fd00::1"),
        ("a b", ""),
        ("ns1;ns2", ""),
        ("*.example.com", ""),
    ],
)
def test_allowed_host_that_no_request_can_have_is_refused(host: str, write: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(file={"httpAllowedHosts": f"ns0, {host}"})
    assert str(caught.value) == (
        f'--http-allowed-hosts "{host}": allowed are IP addresses and host names of ASCII letters, digits, '
        f"'.', '-' and '_', without scheme, port and wildcard, separated by commas{write}"
    )


@pytest.mark.parametrize("host", ["ns1", "ns-1.example.com.", "ns_1", "10.0.0.1", "fd00::1", "[fd00::1]"])
def test_allowed_hosts_are_names_and_addresses(host: str) -> None:
    named = load_settings(file={"httpAllowedHosts": f" ns0 ,{host},"}).settings.http_allowed_hosts.split(",")
    shown = f"[{host}]" if host.startswith("fd") else host
    assert AllowedHosts(loopback=False, named=named).allow(f"{shown}:9880")


def test_raft_flag_in_another_mode_is_refused_even_with_its_default() -> None:
    with pytest.raises(ConfigError, match=r"--durability needs --mode raft"):
        load_settings(flags={"raftDurability": "journal"})
    # The option -p prints all settings, also those of raft mode. A nameserver in independent mode must accept
    # the printed text as its settings file.
    printed = parse_properties(format_settings(NamesrvSettings()))
    assert load_settings(file=printed).settings.durability == "journal"


def test_token_file_without_http_is_a_warning() -> None:
    # The token file also has an effect in independent mode.
    assert not load_settings(flags={"httpTokenFile": "t"}).warnings
    assert not load_settings(file=RAFT | {"httpTokenFile": "t", "raftForceNewCluster": "true"}).warnings
    off = load_settings(file=RAFT | {"httpTokenFile": "t", "httpListen": "off"}).warnings
    assert off == ("httpTokenFile has no effect with httpListen=off",)


def test_bound_ports_are_shown_and_hosts_stay_as_written() -> None:
    live = LiveSettings(NamesrvSettings(bind_address="localhost", listen_port=0, http="localhost:0"))
    live.bound(listen="127.0.0.1:4711", http="127.0.0.1:4712")
    shown = format_settings(live.current).splitlines()
    assert {"bindAddress=localhost", "listenPort=4711", "httpListen=localhost:4712"} <= set(shown)
    live = LiveSettings(NamesrvSettings(listen_port=0, http="off"))
    live.bound(listen="127.0.0.1:4711", http="off")
    assert live.current.http_listen is None


def test_raft_settings_that_are_sound_pass() -> None:
    settings = load_settings(file=RAFT).settings
    assert settings.members == ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")
    open_port = RAFT | {"raftListen": "0.0.0.0:1", "raftSecretFile": "s"}
    assert load_settings(file=open_port).settings.raft_listen == "0.0.0.0:1"
    tls = RAFT | {"raftListen": "0.0.0.0:1", "raftTlsCert": "c", "raftTlsKey": "k", "raftTlsCa": "a"}
    assert load_settings(file=tls).settings.raft_tls_ca == "a"


def test_command_line_takes_pinned_flags_and_rocketmqs_keys() -> None:
    line = parse_command_line(
        [
            *("--listen", "[::1]:0", "--http", "off", "--data", "d", "-c", "f.properties", "-p"),
            *("--orderMessageEnable", "true", "--force-new-cluster", "-n", "ignored:1"),
        ],
        version="1",
    )
    assert line.config_file == "f.properties"
    assert line.print_config
    assert line.flags == {
        "bindAddress": "::1",
        "listenPort": "0",
        "httpListen": "off",
        "dataDir": "d",
        "orderMessageEnable": "true",
        "raftForceNewCluster": "true",
    }


@pytest.mark.parametrize("flag", ["--force-new-cluster", "--raftForceNewCluster"])
def test_a_new_cluster_is_forced_only_by_saying_so(flag: str) -> None:
    def forced(*value: str) -> bool:
        raft = [text for key, value in RAFT.items() for text in (f"--{key}", value)]
        flags = parse_command_line([*raft, flag, *value], version="1").flags
        return load_settings(flags=flags).settings.force_new_cluster

    assert forced()
    assert forced("true")
    assert not forced("false"), "a template that gives each setting as a flag says false"
    with pytest.raises(ConfigError, match="raftForceNewCluster=yes is neither true nor false"):
        forced("yes")


@pytest.mark.parametrize("text", ["1_000", "\u0661", "0x1", "1.0"])
def test_only_decimal_digits_are_a_number(text: str) -> None:
    with pytest.raises(ConfigError, match="is no whole number"):
        load_settings(file={"listenPort": text})


@pytest.mark.parametrize(
    "argv", [["--lisen", "x:1"], ["--lis", "127.0.0.1:1"], ["--mode"], ["-x"], ["--listen", "9876"]], ids=str
)
def test_unknown_or_incomplete_flag_is_an_error(argv: list[str]) -> None:
    with pytest.raises(ConfigError):
        parse_command_line(argv, version="1")


def test_help_names_each_flag_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_command_line(["--help"], version="1")
    assert caught.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for flag in ("--listen", "--http", "--raft-secret-file", "--election-timeout-ms"):
        assert flag in shown
    assert "(default 10000 ms)" in shown
    assert "(default true)" in shown
    assert "--mode independent|raft" in shown
    assert "--durability, --raftDurability memory|journal|fsync" in shown
    assert "--force-new-cluster" in shown
    assert "--http-token-file" in shown
    assert "--raft-tls-cert" in shown


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:1", ("127.0.0.1", 1)), ("[::1]:2", ("::1", 2)), ("host:0", ("host", 0))],
)
def test_address_is_split(text: str, address: tuple[str, int]) -> None:
    assert read_address("x", text) == address


@pytest.mark.parametrize(
    "text",
    [
        "::1:2",
        "host",
        ":1",
        "host:",
        "host:65536",
        "host:-1",
        "host:\u0661",
        pytest.param("host:" + 5000 * "9", id="digits"),
    ],
)
def test_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        read_address("x", text)


def test_loopback_is_known_by_its_text() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "10.0.0.1", "::", "example.com")))


def test_printed_settings_are_sorted_lines_without_escapes() -> None:
    text = format_settings(load_settings(file={"productEnvName": "a=b \u00e9"}).settings)
    lines = text.splitlines()
    assert lines == sorted(lines, key=lambda line: line.partition("=")[0])
    assert "productEnvName=a=b \u00e9" in lines
    assert "returnOrderTopicConfigToBroker=true" in lines
    assert "kvConfigPath=./data/kvConfig.json" in lines
    assert text.endswith("\n")


def test_changes_above_the_size_of_all_settings_are_refused() -> None:
    """A request that changes settings must not be larger than all settings together.

    Without this limit, a request with 64 KiB of empty lines would block the event loop for 30 ms.
    """
    assert len(parse_changes(b"k=\n" * 4096 + b"last=")) == 2
    with pytest.raises(ChangeInvalid, match=r"^settings of 16386 bytes: allowed are 16384$"):
        parse_changes(b"=\n" * 8193)


def test_changes_are_read_as_utf8_unlike_files() -> None:
    assert parse_changes("productEnvName=\u4e2d \U0001f680\n#c\nk : v".encode()) == {
        "productEnvName": "\u4e2d \U0001f680",
        "k": "v",
    }
    for garbage in (b"\xff", b"k=\\u12"):
        with pytest.raises(ChangeInvalid, match="string2Properties error"):
            parse_changes(garbage)


def test_change_is_checked_as_a_whole_and_in_the_settings_it_makes() -> None:
    settings = NamesrvSettings()
    after, counted = check_changes(settings, {"scanNotActiveBrokerInterval": " 500 ", "ignored": "x"})
    assert after.scan_interval_ms == 500
    assert counted == {"scanNotActiveBrokerInterval": "500"}
    for changes in ({"scanNotActiveBrokerInterval": "1"}, {"routeFreshness": "linearizable"}):
        with pytest.raises(ChangeInvalid):
            check_changes(settings, changes)
    with pytest.raises(ChangeRefused):
        check_changes(settings, {"enableTopicList": "false", "kvConfigPath": "/etc/passwd"})


def test_no_path_address_or_identity_can_be_changed_at_run_time() -> None:
    for word in ("Path", "Dir", "File", "Address", "Listen", "Port", "Peers", "Tls", "mode", "Home"):
        assert not [key for key in RUNTIME_KEYS if word in key]


def test_live_settings_remember_what_was_changed() -> None:
    live = LiveSettings(NamesrvSettings(), {"enableTopicList": "false", "dataDir": "x"})
    after, counted = check_changes(live.current, {"orderMessageEnable": "true"})
    live.change(after, counted)
    assert live.current.order_message_enable
    assert live.stored == {"enableTopicList": "false", "orderMessageEnable": "true"}
