"""Tests of changes that are proposed at the same time, and of changes during a change of the leader."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import uvloop

from routekeeper.nameserver.commands import Batch, Evict, Proposal, PutKv, encode_batch, encode_command
from routekeeper.nameserver.modes.interface import OUTCOME_UNKNOWN_TAG, Freshness
from routekeeper.nameserver.replicated import ANSWER_MARGIN_S
from routekeeper.nameserver.types import Answer, BrokerName, ConnectionId, LeaveReason
from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.steps import finish
from tests.nameserver.replicated.group import (
    BROKER,
    CONDITION_S,
    ONE,
    ask,
    group_of,
    put_kv,
    register,
)

NAMES, BROKERS_PER_NAME = 20, 3


def name_of(number: int) -> BrokerName:
    return BrokerName(f"broker-{number % NAMES}")


async def test_concurrent_changes_at_all_members_all_apply(tmp_path: Path) -> None:
    async with group_of(tmp_path) as group:
        # The changes of one broker name are applied one after the other, each with a round trip to the
        # leader. All of them must succeed in time.
        requests = [
            register(addr=f"10.0.1.{i}:1", broker_id=i // NAMES, topics=(f"T{i}",), brokerName=name_of(i))
            for i in range(NAMES * BROKERS_PER_NAME)
        ]
        answers = await asyncio.gather(
            *(ask(group.running[i % 3], request) for i, request in enumerate(requests))
        )
        assert [answer for answer in answers if answer.code != ResponseCode.SUCCESS] == []
        await group.equal()
        for member in group.running:
            for i in range(NAMES):
                name = member.view(Freshness.STALE).name(name_of(i))
                assert name is not None
                assert sorted(name.addrs) == list(range(BROKERS_PER_NAME))


@pytest.mark.slow
async def test_write_that_a_leader_appended_without_a_majority_has_an_unknown_outcome(tmp_path: Path) -> None:
    async with group_of(tmp_path) as group:
        leader = group.at(group.leader())
        await asyncio.gather(*(group.stop(number) for number in group.followers()))
        answer = await ask(leader, register())
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark is not None
        assert answer.remark.startswith(OUTCOME_UNKNOWN_TAG)
        assert leader.view(Freshness.STALE).topics() == []


def test_write_behind_one_whose_deadline_has_come_is_applied(tmp_path: Path) -> None:
    """A write must be applied even if the deadline of an earlier write has passed.

    The proposer sets a timer for a deadline. A timer of uvloop has no due time if its delay is below 0.5 ms.
    So the proposer must not read the due time from the timer.
    """

    async def body() -> None:
        async with group_of(tmp_path, size=1) as group:
            (member,) = group.running
            now = asyncio.get_running_loop().time()
            _, answer = await asyncio.gather(
                member.execute(put_kv("late", "v"), ONE, deadline=now + ANSWER_MARGIN_S),
                member.execute(put_kv("k", "v"), ONE, deadline=now + CONDITION_S),
            )
            assert answer.code == ResponseCode.SUCCESS

    uvloop.run(body())


async def test_write_in_flight_when_the_leader_stops_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Long, because elections may delay the writes.
    monkeypatch.setattr("routekeeper.nameserver.replicated.mode.WRITE_DEADLINE_S", CONDITION_S)
    async with group_of(tmp_path, raftElectionTimeoutMs="500") as group:
        leader = group.leader()
        follower = group.at(group.followers()[0])
        deadline = asyncio.get_running_loop().time() + CONDITION_S

        def put(prefix: str) -> list[asyncio.Future[Answer]]:
            requests = [put_kv(f"{prefix}{i}", "v") for i in range(50)]
            return [asyncio.ensure_future(follower.execute(r, ONE, deadline=deadline)) for r in requests]

        writes = put("k")
        await group.stop(leader)
        more = put("l")
        answers = await asyncio.gather(*writes, *more)
        assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
        await group.equal()
        values = follower.view(Freshness.STALE).kv("n")
        assert values is not None
        assert len(values) == 100


async def test_broken_side_effect_does_not_keep_the_rest_of_an_entry_from_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with group_of(tmp_path, size=1) as group:
        (member,) = group.running
        await ask(member, register())
        record = member.view(Freshness.STALE).record(BROKER)
        assert record is not None

        def fail(origin: ConnectionId) -> None:
            raise RuntimeError("no such connection")

        monkeypatch.setattr(group.effects[0], "close_connection", fail)
        evict = Evict(
            cluster_name=BROKER.cluster_name,
            broker_addr=BROKER.broker_addr,
            revision=record.revision,
            reason=LeaveReason.LEASE_EXPIRED,
        )
        put = PutKv(namespace="n", key="k", value="v", key_revision=record.revision)
        proposals = (
            Proposal(boot_id=7, sequence=1, command=encode_command(evict)),
            Proposal(boot_id=7, sequence=2, command=encode_command(put)),
        )
        payload = encode_batch(Batch(proposals=proposals))
        finish(member.apply(payload, index=member.status().applied_index + 1, term=1, live=True))
        assert member.view(Freshness.STALE).record(BROKER) is None
        assert member.view(Freshness.STALE).kv_value("n", "k") is not None
    assert "no such connection" in caplog.text
