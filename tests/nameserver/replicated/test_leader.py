"""Tests of a leader that gets no answers from its followers, and of failed transfers of leadership."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from routekeeper.nameserver.commands import Batch, Proposal, PutKv, encode_batch, encode_command
from routekeeper.nameserver.modes.interface import NO_QUORUM_TAG, Freshness
from routekeeper.nameserver.replicated import ANSWER_MARGIN_S, Replicated
from routekeeper.remoting.codes import ResponseCode
from tests.nameserver.replicated.group import ONE, TWO, ask, codes, group_of, put_kv, register
from tests.waiting import until


def hand_over_in_vain(leader: Replicated) -> bool:
    """Make a leader begin to hand over leadership while all followers lag, so that none can take over.

    The transfer fails, and the leader continues to lead in the same term.
    """
    member = leader.member
    command = encode_command(PutKv(namespace="n", key="other", value="v", key_revision=0))
    batch = Batch(proposals=(Proposal(boot_id=7, sequence=1, command=command),))
    assert member.append(encode_batch(batch), term=member.term) is not None
    return member.engine.membership.hand_over()


@pytest.mark.slow
async def test_a_leader_whose_hand_over_fails_leads_on_with_its_evidence(tmp_path: Path) -> None:
    async with group_of(tmp_path) as group:
        assert codes(await group.everywhere(register())) == [0, 0, 0]
        await group.equal()
        leader = group.at(group.leader())
        term = leader.status().term
        assert hand_over_in_vain(leader)
        # The broker dies, and a client writes a value. The log accepts no entries during the transfer, so the
        # leader must append the eviction and the value afterwards.
        for member in group.running:
            member.closed(ONE, by_us=False)
        assert (await ask(leader, put_kv("k", "v"))).code == ResponseCode.SUCCESS
        await until(lambda: not leader.view(Freshness.STALE).topics(), "the dead broker is evicted")
        assert leader.status().term == term


@pytest.mark.slow
async def test_a_leader_whose_hand_over_fails_at_once_leads_later(tmp_path: Path) -> None:
    """A leader that fails to hand over leadership directly after its election must still lead later.

    The transfer begins before the log contains the first entry of the leader's own term.
    """
    async with group_of(tmp_path) as group:
        assert codes(await group.everywhere(register())) == [0, 0, 0]
        await group.equal()
        leader = group.at(group.leader())
        leader.leader.end()  # now the member does not know its role, as directly after an election
        assert hand_over_in_vain(leader)
        leader.member_changed()
        for member in group.running:
            member.closed(ONE, by_us=False)
        await until(lambda: not leader.view(Freshness.STALE).topics(), "the dead broker is evicted")


@pytest.mark.slow
async def test_what_a_leader_refused_while_it_waited_in_its_own_queue_never_applies(tmp_path: Path) -> None:
    async with group_of(tmp_path) as group:
        leader = group.at(group.leader())
        assert hand_over_in_vain(leader)  # the log accepts no entry for one election timeout
        soon = asyncio.get_running_loop().time() + ANSWER_MARGIN_S + 0.01
        answer = await leader.execute(put_kv("late", "v"), ONE, deadline=soon)
        assert answer.remark is not None
        assert answer.remark.startswith(f"{NO_QUORUM_TAG} not applied: ")
        assert (await ask(leader, put_kv("k", "v"))).code == ResponseCode.SUCCESS
        assert leader.view(Freshness.STALE).kv_value("n", "late") is None


@pytest.mark.slow
async def test_proposal_that_is_sent_again_is_not_decoded_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with group_of(tmp_path) as group:
        leader = group.at(group.leader())
        assert hand_over_in_vain(leader)  # the log accepts no entry for one election timeout
        command = encode_command(PutKv(namespace="n", key="k", value="v", key_revision=0))
        proposal = Proposal(boot_id=9, sequence=1, command=command)
        leader.leader.offer(proposal)
        assert leader.leader.pop_decoded(proposal) is not None, "as when it begins to be applied"
        unreadable = Proposal(boot_id=9, sequence=1, command=command[:-1])
        leader.leader.offer(unreadable, attempt=2)
        assert "proposal refused" not in caplog.text
        leader.leader.offer(Proposal(boot_id=9, sequence=2, command=command[:-1]))
        assert "proposal refused" in caplog.text, "another one is decoded"


async def test_min_broker_change_is_told_by_the_leader_alone(tmp_path: Path) -> None:
    async with group_of(tmp_path, notifyMinBrokerIdChanged="true") as group:
        await group.everywhere(register(addr="10.0.0.2:10911", broker_id=1), TWO)
        await group.everywhere(register(broker_id=0), ONE)
        await group.equal()
        told = {number for number, effects in enumerate(group.effects) if effects.notices}
        assert told == {group.leader()}
