"""Tests of read barriers (ReadIndex).

A read may use only a barrier that its member requested after the read arrived. The leader confirms a barrier
only if a majority still follows it.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routekeeper.nameserver.replicated.barriers import GATHER_S as GATHER_RANGE_S
from routekeeper.nameserver.replicated.barriers import RESEND_S, Barriers, Confirmations
from routekeeper.nameserver.replicated.peer_messages import ReadIndex, ReadIndexReply

HERE = (1, "a", 1)
"""The leader that gets the member's messages: its term, its name, and the number of the link."""
GATHER_S, GATHER_LONG_S = GATHER_RANGE_S


def test_reads_that_arrive_before_a_barrier_is_sent_share_it() -> None:
    barriers = Barriers()
    tickets = [barriers.join() for _ in range(3)]
    assert tickets == [1, 1, 1]
    assert barriers.to_send(HERE, now=0.0) == 1
    barriers.confirmed(1, 10)
    barriers.applied(9, now=0.0)
    assert barriers.passed == 0  # no barrier has passed, because entry 10 is not applied yet
    barriers.applied(10, now=0.0)
    assert barriers.passed == 1


def test_a_read_does_not_join_a_barrier_that_is_under_way() -> None:
    barriers = Barriers()
    barriers.join()
    assert barriers.to_send(HERE, now=0.0) == 1
    late = barriers.join()
    assert late == 2
    assert barriers.to_send(HERE, now=0.0) is None  # at most one barrier is in progress at a time
    barriers.confirmed(1, 10)
    barriers.applied(10, now=0.0)
    assert barriers.passed == 1
    assert barriers.to_send(HERE, now=GATHER_S) == 2


def test_after_a_barrier_as_many_reads_are_waited_for_as_read_until_now() -> None:
    barriers = Barriers()
    for _ in range(2):
        barriers.join()
    assert barriers.to_send(HERE, now=0.0) == 1
    barriers.join()  # a third read arrives; the next lines answer only the first two
    barriers.confirmed(1, 10)
    barriers.applied(10, now=5.0)
    assert barriers.to_send(HERE, now=5.0) is None
    barriers.join()
    assert barriers.to_send(HERE, now=5.0) is None
    barriers.join()
    assert barriers.to_send(HERE, now=5.0) == 2


def test_reads_that_stay_away_are_not_waited_for_longer() -> None:
    barriers = Barriers()
    for _ in range(9):
        barriers.join()
    assert barriers.to_send(HERE, now=0.0) == 1
    barriers.confirmed(1, 10)
    barriers.applied(10, now=5.0)
    barriers.join()
    assert barriers.gather_until == 5.0 + GATHER_S
    assert barriers.to_send(HERE, now=5.0) is None
    assert barriers.to_send(HERE, now=5.0 + GATHER_S) == 2
    barriers.confirmed(2, 10)
    barriers.applied(10, now=6.0)
    barriers.join()
    assert barriers.to_send(HERE, now=6.0) == 3  # a single read does not wait for other reads


def passes(barriers: Barriers, *, in_time: int, late: int) -> float:
    """Complete one barrier; return the longest time in s that the next barrier waits for more reads.

    Args:
        in_time: Number of reads that the completed barrier serves.
        late: Number of reads that already wait for the next barrier.
    """
    for _ in range(in_time):
        barriers.join()
    number = barriers.to_send(HERE, now=10.0) or barriers.to_send(HERE, now=barriers.gather_until)
    assert number is not None
    for _ in range(late):
        barriers.join()
    barriers.confirmed(number, 1)
    barriers.applied(1, now=10.0)
    return barriers.gather_until - 10.0


def test_who_came_back_in_time_is_waited_for_longer_and_who_did_not_for_less() -> None:
    barriers = Barriers()
    came = [(4, 0), (4, 0), (2, 2), (1, 1), (2, 1)]
    waits = [passes(barriers, in_time=in_time, late=late) for in_time, late in came]
    long_s = GATHER_LONG_S
    assert waits == pytest.approx([GATHER_S, long_s, long_s / 2, long_s / 4, long_s / 4])
    assert long_s / 4 == GATHER_S


def test_nothing_is_sent_without_a_read_or_a_leader() -> None:
    barriers = Barriers()
    assert barriers.to_send(HERE, now=0.0) is None
    barriers.join()
    assert barriers.to_send(None, now=0.0) is None
    assert barriers.to_send(HERE, now=0.0) == 1
    barriers.confirmed(1, 3)
    assert barriers.to_send(HERE, now=100.0) is None


def test_a_barrier_is_replaced_when_its_leader_its_link_or_its_time_is_gone() -> None:
    barriers = Barriers()
    barriers.join()
    assert barriers.to_send(HERE, now=0.0) == 1
    assert barriers.to_send((2, "b", 1), now=0.0) == 2
    assert barriers.to_send((2, "b", 2), now=0.0) == 3
    assert barriers.to_send((2, "b", 2), now=RESEND_S / 2) is None
    assert barriers.to_send((2, "b", 2), now=RESEND_S) == 4
    barriers.not_sent()
    assert barriers.to_send((2, "b", 2), now=RESEND_S) == 5
    barriers.confirmed(5, 7)
    barriers.applied(7, now=0.0)
    assert barriers.passed >= 1  # if the latest barrier passes, all earlier barriers pass, too


def test_a_late_answer_to_an_earlier_barrier_counts_for_its_own_reads_only() -> None:
    barriers = Barriers()
    barriers.join()
    assert barriers.to_send(HERE, now=0.0) == 1
    assert barriers.join() == 2
    assert barriers.to_send((2, "b", 1), now=0.0) == 2
    barriers.confirmed(1, 5)
    barriers.applied(5, now=0.0)
    assert barriers.passed == 1


def test_answers_that_nobody_asked_for_are_ignored() -> None:
    barriers = Barriers()
    barriers.join()
    barriers.confirmed(1, 0)  # must be ignored, because barrier 1 was not sent yet
    barriers.applied(5, now=0.0)
    assert barriers.passed == 0


EVENTS = st.lists(
    st.one_of(
        st.just(("read",)),
        st.tuples(st.just("send"), st.sampled_from([HERE, (2, "b", 1), None])),
        st.just(("lost",)),
        st.tuples(st.just("answer"), st.integers(1, 12), st.integers(0, 6)),
        st.tuples(st.just("apply"), st.integers(0, 6)),
        st.tuples(st.just("wait"), st.floats(0, 2)),
    ),
    max_size=80,
)


@given(EVENTS)
def test_a_read_passes_exactly_when_a_barrier_sent_after_it_is_answered_and_applied(
    events: list[tuple[Any, ...]],
) -> None:
    """Compare the barriers with a simple model.

    For each read and each barrier, the model stores when it happened: its position in the list of events.
    """
    barriers = Barriers()
    now, applied = 0.0, 0
    read_at: list[tuple[int, int]] = []  # (position of the event, ticket) of each read
    sent_at: dict[int, int] = {}
    answered: dict[int, int] = {}
    for at, event in enumerate(events):
        match event:
            case ("read",):
                read_at.append((at, barriers.join()))
            case "send", route:
                number = barriers.to_send(route, now=now)
                if number is not None:
                    assert number not in sent_at
                    sent_at[number] = at
            case ("lost",):
                barriers.not_sent()
            case "answer", number, index:
                # An answer counts only if its barrier was sent, and if neither this barrier nor a later
                # barrier was answered before.
                if number in sent_at and number > max(answered, default=0):
                    answered[number] = index
                barriers.confirmed(number, index)
            case "apply", index:
                applied = max(applied, index)
                barriers.applied(applied, now=now)
            case "wait", seconds:
                now += seconds
        barriers.applied(applied, now=now)
        for arrived, ticket in read_at:
            may_pass = any(
                sent_at[number] > arrived and index <= applied for number, index in answered.items()
            )
            assert (barriers.passed >= ticket) is may_pass


# -- confirmations at the leader ----------------------------------------------------------------------------


def ask(rounds: Confirmations, member: str, number: int, *, voter: bool) -> None:
    rounds.asked[member] = ReadIndex(term=rounds.term, number=number, voter=voter)


def confirmed(member: str, number: int, index: int) -> tuple[str, ReadIndexReply]:
    return member, ReadIndexReply(number=number, index=index)


def settle(rounds: Confirmations, commit: int, *, size: int = 3) -> list[tuple[str, ReadIndexReply]]:
    """Return the answers that the leader of ``size`` voters can give now.

    If a member still waits for an answer, begin a round of questions to the voters.
    """
    answers = rounds.settle(commit_index=commit, voters="abcde"[:size])
    rounds.begin(commit_index=commit)
    return answers


def test_of_three_members_a_voter_that_asks_is_a_majority_with_the_leader() -> None:
    rounds = Confirmations(term=1)
    ask(rounds, "b", 4, voter=True)
    assert rounds.asked
    assert settle(rounds, 9) == [confirmed("b", 4, 9)]
    assert rounds.number == 0
    assert not rounds.asked
    assert not rounds.round


def test_a_learner_or_the_leader_itself_needs_a_round() -> None:
    rounds = Confirmations(term=1)
    ask(rounds, "a", 4, voter=False)  # a is the leader
    ask(rounds, "c", 7, voter=False)
    assert settle(rounds, 9) == []
    assert rounds.number == 1
    assert rounds.round
    rounds.confirms("b", 0)  # must be ignored, because it answers an earlier round of questions
    assert settle(rounds, 10) == []
    rounds.confirms("b", 1)
    assert rounds.confirmed_by == {"b"}
    assert settle(rounds, 11) == [confirmed("a", 4, 9), confirmed("c", 7, 9)]
    assert not rounds.round


def test_who_asks_during_a_round_gets_the_next_one() -> None:
    rounds = Confirmations(term=1)
    ask(rounds, "a", 1, voter=False)
    settle(rounds, 5)
    ask(rounds, "a", 2, voter=False)
    assert settle(rounds, 6) == []
    assert rounds.number == 1  # no second round of questions begins during the first
    rounds.confirms("b", 1)
    assert settle(rounds, 7) == [confirmed("a", 1, 5)]
    assert rounds.number == 2
    rounds.confirms("b", 1)  # a repeated answer changes nothing
    assert settle(rounds, 8) == []
    rounds.confirms("b", 2)
    assert settle(rounds, 9) == [confirmed("a", 2, 7)]


def test_of_five_members_the_asker_and_one_more_do() -> None:
    rounds = Confirmations(term=1)
    ask(rounds, "b", 1, voter=True)
    assert settle(rounds, 5, size=5) == []
    rounds.confirms("b", 1)  # changes nothing, because b confirmed the leader by its own question
    assert settle(rounds, 5, size=5) == []
    rounds.confirms("c", 1)
    assert settle(rounds, 6, size=5) == [confirmed("b", 1, 5)]


def test_of_five_members_one_question_does_not_stand_by_another() -> None:
    """A member's question for a read barrier must not confirm the barrier of another member's later read.

    Before the later read arrived, the member that asked first may have moved to another term and leader.
    """
    rounds = Confirmations(term=1)
    ask(rounds, "b", 1, voter=True)
    ask(rounds, "c", 1, voter=True)
    assert settle(rounds, 5, size=5) == []
    rounds.confirms("c", 1)
    assert settle(rounds, 6, size=5) == [confirmed("b", 1, 5)]
    rounds.confirms("d", 1)
    assert settle(rounds, 6, size=5) == [confirmed("c", 1, 5)]


def test_the_only_member_is_certain_at_once() -> None:
    rounds = Confirmations(term=1)
    ask(rounds, "a", 1, voter=False)
    assert settle(rounds, 5, size=1) == [confirmed("a", 1, 5)]


def test_a_later_question_of_a_member_replaces_its_earlier_one() -> None:
    rounds = Confirmations(term=1)
    ask(rounds, "b", 1, voter=True)
    ask(rounds, "b", 2, voter=True)
    assert settle(rounds, 5) == [confirmed("b", 2, 5)]
