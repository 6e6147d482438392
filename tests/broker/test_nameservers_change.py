"""If a running broker's list of nameservers changes, the broker registers with the new nameservers.

It also unregisters from nameservers that are no longer in the list.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil
import pytest

from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.lenient import loads
from routekeeper.remoting.transport.blocking import BlockingClient
from tests import standstill
from tests.broker.conftest import Started, StartIn
from tests.ports import free_addresses, free_ports
from tests.standstill import wait_soon
from tests.waiting import WITHIN_S, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.one_core]

#: Limit in s for a change to take effect. Periodic registrations would be later: 10 s after the start, and
#: then every minute.
AT_ONCE_S: Final = 6.0
PERIOD: Final = ("--set", "registerNameServerPeriod=60000")


def nameserver_in(start_in: StartIn, folder: Path, listen: str = "127.0.0.1:0") -> Started:
    return start_in(folder, "routekeeper.nameserver", "--http", "off", "--listen", listen)


def names_at(addr: str) -> set[str]:
    """Return the names of the brokers that a nameserver lists."""
    with BlockingClient() as client:
        answer = client.invoke(addr, RemotingCommand.request(106), timeout_s=WITHIN_S)
    table = loads(answer.body)
    assert isinstance(table, dict)
    found = table.get("brokerAddrTable")
    return set(found) if isinstance(found, dict) else set()


def listed_at(addr: str, name: str = "broker-a") -> Callable[[], bool]:
    return lambda: name in names_at(addr)


def missing_at(addr: str, name: str = "broker-a") -> Callable[[], bool]:
    return lambda: name not in names_at(addr)


def connected(broker: Started, addr: str) -> bool:
    port = int(addr.rpartition(":")[2])
    found = psutil.Process(broker.process.pid).net_connections("tcp")
    return any(each.raddr and each.raddr.port == port for each in found)


def mqadmin(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "routekeeper.client.mqadmin", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def change(broker: Started, value: str, key: str = "namesrvAddr") -> None:
    done = mqadmin("updateBrokerConfig", "-b", broker.addr, "-k", key, "-v", value)
    assert done.returncode == 0, done.stdout + done.stderr


def change_at_once(broker: Started, value: str) -> None:
    """Change the nameservers by mqadmin's request, but without the slow start of an mqadmin process."""
    with BlockingClient() as client:
        request = RemotingCommand.request(25, body=f"namesrvAddr={value}".encode())
        assert client.invoke(broker.addr, request, timeout_s=WITHIN_S).code == 0


def test_update_registers_with_the_new_nameserver_and_leaves_the_old_one(
    start_in: StartIn, tmp_path: Path
) -> None:
    old, kept, new = (nameserver_in(start_in, tmp_path / name) for name in ("old", "kept", "new"))
    file = tmp_path / "broker.properties"
    file.write_text(f"namesrvAddr={old.addr};{kept.addr}\nbrokerName=broker-a\n")
    words = ("-c", str(file), "--store", str(tmp_path / "store"), *PERIOD)
    broker = start_in(tmp_path, "routekeeper.broker", *words)
    for each in (old, kept):
        wait_until(listed_at(each.addr), "the broker registered at its start")
    change(broker, f"{kept.addr};{new.addr}")
    wait_soon(listed_at(new.addr), "registered with the new nameserver", within_s=AT_ONCE_S)
    wait_soon(missing_at(old.addr), "unregistered from the old nameserver", within_s=AT_ONCE_S)
    assert listed_at(kept.addr)()
    assert "reason=unregistered" in old.log.read_text()
    wait_until(lambda: not connected(broker, old.addr), "closed the connection to the old nameserver")
    assert broker.stop() == 0
    wait_until(missing_at(new.addr), "said goodbye to the new nameserver")
    again = start_in(tmp_path, "routekeeper.broker", *words)
    wait_until(listed_at(new.addr), "the change outlives a restart")
    assert missing_at(old.addr)()
    assert again.stop() == 0


def test_nameservers_that_do_not_answer_hold_up_no_change(start_in: StartIn, tmp_path: Path) -> None:
    old, new = (nameserver_in(start_in, tmp_path / name) for name in ("old", "new"))
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as mute:
        quiet = [f"127.0.0.1:{each.getsockname()[1]}" for each in (silent, mute)]
        file = tmp_path / "broker.properties"
        file.write_text(f"namesrvAddr={quiet[0]};{old.addr}\n")
        words = ("-c", str(file), "--name", "broker-a", "--store", str(tmp_path / "store"), *PERIOD)
        broker = start_in(tmp_path, "routekeeper.broker", *words)
        wait_until(listed_at(old.addr), "the broker registered at its start")
        began = time.monotonic()
        for value in (
            f"{quiet[1]};{new.addr}",
            new.addr,
            f"{quiet[1]};{new.addr};{old.addr}",
            f"{quiet[1]};{new.addr}",
        ):
            change_at_once(broker, value)
        wait_soon(listed_at(new.addr), "registered with the new nameserver", within_s=AT_ONCE_S)
        wait_soon(missing_at(old.addr), "unregistered from the old nameserver", within_s=AT_ONCE_S)
        assert standstill.elapsed(began) < 10
        assert broker.stop() == 0


def test_broker_without_a_nameserver_registers_with_its_first_one(start_in: StartIn, tmp_path: Path) -> None:
    first = nameserver_in(start_in, tmp_path / "first")
    words = ("--name", "broker-a", "--store", str(tmp_path / "store"), *PERIOD)
    broker = start_in(tmp_path, "routekeeper.broker", *words)
    change(broker, first.addr)
    wait_soon(listed_at(first.addr), "registered with its first nameserver", within_s=AT_ONCE_S)
    assert broker.stop() == 0


def test_leaving_one_member_of_a_raft_group_takes_the_broker_from_no_answer(
    start_in: StartIn, tmp_path: Path
) -> None:
    raft = free_addresses(3)
    members = [
        start_in(
            *(tmp_path / str(number), "routekeeper.nameserver", "--http", "off", "--mode", "raft"),
            *("--raft", address, "--peers", ",".join(raft), "--data", "data"),
        )
        for number, address in enumerate(raft)
    ]
    addrs = [member.addr for member in members]
    words = ("-n", ";".join(addrs), "--name", "broker-a", "--store", str(tmp_path / "store"))
    broker = start_in(tmp_path, "routekeeper.broker", *words, "--set", "timerDivisor=10")
    for addr in addrs:
        wait_until(listed_at(addr), "the group lists the broker")
    change(broker, ";".join(addrs[1:]))
    left = "connection closed to former nameserver"
    deadline = time.monotonic() + WITHIN_S
    while left not in broker.log.read_text():
        assert time.monotonic() < deadline, broker.log.read_text()
        for addr in addrs[1:]:
            assert listed_at(addr)()
    for _ in range(20):
        for addr in addrs:
            assert listed_at(addr)()
    assert "broker left" not in "".join(member.log.read_text() for member in members)
    assert broker.stop() == 0


def test_same_nameserver_under_another_name_goes_on_listing_the_broker(
    start_in: StartIn, tmp_path: Path
) -> None:
    one = nameserver_in(start_in, tmp_path / "one")
    port = one.addr.rpartition(":")[2]
    words = ("-n", one.addr, "--name", "broker-a", "--store", str(tmp_path / "store"), *PERIOD)
    broker = start_in(tmp_path, "routekeeper.broker", *words)
    wait_until(listed_at(one.addr), "the broker registered at its start")
    change(broker, f"localhost:{port}")
    wait_until(
        lambda: "connection closed to former nameserver" in broker.log.read_text(),
        "the former address is left",
    )
    assert listed_at(one.addr)()
    assert "broker left" not in one.log.read_text()
    assert broker.stop() == 0


def test_update_with_a_bad_address_changes_nothing(start_in: StartIn, tmp_path: Path) -> None:
    old = nameserver_in(start_in, tmp_path / "old")
    words = ("-n", old.addr, "--name", "broker-a", "--store", str(tmp_path / "store"))
    broker = start_in(tmp_path, "routekeeper.broker", *words)
    wait_until(listed_at(old.addr), "the broker registered at its start")
    many = ";".join(f"127.0.0.1:{port}" for port in range(1, 66))
    for value, reason in (("nowhere", "is not host:port"), (many, "65 addresses, allowed are 64")):
        done = mqadmin("updateBrokerConfig", "-b", broker.addr, "-k", "namesrvAddr", "-v", value)
        assert reason in done.stdout + done.stderr
    assert listed_at(old.addr)()
    assert broker.stop() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="a hosts file of its own needs root")
def test_addresses_of_a_name_are_looked_up_again(start_in: StartIn, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    old, new = (
        nameserver_in(start_in, tmp_path / host, f"{host}:{port}") for host in ("127.0.0.2", "127.0.0.3")
    )
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.2 namesrv.test\n")
    settings = {"fetchNameSrvAddrByDnsLookup": "true", "updateNameServerAddrPeriod": "1000"}
    flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    program = f"mount --bind {hosts} /etc/hosts && exec {sys.executable} -m routekeeper.broker"
    words = ("--listen", "127.0.0.1:0", "-n", f"namesrv.test:{port}", "--name", "broker-a", *flags, *PERIOD)
    words += ("--store", str(tmp_path / "store"))
    log = tmp_path / "broker.log"
    with log.open("w") as stderr:
        broker = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", f'{program} "$@"', "sh", *words],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    assert broker.stdout is not None
    try:
        assert "ready" in broker.stdout.readline(), log.read_text()
        wait_until(listed_at(old.addr), "registered with the address that the name has")
        hosts.write_text("")  # now the look-up of the name fails, and the broker must keep its nameservers
        wait_until(lambda: "look-up failed" in log.read_text(), "a look-up failed")
        assert listed_at(old.addr)()
        hosts.write_text("127.0.0.3 namesrv.test\n")
        wait_soon(
            listed_at(new.addr), "registered with the address that the name has now", within_s=AT_ONCE_S
        )
        wait_soon(missing_at(old.addr), "unregistered from the address that the name had", within_s=AT_ONCE_S)
    finally:
        broker.terminate()
        broker.stdout.close()
        assert broker.wait(60) == 0
