"""Tests of the program mqnamesrv: the line that it prints at its start, its exit codes, and signals."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.golden.starts import HOME, RELEASES, recorded_settings
from tests.ports import free_addresses
from tests.signals import inherited
from tests.waiting import wait_until

READY = re.compile(
    r"mqnamesrv ready listen=(?P<listen>\S+) http=(?P<http>\S+) mode=(?P<mode>\S+) role=(?P<role>\S+)\n"
)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "routekeeper.nameserver", *arguments]


@contextlib.contextmanager
def started(tmp_path: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], re.Match[str]]]:
    log = (tmp_path / "stderr.txt").open("w")
    process = subprocess.Popen(
        command("--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"), *arguments),
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        match = READY.fullmatch(line)
        assert match, (line, (tmp_path / "stderr.txt").read_text())
        yield process, match
    finally:
        log.close()
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.slow
def test_ready_line_and_settings_name_the_ports_and_both_serve(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.properties"
    file.write_text("unheardOf=1\n")
    with started(tmp_path, "--http", "127.0.0.1:0", "-c", str(file)) as (process, ready):
        assert (ready["mode"], ready["role"]) == ("independent", "independent")
        with BlockingClient() as client:
            assert client.invoke(ready["listen"], RemotingCommand.request(206)).code == 0
            shown = client.invoke(ready["listen"], RemotingCommand.request(319)).body.decode().splitlines()
        assert f"listenPort={ready['listen'].rpartition(':')[2]}" in shown
        assert f"httpListen={ready['http']}" in shown
        with urllib.request.urlopen(f"http://{ready['http']}/v1/status", timeout=60) as answer:
            assert json.load(answer)["mode"] == "independent"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        log = (tmp_path / "stderr.txt").read_text()
        assert "only this machine can reach" in log
        assert "unheardOf" in log, "a key that is unknown is named"


def test_interrupt_ends_it_cleanly_with_connections_open(tmp_path: Path) -> None:
    with started(tmp_path, "--http", "off") as (process, ready), BlockingClient() as client:
        assert ready["http"] == "off"
        client.invoke(ready["listen"], RemotingCommand.request(206))
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0


def test_closed_terminal_does_not_end_what_was_started_to_outlive_it(tmp_path: Path) -> None:
    with (
        inherited(signal.SIGHUP, signal.SIG_IGN),  # SIGHUP is ignored, as under nohup
        started(tmp_path, "--http", "off") as (process, ready),
        BlockingClient() as client,
    ):
        process.send_signal(signal.SIGHUP)
        assert client.invoke(ready["listen"], RemotingCommand.request(206)).code == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0


@pytest.mark.slow
def test_raft_member_alone_is_ready_and_says_that_it_has_no_quorum(tmp_path: Path) -> None:
    peers = free_addresses(3)
    raft = ("--mode", "raft", "--raft", peers[0], "--peers", ",".join(peers))
    with started(tmp_path, "--http", "127.0.0.1:0", *raft) as (process, ready), BlockingClient() as client:
        assert ready["mode"] == "raft"
        answer = client.invoke(ready["listen"], RemotingCommand.request(105, {"topic": "T"}), timeout_s=60)
        assert answer.code == 1
        assert (answer.remark or "").startswith("[NO_QUORUM] name server not ready")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://{ready['http']}/readyz", timeout=60)
        with refused.value as problem:
            assert problem.code == 503
            assert peers[1] in problem.read().decode()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=60, check=False)


REASON = os.strerror(errno.EADDRINUSE)
CERTS = Path(__file__).parent / "raft" / "certs"


def tls(cert: str) -> tuple[str, ...]:
    files = {"cert": f"{cert}.pem", "key": f"{cert}.key", "ca": "authority.pem"}
    flags = [(f"--raft-tls-{name}", str(CERTS / file)) for name, file in files.items()]
    alone = ("--mode", "raft", "--raft", "127.0.0.1:9801", "--peers", "127.0.0.1:9801")
    return (*alone, *(word for flag in flags for word in flag))


#: Arguments with which the program must not start: one example for each step of the start that can fail.
BAD = {
    "certificate": tls("nowhere"),
    "command line": ("--lis", "127.0.0.1:0"),
    "setting": ("--mode", "raft"),
    "missing file": ("-c", "/nonexistent/namesrv.properties"),
    "address of another machine": ("--listen", "192.0.2.1:9876", "--http", "off"),
    "token file": ("--http-token-file", "/nonexistent/token"),
    "allowed host with a port": ("--http-allowed-hosts", "ns1:9880"),
}


@pytest.mark.slow
@pytest.mark.parametrize("arguments", BAD.values(), ids=BAD)
def test_bad_setting_is_one_line_and_exit_2(arguments: tuple[str, ...], tmp_path: Path) -> None:
    result = run(*arguments, "--data", str(tmp_path))
    assert result.returncode == 2
    lines = [line for line in result.stderr.splitlines() if line.startswith("mqnamesrv: ")]
    assert len(lines) == 1
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


@pytest.mark.slow
def test_port_in_use_is_one_line_and_exit_2(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        addr = f"127.0.0.1:{held.getsockname()[1]}"
        for flags in (("--listen", addr, "--http", "off"), ("--listen", "127.0.0.1:0", "--http", addr)):
            result = run(*flags, "--data", str(tmp_path))
            assert result.returncode == 2
            flag = flags[2 if flags[1].endswith(":0") else 0]
            assert result.stderr.splitlines()[-1] == f"mqnamesrv: {flag} {addr} cannot be bound: {REASON}"
            assert "Traceback" not in result.stderr


def test_data_directory_that_is_a_file_is_one_line_and_exit_2(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    result = run("--data", str(file), "--listen", "127.0.0.1:0", "--http", "off")
    assert result.returncode == 2
    assert result.stderr == f"mqnamesrv: {file}/namesrv.properties cannot be read: Not a directory\n"


def test_file_flags_and_defaults_rank_and_print(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text("listenPort=1234\norderMessageEnable=true\nunheardOf=1\n")
    result = run("-c", str(file), "--listen", "127.0.0.1:4321", "-p", "--data", str(tmp_path))
    assert result.returncode == 0
    values = dict(line.split("=", 1) for line in result.stdout.splitlines())
    assert (values["listenPort"], values["orderMessageEnable"]) == ("4321", "true")
    assert values["scanNotActiveBrokerInterval"] == "10000"


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
def test_settings_that_apache_prints_are_read_from_a_file(release: str, tmp_path: Path) -> None:
    file = tmp_path / "namesrv.properties"
    file.write_text(recorded_settings(release, "mqnamesrv").replace(HOME, str(tmp_path)))
    result = run("-c", str(file), "-p")
    assert result.returncode == 0, result.stderr
    assert f"configStorePath={tmp_path}/namesrv/namesrv.properties\n" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("given", ["namesrv.properties", "link"])
def test_a_settings_file_that_a_change_would_overwrite_refuses_the_start(given: str, tmp_path: Path) -> None:
    file, name = tmp_path / "namesrv.properties", tmp_path / given
    text = f"listenPort=1234\ndataDir={tmp_path}\n"
    file.write_text(text)
    (tmp_path / "link").symlink_to(file)
    result = run("-c", str(name), "-p")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        f"mqnamesrv: configStorePath={file} is the file of -c {name}, and updateNamesrvConfig would overwrite"
        " it; name another file by configStorePath or by -c\n"
    )
    assert file.read_text() == text


@pytest.mark.slow
def test_a_settings_file_that_rocketmq_has_rewritten_starts_and_is_not_overwritten(tmp_path: Path) -> None:
    """A nameserver starts with a settings file that RocketMQ has changed, and leaves this file unchanged.

    RocketMQ stores changes in the file of ``-c``, so this file then names itself as configStorePath. Our
    nameserver stores changes in its data directory instead.
    """
    file = tmp_path / "namesrv.conf"
    text = f"configStorePath={file}\norderMessageEnable=false\n"
    file.write_text(text)
    with started(tmp_path, "--http", "off", "-c", str(file)) as (_, ready), BlockingClient() as client:
        change = RemotingCommand.request(318, body=b"orderMessageEnable=true")
        assert client.invoke(ready["listen"], change).code == 0
    assert file.read_text() == text
    assert (tmp_path / "data" / "namesrv.properties").is_file()


@pytest.mark.slow
def test_settings_changed_at_run_time_hold_after_a_restart(tmp_path: Path) -> None:
    with started(tmp_path, "--http", "off") as (process, ready), BlockingClient() as client:
        change = RemotingCommand.request(318, body=b"orderMessageEnable=true")
        assert client.invoke(ready["listen"], change).code == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    file = tmp_path / "namesrv.conf"
    file.write_text("orderMessageEnable=false\n")
    with started(tmp_path, "--http", "off", "-c", str(file)) as (_, ready), BlockingClient() as client:
        shown = client.invoke(ready["listen"], RemotingCommand.request(319)).body.decode()
        assert "orderMessageEnable=true\n" in shown
        log = tmp_path / "stderr.txt"
        wait_until(lambda: "not in force" in log.read_text(), "the line is in the log")
    (line,) = [one for one in (tmp_path / "stderr.txt").read_text().splitlines() if "not in force" in one]
    assert "WARNING" in line
    store = f"{tmp_path}/data/namesrv.properties"
    assert f"key=orderMessageEnable value=false in_force=true changed_in={store}" in line


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_and_version_exit_0(flag: str) -> None:
    result = run(flag)
    assert result.returncode == 0
    assert result.stdout


@pytest.mark.slow
def test_data_directory_is_held_by_one_process_and_bound_to_one_mode(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with started(tmp_path, "--http", "off"):
        second = subprocess.run(
            command("--listen", "127.0.0.1:0", "--http", "off", "--data", data),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert second.returncode == 2
        assert "in use by another process" in second.stderr
        assert len(second.stderr.splitlines()) == 1
    other = subprocess.run(
        command(
            *("--listen", "127.0.0.1:0", "--http", "off", "--data", data, "--mode", "raft"),
            *("--raft", "127.0.0.1:9801", "--peers", "127.0.0.1:9801"),
        ),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert other.returncode == 2
    assert "belongs to mode independent, not raft" in other.stderr
    assert len(other.stderr.splitlines()) == 1
    with started(tmp_path, "--http", "off") as (_, ready):
        assert ready["mode"] == "independent"
