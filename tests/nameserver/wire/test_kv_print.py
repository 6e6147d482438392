"""Tests of the log lines that list all KV values every ten minutes.

The lines have the same words as in RocketMQ.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from routekeeper.nameserver.commands import ImportKv
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.wire.kv_print import FIRST_S, PERIOD_S, kv_lines
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.waiting import wait_until

RAFT = ("--mode", "raft", "--raft", "127.0.0.1:0", "--peers", "127.0.0.1:0")
#: A program that starts a nameserver which prints its KV values every 0.3 s.
PROGRAM = """
import sys
from routekeeper.nameserver.__main__ import main
from routekeeper.nameserver.wire import kv_print
kv_print.FIRST_S = kv_print.PERIOD_S = 0.3
sys.exit(main())
"""


@contextlib.contextmanager
def hasty(folder: Path, *flags: str) -> Iterator[tuple[str, Path]]:
    """Run a nameserver that prints its KV values every 0.3 s; yield its address and its log file."""
    log = folder / "stderr.txt"
    command = [sys.executable, "-c", PROGRAM, "--listen", "127.0.0.1:0", "--http", "off", *flags]
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [*command, "--data", str(folder / "data")], stdout=subprocess.PIPE, stderr=stderr, text=True
        )
    try:
        assert process.stdout is not None
        found = re.search(r"listen=(\S+)", process.stdout.readline())
        assert found, log.read_text()
        yield found[1], log
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def put(client: BlockingClient, addr: str, namespace: str, key: str, value: str) -> bool:
    fields = {"namespace": namespace, "key": key, "value": value}
    return client.invoke(addr, RemotingCommand.request(100, fields)).code == 0


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.one_core
@pytest.mark.parametrize("mode", [(), RAFT], ids=["independent", "raft"])
def test_the_kv_configuration_is_printed_in_rocketmqs_words(tmp_path: Path, mode: tuple[str, ...]) -> None:
    with hasty(tmp_path, *mode) as (addr, log), BlockingClient() as client:
        wait_until(lambda: put(client, addr, "ORDER_TOPIC_CONFIG", "Orders", "a:4;b:4"), "it is put")
        assert put(client, addr, "platform", "db.password", "hunter2")
        assert put(client, addr, "platform", "long", "x" * 10_000)
        begin = "INFO routekeeper.nameserver.wire.kv_print "
        for line in (
            "-" * 56 + "\n",
            "configTable SIZE: 2\n",
            "configTable NS: ORDER_TOPIC_CONFIG Key: Orders Value: a:4;b:4\n",
            "configTable NS: platform Key: db.password Value: ***\n",
            f"configTable NS: platform Key: long Value: {'x' * 200}... (9800 more characters)\n",
        ):
            wait_until(lambda line=line: begin + line in log.read_text(), line)  # type: ignore[misc]
        assert "hunter2" not in log.read_text()
        printed = log.read_text().count("configTable SIZE: 2")
        wait_until(lambda: log.read_text().count("configTable SIZE: 2") > printed, "it is printed again")


def printed(table: dict[str, dict[str, str | None]]) -> list[str]:
    routes = RouteTable()
    routes.apply(ImportKv(table=table))
    return [str(message) % tuple(values) for message, *values in kv_lines(routes.view)]


def test_a_large_kv_configuration_is_printed_in_part_and_the_rest_counted() -> None:
    table: dict[str, dict[str, str | None]] = {"many": {f"key-{number}": "v" for number in range(45)}}
    table |= {f"space-{number}": {"key": "v"} for number in range(220)}
    lines = printed(table)
    assert lines[1] == "configTable SIZE: 221"
    assert len([line for line in lines if " Key: " in line]) == 200
    assert len([line for line in lines if "NS: many " in line]) == 40
    assert lines[-1] == "configTable: 65 more entries are not printed"


@pytest.mark.parametrize(
    ("namespace", "key", "shown"),
    [
        ("n", "k", "value"),
        ("n", "dbPassword", "***"),
        ("n", "ACCESS_KEY", "***"),
        ("n", "apiKey", "***"),
        ("n", "keyspace", "value"),
        ("secrets", "k", "***"),
        ("n", "auth.token", "***"),
    ],
)
def test_values_that_may_be_secrets_are_not_printed(namespace: str, key: str, shown: str) -> None:
    assert (
        printed({namespace: {key: "value"}})[-1] == f"configTable NS: {namespace} Key: {key} Value: {shown}"
    )


def test_it_is_printed_a_minute_after_the_start_and_every_ten_minutes() -> None:
    assert (FIRST_S, PERIOD_S) == (60.0, 600.0)
