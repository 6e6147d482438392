"""Tests of the time at which a member last had contact with a majority.

A member sends the time of its own clock, and other members send this time back with their answers. Contact
counts only with voters of the same term, and only after the member has applied the leader's commit index.
"""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from routekeeper.nameserver.raft.consensus.contact import QuorumContact


def test_a_leaders_contact_is_that_of_its_majority() -> None:
    contact = QuorumContact(5)
    assert contact.majority_date(100.0) == -math.inf
    contact.accepted_by("b", clock=1.0, echo=90.0, voter=True)
    assert contact.majority_date(100.0) == -math.inf
    contact.accepted_by("c", clock=1.0, echo=80.0, voter=True)
    assert contact.majority_date(100.0) == 80.0
    contact.accepted_by("d", clock=1.0, echo=95.0, voter=True)
    assert contact.majority_date(100.0) == 90.0
    assert contact.member_date("d") == 95.0


def test_the_only_member_is_always_in_contact_with_itself() -> None:
    assert QuorumContact(1).majority_date(5.0) == 5.0


def test_a_learner_does_not_count_but_its_clock_is_echoed() -> None:
    contact = QuorumContact(3)
    contact.accepted_by("b", clock=7.0, echo=90.0, voter=False)
    assert contact.majority_date(100.0) == -math.inf
    assert contact.echo_for("b") == 7.0


def test_an_older_echo_does_not_move_the_date_back() -> None:
    contact = QuorumContact(3)
    contact.accepted_by("b", clock=2.0, echo=90.0, voter=True)
    contact.accepted_by("b", clock=1.0, echo=50.0, voter=True)
    assert contact.member_date("b") == 90.0
    assert contact.echo_for("b") == 2.0


def test_who_accepted_us_has_done_so_also_after_a_new_link() -> None:
    contact = QuorumContact(3)
    contact.accepted_by("b", clock=2.0, echo=90.0, voter=True)
    contact.forget("b")
    assert contact.member_date("b") == -math.inf
    assert contact.majority_date(100.0) == -math.inf  # b may have restarted with fewer entries
    assert contact.accepted_date("b") == 90.0
    contact.accepted_by("b", clock=1.0, echo=95.0, voter=True)
    assert contact.accepted_date("b") == 95.0
    contact.forget("b")
    contact.forget("b")
    assert contact.accepted_date("b") == 95.0
    contact.new_term()
    assert contact.accepted_date("b") == -math.inf


def test_echoes_of_a_former_term_do_not_count_and_are_not_returned() -> None:
    contact = QuorumContact(3)
    contact.accepted_by("b", clock=2.0, echo=90.0, voter=True)
    contact.led(91.0, 1, 1)
    contact.new_term()
    assert contact.majority_date(100.0) == -math.inf
    assert contact.echo_for("b") is None
    assert contact.date == 90.0  # contact in an earlier term still counts


def test_a_followers_date_is_its_echo_minus_the_age_its_leader_states() -> None:
    contact = QuorumContact(3)
    contact.stated_by_leader("a", clock=5.0, echo=70.0, age=2.5, commit=10)
    contact.applied(9)
    assert contact.date == -math.inf  # contact counts only after entry 10 is applied
    contact.applied(10)
    assert contact.date == 67.5
    assert contact.echo_for("a") == 5.0


def test_a_statement_without_age_or_echo_says_nothing() -> None:
    contact = QuorumContact(3)
    contact.stated_by_leader("a", clock=5.0, echo=None, age=1.0, commit=1)
    contact.stated_by_leader("a", clock=6.0, echo=70.0, age=None, commit=1)
    contact.applied(10)
    assert contact.date == -math.inf
    assert contact.echo_for("a") == 6.0


def test_each_statement_waits_for_its_own_commit_index() -> None:
    contact = QuorumContact(3)
    for commit, echo in ((10, 50.0), (20, 60.0), (30, 70.0)):
        contact.stated_by_leader("a", clock=5.0, echo=echo, age=0.0, commit=commit)
    contact.applied(25)
    assert contact.date == 60.0
    contact.applied(30)
    assert contact.date == 70.0


def test_statements_that_wait_are_bounded_and_the_newest_survives() -> None:
    contact = QuorumContact(3)
    for i in range(1000):
        contact.stated_by_leader("a", clock=float(i), echo=float(i), age=0.0, commit=i)
    contact.applied(999)
    assert contact.date == 999.0


def test_a_new_link_forgets_the_clock_of_the_former_process() -> None:
    contact = QuorumContact(3)
    contact.accepted_by("b", clock=2.0, echo=90.0, voter=True)
    contact.forget("b")
    assert contact.echo_for("b") is None
    assert contact.majority_date(100.0) == -math.inf


PEERS = st.sampled_from(["b", "c", "d", "e"])
SECONDS = st.floats(0, 3)
EVENTS = st.one_of(
    st.tuples(st.just("wait"), SECONDS),
    st.tuples(st.just("echo"), PEERS, SECONDS, st.booleans()),
    st.tuples(st.just("stated"), PEERS, SECONDS, SECONDS, st.integers(0, 5)),
    st.tuples(st.just("applied"), st.integers(0, 5)),
    st.tuples(st.just("led")),
    st.tuples(st.just("new term")),
    st.tuples(st.just("forget"), PEERS),
    st.tuples(st.just("limit"), st.floats(0.1, 2)),
)


def tell(contact: QuorumContact, event: tuple[Any, ...], now: float) -> None:
    match event:
        case "echo", peer, ago, voter:
            contact.accepted_by(peer, clock=now, echo=now - ago, voter=voter)
        case "stated", peer, ago, age, commit:
            contact.stated_by_leader(peer, clock=now, echo=now - ago, age=age, commit=commit)
        case "applied", index:
            contact.applied(index)
        case ("led",):
            contact.led(now, 1, 1)
        case ("new term",):
            contact.new_term()
        case "forget", peer:
            contact.forget(peer)


@given(st.lists(EVENTS, max_size=60), st.sampled_from([3, 5]), st.floats(0, 1e8))
def test_a_kept_yes_is_what_the_date_says_at_all_times(
    events: list[tuple[Any, ...]], members: int, now: float
) -> None:
    # Only ``asked`` gets calls of in_time(). So only ``asked`` stores answers, and ``plain`` computes each
    # answer anew.
    asked, plain = QuorumContact(members), QuorumContact(members)
    limit = 2.0
    for event in events:
        if event[0] == "wait":
            now += event[1]
        elif event[0] == "limit":
            limit = min(limit, event[1])
        for contact in (asked, plain):
            tell(contact, event, now)
        for instant in (now, asked.date + limit, math.nextafter(asked.date + limit, -math.inf)):
            if instant >= now:
                kept = asked.in_time(instant, limit)
                assert (kept or asked.younger(instant, limit)) is (plain.age(instant) < limit)


def test_a_yes_is_kept_until_the_date_is_too_old_the_limit_falls_or_the_term_ends() -> None:
    contact = QuorumContact(3)
    contact.accepted_by("b", clock=1.0, echo=90.0, voter=True)
    contact.led(90.5, 1, 1)
    assert not contact.in_time(91.0, 2.0)  # no answer is stored before the first call of younger()
    assert contact.younger(91.0, 2.0)
    assert contact.in_time(91.9, 2.0)
    assert not contact.in_time(92.0, 2.0)
    assert not contact.in_time(91.0, 1.5)
    contact.new_term()
    assert not contact.in_time(91.0, 2.0)
