"""At SIGHUP, a nameserver or a broker reads its settings and files again.

It changes nothing else and reopens no port.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.reload import compare_settings
from routekeeper.remoting.transport.blocking import BlockingClient
from tests import standstill
from tests.faults.test_service_manager import Manager
from tests.signals import inherited
from tests.standstill import wait_soon
from tests.waiting import WITHIN_S, wait_until

pytestmark = [pytest.mark.faults]

CERTS = Path(__file__).resolve().parents[1] / "nameserver" / "raft" / "certs"
SERVERS = {
    "mqnamesrv": ("routekeeper.nameserver", "--http", "off", "--data", "data"),
    "mqbroker": ("routekeeper.broker", "--store", "data", "--name", "broker-a"),
}


@dataclass
class Server:
    process: subprocess.Popen[str]
    addr: str
    log: Path
    settings: Path
    reloads: int = field(default=0)

    def signal(self) -> None:
        self.process.send_signal(signal.SIGHUP)

    def reload(self) -> str:
        """Send SIGHUP, and return the log line with the result of the reload."""
        self.reloads += 1
        self.signal()
        return wait_until(lambda: self._line(self.reloads), "a line about the reload")

    def _line(self, number: int) -> str:
        assert self.process.poll() is None, self.log.read_text()
        found = [line for line in self.log.read_text().splitlines() if " reloaded changed=" in line]
        return found[number - 1] if len(found) >= number else ""

    def answers(self) -> bool:
        with BlockingClient() as client:
            client.invoke(self.addr, RemotingCommand.request(0), timeout_s=10.0)
        return self.process.poll() is None

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WITHIN_S)


Start = Callable[..., Server]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    servers: list[Server] = []

    def start(
        name: str,
        text: str = "",
        *flags: str,
        handling: signal.Handlers = signal.SIG_DFL,
    ) -> Server:
        folder = tmp_path / f"{name}-{len(servers)}"
        folder.mkdir()
        settings = folder / "settings"
        settings.write_text(text)
        module, *words = SERVERS[name]
        command = [
            sys.executable,
            "-m",
            module,
            "--listen",
            "127.0.0.1:0",
            "-c",
            str(settings),
            *words,
        ]
        log = folder / "log"
        environment = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
        environment["NOTIFY_SOCKET"] = str(tmp_path / "notify")
        with inherited(signal.SIGHUP, handling), log.open("w") as stderr:
            process = subprocess.Popen(
                [*command, *flags],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "ready" in line, log.read_text()
        standstill.watch(process.pid)
        servers.append(Server(process, line.split("listen=")[1].split()[0], log, settings))
        return servers[-1]

    with Manager(str(tmp_path / "notify")):
        yield start
        for server in servers:
            server.process.kill()
            server.process.wait()
            standstill.forget(server.process.pid)
            assert server.process.stdout is not None
            server.process.stdout.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "code", "fixed"),
    [("mqnamesrv", 319, "serverSocketBacklog"), ("mqbroker", 26, "syncFlushTimeout")],
)
def test_log_level_of_the_file_is_in_force_others_need_a_restart_and_a_broken_file_changes_nothing(
    name: str, code: int, fixed: str, start: Start
) -> None:
    server = start(name, f"logLevel=INFO\n{fixed}=100\n")
    assert "changed=nothing refused=nothing needs_restart=nothing" in server.reload()
    server.settings.write_text(f"logLevel=ERROR\n{fixed}=100\n")
    assert "changed=logLevel=ERROR refused=nothing needs_restart=nothing" in server.reload()
    server.settings.write_text(f"logLevel=DEBUG\n{fixed}=200\n")
    assert f"changed=logLevel=DEBUG refused=nothing needs_restart={fixed}" in server.reload()
    assert server.answers()
    with BlockingClient() as client:
        body = client.invoke(server.addr, RemotingCommand.request(code), timeout_s=10.0).body.decode()
    assert "logLevel=DEBUG" in body.splitlines()
    assert f"{fixed}=100" in body.splitlines()
    assert f"changed=nothing refused=nothing needs_restart={fixed}" in server.reload()
    for text, reason in (
        ("logLevel=LOUD\n", "logLevel=LOUD"),
        ("a=\\u12\n", "settings"),
        (None, "No such file"),
    ):
        if text is None:
            server.settings.unlink()
        else:
            server.settings.write_text(text)
        line = server.reload()
        assert "changed=nothing refused=settings: " in line
        assert reason in line
        assert " WARNING " in line
        assert server.answers()
    server.settings.write_text("logLevel=WARNING\n")
    server.signal()
    wait_until(lambda: server.answers(), "the server goes on")
    assert server.end() == 0


@pytest.mark.slow
@pytest.mark.one_core
def test_broker_follows_the_nameservers_of_its_file(start: Start) -> None:
    old, new = start("mqnamesrv"), start("mqnamesrv")
    broker = start("mqbroker", f"namesrvAddr={old.addr}\n", "--set", "registerNameServerPeriod=60000")
    registered = "broker registered"
    wait_until(lambda: registered in old.log.read_text(), "registered at its start")
    broker.settings.write_text(f"namesrvAddr={new.addr}\n")
    assert f"changed=namesrvAddr={new.addr} refused=nothing" in broker.reload()
    wait_soon(lambda: registered in new.log.read_text(), "registered with the new one", within_s=6.0)
    wait_soon(lambda: "reason=unregistered" in old.log.read_text(), "left the old one", within_s=6.0)
    assert broker.end() == 0


@pytest.mark.slow
def test_raft_certificate_is_read_again_at_once_and_a_broken_one_is_refused(
    start: Start, tmp_path: Path
) -> None:
    for name in ("member.pem", "member.key", "authority.pem"):
        shutil.copy(CERTS / name, tmp_path / name)
    files = {"cert": "member.pem", "key": "member.key", "ca": "authority.pem"}
    flags = [word for name, file in files.items() for word in (f"--raft-tls-{name}", str(tmp_path / file))]
    alone = ("--mode", "raft", "--raft", "127.0.0.1:0", "--peers", "127.0.0.1:0")
    server = start("mqnamesrv", "", *alone, *flags)
    os.utime(tmp_path / "member.pem", (1, 1))
    assert "changed=raft certificate refused=nothing" in server.reload()
    (tmp_path / "member.pem").write_text("no certificate")
    assert "changed=nothing refused=raft certificate: " in server.reload()
    assert server.end() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text", "flags"), [("mqnamesrv", "", ("--acl", "admin")), ("mqbroker", "aclEnable=true\n", ())]
)
def test_accounts_are_read_again_at_once_and_a_broken_or_cut_file_is_refused(
    name: str, text: str, flags: tuple[str, ...], start: Start, tmp_path: Path
) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text("accounts:\n- accessKey: operator\n  secretKey: 12345678\n  admin: true\n")
    server = start(name, text, "--acl-file", str(accounts), *flags)
    accounts.write_text("accounts:\n- accessKey: operators\n  secretKey: 12345678\n  admin: true\n")
    assert "changed=access file" in (line := server.reload()), line
    accounts.write_text("accounts:\n- acessKey: operator\n")
    assert "changed=nothing refused=access file" in (line := server.reload()), line
    assert "acessKey" in line
    whole = "accounts:\n- accessKey: operators\n  secretKey: 12345678\n  admin: true\n"
    for size, reason in (
        (0, "the file is empty"),
        (len(whole) - 1, "the last line has no newline"),
        (whole.index("  admin"), "only the beginning of the content in force"),
    ):
        accounts.write_text(whole[:size])
        assert "changed=nothing refused=access file" in (line := server.reload()), line
        assert reason in line
    accounts.write_text(whole)
    assert "changed=access file" in (line := server.reload()), line
    assert server.end() == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVERS)
def test_flag_wins_over_the_file_and_the_service_manager_hears_of_the_reload(
    name: str, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "notify").unlink(missing_ok=True)
    with Manager(str(tmp_path / "notify")) as manager:
        flag = "--logLevel" if name == "mqnamesrv" else "--log-level"
        server = start(name, "logLevel=INFO\n", flag, "INFO")
        server.settings.write_text("logLevel=DEBUG\n")
        manager.wait_for("READY=1\nSTATUS=")
        before_us = time.monotonic_ns() // 1000
        assert "changed=nothing refused=logLevel: INFO stays, a flag" in server.reload()
        begun = manager.wait_for("RELOADING=1\nMONOTONIC_USEC=")
        assert before_us <= int(begun.split("=")[2]) <= time.monotonic_ns() // 1000
        manager.wait_for("READY=1\n")
        assert server.end() == 0


def test_setting_is_changed_outvoted_or_needs_a_restart() -> None:
    found = compare_settings(
        former_file={"level": "a", "other": "x", "port": "1"},
        file={"level": "b", "other": "y", "port": "2", "same": " TRUE "},
        before={"level": "a", "other": "z", "port": "1", "same": "true"},
        after={"level": "b", "other": "z", "port": "2", "same": "true"},
        reloadable=("level", "other"),
    )
    assert found.changed == {"level": "b"}
    assert found.restart == ("port",)
    (refused,) = found.refused
    assert refused.startswith("other: z stays")
