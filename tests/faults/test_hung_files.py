"""A nameserver still serves and can end while the disk of its KV file or settings file hangs."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from routekeeper.nameserver.modes.kept_file import CLOSE_S
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import RequestTimeout
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.waiting import wait_until

from .altered import RUNS, altered
from .cluster import make_members

pytestmark = [pytest.mark.faults, pytest.mark.alone, pytest.mark.timeout(120)]

DRAIN_S = 1
#: A program in which each sync of the KV file or the settings file blocks for ever, as on a hung disk.
SYNCS_HANG = """
import os, pathlib, runpy, sys, threading

flag = pathlib.Path(sys.argv.pop(1), "hangs")
real = os.fdatasync


def sync(descriptor):
    name = os.readlink(f"/proc/self/fd/{descriptor}")
    if name.endswith(("kvConfig.json.tmp", "namesrv.properties.tmp")):
        with flag.open("a") as file:
            file.write("+")
        threading.Event().wait()
    real(descriptor)


os.fdatasync = sync
"""


def ends_in_time(process: subprocess.Popen[str], log: Path) -> None:
    asked_at = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0
    assert time.monotonic() - asked_at < DRAIN_S + CLOSE_S + 3.0
    assert f"the disk has not answered for {CLOSE_S:g} s" in log.read_text()


def put(key: str) -> RemotingCommand:
    return RemotingCommand.request(RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": key, "value": "v"})


def test_an_independent_nameserver_serves_and_ends_while_its_files_hang(tmp_path: Path) -> None:
    hangs, log, config = tmp_path / "hangs", tmp_path / "log", tmp_path / "namesrv.conf"
    config.write_text(f"shutdownWaitTimeSeconds={DRAIN_S}\n")
    with open(log, "w") as stderr:
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", SYNCS_HANG + RUNS, str(tmp_path), "-c", str(config)),
                *("--listen", "127.0.0.1:0", "--http", "off", "--data", str(tmp_path / "data")),
            ],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    try:
        assert process.stdout is not None
        addr = process.stdout.readline().split("listen=")[1].split()[0]
        with BlockingClient() as client, BlockingClient() as other:
            # The nameserver must not acknowledge the change, because the change is not on the disk.
            with pytest.raises(RequestTimeout):
                client.invoke(addr, put("k"), timeout_s=0.2)
            settings = RemotingCommand.request(
                RequestCode.UPDATE_NAMESRV_CONFIG, body=b"enableTopicList=true"
            )
            with pytest.raises(RequestTimeout):
                client.invoke(addr, settings, timeout_s=0.2)
            wait_until(lambda: hangs.exists() and hangs.read_text() == "++", "both files hang")
            listed = RemotingCommand.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
            assert other.invoke(addr, listed).code == 0
            ends_in_time(process, log)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_member_ends_while_its_kv_file_hangs(tmp_path: Path) -> None:
    """A hung KV file must not keep a member from ending, or from acknowledging a write that is in its log.

    The member writes the acknowledged values to the file after its next start.
    """
    member = make_members(tmp_path, size=1)[0]
    hanging = altered(member, SYNCS_HANG)
    try:
        hanging.start()
        wait_until(hanging.ready, "it leads itself")
        with BlockingClient() as client:
            assert client.invoke(member.listen, put("k")).code == 0, "the log has it"
            wait_until((tmp_path / "hangs").exists, "the export of the file hangs")
            assert client.invoke(member.listen, put("l")).code == 0
        assert hanging.process is not None
        ends_in_time(hanging.process, member.log_path)
        hanging.reap()
        assert not (member.data / "kvConfig.json").exists()
        member.start()
        wait_until(lambda: (member.data / "kvConfig.json").exists(), "what was acknowledged is exported")
    finally:
        for started in (hanging, member):
            if started.process is not None:
                started.kill()
                started.reap()
