"""Every member can read the commands that it acknowledged.

A member that cannot apply a command stops.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.registrations import registration

from .altered import altered
from .brokers import register
from .cluster import CONDITION_S, make_members, running

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

STOPPED = 70
"""Exit code of a member that cannot continue."""

SHORT_OF_MEMORY = """
import pathlib, runpy, sys
from routekeeper.nameserver.routes.table import RouteTable

flag = pathlib.Path(sys.argv.pop(1)) / "short-of-memory"
real = RouteTable.applying


def applying(table, command):
    if flag.exists() and "unlucky" in repr(command):
        raise MemoryError
    return real(table, command)


RouteTable.applying = applying
"""
SMALL_COMMANDS = """
import runpy, sys
from routekeeper.nameserver import commands

commands.INFLATED_BYTES_MAX = 1 << 20
del sys.argv[1]
"""


def test_what_a_group_of_one_acknowledges_it_reads_at_its_next_start(tmp_path: Path) -> None:
    """Check that the writer refuses each command that the reader would refuse.

    Repetitive text is small in the compressed log and large when a member reads it. So the writer and the
    reader both limit the compressed size and the decompressed size.
    """
    member = altered(make_members(tmp_path, size=1)[0], SMALL_COMMANDS)
    with running([member]) as cluster, BlockingClient() as client:
        register(client, member, registration("b", "127.0.0.1:10911", ("first",), counter=1))
        many = tuple(f"{'x' * 100}{number:05}" for number in range(12_000))
        large = registration("c", "127.0.0.1:10912", many, counter=1)
        answer = client.invoke(member.listen, large, timeout_s=30.0)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert re.search(
            r"takes 1[3-6]\d{5} bytes in the log, at most 1048576 are possible", answer.remark or ""
        )
        register(client, member, registration("b", "127.0.0.1:10911", ("first", "second"), counter=2))
        digest = cluster.wait_equal()
        cluster.stop()
        cluster.start()
        assert cluster.wait_equal() == digest
        member.wait_topics({"first", "second"})


def test_a_member_that_cannot_apply_an_entry_stops_and_loses_nothing(tmp_path: Path) -> None:
    first, *others = make_members(tmp_path)
    victim, other = altered(first, SHORT_OF_MEMORY), others[0]
    flag = tmp_path / "short-of-memory"
    with running([victim, *others]) as cluster, BlockingClient() as client:
        register(client, other, registration("b", "127.0.0.1:10911", ("first",), counter=1))
        cluster.wait_equal()
        flag.touch()
        register(client, other, registration("b", "127.0.0.1:10911", ("first", "unlucky"), counter=2))
        assert victim.process is not None
        assert victim.process.wait(CONDITION_S) == STOPPED
        assert "was not applied: MemoryError" in victim.log()
        victim.reap()
        topics = ("first", "unlucky", "third")
        register(client, other, registration("b", "127.0.0.1:10911", topics, counter=3))
        flag.unlink()
        victim.start()
        cluster.wait_ready()
        cluster.wait_equal()
        victim.wait_topics(set(topics))
