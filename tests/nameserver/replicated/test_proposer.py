"""Tests of a registration from its proposal to its answer.

The tested member has no links to other members. The test itself applies log entries to it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from routekeeper.nameserver.commands import (
    Batch,
    Command,
    Proposal,
    PutKv,
    RegisterBroker,
    Touch,
    decode_command,
    encode_batch,
    encode_command,
)
from routekeeper.nameserver.modes.interface import Freshness
from routekeeper.nameserver.raft.types import RaftConfig
from routekeeper.nameserver.replicated import Replicated, proposals
from routekeeper.nameserver.replicated.proposals import PendingProposal
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.nameserver.types import Answer, Request
from routekeeper.remoting.steps import finish
from tests.nameserver.replicated.group import ONE, RecordedEffects, register
from tests.waiting import until

HERE, OTHER = "127.0.0.1:1", "127.0.0.1:2"
TERM = 3


class Lonely:
    """A member that was not started, and the answers that it gives to the test's requests."""

    def __init__(self, root: Path) -> None:
        settings = LiveSettings(NamesrvSettings(data_dir=str(root)))
        raft = RaftConfig(me=HERE, peers=(HERE, OTHER), listen=None, data_dir=root)
        self.member = Replicated(settings, RecordedEffects(), boot_id=1, raft=raft)
        self.answers: list[Answer] = []
        self._index = 1

    def register(self, request: Request | None = None) -> Answer | None:
        """Send a registration; return its answer if the member answers at once."""
        deadline = asyncio.get_running_loop().time() + 60.0
        request = register() if request is None else request
        return self.member.register(request, ONE, deadline=deadline, answered=self.answers.append)

    async def proposes(self, kind: type[Command] = RegisterBroker) -> PendingProposal:
        """Wait until exactly one command is proposed, and is of this kind; return its proposal."""

        def is_proposed() -> bool:
            commands = [decode_command(pending.proposal.command) for pending in self.member.proposer.book]
            return [type(command) for command in commands] == [kind]

        await until(is_proposed, f"{kind.__name__} is proposed")
        (pending,) = self.member.proposer.book
        return pending

    def apply(self, *, of_another_member: bool = False) -> None:
        """Apply one entry with all pending proposals.

        Args:
            of_another_member: If True, the entry has the same commands, but another member proposed them.
        """
        pending = [pending.proposal for pending in self.member.proposer.book]
        if of_another_member:
            pending = [Proposal(boot_id=9, sequence=p.sequence, command=p.command) for p in pending]
        self.apply_proposals(*pending)

    def apply_proposals(self, *of: Proposal) -> None:
        self._index += 1
        entry = encode_batch(Batch(proposals=of))
        finish(self.member.apply(entry, index=self._index, term=TERM, live=True))


@contextlib.asynccontextmanager
async def lonely(root: Path) -> AsyncIterator[Lonely]:
    one = Lonely(root)
    try:
        yield one
    finally:
        await one.member.close()


async def test_registration_that_did_not_move_is_proposed_once_and_answered_by_its_verdict(
    tmp_path: Path,
) -> None:
    async with lonely(tmp_path) as one:
        assert one.register() is None
        await one.proposes()
        assert one.answers == []
        one.apply()
        assert one.answers == [Answer()]
        assert len(one.member.proposer.book) == 0
        assert one.member.view(Freshness.STALE).topics() == ["T", "U"]


async def test_registration_that_another_member_brought_meanwhile_becomes_a_touch(tmp_path: Path) -> None:
    async with lonely(tmp_path) as one:
        assert one.register() is None
        await one.proposes()
        one.apply(of_another_member=True)
        one.apply()
        await one.proposes(Touch)  # the table has changed, so the new command only renews the lease
        assert one.answers == []
        one.apply()
        assert one.answers == [Answer()]


async def test_registration_that_moved_and_was_never_sent_is_not_applied(tmp_path: Path) -> None:
    async with lonely(tmp_path) as one:
        one.register()
        await one.proposes()
        one.apply(of_another_member=True)
        one.apply()
        await one.proposes(Touch)
        await one.member.close()
        assert [(answer.remark or "").split(":")[0] for answer in one.answers] == ["[NO_QUORUM] not applied"]


async def test_registration_that_moved_and_may_be_in_a_log_has_an_unknown_outcome(tmp_path: Path) -> None:
    async with lonely(tmp_path) as one:
        one.register()
        await one.proposes()
        one.apply(of_another_member=True)
        one.apply()
        pending = await one.proposes(Touch)
        one.member.proposer.book.handed(pending, (TERM + 1, 1), now=0.0, may_reach_log=True)
        await one.member.close()
        (answer,) = one.answers
        assert (answer.remark or "").startswith("[OUTCOME_UNKNOWN] no outcome is known, it may apply yet")


async def test_registration_that_cannot_be_proposed_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proposals, "BOOK_BYTES_MAX", 0)
    async with lonely(tmp_path) as one:
        answer = one.register()
        assert answer == Answer(code=1, remark="[NO_QUORUM] not applied: too many changes are under way here")
        assert one.answers == []


async def test_verdict_on_the_proposal_of_another_process_answers_nobody_here(tmp_path: Path) -> None:
    async with lonely(tmp_path) as one:
        one.register()
        pending = await one.proposes()
        put = encode_command(PutKv(namespace="n", key="k", value="v", key_revision=0))
        one.apply_proposals(Proposal(boot_id=9, sequence=pending.proposal.sequence, command=put))
        assert one.answers == []
        one.apply()
        assert one.answers == [Answer()]
