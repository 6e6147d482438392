"""Tests of the freshness of reads and watches, and of reads that a member refuses."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from routekeeper.nameserver.modes.interface import Freshness, FreshnessNotOffered, NoQuorum
from routekeeper.nameserver.raft.types import RaftConfig
from routekeeper.nameserver.replicated import ANSWER_MARGIN_S, Replicated, reader
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.nameserver.types import Request
from routekeeper.remoting.codes import RequestCode, ResponseCode
from tests.nameserver.replicated.group import (
    CONDITION_S,
    RecordedEffects,
    ask,
    group_of,
    register,
    route,
    run,
    timed,
)
from tests.waiting import until

ALONE, OTHER = "127.0.0.1:1", "127.0.0.1:2"


@pytest.mark.slow
def test_losing_and_finding_a_majority_is_one_line_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with group_of(tmp_path) as group:
            one, other = group.followers()
            survivor = group.at(group.leader())
            for number in (one, other):
                await group.stop(number)
            caplog.clear()
            await until(lambda: not survivor.status().reads_ready, "contact is lost")
            await until(lambda: said(caplog, "contact lost") == 1, "it is said")
            await group.start(one)
            await until(lambda: survivor.status().reads_ready, "contact is found")
            await until(lambda: said(caplog, "contact found") == 2, "both say so")
            assert said(caplog, "contact lost") == 1

    with caplog.at_level(logging.INFO, "routekeeper.nameserver.replicated"):
        run(body)


def said(caplog: pytest.LogCaptureFixture, event: str) -> int:
    return sum(record.getMessage().startswith(event) for record in caplog.records)


@pytest.mark.slow
async def test_default_read_waits_for_contact_at_most_one_longest_election(tmp_path: Path) -> None:
    async with group_of(tmp_path, started=1, raftElectionTimeoutMs="500") as group:
        member = group.running[0]
        async with timed() as elapsed:
            answer = await ask(member, route())
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert 0.5 < elapsed() < 2.0, "about twice the least election timeout"
        assert group.addresses[1] in member.status().waiting_for
        waiting = asyncio.ensure_future(ask(member, register(), within=CONDITION_S))
        await group.start(1)
        await group.start(2)
        assert (await waiting).code == ResponseCode.SUCCESS, "a write waits for the group to form"


async def test_linearizable_reads_are_not_offered(tmp_path: Path) -> None:
    async with group_of(tmp_path, size=1) as group:
        with pytest.raises(FreshnessNotOffered):
            group.running[0].view(Freshness.LINEARIZABLE)


async def test_a_leader_that_nobody_stands_by_lets_no_linearizable_read_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with group_of(tmp_path) as group:
        leader = group.at(group.leader())
        loop = asyncio.get_running_loop()
        await leader.await_view(Freshness.LINEARIZABLE, deadline=loop.time() + CONDITION_S)
        # Lose only the messages about read barriers. The raft engine's messages still arrive, so the leader
        # stays in contact.
        monkeypatch.setattr(leader.member, "send", lambda member, message: True)
        with pytest.raises(NoQuorum):
            await leader.await_view(Freshness.LINEARIZABLE, deadline=loop.time() + 0.3)
        monkeypatch.undo()
        await leader.await_view(
            Freshness.LINEARIZABLE, deadline=loop.time() + CONDITION_S
        )  # succeeds, because the leader asks its followers again


async def test_a_follower_whose_barrier_is_lost_with_its_leader_asks_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with group_of(tmp_path) as group:
        follower, old = group.at(group.followers()[0]), group.leader()
        monkeypatch.setattr(follower.member, "send", lambda member, message: True)
        deadline = asyncio.get_running_loop().time() + CONDITION_S
        waiting = asyncio.create_task(follower.await_view(Freshness.LINEARIZABLE, deadline=deadline))
        await until(lambda: follower.raft_status().barriers == 1, "the barrier is sent")
        monkeypatch.undo()
        await group.stop(old)
        await waiting
        assert follower.member.leader != group.addresses[old]
        assert follower.raft_status().barriers != 1


@pytest.mark.slow
async def test_watcher_of_a_topic_is_woken_by_its_change_only(tmp_path: Path) -> None:
    async with group_of(tmp_path) as group:
        await group.everywhere(register())
        await group.equal()
        member = group.at(group.followers()[0])
        now = asyncio.get_running_loop().time()
        view = member.view(Freshness.STALE)
        before = {topic: view.topic_revision(topic) for topic in ("T", "U")}
        both = [
            asyncio.ensure_future(member.changed(topic, before[topic], deadline=now + seconds))
            for topic, seconds in (("T", CONDITION_S), ("U", 1.0))
        ]
        await asyncio.sleep(0)
        delete = Request(code=RequestCode.DELETE_TOPIC_IN_NAMESRV, ext_fields={"topic": "T"})
        await ask(group.at(group.leader()), delete)
        changed, unchanged = await asyncio.gather(*both)
        assert changed > before["T"]
        assert unchanged == before["U"]


async def test_every_read_without_a_leader_is_refused_also_after_others_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a leader, each read is refused at its own deadline.

    All reads wait for the same barrier, which is never sent.
    """
    monkeypatch.setattr(reader, "WRITE_DEADLINE_S", ANSWER_MARGIN_S + 0.02)
    settings = LiveSettings(NamesrvSettings(data_dir=str(tmp_path)))
    raft = RaftConfig(me=ALONE, peers=(ALONE, OTHER), listen=None, data_dir=tmp_path)
    effects = RecordedEffects()
    member = Replicated(settings, effects, boot_id=1, raft=raft)
    refused: asyncio.Queue[int] = asyncio.Queue()

    def told(number: int, error: NoQuorum | None) -> None:
        assert error is not None
        refused.put_nowait(number)

    for _ in range(3):
        assert member.join_barrier(told) == 1
        assert member.join_barrier(told) == 1
        assert await asyncio.wait_for(refused.get(), CONDITION_S) == 1
    assert refused.empty()  # the callback must not be called a second time
    await member.close()
    assert effects == RecordedEffects(), "nothing is applied here"
