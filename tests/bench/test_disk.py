"""Servers count the bytes and syncs of their files themselves, and the benchmark reads these figures."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from routekeeper.bench.arms.servers import Nameservers, StartedServers, wait_until
from routekeeper.bench.disk import Written, bytes_of_zookeeper, end_of_log, figures, sectors_written
from routekeeper.bench.network import ProxyNetwork
from routekeeper.bench.timers import Timers
from routekeeper.client.blocking import Client
from routekeeper.client.config import ClientConfig

ENTRIES: Final = 20
SIZE: Final = 500


def log_of(*sizes: int) -> bytes:
    """Return a ZooKeeper transaction log with entries of these sizes and preallocated zeros after them."""
    entries = b"".join(struct.pack(">qi", 7, size) + bytes(size) + b"B" for size in sizes)
    return b"ZKLG" + bytes(12) + entries + bytes(4096)


def test_log_ends_behind_its_last_entry_and_not_where_its_file_does(tmp_path: Path) -> None:
    assert end_of_log(log_of()) == 16
    assert end_of_log(log_of(100, 50)) == 16 + 113 + 63
    assert end_of_log(log_of(100)[:100]) == 16, "an entry that is being written is none yet"
    assert end_of_log(b"") == 0
    (tmp_path / "version-2").mkdir()
    (tmp_path / "version-2" / "log.1").write_bytes(log_of(100))
    (tmp_path / "version-2" / "log.2").write_bytes(b"")
    (tmp_path / "version-2" / "snapshot.0").write_bytes(bytes(30))
    assert bytes_of_zookeeper(tmp_path) == 16 + 113 + 30


def test_figures_are_read_from_both_kinds_of_servers() -> None:
    said = ["zk_cnt_fsynctime\t12", "# TYPE x gauge", "x 3.5", 'y{code="1"} 4', "zk_version\t3.9.3, built"]
    assert figures(said) == {"zk_cnt_fsynctime": 12.0, "x": 3.5, 'y{code="1"}': 4.0}


def test_device_counts_sectors_or_says_that_nobody_does(tmp_path: Path) -> None:
    before = sectors_written(tmp_path)
    if before is None:
        pytest.skip("the device of this folder counts nothing")
    assert (sectors_written(tmp_path) or 0) >= before


@pytest.mark.bench
@pytest.mark.slow
@pytest.mark.one_core
def test_t3_each_server_counts_what_it_wrote_and_its_syncs(tmp_path: Path) -> None:
    """Check the figures that our servers report. test_zookeeper_design.py checks ZooKeeper's figures."""
    # A long election timeout: a busy machine may delay the leader's heartbeats, which must cause no election.
    timers = Timers(divisor=60.0, election_timeout_ms=3000)
    network = ProxyNetwork(tmp_path, lambda sample: None)
    servers = Nameservers(
        "raft", tmp_path, timers, lambda sample: None, count=3, durability="fsync", network=network
    )

    def write() -> None:
        with Client(ClientConfig(nameservers=(servers.clients[0],))) as client:
            for number in range(ENTRIES):
                client.run(client.admin.kv_put("bench", f"key-{number}", "x" * SIZE))

    processes = [*network.carriers(), *servers.processes]
    try:
        for process in processes:
            process.launch()
        wait_until(servers.ready, "servers are not ready", servers.processes, 100)
        check_counts(servers, write)
    finally:
        for process in processes:
            process.kill()


def check_counts(servers: StartedServers, write: Callable[[], None]) -> None:
    """Check that each server's own figures of written bytes and syncs fit the entries that ``write`` writes.

    The kernel's figures would be too high. For an entry of 500 bytes, the kernel counted 257 KiB.
    """
    before = [said(servers, index) for index in range(3)]
    write()
    for index, was in enumerate(before):
        wait_until(partial(grew, servers, index, was), "entries are missing", [])


def said(servers: StartedServers, index: int) -> Written:
    """Ask a server for the numbers of its written bytes and syncs, until the server answers."""
    found: list[Written] = []

    def answered() -> bool:
        if (written := servers.written(index)) is not None:
            found.append(written)
        return bool(found)

    wait_until(answered, f"server {index} does not say what it has written", [])
    return found[0]


def grew(servers: StartedServers, index: int, was: Written) -> bool:
    """Return True if a server has written all entries since it reported the numbers in `was`.

    Fail if the server has written more than three times the size of the entries.
    """
    now = said(servers, index)
    size, syncs = now.written_bytes - was.written_bytes, now.syncs - was.syncs
    assert size < 3 * ENTRIES * SIZE
    return size >= ENTRIES * SIZE and 1 <= syncs <= 3 * ENTRIES
