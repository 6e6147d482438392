"""A broker that cannot use its store prints one line and ends with code 2, even while clients connect."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from routekeeper.remoting.addresses import split_address
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.message import decode_messages
from tests.ports import free_addresses

from .conftest import WAIT_S, StartBroker

pytestmark = [pytest.mark.slow]


@contextmanager
def connecting_all_the_time(addr: str) -> Iterator[None]:
    """Open up to 50 connections to an address, each with an unanswered request."""
    ending = threading.Event()
    made: list[socket.socket] = []

    def connect() -> None:
        while not ending.is_set() and len(made) < 50:
            try:
                made.append(socket.create_connection(split_address(addr), timeout=WAIT_S))
                made[-1].sendall(RemotingCommand.request(34).encode())
            except OSError:
                pass  # the broker does not listen yet, or does not listen any more

    thread = threading.Thread(target=connect)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
        for connection in made:
            connection.close()


def damage(store: Path) -> None:
    """Change a byte of the log's second message. Remove the checkpoints, so that the broker reads the log."""
    (log,) = (store / "commitlog").iterdir()
    data = bytearray(log.read_bytes())
    data[data.index(b"the second body")] ^= 1
    log.write_bytes(data)
    for name in ("checkpoint", "checkpoint.bak"):
        (store / name).unlink(missing_ok=True)


def test_damaged_store_is_one_line_and_2_while_clients_connect(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker()
    wire = broker.wire()
    for body in (b"the first body", b"the second body", b"the third body"):
        assert wire.send_message("T", body).code == 0
    assert broker.stop() == 0
    damage(broker.store)
    (addr,) = free_addresses(1)
    with connecting_all_the_time(addr):
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "routekeeper.broker",
                "--listen",
                addr,
                "--store",
                str(broker.store),
                "-n",
                "",
            ],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
    lines = [line for line in done.stderr.splitlines() if " INFO " not in line and " WARNING " not in line]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("mqbroker: ")
    assert "recoverDamagedLog=skip" in lines[0]
    assert done.returncode == 2
    skipping = start_broker("--set", "recoverDamagedLog=skip").wire()
    found = decode_messages(skipping.answer(skipping.pull("T", 0)).body)
    assert [message.body for message in found] == [b"the first body", b"the third body"]
    assert skipping.send_message("T", b"y").ext_fields["queueOffset"] == "3"
