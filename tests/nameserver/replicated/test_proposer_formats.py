"""Tests of new kinds of commands while the group has a member of an older release.

The older member could not read such commands. So the other members refuse them, or propose older kinds of
commands with the same effect.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from routekeeper.nameserver.commands import (
    LIMITS_FORMAT,
    UPDATE_FORMAT,
    Batch,
    Command,
    Proposal,
    PutKv,
    Update,
    decode_command,
    encode_batch,
    encode_command,
)
from routekeeper.nameserver.modes.interface import NO_QUORUM_TAG, OUTCOME_UNKNOWN_TAG, Freshness
from routekeeper.nameserver.raft.types import StopMember
from routekeeper.nameserver.replicated import Replicated, peer_messages, proposer
from routekeeper.nameserver.replicated.peer_messages import Propose
from routekeeper.nameserver.replicated.proposals import PendingProposal
from routekeeper.nameserver.types import Answer, Request
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.line_limit import LINES_PER_PEER
from routekeeper.remoting.registration import RegisterBody, body_crc32, encode_register_body
from routekeeper.remoting.route import DataVersion, TopicConfig
from routekeeper.remoting.steps import Steps, finish
from tests.nameserver.replicated.group import (
    CONDITION_S,
    Group,
    ask,
    codes,
    group_of,
    put_kv,
    register,
)
from tests.registrations import VERSION
from tests.waiting import until


@pytest.mark.slow
async def test_a_newer_kind_of_command_waits_until_every_member_understands_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with group_of(tmp_path) as group:
        follower = group.at(group.followers()[0])

        def of_format_4(command: Command) -> Steps[tuple[bytes, Command]]:
            yield
            return b"\x04" + encode_command(command)[1:], command

        monkeypatch.setattr(proposer, "written_and_read", of_format_4)
        answer = await ask(follower, put_kv("k", "v"))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (answer.remark or "").startswith(f"{NO_QUORUM_TAG} not applied: it needs format 4")
        # The current leader must refuse the new kind of command, even if an earlier leader allowed it.
        monkeypatch.setattr(follower.reports.reporter, "understood", 4)
        answer = await ask(follower, put_kv("k", "v"))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        monkeypatch.undo()
        assert (await ask(follower, put_kv("k", "v"))).code == ResponseCode.SUCCESS
        await group.equal()  # an entry that a member cannot read would have stopped it


@pytest.mark.parametrize("command", [b"\xff\x00", b"\x04\x91\x00"], ids=["unreadable", "newer"])
async def test_proposals_that_cannot_be_taken_leave_a_few_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, command: bytes
) -> None:
    async with group_of(tmp_path, size=1) as group:
        (leader,) = group.running
        caplog.clear()
        proposals = tuple(Proposal(boot_id=9, sequence=number, command=command) for number in range(100))
        term, attempts = leader.member.term, (1,) * len(proposals)
        message = Propose(term=term, proposals=proposals, attempts=attempts)
        leader.take_message("127.0.0.1:2", peer_messages.encode(message))
        refused = [r for r in caplog.records if r.getMessage().startswith("proposal refused")]
        assert 1 <= len(refused) <= LINES_PER_PEER


def under_way(member: Replicated) -> list[PendingProposal]:
    return list(member.proposer.book)


def kinds_under_way(member: Replicated) -> set[str]:
    return {type(decode_command(waiting.proposal.command)).__name__ for waiting in under_way(member)}


@contextlib.asynccontextmanager
async def change_that_gets_lost(
    group: Group, patch: pytest.MonkeyPatch, *, leaves: bool = True
) -> AsyncIterator[tuple[Replicated, asyncio.Task[Answer]]]:
    """Register topic ``V`` at a follower while all messages from this follower are lost.

    Args:
        leaves: True if the follower believes that it has sent the proposal. False if it knows that it could
            not send it.
    """
    assert codes(await group.everywhere(register())) == [0, 0, 0]
    follower = group.at(group.followers()[0])
    await until(lambda: follower.reports.reporter.understood >= UPDATE_FORMAT, "all have said so")
    patch.setattr(proposer, "WRITE_DEADLINE_S", CONDITION_S)
    with pytest.MonkeyPatch.context() as lost:
        lost.setattr(follower.member, "send", lambda member, message: leaves)
        lost.setattr(follower.reports.reporter, "acknowledged", lambda answer: False)
        request = register(counter=2, topics=("T", "V"))
        asking = asyncio.create_task(ask(follower, request, within=CONDITION_S))
        await until(lambda: kinds_under_way(follower) == {"Update"}, "it is proposed as its difference")
        yield follower, asking


async def takes_effect(group: Group, asking: asyncio.Task[Answer]) -> None:
    assert (await asking).code == ResponseCode.SUCCESS
    await group.equal()
    assert group.running[0].view(Freshness.STALE).topics() == ["T", "U", "V"]


@pytest.mark.slow
async def test_what_a_registration_changes_goes_through_the_log_as_the_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with group_of(tmp_path) as group:
        async with change_that_gets_lost(group, monkeypatch) as (follower, asking):
            (waiting,) = under_way(follower)
            command = decode_command(waiting.proposal.command)
            assert isinstance(command, Update)
            assert [queues.topic for queues in command.topics] == ["V"]
        await takes_effect(group, asking)


@pytest.mark.slow
async def test_a_difference_that_a_member_may_not_know_goes_whole_once_it_can_be_in_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with group_of(tmp_path) as group:
        async with change_that_gets_lost(group, monkeypatch) as (follower, asking):
            (before,) = under_way(follower)
            await until(lambda: before.in_doubt, "it is sent")
            # Now another leader, of an older release, announces an older format.
            monkeypatch.setattr(follower.reports.reporter, "understood", 1)
            follower.proposer.decide_deferred()
            assert under_way(follower) == [before], "decided again it might take effect twice"
            follower.proposer.book.applied(follower.member.term + 1)  # as by the first entry of a new leader
            await until(lambda: kinds_under_way(follower) == {"RegisterBroker"}, "it goes whole")
        await takes_effect(group, asking)


async def test_what_a_state_image_may_hold_has_an_unknown_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        group_of(tmp_path) as group,
        change_that_gets_lost(group, monkeypatch) as (follower, asking),
    ):
        (before,) = under_way(follower)
        await until(lambda: before.in_doubt, "it is sent")
        follower.proposer.table_replaced(term=follower.member.term)
        answer = await asking
        assert answer.remark is not None
        assert answer.remark.startswith(OUTCOME_UNKNOWN_TAG)


async def test_a_difference_to_another_table_that_never_left_is_decided_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with group_of(tmp_path) as group:
        async with change_that_gets_lost(group, monkeypatch, leaves=False) as (follower, asking):
            (before,) = under_way(follower)
            follower.proposer.table_replaced(term=follower.member.term)
            await until(lambda: under_way(follower) not in ([], [before]), "it is decided again")
        await takes_effect(group, asking)


@pytest.mark.parametrize(
    "command", [b"\x03\x00\x90", b"\x01\x00\x92\x63\x01"], ids=["newer format", "unknown kind"]
)
async def test_member_stops_at_what_it_does_not_understand_and_applies_none_of_it(
    tmp_path: Path, command: bytes
) -> None:
    async with group_of(tmp_path, size=1) as group:
        (member,) = group.running
        put = encode_command(PutKv(namespace="n", key="k", value="v", key_revision=0))
        proposals = (
            Proposal(boot_id=7, sequence=1, command=put),
            Proposal(boot_id=7, sequence=2, command=command),
        )
        payload = encode_batch(Batch(proposals=proposals))
        with pytest.raises(StopMember, match="install the release"):
            finish(member.apply(payload, index=9, term=1, live=True))
        assert member.view(Freshness.STALE).revision == 0


@pytest.mark.slow
async def test_member_that_does_not_know_whether_others_know_limits_judges_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with group_of(tmp_path, tableTopicsMax="2") as group:
        assert codes(await group.everywhere(register())) == [0, 0, 0]
        follower = group.at(group.followers()[0])
        monkeypatch.setattr(follower.reports.reporter, "acknowledged", lambda answer: False)
        monkeypatch.setattr(follower.reports.reporter, "understood", LIMITS_FORMAT - 1)
        answer = await ask(follower, register(counter=2, topics=("T", "U", "V")))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "3 topics, allowed: tableTopicsMax=2" in (answer.remark or "")
        assert group.running[0].view(Freshness.STALE).topics() == ["T", "U"]


@pytest.mark.slow
async def test_bounds_that_the_log_does_not_know_hold_for_a_broker_with_a_record(tmp_path: Path) -> None:
    """A member must check the limits of the table before it proposes a registration.

    Members do not check these limits when they apply the registration of a broker that already has a record.
    """
    async with group_of(tmp_path, tableBytesMax="2000") as group:
        assert codes(await group.everywhere(register(topics=("T", "U")))) == [0, 0, 0]
        info = {"topic": "V", "epoch": 1, "scope": "s" * 3000}
        content = RegisterBody(
            data_version=DataVersion(counter=2),
            topic_configs=tuple(TopicConfig(topic_name=topic) for topic in ("T", "U", "V")),
            mapping_infos={"V": info},
        )
        data = encode_register_body(content, compressed=False, version=VERSION)
        fields = {**register().ext_fields, "bodyCrc32": str(body_crc32(data))}
        request = Request(code=RequestCode.REGISTER_BROKER, ext_fields=fields, body=data)
        answer = await ask(group.at(group.leader()), request)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "allowed: tableBytesMax=2000" in (answer.remark or "")
        assert group.running[0].view(Freshness.STALE).topics() == ["T", "U"]


@pytest.mark.slow
async def test_leader_that_applied_limits_holds_those_who_are_away_to_know_them(tmp_path: Path) -> None:
    async with group_of(tmp_path, tableTopicsMax="3") as group:
        await until(
            lambda: all(m.reports.reporter.understood >= LIMITS_FORMAT for m in group.running),
            "all have said so",
        )
        assert codes(await group.everywhere(register())) == [0, 0, 0]
        await group.stop(group.leader())
        await group.ready()
        leader = group.at(group.leader())
        await until(lambda: leader.reports.reporter.understood >= LIMITS_FORMAT, "it is known still")
