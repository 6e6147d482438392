"""Tests of the outcomes of proposals.

The tests check that three defects of PySyncObj stay fixed (see docs/pysyncobj-defects.md):

- D13: The sender gets the outcome in time.
- D23: The sender never gets the outcome of another proposal.
- D27: A delayed command does not overwrite the effect of a newer command.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from routekeeper.nameserver.commands import Batch, Proposal, PutKv, encode_batch, encode_command
from routekeeper.nameserver.modes.interface import NoQuorum
from routekeeper.nameserver.replicated import Replicated
from routekeeper.nameserver.replicated.proposals import RESEND_S, PendingProposal, ProposalBook
from routekeeper.nameserver.replicated.proposer import Proposer
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.settings.ranking import load_settings
from routekeeper.nameserver.types import ConnectionId, MinBrokerChange
from routekeeper.nameserver.verdicts import Applied, Moved
from routekeeper.remoting.steps import finish

#: No program listens at these addresses: these tests start no server.
PEERS = ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")


class _NoEffects:
    def close_connection(self, origin: ConnectionId) -> None: ...
    def notify_min_broker(self, change: MinBrokerChange) -> None: ...


@pytest.fixture
def draw_boot_id() -> Callable[[], int]:
    """Return a function that draws a boot id, the random number of a process, as every new process does."""
    return lambda: secrets.randbits(48)


@contextlib.asynccontextmanager
async def _member(root: Path, *, boot_id: int) -> AsyncIterator[Replicated]:
    """Yield one nameserver of a group of three, whose other members do not run."""
    flags = {"mode": "raft", "raftAddress": PEERS[0], "raftPeers": ",".join(PEERS), "dataDir": str(root)}
    settings = load_settings(flags=flags, file={}).settings
    member = Replicated(LiveSettings(settings), _NoEffects(), boot_id=boot_id)
    try:
        yield member
    finally:
        await member.close()


def _put(value: str, *, key_revision: int = 0) -> PutKv:
    return PutKv(namespace="n", key="k", value=value, key_revision=key_revision)


def _run(scenario: Callable[[], Awaitable[None]], *, patience_s: float = 30.0) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(patience_s):
            await scenario()

    asyncio.run(bounded())


@pytest.fixture
def patience_s() -> float:
    return 30.0


def test_d13_whoever_proposes_is_answered_though_there_is_nobody_to_decide(
    tmp_path: Path, patience_s: float
) -> None:
    async def scenario() -> None:
        async with _member(tmp_path, boot_id=1) as member:
            until = asyncio.get_running_loop().time() + 0.3
            with pytest.raises(NoQuorum, match="not applied"):
                await member.proposer.propose(_put("v"), deadline=until)

    _run(scenario, patience_s=patience_s)


def test_d13_what_was_lost_on_the_way_is_sent_again_though_the_leader_stays() -> None:
    book, leader = ProposalBook(boot_id=1), (3, 1)
    sequence = book.add(encode_command(_put("v")), deadline=10.0)
    assert [waiting.proposal.sequence for waiting in book.outgoing(leader, now=0.0, understood=1)] == [
        sequence
    ]
    (waiting,) = book
    book.handed(waiting, leader, now=0.0, may_reach_log=True)
    assert list(book.outgoing(leader, now=RESEND_S / 2, understood=1)) == []
    assert [waiting.proposal.sequence for waiting in book.outgoing(leader, now=RESEND_S, understood=1)] == [
        sequence
    ]


def test_d23_what_a_former_life_proposed_answers_nobody_of_this_one(
    tmp_path: Path, draw_boot_id: Callable[[], int]
) -> None:
    former = draw_boot_id()

    async def scenario() -> None:
        async with _member(tmp_path, boot_id=draw_boot_id()) as member:
            loop = asyncio.get_running_loop()
            mine = asyncio.ensure_future(member.proposer.propose(_put("mine"), deadline=loop.time() + 0.3))
            await asyncio.sleep(0)  # let the proposal get its sequence number first
            theirs = Proposal(boot_id=former, sequence=1, command=encode_command(_put("theirs")))
            finish(member.apply(encode_batch(Batch(proposals=(theirs,))), index=2, term=1, live=True))
            with pytest.raises(NoQuorum):
                await mine

    _run(scenario)


def test_d27_a_late_command_is_not_applied_over_what_is_newer() -> None:
    table = RouteTable()
    late, newer = _put("v1"), _put("v2")  # commands computed from the same state; `late` was delayed
    assert isinstance(table.apply(newer), Applied)
    assert isinstance(table.apply(late), Moved)
    held = table.view.kv_value("n", "k")
    assert held is not None
    assert held.value == "v2"


def _d13_no_deadline(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Proposer, "_give_up_at", lambda member, until: None)


def _d13_not_sent_again(patch: pytest.MonkeyPatch) -> None:
    def handed(waiting: PendingProposal, route: tuple[int, int]) -> bool:
        return waiting.route == route

    patch.setattr(
        ProposalBook,
        "outgoing",
        lambda book, route, **_: (w for w in book._waiting.values() if not handed(w, route)),
    )


def _d27_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RouteTable, "moved", lambda table, command: False)


@pytest.mark.slow
def test_d13_without_a_deadline_the_same_is_found_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _d13_no_deadline(monkeypatch)
    with pytest.raises(TimeoutError):
        test_d13_whoever_proposes_is_answered_though_there_is_nobody_to_decide(tmp_path, patience_s=1.5)


def test_d13_without_sending_again_the_same_is_found_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    _d13_not_sent_again(monkeypatch)
    with pytest.raises(AssertionError):
        test_d13_what_was_lost_on_the_way_is_sent_again_though_the_leader_stays()


def test_d23_with_numbers_that_begin_anew_the_same_is_found_wrong(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception):
        test_d23_what_a_former_life_proposed_answers_nobody_of_this_one(tmp_path, lambda: 1)


def test_d27_without_revisions_the_same_is_found_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    _d27_off(monkeypatch)
    with pytest.raises(AssertionError):
        test_d27_a_late_command_is_not_applied_over_what_is_newer()
