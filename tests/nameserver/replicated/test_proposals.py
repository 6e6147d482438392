"""Tests of proposals on their way into the log.

The member that proposes a command stores it until its outcome is known. The leader has a queue of proposals.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from routekeeper.nameserver.commands import (
    COMMAND_BYTES_MAX,
    ENTRY_BYTES_MAX,
    FIRST_FORMAT,
    Command,
    Evict,
    Proposal,
    PutKv,
    RegisterBroker,
    Touch,
    Update,
    encode_batch,
    encode_command,
)
from routekeeper.nameserver.replicated import proposals
from routekeeper.nameserver.replicated.peer_messages import (
    Deferral,
    Deferred,
    PeerMessageError,
    Propose,
    decode,
    encode,
)
from routekeeper.nameserver.replicated.proposals import RESEND_S, PendingProposal, ProposalBook, Sequencer
from routekeeper.nameserver.types import BrokerAddr, BrokerName, ClusterName, LeaveReason
from routekeeper.remoting.route import DataVersion
from tests.cost import least_cpu_s, on_this_machine

ONE, TWO = b"\x01one", b"\x01two"  # commands of format 1
TO_LEADER = (3, 1)
"""The leader of term 3, over link number 1: (term, link number)."""
HERE = (3, 0)
"""This process, which leads in term 3: (term, 0)."""


def register(addr: str = "a:1", *, record_revision: int = 0) -> RegisterBroker:
    return RegisterBroker(
        cluster_name=ClusterName("c"),
        broker_name=BrokerName("b"),
        broker_addr=BrokerAddr(addr),
        broker_id=0,
        ha_server_addr="",
        data_version=DataVersion(),
        topics=(),
        incremental=False,
        filter_servers=None,
        mappings=(),
        lease_ms=120_000,
        enable_acting_master=None,
        zone_name=None,
        delete_absent=False,
        record_revision=record_revision,
        name_revision=0,
    )


def touch(addr: str = "a:1") -> Touch:
    return Touch(
        cluster_name=ClusterName("c"),
        broker_name=BrokerName("b"),
        broker_addr=BrokerAddr(addr),
        broker_id=0,
        ha_server_addr="",
        data_version=DataVersion(),
        complete=True,
        lease_ms=120_000,
        enable_acting_master=None,
        zone_name=None,
    )


def update(addr: str = "a:1") -> Update:
    return Update(
        cluster_name=ClusterName("c"),
        broker_name=BrokerName("b"),
        broker_addr=BrokerAddr(addr),
        data_version=DataVersion(),
        topics=(),
        incremental=False,
        enable_acting_master=False,
        zone_name=None,
        topic_count=0,
        record_revision=0,
        name_revision=0,
    )


def evict(addr: str = "a:1") -> Evict:
    return Evict(
        cluster_name=ClusterName("c"),
        broker_addr=BrokerAddr(addr),
        revision=3,
        reason=LeaveReason.LEASE_EXPIRED,
    )


PUT = PutKv(namespace="n", key="k", value="v", key_revision=0)


def proposal(sequence: int, *, boot_id: int = 1, size: int = 10) -> Proposal:
    return Proposal(boot_id=boot_id, sequence=sequence, command=b"x" * size)


def waiting_in(book: ProposalBook, sequence: int) -> PendingProposal | None:
    return next((waiting for waiting in book if waiting.proposal.sequence == sequence), None)


def hand(
    book: ProposalBook, sequence: int, route: tuple[int, int], *, now: float, may_reach_log: bool
) -> None:
    waiting = waiting_in(book, sequence)
    assert waiting is not None
    book.handed(waiting, route, now=now, may_reach_log=may_reach_log)


# -- the proposer's pending proposals (ProposalBook) --------------------------------------------------------


def test_proposal_is_handed_once_to_one_leader_over_one_link() -> None:
    book = ProposalBook(boot_id=1)
    sequence = book.add(ONE, deadline=10.0)
    assert [w.proposal.sequence for w in book.outgoing(TO_LEADER, now=0.0, understood=1)] == [sequence]
    hand(book, sequence, TO_LEADER, now=0.0, may_reach_log=True)
    assert list(book.outgoing(TO_LEADER, now=0.1, understood=1)) == []


@pytest.mark.parametrize(
    ("route", "now"),
    [((4, 1), 0.1), ((3, 2), 0.1), ((4, 0), 0.1), (TO_LEADER, RESEND_S)],
    ids=["next leader", "new link", "leader ourselves", "no verdict for long"],
)
def test_same_bytes_are_sent_again(route: tuple[int, int], now: float) -> None:
    book = ProposalBook(boot_id=1)
    sequence = book.add(ONE, deadline=10.0)
    (first,) = book.outgoing(TO_LEADER, now=0.0, understood=1)
    hand(book, sequence, TO_LEADER, now=0.0, may_reach_log=True)
    assert list(book.outgoing(route, now=now, understood=1)) == [first]


def test_nothing_is_sent_after_the_deadline() -> None:
    book = ProposalBook(boot_id=1)
    book.add(ONE, deadline=2.5)
    assert list(book.outgoing(TO_LEADER, now=2.5, understood=1)) == []


def test_proposal_that_never_left_is_in_no_log() -> None:
    book = ProposalBook(boot_id=1)
    sequence = book.add(ONE, deadline=2.5)
    waiting = book.remove(sequence)
    assert waiting is not None
    assert waiting.copies == []
    assert book.remove(sequence) is None


def test_own_leader_counts_a_copy_only_when_it_appends() -> None:
    book = ProposalBook(boot_id=1)
    sequence = book.add(ONE, deadline=2.5)
    hand(book, sequence, HERE, now=0.0, may_reach_log=False)
    waiting = waiting_in(book, sequence)
    assert waiting is not None
    assert waiting.copies == []
    book.appended(sequence, term=3)
    assert waiting.copies == [3]


def deferred(*, index: int) -> tuple[ProposalBook, int]:
    """Return a ProposalBook and the number of its only proposal, which the leader of term 3 has deferred.

    So the proposal must be computed again after the entry ``index`` is applied.
    """
    book = ProposalBook(boot_id=1)
    sequence = book.add(ONE, deadline=2.5)
    hand(book, sequence, TO_LEADER, now=0.0, may_reach_log=True)
    book.defer(Deferral(boot_id=1, sequence=sequence, index=index), term=3)
    return book, sequence


def test_deferred_proposal_is_decided_again_once_that_leaders_log_is_applied_so_far() -> None:
    book, sequence = deferred(index=9)
    assert book.released(applied_index=9) == (), "that was another leader's entry"
    book.applied(3)
    assert book.released(applied_index=8) == ()
    assert list(book.outgoing((4, 1), now=0.1, understood=1)) == [], "it waits to be decided again"
    assert book.released(applied_index=9) == (sequence,)
    waiting = book.remove(sequence)
    assert waiting is not None
    assert not waiting.in_doubt, "the leader said that it is not in the log"


def test_deferral_ends_with_the_first_entry_of_a_later_term() -> None:
    book, sequence = deferred(index=9)
    book.applied(3)
    assert book.released(applied_index=8) == ()
    book.applied(4)
    assert book.released(applied_index=8) == (sequence,)


def test_deferral_of_another_process_or_term_is_ignored() -> None:
    book = ProposalBook(boot_id=1)
    sequence = book.add(ONE, deadline=2.5)
    hand(book, sequence, TO_LEADER, now=0.0, may_reach_log=True)
    book.defer(Deferral(boot_id=2, sequence=sequence, index=0), term=3)
    book.defer(Deferral(boot_id=1, sequence=sequence, index=0), term=2)
    book.defer(Deferral(boot_id=1, sequence=sequence + 1, index=0), term=3)
    book.applied(4)
    assert book.released(applied_index=9) == ()


def test_a_proposal_of_which_a_newer_copy_is_under_way_is_not_decided_again() -> None:
    """A member must not compute a command again while a newer copy of its proposal is on its way.

    The member sent the proposal twice, over two links. The leader deferred the first copy, which means that
    the member must compute the command again. But the second copy may still get into the log. Then the
    request could take effect twice.
    """
    leader = Sequencer(term=3)
    take(leader, 7, touch(), boot_id=9)
    assert sequences(leader) == [7]
    book = ProposalBook(boot_id=1)
    sequence = book.add(encode_command(register()), deadline=2.5)
    for link in (1, 2):
        hand(book, sequence, (3, link), now=0.1 * link, may_reach_log=True)
    assert take(leader, sequence, register(), attempt=1) is None, "held behind the touch"
    ((_, answer),) = leader.appended(10)
    book.defer(answer, term=3)
    book.applied(3)
    assert book.released(applied_index=10) == (), "the second copy is under way"

    leader.applied(10)  # the broker's earlier command (touch) is applied, so the leader takes the next copy
    assert take(leader, sequence, register(), attempt=2) is None
    assert sequences(leader) == [sequence], "which is its verdict: decided again it would take effect twice"


def test_the_answer_to_the_newest_copy_releases_a_proposal_though_an_older_one_was_lost() -> None:
    book = ProposalBook(boot_id=1)
    sequence = book.add(ONE, deadline=2.5)
    for link in (1, 2):
        hand(book, sequence, (3, link), now=0.1 * link, may_reach_log=True)
    book.applied(3)
    book.defer(Deferral(boot_id=1, sequence=sequence, index=9, attempt=2), term=3)
    assert book.released(applied_index=9) == (sequence,)


def test_copy_sent_to_a_former_leader_may_be_applied_until_an_entry_of_a_later_one_is_applied() -> None:
    book = ProposalBook(boot_id=1)
    sequence = book.add(ONE, deadline=2.5)
    hand(book, sequence, TO_LEADER, now=0.0, may_reach_log=True)
    hand(book, sequence, (4, 1), now=0.1, may_reach_log=True)
    book.defer(Deferral(boot_id=1, sequence=sequence, index=9, attempt=2), term=4)
    waiting = waiting_in(book, sequence)
    assert waiting is not None
    book.applied(3)
    assert waiting.in_doubt
    book.applied(4)
    assert not waiting.in_doubt


def test_copy_handed_to_the_present_leader_may_still_be_applied_whatever_else_is() -> None:
    book = ProposalBook(boot_id=1)
    sequence = book.add(ONE, deadline=2.5)
    hand(book, sequence, TO_LEADER, now=0.0, may_reach_log=True)
    book.applied(3)
    waiting = waiting_in(book, sequence)
    assert waiting is not None
    assert waiting.in_doubt


def test_what_a_member_may_not_know_is_decided_again_if_it_never_left() -> None:
    book = ProposalBook(boot_id=1)
    book.add(encode_command(PUT), deadline=2.5)
    newer = book.add(encode_command(update()), deadline=2.5)
    assert book.beyond(2) == ()
    assert book.beyond(1) == (newer,)


def test_what_a_member_may_not_know_waits_while_it_may_be_in_a_log() -> None:
    book = ProposalBook(boot_id=1)
    newer = book.add(encode_command(update()), deadline=2.5)
    hand(book, newer, TO_LEADER, now=0.0, may_reach_log=True)
    assert book.beyond(1) == (), "decided again it would take effect twice"
    assert list(book.outgoing((4, 1), now=0.1, understood=1)) == []
    assert [w.proposal.sequence for w in book.outgoing((4, 1), now=0.1, understood=2)] == [newer]
    book.applied(4)
    assert book.beyond(1) == (newer,)


def test_an_image_leaves_unknown_what_may_be_in_it() -> None:
    book = ProposalBook(boot_id=1)
    put_sent, put_here, update_sent, update_here = (
        book.add(encode_command(command), deadline=2.5) for command in (PUT, PUT, update(), update())
    )
    for sequence in (put_sent, update_sent):
        hand(book, sequence, TO_LEADER, now=0.0, may_reach_log=True)
    assert [write.proposal.sequence for write in book if write.in_doubt] == [put_sent, update_sent]
    assert book.beyond(FIRST_FORMAT) == (update_here,)
    assert waiting_in(book, put_here) is not None


def test_what_is_under_way_is_sent_again_in_its_time_whatever_else_comes() -> None:
    book = ProposalBook(boot_id=1)
    first = book.add(ONE, deadline=10.0)
    hand(book, first, TO_LEADER, now=0.0, may_reach_log=True)
    second = book.add(TWO, deadline=10.0)
    assert [w.proposal.sequence for w in book.outgoing(TO_LEADER, now=0.5, understood=1)] == [second]
    hand(book, second, TO_LEADER, now=0.5, may_reach_log=True)
    assert [w.proposal.sequence for w in book.outgoing(TO_LEADER, now=RESEND_S, understood=1)] == [first]
    hand(book, first, TO_LEADER, now=RESEND_S, may_reach_log=True)
    assert [w.proposal.sequence for w in book.outgoing(TO_LEADER, now=RESEND_S + 0.5, understood=1)] == [
        second
    ]


def test_what_could_not_be_handed_over_is_offered_again() -> None:
    book = ProposalBook(boot_id=1)
    sequences_ = [book.add(ONE, deadline=10.0) for _ in range(3)]
    for _ in range(2):  # no proposal is sent between the calls, as if the link was full
        assert [w.proposal.sequence for w in book.outgoing(TO_LEADER, now=0.0, understood=1)] == sequences_
    hand(book, sequences_[0], TO_LEADER, now=0.0, may_reach_log=True)
    assert [w.proposal.sequence for w in book.outgoing(TO_LEADER, now=0.1, understood=1)] == sequences_[1:]


def test_book_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposals, "BOOK_BYTES_MAX", 10)
    book = ProposalBook(boot_id=1)
    assert book.has_room(b"x" * 10)
    sequence = book.add(b"x" * 6, deadline=1.0)
    assert not book.has_room(b"x" * 5)
    book.remove(sequence)
    assert book.has_room(b"x" * 10)


def test_book_is_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposals, "BOOK_MAX", 2)
    book = ProposalBook(boot_id=1)
    sequence, _ = book.add(ONE, deadline=1.0), book.add(ONE, deadline=1.0)
    assert not book.has_room(ONE)
    book.remove(sequence)
    assert book.has_room(ONE)


# -- the leader's queue -------------------------------------------------------------------------------------


def take(
    queue: Sequencer,
    sequence: int,
    command: Command,
    *,
    boot_id: int = 1,
    moved: bool = False,
    size: int = 10,
    attempt: int = 1,
    pairs: int = 0,
) -> Deferral | None:
    return queue.offer(
        proposal(sequence, boot_id=boot_id, size=size),
        command,
        f"m{boot_id}",
        moved_at=5 if moved else None,
        attempt=attempt,
        pairs=pairs,
    )


def sequences(queue: Sequencer) -> list[int]:
    batch = queue.next_batch()
    return [] if batch is None else [p.sequence for p in batch.proposals]


def test_what_arrives_while_a_commit_is_in_flight_goes_together() -> None:
    queue = Sequencer(term=3)
    take(queue, 1, PUT)
    assert sequences(queue) == [1]
    queue.appended(10)
    take(queue, 2, PUT)
    take(queue, 3, PUT)
    assert sequences(queue) == []
    queue.applied(9)
    assert sequences(queue) == []
    queue.applied(10)
    assert sequences(queue) == [2, 3]


def test_a_batch_that_the_log_did_not_take_comes_again_in_its_place() -> None:
    queue = Sequencer(term=3)
    take(queue, 1, PUT)
    take(queue, 2, PUT)
    assert sequences(queue) == [1, 2]
    take(queue, 3, PUT)
    queue.not_appended()
    take(queue, 1, PUT)  # a second copy arrives while the first is in the queue
    assert sequences(queue) == [1, 2, 3]
    queue.appended(10)
    queue.applied(10)
    assert sequences(queue) == []


def test_a_proposal_that_is_withdrawn_is_never_appended() -> None:
    queue = Sequencer(term=3)
    take(queue, 1, register())
    take(queue, 2, PUT)
    take(queue, 3, touch())
    queue.withdraw(1, 1)
    queue.withdraw(1, 3)
    queue.withdraw(1, 9)  # the leader has no such proposal
    queue.withdraw(2, 2)  # the leader has no proposal of process 2
    assert take(queue, 4, register()) is None, "nothing of the broker is before it any more"
    assert sequences(queue) == [2, 4]


def test_a_proposal_withdrawn_while_another_of_its_broker_waits_still_defers_a_third() -> None:
    queue = Sequencer(term=3)
    take(queue, 1, register())
    take(queue, 2, touch())
    queue.withdraw(1, 2)
    take(queue, 3, register())  # comes behind registration 1, so it is deferred
    assert sequences(queue) == [1]
    assert [deferral.sequence for _, deferral in queue.appended(10)] == [3]


def test_cost_to_withdraw_does_not_grow_with_the_queue() -> None:
    def full() -> Callable[[], object]:
        queue = Sequencer(term=3)
        for sequence in range(10_000):
            take(queue, sequence, register(f"10.0.0.1:{sequence}"))

        def withdraw_all() -> None:
            for sequence in range(10_000):
                queue.withdraw(1, sequence)

        return withdraw_all

    allowed = on_this_machine(0.3)
    assert least_cpu_s(full, below=allowed) < allowed


def test_proposals_that_were_not_appended_go_first_again() -> None:
    queue = Sequencer(term=3)
    for sequence in (1, 2):
        take(queue, sequence, PUT)
    assert queue.next_batch() is not None
    take(queue, 3, PUT)
    queue.not_appended()
    assert sequences(queue) == [1, 2, 3]


def test_entry_is_bounded_and_order_is_kept() -> None:
    queue = Sequencer(term=3)
    for sequence, size in enumerate([COMMAND_BYTES_MAX, 1_500_000, 500_000, 200_000, 10], start=1):
        take(queue, sequence, PUT, size=size)
    for index, expected in ((10, [1]), (11, [2, 3]), (12, [4, 5])):
        batch = queue.next_batch()
        assert batch is not None
        assert [p.sequence for p in batch.proposals] == expected
        assert len(encode_batch(batch)) <= ENTRY_BYTES_MAX
        queue.appended(index)
        queue.applied(index)


def test_brokers_with_many_topics_are_evicted_by_several_entries() -> None:
    queue = Sequencer(term=3)
    for number in range(100):
        take(queue, number, evict(f"a:{number}"), pairs=10_000)
    assert sequences(queue) == [0, 1, 2, 3]
    queue.appended(10)
    assert sequences(queue) == []  # further evictions wait until the first evictions are applied
    queue.applied(10)
    assert sequences(queue) == [4, 5, 6, 7]


def test_largest_command_fits_an_entry() -> None:
    queue = Sequencer(term=3)
    take(queue, 1, PUT, size=COMMAND_BYTES_MAX)
    batch = queue.next_batch()
    assert batch is not None
    assert len(encode_batch(batch)) <= ENTRY_BYTES_MAX


def test_same_proposal_sent_twice_is_appended_once() -> None:
    queue = Sequencer(term=3)
    take(queue, 1, PUT)
    take(queue, 1, PUT)
    assert sequences(queue) == [1]
    queue.appended(10)
    take(queue, 1, PUT)
    queue.applied(10)
    assert sequences(queue) == []


def test_moved_registration_is_answered_with_what_is_applied() -> None:
    queue = Sequencer(term=3)
    deferral = take(queue, 1, register(), moved=True)
    assert deferral == Deferral(boot_id=1, sequence=1, index=5)
    assert sequences(queue) == []


@pytest.mark.parametrize("command", [register(), update()], ids=["whole", "difference"])
def test_a_change_of_a_broker_costs_one_body(command: Command) -> None:
    """If three members propose the same registration, the leader appends it to the log only once.

    All three members get the index of the same entry.
    """
    queue = Sequencer(term=3)
    take(queue, 1, command, boot_id=1)
    assert take(queue, 1, command, boot_id=2) is None, "held until the index is known"
    assert sequences(queue) == [1]
    assert queue.appended(10) == (("m2", Deferral(boot_id=2, sequence=1, index=10)),)
    assert take(queue, 1, command, boot_id=3) == Deferral(boot_id=3, sequence=1, index=10)
    queue.applied(10)
    assert sequences(queue) == []
    for boot_id in (2, 3):
        assert take(queue, 2, touch(), boot_id=boot_id) is None
    assert sequences(queue) == [2, 2]


def test_registrations_of_different_brokers_do_not_wait_for_each_other() -> None:
    queue = Sequencer(term=3)
    take(queue, 1, register("a:1"))
    take(queue, 2, register("b:1"))
    assert sequences(queue) == [1, 2]


@pytest.mark.parametrize("command", [touch(), evict()], ids=["touch", "evict"])
def test_registration_behind_anything_that_moves_its_record_is_deferred(command: Command) -> None:
    queue = Sequencer(term=3)
    take(queue, 1, command)
    sequences(queue)
    queue.appended(10)
    assert take(queue, 2, register()) == Deferral(boot_id=1, sequence=2, index=10)


def test_registration_held_behind_a_later_entry_learns_that_entrys_index() -> None:
    queue = Sequencer(term=3)
    take(queue, 1, PUT, size=COMMAND_BYTES_MAX)
    take(queue, 2, touch(), size=COMMAND_BYTES_MAX)
    take(queue, 3, register())
    assert sequences(queue) == [1]
    assert queue.appended(10) == ()
    queue.applied(10)
    assert sequences(queue) == [2]
    assert queue.appended(11) == (("m1", Deferral(boot_id=1, sequence=3, index=11)),)


def test_registration_goes_in_once_the_entry_before_is_applied() -> None:
    queue = Sequencer(term=3)
    take(queue, 1, register())
    sequences(queue)
    queue.appended(10)
    queue.applied(10)
    assert take(queue, 2, register(record_revision=10)) is None
    assert sequences(queue) == [2]


# -- encoding of the messages ---------------------------------------------------------


def test_proposals_and_deferrals_survive_the_wire() -> None:
    for message in (
        Propose(term=3, proposals=(proposal(1), proposal(2, size=0)), attempts=(1, 2)),
        Deferred(term=3, deferrals=(Deferral(boot_id=2**63, sequence=1, index=10),)),
    ):
        assert decode(encode(message)) == message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\x02\x90",
        b"\x01",
        b"\x01\x90",
        b"\x01\x91\x63",
        encode(Propose(term=3, proposals=(), attempts=()))[:-1],
    ],
    ids=["nothing", "no format", "newer format", "no message", "empty", "unknown kind", "cut off"],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(PeerMessageError):
        decode(data)
