"""Nameservers and brokers that tests of the benchmark run as real processes on free ports."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from routekeeper.bench.arms.servers import wait_until
from routekeeper.bench.processes import Process
from routekeeper.client.blocking import Client
from routekeeper.client.config import ClientConfig
from routekeeper.remoting.errors import ResponseError
from tests.ports import free_addresses


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Addresses (``host:port``) of running servers. ``http`` has the nameservers' HTTP addresses."""

    nameservers: list[str]
    http: list[str]
    brokers: list[str]


@contextlib.contextmanager
def running(
    folder: Path,
    *,
    mode: str = "independent",
    brokers: tuple[str, ...] = ("broker-a",),
    nameservers: int = 1,
    wire: list[str] | None = None,
) -> Iterator[Cluster]:
    """Run nameservers, and brokers with these names, until the ``with`` block ends.

    Args:
        wire: ``host:port`` of each nameserver. None means free ports of this machine.
    """
    http, raft = free_addresses(nameservers), free_addresses(nameservers)
    wire = wire or free_addresses(nameservers)
    started: list[Process] = []

    def start(role: str, index: int, *command: str) -> None:
        process = Process(
            role="nameserver" if role == "nameserver" else "broker",
            index=index,
            command=[sys.executable, "-m", f"routekeeper.{role}", *command],
            log=folder / f"{role}-{index}.log",
        )
        started.append(process)
        process.launch()

    try:
        for index in range(nameservers):
            command = ["--mode", mode, "--listen", wire[index], "--http", http[index]]
            command += ["--data", str(folder / f"nameserver-{index}")]
            if mode == "raft":
                command += ["--raft", raft[index], "--peers", ",".join(raft)]
            start("nameserver", index, *command)
        for process in started:
            process.wait_ready()
        addrs = free_addresses(len(brokers))
        for index, (name, addr) in enumerate(zip(brokers, addrs, strict=True)):
            store = str(folder / name)
            start("broker", index, "-n", ";".join(wire), "--listen", addr, "--name", name, "--store", store)
        for process in started[nameservers:]:
            process.wait_ready()
        for addr in wire:
            wait_until(lambda addr=addr: listed(addr) == set(brokers), "brokers are not listed", started)  # type: ignore[misc]
        yield Cluster(nameservers=wire, http=http, brokers=addrs)
        for process in started:
            assert process.died() is None, process.log_tail()
    finally:
        for process in reversed(started):
            process.kill()


def listed(nameserver: str) -> set[str]:
    """Return the names of the brokers that a nameserver lists, or an empty set if it cannot answer yet."""
    client = Client(ClientConfig(nameservers=(nameserver,)))
    try:
        return set(client.run(client.admin.cluster_info()).broker_addr_table)
    except ResponseError:  # the raft group has no leader yet
        return set()
    finally:
        client.close()
