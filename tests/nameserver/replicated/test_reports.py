"""Tests of a leader that decides from all members' reports whether a broker has closed its connections."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from routekeeper.nameserver.modes.interface import Freshness
from routekeeper.nameserver.raft.consensus.messages import encode
from routekeeper.nameserver.replicated import Replicated, peer_messages
from routekeeper.nameserver.types import ConnectionId, LeaveReason
from routekeeper.remoting.codes import ResponseCode
from tests.nameserver.replicated.group import (
    BROKER,
    ONE,
    TWO,
    Group,
    ask,
    codes,
    group_of,
    register,
    unregister,
)
from tests.waiting import until


@pytest.mark.slow
async def test_what_a_process_reads_after_standing_still_is_heard_now(tmp_path: Path) -> None:
    """A process that was stopped must use the present time for heartbeats that it reads when it continues.

    The process may read the heartbeats before a timer advances the clock by which it measures leases.
    """
    async with group_of(tmp_path, size=1) as group:
        member = group.running[0]
        await ask(member, register())
        time.sleep(0.9)  # noqa: ASYNC251 - as SIGSTOP does: no timer fires meanwhile
        member.reports.note_heartbeat(BROKER, ONE)
        contact = member.liveness.contact(BROKER)
        assert contact is not None
        member.reports.tick()
        assert member.liveness.clock - contact.heard_at < 0.5


async def register_two(group: Group) -> None:
    """Register two brokers, each over its own connection with every member."""
    await group.everywhere(register())
    await group.everywhere(register(addr="10.0.0.2:10911", broker_id=1), TWO)


async def only_the_other_goes(group: Group) -> None:
    """Close the second broker's connections, and check that the leader evicts only this broker.

    The leader decides about both brokers at once. So when the second broker is gone, the leader has already
    decided that the first broker stays.
    """
    for member in group.running:
        member.closed(TWO, by_us=False)
    await until(lambda: all(len(m.view(Freshness.STALE).records()) == 1 for m in group.running), "one left")
    assert all(member.view(Freshness.STALE).record(BROKER) is not None for member in group.running)


@contextlib.asynccontextmanager
async def group_with_a_report_missing(
    root: Path, monkeypatch: pytest.MonkeyPatch, *, came_back: bool
) -> AsyncIterator[tuple[Group, Replicated]]:
    """Yield a group and its leader, which gets no reports from one follower.

    The follower reported that its connection with the first broker is closed. Then it got a new link to the
    leader, over which its reports are lost. By now, the other members have reported a closed connection, too.
    If the test undoes ``monkeypatch``, the follower's reports arrive again.

    Args:
        came_back: True if the broker has connected to the follower again. The leader does not know this.
    """
    async with group_of(root) as group:
        await register_two(group)
        await group.equal()
        addresses = dict(zip(group.members, group.addresses, strict=True))
        leader, (one, other) = group.at(group.leader()), (group.at(n) for n in group.followers())

        def knows_close(member: Replicated) -> bool:
            evidence = leader.leader.failure_detector
            assert evidence is not None
            return not evidence.members[addresses[member]].contacts[BROKER].connected

        one.closed(ONE, by_us=False)
        await until(lambda: knows_close(one), "the leader knows that it is closed there")
        reporter, version = one.reports.reporter, one.liveness.version
        await until(lambda: reporter.base == version, "the follower knows that the leader knows")
        send = one.member.send

        def lost(member: str, message: bytes) -> bool:
            return isinstance(peer_messages.decode(message), peer_messages.Report) or send(member, message)

        monkeypatch.setattr(one.member, "send", lost)
        if came_back:
            one.reports.note_registration(BROKER, ConnectionId(3), lease_s=120.0)
        before = leader.member.link_number(addresses[one])
        one.member.transport.drop(addresses[leader])
        await until(lambda: leader.member.link_number(addresses[one]) > before, "linked anew")
        for member in (leader, other):
            member.closed(ONE, by_us=False)
        await until(lambda: knows_close(other), "the leader knows that it is closed there, too")
        yield group, leader


async def test_report_that_is_lost_with_a_link_is_missing_until_it_comes_over_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with group_with_a_report_missing(tmp_path, monkeypatch, came_back=True) as (group, _):
        monkeypatch.undo()
        await only_the_other_goes(group)


@pytest.mark.slow
async def test_all_are_judged_once_a_missing_report_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a missing report has arrived, the leader decides again for all brokers whether to evict them.

    The first report over a new link is complete: it also contains brokers whose state has not changed.
    """
    async with group_with_a_report_missing(tmp_path, monkeypatch, came_back=False) as (group, leader):
        judges = leader.leader
        await until(
            lambda: judges.judged_with == judges.in_contact() == set(group.addresses), "all in contact"
        )
        judges.judge_all_at = leader.liveness.clock + 3600.0
        assert leader.view(Freshness.STALE).record(BROKER) is not None
        monkeypatch.undo()
        await until(lambda: leader.view(Freshness.STALE).record(BROKER) is None, "the broker is gone")


async def test_link_in_the_place_of_another_is_known_for_a_new_one(tmp_path: Path) -> None:
    """A member must notice a new link even if it has not noticed the end of the former link.

    The other member may have lost the former link much earlier, together with messages on it.
    """
    async with group_of(tmp_path) as group:
        follower, leader = group.at(group.followers()[0]), group.addresses[group.leader()]
        member, link_of = follower.member, follower.member.link_number
        before, hello = link_of(leader), member.engine.greetings.said[leader]
        member.link_up(leader)
        member.engine.receive(leader, encode(hello))
        member.perform()
        assert leader in follower.member.linked
        assert link_of(leader) > before
        await until(lambda: follower.surroundings.links[leader] > before, "told apart")


async def test_leader_hears_of_a_connection_before_the_command_that_came_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with group_of(tmp_path) as group:
        follower = group.at(group.followers()[0])
        sent: list[peer_messages.Message] = []
        send = follower.member.send

        def recorded(member: str, message: bytes) -> bool:
            sent.append(peer_messages.decode(message))
            return send(member, message)

        monkeypatch.setattr(follower.member, "send", recorded)
        for origin in (ONE, TWO):
            sent.clear()
            assert (await ask(follower, register(), origin)).code == ResponseCode.SUCCESS
            told = next(
                place
                for place, message in enumerate(sent)
                if isinstance(message, peer_messages.Report)
                and any(line.connected and line.broker == BROKER for line in message.contacts)
            )
            proposed = next(i for i, message in enumerate(sent) if isinstance(message, peer_messages.Propose))
            assert told < proposed


async def test_own_close_is_no_evidence(tmp_path: Path) -> None:
    async with group_of(tmp_path) as group:
        await register_two(group)
        for member in group.running:
            member.closed(ONE, by_us=True)
        await only_the_other_goes(group)


async def test_goodbye_is_answered_at_once_and_evicts_after_the_last(tmp_path: Path) -> None:
    async with group_of(tmp_path) as group:
        await group.everywhere(register())
        for member in group.running:
            assert (await ask(member, unregister())).code == ResponseCode.SUCCESS
        await group.empty()
        assert group.running[0].explain("T").events[-1].reason is LeaveReason.UNREGISTERED


async def test_late_goodbye_over_an_older_connection_is_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with group_of(tmp_path) as group:
        await group.everywhere(register(), ONE)
        await group.everywhere(register(), TWO)
        member = group.running[0]
        assert (await ask(member, unregister(), ONE)).code == ResponseCode.SUCCESS
        assert "late unregistration ignored" in caplog.text
        assert member.view(Freshness.STALE).record(BROKER) is not None


@pytest.mark.slow
async def test_unregistration_by_an_admin_tool_goes_through_the_log(tmp_path: Path) -> None:
    async with group_of(tmp_path) as group:
        await group.everywhere(register())
        answer = await ask(group.at(group.followers()[0]), unregister(), ConnectionId(99))
        assert answer.code == ResponseCode.SUCCESS
        await group.equal()
        assert not any(member.view(Freshness.STALE).topics() for member in group.running)


@pytest.mark.slow
async def test_silent_broker_expires_and_its_connections_are_closed(tmp_path: Path) -> None:
    async with group_of(tmp_path) as group:
        answers = await group.everywhere(register(heartbeatTimeoutMillis="3000"))
        assert codes(answers) == [0, 0, 0]
        await group.empty()
        assert group.running[0].explain("T").events[-1].reason is LeaveReason.LEASE_EXPIRED
        assert [effects.closed for effects in group.effects] == [[ONE], [ONE], [ONE]]


@pytest.mark.slow
async def test_new_leader_evicts_what_died_with_the_old_one(tmp_path: Path) -> None:
    async with group_of(tmp_path, raftElectionTimeoutMs="500") as group:
        await group.everywhere(register())
        await group.stop(group.leader())
        for member in group.running:
            member.closed(ONE, by_us=False)
        await group.empty()
