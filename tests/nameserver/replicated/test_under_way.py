"""Tests of reads while a member applies such a large entry that it loses contact with the majority."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from routekeeper.nameserver.commands import Command, PutKv, RegisterBroker, TopicQueues, WipeWritePerm
from routekeeper.nameserver.modes.interface import Freshness, NoQuorum
from routekeeper.nameserver.replicated import Replicated
from routekeeper.nameserver.replicated.under_way import PREPARED_FROM, EntryUnderWay
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.routes.view import RouteView
from routekeeper.nameserver.types import Answer, BrokerAddr, BrokerName, ClusterName, ConnectionId
from routekeeper.remoting.route import DataVersion
from routekeeper.remoting.steps import STEP, finish
from tests.nameserver.modes.test_storms import registration, rounds_until
from tests.nameserver.replicated.group import group_of, register, route
from tests.waiting import until

pytestmark = pytest.mark.slow

BROKER, STRANGER = ConnectionId(1), ConnectionId(2)


@asynccontextmanager
async def within_a_large_entry(tmp_path: Path) -> AsyncIterator[Replicated]:
    """Yield a member that has applied only a part of a large registration, and has lost contact."""
    async with group_of(tmp_path, size=1, raftElectionTimeoutMs="500") as group:
        member, loop = group.at(0), asyncio.get_running_loop()
        answers: list[Answer] = []
        member.register(register(), BROKER, deadline=loop.time() + 60.0, answered=answers.append)
        await until(lambda: len(answers) == 1, "it is answered")
        large = registration(7, 40_000)
        member.register(large, STRANGER, deadline=loop.time() + 60.0, answered=answers.append)
        await rounds_until(lambda: member.member.within_entry)
        stand_still(member.member.contact_limit)
        yield member
        await until(lambda: len(answers) == 2, "the entry is applied in the end")


def stand_still(seconds: float) -> None:
    """Block the event loop, so that contact is lost and the entry makes no progress."""
    time.sleep(seconds)


async def read(member: Replicated, topic: str | None) -> RouteView:
    """Read, and repeat the read if it is refused.

    On a busy machine, the member may need longer for the entry than a read waits.
    """
    async with asyncio.timeout(60.0):
        while True:
            deadline = asyncio.get_running_loop().time() + 30.0
            try:
                return await member.await_view(Freshness.DEFAULT, deadline=deadline, topic=topic)
            except NoQuorum:
                assert member.member.within_entry


async def test_topic_that_the_entry_does_not_name_is_read_at_once(tmp_path: Path) -> None:
    async with within_a_large_entry(tmp_path) as member:
        with pytest.raises(NoQuorum):
            member.view(Freshness.DEFAULT)
        view = await read(member, "T")
        assert member.member.within_entry, "nobody waited for its end"
        assert view.route("T") is not None
        deadline = asyncio.get_running_loop().time() + 30.0
        answer = await member.execute(route("T"), BROKER, deadline=deadline)
        assert member.member.within_entry
        assert answer.body


@pytest.mark.parametrize("topic", ["orders-0039999", None])
async def test_reads_that_the_entry_may_concern_wait_for_its_end(tmp_path: Path, topic: str | None) -> None:
    async with within_a_large_entry(tmp_path) as member:
        view = await read(member, topic)
        assert not member.member.within_entry
        assert view.route("orders-0039999") is not None


def test_entry_may_change_routes_of_its_topics_and_of_its_broker_names() -> None:
    table = RouteTable()
    finish(table.applying(large_command("broker-a", "T", "U")))
    entry = EntryUnderWay([large_command("broker-b", "U", "V")], table)
    assert not entry.may_change("T")
    assert entry.may_change("U")
    assert entry.may_change("V")
    assert not entry.may_change("W")
    assert EntryUnderWay([large_command("broker-a", "V")], table).may_change("T"), (
        "its addresses may be others"
    )


def test_topics_of_a_large_entry_are_collected_in_steps_and_reads_wait_meanwhile() -> None:
    table = RouteTable()
    finish(table.applying(large_command("broker-a", "T", "U")))
    many = [f"orders-{number}" for number in range(PREPARED_FROM)]
    entry = EntryUnderWay([large_command("broker-b", "U", *many)], table)
    prepared = entry.prepare()
    steps = 0
    for _ in prepared:
        steps += 1
        assert entry.may_change("T"), "it is not known yet"
    assert steps > PREPARED_FROM / STEP
    assert not entry.may_change("T")
    assert entry.may_change("U")
    assert entry.may_change(many[-1])


@pytest.mark.parametrize(
    "command",
    [
        WipeWritePerm(broker_name=BrokerName("broker-b"), name_revision=0),
        PutKv(namespace="ORDER_TOPIC_CONFIG", key="T", value="broker-a:8", key_revision=0),
    ],
)
def test_entries_of_other_kinds_may_change_all_routes(command: Command) -> None:
    assert EntryUnderWay([command], RouteTable()).may_change("T")


def test_broker_that_takes_another_name_may_change_all_routes() -> None:
    table = RouteTable()
    finish(table.applying(large_command("broker-a", "T")))
    moved = replace(large_command("broker-b", "V"), broker_addr=BrokerAddr("broker-a:10911"))
    assert EntryUnderWay([moved], table).may_change("T")


def large_command(name: str, *topics: str) -> RegisterBroker:
    return RegisterBroker(
        cluster_name=ClusterName("c"),
        broker_name=BrokerName(name),
        broker_addr=BrokerAddr(f"{name}:10911"),
        broker_id=0,
        ha_server_addr="",
        data_version=DataVersion(counter=1),
        topics=tuple(TopicQueues(topic, 8, 8, 6, 0) for topic in topics),
        incremental=False,
        filter_servers=None,
        mappings=(),
        lease_ms=120_000,
        enable_acting_master=None,
        zone_name=None,
        delete_absent=False,
        record_revision=0,
        name_revision=0,
    )
